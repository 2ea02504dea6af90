//! What follows an instruction's operands.

use std::fmt::{self, Write};

use pjrt_sys::protos::xla::{precision_config, triangular_solve_options};
use pjrt_sys::protos::xla::{
    CustomCallApiVersion, CustomCallSchedule, FftType, FrontendAttributes, HloInstructionProto,
    OutputOperandAliasing, PrecisionConfig, RandomAlgorithm, RandomDistribution, Window,
};

use super::shape::{Layouts, Shape};
use super::sharding::{print_iota, Sharding};
use super::{list, Joined, Names, Quoted};

pub(super) fn print(
    out: &mut String,
    instruction: &HloInstructionProto,
    names: &Names<'_>,
) -> fmt::Result {
    own(out, instruction, names)?;
    called(out, instruction, names)?;
    if let Some(sharding) = &instruction.sharding {
        write!(out, ", sharding={}", Sharding(sharding))?;
    }
    frontend(out, instruction.frontend_attributes.as_ref())?;
    let before = &instruction.control_predecessor_ids;
    if !before.is_empty() {
        let before: Vec<_> = before.iter().map(|&id| names.of_instruction(id)).collect();
        write!(out, ", control-predecessors={{{}}}", Joined(&before, ", "))?;
    }
    Ok(())
}

pub(super) fn frontend(out: &mut String, attributes: Option<&FrontendAttributes>) -> fmt::Result {
    let mut pairs: Vec<_> = attributes.into_iter().flat_map(|of| &of.map).collect();
    if pairs.is_empty() {
        return Ok(());
    }
    pairs.sort_unstable();
    out.push_str(", frontend_attributes={");
    for (index, (name, value)) in pairs.into_iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        // Values that are dictionaries stand bare, as XLA writes and reads them.
        let dictionary = value.starts_with('{') && value.ends_with('}');
        if dictionary {
            write!(out, "{comma}{name}={value}")?;
        } else {
            write!(out, "{comma}{name}={}", Quoted(value.as_bytes()))?;
        }
    }
    out.push('}');
    Ok(())
}

/// The computations that the instruction calls.
fn called(out: &mut String, instruction: &HloInstructionProto, names: &Names<'_>) -> fmt::Result {
    let ids = instruction.called_computation_ids.as_slice();
    let all = || -> Vec<_> { ids.iter().map(|&id| names.of_computation(id)).collect() };
    match (instruction.opcode.as_str(), ids) {
        (_, []) => Ok(()),
        ("while", &[body, condition]) => write!(
            out,
            ", condition={}, body={}",
            names.of_computation(condition),
            names.of_computation(body)
        ),
        ("select-and-scatter", &[select, scatter]) => write!(
            out,
            ", select={}, scatter={}",
            names.of_computation(select),
            names.of_computation(scatter)
        ),
        ("conditional", _) => {
            // Two branches are chosen between by a boolean or by a number.
            let chosen_by = instruction.operand_ids.first();
            let chosen_by = chosen_by.and_then(|id| names.instructions.get(id));
            let chosen_by = chosen_by.and_then(|operand| operand.shape.as_ref());
            match (ids, chosen_by.map(|shape| shape.element_type)) {
                (&[if_true, if_false], Some(1)) => write!(
                    out,
                    ", true_computation={}, false_computation={}",
                    names.of_computation(if_true),
                    names.of_computation(if_false)
                ),
                _ => write!(out, ", branch_computations={{{}}}", Joined(&all(), ", ")),
            }
        }
        ("custom-call", _) => {
            write!(out, ", called_computations={{{}}}", Joined(&all(), ", "))
        }
        (
            "call" | "map" | "reduce" | "reduce-window" | "all-reduce" | "all-reduce-start"
            | "reduce-scatter" | "scatter" | "sort" | "topk",
            _,
        ) => write!(out, ", to_apply={}", Joined(&all(), ", ")),
        _ => write!(out, ", calls={}", Joined(&all(), ", ")),
    }
}

/// What is particular to the operation.
fn own(out: &mut String, of: &HloInstructionProto, names: &Names<'_>) -> fmt::Result {
    let dimensions = || list(&of.dimensions);
    match of.opcode.as_str() {
        "broadcast" | "concatenate" | "reduce" | "reverse" | "transpose" | "map" => {
            write!(out, ", dimensions={{{}}}", dimensions())
        }
        "sort" => {
            write!(out, ", dimensions={{{}}}", dimensions())?;
            flag(out, "is_stable", of.is_stable)
        }
        "iota" => write!(out, ", iota_dimension={}", dimensions()),
        "get-dimension-size" | "set-dimension-size" => {
            write!(out, ", dimensions={{{}}}", dimensions())
        }
        "slice" => slices(out, of),
        "dynamic-slice" => write!(
            out,
            ", dynamic_slice_sizes={{{}}}",
            list(&of.dynamic_slice_sizes)
        ),
        "pad" => padding(out, of),
        "get-tuple-element" => write!(out, ", index={}", of.tuple_index),
        "compare" => {
            write!(out, ", direction={}", of.comparison_direction)?;
            // Written where it is not the one that the operands' type has anyway.
            match of.comparison_type.as_str() {
                "TOTALORDER" => out.write_str(", type=TOTALORDER"),
                _ => Ok(()),
            }
        }
        "dot" => dot(out, of),
        "convolution" => {
            window(out, of.window.as_ref())?;
            convolution(out, of)
        }
        "reduce-window" | "select-and-scatter" => window(out, of.window.as_ref()),
        "gather" => gather(out, of),
        "scatter" => scatter(out, of),
        "fusion" => {
            write!(out, ", kind={}", of.fusion_kind)?;
            aliasing(out, &of.output_operand_aliasing)
        }
        "custom-call" => custom_call(out, of),
        "reduce-precision" => write!(
            out,
            ", exponent_bits={}, mantissa_bits={}",
            of.exponent_bits, of.mantissa_bits
        ),
        "rng" => {
            let distribution = RandomDistribution::try_from(of.distribution);
            let name = distribution.map_or("RNG_INVALID", |known| known.as_str_name());
            write!(out, ", distribution={}", name.to_ascii_lowercase())
        }
        "rng-bit-generator" => {
            let algorithm = RandomAlgorithm::try_from(of.rng_algorithm);
            let name = algorithm.map_or("RNG_DEFAULT", |known| known.as_str_name());
            write!(out, ", algorithm={}", name.to_ascii_lowercase())
        }
        "rng-get-and-update-state" => write!(out, ", delta={}", of.delta),
        "fft" => {
            let kind = FftType::try_from(of.fft_type).map_or("FFT", |known| known.as_str_name());
            write!(
                out,
                ", fft_type={kind}, fft_length={{{}}}",
                list(&of.fft_length)
            )
        }
        "triangular-solve" => triangular_solve(out, of),
        "cholesky" => flag(
            out,
            "lower",
            of.cholesky_options
                .as_ref()
                .is_some_and(|options| options.lower),
        ),
        "batch-norm-training" | "batch-norm-inference" | "batch-norm-grad" => write!(
            out,
            ", epsilon={}, feature_index={}",
            of.epsilon, of.feature_index
        ),
        "topk" => {
            write!(out, ", k={}", of.k)?;
            flag(out, "largest", of.largest)
        }
        opcode if is_collective(opcode) => collective(out, of, names),
        "send" | "send-done" | "recv" | "recv-done" => {
            channel(out, of)?;
            flag(out, "is_host_transfer", of.is_host_transfer)
        }
        _ => Ok(()),
    }
}

fn flag(out: &mut String, name: &str, is_set: bool) -> fmt::Result {
    if !is_set {
        return Ok(());
    }
    write!(out, ", {name}=true")
}

fn slices(out: &mut String, of: &HloInstructionProto) -> fmt::Result {
    let strided = of.slice_dimensions.iter().any(|slice| slice.stride != 1);
    out.push_str(", slice={");
    for (index, slice) in of.slice_dimensions.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        write!(out, "{comma}[{}:{}", slice.start, slice.limit)?;
        if strided {
            write!(out, ":{}", slice.stride)?;
        }
        out.push(']');
    }
    out.push('}');
    Ok(())
}

fn padding(out: &mut String, of: &HloInstructionProto) -> fmt::Result {
    let dimensions = of
        .padding_config
        .iter()
        .flat_map(|config| &config.dimensions);
    let dimensions: Vec<_> = dimensions.collect();
    let interior = dimensions.iter().any(|size| size.interior_padding != 0);
    out.push_str(", padding=");
    for (index, size) in dimensions.iter().enumerate() {
        let by = if index > 0 { "x" } else { "" };
        write!(
            out,
            "{by}{}_{}",
            size.edge_padding_low, size.edge_padding_high
        )?;
        if interior {
            write!(out, "_{}", size.interior_padding)?;
        }
    }
    Ok(())
}

fn window(out: &mut String, window: Option<&Window>) -> fmt::Result {
    let dimensions = window.map_or(&[][..], |window| &window.dimensions);
    if dimensions.is_empty() {
        return Ok(());
    }
    let by = |text: &dyn Fn(&pjrt_sys::protos::xla::WindowDimension) -> String| {
        let texts: Vec<String> = dimensions.iter().map(text).collect();
        texts.join("x")
    };
    write!(out, ", window={{size={}", by(&|of| of.size.to_string()))?;
    if dimensions.iter().any(|of| of.stride != 1) {
        write!(out, " stride={}", by(&|of| of.stride.to_string()))?;
    }
    if dimensions
        .iter()
        .any(|of| of.padding_low != 0 || of.padding_high != 0)
    {
        let pads = by(&|of| format!("{}_{}", of.padding_low, of.padding_high));
        write!(out, " pad={pads}")?;
    }
    if dimensions.iter().any(|of| of.base_dilation != 1) {
        write!(
            out,
            " lhs_dilate={}",
            by(&|of| of.base_dilation.to_string())
        )?;
    }
    if dimensions.iter().any(|of| of.window_dilation != 1) {
        write!(
            out,
            " rhs_dilate={}",
            by(&|of| of.window_dilation.to_string())
        )?;
    }
    if dimensions.iter().any(|of| of.window_reversal) {
        let reversal = by(&|of| u8::from(of.window_reversal).to_string());
        write!(out, " rhs_reversal={reversal}")?;
    }
    out.push('}');
    Ok(())
}

fn precision(out: &mut String, config: Option<&PrecisionConfig>) -> fmt::Result {
    let Some(config) = config else { return Ok(()) };
    let names: Vec<String> = config
        .operand_precision()
        .map(|precision| precision.as_str_name().to_ascii_lowercase())
        .collect();
    if names.iter().any(|name| name != "default") {
        write!(out, ", operand_precision={{{}}}", list(&names))?;
    }
    match config.algorithm() {
        precision_config::Algorithm::AlgUnset => Ok(()),
        algorithm => {
            let name = algorithm.as_str_name().to_ascii_lowercase();
            write!(out, ", algorithm={}", name.trim_start_matches("alg_"))
        }
    }
}

fn dot(out: &mut String, of: &HloInstructionProto) -> fmt::Result {
    if let Some(numbers) = &of.dot_dimension_numbers {
        let lists = [
            ("lhs_batch_dims", &numbers.lhs_batch_dimensions, false),
            (
                "lhs_contracting_dims",
                &numbers.lhs_contracting_dimensions,
                true,
            ),
            ("rhs_batch_dims", &numbers.rhs_batch_dimensions, false),
            (
                "rhs_contracting_dims",
                &numbers.rhs_contracting_dimensions,
                true,
            ),
        ];
        for (name, dimensions, always) in lists {
            if always || !dimensions.is_empty() {
                write!(out, ", {name}={{{}}}", list(dimensions))?;
            }
        }
    }
    precision(out, of.precision_config.as_ref())
}

/// `dim_labels=b01f_01io->b01f`
fn convolution(out: &mut String, of: &HloInstructionProto) -> fmt::Result {
    if let Some(numbers) = &of.convolution_dimension_numbers {
        let labels = |first: (i64, char), second: (i64, char), spatial: &[i64]| -> String {
            let mut labels = vec![first, second];
            let digits = ('0'..='9').chain('A'..='Z');
            labels.extend(spatial.iter().copied().zip(digits));
            labels.sort_unstable();
            labels.into_iter().map(|(_, label)| label).collect()
        };
        write!(
            out,
            ", dim_labels={}_{}->{}",
            labels(
                (numbers.input_batch_dimension, 'b'),
                (numbers.input_feature_dimension, 'f'),
                &numbers.input_spatial_dimensions
            ),
            labels(
                (numbers.kernel_input_feature_dimension, 'i'),
                (numbers.kernel_output_feature_dimension, 'o'),
                &numbers.kernel_spatial_dimensions
            ),
            labels(
                (numbers.output_batch_dimension, 'b'),
                (numbers.output_feature_dimension, 'f'),
                &numbers.output_spatial_dimensions
            )
        )?;
    }
    let counts = [
        ("feature_group_count", of.feature_group_count),
        ("batch_group_count", of.batch_group_count),
    ];
    for (name, count) in counts {
        if count > 1 {
            write!(out, ", {name}={count}")?;
        }
    }
    precision(out, of.precision_config.as_ref())
}

fn gather(out: &mut String, of: &HloInstructionProto) -> fmt::Result {
    if let Some(numbers) = &of.gather_dimension_numbers {
        write!(
            out,
            ", offset_dims={{{}}}, collapsed_slice_dims={{{}}}, start_index_map={{{}}}",
            list(&numbers.offset_dims),
            list(&numbers.collapsed_slice_dims),
            list(&numbers.start_index_map)
        )?;
        batching(out, "operand_batching_dims", &numbers.operand_batching_dims)?;
        batching(
            out,
            "start_indices_batching_dims",
            &numbers.start_indices_batching_dims,
        )?;
        write!(out, ", index_vector_dim={}", numbers.index_vector_dim)?;
    }
    write!(out, ", slice_sizes={{{}}}", list(&of.gather_slice_sizes))?;
    flag(out, "indices_are_sorted", of.indices_are_sorted)
}

fn scatter(out: &mut String, of: &HloInstructionProto) -> fmt::Result {
    if let Some(numbers) = &of.scatter_dimension_numbers {
        write!(
            out,
            ", update_window_dims={{{}}}, inserted_window_dims={{{}}}, \
             scatter_dims_to_operand_dims={{{}}}",
            list(&numbers.update_window_dims),
            list(&numbers.inserted_window_dims),
            list(&numbers.scatter_dims_to_operand_dims)
        )?;
        batching(out, "input_batching_dims", &numbers.input_batching_dims)?;
        batching(
            out,
            "scatter_indices_batching_dims",
            &numbers.scatter_indices_batching_dims,
        )?;
        write!(out, ", index_vector_dim={}", numbers.index_vector_dim)?;
    }
    flag(out, "indices_are_sorted", of.indices_are_sorted)?;
    flag(out, "unique_indices", of.unique_indices)
}

fn batching(out: &mut String, name: &str, dimensions: &[i64]) -> fmt::Result {
    if dimensions.is_empty() {
        return Ok(());
    }
    write!(out, ", {name}={{{}}}", list(dimensions))
}

fn triangular_solve(out: &mut String, of: &HloInstructionProto) -> fmt::Result {
    let Some(options) = &of.triangular_solve_options else {
        return Ok(());
    };
    flag(out, "left_side", options.left_side)?;
    flag(out, "lower", options.lower)?;
    flag(out, "unit_diagonal", options.unit_diagonal)?;
    let transpose = triangular_solve_options::Transpose::try_from(options.transpose_a);
    let name = transpose.map_or("TRANSPOSE_INVALID", |known| known.as_str_name());
    write!(out, ", transpose_a={name}")
}

fn custom_call(out: &mut String, of: &HloInstructionProto) -> fmt::Result {
    window(out, of.window.as_ref())?;
    let target = Quoted(of.custom_call_target.as_bytes());
    write!(out, ", custom_call_target={target}")?;
    flag(
        out,
        "custom_call_has_side_effect",
        of.custom_call_has_side_effect,
    )?;
    if of.constrain_layout {
        out.push_str(", operand_layout_constraints={");
        for (index, operand) in of.operand_shapes_with_layout.iter().enumerate() {
            out.push_str(if index > 0 { ", " } else { "" });
            write!(out, "{}", Shape(operand, Layouts::Shown))?;
        }
        out.push('}');
    }
    aliasing(out, &of.output_operand_aliasing)?;
    if let Ok(schedule) = CustomCallSchedule::try_from(of.custom_call_schedule) {
        if schedule != CustomCallSchedule::ScheduleNone {
            write!(out, ", schedule={}", schedule.as_str_name())?;
        }
    }
    match CustomCallApiVersion::try_from(of.custom_call_api_version) {
        // The default, which XLA does not write.
        Ok(CustomCallApiVersion::ApiVersionOriginal) => Ok(()),
        Ok(version) => write!(out, ", api_version={}", version.as_str_name()),
        Err(_) => write!(out, ", api_version={}", of.custom_call_api_version),
    }
}

fn aliasing(out: &mut String, aliasing: &[OutputOperandAliasing]) -> fmt::Result {
    if aliasing.is_empty() {
        return Ok(());
    }
    out.push_str(", output_to_operand_aliasing={");
    for (index, alias) in aliasing.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        write!(
            out,
            "{comma}{{{}}}: ({}, {{{}}})",
            Joined(&alias.output_shape_index, ", "),
            alias.operand_index,
            Joined(&alias.operand_shape_index, ", ")
        )?;
    }
    out.push('}');
    Ok(())
}

fn is_collective(opcode: &str) -> bool {
    let opcode = opcode.strip_suffix("-start").unwrap_or(opcode);
    matches!(
        opcode,
        "all-gather"
            | "all-reduce"
            | "reduce-scatter"
            | "all-to-all"
            | "ragged-all-to-all"
            | "collective-permute"
            | "collective-broadcast"
    )
}

fn channel(out: &mut String, of: &HloInstructionProto) -> fmt::Result {
    if of.channel_id <= 0 {
        return Ok(());
    }
    write!(out, ", channel_id={}", of.channel_id)
}

fn collective(out: &mut String, of: &HloInstructionProto, names: &Names<'_>) -> fmt::Result {
    channel(out, of)?;
    if of.opcode.starts_with("collective-permute") {
        let pairs = of.source_target_pairs.iter();
        let pairs: Vec<String> = pairs
            .map(|pair| format!("{{{},{}}}", pair.source, pair.target))
            .collect();
        return write!(out, ", source_target_pairs={{{}}}", list(&pairs));
    }
    match names.mesh_groups.get(&(names.computation, of.id)) {
        Some(groups) => write!(out, ", replica_groups={}", groups.text())?,
        None => replica_groups(out, of)?,
    }
    flag(out, "constrain_layout", of.constrain_layout)?;
    if !of.dimensions.is_empty() {
        write!(out, ", dimensions={{{}}}", list(&of.dimensions))?;
    }
    flag(out, "use_global_device_ids", of.use_global_device_ids)
}

fn replica_groups(out: &mut String, of: &HloInstructionProto) -> fmt::Result {
    let devices = of.collective_device_list.as_ref();
    out.push_str(", replica_groups=");
    let iota = devices.and_then(|devices| devices.iota_replica_group_list.as_ref());
    if let Some(iota) = iota {
        write!(
            out,
            "[{},{}]",
            iota.num_replica_groups, iota.num_devices_per_group
        )?;
        return print_iota(out, &iota.iota_reshape_dims, &iota.iota_transpose_perm);
    }
    // Where older plugins list the groups.
    #[allow(deprecated)]
    let older = &of.replica_groups;
    let groups = devices.map_or(older, |devices| &devices.replica_groups);
    let groups: Vec<String> = groups
        .iter()
        .map(|group| format!("{{{}}}", list(&group.replica_ids)))
        .collect();
    write!(out, "{{{}}}", list(&groups))
}

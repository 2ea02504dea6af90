//! Cases: right specs, specs with one thing wrong, and texts of any kind in any place.

use stablehlo_custom_call::{ElementType, Type};

use crate::case::{Case, Named};
use crate::grammar;
use crate::rng::Rng;

/// The case of an index in a run, always the same one.
pub fn case(seed: u64, index: u64) -> Case {
    let rng = &mut Rng::of_case(seed, index);
    let mut case = spec(rng);
    match rng.below(10) {
        0..=3 => {}
        4..=6 => change(rng, &mut case),
        7 | 8 => {
            for _ in 0..rng.between(1, 2) {
                any_text(rng, &mut case);
            }
        }
        _ => {
            any_text(rng, &mut case);
            change(rng, &mut case);
            if rng.once_in(3) {
                change(rng, &mut case);
            }
        }
    }
    case
}

fn named(name: &str, text: impl Into<Vec<u8>>) -> Named {
    (name.as_bytes().to_vec(), text.into())
}

fn tensor_type(rng: &mut Rng) -> Type {
    const COMMON: [ElementType; 6] = [
        ElementType::F32,
        ElementType::F32,
        ElementType::F64,
        ElementType::S32,
        ElementType::BF16,
        ElementType::Pred,
    ];
    let element = if rng.once_in(3) {
        rng.pick(&ElementType::ALL)
    } else {
        rng.pick(&COMMON)
    };
    let rank = rng.pick(&[0, 1, 1, 2, 2, 2, 3, 4, 5]);
    let dimensions: Vec<i64> = (0..rank)
        .map(|_| match rng.below(24) {
            0 => 0,
            1 => 1,
            2 => 1 << 16,
            _ => rng.pick(&[2, 2, 2, 3, 4, 6, 8]),
        })
        .collect();
    Type::tensor(element, &dimensions)
}

/// Mostly a tensor, sometimes a token.
fn value_type(rng: &mut Rng) -> Type {
    if rng.once_in(14) {
        Type::Token
    } else {
        tensor_type(rng)
    }
}

fn types(rng: &mut Rng) -> Vec<Type> {
    let count = rng.pick(&[0, 1, 1, 1, 2, 2, 3]);
    let mut list: Vec<Type> = Vec::new();
    for _ in 0..count {
        let next = match list.last() {
            Some(last) if rng.once_in(2) => last.clone(),
            _ => value_type(rng),
        };
        list.push(next);
    }
    list
}

/// A spec as a user would write it.
fn spec(rng: &mut Rng) -> Case {
    let operands = types(rng);
    let results = if rng.once_in(2) && !operands.is_empty() {
        operands.clone()
    } else {
        types(rng)
    };
    let mut case = Case {
        operands,
        results,
        target: rng
            .pick(&[&b"target"[..], b"target", b"kernel.v2", b"a b"])
            .to_vec(),
        ..Case::default()
    };
    if rng.once_in(8) {
        case.api_version = rng.between(1, 3) as i64;
        if !rng.once_in(3) {
            let bytes = rng.pick(&[
                &b"opaque"[..],
                b"",
                b"\x08\x01\x12\0",
                b"{\"a\": 1}",
                b"\xff",
            ]);
            case.backend_config = Some(bytes.to_vec());
        }
    } else {
        for index in 0..rng.below(4) {
            let text = ffi_text(rng, 2);
            let name = rng.pick(&["a", "scale", "b", "c d", "window"]);
            case.attributes.push(named(&format!("{name}{index}"), text));
        }
    }
    if rng.once_in(40) {
        case.target = rng.pick(&XLA_TARGETS).as_bytes().to_vec();
    }
    // XLA reads no attributes of what nobody uses.
    if case.is_dead() && !rng.once_in(4) {
        set(&mut case, "has_side_effect", "true".into());
    }
    for _ in 0..rng.pick(&[0, 1, 1, 2, 3]) {
        compiler_attribute(rng, &mut case);
    }
    if !case.shardy && rng.once_in(6) {
        case.shardy = true;
    }
    if case.shardy && rng.once_in(3) {
        case.partitions = 2;
    }
    case
}

/// What a handler of the typed FFI can read.
fn ffi_text(rng: &mut Rng, depth: usize) -> String {
    match rng.below(if depth == 0 { 7 } else { 8 }) {
        0 => format!(
            "{} : {}",
            rng.below(100),
            rng.pick(&["i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64"])
        ),
        1 => format!(
            "{}.{} : {}",
            rng.below(10),
            rng.below(100),
            rng.pick(&["f32", "f64"])
        ),
        2 => rng.pick(&["true", "false"]).into(),
        3 => format!("\"{}\"", rng.pick(&["", "text", "\\22\\5C", "é", "a\\00b"])),
        4 => {
            let element = rng.pick(&["i8", "i16", "i32", "i64", "f32", "f64"]);
            let point = if element.starts_with('f') { ".5" } else { "" };
            let items: Vec<_> = (0..rng.below(4))
                .map(|_| format!("{}{point}", rng.below(100)))
                .collect();
            if items.is_empty() {
                format!("array<{element}>")
            } else {
                format!("array<{element}: {}>", items.join(", "))
            }
        }
        5 => format!(
            "dense<[{}, {}]> : tensor<2x{}>",
            rng.below(100),
            rng.below(100),
            rng.pick(&["i8", "i32", "i64", "ui8"])
        ),
        6 => format!(
            "dense<{}.0> : tensor<{}xf32>",
            rng.below(9),
            rng.between(1, 5)
        ),
        _ => {
            let entries: Vec<_> = (0..rng.below(3))
                .map(|index| format!("k{index} = {}", ffi_text(rng, depth - 1)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

fn rank(r#type: &Type) -> Option<usize> {
    match r#type {
        Type::Tensor { dimensions, .. } => Some(dimensions.len()),
        Type::Token | Type::Tuple(_) | Type::Buffer { .. } => None,
    }
}

fn size(r#type: &Type, dimension: usize) -> i64 {
    match r#type {
        Type::Tensor { dimensions, .. } => dimensions.get(dimension).copied().unwrap_or(1),
        Type::Token | Type::Tuple(_) | Type::Buffer { .. } => 1,
    }
}

fn set(case: &mut Case, name: &str, text: String) {
    case.mlir_attributes
        .retain(|(key, _)| key != name.as_bytes());
    case.mlir_attributes.push(named(name, text));
}

fn layout(rng: &mut Rng, rank: usize) -> String {
    let mut order: Vec<usize> = (0..rank).rev().collect();
    if rng.once_in(2) {
        for at in (1..rank).rev() {
            order.swap(at, rng.below(at + 1));
        }
    }
    if rank == 0 {
        return "dense<> : tensor<0xindex>".into();
    }
    format!("dense<{order:?}> : tensor<{rank}xindex>")
}

fn layouts(rng: &mut Rng, types: &[Type]) -> String {
    let list: Vec<_> = types
        .iter()
        .map(|r#type| layout(rng, rank(r#type).unwrap_or(0)))
        .collect();
    format!("[{}]", list.join(", "))
}

/// One attribute for the compiler, right for the case's operands and results.
fn compiler_attribute(rng: &mut Rng, case: &mut Case) {
    match rng.below(14) {
        0..=2 => {
            let (operands, results) = (layouts(rng, &case.operands), layouts(rng, &case.results));
            set(case, "operand_layouts", operands);
            set(case, "result_layouts", results);
        }
        3 | 4 => {
            let text = aliases(rng, case);
            set(case, "output_operand_aliases", text);
        }
        5 => {
            let text = rng.pick(&["true", "false"]).into();
            set(case, "has_side_effect", text);
        }
        6 => {
            let types = case.operands.clone();
            let types: Vec<_> = types.into_iter().filter(|t| *t != Type::Token).collect();
            case.functions = vec![(b"f".to_vec(), types)];
            let text = rng.pick(&[
                "[@f]",
                "[@f]",
                "[@f]",
                "[@f]",
                "[@f]",
                "[]",
                "[@f, @f]",
                "[@main]",
                "[@missing]",
                "[@f::@f]",
                "@f",
            ]);
            set(case, "called_computations", text.into());
        }
        7 | 8 => {
            let text = sharding_rule(rng, case);
            set(case, "sdy.sharding_rule", text);
            case.shardy = !rng.once_in(5);
        }
        9 => {
            let text = sharding(rng, case);
            set(case, "sdy.sharding", text);
            if !rng.once_in(4) {
                let mesh = rng.pick(&[
                    "#sdy.mesh<[\"x\"=2]>",
                    "#sdy.mesh<[\"x\"=2]>",
                    "#sdy.mesh<[\"x\"=2, \"y\"=1]>",
                    "#sdy.mesh<[\"x\"=2], device_ids=[1, 0]>",
                    "#sdy.mesh<[], device_ids=[1]>",
                    "#sdy.mesh<[\"y\"=2]>",
                ]);
                case.meshes = vec![named("mesh", mesh)];
            }
            case.shardy = !rng.once_in(5);
        }
        10 => {
            let text = rng.pick(&[
                "{a = \"b\"}",
                "{}",
                "{_xla_stream_annotation = \"1\"}",
                "{a = \"b\", \"c d\" = \"\"}",
            ]);
            set(case, "mhlo.frontend_attributes", text.into());
        }
        11 => {
            let text = rng.pick(&[
                "\"{replicated}\"",
                "\"{maximal device=0}\"",
                "\"{manual}\"",
                "\"{devices=[2,1]0,1}\"",
                "\"{devices=[2]<=[2]}\"",
                "\"\"",
            ]);
            set(case, "mhlo.sharding", text.into());
        }
        12 => {
            let name = rng.pick(&KNOWN_NAMES);
            let text = match name {
                "custom_call_schedule" | "mhlo.custom_call_schedule" => rng
                    .pick(&["#mhlo<custom_call_schedule LATEST>", "1 : i32"])
                    .into(),
                "result_tilings" => "[[dense<[2]> : tensor<1xindex>]]".into(),
                _ => grammar::attribute(rng, 1),
            };
            set(case, name, text);
        }
        _ => {
            let name = rng.pick(&UNKNOWN_NAMES);
            let text = ffi_text(rng, 1);
            set(case, name, text);
        }
    }
}

/// Names that XLA or Shardy read somewhere.
const KNOWN_NAMES: [&str; 22] = [
    "custom_call_schedule",
    "mhlo.custom_call_schedule",
    "result_tilings",
    "operand_layouts",
    "result_layouts",
    "output_operand_aliases",
    "has_side_effect",
    "called_computations",
    "sdy.sharding_rule",
    "sdy.sharding",
    "mhlo.frontend_attributes",
    "mhlo.sharding",
    "mhlo.literal",
    "mhlo.original_value",
    "mhlo.layout_mode",
    "xla_shape",
    "result_layout",
    "operand_layout",
    "jax.buffer_donor",
    "tf.aliasing_output",
    "stablehlo.frontend_attributes",
    "inferred_sharding",
];

/// Targets that XLA, Shardy or the import of StableHLO take for their own.
const XLA_TARGETS: [&str; 36] = [
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "TopK",
    "ApproxTopK",
    "annotate_device_placement",
    "MoveToHost",
    "MoveToDevice",
    "LayoutConstraint",
    "ResizeNearest",
    "X64Combine",
    "X64SplitLow",
    "X64SplitHigh",
    "AllocateBuffer",
    "CreateBuffer",
    "Pin",
    "Unpin",
    "PadToStatic",
    "SliceToDynamic",
    "AssumeGatherIndicesInBound",
    "__onednn$matmul",
    "__cublas$gemm",
    "mhlo.topk",
    "mhlo.erf",
    "mhlo.ragged_all_to_all",
    "chlo.ragged_dot",
    "stablehlo.dynamic_reshape",
    "stablehlo.dynamic_reduce_window",
    "shape_assertion",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
    "xla.sdy.PropagationBarrier",
    "Eigh",
    "Qr",
    "Cholesky",
];

const UNKNOWN_NAMES: [&str; 16] = [
    "foo",
    "foo.bar",
    "stablehlo.foo",
    "mhlo.foo",
    "sdy.foo",
    "chlo.foo",
    "func.foo",
    "builtin.foo",
    "jax.foo",
    "a b",
    "x-y",
    "Foo",
    "_foo",
    "foo.",
    ".foo",
    "$x",
];

fn aliases(rng: &mut Rng, case: &Case) -> String {
    let mut list = Vec::new();
    let several = case.results.len() > 1;
    for (output, result) in case.results.iter().enumerate() {
        if rng.once_in(3) {
            continue;
        }
        let operand = case
            .operands
            .iter()
            .position(|operand| operand == result)
            .unwrap_or(rng.below(case.operands.len().max(1)));
        let index = if several {
            output.to_string()
        } else {
            String::new()
        };
        list.push(format!(
            "#stablehlo.output_operand_alias<output_tuple_indices = [{index}], operand_index = {operand}, operand_tuple_indices = []>"
        ));
    }
    format!("[{}]", list.join(", "))
}

/// The symbol of a factor: i to z, then z_1, z_2 and so on.
fn factor(index: usize) -> String {
    match u8::try_from(index) {
        Ok(index) if index < 18 => char::from(b'i' + index).to_string(),
        _ => format!("z_{}", index - 17),
    }
}

/// A rule in which dimensions of one size share a factor now and then.
fn sharding_rule(rng: &mut Rng, case: &Case) -> String {
    let mut sizes: Vec<i64> = Vec::new();
    let mut value = |rng: &mut Rng, r#type: &Type| {
        let mut used = Vec::new();
        let dimensions: Vec<_> = (0..rank(r#type).unwrap_or(0))
            .map(|dimension| {
                let wanted = size(r#type, dimension);
                let shared = sizes
                    .iter()
                    .position(|size| *size == wanted)
                    .filter(|factor| !used.contains(factor) && !rng.once_in(3));
                let factor = shared.unwrap_or_else(|| {
                    sizes.push(wanted);
                    sizes.len() - 1
                });
                used.push(factor);
                self::factor(factor)
            })
            .collect();
        format!("[{}]", dimensions.join(", "))
    };
    let operands: Vec<_> = case.operands.iter().map(|t| value(rng, t)).collect();
    let results: Vec<_> = case.results.iter().map(|t| value(rng, t)).collect();
    let factors: Vec<_> = sizes
        .iter()
        .enumerate()
        .map(|(index, size)| format!("{}={size}", factor(index)))
        .collect();
    let first = factor(rng.below(sizes.len().max(1)));
    let extra = match rng.below(8) {
        0 => format!(" reduction={{{first}}}"),
        1 => format!(" need_replication={{{first}}}"),
        2 => format!(" permutation={{{first}}}"),
        3 => format!(" blocked_propagation={{{first}}}"),
        _ => String::new(),
    };
    let custom = if rng.once_in(3) { "" } else { ", custom" };
    format!(
        "#sdy.op_sharding_rule<({})->({}) {{{}}}{extra}{custom}>",
        operands.join(", "),
        results.join(", "),
        factors.join(", ")
    )
}

fn sharding(rng: &mut Rng, case: &Case) -> String {
    let mesh = rng.pick(&[
        "mesh<[\"x\"=2]>",
        "mesh<[\"x\"=2]>",
        "mesh<[\"x\"=2]>",
        "mesh<[\"x\"=2, \"y\"=1]>",
        "mesh<[\"x\"=2, \"y\"=4]>",
        "mesh<[\"x\"=2, \"y\"=1]>",
        "mesh<[]>",
        "@mesh",
        "@mesh",
        "@mesh",
    ]);
    let list: Vec<_> = case
        .results
        .iter()
        .map(|r#type| {
            let axis = rng.below(4);
            let dimensions: Vec<_> = (0..rank(r#type).unwrap_or(0))
                .map(|dimension| match (dimension == axis, rng.below(4)) {
                    (true, 0) => "{\"x\", ?}",
                    (true, _) => "{\"x\"}",
                    (false, 0) => "{?}",
                    _ => "{}",
                })
                .collect();
            format!("<{mesh}, [{}]>", dimensions.join(", "))
        })
        .collect();
    format!("#sdy.sharding_per_value<[{}]>", list.join(", "))
}

/// Puts a text of any kind into any place.
fn any_text(rng: &mut Rng, case: &mut Case) {
    let depth = rng.below(4);
    let mut text = grammar::attribute(rng, depth).into_bytes();
    if rng.once_in(5) {
        text = grammar::mutate(rng, &text);
    }
    if case.api_version == 4 && rng.once_in(2) {
        let name = format!("t{}", case.attributes.len());
        case.attributes.push(named(&name, text));
    } else {
        let name = if rng.once_in(2) {
            rng.pick(&KNOWN_NAMES)
        } else {
            rng.pick(&UNKNOWN_NAMES)
        };
        case.mlir_attributes
            .retain(|(key, _)| key != name.as_bytes());
        case.mlir_attributes.push(named(name, text));
    }
}

/// Changes one thing.
fn change(rng: &mut Rng, case: &mut Case) {
    match rng.below(12) {
        0..=5 => {
            let in_attributes = case.attributes.len();
            if !case.meshes.is_empty() && rng.once_in(4) {
                let (_, text) = &mut case.meshes[0];
                *text = grammar::mutate(rng, text);
                return;
            }
            let all = in_attributes + case.mlir_attributes.len();
            if all == 0 {
                return any_text(rng, case);
            }
            let at = rng.below(all);
            let (_, text) = if at < in_attributes {
                &mut case.attributes[at]
            } else {
                &mut case.mlir_attributes[at - in_attributes]
            };
            *text = grammar::mutate(rng, text);
        }
        6 => {
            let list = if rng.once_in(2) && !case.attributes.is_empty() {
                &mut case.attributes
            } else {
                &mut case.mlir_attributes
            };
            if list.is_empty() {
                return;
            }
            let at = rng.below(list.len());
            match rng.below(3) {
                0 => {
                    let other: &[u8] = rng.pick(&[
                        &b""[..],
                        b"a\0b",
                        b"\xff",
                        b"backend_config",
                        b"api_version",
                        b"call_target_name",
                        b"mhlo.backend_config",
                        b"called_computations",
                        b"a0",
                    ]);
                    list[at].0 = other.to_vec();
                }
                1 => list[at].0 = grammar::mutate(rng, &list[at].0.clone()),
                _ => {
                    let again = list[at].clone();
                    list.push(again);
                }
            }
        }
        7 => case.api_version = rng.pick(&[0, 1, 2, 3, 4, 5, -1]),
        8 => {
            let list = if rng.once_in(2) {
                &mut case.operands
            } else {
                &mut case.results
            };
            match (rng.below(3), list.is_empty()) {
                (0, false) => {
                    list.pop();
                }
                (1, false) => {
                    let at = rng.below(list.len());
                    list[at] = value_type(rng);
                }
                _ => list.push(value_type(rng)),
            }
        }
        9 => match rng.below(3) {
            0 => case.functions.clear(),
            1 => {
                if let Some((_, types)) = case.functions.first_mut() {
                    types.pop();
                } else {
                    case.functions = vec![(b"f".to_vec(), vec![])];
                }
            }
            _ => {
                if let Some((_, types)) = case.functions.first_mut() {
                    types.push(tensor_type(rng));
                }
            }
        },
        10 => {
            let target: &[u8] = if rng.once_in(2) {
                rng.pick(&XLA_TARGETS).as_bytes()
            } else {
                rng.pick(&[&b""[..], b"a\0b", b"\xff\xfe", b"x{}"])
            };
            case.target = target.to_vec();
        }
        _ => {
            if case.backend_config.take().is_none() {
                case.backend_config = Some(b"x".to_vec());
                // Of both kinds there is no text to ask XLA with.
                if !rng.once_in(8) {
                    case.attributes.clear();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_known_by_its_seed_and_index() {
        for index in 0..200 {
            assert_eq!(case(7, index), case(7, index));
        }
        assert_ne!(case(7, 0), case(7, 1));
    }

    #[test]
    fn cases_are_of_every_kind() {
        let cases: Vec<_> = (0..2000).map(|index| case(1, index)).collect();
        let count = |is_one: &dyn Fn(&Case) -> bool| cases.iter().filter(|c| is_one(c)).count();
        assert!(count(&|case| case.api_version < 4) > 100);
        assert!(count(&|case| case.operands.contains(&Type::Token)) > 50);
        assert!(count(&|case| case.shardy && case.partitions == 2) > 50);
        assert!(count(&|case| case.attributes.len() > 1) > 300);
        for name in KNOWN_NAMES.iter().chain(&UNKNOWN_NAMES) {
            let has = |case: &Case| {
                case.mlir_attributes
                    .iter()
                    .any(|(n, _)| n == name.as_bytes())
            };
            assert!(count(&has) > 2, "{name}");
        }
    }
}

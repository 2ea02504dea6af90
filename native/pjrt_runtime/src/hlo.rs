//! Compiled programs as text, in the syntax that XLA prints.

mod attributes;
mod literal;
mod mesh;
mod shape;
mod sharding;

use std::collections::HashMap;
use std::fmt::{self, Write};

use pjrt_sys::protos::xla::{
    HloComputationProto, HloInstructionProto, HloModuleConfigProto, HloModuleProto,
    HloModuleProtoWithConfig, OpMetadata,
};
use prost::Message;

use self::shape::{Layouts, Shape};
use crate::description::Program;
use crate::Error;

/// The text of a program in one of XLA's own formats.
///
/// # Errors
/// [`Error::HloText`] for other formats and for bytes that are not what the format says.
pub(crate) fn text(program: &Program) -> Result<String, Error> {
    let code = program.code.as_slice();
    let wrong = |reason: String| Error::HloText { reason };
    let malformed = |error: prost::DecodeError| wrong(error.to_string());
    let (module, config) = match program.format.as_str() {
        "hlo" => (HloModuleProto::decode(code).map_err(malformed)?, None),
        "hlo_with_config" => {
            let both = HloModuleProtoWithConfig::decode(code).map_err(malformed)?;
            let module = both.hlo_module;
            let module = module.ok_or_else(|| wrong("there is no module".to_owned()))?;
            (module, both.config)
        }
        other => return Err(wrong(format!("format {other:?} is not known"))),
    };
    let mesh_groups = mesh::groups(code, program.format == "hlo_with_config");
    let mut text = String::new();
    match print(&mut text, &module, config.as_ref(), mesh_groups) {
        Ok(()) => Ok(text),
        Err(fmt::Error) => Err(wrong("it cannot be printed".to_owned())),
    }
}

/// The names that ids stand for.
struct Names<'a> {
    computations: HashMap<i64, &'a str>,
    /// Of the computation that is printed.
    instructions: HashMap<i64, &'a HloInstructionProto>,
    /// The id of that computation.
    computation: i64,
    mesh_groups: mesh::Groups,
}

impl Names<'_> {
    fn of_computation(&self, id: i64) -> Name<'_> {
        Name(self.computations.get(&id).copied(), id)
    }

    fn of_instruction(&self, id: i64) -> Name<'_> {
        Name(
            self.instructions.get(&id).map(|found| found.name.as_str()),
            id,
        )
    }
}

/// `%name`; `%` and the id for one that the program does not define.
struct Name<'a>(Option<&'a str>, i64);

impl fmt::Display for Name<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(formatter, "%{name}"),
            None => write!(formatter, "%{}", self.1),
        }
    }
}

/// Values with a separator between them.
struct Joined<'a, T>(&'a [T], &'static str);

impl<T: fmt::Display> fmt::Display for Joined<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, value) in self.0.iter().enumerate() {
            if index > 0 {
                formatter.write_str(self.1)?;
            }
            value.fmt(formatter)?;
        }
        Ok(())
    }
}

/// What comes before the element of a list; every fifth is numbered, as XLA does.
struct Comma(usize);

impl fmt::Display for Comma {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            index if index.is_multiple_of(5) => write!(formatter, ", /*index={index}*/"),
            _ => formatter.write_str(", "),
        }
    }
}

fn list<T>(values: &[T]) -> Joined<'_, T> {
    Joined(values, ",")
}

/// Bytes between quotation marks, escaped as in C.
struct Quoted<'a>(&'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_char('"')?;
        // Text stays readable; bytes that are none become octal escapes.
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\n' => formatter.write_str("\\n")?,
                    '\r' => formatter.write_str("\\r")?,
                    '\t' => formatter.write_str("\\t")?,
                    '"' => formatter.write_str("\\\"")?,
                    '\\' => formatter.write_str("\\\\")?,
                    other if other.is_ascii_control() => {
                        write!(formatter, "\\{:03o}", other as u32)?
                    }
                    other => formatter.write_char(other)?,
                }
            }
            for byte in chunk.invalid() {
                write!(formatter, "\\{byte:03o}")?;
            }
        }
        formatter.write_char('"')
    }
}

fn print(
    out: &mut String,
    module: &HloModuleProto,
    config: Option<&HloModuleConfigProto>,
    mesh_groups: mesh::Groups,
) -> fmt::Result {
    header(out, module, config)?;
    let computations = module.computations.iter();
    let mut names = Names {
        computations: computations
            .map(|computation| (computation.id, computation.name.as_str()))
            .collect(),
        instructions: HashMap::new(),
        computation: 0,
        mesh_groups,
    };
    for computation in &module.computations {
        let instructions = computation.instructions.iter();
        names.computation = computation.id;
        names.instructions = instructions
            .map(|instruction| (instruction.id, instruction))
            .collect();
        let is_entry = computation.id == module.entry_computation_id;
        let order = scheduled(module, computation, &names);
        print_computation(out, computation, order, is_entry, &names)?;
    }
    Ok(())
}

/// The instructions in the order in which they run, where that is known.
fn scheduled<'a>(
    module: &'a HloModuleProto,
    computation: &'a HloComputationProto,
    names: &Names<'a>,
) -> Vec<&'a HloInstructionProto> {
    let schedule = module.schedule.as_ref();
    let sequence = schedule.and_then(|schedule| schedule.sequences.get(&computation.id));
    let order: Option<Vec<_>> = sequence.and_then(|sequence| {
        let ids = sequence.instruction_ids.iter();
        ids.map(|id| names.instructions.get(id).copied()).collect()
    });
    match order {
        Some(order) if order.len() == computation.instructions.len() => order,
        _ => computation.instructions.iter().collect(),
    }
}

fn header(
    out: &mut String,
    module: &HloModuleProto,
    config: Option<&HloModuleConfigProto>,
) -> fmt::Result {
    write!(out, "HloModule {}", module.name)?;
    if module.schedule.is_some() {
        out.push_str(", is_scheduled=true");
    }
    let aliases = module
        .input_output_alias
        .iter()
        .flat_map(|alias| &alias.entries);
    let aliases: Vec<String> = aliases
        .map(|entry| {
            let kind = match entry.kind {
                2 => "must-alias",
                _ => "may-alias",
            };
            format!(
                "{{{}}}: ({}, {{{}}}, {kind})",
                Joined(&entry.output_shape_index, ", "),
                entry.parameter_number,
                Joined(&entry.parameter_shape_index, ", ")
            )
        })
        .collect();
    if !aliases.is_empty() {
        write!(out, ", input_output_alias={{ {} }}", Joined(&aliases, ", "))?;
    }
    let donors = module.buffer_donor.iter().flat_map(|donor| &donor.entries);
    let donors: Vec<String> = donors
        .map(|entry| {
            let index = Joined(&entry.parameter_shape_index, ", ");
            format!("({}, {{{index}}})", entry.parameter_number)
        })
        .collect();
    if !donors.is_empty() {
        write!(out, ", buffer_donor={{ {} }}", Joined(&donors, ", "))?;
    }
    let entry = config.and_then(|config| config.entry_computation_layout.as_ref());
    if let Some(shape) = entry.or(module.host_program_shape.as_ref()) {
        out.push_str(", entry_computation_layout={(");
        for (index, parameter) in shape.parameters.iter().enumerate() {
            write!(out, "{}{}", Comma(index), Shape(parameter, Layouts::Shown))?;
        }
        out.push_str(")->");
        if let Some(result) = &shape.result {
            write!(out, "{}", Shape(result, Layouts::Shown))?;
        }
        out.push('}');
    }
    if let Some(config) = config {
        propagation(
            out,
            "allow_spmd_sharding_propagation_to_parameters",
            &config.allow_spmd_sharding_propagation_to_parameters,
        )?;
        propagation(
            out,
            "allow_spmd_sharding_propagation_to_output",
            &config.allow_spmd_sharding_propagation_to_output,
        )?;
        let counts = [
            ("replica_count", config.replica_count),
            ("num_partitions", config.num_partitions),
        ];
        for (name, count) in counts {
            if count > 1 {
                write!(out, ", {name}={count}")?;
            }
        }
    }
    attributes::frontend(out, module.frontend_attributes.as_ref())?;
    out.push('\n');
    Ok(())
}

fn propagation(out: &mut String, name: &str, allowed: &[bool]) -> fmt::Result {
    if !allowed.contains(&true) {
        return Ok(());
    }
    write!(out, ", {name}={{{}}}", list(allowed))
}

fn print_computation(
    out: &mut String,
    computation: &HloComputationProto,
    instructions: Vec<&HloInstructionProto>,
    is_entry: bool,
    names: &Names<'_>,
) -> fmt::Result {
    let entry = if is_entry { "ENTRY " } else { "" };
    write!(out, "\n{entry}%{} (", computation.name)?;
    if let Some(shape) = &computation.program_shape {
        for (index, parameter) in shape.parameters.iter().enumerate() {
            out.push_str(if index > 0 { ", " } else { "" });
            if let Some(name) = shape.parameter_names.get(index) {
                write!(out, "{name}: ")?;
            }
            write!(out, "{}", Shape(parameter, Layouts::Left))?;
        }
        out.push_str(") -> ");
        if let Some(result) = &shape.result {
            write!(out, "{}", Shape(result, Layouts::Left))?;
        }
    } else {
        out.push(')');
    }
    out.push_str(" {\n");
    for instruction in instructions {
        let root = if instruction.id == computation.root_id {
            "ROOT "
        } else {
            ""
        };
        write!(out, "  {root}%{} = ", instruction.name)?;
        print_instruction(out, instruction, names)?;
        out.push('\n');
    }
    out.push_str("}\n");
    Ok(())
}

fn print_instruction(
    out: &mut String,
    instruction: &HloInstructionProto,
    names: &Names<'_>,
) -> fmt::Result {
    if let Some(shape) = &instruction.shape {
        write!(out, "{} ", Shape(shape, Layouts::Shown))?;
    }
    write!(out, "{}(", instruction.opcode)?;
    match instruction.opcode.as_str() {
        "parameter" => write!(out, "{}", instruction.parameter_number)?,
        "constant" => literal::print(out, instruction)?,
        _ => {
            for (index, &id) in instruction.operand_ids.iter().enumerate() {
                write!(out, "{}{}", Comma(index), names.of_instruction(id))?;
            }
        }
    }
    out.push(')');
    attributes::print(out, instruction, names)?;
    if let Some(of) = &instruction.metadata {
        metadata(out, of)?;
    }
    let backend_config = instruction.backend_config.as_slice();
    if !backend_config.is_empty() {
        // As XLA does: its own, which are JSON or another dictionary, bare.
        let bare = std::str::from_utf8(backend_config).ok();
        let bare = bare.filter(|text| text.starts_with('{') && !text.contains('\n'));
        match bare {
            Some(bare) => write!(out, ", backend_config={bare}")?,
            None => write!(out, ", backend_config={}", Quoted(backend_config))?,
        }
    }
    Ok(())
}

fn metadata(out: &mut String, metadata: &OpMetadata) -> fmt::Result {
    let mut fields = Vec::new();
    let texts = [
        ("op_type", &metadata.op_type),
        ("op_name", &metadata.op_name),
        ("source_file", &metadata.source_file),
    ];
    for (name, text) in texts {
        if !text.is_empty() {
            fields.push(format!("{name}={}", Quoted(text.as_bytes())));
        }
    }
    let numbers = [
        ("source_line", metadata.source_line),
        ("stack_frame_id", metadata.stack_frame_id),
    ];
    for (name, number) in numbers {
        if number != 0 {
            fields.push(format!("{name}={number}"));
        }
    }
    if fields.is_empty() {
        return Ok(());
    }
    write!(out, ", metadata={{{}}}", Joined(&fields, " "))
}

#[cfg(test)]
mod tests;

//! What a compiled program says of its entry function.

use prost::Message;

use crate::element_type::{ElementType, TensorType};

/// The types of an entry function's inputs; `None` where the program is in another format or has
/// inputs that are no tensors.
///
/// PJRT tells the types of the outputs only. XLA checks an input's bytes and not its type, so an
/// integer given for a float would be computed with, not refused; hence this look into the program.
pub(crate) fn inputs(format: &str, program: &[u8]) -> Option<Vec<TensorType>> {
    let shape = match format {
        "hlo" => Module::decode(program).ok()?.host_program_shape?,
        "hlo_with_config" => {
            let program = ModuleWithConfig::decode(program).ok()?;
            program.hlo_module?.host_program_shape?
        }
        _ => return None,
    };
    shape.parameters.into_iter().map(tensor_type).collect()
}

fn tensor_type(shape: Shape) -> Option<TensorType> {
    Some(TensorType {
        element_type: ElementType::from_primitive_type(shape.element_type)?,
        dimensions: shape.dimensions,
    })
}

// The few fields of XLA's messages that are of interest, by their numbers in `xla/xla.proto`,
// `xla/service/hlo.proto` and `xla/xla_data.proto`. All other fields, and with them the operations
// and constants of the program, are skipped unread.

/// `xla.HloModuleProtoWithConfig`.
#[derive(Clone, PartialEq, Message)]
struct ModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    hlo_module: Option<Module>,
}

/// `xla.HloModuleProto`.
#[derive(Clone, PartialEq, Message)]
struct Module {
    #[prost(message, optional, tag = "4")]
    host_program_shape: Option<ProgramShape>,
}

/// `xla.ProgramShapeProto`.
#[derive(Clone, PartialEq, Message)]
struct ProgramShape {
    #[prost(message, repeated, tag = "1")]
    parameters: Vec<Shape>,
}

/// `xla.ShapeProto`.
#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(int32, tag = "2")]
    element_type: i32,
    #[prost(int64, repeated, tag = "3")]
    dimensions: Vec<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(parameters: Vec<Shape>) -> Module {
        Module {
            host_program_shape: Some(ProgramShape { parameters }),
        }
    }

    #[test]
    fn the_types_of_the_inputs_are_read_from_both_formats() {
        let module = module(vec![Shape {
            element_type: 11,
            dimensions: vec![2, 3],
        }]);
        let expected = Some(vec![TensorType {
            element_type: ElementType::F32,
            dimensions: vec![2, 3],
        }]);
        assert_eq!(inputs("hlo", &module.encode_to_vec()), expected);
        let with_config = ModuleWithConfig {
            hlo_module: Some(module),
        };
        assert_eq!(
            inputs("hlo_with_config", &with_config.encode_to_vec()),
            expected
        );
    }

    #[test]
    fn programs_that_do_not_tell_are_none() {
        let tuple = module(vec![Shape {
            element_type: 13,
            dimensions: vec![],
        }]);
        assert_eq!(inputs("hlo", &tuple.encode_to_vec()), None);
        assert_eq!(inputs("hlo", &[0xff, 0xff]), None);
        assert_eq!(inputs("hlo", &[]), None);
        assert_eq!(inputs("mlir", b"module {}"), None);
    }
}

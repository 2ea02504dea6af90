//! What a compiled program says of its entry function.

use prost::Message;

use crate::element_type::{ElementType, TensorType};

/// What a program says of its entry function.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Signature {
    /// `None` where the program is in another format or has inputs that are no tensors.
    pub(crate) inputs: Option<Vec<TensorType>>,
    /// Whether all outputs are known to have the sizes that their types say; the types of the others
    /// are bounds.
    pub(crate) has_static_outputs: bool,
}

/// Reads the signature, as far as it is told.
///
/// PJRT tells the types of the outputs only. XLA checks an input's bytes and not its type, so an
/// integer given for a float would be computed with, not refused; hence this look into the program.
pub(crate) fn signature(format: &str, program: &[u8]) -> Signature {
    let module = match format {
        "hlo" => Module::decode(program).ok(),
        "hlo_with_config" => {
            let program = ModuleWithConfig::decode(program).ok();
            program.and_then(|program| program.hlo_module)
        }
        _ => None,
    };
    let Some(shape) = module.and_then(|module| module.host_program_shape) else {
        return Signature::default();
    };
    Signature {
        has_static_outputs: shape.result.is_some_and(|result| result.is_static()),
        inputs: shape.parameters.into_iter().map(tensor_type).collect(),
    }
}

impl Shape {
    fn is_static(&self) -> bool {
        !self.is_dynamic_dimension.contains(&true) && self.tuple_shapes.iter().all(Self::is_static)
    }
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
    #[prost(message, optional, tag = "2")]
    result: Option<Shape>,
}

/// `xla.ShapeProto`.
#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(int32, tag = "2")]
    element_type: i32,
    #[prost(int64, repeated, tag = "3")]
    dimensions: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    tuple_shapes: Vec<Shape>,
    #[prost(bool, repeated, tag = "6")]
    is_dynamic_dimension: Vec<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(format: &str, program: &[u8]) -> Option<Vec<TensorType>> {
        signature(format, program).inputs
    }

    fn module(parameters: Vec<Shape>) -> Module {
        Module {
            host_program_shape: Some(ProgramShape {
                parameters,
                result: None,
            }),
        }
    }

    #[test]
    fn the_types_of_the_inputs_are_read_from_both_formats() {
        let module = module(vec![Shape {
            element_type: 11,
            dimensions: vec![2, 3],
            ..Default::default()
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
            ..Default::default()
        }]);
        assert_eq!(inputs("hlo", &tuple.encode_to_vec()), None);
        assert_eq!(inputs("hlo", &[0xff, 0xff]), None);
        assert_eq!(inputs("hlo", &[]), None);
        assert_eq!(inputs("mlir", b"module {}"), None);
    }

    #[test]
    fn outputs_with_a_bound_are_not_static() {
        let shape = |dynamic: bool| Shape {
            element_type: 11,
            dimensions: vec![2],
            is_dynamic_dimension: vec![dynamic],
            ..Default::default()
        };
        let is_static = |shapes: Vec<Shape>| {
            let mut module = module(vec![]);
            module.host_program_shape = Some(ProgramShape {
                parameters: vec![],
                result: Some(Shape {
                    element_type: 13,
                    tuple_shapes: shapes,
                    ..Default::default()
                }),
            });
            signature("hlo", &module.encode_to_vec()).has_static_outputs
        };
        assert!(is_static(vec![shape(false), shape(false)]));
        assert!(!is_static(vec![shape(false), shape(true)]));
        assert!(!signature("mlir", b"").has_static_outputs);
    }
}

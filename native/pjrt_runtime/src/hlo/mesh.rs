//! Replica groups by the axes of a mesh, which newer plugins write in a field that the messages of
//! `pjrt-sys` do not have yet.

use std::collections::HashMap;
use std::fmt;

use prost::Message;

use super::list;

/// `xla.HloModuleProtoWithConfig`, as far as it leads to the groups.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    module: Option<Module>,
}

/// `xla.HloModuleProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Module {
    #[prost(message, repeated, tag = "3")]
    computations: Vec<Computation>,
}

/// `xla.HloComputationProto`.
#[derive(Clone, PartialEq, Message)]
struct Computation {
    #[prost(message, repeated, tag = "2")]
    instructions: Vec<Instruction>,
    #[prost(int64, tag = "5")]
    id: i64,
}

/// `xla.HloInstructionProto`.
#[derive(Clone, PartialEq, Message)]
struct Instruction {
    #[prost(int64, tag = "35")]
    id: i64,
    #[prost(message, optional, tag = "93")]
    groups: Option<MeshGroups>,
}

/// Devices that differ in their places along some axes of a mesh form a group.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MeshGroups {
    #[prost(message, optional, tag = "1")]
    mesh: Option<Mesh>,
    #[prost(message, repeated, tag = "2")]
    axes: Vec<AxisRef>,
}

#[derive(Clone, PartialEq, Message)]
struct Mesh {
    #[prost(message, repeated, tag = "1")]
    axes: Vec<Axis>,
}

#[derive(Clone, PartialEq, Message)]
struct Axis {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "2")]
    size: i64,
}

/// An axis by its index.
#[derive(Clone, PartialEq, Message)]
struct AxisRef {
    #[prost(int64, tag = "1")]
    axis: i64,
}

/// Groups by the ids of computation and instruction.
pub(super) type Groups = HashMap<(i64, i64), MeshGroups>;

/// The groups in a program; none where the field holds something else.
pub(super) fn groups(code: &[u8], with_config: bool) -> Groups {
    let module = if with_config {
        ModuleWithConfig::decode(code)
            .ok()
            .and_then(|both| both.module)
    } else {
        Module::decode(code).ok()
    };
    let computations = module.into_iter().flat_map(|module| module.computations);
    let all = computations.flat_map(|computation| {
        let id = computation.id;
        let instructions = computation.instructions.into_iter();
        instructions.filter_map(move |of| Some(((id, of.id), of.groups?)))
    });
    all.collect()
}

impl fmt::Display for Axis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "'{}'={}", self.name, self.size)
    }
}

impl MeshGroups {
    /// `mesh['x'=2,'y'=2] {'x'}`
    pub(super) fn text(&self) -> String {
        let axes = self.mesh.as_ref().map_or(&[][..], |mesh| &mesh.axes);
        let of = |axis: &AxisRef| {
            let found = usize::try_from(axis.axis)
                .ok()
                .and_then(|index| axes.get(index));
            found.map_or_else(
                || axis.axis.to_string(),
                |found| format!("'{}'", found.name),
            )
        };
        let named: Vec<String> = self.axes.iter().map(of).collect();
        format!("mesh[{}] {{{}}}", list(axes), list(&named))
    }
}

//! Shardy's attributes as data: read from their text, written back, and checked as XLA checks them.
//!
//! No registry carries the `sdy` dialect for linking, so MLIR takes these texts here without reading
//! them, and XLA would be the first to find a slip. [`Attribute::parse`] reads what Shardy's parser
//! reads; the `verify` methods hold the rules of Shardy's verifier, and report every fault rather than
//! the first. The rules are those of `shardy/dialect/sdy/ir` in openxla/shardy (`attrs.td`,
//! `parsers.cc`, `verifiers.cc`), and were held against the CPU plugins of PJRT 0.115 and 0.106.
//!
//! What is refused here though XLA takes it:
//!
//! - Names of meshes and axes are printable ASCII without a backslash, and no mesh is named `""`. Both
//!   plugins end the process over others: over every byte above 0x7f, over the backslash, over some
//!   control characters.
//! - What a body does not hold, XLA passes over in silence: `#sdy<mesh<[]> more>`, a type after the
//!   attribute, all but the first factor of `reduction={jk}`. It would not do what it says.
//! - `true` and `false` as integers, which read as -1 and 0, and comments.
//! - `unreduced{"x"}` and `unreduced=sum{"x"}`, which PJRT 0.106 does not read; `unreduced={"x"}` means
//!   the same to both.
//!
//! Where XLA's own arithmetic overflows, over sub-axes or the devices of a mesh, it divides by zero and
//! ends the process, as it does over an argument that is split along a dimension of unknown size: these
//! are faults too. What only PJRT 0.106 refuses is none; [`Attribute::portability`] tells of it.
//!
//! Where an operation stands is not looked at: inside a `sdy.manual_computation` no sharding may use
//! its manual axes.
//!
//! ```
//! use stablehlo_custom_call::shardy::{Attribute, TensorShape};
//!
//! let text = b"#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}>";
//! let Attribute::ShardingRule(rule) = Attribute::parse(text)? else { unreachable!() };
//! let (a, b) = (TensorShape::of(&[8, 32]), TensorShape::of(&[32]));
//! let faults = rule.verify(&[a, b], &[TensorShape::of(&[8, 16])]);
//! assert_eq!(
//!     faults[0].to_string(),
//!     "operand 1: the mapping [k, j] has 2 dimensions and the tensor has 1; map each dimension of the \
//!      tensor"
//! );
//! # Ok::<(), stablehlo_custom_call::shardy::SyntaxFault>(())
//! ```

mod advice;
mod fault;
mod lexer;
mod names;
mod parser;
mod place;
mod printer;
#[cfg(test)]
mod tests;
mod verifier;

use std::collections::BTreeMap;

pub use fault::{Fault, SyntaxFault, MOST_FAULTS};
pub use place::find as find_place;

/// Any attribute of the `sdy` dialect. `Display` writes the text that Shardy prints, and
/// [`parse`](Self::parse) reads it back; the `Display` of the parts writes them as they stand inside
/// others.
///
/// Shardy cannot read the text that it prints of [`DimMapping`] and [`EdgeValue`] alone, which lacks a
/// space: here it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// `#sdy<manual_axes{"x"}>`
    ManualAxes(ManualAxes),
    /// `#sdy<mesh_axis"x"=2>`
    MeshAxis(MeshAxis),
    /// `#sdy.mesh<["x"=2]>`
    Mesh(Mesh),
    /// `#sdy<sub_axis_info(1)2>`
    SubAxis(SubAxis),
    /// `#sdy<axis_ref"x":(1)2>`
    AxisRef(AxisRef),
    /// `#sdy<dimension_sharding{"x", ?}p1>`
    DimensionSharding(DimensionSharding),
    /// `#sdy.sharding<@mesh, [{"x"}]>`
    Sharding(Sharding),
    /// `#sdy.sharding_per_value<[<@mesh, [{"x"}]>]>`
    ShardingPerValue(ShardingPerValue),
    /// `#sdy<dim_mapping ij>`
    DimMapping(DimMapping),
    /// `#sdy<tensor_mapping[i, j]>`
    TensorMapping(TensorMapping),
    /// `#sdy.op_sharding_rule<([i])->([i]) {i=2}>`
    ShardingRule(ShardingRule),
    /// `#sdy<axis_ref_list{"x"}>`
    AxisRefList(AxisRefList),
    /// `#sdy<list_of_axis_ref_lists[{"x"}, {}]>`
    AxisRefLists(AxisRefLists),
    /// `#sdy<all_to_all_param{"x"}: 0->1>`
    AllToAll(AllToAll),
    /// `#sdy<all_to_all_param_list[{"x"}: 0->1]>`
    AllToAllList(AllToAllList),
    /// `#sdy<edge_value_ref operand-0>`
    EdgeValue(EdgeValue),
    /// `#sdy<axis_to_propagation_details{"x" = operand-0 -> [result-0]}>`
    AxisPropagation(AxisPropagation),
    /// `#sdy<propagation_one_step{step-0 = [{"x" = operand-0 -> [result-0]}]}>`
    PropagationStep(PropagationStep),
    /// `#sdy.propagation_edges<[{step-0 = [{"x" = operand-0 -> [result-0]}]}]>`
    PropagationEdges(PropagationEdges),
}

/// The axes that a `sdy.manual_computation` splits itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManualAxes {
    pub names: Vec<String>,
}

/// An axis of a mesh: its name and how many devices lie along it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshAxis {
    pub name: String,
    pub size: i64,
}

/// Devices in a grid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    pub axes: Vec<MeshAxis>,
    /// The devices in the order of the grid; empty where they are 0, 1, 2 and so on. A text that lists
    /// them in this very order is read as one that does not, as Shardy does.
    ///
    /// Without axes, one device makes a mesh of that device alone, and none an empty mesh.
    pub device_ids: Vec<i64>,
}

/// Meshes by the names that shardings call them by.
pub type Meshes = BTreeMap<String, Mesh>;

/// A part of an axis: of the axis cut into `pre_size` blocks, `size` blocks of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubAxis {
    pub pre_size: i64,
    pub size: i64,
}

/// An axis of a mesh, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AxisRef {
    pub name: String,
    pub sub_axis: Option<SubAxis>,
}

/// How one dimension of a tensor is split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DimensionSharding {
    /// From the major one to the minor one.
    pub axes: Vec<AxisRef>,
    /// Whether propagation may split it further: the `?`.
    pub open: bool,
    /// The lower goes first.
    pub priority: Option<i64>,
}

/// Which mesh a sharding speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeshRef {
    /// `@mesh`
    Name(String),
    /// `mesh<["x"=2]>`
    Inline(Mesh),
}

/// How the values along unreduced axes are still to be combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    #[default]
    Sum,
    /// Not in PJRT 0.106.
    Max,
    /// Not in PJRT 0.106.
    Min,
}

/// How a tensor is split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharding {
    pub mesh: MeshRef,
    pub dimensions: Vec<DimensionSharding>,
    pub replicated: Vec<AxisRef>,
    pub unreduced: Vec<AxisRef>,
    pub reduction: Reduction,
}

/// The shardings of all operands or all results of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardingPerValue {
    pub shardings: Vec<Sharding>,
}

/// The factors that one dimension is the product of, by index, from the major one to the minor one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DimMapping {
    pub factors: Vec<usize>,
}

/// The factors of a tensor's dimensions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorMapping {
    pub dimensions: Vec<DimMapping>,
}

/// How an operation can be split. Factors are written i, j and so on to z, then z_1, z_2 and so on;
/// here they are indices, from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardingRule {
    pub factor_sizes: Vec<i64>,
    pub operands: Vec<TensorMapping>,
    pub results: Vec<TensorMapping>,
    /// Factors along which results are still to be summed.
    pub reduction: Vec<usize>,
    /// Factors that no device may have a part of.
    pub need_replication: Vec<usize>,
    /// Factors that make devices exchange data if they are split.
    pub permutation: Vec<usize>,
    /// Factors along which no sharding is propagated.
    pub blocked_propagation: Vec<usize>,
    /// Whether the rule is a user's own, which Shardy never takes away.
    pub custom: bool,
}

/// A list of axes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AxisRefList {
    pub axes: Vec<AxisRef>,
}

/// A list of axes for each dimension.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AxisRefLists {
    pub lists: Vec<AxisRefList>,
}

/// Axes that an all-to-all moves from one dimension to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllToAll {
    pub axes: Vec<AxisRef>,
    pub source_dimension: i64,
    pub target_dimension: i64,
}

/// The moves of one all-to-all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllToAllList {
    pub moves: Vec<AllToAll>,
}

/// What a value is to its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Operand,
    Result,
}

/// An operand or a result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EdgeValue {
    pub role: Role,
    pub index: i64,
}

/// From where to where a sharding along an axis was propagated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisPropagation {
    pub axis: AxisRef,
    pub source: EdgeValue,
    pub targets: Vec<EdgeValue>,
}

/// What one step of propagation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropagationStep {
    pub index: i64,
    pub axes: Vec<AxisPropagation>,
}

/// What propagation did, step by step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropagationEdges {
    pub steps: Vec<PropagationStep>,
}

/// What a verifier has to know of a value's type. A tuple of one tensor counts as the tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorShape {
    /// The dimensions; `None` is one that is not known before the run, not even by a bound.
    Ranked(Vec<Option<i64>>),
    Unranked,
    /// A token, for one.
    NotATensor,
}

impl TensorShape {
    /// A tensor whose dimensions are all known.
    pub fn of(dimensions: &[i64]) -> Self {
        Self::Ranked(dimensions.iter().copied().map(Some).collect())
    }
}

impl Mesh {
    /// Whether this is a single device.
    pub fn is_maximal(&self) -> bool {
        self.axes.is_empty() && self.device_ids.len() == 1
    }

    /// How many devices the axes span; `None` beyond the integers of XLA.
    pub fn device_count(&self) -> Option<i64> {
        self.axes
            .iter()
            .try_fold(1i64, |product, axis| product.checked_mul(axis.size))
    }
}

impl SubAxis {
    /// The pre-size of the sub-axis that would follow; `None` beyond the integers of XLA.
    fn next_pre_size(self) -> Option<i64> {
        self.pre_size.checked_mul(self.size)
    }
}

macro_rules! attribute_kinds {
    ($($kind:ident($part:ty) = $mnemonic:literal,)*) => {
        impl Attribute {
            /// The word that names this kind of attribute, `"sharding"` for one.
            pub fn mnemonic(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $mnemonic,)*
                }
            }
        }

        $(impl From<$part> for Attribute {
            fn from(part: $part) -> Self {
                Self::$kind(part)
            }
        })*

        /// Every mnemonic of the dialect.
        const MNEMONICS: &[&str] = &[$($mnemonic,)*];
    };
}

attribute_kinds! {
    ManualAxes(ManualAxes) = "manual_axes",
    MeshAxis(MeshAxis) = "mesh_axis",
    Mesh(Mesh) = "mesh",
    SubAxis(SubAxis) = "sub_axis_info",
    AxisRef(AxisRef) = "axis_ref",
    DimensionSharding(DimensionSharding) = "dimension_sharding",
    Sharding(Sharding) = "sharding",
    ShardingPerValue(ShardingPerValue) = "sharding_per_value",
    DimMapping(DimMapping) = "dim_mapping",
    TensorMapping(TensorMapping) = "tensor_mapping",
    ShardingRule(ShardingRule) = "op_sharding_rule",
    AxisRefList(AxisRefList) = "axis_ref_list",
    AxisRefLists(AxisRefLists) = "list_of_axis_ref_lists",
    AllToAll(AllToAll) = "all_to_all_param",
    AllToAllList(AllToAllList) = "all_to_all_param_list",
    EdgeValue(EdgeValue) = "edge_value_ref",
    AxisPropagation(AxisPropagation) = "axis_to_propagation_details",
    PropagationStep(PropagationStep) = "propagation_one_step",
    PropagationEdges(PropagationEdges) = "propagation_edges",
}

/// The kinds whose body is in angle brackets: `#sdy.mesh<...>` reads them. Others have to be written
/// `#sdy<axis_ref"x">`.
const PRETTY: [&str; 5] = [
    "mesh",
    "sharding",
    "sharding_per_value",
    "op_sharding_rule",
    "propagation_edges",
];

//! A module as plain data: what the caller fills in and [`Module::build`](crate::Module::build)
//! turns into MLIR.

use crate::{custom_call::CustomCall, types::Type};

/// Numbers a value of a function: a parameter, a region's argument or an operation's result. Each
/// function has its own numbers, each once.
pub type ValueId = u32;

/// An attribute by name and MLIR text. Both are any bytes until they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamedText<'a> {
    pub name: &'a [u8],
    pub text: &'a [u8],
}

/// A module: its functions in the order in which they are written.
#[derive(Clone, Debug, Default)]
pub struct Graph<'a> {
    /// The module's symbol name; XLA names the HLO module after it.
    pub name: Option<&'a [u8]>,
    pub attributes: Vec<NamedText<'a>>,
    /// Device meshes by name, each a `#sdy.mesh<...>`, for shardings to speak of.
    pub meshes: Vec<NamedText<'a>>,
    pub functions: Vec<Function<'a>>,
}

#[derive(Clone, Debug)]
pub struct Function<'a> {
    pub name: &'a [u8],
    /// A private function can be called from this module only; XLA wants one public `main`.
    pub private: bool,
    pub parameters: Vec<Parameter<'a>>,
    pub results: Vec<Output<'a>>,
    /// The body, whose `arguments` stay empty: they are the parameters.
    pub body: Block<'a>,
}

#[derive(Clone, Debug)]
pub struct Parameter<'a> {
    pub value: ValueId,
    pub r#type: Type,
    pub attributes: Vec<NamedText<'a>>,
}

/// A function's result: its type and the attributes on it.
#[derive(Clone, Debug)]
pub struct Output<'a> {
    pub r#type: Type,
    pub attributes: Vec<NamedText<'a>>,
}

/// Operations in order of execution. A function's body ends in `func.return`, a region in
/// `stablehlo.return`, of the values in `outputs`.
#[derive(Clone, Debug, Default)]
pub struct Block<'a> {
    pub arguments: Vec<(ValueId, Type)>,
    pub operations: Vec<Operation<'a>>,
    /// The operation that ends a region; `None` is `stablehlo.return`. Unused in a function's body.
    pub terminator: Option<&'a [u8]>,
    pub outputs: Vec<ValueId>,
}

#[derive(Clone, Debug)]
pub struct Operation<'a> {
    pub kind: OperationKind<'a>,
    pub operands: Vec<ValueId>,
    /// The number of the first result; the others follow it.
    pub first_result: ValueId,
    pub results: Vec<Type>,
    pub regions: Vec<Block<'a>>,
}

#[derive(Clone, Debug)]
pub enum OperationKind<'a> {
    /// `stablehlo.custom_call`
    CustomCall(CustomCall<'a>),
    /// `stablehlo.constant` of the one result's elements, in row-major order and host byte order;
    /// see [`ElementType::byte_size`](crate::ElementType::byte_size).
    Constant(&'a [u8]),
    /// `func.call` of a function of this module.
    Call(&'a [u8]),
    /// Any other operation, in generic form.
    Generic {
        name: &'a [u8],
        attributes: Vec<NamedText<'a>>,
    },
}

impl OperationKind<'_> {
    /// The bytes of the texts and constants.
    pub(crate) fn byte_count(&self) -> usize {
        match self {
            Self::CustomCall(call) => {
                call.call_target_name.len()
                    + call.backend_config.map_or(0, <[u8]>::len)
                    + byte_count(&call.attributes)
                    + byte_count(&call.mlir_attributes)
            }
            Self::Constant(bytes) => bytes.len(),
            Self::Call(callee) => callee.len(),
            Self::Generic { name, attributes } => name.len() + byte_count(attributes),
        }
    }
}

fn byte_count(attributes: &[NamedText<'_>]) -> usize {
    attributes
        .iter()
        .map(|attribute| attribute.name.len() + attribute.text.len())
        .sum()
}

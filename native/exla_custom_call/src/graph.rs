//! Reads a graph from the terms that `EXLA.CustomCall.Module` sends.

use crate::{atoms, error::Error, list::List};
use rustler::{Binary, Decoder, NifResult, Term};
use stablehlo_custom_call::{
    Block, CustomCall, ElementType, Function, Graph, Limits, NamedText, Operation, OperationKind,
    Output, Parameter, Type, ValueId,
};

/// Terms of another shape are a bug of this package and become an `ArgumentError`; only what a user
/// can cause is an [`Error`].
pub(crate) enum Refusal {
    Term(rustler::Error),
    Graph(Error),
}

impl Refusal {
    /// For terms that hold nothing but names and texts, of which no graph is made.
    pub(crate) fn into_term(self) -> rustler::Error {
        match self {
            Self::Term(error) => error,
            Self::Graph(_) => rustler::Error::BadArg,
        }
    }
}

impl From<rustler::Error> for Refusal {
    fn from(error: rustler::Error) -> Self {
        Self::Term(error)
    }
}

type Decoded<T> = Result<T, Refusal>;

/// `{name | nil, attributes, meshes, functions}`
pub(crate) fn graph(term: Term<'_>) -> Decoded<Graph<'_>> {
    let (name, attributes, meshes, functions): (Term, Term, Term, Term) = term.decode()?;
    Ok(Graph {
        name: optional_bytes(name)?,
        attributes: named_texts(attributes)?,
        meshes: named_texts(meshes)?,
        functions: list(functions, function)?,
    })
}

/// `{name, private?, parameters, results, operations, outputs}`
fn function(term: Term<'_>) -> Decoded<Function<'_>> {
    let (name, private, parameters, results, operations, List(outputs)): (
        Term,
        bool,
        Term,
        Term,
        Term,
        List<ValueId>,
    ) = term.decode()?;
    Ok(Function {
        name: bytes(name)?,
        private,
        parameters: list(parameters, |term| {
            let (value, r#type, attributes): (ValueId, Term, Term) = term.decode()?;
            Ok(Parameter {
                value,
                r#type: tensor_type(r#type)?,
                attributes: named_texts(attributes)?,
            })
        })?,
        results: list(results, |term| {
            let (r#type, attributes): (Term, Term) = term.decode()?;
            Ok(Output {
                r#type: tensor_type(r#type)?,
                attributes: named_texts(attributes)?,
            })
        })?,
        body: Block {
            operations: list(operations, |term| operation(term, 0))?,
            outputs,
            ..Block::default()
        },
    })
}

/// `{kind, operands, first_result, result_types, regions}`
fn operation(term: Term<'_>, depth: usize) -> Decoded<Operation<'_>> {
    let (kind, List(operands), first_result, results, regions): (
        Term,
        List<ValueId>,
        ValueId,
        Term,
        Term,
    ) = term.decode()?;
    Ok(Operation {
        kind: operation_kind(kind)?,
        operands,
        first_result,
        results: list(results, tensor_type)?,
        regions: list(regions, |term| region(term, depth + 1))?,
    })
}

/// `{arguments, operations, terminator | nil, outputs}`
fn region(term: Term<'_>, depth: usize) -> Decoded<Block<'_>> {
    // Reading recurses as building does, and comes first.
    if depth > Limits::NESTING_CEILING {
        return Err(Refusal::Graph(Error::Core(
            stablehlo_custom_call::Error::RegionsTooDeep {
                limit: Limits::NESTING_CEILING,
            },
        )));
    }
    let (arguments, operations, terminator, List(outputs)): (Term, Term, Term, List<ValueId>) =
        term.decode()?;
    Ok(Block {
        arguments: list(arguments, |term| {
            let (value, r#type): (ValueId, Term) = term.decode()?;
            Ok((value, tensor_type(r#type)?))
        })?,
        operations: list(operations, |term| operation(term, depth))?,
        terminator: optional_bytes(terminator)?,
        outputs,
    })
}

const CUSTOM_CALL: u32 = 0;
const CONSTANT: u32 = 1;
const CALL: u32 = 2;
const GENERIC: u32 = 3;

fn operation_kind(term: Term<'_>) -> Decoded<OperationKind<'_>> {
    let fields = rustler::types::tuple::get_tuple(term)?;
    let tag: u32 = fields.first().ok_or(rustler::Error::BadArg)?.decode()?;
    match (tag, &fields[1..]) {
        (CUSTOM_CALL, [target, api_version, attributes, backend_config, mlir_attributes]) => {
            Ok(OperationKind::CustomCall(CustomCall {
                call_target_name: bytes(*target)?,
                api_version: api_version.decode()?,
                attributes: named_texts(*attributes)?,
                backend_config: optional_bytes(*backend_config)?,
                mlir_attributes: named_texts(*mlir_attributes)?,
            }))
        }
        (CONSTANT, [data]) => Ok(OperationKind::Constant(bytes(*data)?)),
        (CALL, [callee]) => Ok(OperationKind::Call(bytes(*callee)?)),
        (GENERIC, [name, attributes]) => Ok(OperationKind::Generic {
            name: bytes(*name)?,
            attributes: named_texts(*attributes)?,
        }),
        _ => Err(rustler::Error::BadArg.into()),
    }
}

/// The depth to which tuples in tuples are read; the core refuses less deep ones with an error.
const DEEPEST_TUPLE: usize = 32;

/// `:token | {element_index, dimensions} | {:buffer, element_index, dimensions} | {:tuple, types}`,
/// the index into [`ElementType::ALL`].
fn tensor_type(term: Term<'_>) -> Decoded<Type> {
    type_at_depth(term, 0)
}

fn type_at_depth(term: Term<'_>, depth: usize) -> Decoded<Type> {
    if term.is_atom() && atoms::token() == term {
        return Ok(Type::Token);
    }
    let element = |index: usize| {
        ElementType::ALL
            .get(index)
            .copied()
            .ok_or(rustler::Error::BadArg)
    };
    let fields = rustler::types::tuple::get_tuple(term)?;
    match fields.as_slice() {
        [tag, types] if tag.is_atom() && atoms::tuple() == *tag && depth < DEEPEST_TUPLE => {
            Ok(Type::Tuple(list(*types, |term| {
                type_at_depth(term, depth + 1)
            })?))
        }
        [index, dimensions] => Ok(Type::Tensor {
            element: element(index.decode()?)?,
            dimensions: dimensions.decode::<List<i64>>()?.0,
        }),
        [tag, index, dimensions] if tag.is_atom() && atoms::buffer() == *tag => Ok(Type::Buffer {
            element: element(index.decode()?)?,
            dimensions: dimensions.decode::<List<i64>>()?.0,
        }),
        _ => Err(rustler::Error::BadArg.into()),
    }
}

pub(crate) fn named_texts(term: Term<'_>) -> Decoded<Vec<NamedText<'_>>> {
    list(term, |term| {
        let (name, text): (Term, Term) = term.decode()?;
        Ok(NamedText {
            name: bytes(name)?,
            text: bytes(text)?,
        })
    })
}

fn bytes<'a>(term: Term<'a>) -> NifResult<&'a [u8]> {
    Ok(Binary::from_term(term)?.as_slice())
}

fn optional_bytes<'a>(term: Term<'a>) -> NifResult<Option<&'a [u8]>> {
    if term.is_atom() && atoms::nil() == term {
        return Ok(None);
    }
    bytes(term).map(Some)
}

fn list<'a, T>(term: Term<'a>, item: impl Fn(Term<'a>) -> Decoded<T>) -> Decoded<Vec<T>> {
    let mut items = Vec::with_capacity(term.list_length()?);
    for element in <rustler::ListIterator as Decoder>::decode(term)? {
        items.push(item(element)?);
    }
    Ok(items)
}

//! Tensors between Elixir's binaries and the run time's memory, without copies where there can be
//! none.

use crate::{
    atoms,
    error::{binary, Error, Kind},
    list::List,
};
use pjrt_runtime::{ElementType, HostData, TensorType, View};
use rustler::{Binary, Encoder, Env, OwnedEnv, Resource, ResourceArc, Term};
use stablehlo_custom_call::ElementType as CoreElement;
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex},
};

/// Keeps a binary alive. The mutex is there because an environment is not `Sync`; nothing locks it.
struct BinaryOwner {
    _memory: Mutex<OwnedEnv>,
}

/// The bytes of a binary, which the result keeps alive.
pub(crate) fn host_data(term: Term<'_>) -> Result<HostData, rustler::Error> {
    let memory = OwnedEnv::new();
    let saved = memory.save(term);
    // Taken from the copy of the term: a small binary lies in its environment's own memory.
    let (data, len) = memory.run(|env| {
        let bytes = Binary::from_term(saved.load(env))?.as_slice();
        Ok::<_, rustler::Error>((NonNull::from(bytes).cast::<u8>(), bytes.len()))
    })?;
    let owner = Arc::new(BinaryOwner {
        _memory: Mutex::new(memory),
    });
    // SAFETY: binaries never change, and the environment, which is never cleared, keeps this one
    // where it is until the owner is dropped.
    Ok(unsafe { HostData::from_raw_parts(data, len, owner) })
}

/// A result's bytes. A binary of them keeps the resource alive and copies nothing.
struct ViewResource(View);

#[rustler::resource_impl]
impl Resource for ViewResource {}

struct BytesResource(Vec<u8>);

#[rustler::resource_impl]
impl Resource for BytesResource {}

/// Below this a copy costs less than a resource.
const SMALL: usize = 1024;

pub(crate) fn view_to_binary(env: Env<'_>, view: View) -> Binary<'_> {
    if view.len() < SMALL {
        return binary(env, &view);
    }
    ResourceArc::new(ViewResource(view)).make_binary(env, |resource| &resource.0)
}

pub(crate) fn vec_to_binary(env: Env<'_>, bytes: Vec<u8>) -> Binary<'_> {
    if bytes.len() < SMALL {
        return binary(env, &bytes);
    }
    ResourceArc::new(BytesResource(bytes)).make_binary(env, |resource| &resource.0)
}

/// `{element_index, dimensions}`, the index into the core's `ElementType::ALL`.
pub(crate) fn read_type(term: Term<'_>) -> Result<TensorType, rustler::Error> {
    let (element, List(dimensions)): (usize, List<i64>) = term.decode()?;
    let element = CoreElement::ALL
        .get(element)
        .ok_or(rustler::Error::BadArg)?;
    Ok(TensorType {
        element_type: runtime_element(*element),
        dimensions,
    })
}

/// `:token`, or `{element_index, dimensions}`; `{:other, name}` for a type that Nx has not.
pub(crate) fn write_type<'a>(env: Env<'a>, tensor: &TensorType) -> Term<'a> {
    if tensor.element_type == ElementType::Token {
        return atoms::token().encode(env);
    }
    let index = CoreElement::ALL
        .iter()
        .position(|element| runtime_element(*element) == tensor.element_type);
    match index {
        Some(index) => (index, &tensor.dimensions).encode(env),
        None => (atoms::other(), tensor.to_string()).encode(env),
    }
}

fn runtime_element(element: CoreElement) -> ElementType {
    match element {
        CoreElement::Pred => ElementType::Pred,
        CoreElement::S2 => ElementType::S2,
        CoreElement::S4 => ElementType::S4,
        CoreElement::S8 => ElementType::S8,
        CoreElement::S16 => ElementType::S16,
        CoreElement::S32 => ElementType::S32,
        CoreElement::S64 => ElementType::S64,
        CoreElement::U2 => ElementType::U2,
        CoreElement::U4 => ElementType::U4,
        CoreElement::U8 => ElementType::U8,
        CoreElement::U16 => ElementType::U16,
        CoreElement::U32 => ElementType::U32,
        CoreElement::U64 => ElementType::U64,
        CoreElement::F8E5M2 => ElementType::F8E5M2,
        CoreElement::F8E4M3FN => ElementType::F8E4M3FN,
        CoreElement::F16 => ElementType::F16,
        CoreElement::BF16 => ElementType::BF16,
        CoreElement::F32 => ElementType::F32,
        CoreElement::F64 => ElementType::F64,
        CoreElement::C64 => ElementType::C64,
        CoreElement::C128 => ElementType::C128,
    }
}

/// Input terms that are not of the shape that the Elixir side sends: a bug of this package.
pub(crate) fn malformed(kind: Kind) -> impl Fn(rustler::Error) -> Error {
    move |_| {
        Error::Refused(
            kind,
            "a malformed term, which is a bug of exla_custom_call".into(),
        )
    }
}

/// The BEAM's floats are finite; the others are Nx's atoms.
pub(crate) fn float(env: Env<'_>, value: f64) -> Term<'_> {
    if value.is_finite() {
        value.encode(env)
    } else if value.is_nan() {
        atoms::nan().encode(env)
    } else if value > 0.0 {
        atoms::infinity().encode(env)
    } else {
        atoms::neg_infinity().encode(env)
    }
}

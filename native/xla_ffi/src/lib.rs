//! Write handlers for XLA's custom calls in safe Rust.
//!
//! When a program reaches a `custom_call`, XLA calls a C function with a *call frame*: the operands and results
//! as pointers with types and dimensions, and the attributes of the call's `backend_config`. This crate decodes
//! the frame, checks it, and hands it to a Rust function as slices and numbers.
//!
//! ```
//! use xla_ffi::{Arg, Ret};
//!
//! xla_ffi::export! {
//!     /// Scales each row of x to a root mean square of 1, times a weight for each column.
//!     pub fn rms_norm_f32(x: Arg<f32>, weight: Arg<f32>) -> (y: Ret<f32>)
//!     attrs { epsilon: Option<f32> }
//!     {
//!         let [_, columns] = x.shape()?;
//!         if weight.dims() != [columns] {
//!             return Err(weight.error(format!("expected f32[{columns}], found {weight}")));
//!         }
//!         if y.dims() != x.dims() {
//!             return Err(y.error(format!("expected {x}, found {y}")));
//!         }
//!         let epsilon = epsilon.unwrap_or(1e-6);
//!         for (y, x) in y.chunks_exact_mut(columns.max(1)).zip(x.chunks_exact(columns.max(1))) {
//!             let mean = x.iter().map(|x| x * x).sum::<f32>() / columns as f32;
//!             let scale = (mean + epsilon).sqrt().recip();
//!             for ((y, x), weight) in y.iter_mut().zip(x).zip(weight.iter()) {
//!                 *y = x * scale * weight;
//!             }
//!         }
//!         Ok(())
//!     }
//! }
//! ```
//!
//! # Building one
//!
//! A handler lives in a shared object, which is loaded at run time. [`library!`] exports a table of the names that
//! `call_target_name` can say, and of the handler behind each; without a table, whoever loads the library says
//! for each name which exported function is its handler.
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib"]
//!
//! [dependencies]
//! xla_ffi = "0.1"
//!
//! [profile.release]
//! panic = "unwind" # or a panic ends the process instead of the execution
//! ```
//!
//! Nothing of XLA is needed to build it: all that the handler calls of XLA comes with the frame.
//!
//! # The signature
//!
//! [`export!`] reads like a function with attributes. Before the body runs, the number of operands and results,
//! their types, and the names and types of the attributes are checked, so a wrong call fails with a message like
//!
//! ```text
//! expected 2 operands, found 3
//! operand 1 (weight): expected f32, found f64
//! attribute "epsilon": expected f32, found s64
//! attribute "epsilom": unexpected, the handler takes "epsilon"
//! ```
//!
//! | to take | write |
//! |---|---|
//! | an operand, or a result, of one type | `x: Arg<f32>`, `y: Ret<f32>` |
//! | one of any type | `x: AnyArg`, `y: AnyRet` |
//! | one that may be missing, or all that are left | `Option<Arg<f32>>`, `Vec<AnyRet>` |
//! | an operand that a result may overwrite | `x: AliasedArg<f32>` |
//! | numbers and booleans | `attrs { k: i64, causal: bool }` |
//! | text, other bytes, numbers in a list | `attrs { mode: &str, key: Bytes, window: &[i64] }` |
//! | a dictionary | `attrs { options: Attrs }`, then `options.get::<f32>("scale")?` |
//! | an attribute that may be missing | `attrs { seed: Option<u64> }` |
//! | all attributes, whatever they are | `attrs { ..all }` |
//!
//! Element types are Rust's own, [`half`]'s `f16` and `bf16`, [`Pred`] for booleans, and `[f32; 2]` or
//! `[f64; 2]` for complex numbers. Attributes are never converted: an `i32` is read from an `s32` alone, that is
//! from `7 : i32` in MLIR.
//!
//! # Work that is done once
//!
//! What depends on the attributes alone can be made when the program is compiled: a table that is parsed, a plan,
//! a pool. It is the handler's *state*, of any type, kept for as long as the executable is:
//!
//! ```
//! # struct Plan;
//! # impl Plan { fn new(_: i64) -> xla_ffi::Result<Self> { Ok(Plan) } fn run(&self, _: &mut [f32]) {} }
//! # use xla_ffi::{AliasedArg, Ret};
//! xla_ffi::export! {
//!     pub fn transform(x: AliasedArg<f32>) -> (y: Ret<f32>)
//!     attrs { length: i64 }
//!     state { plan: Plan = Plan::new(length)? }
//!     {
//!         y.copy_from(&x)?;
//!         plan.run(&mut y);
//!         Ok(())
//!     }
//! }
//! ```
//!
//! [`export!`] says more of it, and of the stages in which XLA calls a handler. Not offered are states of the
//! stages prepare and initialize, which last for one execution, the stage that records commands of a GPU, and
//! results that are ready later than the handler returns.
//!
//! # Layouts
//!
//! Elements come in the order they lie in memory. That is row-major with the last dimension fastest, unless the
//! custom call's `operand_layouts` and `result_layouts` say otherwise; the frame does not tell.
//!
//! # Memory that operand and result share
//!
//! With `output_operand_aliases` XLA passes one memory as both an operand and a result. Rust has no safe way to
//! hold a shared and a mutable slice of it at once, so such an operand gives no slice: calls of handlers that take
//! it as an [`Arg`] are refused, and an [`AliasedArg`] can do one thing, which is to become the content of a
//! result by [`Ret::copy_from`]. That costs nothing where both are the same memory and copies where they are not,
//! so the handler is right in both cases.
//!
//! # Errors
//!
//! `Err` fails the execution with the [`Error`]'s code and message, and so does a panic, with the code `INTERNAL`
//! and the panic's message. [`Arg::error`] and the like begin a message with which buffer it is about.
//!
//! # Versions
//!
//! XLA asks each handler for the version of the interface when it is registered, and drops those that do not
//! answer or are newer than itself. The handlers here answer with XLA's own version, up to 0.4, and they read no
//! field of a frame that its sender's `struct_size` does not count; so one shared object works with plugins of
//! different age. A handler with a state takes XLA FFI 0.2 or later.
//!
//! # Tests
//!
//! [`testing`] calls handlers without XLA.

mod attribute;
mod buffer;
mod call;
mod data_type;
mod element;
mod error;
mod export;
mod library;
mod signature;
mod stages;
mod state;
pub mod sys;
pub mod testing;
mod user_data;

#[cfg(test)]
mod tests;

pub use attribute::{Array, Attr, AttrValue, Attrs, Bytes, FromAttr, Scalar};
pub use buffer::{AliasedArg, AnyArg, AnyRet, Arg, Ret};
pub use data_type::DataType;
pub use element::{Element, Pred};
pub use error::{Code, Error, Result};
pub use half;
pub use library::{Entry, Library};
pub use signature::{Arity, FromOperands, FromResults, Operands, Results};
pub use stages::Stages;
pub use user_data::FromUserData;

/// What the expansion of [`export!`] calls; not for use by hand.
#[doc(hidden)]
pub mod __private {
    pub use crate::call::{run, Call, Definition};
    pub use crate::library::distinct;
    pub use crate::signature::in_order;
    pub use crate::state::State;

    /// The name of a parameter as attributes and messages have it: that of `r#type` is `type`.
    pub const fn parameter_name(identifier: &'static str) -> &'static str {
        match identifier.as_bytes() {
            [b'r', b'#', ..] => identifier.split_at(2).1,
            _ => identifier,
        }
    }
}

//! StableHLO custom calls, built, checked and read back with MLIR.
//!
//! A [`Graph`] describes a module as plain data: functions, operations, value numbers and byte
//! slices. [`Module::build`] turns it into MLIR inside a [`Context`], checking names and attribute
//! texts before MLIR's parser sees them; the [`Module`] prints itself, writes bytecode and reports
//! the custom calls that it holds.
//!
//! StableHLO and Shardy operations are emitted in generic form with unregistered dialects allowed,
//! since no registry carries those dialects for linking. `func` and `builtin` are registered, and
//! their verifiers run.
//!
//! ```
//! use stablehlo_custom_call::*;
//!
//! let f32x2 = Type::tensor(ElementType::F32, &[2]);
//! let graph = Graph {
//!     functions: vec![Function {
//!         name: b"main",
//!         private: false,
//!         parameters: vec![Parameter { value: 0, r#type: f32x2.clone(), attributes: vec![] }],
//!         results: vec![Output { r#type: f32x2.clone(), attributes: vec![] }],
//!         body: Block {
//!             operations: vec![Operation {
//!                 kind: OperationKind::CustomCall(CustomCall {
//!                     call_target_name: b"my_kernel",
//!                     api_version: 4,
//!                     attributes: vec![NamedText { name: b"scale", text: b"0.5 : f32" }],
//!                     backend_config: None,
//!                     mlir_attributes: vec![],
//!                 }),
//!                 operands: vec![0],
//!                 first_result: 1,
//!                 results: vec![f32x2],
//!                 regions: vec![],
//!             }],
//!             outputs: vec![1],
//!             ..Block::default()
//!         },
//!     }],
//!     ..Graph::default()
//! };
//! let module = Module::build(&Context::new(Limits::default()), &graph)?;
//! assert!(module.to_text().contains(
//!     r#""stablehlo.custom_call"(%arg0) {api_version = 4 : i32, backend_config = {scale = 5.000000e-01 : f32}, call_target_name = "my_kernel"}"#
//! ));
//! # Ok::<(), Error>(())
//! ```

mod attribute;
mod context;
mod custom_call;
mod diagnostics;
mod error;
mod graph;
mod growth;
mod inspect;
mod limits;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod measure;
mod module;
mod names;
mod path;
mod rules;
mod scan;
pub mod shardy;
mod shared;
mod sink;
mod types;
mod view;
mod warning;

pub use attribute::dictionary_text;
pub use context::Context;
pub use custom_call::{CustomCall, RESERVED_NAMES};
pub use error::{Error, ErrorKind, Rule};
pub use graph::{
    Block, Function, Graph, NamedText, Operation, OperationKind, Output, Parameter, ValueId,
};
pub use inspect::{BackendConfig, EmittedCall, EmittedType};
pub use limits::Limits;
pub use module::{Module, Needs};
pub use shared::{SharedContext, Stats};
pub use types::{ElementType, Type};
pub use warning::Warning;

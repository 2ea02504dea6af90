//! PJRT plugins, clients, buffers and executables, owned by Rust types.
//!
//! A [`Plugin`] is a shared object with a compiler and a runtime for one kind of device. A
//! [`Client`] of it compiles MLIR to an [`Executable`], which runs on host bytes ([`HostInput`]) or
//! on device [`Buffer`]s. Custom calls run handlers, functions of a [`Library`] that were
//! [registered](Client::register_handler) with the client.
//!
//! ```no_run
//! # fn main() -> Result<(), pjrt_runtime::Error> {
//! use std::path::Path;
//! use pjrt_runtime::{Client, CompileOptions, ElementType, HostInput, Plugin};
//!
//! let client = Client::new(Plugin::load(Path::new("plugin.so"))?, &[])?;
//! let program = b"func.func @main(%arg0: tensor<f32>) -> tensor<f32> { return %arg0 : tensor<f32> }";
//! let executable = client.compile(program, &CompileOptions::default())?;
//! let outputs = executable.run(&[HostInput {
//!     data: &1.5f32.to_ne_bytes(),
//!     element_type: ElementType::F32,
//!     dimensions: &[],
//! }])?;
//! assert_eq!(outputs, vec![1.5f32.to_ne_bytes().to_vec()]);
//! # Ok(())
//! # }
//! ```
//!
//! Rules that no type can hold, such as what may be freed when, are those of
//! `xla/pjrt/c/pjrt_c_api.h` in openxla/xla.

mod api;
mod args;
mod buffer;
mod client;
mod compile_options;
mod description;
mod element_type;
mod elf;
mod error;
mod event;
mod executable;
mod extension;
mod ffi;
mod library;
mod named_value;
mod plugin;
mod program;
mod registry;
#[cfg(test)]
mod test_support;
pub mod thread;

pub use buffer::{Buffer, HostInput};
pub use client::{Client, Device};
pub use compile_options::{CompileOptions, OptionValue};
pub use description::Program;
pub use element_type::{ElementType, TensorType};
pub use error::{Error, ErrorCode};
pub use executable::Executable;
pub use extension::Extension;
pub use library::{Handler, Library};
pub use named_value::NamedValue;
pub use plugin::Plugin;

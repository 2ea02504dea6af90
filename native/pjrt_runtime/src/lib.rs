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
//! There are three ways to run a program:
//!
//! - [`Executable::run`] takes bytes and returns bytes, copied in and out.
//! - [`Executable::run_view`] does the same without copies where the device is a CPU: inputs with an
//!   owner ([`OwnedInput`]), results as [`View`]s, which can be owners of inputs in turn
//!   ([`HostData::new`]).
//! - [`Executable::execute`], [`execute_with`](Executable::execute_with) and
//!   [`execute_async`](Executable::execute_async) take buffers and leave the results on the device.
//!
//! Everything here may be used from any thread and dropped in any order and on any thread, the
//! plugin's own included: a buffer keeps its client, a view its buffer, and a run what it needs.
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
mod gate;
mod hlo;
mod host_data;
mod launch;
mod layout;
mod library;
mod named_value;
mod plugin;
mod program;
mod registry;
mod serialized;
mod sharding;
pub mod slices;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;
pub mod thread;
mod user_data;
mod view;

pub use buffer::{Buffer, HostInput};
pub use client::{Client, Device, Memory};
pub use compile_options::{CompileOptions, OptionValue};
pub use description::{MemoryStats, Program};
pub use element_type::{ElementType, TensorType};
pub use error::{Error, ErrorCode, Refusal};
pub use executable::{Executable, ExecuteOptions};
pub use extension::Extension;
pub use host_data::{HostData, OwnedInput, ZERO_COPY_ALIGNMENT};
pub use layout::Layout;
pub use library::{Handler, Library, Stages, StateType, TableEntry};
pub use named_value::NamedValue;
pub use plugin::Plugin;
pub use sharding::{Group, GroupKind, Sharding};
pub use user_data::UserData;
pub use view::View;

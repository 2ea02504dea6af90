//! The NIF of the Mix package: terms in, terms out. What MLIR and PJRT do is in the crates
//! `stablehlo_custom_call` and `pjrt_runtime`.
//!
//! Schedulers: a NIF that reads or builds something of bounded size runs on the caller's scheduler;
//! its twin with `_dirty` in the name is for larger input, and Elixir chooses by size. What loads
//! files runs on a dirty I/O scheduler. What compiles or executes runs on a thread of its own and
//! answers by message, so that no scheduler waits for a device.

mod answer;
mod atoms;
mod buffer;
mod client;
mod context;
mod error;
mod executable;
mod graph;
mod host;
mod list;
mod module;
mod process_handler;
mod reaper;
mod shardy;
mod slices;
mod workers;

rustler::init!("Elixir.EXLA.CustomCall.Native");

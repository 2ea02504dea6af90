//! A process that compiles for another one.
//!
//! XLA ends its process over some programs: a segmentation fault, a failed check, an uncaught C++
//! exception, memory that grows without end. Where a program is not trusted to compile, the worker
//! `exla_custom_call_worker` compiles it first, and whatever happens is an [`Outcome`].
//!
//! ```no_run
//! use compile_worker::{Outcome, Request, Settings, Worker};
//! use std::path::Path;
//!
//! # fn main() -> Result<(), compile_worker::SpawnError> {
//! let settings = Settings::new(Path::new("exla_custom_call_worker"), Path::new("plugin.so"));
//! let mut worker = Worker::spawn(&settings)?;
//! let program = b"func.func @main(%arg0: tensor<f32>) -> tensor<f32> { return %arg0 : tensor<f32> }";
//! match worker.compile(Request::of(program)) {
//!     Outcome::Accepted { .. } => println!("it compiles"),
//!     Outcome::Refused { code, message } => println!("{code}: {message}"),
//!     // The worker is gone: the next program needs a new one.
//!     Outcome::Died { cause, stderr } => println!("{cause}\n{}", stderr.join("\n")),
//!     Outcome::TimedOut | Outcome::OutOfMemory => println!("too much"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The protocol
//!
//! The worker reads frames from its standard input and writes frames to its standard output; the
//! first output is the answer to the first input, and so on. A frame is a length, a `u32`, and so
//! many bytes, which is what an Erlang port with `{:packet, 4}` speaks. Numbers are big-endian.
//! `bytes` stands for a `u32` length and the bytes, `list of X` for a `u32` count and the elements,
//! `bool` for a byte that is 0 or 1.
//!
//! | frame to the worker | fields |
//! |---|---|
//! | hello, the first | `0: u8`, version `u16`, plugin's path `bytes`, create options `list of (name bytes, value)`, memory `u64`, stack `u64`, CPU seconds `u32` |
//! | compile | `1: u8`, id `u64`, milliseconds `u32`, flags `u8` (1: with HLO text), replicas `u32`, partitions `u32`, SPMD `bool`, Shardy `bool`, propagate to outputs `list of bool`, to parameters `list of bool`, outputs and parameters `optional u32` each, device assignment `optional list of list of i32`, XLA's options `list of (name bytes, value)`, targets `list of bytes`, program `bytes` |
//!
//! A value is a tag and what it says: `0: u8` and `bytes` of UTF-8, `1` and `i64`, `2` and `list of
//! i64`, `3` and `f64`, `4` and `bool`. XLA's options take no lists. An optional thing is `0: u8`, or
//! `1` and the thing.
//!
//! | frame from the worker | fields |
//! |---|---|
//! | ready | `0: u8`, version `u16`, platform `bytes`, platform's version `bytes`, PJRT API major and minor `i32` each |
//! | failed, after which the worker exits | `1: u8`, reason `bytes` |
//! | accepted | `2: u8`, id `u64`, HLO `optional bytes` |
//! | refused | `3: u8`, id `u64`, status code's name `bytes`, message `bytes` |
//! | timed out, after which the worker exits | `4: u8`, id `u64` |
//!
//! In Elixir's binary syntax the shortest compile request is
//!
//! ```elixir
//! <<1, id::64, 10_000::32, 0, 1::32, 1::32, 0, 0, 0::32, 0::32, 0, 0, 0, 0::32, 0::32,
//!   byte_size(program)::32, program::binary>>
//! ```
//!
//! Each target gets a handler that says no at run time, once in the worker's life, so that programs
//! whose handlers are elsewhere compile.
//!
//! # Ceilings
//!
//! Memory is what the process holds for itself, the plugin's file not counted. A thread looks every
//! few milliseconds, and twice the ceiling is a limit of the system's own. A ceiling of 0 is none; a
//! stack of 0 is [`pjrt_runtime::thread::STACK_SIZE`]. There are no core dumps. The process ends with
//! [`exit::MEMORY`] and the other statuses of [`exit`] where it ends itself. It ends when its input
//! does, whatever it does at that time, and when its parent is gone.

mod ceilings;
mod client;
mod frame;
mod process;
mod protocol;
mod serve;
mod stub;
mod wire;

pub use client::{Outcome, Request, Settings, SpawnError, Worker};
pub use frame::{read_frame, write_frame, LONGEST_FRAME};
pub use process::{Cause, End, Process};
pub use protocol::{Answer, Ceilings, Compile, Hello, Message, Ready, VERSION};
pub use serve::serve;
pub use wire::Malformed;

/// The statuses with which the worker ends itself.
pub mod exit {
    /// Its input ended.
    pub const DONE: i32 = 0;
    /// The plugin could not be loaded; the reason was the answer.
    pub const FAILED: i32 = 80;
    /// It held more memory than its ceiling.
    pub const MEMORY: i32 = 81;
    /// A compilation took longer than its limit; that was the answer.
    pub const TIME: i32 = 82;
    /// It read bytes that are no message; the reason was the answer.
    pub const MALFORMED: i32 = 83;
    /// Its parent ended.
    pub const ORPHANED: i32 = 84;
    /// A C++ exception came out of the plugin, such as that of an allocation that fails.
    pub const EXCEPTION: i32 = 85;
}

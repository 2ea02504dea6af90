//! The parent's side.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pjrt_runtime::{CompileOptions, NamedValue};

use crate::exit;
use crate::process::{Cause, End, Process};
use crate::protocol::{Answer, Ceilings, Compile, Hello, Message, Ready};

/// How a worker is started.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program `exla_custom_call_worker`.
    pub program: PathBuf,
    pub plugin: PathBuf,
    pub create_options: Vec<(String, NamedValue)>,
    pub ceilings: Ceilings,
    /// How long the plugin may take to come up.
    pub start_limit: Duration,
}

impl Settings {
    /// One without create options, with 4 GiB of memory and a minute to come up.
    pub fn new(program: &Path, plugin: &Path) -> Self {
        Self {
            program: program.to_owned(),
            plugin: plugin.to_owned(),
            create_options: Vec::new(),
            ceilings: Ceilings {
                memory_bytes: 4 << 30,
                ..Ceilings::default()
            },
            start_limit: Duration::from_secs(60),
        }
    }
}

/// Why there is no worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpawnError {
    #[error("{} cannot be started: {reason}", program.display())]
    Start { program: PathBuf, reason: String },

    /// The worker's own words.
    #[error("the worker cannot serve: {reason}")]
    Failed { reason: String },

    #[error("the worker ended by {cause} before it was ready: {}", stderr.join("\n"))]
    Died { cause: Cause, stderr: Vec<String> },

    #[error("the worker was not ready within {} s", limit.as_secs())]
    Silent { limit: Duration },
}

/// A program to compile, and how.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// MLIR, as text or bytecode.
    pub program: &'a [u8],
    pub options: CompileOptions,
    /// Names that get a handler for the compiler to find.
    pub targets: Vec<Vec<u8>>,
    /// Whether the answer is to have the HLO text of the compiled program.
    pub with_hlo: bool,
    /// Whole milliseconds count.
    pub time_limit: Option<Duration>,
}

impl<'a> Request<'a> {
    /// A program for one device, with a minute to compile.
    pub fn of(program: &'a [u8]) -> Self {
        Self {
            program,
            options: CompileOptions::default(),
            targets: Vec::new(),
            with_hlo: false,
            time_limit: Some(Duration::from_secs(60)),
        }
    }
}

/// What became of a program. After the last three the worker is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It compiled.
    Accepted { hlo: Option<String> },
    /// The compiler's words.
    Refused {
        /// The status code's name, `"INVALID_ARGUMENT"`.
        code: String,
        message: String,
    },
    /// The worker ended over it; the last lines of its standard error.
    Died { cause: Cause, stderr: Vec<String> },
    /// It took longer than its limit.
    TimedOut,
    /// It took more memory than the ceiling, or than there was.
    OutOfMemory,
}

impl Outcome {
    /// Whether the worker can be asked again.
    pub fn worker_lives(&self) -> bool {
        matches!(self, Self::Accepted { .. } | Self::Refused { .. })
    }
}

/// A worker process and the pipe to it. It is killed when this is dropped.
#[derive(Debug)]
pub struct Worker {
    process: Process,
    ready: Ready,
    next_id: u64,
}

/// What a worker gets beyond its own time limit before it is killed.
const GRACE: Duration = Duration::from_secs(5);

impl Worker {
    /// Starts a worker and waits until its plugin is up.
    ///
    /// # Errors
    /// [`SpawnError`].
    pub fn spawn(settings: &Settings) -> Result<Self, SpawnError> {
        let process = Process::spawn(&mut Command::new(&settings.program));
        let mut process = process.map_err(|error| SpawnError::Start {
            program: settings.program.clone(),
            reason: error.to_string(),
        })?;
        let hello = Message::Hello(Hello {
            plugin: settings.plugin.clone(),
            create_options: settings.create_options.clone(),
            ceilings: settings.ceilings,
        });
        let limit = settings.start_limit;
        let answer = process.ask(&hello.encode(), Some(limit));
        let frame = answer.map_err(|end| match end {
            End::Died { cause, stderr } => SpawnError::Died { cause, stderr },
            End::Silent => SpawnError::Silent { limit },
        })?;
        let failed = |reason: String| Err(SpawnError::Failed { reason });
        match Answer::decode(&frame) {
            Ok(Answer::Ready(ready)) => Ok(Self {
                process,
                ready,
                next_id: 0,
            }),
            Ok(Answer::Failed(reason)) => failed(reason),
            Ok(other) => failed(format!("it answered hello with {other:?}")),
            Err(error) => failed(error.to_string()),
        }
    }

    /// What the worker says of its plugin.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The number of the process.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Compiles a program in the worker.
    pub fn compile(&mut self, request: Request<'_>) -> Outcome {
        let id = self.next_id;
        self.next_id += 1;
        let limit = request.time_limit;
        let message = Message::Compile(Box::new(Compile {
            id,
            // A limit of less than a millisecond is still one.
            time_limit_ms: limit.map_or(0, |limit| {
                u32::try_from(limit.as_millis().max(1)).unwrap_or(u32::MAX)
            }),
            with_hlo: request.with_hlo,
            options: request.options,
            targets: request.targets,
            program: request.program.to_vec(),
        }));
        let grace = limit.map(|limit| limit.saturating_add(GRACE));
        let frame = match self.process.ask(&message.encode(), grace) {
            Ok(frame) => frame,
            Err(end) => return outcome(end),
        };
        match Answer::decode(&frame) {
            Ok(Answer::Accepted { id: of, hlo }) if of == id => Outcome::Accepted { hlo },
            Ok(Answer::Refused {
                id: of,
                code,
                message,
            }) if of == id => Outcome::Refused { code, message },
            Ok(Answer::TimedOut { id: of }) if of == id => Outcome::TimedOut,
            // Nothing that follows can be told apart: it ends here.
            other => {
                let mut end = self.process.end_now();
                if let End::Died { stderr, .. } = &mut end {
                    stderr.push(format!("the worker answered with {other:?}"));
                }
                outcome(end)
            }
        }
    }
}

fn outcome(end: End) -> Outcome {
    match end {
        End::Silent => Outcome::TimedOut,
        End::Died {
            cause: Cause::Status(exit::MEMORY),
            ..
        } => Outcome::OutOfMemory,
        End::Died {
            cause: Cause::Status(exit::TIME) | Cause::Signal(libc::SIGXCPU),
            ..
        } => Outcome::TimedOut,
        End::Died { stderr, .. } if says_no_memory(&stderr) => Outcome::OutOfMemory,
        End::Died { cause, stderr } => Outcome::Died { cause, stderr },
    }
}

/// Whether the allocator, and not a fault of the program's, ended a process.
fn says_no_memory(stderr: &[String]) -> bool {
    const WORDS: [&str; 3] = [
        "std::bad_alloc",
        "LLVM ERROR: out of memory",
        "Out of memory",
    ];
    stderr
        .iter()
        .any(|line| WORDS.iter().any(|words| line.contains(words)))
}

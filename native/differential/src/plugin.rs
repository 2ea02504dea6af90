//! What a plugin says, asked in a worker.

use std::path::Path;
use std::time::Duration;

use compile_worker::{Outcome, Request, Settings, SpawnError, Worker};
use pjrt_runtime::{CompileOptions, NamedValue, OptionValue};

use crate::case::Case;

/// A plugin's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Theirs {
    Accepts,
    /// While it read the program or verified it.
    RefusesToRead {
        message: String,
    },
    /// Later.
    RefusesToCompile {
        message: String,
    },
    Dies {
        message: String,
    },
    TimesOut,
    OutOfMemory,
}

impl Theirs {
    /// The answer in a word or two, as records have it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Accepts => "accepts",
            Self::RefusesToRead { .. } => "refuses",
            Self::RefusesToCompile { .. } => "refuses later",
            Self::Dies { .. } => "dies",
            Self::TimesOut => "takes too long",
            Self::OutOfMemory => "takes too much memory",
        }
    }

    /// What it said.
    pub fn message(&self) -> &str {
        match self {
            Self::RefusesToRead { message }
            | Self::RefusesToCompile { message }
            | Self::Dies { message } => message,
            _ => "",
        }
    }

    /// The answer in a line.
    pub fn line(&self) -> String {
        match self.message() {
            "" => self.word().to_owned(),
            _ => format!("{}: {}", self.word(), self.gist()),
        }
    }

    /// What it said, without the places and the program that it repeats.
    pub fn gist(&self) -> &str {
        let message = self.message();
        let first = message.split('\n').next().unwrap_or_default();
        match first.split_once("error: ") {
            Some((_, gist)) if !self.is_end() => gist,
            _ => first,
        }
    }

    /// Whether it ended its process.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Dies { .. } | Self::TimesOut | Self::OutOfMemory)
    }
}

/// A plugin in a worker, which is started anew where a question ends it.
#[derive(Debug)]
pub struct Plugin {
    settings: Settings,
    worker: Option<Worker>,
    /// `0.115`, the version of its API.
    version: String,
}

/// Several hundred times what a custom call takes.
const TIME_LIMIT: Duration = Duration::from_secs(5);
const MEMORY: u64 = 1 << 30;

impl Plugin {
    /// Starts a worker for a plugin.
    ///
    /// # Errors
    /// [`SpawnError`].
    pub fn start(worker: &Path, plugin: &Path) -> Result<Self, SpawnError> {
        let mut settings = Settings::new(worker, plugin);
        settings.ceilings.memory_bytes = MEMORY;
        settings.create_options = vec![("cpu_device_count".into(), NamedValue::Int64(2))];
        let worker = Worker::spawn(&settings)?;
        let (major, minor) = worker.ready().api_version;
        Ok(Self {
            settings,
            worker: Some(worker),
            version: format!("{major}.{minor}"),
        })
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    /// Asks about a program: bytecode, or text.
    ///
    /// # Errors
    /// Where a new worker cannot be started.
    pub fn ask(&mut self, case: &Case, program: &[u8]) -> Result<Theirs, SpawnError> {
        let worker = match &mut self.worker {
            Some(worker) => worker,
            None => self.worker.insert(Worker::spawn(&self.settings)?),
        };
        // A name that cannot be registered stays without a handler.
        let targets = if case.target.is_empty() {
            vec![]
        } else {
            vec![case.target.clone()]
        };
        let outcome = worker.compile(Request {
            targets,
            options: CompileOptions {
                use_shardy_partitioner: case.shardy,
                use_spmd_partitioning: case.shardy,
                num_partitions: case.partitions,
                env_option_overrides: cheap_code(),
                ..CompileOptions::default()
            },
            time_limit: Some(TIME_LIMIT),
            ..Request::of(program)
        });
        if !outcome.worker_lives() {
            self.worker = None;
        }
        Ok(match outcome {
            Outcome::Accepted { .. } => Theirs::Accepts,
            Outcome::Refused { code, message } => refusal(&code, message),
            Outcome::Died { cause, stderr } => Theirs::Dies {
                message: last_words(&cause.to_string(), &stderr),
            },
            Outcome::TimedOut => Theirs::TimesOut,
            Outcome::OutOfMemory => Theirs::OutOfMemory,
        })
    }
}

/// Options for code that is made soon and not well: what is asked about comes before it.
fn cheap_code() -> Vec<(String, OptionValue)> {
    vec![
        ("xla_backend_optimization_level".into(), OptionValue::Int(0)),
        (
            "xla_cpu_parallel_codegen_split_count".into(),
            OptionValue::Int(1),
        ),
    ]
}

/// What the plugin says of a program that it could not read, in whatever way.
const UNREAD: &str = "Failed to parse using StableHLO";
/// What it says of a handler that is not there, for the API versions whose handlers no plugin takes
/// from outside.
const NO_HANDLER: &str = "No registered implementation for untyped custom call to ";

fn refusal(code: &str, message: String) -> Theirs {
    if message.starts_with(NO_HANDLER) {
        // Finding the handler is the last thing that is done with a custom call.
        return Theirs::Accepts;
    }
    let message = format!("{code}: {message}");
    if message.contains(UNREAD) {
        Theirs::RefusesToRead { message }
    } else {
        Theirs::RefusesToCompile { message }
    }
}

/// The cause of an end, and what a check or an exception said before it.
fn last_words(cause: &str, stderr: &[String]) -> String {
    let said = stderr.iter().find(|line| {
        [
            "Check failed",
            "terminate called",
            "what():",
            "Assertion",
            "LLVM ERROR",
            "overflowed",
        ]
        .iter()
        .any(|words| line.contains(words))
    });
    let last = stderr.iter().rfind(|line| !line.is_empty());
    match said.or(last) {
        Some(line) => format!("{cause}: {}", without_time(line)),
        None => cause.to_owned(),
    }
}

/// A line of XLA's log without the time and the thread that stand before the source file.
fn without_time(line: &str) -> &str {
    let file = [".cc:", ".h:"].iter().find_map(|end| line.find(end));
    match file.and_then(|at| line[..at].rfind(' ')) {
        Some(space) => &line[space + 1..],
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_sorted_by_when_it_was_given() {
        let unread =
            "-:3:4: error: expected ']'\n<unknown>:0: error: Failed to parse using StableHLO v1";
        let theirs = refusal("UNKNOWN", unread.into());
        assert_eq!(theirs.line(), "refuses: expected ']'");
        let theirs = refusal("INVALID_ARGUMENT", "Unsupported attribute type".into());
        assert_eq!(
            theirs.line(),
            "refuses later: INVALID_ARGUMENT: Unsupported attribute type"
        );
        let missing = "No registered implementation for untyped custom call to x for Host";
        assert_eq!(refusal("NOT_FOUND", missing.into()), Theirs::Accepts);
    }

    #[test]
    fn the_words_before_an_end_are_those_of_the_check() {
        let stderr = [
            "noise",
            "F0000 00:01.5   13 a_b.cc:63] Check failed: x == 1",
            "*** trace",
        ];
        let stderr: Vec<_> = stderr.iter().map(|&line| line.to_owned()).collect();
        assert_eq!(
            last_words("SIGABRT", &stderr),
            "SIGABRT: a_b.cc:63] Check failed: x == 1"
        );
        assert_eq!(last_words("SIGSEGV", &[]), "SIGSEGV");
    }
}

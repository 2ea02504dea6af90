//! What this package says, asked in a process of its own: its parser is C++ too.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use compile_worker::{read_frame, write_frame, Cause, End, Process};
use stablehlo_custom_call::{Context, Limits, Module};

use crate::case::Case;
use crate::record::Record;

/// The package's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ours {
    /// The module's bytecode, as XLA gets it.
    Accepts {
        program: Vec<u8>,
    },
    Refuses {
        kind: String,
        message: String,
    },
    /// It ended the process.
    Dies {
        cause: Cause,
        stderr: Vec<String>,
    },
    /// It gave no answer in time.
    Hangs,
}

/// Asks in this process.
pub fn check(case: &Case) -> Ours {
    let built = Module::build(&Context::new(Limits::default()), &case.graph()).and_then(|module| {
        // The oldest of the plugins that are asked.
        module.needs().check(case.shardy, (0, 106))?;
        Ok(module)
    });
    match built {
        Ok(module) => Ours::Accepts {
            program: module.to_bytecode(),
        },
        Err(error) => Ours::Refuses {
            kind: format!("{:?}", error.kind()),
            message: error.to_string(),
        },
    }
}

const ACCEPTS: u8 = 0;
const REFUSES: u8 = 1;

/// Answers the questions of a [`Checker`] until there are no more.
///
/// # Errors
/// Those of the standard streams, and a question that is no record.
pub fn serve() -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    while let Some(frame) = read_frame(&mut input)? {
        let text = String::from_utf8(frame).map_err(io::Error::other)?;
        let record = Record::parse(&text).map_err(io::Error::other)?;
        let answer = match check(&record.case) {
            Ours::Accepts { program } => [&[ACCEPTS][..], &program].concat(),
            Ours::Refuses { kind, message } => {
                [&[REFUSES][..], kind.as_bytes(), b"\n", message.as_bytes()].concat()
            }
            Ours::Dies { .. } | Ours::Hangs => continue,
        };
        write_frame(&mut output, &answer)?;
    }
    Ok(())
}

/// The package in a process, which is started anew where a question ends it.
#[derive(Debug)]
pub struct Checker {
    /// The program and its arguments.
    command: (PathBuf, &'static str),
    process: Option<Process>,
}

const LIMIT: Duration = Duration::from_secs(20);

impl Checker {
    pub fn new(program: PathBuf, argument: &'static str) -> Self {
        Self {
            command: (program, argument),
            process: None,
        }
    }

    /// # Errors
    /// Where the process cannot be started.
    pub fn ask(&mut self, case: &Case) -> io::Result<Ours> {
        let process = match &mut self.process {
            Some(process) => process,
            None => {
                let (program, argument) = &self.command;
                let process = Process::spawn(Command::new(program).arg(argument))?;
                self.process.insert(process)
            }
        };
        let question = Record::of(case).to_text();
        match process.ask(question.as_bytes(), Some(LIMIT)) {
            Ok(frame) => Ok(match frame.split_first() {
                Some((&ACCEPTS, program)) => Ours::Accepts {
                    program: program.to_vec(),
                },
                _ => {
                    let text = String::from_utf8_lossy(frame.get(1..).unwrap_or_default());
                    let (kind, message) = text.split_once('\n').unwrap_or(("", &text));
                    Ours::Refuses {
                        kind: kind.to_owned(),
                        message: message.to_owned(),
                    }
                }
            }),
            Err(end) => {
                self.process = None;
                Ok(match end {
                    End::Died { cause, stderr } => Ours::Dies { cause, stderr },
                    End::Silent => Ours::Hangs,
                })
            }
        }
    }
}

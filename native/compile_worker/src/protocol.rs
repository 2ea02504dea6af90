//! The messages.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use pjrt_runtime::{CompileOptions, NamedValue, OptionValue};

use crate::wire::{Malformed, Reader, Writer};

/// The version of the protocol, which the first message of each side names.
pub const VERSION: u16 = 1;

/// What the worker may use. 0 is no ceiling, and for the stack the usual size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ceilings {
    /// Memory of the process's own.
    pub memory_bytes: u64,
    /// The stack of the thread that compiles.
    pub stack_bytes: u64,
    /// Processor time of the process's whole life.
    pub cpu_seconds: u32,
}

/// The first message to a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    pub plugin: PathBuf,
    pub create_options: Vec<(String, NamedValue)>,
    pub ceilings: Ceilings,
}

/// What a worker says of its plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    pub platform: String,
    pub platform_version: String,
    /// Of the PJRT API, major and minor.
    pub api_version: (i32, i32),
}

/// A program to compile.
#[derive(Clone, Debug, PartialEq)]
pub struct Compile {
    pub id: u64,
    /// 0 is no limit.
    pub time_limit_ms: u32,
    /// Whether the answer is to have the HLO text of the compiled program.
    pub with_hlo: bool,
    pub options: CompileOptions,
    /// Names that get a handler for the compiler to find.
    pub targets: Vec<Vec<u8>>,
    /// MLIR, as text or bytecode.
    pub program: Vec<u8>,
}

/// A message to a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    Hello(Hello),
    Compile(Box<Compile>),
}

/// A message from a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Ready(Ready),
    /// Nothing more will come.
    Failed(String),
    Accepted {
        id: u64,
        hlo: Option<String>,
    },
    Refused {
        id: u64,
        /// The status code's name, `"INVALID_ARGUMENT"`.
        code: String,
        message: String,
    },
    TimedOut {
        id: u64,
    },
}

const HELLO: u8 = 0;
const COMPILE: u8 = 1;

const READY: u8 = 0;
const FAILED: u8 = 1;
const ACCEPTED: u8 = 2;
const REFUSED: u8 = 3;
const TIMED_OUT: u8 = 4;

const WITH_HLO: u8 = 1;

const STRING: u8 = 0;
const INT64: u8 = 1;
const INT64_LIST: u8 = 2;
const FLOAT: u8 = 3;
const BOOL: u8 = 4;

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Hello(hello) => hello.write(&mut to),
            Self::Compile(compile) => compile.write(&mut to),
        }
        to.finish()
    }

    /// # Errors
    /// [`Malformed`] says what is wrong at which byte.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let message = match from.u8()? {
            HELLO => Self::Hello(Hello::read(&mut from)?),
            COMPILE => Self::Compile(Box::new(Compile::read(&mut from)?)),
            other => return from.malformed(format!("there is no message {other} to a worker")),
        };
        from.end()?;
        Ok(message)
    }
}

impl Hello {
    fn write(&self, to: &mut Writer) {
        to.u8(HELLO)
            .u16(VERSION)
            .bytes(self.plugin.as_os_str().as_bytes())
            .list(&self.create_options, |to, (name, value)| {
                to.bytes(name.as_bytes());
                match value {
                    NamedValue::String(value) => to.u8(STRING).bytes(value.as_bytes()),
                    NamedValue::Int64(value) => to.u8(INT64).i64(*value),
                    NamedValue::Int64List(value) => to.u8(INT64_LIST).list(value, |to, number| {
                        to.i64(*number);
                    }),
                    NamedValue::Float(value) => to.u8(FLOAT).f64(f64::from(*value)),
                    NamedValue::Bool(value) => to.u8(BOOL).bool(*value),
                };
            })
            .u64(self.ceilings.memory_bytes)
            .u64(self.ceilings.stack_bytes)
            .u32(self.ceilings.cpu_seconds);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        version(from)?;
        let plugin = PathBuf::from(OsStr::from_bytes(from.bytes()?));
        let create_options = from.list(|from| {
            let name = from.string()?;
            let value = match from.u8()? {
                STRING => NamedValue::String(from.string()?),
                INT64 => NamedValue::Int64(from.i64()?),
                INT64_LIST => NamedValue::Int64List(from.list(Reader::i64)?),
                FLOAT => NamedValue::Float(from.f64()? as f32),
                BOOL => NamedValue::Bool(from.bool()?),
                other => return from.malformed(format!("there is no value of kind {other}")),
            };
            Ok((name, value))
        })?;
        Ok(Self {
            plugin,
            create_options,
            ceilings: Ceilings {
                memory_bytes: from.u64()?,
                stack_bytes: from.u64()?,
                cpu_seconds: from.u32()?,
            },
        })
    }
}

fn version(from: &mut Reader<'_>) -> Result<(), Malformed> {
    match from.u16()? {
        VERSION => Ok(()),
        other => from.malformed(format!(
            "the other side speaks version {other} of the protocol, and this one {VERSION}"
        )),
    }
}

impl Compile {
    fn write(&self, to: &mut Writer) {
        let options = &self.options;
        to.u8(COMPILE)
            .u64(self.id)
            .u32(self.time_limit_ms)
            .u8(if self.with_hlo { WITH_HLO } else { 0 })
            .count(options.num_replicas)
            .count(options.num_partitions)
            .bool(options.use_spmd_partitioning)
            .bool(options.use_shardy_partitioner);
        let (outputs, parameters) = (
            &options.allow_spmd_sharding_propagation_to_output,
            &options.allow_spmd_sharding_propagation_to_parameters,
        );
        for list in [outputs, parameters] {
            to.list(list, |to, value| {
                to.bool(*value);
            });
        }
        for count in [options.num_outputs, options.num_parameters] {
            to.optional(count, |to, count| {
                to.count(count);
            });
        }
        to.optional(options.device_assignment.as_ref(), |to, rows| {
            to.list(rows, |to, row| {
                to.list(row, |to, id| {
                    to.i32(*id);
                });
            });
        });
        to.list(&options.env_option_overrides, |to, (name, value)| {
            to.bytes(name.as_bytes());
            match value {
                OptionValue::String(value) => to.u8(STRING).bytes(value.as_bytes()),
                OptionValue::Int(value) => to.u8(INT64).i64(*value),
                OptionValue::Double(value) => to.u8(FLOAT).f64(*value),
                OptionValue::Bool(value) => to.u8(BOOL).bool(*value),
            };
        })
        .list(&self.targets, |to, target| {
            to.bytes(target);
        })
        .bytes(&self.program);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let id = from.u64()?;
        let time_limit_ms = from.u32()?;
        let flags = from.u8()?;
        if flags & !WITH_HLO != 0 {
            return from.malformed(format!("the flags {flags:#x} are not all known"));
        }
        let options = CompileOptions {
            num_replicas: from.u32()? as usize,
            num_partitions: from.u32()? as usize,
            use_spmd_partitioning: from.bool()?,
            use_shardy_partitioner: from.bool()?,
            allow_spmd_sharding_propagation_to_output: from.list(Reader::bool)?,
            allow_spmd_sharding_propagation_to_parameters: from.list(Reader::bool)?,
            num_outputs: from.optional(Reader::u32)?.map(|count| count as usize),
            num_parameters: from.optional(Reader::u32)?.map(|count| count as usize),
            device_assignment: from.optional(|from| from.list(|from| from.list(Reader::i32)))?,
            env_option_overrides: from.list(|from| {
                let name = from.string()?;
                let value = match from.u8()? {
                    STRING => OptionValue::String(from.string()?),
                    INT64 => OptionValue::Int(from.i64()?),
                    FLOAT => OptionValue::Double(from.f64()?),
                    BOOL => OptionValue::Bool(from.bool()?),
                    other => {
                        return from.malformed(format!("no option of XLA's is of kind {other}"))
                    }
                };
                Ok((name, value))
            })?,
        };
        Ok(Self {
            id,
            time_limit_ms,
            with_hlo: flags & WITH_HLO != 0,
            options,
            targets: from.list(|from| from.bytes().map(<[u8]>::to_vec))?,
            program: from.bytes()?.to_vec(),
        })
    }
}

impl Answer {
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Ready(ready) => to
                .u8(READY)
                .u16(VERSION)
                .bytes(ready.platform.as_bytes())
                .bytes(ready.platform_version.as_bytes())
                .i32(ready.api_version.0)
                .i32(ready.api_version.1),
            Self::Failed(reason) => to.u8(FAILED).bytes(reason.as_bytes()),
            Self::Accepted { id, hlo } => {
                to.u8(ACCEPTED).u64(*id).optional(hlo.as_ref(), |to, hlo| {
                    to.bytes(hlo.as_bytes());
                })
            }
            Self::Refused { id, code, message } => to
                .u8(REFUSED)
                .u64(*id)
                .bytes(code.as_bytes())
                .bytes(message.as_bytes()),
            Self::TimedOut { id } => to.u8(TIMED_OUT).u64(*id),
        };
        to.finish()
    }

    /// # Errors
    /// [`Malformed`] says what is wrong at which byte.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let answer = match from.u8()? {
            READY => {
                version(&mut from)?;
                Self::Ready(Ready {
                    platform: from.string()?,
                    platform_version: from.string()?,
                    api_version: (from.i32()?, from.i32()?),
                })
            }
            FAILED => Self::Failed(from.string()?),
            ACCEPTED => Self::Accepted {
                id: from.u64()?,
                hlo: from.optional(Reader::string)?,
            },
            REFUSED => Self::Refused {
                id: from.u64()?,
                code: from.string()?,
                message: from.string()?,
            },
            TIMED_OUT => Self::TimedOut { id: from.u64()? },
            other => return from.malformed(format!("there is no answer {other}")),
        };
        from.end()?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            plugin: "/p.so".into(),
            create_options: vec![
                ("s".into(), NamedValue::String("é".into())),
                ("i".into(), NamedValue::Int64(-1)),
                ("l".into(), NamedValue::Int64List(vec![1, 2])),
                ("f".into(), NamedValue::Float(0.5)),
                ("b".into(), NamedValue::Bool(true)),
            ],
            ceilings: Ceilings {
                memory_bytes: 1 << 40,
                stack_bytes: 7,
                cpu_seconds: 60,
            },
        }
    }

    fn compile() -> Compile {
        Compile {
            id: u64::MAX,
            time_limit_ms: 1000,
            with_hlo: true,
            options: CompileOptions {
                num_replicas: 2,
                num_partitions: 3,
                use_spmd_partitioning: true,
                use_shardy_partitioner: true,
                allow_spmd_sharding_propagation_to_output: vec![true, false],
                allow_spmd_sharding_propagation_to_parameters: vec![true],
                num_outputs: Some(2),
                num_parameters: None,
                device_assignment: Some(vec![vec![0, 1, 2], vec![-1, 4, 5]]),
                env_option_overrides: vec![
                    ("a".into(), OptionValue::String("x".into())),
                    ("b".into(), OptionValue::Bool(false)),
                    ("c".into(), OptionValue::Int(-5)),
                    ("d".into(), OptionValue::Double(1.5)),
                ],
            },
            targets: vec![b"one".to_vec(), b"\xff\0".to_vec()],
            program: b"module {}".to_vec(),
        }
    }

    fn answers() -> [Answer; 6] {
        [
            Answer::Ready(Ready {
                platform: "cpu".into(),
                platform_version: "v".into(),
                api_version: (0, 115),
            }),
            Answer::Failed("no".into()),
            Answer::Accepted { id: 1, hlo: None },
            Answer::Accepted {
                id: 1,
                hlo: Some("HloModule".into()),
            },
            Answer::Refused {
                id: 2,
                code: "INTERNAL".into(),
                message: "é".into(),
            },
            Answer::TimedOut { id: 3 },
        ]
    }

    #[test]
    fn every_message_and_answer_reads_back_as_it_was_written() {
        for message in [
            Message::Hello(hello()),
            Message::Compile(Box::new(compile())),
        ] {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        for answer in answers() {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn the_shortest_request_has_the_bytes_that_the_documentation_says() {
        let request = Compile {
            id: 1,
            time_limit_ms: 10_000,
            with_hlo: false,
            options: CompileOptions::default(),
            targets: vec![],
            program: b"m".to_vec(),
        };
        let mut expected = vec![1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0x27, 0x10, 0];
        expected.extend([0, 0, 0, 1, 0, 0, 0, 1, 0, 0]);
        expected.extend([0; 8]);
        expected.extend([0, 0, 0]);
        expected.extend([0; 8]);
        expected.extend([0, 0, 0, 1, b'm']);
        assert_eq!(Message::Compile(Box::new(request)).encode(), expected);
    }

    #[test]
    fn every_message_that_is_cut_short_or_goes_on_is_malformed() {
        for message in [
            Message::Hello(hello()).encode(),
            Message::Compile(Box::new(compile())).encode(),
        ] {
            for end in 0..message.len() {
                assert!(Message::decode(&message[..end]).is_err(), "{end}");
            }
            let longer = [message.as_slice(), b"x"].concat();
            let error = Message::decode(&longer).unwrap_err();
            assert_eq!(error.what, "1 bytes come after the end");
        }
    }

    #[test]
    fn another_version_and_an_unknown_message_are_named() {
        let error = Message::decode(&[0, 0, 9]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "malformed message: the other side speaks version 9 of the protocol, and this one 1 at byte 3"
        );
        let error = Message::decode(&[7]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "malformed message: there is no message 7 to a worker at byte 1"
        );
    }

    #[test]
    fn a_list_longer_than_its_message_takes_no_memory() {
        let mut hello = Message::Hello(hello()).encode();
        // The count of the create options, after the path.
        hello[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
        let error = Message::decode(&hello).unwrap_err();
        assert!(
            error.what.starts_with("a list of 4294967295 in the "),
            "{error}"
        );
    }
}

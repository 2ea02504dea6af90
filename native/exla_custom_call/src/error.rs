use crate::atoms;
use pjrt_runtime::Error as Runtime;
use rustler::{types::tuple::make_tuple, Atom, Binary, Encoder, Env, NewBinary, Term};
use stablehlo_custom_call::{Error as Core, ErrorKind};
use std::any::Any;

/// A refusal as data: `{kind, field, name, message, line, column, code, found, expected, call, faults}`,
/// the strings as binaries. `call` is `{function, index, target}`, and `faults` are more such tuples,
/// where there are several faults.
#[derive(Debug)]
pub(crate) enum Error {
    Core(Core),
    Runtime(Kind, Runtime),
    /// What the NIF itself refuses.
    Refused(Kind, String),
}

/// What was being done when the run time failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Buffer,
    Client,
    Library,
    Compile,
    Run,
}

impl Kind {
    fn atom(self) -> Atom {
        match self {
            Self::Buffer => atoms::buffer(),
            Self::Client => atoms::client(),
            Self::Library => atoms::library(),
            Self::Compile => atoms::compile(),
            Self::Run => atoms::run(),
        }
    }
}

impl From<Core> for Error {
    fn from(error: Core) -> Self {
        Self::Core(error)
    }
}

impl Error {
    /// A panic of this crate's or of a dependency's, which is a bug of ours: the message says so.
    pub(crate) fn panicked(kind: Kind, panic: &(dyn Any + Send)) -> Self {
        let reason = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("without a message");
        Self::Runtime(
            kind,
            Runtime::Thread {
                name: "custom_call_worker".into(),
                reason: format!("panicked, which is a bug of exla_custom_call: {reason}"),
            },
        )
    }
}

impl Encoder for Error {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        match self {
            Self::Core(error) => core(env, error),
            Self::Runtime(kind, error) => runtime(env, *kind, error),
            Self::Refused(kind, message) => {
                let nil = atoms::nil();
                make_tuple(
                    env,
                    &[
                        kind.atom().encode(env),
                        nil.encode(env),
                        nil.encode(env),
                        message.encode(env),
                        nil.encode(env),
                        nil.encode(env),
                        nil.encode(env),
                        nil.encode(env),
                        nil.encode(env),
                        nil.encode(env),
                        Vec::<Term>::new().encode(env),
                    ],
                )
            }
        }
    }
}

fn core<'a>(env: Env<'a>, error: &Core) -> Term<'a> {
    let kind = match error.kind() {
        ErrorKind::Name => atoms::name(),
        ErrorKind::Text => atoms::text(),
        ErrorKind::Spec => atoms::spec(),
        ErrorKind::Type => atoms::r#type(),
        ErrorKind::Graph => atoms::graph(),
    };
    let (line, column) = error.position().unzip();
    let call = error
        .call()
        .map(|(function, index, target)| (function, index, binary(env, target)));
    let faults = match error.faults() {
        [_] => Vec::new(),
        faults => faults.iter().map(|fault| core(env, fault)).collect(),
    };
    make_tuple(
        env,
        &[
            kind.encode(env),
            error.field().map(atoms::field).encode(env),
            error.name().map(|name| binary(env, name)).encode(env),
            error.to_string().encode(env),
            line.encode(env),
            column.encode(env),
            atoms::nil().encode(env),
            error.found().encode(env),
            error.expected().encode(env),
            call.encode(env),
            faults.encode(env),
        ],
    )
}

fn runtime<'a>(env: Env<'a>, kind: Kind, error: &Runtime) -> Term<'a> {
    let code = match error {
        Runtime::Pjrt { code, .. } => atoms::code(*code),
        _ => atoms::nil(),
    };
    let name = match error {
        Runtime::SymbolMissing { symbol, .. } => Some(symbol),
        Runtime::HandlerRejected { target, .. } | Runtime::HandlerConflict { target, .. } => {
            Some(target)
        }
        Runtime::CreateOption { name, .. } => Some(name),
        _ => None,
    };
    let nil = atoms::nil().encode(env);
    make_tuple(
        env,
        &[
            kind_of(kind, error).encode(env),
            nil,
            name.map(|name| binary(env, name.as_bytes())).encode(env),
            error.to_string().encode(env),
            nil,
            nil,
            code.encode(env),
            nil,
            nil,
            nil,
            Vec::<Term>::new().encode(env),
        ],
    )
}

fn kind_of(kind: Kind, error: &Runtime) -> Atom {
    match (kind, error) {
        (
            Kind::Client,
            Runtime::PluginNotFound { .. }
            | Runtime::NotASharedObject { .. }
            | Runtime::NoGetPjrtApi { .. }
            | Runtime::NullApi { .. }
            | Runtime::UnsupportedApi { .. }
            | Runtime::MissingFunction { .. },
        ) => atoms::plugin(),
        _ => kind.atom(),
    }
}

pub(crate) fn binary<'a>(env: Env<'a>, bytes: &[u8]) -> Binary<'a> {
    NewBinary::from_slice(env, bytes).into()
}

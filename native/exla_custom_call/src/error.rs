use crate::atoms;
use pjrt_runtime::Error as Runtime;
use rustler::{Atom, Binary, Encoder, Env, NewBinary, Term};
use stablehlo_custom_call::{Error as Core, ErrorKind};
use std::any::Any;

/// A refusal as data: `{kind, field, name, message, line, column, code}`, the strings as binaries.
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
                (kind.atom(), nil, nil, message, nil, nil, nil).encode(env)
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
    (
        kind,
        error.field().map(atoms::field),
        error.name().map(|name| binary(env, name)),
        error.to_string(),
        line,
        column,
        atoms::nil(),
    )
        .encode(env)
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
    (
        kind_of(kind, error),
        atoms::nil(),
        name.map(|name| binary(env, name.as_bytes())),
        error.to_string(),
        atoms::nil(),
        atoms::nil(),
        code,
    )
        .encode(env)
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

use crate::atoms;
use rustler::{Binary, Encoder, Env, NewBinary, Term};
use stablehlo_custom_call::ErrorKind;

/// A refusal as data: `{kind, field, name, message, line, column, code}`, the strings as binaries.
#[derive(Debug)]
pub(crate) enum Error {
    Core(stablehlo_custom_call::Error),
}

impl From<stablehlo_custom_call::Error> for Error {
    fn from(error: stablehlo_custom_call::Error) -> Self {
        Self::Core(error)
    }
}

impl Encoder for Error {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        match self {
            Self::Core(error) => {
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
        }
    }
}

pub(crate) fn binary<'a>(env: Env<'a>, bytes: &[u8]) -> Binary<'a> {
    NewBinary::from_slice(env, bytes).into()
}

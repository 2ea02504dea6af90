//! Answers by message: `{tag, {:ok, value} | {:error, error}}` to the process that asked.

use crate::{
    atoms,
    error::{Error, Kind},
    workers,
};
use rustler::{
    env::{OwnedEnv, SavedTerm},
    Encoder, Env, LocalPid, Term,
};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs `work` on a worker thread, and sends what it returns to the caller under `tag`.
///
/// `kept` are terms that the work needs, such as the binaries whose bytes it reads. They are in the
/// environment that `work` gets, and live until it returns.
pub(crate) fn by_message<F>(
    env: Env<'_>,
    tag: Term<'_>,
    kept: Term<'_>,
    kind: Kind,
    work: F,
) -> Result<rustler::Atom, Error>
where
    F: for<'a> FnOnce(Env<'a>, Term<'a>) -> Result<Term<'a>, Error> + Send + 'static,
{
    let caller = env.pid();
    let memory = OwnedEnv::new();
    let tag = memory.save(tag);
    let kept = memory.save(kept);
    workers::spawn(move || run(caller, memory, tag, kept, kind, work))
        .map_err(|error| Error::Runtime(kind, error))?;
    Ok(atoms::ok())
}

fn run<F>(
    caller: LocalPid,
    mut memory: OwnedEnv,
    tag: SavedTerm,
    kept: SavedTerm,
    kind: Kind,
    work: F,
) where
    F: for<'a> FnOnce(Env<'a>, Term<'a>) -> Result<Term<'a>, Error>,
{
    // The message is built in the environment that keeps the inputs, which is cleared with it. A
    // process that is gone by now gets nothing, and nothing is lost.
    let _ = memory.send_and_clear(&caller, |env| {
        let answer = catch_unwind(AssertUnwindSafe(|| work(env, kept.load(env))))
            .unwrap_or_else(|panic| Err(Error::panicked(kind, panic.as_ref())));
        let answer = match answer {
            Ok(value) => (atoms::ok(), value).encode(env),
            Err(error) => (atoms::error(), error).encode(env),
        };
        (tag.load(env), answer)
    });
}

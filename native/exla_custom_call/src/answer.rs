//! Answers by message: `{tag, {:ok, value} | {:error, error}}` to the process that asked.

use crate::{
    atoms,
    error::{Error, Kind},
    workers,
};
use rustler::{
    env::{OwnedEnv, SavedTerm},
    Encoder, Env, LocalPid, Resource, ResourceArc, Term,
};
use std::{
    panic::{catch_unwind, AssertUnwindSafe},
    sync::{
        atomic::{AtomicU8, Ordering},
        Arc,
    },
};

const PENDING: u8 = 0;
/// The message is being made, and will be there in a moment.
const SENDING: u8 = 1;
/// The message is in the caller's mailbox, or was taken from it.
const SENT: u8 = 2;
const CANCELLED: u8 = 3;

/// Which of the two came first: the answer, or the caller's word that it waits no more.
type State = Arc<AtomicU8>;

/// The caller's side of an answer that is under way.
pub(crate) struct TicketResource(State);

#[rustler::resource_impl]
impl Resource for TicketResource {}

/// Waives an answer. Returns the state that it was in: 0 means that it will never come now.
#[rustler::nif]
fn answer_cancel(ticket: ResourceArc<TicketResource>) -> u8 {
    match ticket
        .0
        .compare_exchange(PENDING, CANCELLED, Ordering::AcqRel, Ordering::Acquire)
    {
        Ok(state) | Err(state) => state,
    }
}

/// Whether the answer was sent or waived.
#[rustler::nif]
fn answer_settled(ticket: ResourceArc<TicketResource>) -> bool {
    matches!(ticket.0.load(Ordering::Acquire), SENT | CANCELLED)
}

/// The right to answer, once. One that is dropped unused sends an error: no caller waits for ever.
pub(crate) struct Answer {
    caller: LocalPid,
    state: State,
    kind: Kind,
    memory: Option<(OwnedEnv, SavedTerm)>,
}

impl Answer {
    /// Answers with what `value` makes. On any thread but a scheduler's.
    pub(crate) fn send<F>(mut self, value: F)
    where
        F: for<'a> FnOnce(Env<'a>) -> Result<Term<'a>, Error>,
    {
        self.send_once(value);
    }

    fn send_once<F>(&mut self, value: F)
    where
        F: for<'a> FnOnce(Env<'a>) -> Result<Term<'a>, Error>,
    {
        let Some((mut memory, tag)) = self.memory.take() else {
            return;
        };
        let sent =
            self.state
                .compare_exchange(PENDING, SENDING, Ordering::AcqRel, Ordering::Acquire);
        if sent.is_err() {
            return;
        }
        let kind = self.kind;
        // A process that is gone by now gets nothing, and nothing is lost.
        let _ = memory.send_and_clear(&self.caller, |env| {
            let answer = catch_unwind(AssertUnwindSafe(|| value(env)))
                .unwrap_or_else(|panic| Err(Error::panicked(kind, panic.as_ref())));
            let answer = match answer {
                Ok(value) => (atoms::ok(), value).encode(env),
                Err(error) => (atoms::error(), error).encode(env),
            };
            (tag.load(env), answer)
        });
        self.state.store(SENT, Ordering::Release);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let kind = self.kind;
        self.send_once(|_| Err(Error::panicked(kind, &"the work was dropped")));
    }
}

/// Runs `work` on a worker thread. It answers the caller under `tag`, now or later.
///
/// `kept` is a term that the work needs, such as the inputs. It is in the environment that `work`
/// gets, and lives until it returns.
pub(crate) fn by_message<F>(
    env: Env<'_>,
    tag: Term<'_>,
    kept: Term<'_>,
    kind: Kind,
    work: F,
) -> Result<ResourceArc<TicketResource>, Error>
where
    F: for<'a> FnOnce(Term<'a>, Answer) + Send + 'static,
{
    let state = State::default();
    let memory = OwnedEnv::new();
    let tag = memory.save(tag);
    let answer = Answer {
        caller: env.pid(),
        state: state.clone(),
        kind,
        memory: Some((memory, tag)),
    };
    let inputs = OwnedEnv::new();
    let kept = inputs.save(kept);
    workers::spawn(move || inputs.run(|env| work(kept.load(env), answer)))
        .map_err(|error| Error::Runtime(kind, error))?;
    Ok(ResourceArc::new(TicketResource(state)))
}

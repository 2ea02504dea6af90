//! Launches: executions that devices are at work on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::buffer::Buffer;
use crate::client::Turn;
use crate::event::{self, Event};
use crate::executable::Executable;
use crate::user_data::UserData;
use crate::Error;

/// What an execution returned at once: outputs that are perhaps not written yet, and one event for
/// each device that says when it is done.
pub(crate) struct Launch {
    /// By device; `None` where the plugin left an output out.
    pub(crate) outputs: Vec<Vec<Option<Buffer>>>,
    pub(crate) events: Vec<Event>,
    /// Given back when all devices are done.
    pub(crate) turn: Option<Turn>,
    /// Freed when all devices are done.
    pub(crate) user_data: Option<UserData>,
}

impl Launch {
    /// Blocks until all devices are done.
    pub(crate) fn wait(self) -> Result<Vec<Vec<Buffer>>, Error> {
        // Wait for all devices before an error of one is returned: the others use the inputs too.
        let waited: Vec<Result<(), Error>> = self.events.iter().map(Event::wait).collect();
        waited.into_iter().collect::<Result<(), Error>>()?;
        drop(self.user_data);
        complete(self.outputs)
    }

    /// Calls `on_done` when all devices are done. The executable is kept until then.
    pub(crate) fn on_done<F>(self, executable: Executable, on_done: F)
    where
        F: FnOnce(Result<Vec<Vec<Buffer>>, Error>) + Send + 'static,
    {
        let completion = Arc::new(Completion {
            // One more than there are events, for the end of this function.
            remaining: AtomicUsize::new(self.events.len() + 1),
            state: Mutex::new(Some(State {
                outputs: self.outputs,
                error: None,
                on_done,
                executable,
                turn: self.turn,
                user_data: self.user_data,
            })),
        });
        for event in self.events {
            let completion = Arc::clone(&completion);
            event.on_ready(move |result| completion.arrive(result));
        }
        completion.arrive(Ok(()));
    }
}

/// Counts the devices that are not done.
struct Completion<F> {
    remaining: AtomicUsize,
    /// `None` once it was taken by the last to arrive.
    state: Mutex<Option<State<F>>>,
}

struct State<F> {
    outputs: Vec<Vec<Option<Buffer>>>,
    error: Option<Error>,
    on_done: F,
    executable: Executable,
    turn: Option<Turn>,
    user_data: Option<UserData>,
}

impl<F> Completion<F>
where
    F: FnOnce(Result<Vec<Vec<Buffer>>, Error>),
{
    fn arrive(&self, result: Result<(), Error>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(state), Err(error)) = (state.as_mut(), result) {
            state.error.get_or_insert(error);
        }
        if self.remaining.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let last = state.take();
        drop(state);
        if let Some(state) = last {
            // Before the callback, which may start the next one.
            drop(state.turn);
            drop(state.user_data);
            let result = match state.error {
                Some(error) => Err(error),
                None => complete(state.outputs),
            };
            event::guarded(|| {
                (state.on_done)(result);
                drop(state.executable);
            });
        }
    }
}

fn complete(outputs: Vec<Vec<Option<Buffer>>>) -> Result<Vec<Vec<Buffer>>, Error> {
    let complete: Option<Vec<Vec<Buffer>>> = outputs
        .into_iter()
        .map(|list| list.into_iter().collect())
        .collect();
    complete.ok_or(Error::NullResult {
        name: "PJRT_LoadedExecutable_Execute",
        what: "output buffer",
    })
}

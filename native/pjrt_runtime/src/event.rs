//! Events: the plugin's word that something asynchronous is done.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;

use pjrt_sys::*;

use crate::args::Args;
use crate::plugin::Plugin;
use crate::Error;

/// An event that this process has to free.
pub(crate) struct Event {
    plugin: &'static Plugin,
    raw: NonNull<PJRT_Event>,
}

// SAFETY: PJRT events may be used and freed from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Takes over an event that the plugin returned; `None` for a null pointer, which some
    /// functions return where there is nothing to wait for.
    ///
    /// # Safety
    /// `raw` is null or an event of `plugin` that nobody else will free.
    pub(crate) unsafe fn from_raw(plugin: &'static Plugin, raw: *mut PJRT_Event) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self { plugin, raw })
    }

    /// Blocks until the event is ready.
    ///
    /// # Errors
    /// [`Error::Pjrt`] with what went wrong in the work that the event stands for.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        let mut args = Args::<PJRT_Event_Await_Args>::new();
        args.event = self.raw.as_ptr();
        // SAFETY: the event is alive until it is dropped.
        unsafe { self.plugin.api().call(&mut args) }
    }

    /// Calls `work` once the event is ready, with what [`wait`](Self::wait) would return: now and
    /// on this thread if it is ready, else later on a thread of the plugin's. A panic in `work`
    /// ends there.
    ///
    /// A plugin that takes no callbacks makes this call wait.
    pub(crate) fn on_ready<F>(self, work: F)
    where
        F: FnOnce(Result<(), Error>) + Send + 'static,
    {
        let plugin = self.plugin;
        let mut args = Args::<PJRT_Event_OnReady_Args>::new();
        args.event = self.raw.as_ptr();
        args.callback = Some(call_back::<F>);
        let pending = Box::into_raw(Box::new(Pending { event: self, work }));
        args.user_arg = pending.cast();
        // SAFETY: the event is alive: it is freed by the callback, which takes over `pending`.
        let registered = unsafe { plugin.api().call(&mut args) };
        if let Err(error) = registered {
            // SAFETY: the plugin did not take the callback, so nobody else has the box.
            let Pending { event, work } = *unsafe { Box::from_raw(pending) };
            let result = match error {
                Error::MissingFunction { .. } => event.wait(),
                error => Err(error),
            };
            guarded(|| work(result));
        }
    }
}

/// What a callback takes with it. The event is kept until then: a plugin need not call back for an
/// event that is gone.
struct Pending<F> {
    event: Event,
    work: F,
}

/// A `PJRT_Event_OnReadyCallback`.
///
/// # Safety
/// `user_arg` is a boxed `Pending<F>` that this call takes over, `error` null or an error of the
/// event's plugin that this call has to free.
unsafe extern "C" fn call_back<F>(error: *mut PJRT_Error, user_arg: *mut c_void)
where
    F: FnOnce(Result<(), Error>) + Send + 'static,
{
    guarded(|| {
        // SAFETY: the caller vouches for the box.
        let Pending { event, work } = *unsafe { Box::from_raw(user_arg.cast::<Pending<F>>()) };
        let result = match NonNull::new(error) {
            None => Ok(()),
            // SAFETY: the callback owns the error.
            Some(error) => Err(unsafe { event.plugin.api().take_error(error) }),
        };
        drop(event);
        work(result);
    });
}

thread_local! {
    /// How many callbacks this thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread is in a callback, so perhaps one of the plugin's that must not wait for the
/// plugin's threads.
pub(crate) fn in_callback() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

/// Runs code that a plugin called or could have. No panic leaves it.
pub(crate) fn guarded(work: impl FnOnce()) {
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        // A panic's value may panic when it is dropped; what that panic has is not dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
    }
    DEPTH.with(|depth| depth.set(depth.get() - 1));
}

impl Drop for Event {
    fn drop(&mut self) {
        let mut args = Args::<PJRT_Event_Destroy_Args>::new();
        args.event = self.raw.as_ptr();
        // SAFETY: the event is alive and this is its only owner. A failure leaves nothing to do.
        let _ = unsafe { self.plugin.api().call(&mut args) };
    }
}

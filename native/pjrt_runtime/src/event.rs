//! Events: the plugin's word that something asynchronous is done.

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
}

impl Drop for Event {
    fn drop(&mut self) {
        let mut args = Args::<PJRT_Event_Destroy_Args>::new();
        args.event = self.raw.as_ptr();
        // SAFETY: the event is alive and this is its only owner. A failure leaves nothing to do.
        let _ = unsafe { self.plugin.api().call(&mut args) };
    }
}

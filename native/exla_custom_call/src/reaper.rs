//! Frees what takes long to free on a thread of its own: a destructor runs on whichever scheduler
//! collects the garbage.

use once_cell::sync::OnceCell;
use std::{
    any::Any,
    sync::mpsc::{channel, Sender},
    thread,
};

type Waste = Box<dyn Any + Send>;

static REAPER: OnceCell<Sender<Waste>> = OnceCell::new();

/// Drops `waste` on the reaper's thread, or here when there can be no such thread.
pub(crate) fn free(waste: impl Send + 'static) {
    let sender = REAPER.get_or_try_init(|| {
        let (sender, receiver) = channel::<Waste>();
        thread::Builder::new()
            .name("custom_call_reaper".into())
            .spawn(move || receiver.into_iter().for_each(drop))
            .map(|_| sender)
    });
    if let Ok(sender) = sender {
        // A failed send hands the waste back inside the error, which drops it here.
        let _ = sender.send(Box::new(waste));
    }
}

//! Who may hand a buffer to an execution.
//!
//! An execution that is given a buffer's memory waits until all others let go of the buffer, and
//! keeps new ones away meanwhile. The plugin takes the inputs of an execution one after the other, so
//! two executions could each have what the other one waits for, and one that is given a buffer twice
//! would wait for itself. Here all inputs are taken in one order, and each once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    users: usize,
    taken: bool,
    /// How many wait: a call of the system that nobody waits for is saved.
    waiting: usize,
}

/// The right to hand the buffer over, given back when it is dropped.
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    alone: bool,
}

impl Gate {
    /// Waits until nobody has the buffer alone, and to have it alone until nobody has it at all. Who
    /// waits to have it alone keeps no other user away: a user's handler may need the buffer once
    /// more, and the user ends after its handler.
    pub(crate) fn enter(&self, alone: bool) -> Pass<'_> {
        let mut state = self.lock();
        while state.taken || (alone && state.users > 0) {
            state.waiting += 1;
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        if alone {
            state.taken = true;
        } else {
            state.users += 1;
        }
        Pass { gate: self, alone }
    }

    // A count and a flag are consistent whenever the lock is free.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        if self.alone {
            state.taken = false;
        } else {
            state.users -= 1;
        }
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.gate.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn many_have_a_buffer_at_once_and_one_that_waits_to_have_it_alone_keeps_none_away() {
        let gate = Gate::default();
        let alone = AtomicBool::new(false);
        thread::scope(|scope| {
            let first = gate.enter(false);
            scope.spawn(|| {
                let _pass = gate.enter(true);
                alone.store(true, Ordering::SeqCst);
            });
            thread::sleep(Duration::from_millis(20));
            let second = gate.enter(false);
            assert!(!alone.load(Ordering::SeqCst));
            drop(first);
            thread::sleep(Duration::from_millis(20));
            assert!(!alone.load(Ordering::SeqCst));
            drop(second);
        });
        assert!(alone.load(Ordering::SeqCst));
    }

    #[test]
    fn nobody_gets_in_beside_one_that_has_a_buffer_alone() {
        let gate = Gate::default();
        let inside = AtomicBool::new(false);
        thread::scope(|scope| {
            let pass = gate.enter(true);
            for alone in [true, false] {
                let (gate, inside) = (&gate, &inside);
                scope.spawn(move || {
                    let _pass = gate.enter(alone);
                    inside.store(true, Ordering::SeqCst);
                });
            }
            thread::sleep(Duration::from_millis(20));
            assert!(!inside.load(Ordering::SeqCst));
            drop(pass);
        });
        assert!(inside.load(Ordering::SeqCst));
    }
}

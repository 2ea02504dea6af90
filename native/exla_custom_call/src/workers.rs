//! Threads that compile and execute, so that no scheduler waits for a compiler or a device.
//!
//! Their stacks are large: XLA recurses along chains of operations, and handlers run on the thread
//! that executes. A thread that finds no work for a while ends.

use once_cell::sync::Lazy;
use std::{
    collections::VecDeque,
    panic::{catch_unwind, AssertUnwindSafe},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

type Job = Box<dyn FnOnce() + Send>;

/// So many calls can wait for handlers or devices at once; more queue up.
const MOST_THREADS: usize = 256;
const IDLE: Duration = Duration::from_secs(10);

static POOL: Lazy<Pool> = Lazy::new(Pool::default);

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
}

/// Runs `job` on a thread of the pool. A panic in it ends the job, not the thread.
pub(crate) fn spawn(job: impl FnOnce() + Send + 'static) -> Result<(), pjrt_runtime::Error> {
    let mut state = POOL.lock();
    state.jobs.push_back(Box::new(job));
    if state.idle >= state.jobs.len() || state.threads >= MOST_THREADS {
        POOL.work.notify_one();
        return Ok(());
    }
    state.threads += 1;
    drop(state);
    let started = pjrt_runtime::thread::spawn("custom_call_worker", || POOL.serve());
    if let Err(error) = started {
        let mut state = POOL.lock();
        state.threads -= 1;
        if state.threads == 0 {
            // Nobody is left to take the job, which is the last one that came.
            state.jobs.pop_back();
            return Err(error);
        }
        POOL.work.notify_one();
    }
    Ok(())
}

impl Pool {
    // The state is consistent whenever the lock is free: no job runs under it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // What a job does on panic is its own business; it has an answer of its own.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let (woken, timeout) = self
                .work
                .wait_timeout(state, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

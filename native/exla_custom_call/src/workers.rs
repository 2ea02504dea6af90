//! Threads that compile and execute, so that no scheduler waits for a compiler or a device.
//!
//! Their stacks are large: XLA recurses along chains of operations, and handlers run on the thread
//! that executes. A thread that finds no work for a while ends.

use once_cell::sync::Lazy;
use std::{
    collections::VecDeque,
    panic::{catch_unwind, AssertUnwindSafe},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

type Job = Box<dyn FnOnce() + Send>;

/// So many calls can wait for handlers or devices at once; more queue up.
const MOST_THREADS: usize = 256;
const IDLE: Duration = Duration::from_secs(10);

static POOL: Lazy<Mutex<Pool>> = Lazy::new(Mutex::default);

#[derive(Default)]
struct Pool {
    /// Threads without work, the one that had some last at the end. That one is woken first, so that
    /// the others can end.
    idle: Vec<Arc<Seat>>,
    /// Work that waits for a thread.
    jobs: VecDeque<Job>,
    threads: usize,
}

/// Where a thread without work waits.
#[derive(Default)]
struct Seat {
    job: Mutex<Option<Job>>,
    given: Condvar,
}

// What is under these locks is consistent whenever they are free: no job runs under one.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `job` on a thread of the pool. A panic in it ends the job, not the thread.
pub(crate) fn spawn(job: impl FnOnce() + Send + 'static) -> Result<(), pjrt_runtime::Error> {
    let job: Job = Box::new(job);
    let mut pool = locked(&POOL);
    if let Some(seat) = pool.idle.pop() {
        drop(pool);
        *locked(&seat.job) = Some(job);
        seat.given.notify_one();
        return Ok(());
    }
    pool.jobs.push_back(job);
    if pool.threads >= MOST_THREADS {
        return Ok(());
    }
    pool.threads += 1;
    drop(pool);
    if let Err(error) = pjrt_runtime::thread::spawn("custom_call_worker", serve) {
        let mut pool = locked(&POOL);
        pool.threads -= 1;
        if pool.threads == 0 {
            // Nobody is left to take the job, which is the last one that came.
            pool.jobs.pop_back();
            return Err(error);
        }
    }
    Ok(())
}

fn serve() {
    let seat = Arc::new(Seat::default());
    loop {
        let mut pool = locked(&POOL);
        let job = match pool.jobs.pop_front() {
            Some(job) => {
                drop(pool);
                job
            }
            None => {
                pool.idle.push(seat.clone());
                drop(pool);
                match wait(&seat) {
                    Some(job) => job,
                    None => return,
                }
            }
        };
        // What a job does on panic is its own business; it has an answer of its own.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

/// The next job; `None` if none came for a while, and the thread has left the pool.
fn wait(seat: &Arc<Seat>) -> Option<Job> {
    let deadline = Instant::now() + IDLE;
    let mut job = locked(&seat.job);
    loop {
        if let Some(job) = job.take() {
            return Some(job);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            drop(job);
            if leave(seat) {
                return None;
            }
            // It was taken from its seat in this moment: a job is on its way.
            job = locked(&seat.job);
            while job.is_none() {
                job = seat.given.wait(job).unwrap_or_else(PoisonError::into_inner);
            }
            continue;
        }
        job = seat
            .given
            .wait_timeout(job, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

/// Takes a thread out of the pool, unless it has been given work.
fn leave(seat: &Arc<Seat>) -> bool {
    let mut pool = locked(&POOL);
    let position = pool.idle.iter().position(|other| Arc::ptr_eq(other, seat));
    if let Some(position) = position {
        pool.idle.remove(position);
        pool.threads -= 1;
    }
    position.is_some()
}

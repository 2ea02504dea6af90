//! Threads with room for XLA.

use std::any::Any;
use std::thread::{Builder, JoinHandle};

use crate::Error;

/// The stack of a thread that compiles. XLA's compilation recurses along chains of operations: on
/// an ordinary stack a chain of some thousand ends the process, where this one takes it.
pub const STACK_SIZE: usize = 64 * 1024 * 1024;

/// Starts a thread with a name and a stack of [`STACK_SIZE`] bytes. Dropping the handle detaches it.
///
/// # Errors
/// [`Error::Thread`] if the system gives no thread.
pub fn spawn<T, F>(name: &str, work: F) -> Result<JoinHandle<T>, Error>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    spawn_with_stack(name, STACK_SIZE, work)
}

/// Starts a thread with a name and a stack of so many bytes. Dropping the handle detaches it.
///
/// # Errors
/// [`Error::Thread`] if the system gives no thread.
pub fn spawn_with_stack<T, F>(
    name: &str,
    stack_size: usize,
    work: F,
) -> Result<JoinHandle<T>, Error>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    // The standard library panics at a NUL in a thread's name.
    let clean = name.replace('\0', "");
    Builder::new()
        .name(clean)
        .stack_size(stack_size)
        .spawn(work)
        .map_err(|error| Error::Thread {
            name: name.to_owned(),
            reason: format!("cannot be started with a stack of {stack_size} bytes: {error}"),
        })
}

/// Runs a closure on a thread with a stack of [`STACK_SIZE`] bytes and waits for its result.
///
/// # Errors
/// [`Error::Thread`] if the thread cannot be started or the closure panics.
pub fn run<T, F>(name: &str, work: F) -> Result<T, Error>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    spawn(name, work)?.join().map_err(|panic| Error::Thread {
        name: name.to_owned(),
        reason: format!("panicked: {}", panic_message(panic.as_ref())),
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(remaining: usize) -> usize {
        let frame = std::hint::black_box([0u8; 1024]);
        if remaining == 0 {
            return frame.len() - 1024;
        }
        1 + depth(remaining - 1)
    }

    #[test]
    fn the_thread_has_the_name_and_room_for_deep_recursion() {
        let (name, depth) = run("compile", || {
            let name = std::thread::current().name().map(str::to_owned);
            (name, depth(30_000))
        })
        .unwrap();
        assert_eq!(name.as_deref(), Some("compile"));
        assert_eq!(depth, 30_000);
    }

    #[test]
    fn a_name_with_a_nul_is_no_panic() {
        assert_eq!(run("a\0b", || 1), Ok(1));
    }

    #[test]
    fn a_panic_in_the_closure_is_an_error() {
        let error = run("doomed", || panic!("lost")).map(|_: ()| ());
        assert_eq!(
            error.unwrap_err().to_string(),
            "thread \"doomed\": panicked: lost"
        );
    }

    #[test]
    fn a_stack_that_no_memory_holds_is_an_error() {
        let error = spawn_with_stack("huge", usize::MAX / 4, || ()).map(|_| ());
        assert!(matches!(error, Err(Error::Thread { name, .. }) if name == "huge"));
    }
}

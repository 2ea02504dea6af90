//! What keeps the worker's process within bounds, and what ends it.

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use std::{io, thread};

use crate::exit;
use crate::protocol::Ceilings;

/// Ends the process at once: no destructors of XLA's, no threads that are waited for.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: the call has no preconditions.
    unsafe { libc::_exit(status) }
}

/// The standard output, taken away: what else is printed there goes to standard error.
pub(crate) fn take_stdout() -> io::Result<File> {
    // SAFETY: both descriptors are open; the new one belongs to the result alone.
    unsafe {
        let output = libc::fcntl(1, libc::F_DUPFD_CLOEXEC, 3);
        if output < 0 {
            return Err(io::Error::last_os_error());
        }
        let output = OwnedFd::from_raw_fd(output);
        if libc::dup2(2, 1) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(File::from(output))
    }
}

static PARENT: AtomicI32 = AtomicI32::new(0);

/// Has the process end with its parent, also in the midst of a compilation.
///
/// The system's signal comes when the *thread* ends that started this process, so the process looks
/// whether its parent is another one by then.
pub(crate) fn end_with_parent() {
    extern "C" fn on_signal(_: libc::c_int) {
        // SAFETY: both functions may be called in a signal handler.
        unsafe {
            if libc::getppid() != PARENT.load(Ordering::Relaxed) {
                libc::_exit(exit::ORPHANED);
            }
        }
    }
    // SAFETY: the handler does what a handler may; a zeroed action is an action without flags.
    unsafe {
        PARENT.store(libc::getppid(), Ordering::Relaxed);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGUSR1);
    }
}

fn limit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) {
    let limit = libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: the limit is readable for the call. A limit that cannot be set is no reason to stop.
    unsafe { libc::setrlimit(resource, &raw const limit) };
}

pub(crate) fn no_core_dumps() {
    limit(libc::RLIMIT_CORE, 0, 0);
}

/// Sets the ceilings on what the process uses from now on.
pub(crate) fn apply(ceilings: &Ceilings) {
    if ceilings.cpu_seconds > 0 {
        let seconds = u64::from(ceilings.cpu_seconds);
        limit(libc::RLIMIT_CPU, seconds, seconds + 1);
    }
    if ceilings.memory_bytes == 0 {
        return;
    }
    let Ok(statm) = File::open("/proc/self/statm") else {
        return;
    };
    // A plugin reserves gigabytes of address space, and XLA's threads have stacks that nothing
    // touches: the watch below counts what is used, and this limit is for what grows faster than it
    // looks.
    let reserved = Statm::read(&statm).map_or(0, |statm| statm.data);
    let most = reserved.saturating_add(ceilings.memory_bytes.saturating_mul(2));
    limit(libc::RLIMIT_DATA, most, most);
    let memory_bytes = ceilings.memory_bytes;
    thread::spawn(move || loop {
        thread::sleep(WATCH_INTERVAL);
        if let Some(held) = Statm::read(&statm).map(|statm| statm.own) {
            if held > memory_bytes {
                eprintln!(
                    "the process holds {held} bytes, more than its ceiling of {memory_bytes}"
                );
                exit_now(exit::MEMORY);
            }
        }
    });
}

const WATCH_INTERVAL: Duration = Duration::from_millis(5);

/// Sizes of the process in bytes.
struct Statm {
    /// Resident and of no file.
    own: u64,
    /// Reserved and private.
    data: u64,
}

impl Statm {
    fn read(file: &File) -> Option<Self> {
        let mut text = [0; 256];
        let count = file.read_at(&mut text, 0).ok()?;
        let mut numbers = str::from_utf8(&text[..count])
            .ok()?
            .split_ascii_whitespace()
            .map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let (_size, resident, shared) = (next()?, next()?, next()?);
        let (_text, _lib, data) = (next()?, next()?, next()?);
        // SAFETY: the call has no preconditions.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        Some(Self {
            own: resident.saturating_sub(shared) * page,
            data: data * page,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_used_is_counted_as_the_process_own() {
        let statm = File::open("/proc/self/statm").unwrap();
        let before = Statm::read(&statm).unwrap();
        let used = vec![1u8; 64 << 20];
        let after = Statm::read(&statm).unwrap();
        assert!(std::hint::black_box(&used).len() == 64 << 20);
        assert!(after.own >= before.own + (60 << 20));
        assert!(after.data >= before.data + (60 << 20));
    }
}

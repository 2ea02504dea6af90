//! A child process that is spoken to in frames.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::frame::{read_frame, write_frame};

/// A child process with frames on its standard input and output, and the last lines kept that it wrote
/// to its standard error since it was asked. It is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<Vec<u8>>,
    errors: Arc<Mutex<VecDeque<String>>>,
    errors_reader: Option<JoinHandle<()>>,
}

/// How a process ended that was asked something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It ended by itself; the last lines of its standard error.
    Died { cause: Cause, stderr: Vec<String> },
    /// It did not answer in time, and was killed.
    Silent,
}

/// What ended a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    Signal(i32),
    Status(i32),
    /// The system does not tell.
    Unknown,
}

impl Cause {
    fn of(status: ExitStatus) -> Self {
        match (status.signal(), status.code()) {
            (Some(signal), _) => Self::Signal(signal),
            (None, Some(code)) => Self::Status(code),
            (None, None) => Self::Unknown,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::Signal(libc::SIGSEGV) => "SIGSEGV",
            Self::Signal(libc::SIGABRT) => "SIGABRT",
            Self::Signal(libc::SIGBUS) => "SIGBUS",
            Self::Signal(libc::SIGILL) => "SIGILL",
            Self::Signal(libc::SIGFPE) => "SIGFPE",
            Self::Signal(libc::SIGTRAP) => "SIGTRAP",
            Self::Signal(libc::SIGKILL) => "SIGKILL",
            Self::Signal(libc::SIGXCPU) => "SIGXCPU",
            Self::Signal(other) => return write!(formatter, "signal {other}"),
            Self::Status(status) => return write!(formatter, "exit status {status}"),
            Self::Unknown => "an unknown cause",
        };
        formatter.write_str(name)
    }
}

const MOST_LINES: usize = 40;
const LONGEST_LINE: usize = 2000;

impl Process {
    /// Starts a program.
    ///
    /// # Errors
    /// Those of the system.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("the child has no standard streams");
        let (Some(mut stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(missing());
        };
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || {
            while let Ok(Some(frame)) = read_frame(&mut stdout) {
                if sender.send(frame).is_err() {
                    return;
                }
            }
        });
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&errors);
        let errors_reader = std::thread::spawn(move || {
            let mut stderr = BufReader::new(stderr);
            let mut line = Vec::new();
            while matches!(stderr.read_until(b'\n', &mut line), Ok(count) if count > 0) {
                let end = line.len().min(LONGEST_LINE);
                let text = String::from_utf8_lossy(&line[..end]).trim_end().to_owned();
                let mut kept = lock(&kept);
                kept.push_back(text);
                if kept.len() > MOST_LINES {
                    kept.pop_front();
                }
                line.clear();
            }
        });
        Ok(Self {
            input: child.stdin.take(),
            child,
            output,
            errors,
            errors_reader: Some(errors_reader),
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a frame and waits for one. Without a limit it waits as long as the process lives.
    ///
    /// # Errors
    /// [`End`]: the process is no more, and every later call says so again.
    pub fn ask(&mut self, frame: &[u8], limit: Option<Duration>) -> Result<Vec<u8>, End> {
        if self.input.is_some() {
            // What is kept is about this question; what was said before is about others.
            lock(&self.errors).clear();
        }
        let sent = match &mut self.input {
            Some(input) => write_frame(input, frame),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        if sent.is_err() {
            // It may have said why before it ended.
            return self.output.try_recv().map_err(|_| self.end());
        }
        let answer = match limit {
            Some(limit) => self.output.recv_timeout(limit),
            None => self.output.recv().map_err(RecvTimeoutError::from),
        };
        match answer {
            Ok(frame) => Ok(frame),
            Err(RecvTimeoutError::Disconnected) => Err(self.end()),
            Err(RecvTimeoutError::Timeout) => {
                self.end_now();
                Err(End::Silent)
            }
        }
    }

    /// Kills the process.
    pub fn end_now(&mut self) -> End {
        let _ = self.child.kill();
        self.end()
    }

    /// Waits for the end of a process that has closed its output, or is about to.
    pub fn end(&mut self) -> End {
        self.input = None;
        let cause = self.child.wait().map_or(Cause::Unknown, Cause::of);
        if let Some(reader) = self.errors_reader.take() {
            let _ = reader.join();
        }
        let stderr = lock(&self.errors).iter().cloned().collect();
        End::Died { cause, stderr }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

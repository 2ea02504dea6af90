//! The worker's side.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use pjrt_runtime::{thread, Client, Error, ErrorCode, Handler, Plugin, Stages};

use crate::ceilings::{self, exit_now};
use crate::exit;
use crate::frame::{read_frame, write_frame};
use crate::protocol::{Answer, Compile, Hello, Message, Ready};
use crate::stub;

/// Serves requests from the standard input, as the [crate]'s documentation says, until it ends.
pub fn serve() -> ! {
    ceilings::no_core_dumps();
    ceilings::end_with_parent();
    let output = match ceilings::take_stdout() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("no standard output to answer on: {error}");
            exit_now(exit::FAILED)
        }
    };
    let mut server = Server {
        output,
        input: read_input(),
        worker: None,
    };
    loop {
        match server.input.recv() {
            Ok(frame) => server.answer(frame),
            // The reader ends the process where the input ends.
            Err(_) => exit_now(exit::DONE),
        }
    }
}

type Frame = Result<Vec<u8>, String>;

/// Reads on a thread of its own, which ends the process with the input even while it compiles.
fn read_input() -> Receiver<Frame> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let frame = match read_frame(&mut input) {
                Ok(Some(frame)) => Ok(frame),
                Ok(None) => exit_now(exit::DONE),
                Err(error) => Err(format!("the input is not as it should be: {error}")),
            };
            let is_last = frame.is_err();
            if sender.send(frame).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

struct Server {
    output: File,
    input: Receiver<Frame>,
    worker: Option<Worker>,
}

/// What the first message made.
struct Worker {
    client: Client,
    stub: Handler,
    /// The names that have the stand-in.
    targets: HashSet<Vec<u8>>,
    stack_size: usize,
}

impl Server {
    fn send(&mut self, answer: &Answer) {
        if write_frame(&mut self.output, &answer.encode()).is_err() {
            exit_now(exit::ORPHANED);
        }
    }

    fn fail(&mut self, reason: String, status: i32) -> ! {
        self.send(&Answer::Failed(reason));
        exit_now(status)
    }

    fn answer(&mut self, frame: Frame) {
        let frame = frame.unwrap_or_else(|reason| self.fail(reason, exit::MALFORMED));
        let message = Message::decode(&frame)
            .unwrap_or_else(|error| self.fail(error.to_string(), exit::MALFORMED));
        let answer = match (message, &mut self.worker) {
            (Message::Hello(hello), None) => match start(&hello) {
                Ok((worker, ready)) => {
                    self.worker = Some(worker);
                    Answer::Ready(ready)
                }
                Err(error) => self.fail(error.to_string(), exit::FAILED),
            },
            (Message::Compile(request), Some(worker)) => worker.compile(*request),
            (Message::Hello(_), Some(_)) => {
                self.fail("hello was said before".into(), exit::MALFORMED)
            }
            (Message::Compile(_), None) => {
                self.fail("the first message is hello".into(), exit::MALFORMED)
            }
        };
        self.send(&answer);
        if matches!(answer, Answer::TimedOut { .. }) {
            exit_now(exit::TIME);
        }
    }
}

fn start(hello: &Hello) -> Result<(Worker, Ready), Error> {
    let (plugin, options) = (hello.plugin.clone(), hello.create_options.clone());
    let client = thread::run("client", move || {
        Client::new(Plugin::load(&plugin)?, &options)
    })??;
    ceilings::apply(&hello.ceilings);
    let ready = Ready {
        platform: client.platform_name().to_owned(),
        platform_version: client.platform_version().to_owned(),
        api_version: client.plugin().api_version(),
    };
    let stack_size = match usize::try_from(hello.ceilings.stack_bytes) {
        Ok(0) | Err(_) => thread::STACK_SIZE,
        Ok(size) => size,
    };
    let worker = Worker {
        client,
        stub: stub::handler()?,
        targets: HashSet::new(),
        stack_size,
    };
    Ok((worker, ready))
}

/// Ends the process when a C++ exception unwinds through it. Nothing can catch one here, and the
/// thread would abort without a word of what it was doing.
struct EndIfUnwinding;

impl Drop for EndIfUnwinding {
    fn drop(&mut self) {
        eprintln!("the compilation ended by an exception that the plugin did not catch");
        exit_now(exit::EXCEPTION);
    }
}

impl Worker {
    fn compile(&mut self, request: Compile) -> Answer {
        let id = request.id;
        let limit = match request.time_limit_ms {
            0 => Duration::MAX,
            milliseconds => Duration::from_millis(milliseconds.into()),
        };
        let compiled = self
            .register(&request.targets)
            .and_then(|()| self.start_compilation(request));
        let result = match compiled {
            Ok(answer) => match answer.recv_timeout(limit) {
                Ok(result) => result,
                Err(RecvTimeoutError::Timeout) => return Answer::TimedOut { id },
                Err(RecvTimeoutError::Disconnected) => exit_now(exit::EXCEPTION),
            },
            Err(error) => Err(error),
        };
        match result {
            Ok(hlo) => Answer::Accepted { id, hlo },
            Err(Error::Pjrt { code, message }) => Answer::Refused {
                id,
                code: code.name().to_owned(),
                message,
            },
            // What this package refuses itself.
            Err(error) => Answer::Refused {
                id,
                code: ErrorCode::InvalidArgument.name().to_owned(),
                message: error.to_string(),
            },
        }
    }

    fn register(&mut self, targets: &[Vec<u8>]) -> Result<(), Error> {
        let new: Vec<_> = targets
            .iter()
            .filter(|target| !self.targets.contains(*target))
            .map(|target| (target.clone(), Stages::execute(self.stub.clone())))
            .collect();
        self.client.register_handlers(&new)?;
        self.targets
            .extend(new.into_iter().map(|(target, _)| target));
        Ok(())
    }

    /// Compiles on a thread with a stack that is large enough.
    fn start_compilation(
        &self,
        request: Compile,
    ) -> Result<Receiver<Result<Option<String>, Error>>, Error> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let client = self.client.clone();
        thread::spawn_with_stack("compile", self.stack_size, move || {
            let unwinding = EndIfUnwinding;
            let compiled =
                client
                    .compile(&request.program, &request.options)
                    .and_then(|executable| {
                        let hlo = request.with_hlo.then(|| executable.hlo_text());
                        hlo.transpose()
                    });
            std::mem::forget(unwinding);
            let _ = sender.send(compiled);
        })?;
        Ok(receiver)
    }
}

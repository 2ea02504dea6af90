//! The worker as a process, with the real plugin.

// The lint knows tests by their attribute, and what they share has none.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use compile_worker::{
    exit, read_frame, write_frame, Answer, Cause, Ceilings, Hello, Message, Outcome, Request,
    Settings, SpawnError, Worker,
};
use pjrt_runtime::NamedValue;

const PROGRAM: &str = env!("CARGO_BIN_EXE_exla_custom_call_worker");

const IDENTITY: &str =
    "func.func @main(%arg0: tensor<f32>) -> tensor<f32> { return %arg0 : tensor<f32> }";

fn plugin() -> PathBuf {
    if let Some(path) = std::env::var_os("EXLA_CUSTOM_CALL_PJRT_CPU") {
        return path.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_default();
    cache.join("exla_custom_call/plugins/cpu/pjrt_c_api_cpu_plugin.so")
}

fn settings() -> Settings {
    Settings::new(Path::new(PROGRAM), &plugin())
}

fn worker() -> Worker {
    Worker::spawn(&settings()).unwrap()
}

/// A module with one custom call on two floats.
fn custom_call(attributes: &str) -> String {
    format!(
        r#"func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {{
             %0 = "stablehlo.custom_call"(%arg0) {{call_target_name = "target", api_version = 4 : i32{attributes}}}
               : (tensor<2xf32>) -> tensor<2xf32>
             return %0 : tensor<2xf32>
           }}"#
    )
}

/// A chain of so many operations, which takes its time.
fn chain(length: usize) -> String {
    let mut body = String::new();
    for index in 0..length {
        let operation = match index % 2 {
            0 => format!("stablehlo.tanh %{index} : tensor<64x64xf32>"),
            _ => format!(
                "stablehlo.dot_general %{index}, %{index}, contracting_dims = [1] x [0] \
                 : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>"
            ),
        };
        body += &format!("%{} = {operation}\n", index + 1);
    }
    format!(
        "func.func @main(%0: tensor<64x64xf32>) -> tensor<64x64xf32> {{\n{body} \
         return %{length} : tensor<64x64xf32> }}"
    )
}

fn raw_worker(input: &[u8]) -> (Vec<Answer>, Option<i32>) {
    let mut child = Command::new(PROGRAM)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut answers = Vec::new();
    while let Some(frame) = read_frame(&mut stdout).unwrap() {
        answers.push(Answer::decode(&frame).unwrap());
    }
    drop(stdin);
    (answers, child.wait().unwrap().code())
}

#[test]
fn a_worker_says_what_its_plugin_is_and_compiles_one_program_after_another() {
    let mut worker = worker();
    assert_eq!(worker.ready().platform, "cpu");
    assert_eq!(worker.ready().api_version.0, 0);
    for _ in 0..2 {
        assert_eq!(
            worker.compile(Request::of(IDENTITY.as_bytes())),
            Outcome::Accepted { hlo: None }
        );
    }
}

#[test]
fn the_hlo_text_of_the_optimised_program_comes_where_it_is_asked_for() {
    let program = custom_call(", backend_config = {scale = 2.0 : f32}");
    let outcome = worker().compile(Request {
        targets: vec![b"target".to_vec()],
        with_hlo: true,
        ..Request::of(program.as_bytes())
    });
    let Outcome::Accepted { hlo: Some(hlo) } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(hlo.contains(r#"custom_call_target="target""#), "{hlo}");
}

#[test]
fn a_target_without_a_stand_in_is_refused_with_the_compilers_words() {
    let outcome = worker().compile(Request::of(custom_call("").as_bytes()));
    let Outcome::Refused { message, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(message.contains("target"), "{message}");
}

#[test]
fn a_program_that_does_not_parse_is_refused_and_the_worker_lives_on() {
    let mut worker = worker();
    let outcome = worker.compile(Request::of(b"nonsense"));
    let Outcome::Refused { code, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(code, "UNKNOWN");
    assert_eq!(
        worker.compile(Request::of(IDENTITY.as_bytes())),
        Outcome::Accepted { hlo: None }
    );
}

#[test]
fn options_that_this_package_refuses_are_refused_and_create_options_count() {
    let request = || {
        let mut request = Request::of(IDENTITY.as_bytes());
        request.options.num_replicas = 2;
        request
    };
    let with_devices = |count: i64| {
        Worker::spawn(&Settings {
            create_options: vec![("cpu_device_count".into(), NamedValue::Int64(count))],
            ..settings()
        })
        .unwrap()
    };
    assert_eq!(
        with_devices(2).compile(request()),
        Outcome::Accepted { hlo: None }
    );
    assert_eq!(
        with_devices(1).compile(request()),
        Outcome::Refused {
            code: "INVALID_ARGUMENT".into(),
            message:
                "compile options: 2 replicas of 1 partitions need more devices than the client's 1"
                    .into()
        }
    );
}

#[test]
fn a_crash_of_xla_is_an_outcome_with_its_signal() {
    let program = custom_call(", called_computations = [@missing]");
    let mut worker = worker();
    let outcome = worker.compile(Request {
        targets: vec![b"target".to_vec()],
        ..Request::of(program.as_bytes())
    });
    assert!(
        matches!(
            outcome,
            Outcome::Died {
                cause: Cause::Signal(11),
                ..
            }
        ),
        "{outcome:?}"
    );
    // Asking a worker that is gone says the same again.
    assert_eq!(worker.compile(Request::of(IDENTITY.as_bytes())), outcome);
}

#[test]
fn a_program_that_takes_longer_than_its_limit_ends_the_worker_soon() {
    let program = chain(2000);
    let mut worker = worker();
    let start = Instant::now();
    let outcome = worker.compile(Request {
        time_limit: Some(Duration::from_millis(50)),
        ..Request::of(program.as_bytes())
    });
    assert_eq!(outcome, Outcome::TimedOut);
    assert!(start.elapsed() < Duration::from_secs(4));
    assert!(!worker
        .compile(Request::of(IDENTITY.as_bytes()))
        .worker_lives());
}

#[test]
fn a_program_that_takes_more_memory_than_the_ceiling_ends_the_worker() {
    let program = chain(4000);
    let mut worker = Worker::spawn(&Settings {
        ceilings: Ceilings {
            memory_bytes: 100 << 20,
            ..Ceilings::default()
        },
        ..settings()
    })
    .unwrap();
    assert_eq!(
        worker.compile(Request::of(program.as_bytes())),
        Outcome::OutOfMemory
    );
}

#[test]
fn a_worker_that_used_up_its_processor_time_is_one_that_took_too_long() {
    let mut worker = Worker::spawn(&Settings {
        ceilings: Ceilings {
            cpu_seconds: 1,
            ..Ceilings::default()
        },
        ..settings()
    })
    .unwrap();
    let outcome = worker.compile(Request::of(chain(6000).as_bytes()));
    assert_eq!(outcome, Outcome::TimedOut);
}

#[test]
fn the_stack_has_the_size_that_was_asked_for() {
    // MLIR's parser recurses at each bracket.
    let nested = format!(", a = {}{}", "[".repeat(5000), "]".repeat(5000));
    let program = custom_call(&nested);
    let request = || Request {
        targets: vec![b"target".to_vec()],
        ..Request::of(program.as_bytes())
    };
    let mut small = Worker::spawn(&Settings {
        ceilings: Ceilings {
            stack_bytes: 320 << 10,
            ..Ceilings::default()
        },
        ..settings()
    })
    .unwrap();
    let Outcome::Died { stderr, .. } = small.compile(request()) else {
        panic!("the worker lives on 320 KiB");
    };
    assert!(
        stderr
            .iter()
            .any(|line| line.contains("overflowed its stack")),
        "{stderr:?}"
    );
    assert!(worker().compile(request()).worker_lives());
}

#[test]
fn a_plugin_that_is_not_there_is_an_error_with_its_path() {
    let error = Worker::spawn(&Settings::new(
        Path::new(PROGRAM),
        Path::new("/no/plugin.so"),
    ));
    assert_eq!(
        error.unwrap_err().to_string(),
        "the worker cannot serve: no PJRT plugin at /no/plugin.so: there is no such file"
    );
    let error = Worker::spawn(&Settings::new(Path::new("/no/worker"), &plugin())).unwrap_err();
    assert!(matches!(error, SpawnError::Start { .. }), "{error}");
}

#[test]
fn garbage_is_answered_with_what_is_wrong_and_ends_the_worker() {
    let frame = |payload: &[u8]| {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, payload).unwrap();
        bytes
    };
    let cases = [
        (frame(b""), "malformed message: 1 bytes should come, and 0 are left at byte 0"),
        (
            frame(&[9, 9, 9]),
            "malformed message: there is no message 9 to a worker at byte 1",
        ),
        (
            b"\xff\xff\xff\xffgarbage".to_vec(),
            "the input is not as it should be: a frame of 4294967295 bytes, and the longest has 1073741824",
        ),
        (
            frame(
                &Message::Compile(Box::new(compile_worker::Compile {
                    id: 0,
                    time_limit_ms: 0,
                    with_hlo: false,
                    options: pjrt_runtime::CompileOptions::default(),
                    targets: vec![],
                    program: vec![],
                }))
                .encode(),
            ),
            "the first message is hello",
        ),
    ];
    for (input, reason) in cases {
        assert_eq!(
            raw_worker(&input),
            (vec![Answer::Failed(reason.into())], Some(exit::MALFORMED))
        );
    }
}

#[test]
fn a_worker_whose_input_ends_in_the_midst_of_a_compilation_ends_too() {
    let hello = Message::Hello(Hello {
        plugin: plugin(),
        create_options: vec![],
        ceilings: Ceilings::default(),
    });
    let compile = Message::Compile(Box::new(compile_worker::Compile {
        id: 0,
        time_limit_ms: 0,
        with_hlo: false,
        options: pjrt_runtime::CompileOptions::default(),
        targets: vec![],
        program: chain(2000).into_bytes(),
    }));
    let mut child = Command::new(PROGRAM)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    write_frame(&mut stdin, &hello.encode()).unwrap();
    assert!(read_frame(&mut stdout).unwrap().is_some());
    write_frame(&mut stdin, &compile.encode()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(stdin);
    assert_eq!(read_frame(&mut stdout).unwrap(), None);
    assert_eq!(child.wait().unwrap().code(), Some(exit::DONE));
}

#[test]
fn an_allocation_that_fails_ends_the_worker_and_is_no_refusal() {
    let program = custom_call(", backend_config = {weights = dense<3.0> : tensor<4294967295xf32>}");
    let mut worker = Worker::spawn(&Settings {
        ceilings: Ceilings {
            memory_bytes: 1 << 30,
            ..Ceilings::default()
        },
        ..settings()
    })
    .unwrap();
    let outcome = worker.compile(Request {
        targets: vec![b"target".to_vec()],
        ..Request::of(program.as_bytes())
    });
    // One build of the plugin lets the exception out, another one fills the memory first.
    let has_ended = match &outcome {
        Outcome::Died { cause, .. } => *cause == Cause::Status(exit::EXCEPTION),
        other => *other == Outcome::OutOfMemory,
    };
    assert!(has_ended, "{outcome:?}");
}

#[test]
fn a_worker_ends_with_its_parent_though_its_input_stays_open() {
    // A shell is the parent, and hands its own input on.
    let mut shell = Command::new("sh")
        .args(["-c", "exec 3<&0; \"$0\" <&3 & wait", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
    let hello = Message::Hello(Hello {
        plugin: plugin(),
        create_options: vec![],
        ceilings: Ceilings::default(),
    });
    write_frame(&mut stdin, &hello.encode()).unwrap();
    assert!(read_frame(&mut stdout).unwrap().is_some());
    shell.kill().unwrap();
    shell.wait().unwrap();
    // The output ends with the last process that holds it.
    assert_eq!(read_frame(&mut stdout).unwrap(), None);
}

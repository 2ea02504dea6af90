//! What holds for the crate as a whole: several plugins and clients, the order in which things are
//! dropped, many threads, and memory over time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;

use crate::test_support::{client, cpu_plugin, handlers, other_cpu_plugin, ADD};
use crate::*;

const SECONDS: Duration = Duration::from_secs(20);

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect()
}

fn input<'a>(data: &'a [u8], dimensions: &'a [i64]) -> HostInput<'a> {
    HostInput {
        data,
        element_type: ElementType::F32,
        dimensions,
    }
}

fn owned(values: &[f32]) -> OwnedInput<'static> {
    OwnedInput {
        data: HostData::new(floats(values)),
        element_type: ElementType::F32,
        dimensions: &[2],
    }
}

fn compile(client: &Client, program: &str) -> Executable {
    client
        .compile(program.as_bytes(), &CompileOptions::default())
        .unwrap()
}

/// A call of one of the handlers of the tests on two floats.
fn calling(target: &str, attributes: &str) -> String {
    format!(
        "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{
           %0 = stablehlo.custom_call @{target}(%a) {{api_version = 4 : i32, backend_config = {{{attributes}}}}}
             : (tensor<2xf32>) -> tensor<2xf32>
           return %0 : tensor<2xf32>
         }}"
    )
}

fn buffer(client: &Client, values: &[f32]) -> Buffer {
    Buffer::from_host(client, 0, &input(&floats(values), &[2])).unwrap()
}

type Outcome = Result<Vec<Vec<Buffer>>, Error>;

/// Runs without blocking; the receiver gets the outcome.
fn start(executable: &Executable, inputs: &[&Buffer]) -> mpsc::Receiver<Outcome> {
    let (sender, receiver) = mpsc::channel();
    let options = ExecuteOptions::default();
    executable.execute_async(&[inputs], &options, move |outcome| {
        let _ = sender.send(outcome);
    });
    receiver
}

#[test]
fn an_asynchronous_run_reports_once_with_its_outputs() {
    let executable = compile(client(), ADD);
    let (a, b) = (
        buffer(client(), &[1.0, 2.0]),
        buffer(client(), &[10.0, 20.0]),
    );
    let done = start(&executable, &[&a, &b]);
    drop((a, b));
    let outputs = done.recv_timeout(SECONDS).unwrap().unwrap();
    assert_eq!(outputs[0][0].to_host(), Ok(floats(&[11.0, 22.0])));
    assert!(
        done.recv_timeout(SECONDS).is_err(),
        "the closure was dropped"
    );
}

#[test]
fn an_asynchronous_run_reports_a_handlers_error() {
    handlers(client());
    let executable = compile(client(), &calling("runtime.fail", ""));
    let done = start(&executable, &[&buffer(client(), &[1.0, 2.0])]);
    match done.recv_timeout(SECONDS).unwrap() {
        Err(Error::Pjrt { code, message }) => {
            assert_eq!(code, ErrorCode::FailedPrecondition);
            assert!(message.contains("refused by the handler"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let error = executable.run_view(vec![owned(&[1.0, 2.0])]).unwrap_err();
    assert!(
        error.to_string().contains("refused by the handler"),
        "{error}"
    );
}

#[test]
fn an_asynchronous_run_reports_inputs_that_are_refused() {
    let executable = compile(client(), ADD);
    let done = start(&executable, &[&buffer(client(), &[1.0, 2.0])]);
    let outcome = done.recv_timeout(SECONDS).unwrap();
    assert_eq!(
        outcome.unwrap_err(),
        Error::InputCount {
            expected: 2,
            found: 1
        }
    );
}

#[test]
fn a_panic_in_the_report_ends_there() {
    struct Noted(Arc<AtomicUsize>);
    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let executable = compile(client(), ADD);
    let a = buffer(client(), &[1.0, 2.0]);
    for inputs in [&[&a, &a][..], &[&a]] {
        let noted = Noted(Arc::clone(&drops));
        let options = ExecuteOptions::default();
        executable.execute_async(&[inputs], &options, move |_| {
            let _noted = noted;
            panic!("in the report");
        });
    }
    for _ in 0..1_000 {
        if drops.load(Ordering::SeqCst) == 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(drops.load(Ordering::SeqCst), 2);
    assert!(start(&executable, &[&a, &a])
        .recv_timeout(SECONDS)
        .unwrap()
        .is_ok());
}

#[test]
fn the_last_of_a_client_may_go_in_the_report() {
    for round in 0..20 {
        let client = Client::new(cpu_plugin(), &[]).unwrap();
        handlers(&client);
        let executable = compile(&client, &calling("runtime.sleep", "milliseconds = 5 : i64"));
        let a = buffer(&client, &[1.0, round as f32]);
        let (sender, receiver) = mpsc::channel();
        let options = ExecuteOptions::default();
        let theirs = (client.clone(), executable.clone());
        executable.execute_async(&[&[&a]], &options, move |outcome| {
            let bytes = outcome.and_then(|outputs| outputs[0][0].to_host());
            drop(theirs);
            let _ = sender.send(bytes);
        });
        drop((a, executable, client));
        let bytes = receiver.recv_timeout(SECONDS).unwrap();
        assert_eq!(bytes, Ok(floats(&[1.0, round as f32])));
    }
}

/// Many bytes that plugins copy on a thread of their own, so that what uses them waits.
const MANY: usize = 16_000_000;

fn late(client: &Client) -> Buffer {
    let input = OwnedInput {
        data: HostData::new(vec![0; 4 * MANY + 1]).tail(),
        element_type: ElementType::F32,
        dimensions: &[MANY as i64],
    };
    Buffer::from_host_zero_copy(client, 0, input).unwrap()
}

impl HostData {
    /// All bytes but the first or, where that would be at a place for zero copies, the last.
    fn tail(self) -> Self {
        let bytes = self.as_slice();
        let offset = usize::from(bytes[1..].as_ptr().align_offset(ZERO_COPY_ALIGNMENT) != 0);
        let first = std::ptr::NonNull::from(&bytes[offset]);
        let len = bytes.len() - 1;
        // SAFETY: within the bytes, which are kept.
        unsafe { Self::from_raw_parts(first, len, Arc::new(self)) }
    }
}

#[test]
fn a_run_that_waits_for_its_inputs_reports_later() {
    handlers(client());
    let many = |program: &str| compile(client(), &program.replace("2xf32", &format!("{MANY}xf32")));
    let (add, fail) = (many(ADD), many(&calling("runtime.fail", "")));
    let input = late(client());
    let done = start(&add, &[&input, &input]);
    drop(input);
    let outputs = done.recv_timeout(SECONDS).unwrap().unwrap();
    assert_eq!(
        outputs[0][0].to_host_view().unwrap().unwrap().len(),
        4 * MANY
    );
    let done = start(&fail, &[&late(client())]);
    let error = done.recv_timeout(SECONDS).unwrap().unwrap_err();
    assert!(
        error.to_string().contains("refused by the handler"),
        "{error}"
    );
}

#[test]
fn a_client_may_end_while_a_run_waits_for_its_inputs() {
    let client = Client::new(cpu_plugin(), &[]).unwrap();
    let executable = compile(&client, &ADD.replace("2xf32", &format!("{MANY}xf32")));
    let input = late(&client);
    let (sender, receiver) = mpsc::channel();
    let options = ExecuteOptions::default();
    let theirs = (client.clone(), executable.clone(), input.clone());
    executable.execute_async(&[&[&input, &input]], &options, move |outcome| {
        drop(theirs);
        let _ = sender.send(outcome.map(|outputs| outputs.len()));
    });
    drop((input, executable, client));
    assert_eq!(receiver.recv_timeout(SECONDS).unwrap(), Ok(1));
}

#[test]
fn the_last_of_a_client_may_go_with_a_view() {
    let client = Client::new(cpu_plugin(), &[]).unwrap();
    let executable = compile(&client, ADD);
    let views = executable
        .run_view(vec![owned(&[1.0, 2.0]), owned(&[3.0, 4.0])])
        .unwrap();
    drop((executable, client));
    assert_eq!(&views[0][..], floats(&[4.0, 6.0]));
    assert!(views[0].buffer().is_some());
    std::thread::spawn(move || drop(views)).join().unwrap();
}

#[test]
fn a_buffer_outlives_what_made_it() {
    let client = Client::new(cpu_plugin(), &[]).unwrap();
    let executable = compile(&client, ADD);
    let a = buffer(&client, &[1.0, 2.0]);
    let mut outputs = executable.execute(&[&[&a, &a]]).unwrap();
    drop((a, executable, client));
    let output = outputs.remove(0).remove(0);
    assert_eq!(output.to_host(), Ok(floats(&[2.0, 4.0])));
    assert_eq!(
        output.to_device(1).unwrap().to_host(),
        Ok(floats(&[2.0, 4.0]))
    );
}

#[test]
fn results_that_cannot_be_viewed_are_copied() {
    let executable = compile(
        client(),
        "func.func @main(%a: tensor<2x3xf32>)
             -> (tensor<2x3xf32> {mhlo.layout_mode = \"{0,1}\"}, tensor<2xi4>, !stablehlo.token, tensor<2x3xf32>) {
           %0 = stablehlo.negate %a : tensor<2x3xf32>
           %1 = stablehlo.constant dense<[1, -2]> : tensor<2xi4>
           %2 = stablehlo.create_token : !stablehlo.token
           return %0, %1, %2, %0 : tensor<2x3xf32>, tensor<2xi4>, !stablehlo.token, tensor<2x3xf32>
         }",
    );
    let data = OwnedInput {
        data: HostData::new(floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])),
        element_type: ElementType::F32,
        dimensions: &[2, 3],
    };
    let views = executable.run_view(vec![data]).unwrap();
    let negated = floats(&[-0.0, -1.0, -2.0, -3.0, -4.0, -5.0]);
    assert_eq!(&views[0][..], negated);
    assert_eq!(&views[1][..], [1, 0xfe]);
    assert_eq!(&views[2][..], []);
    assert_eq!(&views[3][..], negated);
    let copied: Vec<bool> = views.iter().map(|view| view.buffer().is_none()).collect();
    assert_eq!(copied, [true, true, true, false]);
}

#[test]
fn inputs_that_do_not_fit_are_refused_on_the_fast_path_too() {
    let executable = compile(client(), ADD);
    let message = |inputs| executable.run_view(inputs).unwrap_err().to_string();
    assert_eq!(
        message(vec![owned(&[1.0, 2.0])]),
        "the executable takes 2 inputs, 1 were given"
    );
    assert_eq!(
        message(vec![owned(&[1.0, 2.0]), owned(&[1.0])]),
        "input 1: f32[2] takes 8 bytes, 4 were given"
    );
    let mut integers = owned(&[1.0, 2.0]);
    integers.element_type = ElementType::S32;
    assert_eq!(
        message(vec![integers, owned(&[1.0, 2.0])]),
        "input 0: the executable takes f32[2], s32[2] was given"
    );
}

const DONATING: &str = "
    func.func @main(%arg0: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.add %arg0, %arg1 : tensor<2xf32>
      return %0 : tensor<2xf32>
    }";

#[test]
fn a_donated_buffer_can_be_used_no_more() {
    let executable = compile(client(), DONATING);
    let (a, b) = (
        buffer(client(), &[1.0, 2.0]),
        buffer(client(), &[10.0, 20.0]),
    );
    let options = ExecuteOptions {
        donate: vec![0],
        ..Default::default()
    };
    let outputs = executable.execute_with(&[&[&a, &b]], &options).unwrap();
    assert_eq!(outputs[0][0].to_host(), Ok(floats(&[11.0, 22.0])));
    assert!(a.is_donated() && !b.is_donated());
    let deleted = Error::Deleted {
        what: "buffer",
        donated: true,
    };
    assert_eq!(a.to_host(), Err(deleted.clone()));
    assert_eq!(
        deleted.to_string(),
        "the buffer was donated to an execution and can be used no more"
    );
    let again = executable.execute_with(&[&[&a, &b]], &options);
    assert_eq!(again.map(|_| ()), Err(deleted));
    assert_eq!(b.to_host(), Ok(floats(&[10.0, 20.0])));
}

#[test]
fn an_input_that_no_output_takes_stays_as_it_is() {
    let executable = compile(client(), ADD);
    let (a, b) = (
        buffer(client(), &[1.0, 2.0]),
        buffer(client(), &[10.0, 20.0]),
    );
    let options = ExecuteOptions {
        donate: vec![0, 1],
        ..Default::default()
    };
    executable.execute_with(&[&[&a, &b]], &options).unwrap();
    assert_eq!(
        (a.is_donated(), a.to_host()),
        (false, Ok(floats(&[1.0, 2.0])))
    );
}

#[test]
fn donations_that_make_no_sense_are_refused() {
    let executable = compile(client(), DONATING);
    let a = buffer(client(), &[1.0, 2.0]);
    let donate = |index: usize| {
        let options = ExecuteOptions {
            donate: vec![index],
            ..Default::default()
        };
        let refused = executable.execute_with(&[&[&a, &a]], &options);
        refused.unwrap_err().to_string()
    };
    assert_eq!(donate(2), "input 2 cannot be donated: there are 2 inputs");
    assert_eq!(
        donate(0),
        "input 0 cannot be donated: the same buffer is given as another input too"
    );
    assert_eq!(a.to_host(), Ok(floats(&[1.0, 2.0])));
}

#[test]
fn views_and_the_callers_bytes_survive_a_donation() {
    let executable = compile(client(), DONATING);
    let options = ExecuteOptions {
        donate: vec![0],
        ..Default::default()
    };
    let b = buffer(client(), &[10.0, 20.0]);
    let a = buffer(client(), &[1.0, 2.0]);
    let view = a.to_host_view().unwrap().unwrap();
    // Some plugins refuse, some take a copy.
    let _ = executable.execute_with(&[&[&a, &b]], &options);
    assert_eq!(&view[..], floats(&[1.0, 2.0]));

    let data = HostData::new(floats(&[1.0; 64]));
    let start = data.as_slice().as_ptr().align_offset(ZERO_COPY_ALIGNMENT);
    // SAFETY: within the bytes, which the clone keeps.
    let aligned = unsafe {
        let first = std::ptr::NonNull::from(&data.as_slice()[start]);
        HostData::from_raw_parts(first, 8, Arc::new(data.clone()))
    };
    let theirs = OwnedInput {
        data: aligned,
        element_type: ElementType::F32,
        dimensions: &[2],
    };
    let a = Buffer::from_host_zero_copy(client(), 0, theirs).unwrap();
    let outputs = executable.execute_with(&[&[&a, &b]], &options).unwrap();
    assert_eq!(outputs[0][0].to_host(), Ok(floats(&[11.0, 21.0])));
    assert_eq!(data.as_slice(), floats(&[1.0; 64]));
}

#[test]
fn an_asynchronous_run_takes_donated_buffers() {
    let executable = compile(client(), DONATING);
    let (mut a, b) = (buffer(client(), &[0.0, 0.0]), buffer(client(), &[1.0, 2.0]));
    for _ in 0..100 {
        let (sender, receiver) = mpsc::channel();
        let options = ExecuteOptions {
            donate: vec![0],
            launch_id: 1,
            ..ExecuteOptions::default()
        };
        executable.execute_async(&[&[&a, &b]], &options, move |outcome| {
            let _ = sender.send(outcome);
        });
        assert!(a.is_donated());
        let mut outputs = receiver.recv_timeout(SECONDS).unwrap().unwrap();
        a = outputs.remove(0).remove(0);
    }
    assert_eq!(a.to_host(), Ok(floats(&[100.0, 200.0])));
}

#[test]
fn an_executable_tells_its_costs() {
    let executable = compile(client(), ADD);
    let stats = executable.memory_stats().unwrap();
    assert_eq!((stats.argument_size, stats.output_size), (16, 8));
    assert!(stats.peak_memory.is_none_or(|peak| peak >= 24), "{stats:?}");
    assert!(executable.generated_code_size().is_ok());
    match executable.cost_analysis() {
        Ok(costs) => assert!(costs.iter().any(|(name, _)| name == "flops"), "{costs:?}"),
        Err(Error::Pjrt { code, .. }) => assert_eq!(code, ErrorCode::Unimplemented),
        Err(other) => panic!("{other}"),
    }
    let fingerprint = executable.fingerprint().unwrap();
    assert!(!fingerprint.is_empty());
    assert_eq!(
        compile(client(), ADD).fingerprint(),
        Ok(fingerprint.clone())
    );
    let another = compile(
        client(),
        &ADD.replace("stablehlo.add", "stablehlo.subtract"),
    );
    assert_ne!(another.fingerprint(), Ok(fingerprint));
}

#[test]
fn a_client_lists_its_memories() {
    let memories = client().memories().unwrap();
    let of_first: Vec<_> = memories
        .iter()
        .filter(|memory| memory.devices == [0])
        .collect();
    let default = of_first
        .iter()
        .find(|memory| memory.default_of == [0])
        .unwrap();
    assert_eq!(default.kind, "device");
    assert!(
        of_first.iter().any(|memory| memory.kind == "pinned_host"),
        "{memories:?}"
    );
    assert!(memories
        .iter()
        .all(|memory| !memory.debug_string.is_empty()));
}

#[test]
fn a_plugin_tells_what_it_reads() {
    let (oldest, newest) = cpu_plugin().stablehlo_versions().unwrap();
    assert!(oldest < newest, "{oldest:?} {newest:?}");
    assert!(cpu_plugin().xla_version().is_some());
    let fingerprint = cpu_plugin().fingerprint().unwrap();
    assert_eq!(cpu_plugin().fingerprint(), Ok(fingerprint));
    assert_ne!(fingerprint, [0; 32]);
}

#[test]
fn two_plugins_work_in_one_process() {
    let Some(other) = other_cpu_plugin() else {
        eprintln!("SKIPPED: there is one CPU plugin only");
        return;
    };
    assert!(!std::ptr::eq(other, cpu_plugin()));
    let (first, second) = (Client::new(cpu_plugin(), &[]), Client::new(other, &[]));
    let (first, second) = (first.unwrap(), second.unwrap());
    std::thread::scope(|scope| {
        for client in [&first, &second, &first, &second] {
            scope.spawn(move || {
                handlers(client);
                let executable = compile(client, &calling("runtime.copy", ""));
                for number in 0..50 {
                    let values = [number as f32, 1.0];
                    let views = executable.run_view(vec![owned(&values)]).unwrap();
                    assert_eq!(&views[0][..], floats(&values));
                }
            });
        }
    });
    let executable = compile(&first, ADD);
    let theirs = buffer(&second, &[1.0, 2.0]);
    let ours = buffer(&first, &[1.0, 2.0]);
    assert_eq!(
        executable.execute(&[&[&ours, &theirs]]).unwrap_err(),
        Error::ForeignBuffer { index: 1 }
    );
    assert!(matches!(
        second.deserialize(&executable.serialize().unwrap()),
        Err(Error::Refused(Refusal::Platform { .. }))
    ));
}

#[test]
fn two_clients_of_one_plugin_share_executables_by_bytes_only() {
    let options = [("cpu_device_count".to_owned(), NamedValue::Int64(2))];
    let second = Client::new(cpu_plugin(), &options).unwrap();
    let bytes = compile(client(), ADD).serialize().unwrap();
    let executable = second.deserialize(&bytes).unwrap();
    let (a, b) = (buffer(&second, &[1.0, 2.0]), buffer(client(), &[1.0, 2.0]));
    assert_eq!(
        executable.execute(&[&[&a, &b]]).unwrap_err(),
        Error::ForeignBuffer { index: 1 }
    );
    assert!(executable.execute(&[&[&a, &a]]).is_ok());
}

#[test]
fn threads_run_every_way_at_the_same_time() {
    handlers(client());
    let slow = compile(
        client(),
        &calling("runtime.sleep", "milliseconds = 1 : i64"),
    );
    let add = compile(client(), ADD);
    let donating = compile(client(), DONATING);
    std::thread::scope(|scope| {
        for number in 0..8u8 {
            let (slow, add, donating) = (&slow, &add, &donating);
            scope.spawn(move || {
                let values = [f32::from(number), 1.0];
                let twice = floats(&[2.0 * f32::from(number), 2.0]);
                let (a, data) = (buffer(client(), &values), floats(&values));
                let donate = ExecuteOptions {
                    donate: vec![0],
                    ..Default::default()
                };
                for _ in 0..50 {
                    let done = start(slow, &[&a]);
                    let views = add.run_view(vec![owned(&values), owned(&values)]).unwrap();
                    assert_eq!(&views[0][..], twice);
                    let outputs = add.execute(&[&[&a, &a]]).unwrap();
                    assert_eq!(&outputs[0][0].to_host_view().unwrap().unwrap()[..], twice);
                    let given = buffer(client(), &values);
                    let outputs = donating.execute_with(&[&[&given, &a]], &donate).unwrap();
                    assert_eq!(outputs[0][0].to_host().unwrap(), twice);
                    assert_eq!(
                        add.run(&[input(&data, &[2]); 2]).unwrap(),
                        vec![twice.clone()]
                    );
                    let slow = done.recv_timeout(SECONDS).unwrap().unwrap();
                    assert_eq!(slow[0][0].to_host().unwrap(), data);
                }
            });
        }
    });
}

/// Resident memory in KiB, where Linux tells.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

/// `make soak` runs it, and `make soak-short` with fewer: `SOAK_RUNS` and `SOAK_COMPILATIONS` choose how
/// many.
#[test]
#[ignore = "takes minutes: make soak runs it"]
fn soak_memory_stays_flat() {
    let count = |name: &str, default: usize| {
        let given = std::env::var(name).ok().and_then(|text| text.parse().ok());
        given.unwrap_or(default)
    };
    let (runs, compilations) = (
        count("SOAK_RUNS", 100_000),
        count("SOAK_COMPILATIONS", 2_000),
    );
    handlers(client());
    let round = |runs: usize, compilations: usize| {
        let big = vec![1.0f32; 4096];
        let program = ADD.replace("tensor<2xf32>", "tensor<4096xf32>");
        let executable = compile(client(), &program);
        let fail = compile(client(), &calling("runtime.fail", ""));
        let bytes = floats(&big);
        let b = Buffer::from_host(client(), 0, &input(&bytes, &[4096])).unwrap();
        for index in 0..runs {
            let one = OwnedInput {
                data: HostData::new(bytes.clone()),
                element_type: ElementType::F32,
                dimensions: &[4096],
            };
            drop(executable.run_view(vec![one.clone(), one]).unwrap());
            drop(start(&executable, &[&b, &b]));
            if index % 10 == 0 {
                drop(executable.run(&[input(&bytes, &[4096]); 2]).unwrap());
                assert!(fail.run_view(vec![owned(&[1.0, 2.0])]).is_err());
                drop(start(&fail, &[&b]));
            }
        }
        for index in 0..compilations {
            let constant = format!(
                "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{
                   %0 = stablehlo.constant dense<{index}.0> : tensor<2xf32>
                   %1 = stablehlo.add %a, %0 : tensor<2xf32>
                   return %1 : tensor<2xf32>
                 }}"
            );
            let executable = compile(client(), &constant);
            drop(
                client()
                    .deserialize(&executable.serialize().unwrap())
                    .unwrap(),
            );
            drop(executable.hlo_text().unwrap());
            assert!(client()
                .compile(b"module { func.func }", &CompileOptions::default())
                .is_err());
        }
    };
    round(runs / 10, compilations / 10);
    let before = resident();
    round(runs, 0);
    let between = resident();
    round(0, compilations);
    let after = resident();
    eprintln!("resident KiB: {before} before, {between} after {runs} runs, {after} after {compilations} compilations");
    // Some for the allocator's own ways, none for a leak of a hundred bytes a run.
    assert!(between.saturating_sub(before) < 8 * 1024);
    assert!(after.saturating_sub(between) < 16 * 1024);
}

//! Handlers of several stages, through XLA.

use super::*;
use crate::library::StateType;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst};
use xla_ffi::{Arg, Ret};

static MADE: AtomicUsize = AtomicUsize::new(0);
static ALIVE: AtomicUsize = AtomicUsize::new(0);
static PREPARED: AtomicUsize = AtomicUsize::new(0);
static INITIALIZED: AtomicUsize = AtomicUsize::new(0);

struct Factor(f32);

impl Factor {
    fn parse(text: &str) -> xla_ffi::Result<Self> {
        let factor = text
            .parse()
            .map_err(|error| xla_ffi::Error::invalid_argument(format!("factor: {error}")))?;
        MADE.fetch_add(1, SeqCst);
        ALIVE.fetch_add(1, SeqCst);
        Ok(Self(factor))
    }
}

impl Drop for Factor {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, SeqCst);
    }
}

xla_ffi::export! {
    fn pjrt_test_counted(x: Arg<f32>) -> (y: Ret<f32>)
    attrs { factor: &str }
    state { parsed: Factor = Factor::parse(factor)? }
    {
        y.iter_mut().zip(x.iter()).for_each(|(y, x)| *y = parsed.0 * x);
        Ok(())
    }

    pub(super) fn pjrt_test_scale(x: Arg<f32>) -> (y: Ret<f32>)
    attrs { factor: f32 }
    state { kept: f32 = factor }
    {
        y.iter_mut().zip(x.iter()).for_each(|(y, x)| *y = kept * x);
        Ok(())
    }

    fn pjrt_test_all_stages(x: Arg<f32>) -> (y: Ret<f32>)
    state { number: f32 = 7.0 }
    prepare { assert_eq!(*number, 7.0); PREPARED.fetch_add(1, SeqCst); Ok(()) }
    initialize { assert_eq!(*number, 7.0); INITIALIZED.fetch_add(1, SeqCst); Ok(()) }
    {
        y.iter_mut().zip(x.iter()).for_each(|(y, x)| *y = x + number);
        Ok(())
    }
}

pub(super) fn of<H: xla_ffi::Stages>(origin: &str) -> Stages {
    let handler = |function: xla_ffi::sys::Handler| {
        let address = NonNull::new((function as *mut ()).cast::<c_void>()).unwrap();
        // SAFETY: made by the macro, and part of this program.
        unsafe { Handler::from_function(address, origin) }
    };
    let stages = H::STAGES;
    Stages {
        instantiate: stages.instantiate.map(handler),
        prepare: stages.prepare.map(handler),
        initialize: stages.initialize.map(handler),
        ..Stages::execute(handler(stages.execute))
    }
}

fn register(handlers: &[(&str, Stages)]) -> Result<(), Error> {
    let handlers: Vec<_> = handlers
        .iter()
        .map(|(target, stages)| (target.as_bytes().to_vec(), stages.clone()))
        .collect();
    client().register_handlers(&handlers)
}

pub(super) fn floats(values: [f32; 2]) -> Result<Vec<Vec<u8>>, Error> {
    let bytes = values.iter().flat_map(|value| value.to_ne_bytes());
    Ok(vec![bytes.collect()])
}

#[test]
fn a_state_is_made_once_per_executable_and_dropped_with_it() {
    let counted = [("test.counted", of::<pjrt_test_counted>("counted"))];
    register(&counted).unwrap();
    register(&counted).unwrap();

    let triple = compile_with("test.counted", "factor = \"3\"").unwrap();
    let halve = compile_with("test.counted", "factor = \"0.5\"").unwrap();
    for _ in 0..5 {
        assert_eq!(run(&triple), floats([4.5, -12.0]));
        assert_eq!(run(&halve), floats([0.75, -2.0]));
    }
    assert_eq!((MADE.load(SeqCst), ALIVE.load(SeqCst)), (2, 2));
    drop(triple);
    assert_eq!((MADE.load(SeqCst), ALIVE.load(SeqCst)), (2, 1));
    assert_eq!(run(&halve), floats([0.75, -2.0]));
    drop(halve);
    assert_eq!((MADE.load(SeqCst), ALIVE.load(SeqCst)), (2, 0));

    let error = compile_with("test.counted", "factor = \"much\"").unwrap_err();
    assert!(
        error.to_string().contains("factor: invalid float literal"),
        "{error}"
    );
    assert_eq!((MADE.load(SeqCst), ALIVE.load(SeqCst)), (2, 0));
}

#[test]
fn executions_share_a_state() {
    register(&[("test.shared", of::<pjrt_test_scale>("scale"))]).unwrap();
    let executable = compile_with("test.shared", "factor = 2.0 : f32").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(run(&executable), floats([3.0, -8.0]));
                }
            });
        }
    });
}

#[test]
fn all_stages_are_taken() {
    register(&[("test.stages", of::<pjrt_test_all_stages>("stages"))]).unwrap();
    let executable = compile("test.stages").unwrap();
    for _ in 0..2 {
        assert_eq!(run(&executable), floats([8.5, 3.0]));
    }
    // PJRT 0.106 and 0.115 do not call them on the CPU; a later one may.
    let (prepared, initialized) = (PREPARED.load(SeqCst), INITIALIZED.load(SeqCst));
    assert!([0, 2].contains(&prepared) && [0, 2].contains(&initialized));
}

#[test]
fn a_state_without_its_stage_is_missed() {
    let plain = of::<pjrt_test_scale>("scale").execute;
    register(&[("test.stateless", Stages::execute(plain))]).unwrap();
    let executable = compile_with("test.stateless", "factor = 3.0 : f32").unwrap();
    let error = run(&executable).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("its instantiate stage has to be registered with it"),
        "{error}"
    );
}

#[test]
fn a_bad_handler_keeps_the_others_out() {
    let good = of::<pjrt_test_scale>("scale");
    let bad = Stages {
        prepare: Some(handler(silent, "silent")),
        ..good.clone()
    };
    let error = register(&[("test.good", good.clone()), ("test.bad", bad)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "handler for target \"test.bad\" rejected: silent did not answer XLA's metadata request, \
         so it is no XLA FFI handler"
    );
    let other = Stages::execute(handler(double, "double"));
    let error = register(&[("test.good", good.clone()), ("test.good", other)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "target \"test.good\" already has a handler on platform Host, scale, and cannot have \
         double: a process keeps the first one, choose another target name"
    );
    let error = compile_with("test.good", "factor = 3.0 : f32").unwrap_err();
    assert!(error.to_string().contains("test.good"), "{error}");
    register(&[("test.good", good)]).unwrap();
    assert!(compile_with("test.good", "factor = 3.0 : f32").is_ok());
}

#[test]
fn a_conflict_of_stages_says_which() {
    let all = of::<pjrt_test_all_stages>("all");
    let plain = Stages::execute(all.execute.clone());
    register(&[("test.partly", all.clone())]).unwrap();
    let error = register(&[("test.partly", plain)]).unwrap_err();
    assert!(
        error.to_string().starts_with(
            "target \"test.partly\" already has a handler on platform Host, all for the stages \
             instantiate, prepare, initialize, execute, and cannot have all for the stages execute:"
        ),
        "{error}"
    );
    let error = register(&[("test.partly", Stages { traits: 1, ..all })]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains(", all with traits 0, and cannot have all with traits 1:"),
        "{error}"
    );
}

/// `XLA_FFI_TypeInfo`.
#[repr(C)]
struct TypeInfo {
    struct_size: usize,
    extension_start: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the one pointer in it is null.
unsafe impl Sync for TypeInfo {}

unsafe extern "C" fn delete(_: *mut c_void) {}

#[test]
fn the_type_of_a_state_is_registered_for_the_handler() {
    static ID: AtomicI64 = AtomicI64::new(0);
    static OTHER: AtomicI64 = AtomicI64::new(0);
    static INFO: TypeInfo = TypeInfo {
        struct_size: 24,
        extension_start: null_mut(),
        deleter: Some(delete),
    };
    let typed = |id: &'static AtomicI64| {
        let info = std::ptr::from_ref(&INFO).cast();
        Stages {
            state: Some(StateType::of_statics("test.Type", id, info).unwrap()),
            ..of::<pjrt_test_scale>("scale")
        }
    };
    register(&[("test.typed", typed(&ID))]).unwrap();
    assert_eq!(ID.load(SeqCst), ID.as_ptr().addr() as i64);
    register(&[("test.typed.too", typed(&ID))]).unwrap();

    let error = register(&[("test.typed.other", typed(&OTHER))]).unwrap_err();
    assert!(
        error.to_string().starts_with(
            "handler for target \"test.typed.other\" rejected: the type of its state: "
        ) && error.to_string().contains("test.Type"),
        "{error}"
    );
}

//! Handlers of several stages, and the table of a library.

use super::*;
use crate::testing::Executable;
use std::cell::Cell;

thread_local! {
    // A test each: others make states at the same time.
    static MADE: Cell<i64> = const { Cell::new(0) };
    static DROPPED: Cell<i64> = const { Cell::new(0) };
}

static LOG: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

struct Counted(Vec<i64>);

impl Counted {
    fn parse(text: &str) -> Result<Self> {
        let numbers = text.split(' ').map(str::parse).collect::<Result<_, _>>();
        let numbers = numbers.map_err(|error| Error::invalid_argument(format!("{error}")))?;
        MADE.set(MADE.get() + 1);
        Ok(Self(numbers))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        DROPPED.set(DROPPED.get() + 1);
    }
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

export! {
    fn unit_counted() -> (sum: Ret<i64>)
    attrs { numbers: &str }
    state { counted: Counted = Counted::parse(numbers)? }
    {
        sum.fill(counted.0.iter().sum());
        Ok(())
    }

    /// All parts, with attributes of every kind of list.
    fn unit_stages(x: Arg<i64>) -> (y: Ret<i64>)
    attrs { name: &str, ..all }
    state { length: usize = { log(format!("instantiate {name} of {}", all.len())); name.len() } }
    prepare { log(format!("prepare {name} {length}")); Ok(()) }
    initialize { log(format!("initialize {} {length}", all.len())); Ok(()) }
    {
        log(format!("execute {name} {length}"));
        y.copy_from_slice(&x);
        Ok(())
    }

    fn unit_without_state() -> ()
    attrs { fail: bool }
    prepare {
        match fail { true => Err(Error::internal("not prepared")), false => Ok(()) }
    }
    {
        assert!(!fail);
        Ok(())
    }

    fn unit_bomb() -> () state { _bomb: Bomb = Bomb } { Ok(()) }

    fn unit_fuse() -> () state { _fuse: () = panic!("made") } { Ok(()) }
}

fn log(line: String) {
    LOG.lock().unwrap().push(line);
}

#[test]
fn a_state_is_made_once_and_dropped_once() {
    let mut frame = Frame::new()
        .result::<i64>(&[])
        .attribute("numbers", "1 2 3");
    let executable = Executable::<unit_counted>::new(&frame).unwrap();
    for _ in 0..3 {
        executable.run(&mut frame).unwrap();
        assert_eq!(frame.values::<i64>(0), [6]);
    }
    assert_eq!((MADE.get(), DROPPED.get()), (1, 0));
    assert_eq!(format!("{executable:?}"), "Executable { has_state: true }");
    drop(executable);
    assert_eq!((MADE.get(), DROPPED.get()), (1, 1));

    let error = |numbers: &str| {
        let frame = Frame::new().attribute("numbers", numbers);
        Executable::<unit_counted>::new(&frame)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(error("1 x"), "invalid digit found in string");
    let frame = Frame::new().attribute("number", "1");
    assert_eq!(
        Executable::<unit_counted>::new(&frame)
            .unwrap_err()
            .to_string(),
        "attribute \"number\": unexpected, the handler takes \"numbers\""
    );
    assert_eq!((MADE.get(), DROPPED.get()), (1, 1));
}

#[test]
fn stages_run_in_their_order() {
    let mut frame = Frame::new()
        .operand(&[1], &[7i64])
        .result::<i64>(&[1])
        .attribute("name", "abc")
        .attribute("other", 1i64);
    let executable = Executable::<unit_stages>::new(&frame).unwrap();
    executable.run(&mut frame).unwrap();
    assert_eq!(frame.values::<i64>(0), [7]);
    assert_eq!(
        *LOG.lock().unwrap(),
        [
            "instantiate abc of 2",
            "prepare abc 3",
            "initialize 2 3",
            "execute abc 3"
        ]
    );
}

#[test]
fn a_stage_can_fail() {
    let mut frame = Frame::new().attribute("fail", true);
    let executable = Executable::<unit_without_state>::new(&frame).unwrap();
    assert_eq!(
        executable.run(&mut frame).unwrap_err().to_string(),
        "not prepared"
    );
    let mut frame = Frame::new().attribute("fail", false);
    executable.run(&mut frame).unwrap();
}

#[test]
fn panics_stay_inside() {
    let error = Executable::<unit_fuse>::new(&Frame::new()).unwrap_err();
    assert_eq!(error.to_string(), "the handler panicked: made");
    drop(Executable::<unit_bomb>::new(&Frame::new()).unwrap());
}

#[test]
fn a_state_that_nobody_made() {
    let mut frame = Frame::new()
        .result::<i64>(&[])
        .attribute("numbers", "1 2 3");
    assert_eq!(
        call(&mut frame, unit_counted).unwrap_err().to_string(),
        "XLA says: State is not set; the handler has a state, so its instantiate stage has to be registered with it"
    );
}

/// The bodies of this module's handlers as XLA of another version would call them.
fn with_version(minor: c_int, alter: fn(&mut sys::Api)) -> Result<()> {
    let mut older = api();
    older.version.minor = minor;
    alter(&mut older);
    let mut frame = Frame::new().attribute("numbers", "1");
    let handler = unit_counted::STAGES.instantiate.unwrap();
    // SAFETY: made by the macro; the table outlives the call.
    unsafe {
        frame.call_altered(handler, |raw| {
            raw.stage = sys::STAGE_INSTANTIATE;
            raw.api = &older;
        })
    }
}

#[test]
fn versions_without_states() {
    assert_eq!(
        with_version(1, |_| ()).unwrap_err().to_string(),
        "the handler has a state, and this XLA has FFI 0.1: it takes XLA FFI 0.2 or later"
    );
    assert_eq!(
        with_version(4, |api| api.struct_size = 80)
            .unwrap_err()
            .to_string(),
        "the handler has a state, and this XLA has no functions for states: it takes XLA FFI 0.2 or later"
    );
    assert_eq!(
        with_version(4, |api| api.type_register = None)
            .unwrap_err()
            .to_string(),
        "the handler has a state, and this XLA has no way of registering types: it takes XLA FFI 0.2 or later"
    );
}

#[test]
fn each_version_gets_its_layout() {
    unsafe extern "C" fn small(args: *mut std::ffi::c_void) -> *mut sys::Error {
        // SAFETY: both layouts begin with their size, and the state is the handler's, which is given away.
        unsafe {
            assert_eq!(*args.cast::<usize>(), 40);
            drop(Box::from_raw(
                (*args.cast::<sys::OldStateArgs>()).state.cast::<Counted>(),
            ));
        }
        ptr::null_mut()
    }
    unsafe extern "C" fn large(args: *mut std::ffi::c_void) -> *mut sys::Error {
        // SAFETY: as above, and this one has the stage.
        let args = unsafe { *args.cast::<sys::StateArgs>() };
        assert_eq!((args.struct_size, args.stage), (48, 0));
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(args.state.cast::<Counted>()) });
        ptr::null_mut()
    }
    with_version(2, |api| api.state_set = Some(small)).unwrap();
    with_version(3, |api| api.state_set = Some(large)).unwrap();
}

#[test]
fn the_metadata_name_the_state() {
    let handler = unit_stages::STAGES.instantiate.unwrap();
    // SAFETY: made by the macro.
    let metadata = unsafe { crate::testing::metadata(handler) }.unwrap();
    assert!(metadata.state_type_id.id > 1 << 20, "{metadata:?}");
    // SAFETY: made by the macro.
    let metadata = unsafe { crate::testing::metadata(unit_stages) }.unwrap();
    assert_eq!(metadata.state_type_id.id, 0);
}

crate::library! {
    "unit.two" => super::unit_two,
    "unit.stages" => unit_stages,
}

#[test]
fn a_library_has_a_table() {
    // SAFETY: the layout is checked where it is defined.
    let head: [usize; 5] = unsafe { mem::transmute_copy(&exla_custom_call_library) };
    assert_eq!(head[..4], [40, 1, 80, 2]);
    // SAFETY: the table has two entries of ten words, all of them initialised.
    let words = unsafe { std::slice::from_raw_parts(head[4] as *const [usize; 10], 2) };
    let text = |words: &[usize]| {
        // SAFETY: a name, as the table states it.
        unsafe { std::str::from_utf8(std::slice::from_raw_parts(words[0] as *const u8, words[1])) }
    };
    assert_eq!(text(&words[0]).unwrap(), "unit.two");
    assert_eq!(text(&words[0][2..]).unwrap(), "Host");
    assert_eq!(words[0][4..7], [0; 3]);
    assert_eq!(words[0][7], unit_two as sys::Handler as usize);
    assert_eq!(words[0][8..], [0; 2]);
    assert_eq!(text(&words[1]).unwrap(), "unit.stages");
    assert!(words[1][4..8].iter().all(|address| *address != 0));
}

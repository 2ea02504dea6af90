//! Handlers made by the macro, called with frames as XLA would pass them and with broken ones.

use crate::testing::{api, api_version, take_error, Frame, Value};
use crate::*;
use std::ffi::c_int;
use std::{mem, ptr};

mod stages;

export! {
    /// All the kinds of parameters there are.
    fn unit_everything(a: Arg<f32>, b: AnyArg, c: Option<Arg<i32>>, rest: Vec<AnyArg>)
        -> (y: Ret<f32>, more: Option<AnyRet>)
    attrs { factor: f32, shift: Option<f32>, }
    {
        let shift = shift.unwrap_or(c.map_or(0.0, |c| c.iter().sum::<i32>() as f32));
        let extra = (b.len() + rest.len()) as f32;
        for (y, a) in y.iter_mut().zip(a.iter()) {
            *y = factor * a + shift + extra;
        }
        if let Some(mut more) = more {
            more.as_bytes_mut()?.fill(7);
        }
        Ok(())
    }

    fn unit_two(a: Arg<f32>, b: Arg<f32>) -> () {
        assert_eq!(a.dims(), b.dims());
        Ok(())
    }

    fn unit_panic() -> () attrs { formatted: bool } {
        if formatted { panic!("boom {}", 1) } else { std::panic::panic_any(7) }
    }

    fn unit_attributes() -> () attrs { flag: bool, text: &str, raw: Bytes, list: &[i64], nested: Attrs, r#type: i8, ..all } {
        assert!(flag);
        assert_eq!(text, "h\u{e9}");
        assert_eq!(*raw, [0xff, 0]);
        assert_eq!(list, [1, -2]);
        assert_eq!(nested.get::<Attrs>("deeper")?.get::<f64>("x")?, 0.25);
        assert_eq!(r#type, 3);
        assert_eq!(all.len(), 6);
        Err(Error::new(Code::Unavailable, all.to_string()))
    }

    fn unit_ignores() -> () attrs { a: i32, .. } {
        assert_eq!(a, 1);
        Ok(())
    }

    fn unit_in_place(x: AliasedArg<f32>, other: AnyArg) -> (y: Ret<f32>) {
        y.copy_from(&x)?;
        y.iter_mut().for_each(|y| *y *= 2.0);
        other.as_bytes().map(|_| ())
    }

    fn unit_sum(xs: Vec<Arg<f32>>) -> (y: Ret<f32>) {
        for x in xs {
            y.iter_mut().zip(x.iter()).for_each(|(y, x)| *y += x);
        }
        Ok(())
    }

    fn unit_any() -> (y: AnyRet) {
        let pairs = y.as_mut_slice::<[f32; 2]>()?;
        pairs.fill([1.0, -1.0]);
        Ok(())
    }
}

fn call(frame: &mut Frame, handler: sys::Handler) -> Result<()> {
    // SAFETY: all handlers here are made by the macro.
    unsafe { frame.call(handler) }
}

fn altered(
    frame: &mut Frame,
    handler: sys::Handler,
    alter: impl FnOnce(&mut sys::CallFrame),
) -> String {
    // SAFETY: as above; the changes in the tests are such that the handler does not follow dangling pointers.
    unsafe { frame.call_altered(handler, alter) }
        .unwrap_err()
        .to_string()
}

fn message(mut frame: Frame, handler: sys::Handler) -> String {
    call(&mut frame, handler).unwrap_err().to_string()
}

fn two() -> Frame {
    Frame::new()
        .operand(&[2], &[1f32, 2.0])
        .operand(&[2], &[3f32, 4.0])
}

#[test]
fn typed_access() {
    let frame = two().result::<f32>(&[2]).attribute("factor", 10f32);
    let mut plain = frame.clone();
    call(&mut plain, unit_everything).unwrap();
    assert_eq!(plain.values::<f32>(0), [12.0, 22.0]);

    let mut full = frame
        .operand(&[], &[5i32])
        .operand(&[3], &[0u8; 3])
        .result::<f64>(&[1, 1]);
    call(&mut full, unit_everything).unwrap();
    assert_eq!(full.values::<f32>(0), [18.0, 28.0]);
    assert_eq!(full.values::<f64>(1), [f64::from_ne_bytes([7; 8])]);

    let mut complex = Frame::new().result::<[f32; 2]>(&[2]);
    call(&mut complex, unit_any).unwrap();
    assert_eq!(complex.values::<[f32; 2]>(0), [[1.0, -1.0]; 2]);
    assert_eq!(
        message(Frame::new().result::<f64>(&[2]), unit_any),
        "result 0 (y): expected c64, found f64"
    );
}

#[test]
fn wrong_types() {
    let frame = Frame::new()
        .operand(&[2], &[1f32, 2.0])
        .operand(&[2], &[3f64, 4.0]);
    assert_eq!(
        message(frame, unit_two),
        "operand 1 (b): expected f32, found f64"
    );
    let frame = two()
        .operand(&[], &[1u32])
        .result::<f32>(&[2])
        .attribute("factor", 1f32);
    assert_eq!(
        message(frame, unit_everything),
        "operand 2 (c): expected s32, found u32"
    );
    let frame = two().result::<half::bf16>(&[2]).attribute("factor", 1f32);
    assert_eq!(
        message(frame, unit_everything),
        "result 0 (y): expected f32, found bf16"
    );
}

#[test]
fn wrong_counts() {
    let one = || Frame::new().operand(&[], &[1f32]);
    assert_eq!(message(one(), unit_two), "expected 2 operands, found 1");
    assert_eq!(
        message(two().operand(&[], &[1f32]), unit_two),
        "expected 2 operands, found 3"
    );
    assert_eq!(
        message(two().result::<f32>(&[]), unit_two),
        "expected no results, found 1"
    );
    assert_eq!(
        message(one(), unit_everything),
        "expected at least 2 operands, found 1"
    );
    assert_eq!(
        message(two(), unit_everything),
        "expected 1 to 2 results, found 0"
    );
}

#[test]
fn wrong_attributes() {
    let frame = || two().result::<f32>(&[2]);
    assert_eq!(
        message(frame(), unit_everything),
        "attribute \"factor\": missing, expected f32"
    );
    let wrong = |value: Value| message(frame().attribute("factor", value), unit_everything);
    assert_eq!(
        wrong(1f64.into()),
        "attribute \"factor\": expected f32, found f64"
    );
    assert_eq!(
        wrong(vec![1f32].into()),
        "attribute \"factor\": expected f32, found an array of f32"
    );
    assert_eq!(
        wrong("1".into()),
        "attribute \"factor\": expected f32, found a string"
    );
    assert_eq!(
        wrong(Value::dictionary([])),
        "attribute \"factor\": expected f32, found a dictionary"
    );
    let extra = frame().attribute("factor", 1f32).attribute("fcator", 1f32);
    assert_eq!(
        message(extra, unit_everything),
        "attribute \"fcator\": unexpected, the handler takes \"factor\", \"shift\""
    );
    assert_eq!(
        message(two().attribute("x", true), unit_two),
        "attribute \"x\": unexpected, the handler takes none"
    );
    call(
        &mut Frame::new().attribute("a", 1i32).attribute("b", 1i32),
        unit_ignores,
    )
    .unwrap();
}

#[test]
fn every_kind_of_attribute() {
    let nested = Value::dictionary([("deeper", Value::dictionary([("x", 0.25f64.into())]))]);
    let frame = Frame::new()
        .attribute("flag", true)
        .attribute("text", "h\u{e9}")
        .attribute("raw", Value::string([0xff, 0]))
        .attribute("list", vec![1i64, -2])
        .attribute("type", 3i8);
    let mut full = frame.clone().attribute("nested", nested);
    let error = call(&mut full, unit_attributes).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(
        error.message(),
        r#"flag=pred true, list=s64[1,-2], nested={deeper={x=f64 0.25}}, raw="\xff\x00", text="hé", type=s8 3"#
    );

    let wrong = |name: &str, value: Value| {
        let frame = frame.clone().attribute("nested", Value::dictionary([]));
        message(frame.replaced(name, value), unit_attributes)
    };
    assert_eq!(
        wrong("text", Value::string([0xff])),
        "attribute \"text\": expected a UTF-8 string, found a string that is not UTF-8"
    );
    assert_eq!(
        wrong("list", vec![1i32].into()),
        "attribute \"list\": expected an array of s64, found an array of s32"
    );
    assert_eq!(
        wrong("nested", 1i32.into()),
        "attribute \"nested\": expected a dictionary, found s32"
    );
    assert_eq!(
        wrong("flag", 1i8.into()),
        "attribute \"flag\": expected pred, found s8"
    );
}

#[test]
fn a_panic_is_an_error() {
    let error = call(&mut Frame::new().attribute("formatted", true), unit_panic).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert_eq!(error.message(), "the handler panicked: boom 1");
    let error = call(&mut Frame::new().attribute("formatted", false), unit_panic).unwrap_err();
    assert_eq!(
        error.message(),
        "the handler panicked: with a value that is not text"
    );
}

#[test]
fn a_message_survives_its_nul() {
    let frame = Frame::new().operand(&[], &[0f32]).attribute("a\0b", 1f32);
    assert_eq!(
        message(frame.operand(&[], &[0f32]), unit_two),
        "attribute \"a\\0b\": unexpected, the handler takes none"
    );
}

#[test]
fn types_without_a_name_or_a_known_size() {
    let unknown = DataType::Unknown(1000);
    let frame = Frame::new()
        .operand(&[], &[1f32])
        .operand_of(unknown, &[2], &[0; 2]);
    let mut ok = frame.clone().result::<f32>(&[]).attribute("factor", 1f32);
    call(&mut ok, unit_everything).unwrap();
    assert_eq!(ok.values::<f32>(0), [3.0]);
    assert_eq!(
        message(frame, unit_two),
        "operand 1 (b): expected f32, found type #1000"
    );
    let frame = Frame::new()
        .operand(&[1], &[1f32])
        .operand_of(DataType::S4, &[2], &[0; 2])
        .result::<f32>(&[1]);
    assert_eq!(
        message(frame, unit_in_place),
        "operand 1 (other): how elements of s4 lie in memory is not known"
    );
}

#[test]
fn no_elements_need_no_memory() {
    let mut frame = Frame::new()
        .operand::<f32>(&[0, 3], &[])
        .operand::<f32>(&[0, 3], &[]);
    let clear = |raw: &mut sys::CallFrame| {
        for index in 0..2 {
            // SAFETY: the frame has two operands.
            unsafe {
                (**raw.operands.items.add(index).cast::<*mut sys::Buffer>()).data = ptr::null_mut()
            };
        }
    };
    // SAFETY: null is a pointer to no elements.
    unsafe { frame.call_altered(unit_two, clear) }.unwrap();
    assert_eq!(
        altered(&mut two(), unit_two, clear),
        "operand 0 (a): no memory behind its 2 elements"
    );
}

#[test]
fn memory_that_is_not_aligned() {
    let shift = |raw: &mut sys::CallFrame| {
        // SAFETY: the frame has operands.
        let buffer = unsafe { &mut **raw.operands.items.cast::<*mut sys::Buffer>() };
        buffer.data = buffer.data.wrapping_byte_add(1);
    };
    assert_eq!(
        altered(&mut two(), unit_two, shift),
        "operand 0 (a): memory not aligned to 4 bytes"
    );
}

#[test]
fn memory_that_operand_and_result_share() {
    let frame = two().aliased_result(0);
    let mut in_place = frame.clone();
    call(&mut in_place, unit_in_place).unwrap();
    assert_eq!(in_place.values::<f32>(0), [2.0, 4.0]);

    let mut apart = two().result::<f32>(&[2]);
    call(&mut apart, unit_in_place).unwrap();
    assert_eq!(apart.values::<f32>(0), [2.0, 4.0]);

    let error = call(
        &mut frame.clone().attribute("factor", 1f32),
        unit_everything,
    )
    .unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert_eq!(
        error.message(),
        "operand 0 (a): shares its memory with result 0, but the handler needs them apart; \
         drop output_operand_aliases, or take the operand as AliasedArg"
    );
    assert!(
        message(two().aliased_result(1), unit_in_place).starts_with("operand 1 (other): shares")
    );
    assert_eq!(
        message(frame.aliased_result(0), unit_in_place),
        "results 0 and 1 share memory"
    );
}

#[test]
fn memory_that_operand_and_result_share_in_part() {
    let mut frame = Frame::new()
        .operand(&[3], &[1f32, 2.0, 3.0])
        .operand(&[], &[0f32])
        .aliased_result(0);
    let shift = |raw: &mut sys::CallFrame| {
        // SAFETY: the frame has an operand and a result, and each has one dimension.
        unsafe {
            let operand = *raw.operands.items.cast::<*mut sys::Buffer>();
            let result = *raw.results.items.cast::<*mut sys::Buffer>();
            *(*operand).dims = 2;
            *(*result).dims = 2;
            (*result).data = (*result).data.wrapping_byte_add(4);
        }
    };
    let error = altered(&mut frame, unit_in_place, shift);
    assert_eq!(
        error,
        "operand 0 (x): shares its memory with another result, or with a part of this one"
    );
}

#[test]
fn operands_can_share_memory() {
    let mut frame = two().result::<f32>(&[2]);
    let same = |raw: &mut sys::CallFrame| {
        // SAFETY: the frame has two operands.
        unsafe { *raw.operands.items.add(1) = *raw.operands.items };
    };
    // SAFETY: both operands are the first one.
    unsafe { frame.call_altered(unit_sum, same) }.unwrap();
    assert_eq!(frame.values::<f32>(0), [2.0, 4.0]);
}

#[test]
fn many_operands() {
    let mut frame = (0..200).fold(Frame::new(), |frame, _| frame.operand(&[2], &[1f32, 0.5]));
    frame = frame.result::<f32>(&[2]);
    call(&mut frame, unit_sum).unwrap();
    assert_eq!(frame.values::<f32>(0), [200.0, 100.0]);
}

#[test]
fn other_stages() {
    for stage in [0, 1, 2, 4, 77, -1] {
        let error = altered(&mut two(), unit_two, |raw| raw.stage = stage);
        assert!(error.starts_with("called to "), "{error}");
        assert!(
            error.ends_with(", but registered with a handler that can execute only"),
            "{error}"
        );
    }
}

#[test]
fn broken_frames() {
    assert_eq!(
        altered(&mut two(), unit_two, |raw| raw.struct_size = 160),
        "the call frame has 160 bytes only"
    );
    assert_eq!(
        altered(&mut two(), unit_two, |raw| raw.operands.struct_size = 32),
        "the description of operands has 32 bytes only"
    );
    assert_eq!(
        altered(&mut two(), unit_two, |raw| raw.attributes.len = -1),
        "-1 attributes without that many values"
    );
    assert_eq!(
        altered(&mut two(), unit_two, |raw| raw.operands.items =
            ptr::null_mut()),
        "2 operands without that many buffers"
    );
    let buffer = |change: fn(&mut sys::Buffer)| {
        altered(&mut two(), unit_two, |raw| {
            // SAFETY: the frame has operands.
            change(unsafe { &mut **raw.operands.items.cast::<*mut sys::Buffer>() })
        })
    };
    assert_eq!(
        buffer(|buffer| buffer.rank = -1),
        "operand 0: rank -1 without that many dimensions"
    );
    assert_eq!(
        buffer(|buffer| buffer.dims = ptr::null_mut()),
        "operand 0: rank 1 without that many dimensions"
    );
    let dimension = |dim: i64| {
        altered(&mut two(), unit_two, |raw| {
            // SAFETY: the frame has operands, each with one dimension.
            unsafe { *(**raw.operands.items.cast::<*mut sys::Buffer>()).dims = dim }
        })
    };
    assert_eq!(dimension(-2), "operand 0: negative dimension -2");
    assert_eq!(
        dimension(i64::MAX),
        "operand 0: more elements than memory can hold"
    );
    assert_eq!(
        buffer(|buffer| buffer.struct_size = 40),
        "operand 0: the buffer's description has 40 bytes only"
    );
    let kinds = |raw: &mut sys::CallFrame| {
        // SAFETY: the frame has operands.
        unsafe { *raw.operands.kinds = 9 }
    };
    assert_eq!(
        altered(&mut two(), unit_two, kinds),
        "operand 0: of unknown kind 9"
    );
}

/// A metadata request with structs of the given sizes: the answer, and what the tail of the metadata is then.
fn handshake(size: usize, api: *const sys::Api) -> (Result<()>, sys::Metadata) {
    let mut metadata = sys::Metadata {
        struct_size: size,
        api_version: sys::ApiVersion {
            struct_size: 24,
            extensions: ptr::null_mut(),
            major: -1,
            minor: -1,
        },
        traits: 99,
        state_type_id: sys::TypeId { id: 99 },
    };
    let mut extension = sys::MetadataExtension {
        base: sys::Extension {
            struct_size: 32,
            kind: sys::EXTENSION_METADATA,
            next: ptr::null_mut(),
        },
        metadata: &mut metadata,
    };
    let mut other = sys::Extension {
        struct_size: 24,
        kind: 77,
        next: (&raw mut extension).cast(),
    };
    // A request has no operands, so a frame of zeroes is as good as XLA's.
    let mut frame: sys::CallFrame = zeroed_frame();
    frame.struct_size = mem::offset_of!(sys::CallFrame, stage) + size_of::<c_int>();
    frame.extensions = &mut other;
    frame.api = api;
    // SAFETY: the extension and the metadata outlive the call, and errors come from `testing`.
    let outcome = unsafe { take_error(unit_two(&mut frame)) };
    (outcome, metadata)
}

fn zeroed_frame() -> sys::CallFrame {
    // SAFETY: integers and pointers, of which zeroes are values.
    unsafe { mem::zeroed() }
}

#[test]
fn handshake_with_structs_of_any_age() {
    let newest = api();
    let (outcome, metadata) = handshake(48, &newest);
    outcome.unwrap();
    assert_eq!(
        (metadata.api_version.major, metadata.api_version.minor),
        (sys::API_MAJOR, sys::API_MINOR)
    );
    assert_eq!((metadata.traits, metadata.state_type_id.id), (0, 0));

    // What XLA sends today: the newest field is there but not counted.
    let (outcome, metadata) = handshake(36, &newest);
    outcome.unwrap();
    assert_eq!((metadata.traits, metadata.state_type_id.id), (0, 99));

    let mut older = newest;
    older.version.minor = 1;
    assert_eq!(handshake(36, &older).1.api_version.minor, 1);
    older.version.minor = 99;
    assert_eq!(handshake(36, &older).1.api_version.minor, sys::API_MINOR);

    let (outcome, metadata) = handshake(24, &newest);
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "the metadata has 24 bytes only"
    );
    assert_eq!(metadata.api_version.major, -1);

    let (outcome, metadata) = handshake(36, ptr::null());
    outcome.unwrap();
    assert_eq!(metadata.api_version.minor, 1);
}

#[test]
fn testing_can_ask_for_the_version() {
    // SAFETY: made by the macro.
    assert_eq!(unsafe { api_version(unit_two) }.unwrap(), Some((0, 4)));
}

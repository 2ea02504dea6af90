//! Plugins older than the FFI extension's `register_handler`. None is at hand, so they are tables made here, whose
//! functions check their arguments as a plugin does and hand the handlers on to the XLA of the CPU plugin.

use super::stages::{floats, of, pjrt_test_scale};
use super::*;
use crate::api::Api;
use crate::ffi::registrar::GpuArgs;
use pjrt_sys::{PJRT_Api, PJRT_Error_Destroy_Args, PJRT_Error_Message_Args, PJRT_Extension_Base};
use std::path::Path;

const GPU: u32 = 0;
const FFI: u32 = 5;

unsafe extern "C" fn destroy(_: *mut PJRT_Error_Destroy_Args) {}

unsafe extern "C" fn message(args: *mut PJRT_Error_Message_Args) {
    const TEXT: &str = "Unexpected PJRT_Gpu_Register_Custom_Call_Args size";
    // SAFETY: `Api::take_error` passes the arguments of this function.
    unsafe {
        (*args).message = TEXT.as_ptr().cast();
        (*args).message_size = TEXT.len();
    }
}

thread_local! {
    static LAST: Cell<Option<(usize, u32)>> = const { Cell::new(None) };
}

/// A register function that knows arguments of `SIZE` bytes.
unsafe extern "C" fn gpu_register<const SIZE: usize>(args: *mut c_void) -> *mut PJRT_Error {
    let args = args.cast::<GpuArgs>();
    // SAFETY: the struct is as large as its size says, and a plugin reads no more than it knows.
    unsafe {
        if (*args).struct_size < SIZE {
            return NonNull::<PJRT_Error>::dangling().as_ptr();
        }
        assert_eq!((*args).api_version, 1);
        let size = (*args).function_name_size;
        let target = std::slice::from_raw_parts((*args).function_name.cast::<u8>(), size);
        LAST.set(Some((
            (*args).struct_size,
            if SIZE < 68 { 0 } else { (*args).traits },
        )));
        let handler = |address: *mut c_void| {
            NonNull::new(address).map(|address| Handler::from_function(address, "gpu"))
        };
        let stages = if SIZE < 64 {
            Stages::execute(handler((*args).instantiate).unwrap())
        } else {
            Stages {
                instantiate: handler((*args).instantiate),
                prepare: handler((*args).prepare),
                initialize: handler((*args).initialize),
                ..Stages::execute(handler((*args).execute).unwrap())
            }
        };
        let cpu = registrar();
        if target == b"pjrt_runtime.handshake" {
            let _ = cpu.register_ffi("Host", target, stages.execute.address(), 0);
        } else {
            let handshake = cpu.handshake("Host");
            cpu.register(handshake.as_ref(), "Host", target, &stages)
                .unwrap();
        }
    }
    null_mut()
}

/// An extension's table of words after its head.
#[repr(C)]
struct Table {
    base: PJRT_Extension_Base,
    words: [usize; 3],
}

/// A plugin with these extensions: kind, size of the table, and what is in it. It is never freed.
fn plugin(extensions: &[(u32, usize, [usize; 3])]) -> &'static Api {
    let mut next = null_mut();
    for &(kind, struct_size, words) in extensions {
        let base = PJRT_Extension_Base {
            struct_size,
            type_: kind,
            next,
        };
        next = Box::into_raw(Box::new(Table { base, words })).cast();
    }
    let table = Box::leak(Box::new(PJRT_Api {
        struct_size: size_of::<PJRT_Api>(),
        extension_start: next,
        PJRT_Error_Destroy: Some(destroy),
        PJRT_Error_Message: Some(message),
        ..Default::default()
    }));
    // SAFETY: the table is a whole PJRT_Api, and never freed.
    Box::leak(Box::new(unsafe { Api::new(NonNull::from(table)) }.unwrap()))
}

fn gpu(function: RegisterFunction, takes_traits: bool) -> (u32, usize, [usize; 3]) {
    let size = if takes_traits { 33 } else { 32 };
    (GPU, size, [function as usize, takes_traits.into(), 0])
}

/// An FFI extension from before `register_handler`.
const OLD_FFI: (u32, usize, [usize; 3]) = (FFI, 40, [1, 1, 1]);

fn old(extensions: &[(u32, usize, [usize; 3])]) -> Result<Registrar<'static>, Error> {
    Registrar::of(plugin(extensions), 60, Path::new("/opt/plugin.so"))
}

fn register(registrar: &Registrar<'_>, target: &str, stages: Stages) -> Result<(), Error> {
    let handlers = [(target.as_bytes().to_vec(), stages)];
    crate::ffi::register(registrar, &Mutex::default(), "CUDA", &handlers)
}

fn runs(target: &str) -> bool {
    let executable = compile_with(target, "factor = 2.0 : f32").unwrap();
    run(&executable) == floats([3.0, -8.0])
}

#[test]
fn a_plugin_with_the_gpu_extension_takes_all_stages_by_it() {
    let registrar = old(&[OLD_FFI, gpu(gpu_register::<64>, false)]).unwrap();
    register(&registrar, "test.gpu", of::<pjrt_test_scale>("gpu")).unwrap();
    assert_eq!(LAST.get(), Some((64, 0)));
    assert!(runs("test.gpu"));

    let with_traits = Stages {
        traits: 1,
        ..of::<pjrt_test_scale>("gpu")
    };
    assert_eq!(
        register(&registrar, "test.gpu.traits", with_traits.clone())
            .unwrap_err()
            .to_string(),
        "handler for target \"test.gpu.traits\" rejected: the plugin's GPU custom-call extension \
         takes no traits, 1 was given"
    );

    let registrar = old(&[gpu(gpu_register::<68>, true)]).unwrap();
    register(&registrar, "test.gpu.traits", with_traits).unwrap();
    assert_eq!(LAST.get(), Some((68, 1)));
    assert!(runs("test.gpu.traits"));
}

#[test]
fn a_handler_is_asked_before_it_reaches_the_gpu_extension() {
    let registrar = old(&[gpu(gpu_register::<64>, false)]).unwrap();
    let silent = Stages::execute(handler(silent, "silent"));
    assert_eq!(
        register(&registrar, "test.gpu.silent", silent)
            .unwrap_err()
            .to_string(),
        "handler for target \"test.gpu.silent\" rejected: silent did not answer XLA's metadata \
         request, so it is no XLA FFI handler"
    );
}

#[test]
fn the_first_gpu_extension_gets_its_one_function() {
    let registrar = old(&[OLD_FFI, gpu(gpu_register::<40>, false)]).unwrap();
    let double = Stages::execute(handler(double, "double"));
    register(&registrar, "test.gpu.first", double).unwrap();
    assert_eq!(LAST.get(), Some((40, 0)));
    assert_eq!(call("test.gpu.first"), floats([3.0, -8.0]));
}

#[test]
fn an_xla_that_lends_no_table_takes_the_execute_stage_alone() {
    unsafe extern "C" fn mute(_: *mut c_void) -> *mut PJRT_Error {
        null_mut()
    }
    let registrar = old(&[gpu(mute, false)]).unwrap();
    let plain = Stages::execute(handler(double, "double"));
    register(&registrar, "test.mute", plain).unwrap();
    assert_eq!(
        register(
            &registrar,
            "test.mute.stages",
            of::<pjrt_test_scale>("scale")
        )
        .unwrap_err()
        .to_string(),
        "handler for target \"test.mute.stages\" rejected: this plugin's XLA takes a function for \
         the execute stage, and no other stages and no types of states"
    );
}

#[test]
fn a_plugin_without_any_way_says_so() {
    let message = |extensions| old(extensions).map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        message(&[]),
        "/opt/plugin.so has no FFI extension, so it takes no custom call handlers"
    );
    let expected =
        "/opt/plugin.so takes no custom call handlers: its FFI extension is from before \
                    mid-2025 and has no register_handler function, and it has no GPU custom-call \
                    extension";
    assert_eq!(message(&[OLD_FFI]), expected);
    assert_eq!(message(&[OLD_FFI, (GPU, 32, [0; 3])]), expected);
    assert_eq!(message(&[OLD_FFI, (GPU, 24, [1; 3])]), expected);
    assert_eq!(message(&[(FFI, 48, [1, 1, 0])]), expected);
}

use super::handshake::{
    CallFrame, FfiApi, HandlerFunction, InternalExtension, MetadataExtension, METADATA,
};
use super::registrar::{OldRegisterHandlerArgs, RegisterFunction, Route};
use super::*;
use crate::test_support::client;
use crate::{CompileOptions, ElementType, Executable, HostInput};
use pjrt_sys::PJRT_Error;
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null_mut, NonNull};

mod gpu;
mod stages;

/// `XLA_FFI_Buffer`.
#[repr(C)]
struct FfiBuffer {
    struct_size: usize,
    extension_start: *mut InternalExtension,
    element_type: c_int,
    data: *mut c_void,
    rank: i64,
    dimensions: *const i64,
}

/// `XLA_FFI_Args` and `XLA_FFI_Rets`, which look alike.
#[repr(C)]
struct Operands {
    struct_size: usize,
    extension_start: *mut InternalExtension,
    size: i64,
    types: *const c_int,
    operands: *const *const FfiBuffer,
}

/// The front of a call frame in execution.
#[repr(C)]
struct ExecutionFrame {
    struct_size: usize,
    extension_start: *mut InternalExtension,
    api: *const FfiApi,
    context: *mut c_void,
    stage: c_int,
    arguments: Operands,
    results: Operands,
}

/// Answers the handshake; true if the frame was one.
unsafe fn answer(frame: *mut CallFrame, major: c_int, minor: c_int) -> bool {
    // SAFETY: XLA and `Handshake::shake` call with frames of their own.
    unsafe {
        let extension = (*frame).extension_start;
        if extension.is_null() || (*extension).kind != METADATA {
            return false;
        }
        let metadata = (*extension.cast::<MetadataExtension>()).metadata;
        (*metadata).api_version.major = major;
        (*metadata).api_version.minor = minor;
        true
    }
}

/// Doubles a vector of two floats.
unsafe extern "C" fn double(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: the programs of these tests call it with one operand and one result of that type.
    unsafe {
        if answer(frame, 0, 1) {
            return null_mut();
        }
        let frame = frame.cast::<ExecutionFrame>();
        let operand = (**(*frame).arguments.operands).data.cast::<f32>();
        let result = (**(*frame).results.operands).data.cast::<f32>();
        for index in 0..2 {
            *result.add(index) = 2.0 * *operand.add(index);
        }
    }
    null_mut()
}

unsafe extern "C" fn silent(_: *mut CallFrame) -> *mut c_void {
    null_mut()
}

unsafe extern "C" fn from_the_future(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: as in `double`.
    unsafe { answer(frame, 0, 1_000) };
    null_mut()
}

fn handler(function: HandlerFunction, origin: &str) -> Handler {
    let address = NonNull::new((function as *mut ()).cast::<c_void>()).unwrap();
    // SAFETY: the functions above are handlers and part of this program.
    unsafe { Handler::from_function(address, origin) }
}

fn compile(target: &str) -> Result<Executable, Error> {
    compile_with(target, "")
}

/// A program that calls the target on two floats, with these attributes.
fn compile_with(target: &str, attributes: &str) -> Result<Executable, Error> {
    let program = format!(
        "func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {{
           %0 = \"stablehlo.custom_call\"(%arg0)
             {{call_target_name = \"{target}\", api_version = 4 : i32, backend_config = {{{attributes}}}}}
             : (tensor<2xf32>) -> tensor<2xf32>
           return %0 : tensor<2xf32>
         }}"
    );
    client().compile(program.as_bytes(), &CompileOptions::default())
}

fn call(target: &str) -> Result<Vec<Vec<u8>>, Error> {
    run(&compile(target)?)
}

fn run(executable: &Executable) -> Result<Vec<Vec<u8>>, Error> {
    let data: Vec<u8> = [1.5f32, -4.0]
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    executable.run(&[HostInput {
        data: &data,
        element_type: ElementType::F32,
        dimensions: &[2],
    }])
}

#[test]
fn a_registered_handler_runs() {
    client()
        .register_handler(b"test.double", &handler(double, "double"), 0)
        .unwrap();
    let expected: Vec<u8> = [3.0f32, -8.0]
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    assert_eq!(call("test.double"), Ok(vec![expected]));
}

#[test]
fn a_handler_may_be_registered_again_and_another_one_may_not() {
    let first = handler(double, "double");
    let second = handler(from_the_future, "other");
    client().register_handler(b"test.again", &first, 0).unwrap();
    client().register_handler(b"test.again", &first, 0).unwrap();
    assert_eq!(
        client()
            .register_handler(b"test.again", &second, 0)
            .unwrap_err()
            .to_string(),
        "target \"test.again\" already has a handler on platform Host, double, and cannot have \
         other: a process keeps the first one, choose another target name"
    );
}

#[test]
fn a_function_that_does_not_answer_is_rejected() {
    let error = client()
        .register_handler(b"test.silent", &handler(silent, "silent"), 0)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "handler for target \"test.silent\" rejected: silent did not answer XLA's metadata \
         request, so it is no XLA FFI handler"
    );
}

#[test]
fn a_handler_of_a_newer_api_is_rejected() {
    let error = client()
        .register_handler(b"test.future", &handler(from_the_future, "future"), 0)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("future was built for XLA FFI API 0.1000, the plugin has 0."),
        "{error}"
    );
}

#[test]
fn an_empty_target_is_rejected() {
    let error = client()
        .register_handler(b"", &handler(double, "double"), 0)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "handler for target \"\" rejected: the target name is empty"
    );
}

#[test]
fn a_target_without_a_handler_gets_the_plugins_words() {
    let error = call("test.nobody").unwrap_err();
    assert!(error.to_string().contains("test.nobody"), "{error}");
}

#[test]
fn the_plugins_handshake_is_observed() {
    let registrar = registrar();
    let observed = registrar.handshake("Host").unwrap();
    assert!(observed.frame_size >= 168, "{}", observed.frame_size);
    assert!(observed.metadata_size >= 36, "{}", observed.metadata_size);
}

fn registrar() -> Registrar<'static> {
    let plugin = client().plugin();
    Registrar::of(plugin.api(), plugin.api_version().1, plugin.path()).unwrap()
}

fn function_of(registrar: &Registrar<'_>) -> RegisterFunction {
    match registrar.route {
        Route::Ffi { function, .. } | Route::Gpu { function, .. } => function,
    }
}

/// `XLA_FFI_Error_Create_Args`.
#[repr(C)]
struct ErrorCreate {
    struct_size: usize,
    extension_start: *mut InternalExtension,
    message: *const c_char,
    code: c_int,
}

/// An error with the code RESOURCE_EXHAUSTED.
unsafe fn exhausted(frame: *mut CallFrame, message: &std::ffi::CStr) -> *mut c_void {
    type Create = unsafe extern "C" fn(*mut ErrorCreate) -> *mut c_void;
    let mut args = ErrorCreate {
        struct_size: 28,
        extension_start: null_mut(),
        message: message.as_ptr(),
        code: 8,
    };
    // SAFETY: XLA's API table begins with the fields of `FfiApi`.
    unsafe {
        let create: Create = std::mem::transmute((*(*frame).api).error_create);
        create(&raw mut args)
    }
}

unsafe extern "C" fn failing(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: as in `double`.
    unsafe {
        if answer(frame, 0, 1) {
            return null_mut();
        }
        exhausted(frame, c"out of luck")
    }
}

#[test]
fn the_error_of_a_handler_arrives_with_its_code_and_words() {
    client()
        .register_handler(b"test.failing", &handler(failing, "failing"), 0)
        .unwrap();
    let error = call("test.failing").unwrap_err();
    assert!(
        matches!(&error, Error::Pjrt { code: crate::ErrorCode::ResourceExhausted, message }
            if message.contains("out of luck")),
        "{error}"
    );
}

unsafe extern "C" fn unwilling(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: as in `double`. Plugins that lend no API table in a handshake get no answer.
    unsafe {
        if (*frame).api.is_null() {
            return null_mut();
        }
        exhausted(frame, c"not today")
    }
}

#[test]
fn a_handler_that_answers_the_handshake_with_an_error_is_rejected() {
    let error = client()
        .register_handler(b"test.unwilling", &handler(unwilling, "unwilling"), 0)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "handler for target \"test.unwilling\" rejected: it answered XLA's metadata request \
         with an error: not today"
    );
}

thread_local! {
    static OLD_CALL: Cell<Option<(c_int, usize, u32)>> = const { Cell::new(None) };
}

/// A register function of the old layout.
unsafe extern "C" fn old_register(args: *mut c_void) -> *mut PJRT_Error {
    let args = args.cast::<OldRegisterHandlerArgs>();
    // SAFETY: the struct is as large as its size says, and the plugin refuses the size 8.
    unsafe {
        if (*args).struct_size < 60 {
            let mut size = 8usize;
            return function_of(&registrar())((&raw mut size).cast());
        }
        OLD_CALL.set(Some((
            (*args).api_version,
            (*args).handler.addr(),
            (*args).traits,
        )));
    }
    null_mut()
}

#[test]
fn a_plugin_of_the_old_layout_gets_the_old_layout() {
    let registrar = Registrar {
        api: client().plugin().api(),
        route: Route::Ffi {
            function: old_register,
            new_layout: false,
        },
    };
    let double = handler(double, "double").address();
    // SAFETY: the function above keeps the address and does not call it.
    let result = unsafe { registrar.register_ffi("Host", b"test.old", double, 1) };
    assert_eq!(result, Ok(()));
    assert_eq!(OLD_CALL.get(), Some((1, double.as_ptr().addr(), 1)));
}

#[test]
fn a_plugin_of_the_new_layout_is_recognised_without_its_version() {
    let registrar = Registrar {
        route: Route::Ffi {
            function: function_of(&registrar()),
            new_layout: false,
        },
        ..registrar()
    };
    let double = handler(double, "double").address();
    // SAFETY: `double` is a handler and part of this program.
    let result = unsafe { registrar.register_ffi("Host", b"test.new", double, 0) };
    assert_eq!(result, Ok(()));
    assert!(call("test.new").is_ok());
}

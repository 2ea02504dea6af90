use crate::call::discard;
use crate::{sys, Error, Result};
use std::any::type_name;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::marker::PhantomData;
use std::mem::offset_of;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

/// The first version in which XLA can be told how to free a state.
const STATE_SINCE: c_int = 2;
/// The first version in which stages besides the first can have states, so that each call names the stage.
const STAGE_IN_ARGS_SINCE: c_int = 3;

/// What XLA has to know of the state of one handler. There is one static of it for each handler, whose address
/// is the type's id.
///
/// XLA would choose an id by itself, another one in each plugin of a process. An address is the same
/// everywhere, is unique among the libraries of a process, and is far from the small numbers that XLA counts
/// up from.
pub struct State<S> {
    raw: RawState,
    of: PhantomData<fn(S) -> S>,
}

/// A [`State`] whatever its type.
pub struct RawState {
    info: sys::TypeInfo,
    name: fn() -> &'static str,
}

// SAFETY: the one pointer in it is null.
unsafe impl Sync for RawState {}

impl<S: Send + Sync + 'static> State<S> {
    /// For a static that no other handler uses.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            raw: RawState {
                info: sys::TypeInfo {
                    struct_size: size_of::<sys::TypeInfo>(),
                    extensions: ptr::null_mut(),
                    deleter: Some(delete::<S>),
                },
                name: type_name::<S>,
            },
            of: PhantomData,
        }
    }

    /// The part that is registered.
    pub const fn raw(&'static self) -> &'static RawState {
        &self.raw
    }

    /// Makes the value the state of the handler's instance, which XLA drops together with the executable.
    pub fn set(&'static self, context: Context, value: S) -> Result<()> {
        // SAFETY: a context has XLA's table, if any.
        unsafe { self.raw.register(context.api) }?;
        let object = Box::into_raw(Box::new(value)).cast();
        // SAFETY: the object is of the type that the deleter of `raw` frees. If XLA refuses it, it is not said
        // who frees it, so nobody does.
        unsafe { context.exchange(&self.raw, object, |api| api.state_set)? };
        Ok(())
    }

    /// The state of the handler's instance.
    ///
    /// # Safety
    ///
    /// It is dropped no earlier than the call whose context this is, and is used no longer.
    pub unsafe fn get<'a>(&'static self, context: Context) -> Result<&'a S> {
        // SAFETY: nothing is given away.
        let state = unsafe {
            context.exchange(&self.raw, ptr::null_mut(), |api| api.state_get)
        }
        .map_err(|error| {
            Error::new(
                error.code(),
                format!(
                    "{}; the handler has a state, so its instantiate stage has to be registered with it",
                    error.message()
                ),
            )
        })?;
        if state.is_null() {
            return Err(Error::internal("the handler's state is null"));
        }
        // SAFETY: XLA gives back only a state of the id that was asked for, which is that of this static alone,
        // and `set` made the object.
        Ok(unsafe { &*state.cast::<S>() })
    }
}

impl<S> std::fmt::Debug for State<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("State").field(&type_name::<S>()).finish()
    }
}

impl std::fmt::Debug for RawState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RawState").field(&(self.name)()).finish()
    }
}

impl RawState {
    pub(crate) fn id(&'static self) -> sys::TypeId {
        sys::TypeId {
            // Addresses of user space are positive.
            id: ptr::from_ref(self).addr() as i64,
        }
    }

    /// Makes the type known to XLA; once more does nothing.
    ///
    /// # Safety
    ///
    /// `api` is null or XLA's table.
    pub(crate) unsafe fn register(&'static self, api: *const sys::Api) -> Result<()> {
        let mut id = self.id();
        // XLA wants one name for each id, and two libraries can have types of the same name.
        let name = format!("xla_ffi {} {:#x}", (self.name)(), id.id);
        // SAFETY: the caller's promise, passed on.
        let (api, _) = unsafe { table(api) }?;
        let Some(register) = api.type_register else {
            return Err(unsupported("no way of registering types"));
        };
        let mut args = sys::TypeRegisterArgs {
            struct_size: size_of::<sys::TypeRegisterArgs>(),
            extensions: ptr::null_mut(),
            name: sys::ByteSpan {
                pointer: name.as_ptr().cast(),
                len: name.len(),
            },
            type_id: &mut id,
            type_info: &self.info,
        };
        // SAFETY: XLA's function, with arguments as it takes them; it copies the name and the deleter.
        unsafe { check(api, register(&mut args)) }
    }
}

/// Frees a state. XLA calls it on any thread, and cannot be told of a panic.
unsafe extern "C" fn delete<S>(object: *mut c_void) {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: XLA passes what `State::set` gave it, once.
        drop(unsafe { Box::from_raw(object.cast::<S>()) });
    }));
    if let Err(payload) = outcome {
        discard(payload);
    }
}

/// What XLA knows about the instance of a handler.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    api: *const sys::Api,
    context: *mut sys::InvokeContext,
}

impl Context {
    /// # Safety
    ///
    /// Both are null or as in a call frame of XLA's, in whose call the context is used.
    pub(crate) unsafe fn new(api: *const sys::Api, context: *mut sys::InvokeContext) -> Self {
        Self { api, context }
    }

    pub(crate) fn parts(self) -> (*const sys::Api, *mut sys::InvokeContext) {
        (self.api, self.context)
    }

    /// Calls XLA's function for setting or for getting the state.
    ///
    /// # Safety
    ///
    /// `function` chooses one of these two, and the state to be set is an object of the type.
    unsafe fn exchange(
        &self,
        state_type: &'static RawState,
        state: *mut c_void,
        function: fn(&sys::Api) -> Option<sys::State>,
    ) -> Result<*mut c_void> {
        // SAFETY: `new` was told that the table is XLA's.
        let (api, minor) = unsafe { table(self.api) }?;
        let Some(function) = function(api) else {
            return Err(unsupported("no functions for states"));
        };
        let mut id = state_type.id();
        if minor >= STAGE_IN_ARGS_SINCE {
            let mut args = sys::StateArgs {
                struct_size: size_of::<sys::StateArgs>(),
                extensions: ptr::null_mut(),
                context: self.context,
                stage: sys::STAGE_INSTANTIATE,
                type_id: &mut id,
                state,
            };
            // SAFETY: XLA's function, with arguments of the layout of its version.
            unsafe { check(api, function((&raw mut args).cast()))? };
            Ok(args.state)
        } else {
            let mut args = sys::OldStateArgs {
                struct_size: size_of::<sys::OldStateArgs>(),
                extensions: ptr::null_mut(),
                context: self.context,
                type_id: &mut id,
                state,
            };
            // SAFETY: as above.
            unsafe { check(api, function((&raw mut args).cast()))? };
            Ok(args.state)
        }
    }
}

fn unsupported(what: &str) -> Error {
    Error::unimplemented(format!(
        "the handler has a state, and this XLA has {what}: it takes XLA FFI 0.{STATE_SINCE} or later"
    ))
}

/// XLA's table and its minor version, if it is of a version that knows states.
///
/// # Safety
///
/// `api` is null or XLA's table, which lives as long as the process.
unsafe fn table(api: *const sys::Api) -> Result<(&'static sys::Api, c_int)> {
    let absent = || unsupported("no functions for states");
    if api.is_null() {
        return Err(absent());
    }
    // SAFETY: not null, and every XLA struct starts with its size.
    let struct_size = unsafe { (*api).struct_size };
    if !sys::covers!(struct_size, sys::Api, state_get: Option<sys::State>) {
        return Err(absent());
    }
    // SAFETY: the size covers the last field, hence all of them; XLA's table is constant.
    let api = unsafe { &*api };
    let sys::ApiVersion { major, minor, .. } = api.version;
    if major != sys::API_MAJOR || minor < STATE_SINCE {
        return Err(unsupported(&format!("FFI {major}.{minor}")));
    }
    Ok((api, minor))
}

/// The error that a function of the table returned, which is freed.
///
/// # Safety
///
/// The error is null, or one that a function of this table returned to this caller.
unsafe fn check(api: &sys::Api, error: *mut sys::Error) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    let mut message = String::new();
    if let Some(details) = api.error_message {
        let mut args = sys::ErrorMessageArgs {
            struct_size: offset_of!(sys::ErrorMessageArgs, code) + size_of::<c_int>(),
            extensions: ptr::null_mut(),
            error,
            message: ptr::null::<c_char>(),
            code: 0,
        };
        // SAFETY: XLA's function, with arguments that are large enough for each version of it; the text lives as
        // long as the error.
        unsafe {
            details(&mut args);
            if !args.message.is_null() {
                message = CStr::from_ptr(args.message).to_string_lossy().into_owned();
            }
        }
    }
    if let Some(destroy) = api.error_destroy {
        let mut args = sys::ErrorDestroyArgs {
            struct_size: size_of::<sys::ErrorDestroyArgs>(),
            extensions: ptr::null_mut(),
            error,
        };
        // SAFETY: the error is the caller's to free.
        unsafe { destroy(&mut args) };
    }
    Err(Error::new(
        crate::Code::FailedPrecondition,
        format!("XLA says: {message}"),
    ))
}

use crate::buffer::{Label, ResultMemory, Role, View};
use crate::state::{Context, RawState};
use crate::{sys, Arity, Attrs, Error, Operands, Result, Results};
use std::any::Any;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{self, offset_of};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::{ptr, slice};

/// The longest extension chain that is followed, so that a chain that bites its tail ends.
const MAX_EXTENSIONS: usize = 64;

/// The oldest version that XLA still accepts, and that has all that is used here.
const OLDEST_MINOR: c_int = 1;

/// What a handler is, besides the code that runs.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// The one stage that the handler is for.
    pub stage: c_int,
    /// The bits of `XLA_FFI_Handler_TraitsBits` that hold for it.
    pub traits: u32,
    pub operands: &'static [Arity],
    pub results: &'static [Arity],
    /// The attributes it takes; `None` if there can be others.
    pub attributes: Option<&'static [&'static str]>,
}

impl Definition {
    /// The definition of another stage of the same handler. There are buffers in the last stage only: in those
    /// before it their content is not there yet.
    pub const fn of_stage(self, stage: c_int) -> Self {
        Self {
            stage,
            operands: &[],
            results: &[],
            ..self
        }
    }
}

/// What the body of a handler is made from.
#[derive(Debug)]
pub struct Call<'a> {
    pub operands: Operands<'a>,
    pub results: Results<'a>,
    pub attributes: Attrs<'a>,
    pub context: Context,
}

/// Runs a handler: answers XLA's question for metadata, or decodes the frame and calls the body. Whatever
/// fails or panics in it becomes an XLA error. `state` is what the stage makes, if it does.
///
/// # Safety
///
/// `frame` points to a call frame as XLA passes it to a handler of the API versions 0.1 to 0.4, and the
/// buffers lie in memory of the host.
pub unsafe fn run(
    frame: *mut sys::CallFrame,
    definition: &Definition,
    state: Option<&'static RawState>,
    body: impl FnOnce(Call<'_>) -> Result<()>,
) -> *mut sys::Error {
    // Unwind safety: a body that panics may leave results half-written, and the error makes XLA discard them.
    // SAFETY: the caller's promise, passed on.
    let outcome = catch_unwind(AssertUnwindSafe(|| unsafe {
        enter(frame, definition, state, body)
    }));
    let error = match outcome {
        Ok(Ok(())) => return ptr::null_mut(),
        Ok(Err(error)) => error,
        Err(payload) => {
            Error::internal(format!("the handler panicked: {}", panic_message(payload)))
        }
    };
    // SAFETY: the caller's promise, passed on.
    unsafe { report(frame, &error) }
}

fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let payload = match payload.downcast::<String>() {
        Ok(message) => return *message,
        Err(payload) => payload,
    };
    match payload.downcast::<&'static str>() {
        Ok(message) => message.to_string(),
        Err(payload) => {
            discard(payload);
            "with a value that is not text".to_string()
        }
    }
}

/// Drops what a panic carried, without panicking. That drop may panic in turn; what this one carries is
/// not dropped.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(again);
    }
}

/// # Safety
///
/// As for [`run`].
unsafe fn enter(
    frame: *mut sys::CallFrame,
    definition: &Definition,
    state: Option<&'static RawState>,
    body: impl FnOnce(Call<'_>) -> Result<()>,
) -> Result<()> {
    if frame.is_null() {
        return Err(Error::internal("no call frame"));
    }
    // SAFETY: not null, and every XLA struct starts with its size.
    let struct_size = unsafe { (*frame).struct_size };
    if sys::covers!(struct_size, sys::CallFrame, extensions: *mut sys::Extension) {
        // SAFETY: the size covers the field; the chain is XLA's.
        if let Some(metadata) = unsafe { find_metadata((*frame).extensions) } {
            // SAFETY: `metadata` was found in a valid frame.
            return unsafe { answer(metadata, api(frame), definition, state) };
        }
    }
    if !sys::covers!(struct_size, sys::CallFrame, attributes: sys::Attributes) {
        return Err(Error::internal(format!(
            "the call frame has {struct_size} bytes only"
        )));
    }
    // SAFETY: the size covers this field and those below.
    let stage = unsafe { (*frame).stage };
    if stage != definition.stage {
        return Err(Error::invalid_argument(format!(
            "called to {}, but registered with a handler that can {} only",
            stage_name(stage),
            stage_name(definition.stage),
        )));
    }
    // SAFETY: as above; the frame and all that it points to last until the handler returns.
    let call = unsafe { decode(frame, definition)? };
    body(call)
}

fn stage_name(stage: c_int) -> String {
    match stage {
        sys::STAGE_INSTANTIATE => "instantiate".to_string(),
        sys::STAGE_PREPARE => "prepare".to_string(),
        sys::STAGE_INITIALIZE => "initialize".to_string(),
        sys::STAGE_EXECUTE => "execute".to_string(),
        sys::STAGE_RECORD => "record".to_string(),
        other => format!("run stage {other}"),
    }
}

/// # Safety
///
/// `frame` points to a frame whose size covers its attributes, and which with all that it points to stays as it
/// is for `'a`. It is decoded once.
unsafe fn decode<'a>(frame: *const sys::CallFrame, definition: &Definition) -> Result<Call<'a>> {
    let (operands, results) = if definition.stage == sys::STAGE_EXECUTE {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            (
                views(&raw const (*frame).operands, Role::Operand)?,
                views(&raw const (*frame).results, Role::Result)?,
            )
        }
    } else {
        (Vec::new(), Vec::new())
    };
    // SAFETY: as above.
    let (attributes, context) = unsafe {
        (
            Attrs::decode(&raw const (*frame).attributes)?,
            Context::new((*frame).api, (*frame).context),
        )
    };
    let memory = ResultMemory::of(&results)?;
    let operands = Operands::new(operands, memory);
    operands.check_count(definition.operands)?;
    // SAFETY: `ResultMemory::of` accepted the views, which no other `Results` has.
    let results = unsafe { Results::new(results) };
    results.check_count(definition.results)?;
    if let Some(names) = definition.attributes {
        attributes.only(names)?;
    }
    Ok(Call {
        operands,
        results,
        attributes,
        context,
    })
}

/// # Safety
///
/// `buffers` points to operands or results as XLA passes them, which stay as they are for `'a`.
unsafe fn views<'a>(buffers: *const sys::Buffers, role: Role) -> Result<Vec<View<'a>>> {
    // SAFETY: the caller vouches for the pointer; every XLA struct starts with its size.
    let struct_size = unsafe { (*buffers).struct_size };
    if !sys::covers!(struct_size, sys::Buffers, items: *mut *mut c_void) {
        return Err(Error::internal(format!(
            "the description of {role}s has {struct_size} bytes only"
        )));
    }
    // SAFETY: the size covers the last field, hence all of the struct.
    let sys::Buffers {
        len, kinds, items, ..
    } = unsafe { buffers.read() };
    let (kinds, items): (&[c_int], &[*mut c_void]) = match usize::try_from(len) {
        Ok(0) => (&[], &[]),
        Ok(len) if !kinds.is_null() && !items.is_null() => {
            // SAFETY: XLA passes two arrays of `len` elements, which the caller vouches for.
            unsafe {
                (
                    slice::from_raw_parts(kinds, len),
                    slice::from_raw_parts(items, len),
                )
            }
        }
        _ => {
            return Err(Error::internal(format!(
                "{len} {role}s without that many buffers"
            )))
        }
    };
    let pairs = kinds.iter().zip(items).enumerate();
    pairs
        .map(|(index, (&kind, &item))| {
            if kind != sys::KIND_BUFFER {
                return Err(Error::unimplemented(format!(
                    "{role} {index}: of unknown kind {kind}"
                )));
            }
            let label = Label {
                role,
                index,
                name: "",
            };
            // SAFETY: an item of this kind is a buffer, which the caller vouches for.
            unsafe { View::decode(item.cast(), label) }
        })
        .collect()
}

/// # Safety
///
/// `extension` is null or the head of a chain as XLA passes it.
unsafe fn find_metadata(mut extension: *mut sys::Extension) -> Option<*mut sys::MetadataExtension> {
    for _ in 0..MAX_EXTENSIONS {
        if extension.is_null() {
            return None;
        }
        // SAFETY: not null, part of a valid chain, and every XLA struct starts with its size.
        let struct_size = unsafe { (*extension).struct_size };
        if !sys::covers!(struct_size, sys::Extension, next: *mut sys::Extension) {
            return None;
        }
        // SAFETY: the size covers both fields.
        let (kind, next) = unsafe { ((*extension).kind, (*extension).next) };
        if kind == sys::EXTENSION_METADATA {
            return Some(extension.cast());
        }
        extension = next;
    }
    None
}

/// # Safety
///
/// `extension` points to a metadata extension as XLA passes it, and `api` is null or XLA's table.
unsafe fn answer(
    extension: *mut sys::MetadataExtension,
    api: *const sys::Api,
    definition: &Definition,
    state: Option<&'static RawState>,
) -> Result<()> {
    let too_small = |what, size| Err(Error::internal(format!("{what} has {size} bytes only")));
    // SAFETY: `find_metadata` read the head of the extension already.
    let struct_size = unsafe { (*extension).base.struct_size };
    if !sys::covers!(struct_size, sys::MetadataExtension, metadata: *mut sys::Metadata) {
        return too_small("the metadata extension", struct_size);
    }
    // SAFETY: the size covers the field.
    let metadata = unsafe { (*extension).metadata };
    if metadata.is_null() {
        return Err(Error::internal(
            "the metadata extension has no place for metadata",
        ));
    }
    // SAFETY: not null, and every XLA struct starts with its size.
    let struct_size = unsafe { (*metadata).struct_size };
    if !sys::covers!(struct_size, sys::Metadata, traits: u32) {
        return too_small("the metadata", struct_size);
    }
    // SAFETY: the size covers both fields, which are XLA's to be written by the handler.
    unsafe {
        (*metadata).api_version = sys::ApiVersion {
            struct_size: size_of::<sys::ApiVersion>(),
            extensions: ptr::null_mut(),
            major: sys::API_MAJOR,
            minor: minor_version(api),
        };
        (*metadata).traits = definition.traits;
    }
    if let Some(state) = state {
        // SAFETY: the caller's promise, passed on.
        unsafe { state.register(api) }?;
    }
    if sys::covers!(struct_size, sys::Metadata, state_type_id: sys::TypeId) {
        // Zero says that this stage makes no state.
        let id = state.map_or(sys::TypeId { id: 0 }, RawState::id);
        // SAFETY: the size covers the field.
        unsafe { (*metadata).state_type_id = id };
    }
    Ok(())
}

/// The version to answer: XLA refuses handlers that are newer than itself or too old. Nothing here depends on
/// what the later of the versions brought, so an older XLA is told its own.
///
/// # Safety
///
/// `api` is null or XLA's table.
unsafe fn minor_version(api: *const sys::Api) -> c_int {
    if api.is_null() {
        return OLDEST_MINOR;
    }
    // SAFETY: not null, and every XLA struct starts with its size.
    let struct_size = unsafe { (*api).struct_size };
    if !sys::covers!(struct_size, sys::Api, version: sys::ApiVersion) {
        return OLDEST_MINOR;
    }
    // SAFETY: the size covers the field.
    let version = unsafe { (*api).version };
    if version.major == sys::API_MAJOR {
        version.minor.clamp(OLDEST_MINOR, sys::API_MINOR)
    } else {
        sys::API_MINOR
    }
}

/// # Safety
///
/// `frame` is null or points to a call frame as XLA passes it.
unsafe fn api(frame: *const sys::CallFrame) -> *const sys::Api {
    if frame.is_null() {
        return ptr::null();
    }
    // SAFETY: not null, and every XLA struct starts with its size.
    let struct_size = unsafe { (*frame).struct_size };
    if !sys::covers!(struct_size, sys::CallFrame, api: *const sys::Api) {
        return ptr::null();
    }
    // SAFETY: the size covers the field.
    unsafe { (*frame).api }
}

/// Makes an error object of XLA's.
///
/// # Safety
///
/// `frame` is null or points to a call frame as XLA passes it.
unsafe fn report(frame: *const sys::CallFrame, error: &Error) -> *mut sys::Error {
    // SAFETY: the caller's promise, passed on.
    let create = unsafe {
        let api = api(frame);
        if !api.is_null()
            && sys::covers!((*api).struct_size, sys::Api, error_create: Option<sys::ErrorCreate>)
        {
            (*api).error_create
        } else {
            None
        }
    };
    let Some(create) = create else {
        // Null would mean success, with results that were not written; nothing else can be said to a caller
        // that gives no means of making errors. XLA always does.
        eprintln!("xla_ffi: a call frame without means of reporting this error: {error}");
        std::process::abort();
    };
    // C ends the message at the first NUL; the rest is worth more than the NUL.
    let message: Vec<u8> = error
        .message()
        .replace('\0', "\\0")
        .into_bytes()
        .into_iter()
        .chain([0])
        .collect();
    let mut args = sys::ErrorCreateArgs {
        struct_size: offset_of!(sys::ErrorCreateArgs, code) + size_of::<c_int>(),
        extensions: ptr::null_mut(),
        message: message.as_ptr().cast::<c_char>(),
        code: error.code() as c_int,
    };
    // SAFETY: XLA's function, with arguments as it takes them; it copies the message.
    unsafe { create(&mut args) }
}

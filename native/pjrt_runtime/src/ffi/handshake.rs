//! The handshake of XLA with a handler: a call that asks for the handler's metadata.
//!
//! The layouts are those of `xla/ffi/api/c_api.h`.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::mem::offset_of;
use std::ptr::{null, null_mut, NonNull};

use crate::api::lossy;
use crate::library::{Handler, Stages, StateType};

/// `XLA_FFI_InternalExtension` (once `XLA_FFI_Extension_Base`).
#[repr(C)]
pub(super) struct InternalExtension {
    pub(super) struct_size: usize,
    pub(super) kind: c_int,
    pub(super) next: *mut InternalExtension,
}

/// `XLA_FFI_Extension_Metadata`.
pub(super) const METADATA: c_int = 1;

/// `XLA_FFI_Api_Version`.
#[repr(C)]
pub(super) struct ApiVersion {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut InternalExtension,
    pub(super) major: c_int,
    pub(super) minor: c_int,
}

/// `XLA_FFI_Metadata`. A handler may write what later headers add, so there is room behind.
#[repr(C)]
pub(super) struct Metadata {
    pub(super) struct_size: usize,
    pub(super) api_version: ApiVersion,
    pub(super) traits: u32,
    pub(super) state_type_id: i64,
    pub(super) room: [u64; 16],
}

/// `XLA_FFI_Metadata_Extension`.
#[repr(C)]
pub(super) struct MetadataExtension {
    pub(super) base: InternalExtension,
    pub(super) metadata: *mut Metadata,
}

/// The beginning of `XLA_FFI_CallFrame`, and room for the rest, which is zero in a handshake: the
/// argument, result and attribute tables are empty.
#[repr(C)]
pub(super) struct CallFrame {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut InternalExtension,
    pub(super) api: *const FfiApi,
    pub(super) context: *mut c_void,
    pub(super) stage: c_int,
    pub(super) rest: [u64; 64],
}

/// The beginning of `XLA_FFI_Api`.
#[repr(C)]
pub(super) struct FfiApi {
    pub(super) struct_size: usize,
    pub(super) extension_start: *mut InternalExtension,
    pub(super) api_version: ApiVersion,
    pub(super) internal_api: *const c_void,
    pub(super) error_create: *const c_void,
    pub(super) error_get_details: Option<unsafe extern "C" fn(*mut ErrorDetails)>,
    pub(super) error_destroy: Option<unsafe extern "C" fn(*mut ErrorDestroy)>,
    pub(super) handler_register: Option<Function>,
    pub(super) stream_get: *const c_void,
    /// Of another signature before version 0.2.
    pub(super) type_register: Option<Function>,
}

/// A function of the table that returns an error. The argument is a struct of its own for each.
pub(super) type Function = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// `XLA_FFI_ByteSpan`.
#[repr(C)]
struct ByteSpan {
    data: *const c_char,
    size: usize,
}

impl From<&[u8]> for ByteSpan {
    fn from(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr().cast(),
            size: bytes.len(),
        }
    }
}

/// `XLA_FFI_Type_Register_Args`.
#[repr(C)]
struct TypeRegister {
    struct_size: usize,
    extension_start: *mut InternalExtension,
    name: ByteSpan,
    type_id: *mut i64,
    type_info: *const c_void,
}

/// `XLA_FFI_Handler_Register_Args`, whose bundle has `STAGES` functions: 4 until version 0.3, and one more for
/// the stage `record` since.
#[repr(C)]
struct HandlerRegister<const STAGES: usize> {
    struct_size: usize,
    extension_start: *mut InternalExtension,
    name: ByteSpan,
    platform: ByteSpan,
    bundle: [*mut c_void; STAGES],
    traits: u32,
}

/// The version in which the bundle grew.
const RECORD_SINCE: c_int = 4;
/// The first version in which a type is registered with the function that frees it.
const TYPE_INFO_SINCE: c_int = 2;

/// `XLA_FFI_Error_GetDetails_Args`.
#[repr(C)]
pub(super) struct ErrorDetails {
    struct_size: usize,
    extension_start: *mut InternalExtension,
    error: *mut c_void,
    message: *const c_char,
    code: c_int,
}

/// `XLA_FFI_Error_Destroy_Args`.
#[repr(C)]
pub(super) struct ErrorDestroy {
    struct_size: usize,
    extension_start: *mut InternalExtension,
    error: *mut c_void,
}

pub(super) type HandlerFunction = unsafe extern "C" fn(*mut CallFrame) -> *mut c_void;

/// What the handshake of one XLA looks like: the sizes of its structs and its API table.
#[derive(Clone, Copy)]
pub(super) struct Handshake {
    pub(super) frame_size: usize,
    pub(super) extension_size: usize,
    pub(super) metadata_size: usize,
    pub(super) api: *const FfiApi,
    pub(super) stage: c_int,
}

thread_local! {
    static OBSERVED: Cell<Option<Handshake>> = const { Cell::new(None) };
}

/// A handler that notes how it is asked and does not answer, so that XLA does not keep it.
unsafe extern "C" fn observer(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: XLA calls with a frame of its own. A frame that is no handshake has no metadata
    // extension at its front and is left alone.
    unsafe {
        let extension = (*frame).extension_start;
        if !extension.is_null() && (*extension).kind == METADATA {
            let metadata = (*extension.cast::<MetadataExtension>()).metadata;
            OBSERVED.set(Some(Handshake {
                frame_size: (*frame).struct_size,
                extension_size: (*extension).struct_size,
                metadata_size: (*metadata).struct_size,
                api: (*frame).api,
                stage: (*frame).stage,
            }));
        }
    }
    null_mut()
}

impl Handshake {
    /// Learns how an XLA shakes hands, `None` if it does not. `register` registers a handler in it.
    ///
    /// Handlers compare the size of the call frame with the one they were built for and use the API
    /// table to say that it differs, so a frame made up here would not do.
    pub(super) fn observe(register: impl FnOnce(NonNull<c_void>)) -> Option<Self> {
        OBSERVED.set(None);
        register(NonNull::new(
            (observer as HandlerFunction as *mut ()).cast::<c_void>(),
        )?);
        OBSERVED.take().filter(|observed| {
            observed.frame_size <= size_of::<CallFrame>()
                && observed.metadata_size <= size_of::<Metadata>()
        })
    }

    /// XLA's table and its minor version, if it has the field that ends at `end`.
    fn table(&self, end: usize) -> Result<(*const FfiApi, c_int), String> {
        // SAFETY: a table begins with its size, and lives as long as the plugin, which is never unloaded.
        if self.api.is_null() || unsafe { (*self.api).struct_size } < end {
            return Err("this plugin's XLA lends no function for it".to_owned());
        }
        // SAFETY: the table begins with its version.
        let minor = unsafe { (&raw const (*self.api).api_version.minor).read() };
        Ok((self.api, minor))
    }

    /// Makes the type of a state known to XLA; once more does nothing.
    ///
    /// # Safety
    /// The type is as its library's handlers take it, and is never unloaded.
    pub(super) unsafe fn register_type(&self, state: &StateType) -> Result<(), String> {
        let end = offset_of!(FfiApi, type_register) + size_of::<Function>();
        let (api, minor) = self.table(end)?;
        // SAFETY: the table reaches the field.
        let function = unsafe { (&raw const (*api).type_register).read() }
            .filter(|_| minor >= TYPE_INFO_SINCE)
            .ok_or_else(|| {
                format!("this plugin's XLA FFI is of version 0.{minor}, it takes 0.{TYPE_INFO_SINCE} or later")
            })?;
        let mut args = TypeRegister {
            struct_size: size_of::<TypeRegister>(),
            extension_start: null_mut(),
            name: state.name().into(),
            type_id: state.id().as_ptr(),
            type_info: state.info().as_ptr(),
        };
        // SAFETY: XLA's function, with arguments as it takes them; it copies name and deleter.
        unsafe { self.call(function, (&raw mut args).cast()) }
    }

    /// Registers handlers for all their stages.
    ///
    /// # Safety
    /// The functions are handlers that are never unloaded.
    pub(super) unsafe fn register(
        &self,
        platform: &str,
        target: &[u8],
        stages: &Stages,
    ) -> Result<(), String> {
        let end = offset_of!(FfiApi, handler_register) + size_of::<Function>();
        let (api, minor) = self.table(end)?;
        // SAFETY: the table reaches the field.
        let function = unsafe { (&raw const (*api).handler_register).read() }
            .ok_or("this plugin's XLA lends no function for it")?;
        let [instantiate, prepare, initialize, execute] = stages
            .functions()
            .map(|handler| handler.map_or(null_mut(), |handler| handler.address().as_ptr()));
        // XLA refuses a struct that is smaller than its own, which one with a larger bundle would be; so a size
        // beyond the fields, as `Args` has it, is not for here.
        if minor >= RECORD_SINCE {
            let bundle = [instantiate, prepare, initialize, execute, null_mut()];
            // SAFETY: the caller vouches for the functions.
            unsafe { self.register_bundle(function, platform, target, bundle, stages.traits) }
        } else {
            let bundle = [instantiate, prepare, initialize, execute];
            // SAFETY: as above.
            unsafe { self.register_bundle(function, platform, target, bundle, stages.traits) }
        }
    }

    /// # Safety
    /// The functions are null or handlers that are never unloaded, and the number of them is that of XLA's
    /// bundle.
    unsafe fn register_bundle<const STAGES: usize>(
        &self,
        function: Function,
        platform: &str,
        target: &[u8],
        bundle: [*mut c_void; STAGES],
        traits: u32,
    ) -> Result<(), String> {
        let mut args = HandlerRegister {
            struct_size: offset_of!(HandlerRegister<STAGES>, traits) + size_of::<u32>(),
            extension_start: null_mut(),
            name: target.into(),
            platform: platform.as_bytes().into(),
            bundle,
            traits,
        };
        // SAFETY: the names outlive the call, which copies them; the caller vouches for the rest.
        unsafe { self.call(function, (&raw mut args).cast()) }
    }

    /// # Safety
    /// The function is one of the table's, and the arguments are as it takes them.
    unsafe fn call(&self, function: Function, args: *mut c_void) -> Result<(), String> {
        // SAFETY: the caller's promise.
        let error = unsafe { function(args) };
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: the function of this table returned the error to this caller.
        Err(unsafe { ffi_error(self.api, error) }
            .unwrap_or_else(|| "XLA refuses it without a word".to_owned()))
    }

    /// Asks a handler for its metadata as XLA will; the error says why XLA would drop it.
    ///
    /// # Safety
    /// The handler is an `XLA_FFI_Handler`, and the API table that was observed is alive.
    pub(super) unsafe fn shake(&self, handler: &Handler) -> Result<(), String> {
        // SAFETY: the caller vouches for both.
        unsafe { shake_hands(self, handler) }
    }
}

/// # Safety
/// Those of [`Handshake::shake`].
unsafe fn shake_hands(observed: &Handshake, handler: &Handler) -> Result<(), String> {
    const UNANSWERED: c_int = -1;
    let mut metadata = Metadata {
        struct_size: observed.metadata_size,
        api_version: ApiVersion {
            struct_size: size_of::<ApiVersion>(),
            extension_start: null_mut(),
            major: UNANSWERED,
            minor: UNANSWERED,
        },
        traits: 0,
        state_type_id: 0,
        room: [0; 16],
    };
    let mut extension = MetadataExtension {
        base: InternalExtension {
            struct_size: observed.extension_size,
            kind: METADATA,
            next: null_mut(),
        },
        metadata: &raw mut metadata,
    };
    let mut frame = CallFrame {
        struct_size: observed.frame_size,
        extension_start: (&raw mut extension).cast(),
        api: observed.api,
        context: null_mut(),
        stage: observed.stage,
        rest: [0; 64],
    };
    // SAFETY: the caller vouches that the address is that of a function of this type.
    let function: HandlerFunction = unsafe { std::mem::transmute(handler.address().as_ptr()) };
    // SAFETY: the frame is that of a handshake, with room for what the handler may write.
    let error = unsafe { function(&raw mut frame) };
    if !error.is_null() {
        const ERROR: &str = "it answered XLA's metadata request with an error";
        // SAFETY: the handler made the error with the API table of the frame.
        return Err(match unsafe { ffi_error(observed.api, error) } {
            Some(text) => format!("{ERROR}: {text}"),
            None => ERROR.to_owned(),
        });
    }
    let (major, minor) = (metadata.api_version.major, metadata.api_version.minor);
    if (major, minor) == (UNANSWERED, UNANSWERED) {
        return Err(format!(
            "{} did not answer XLA's metadata request, so it is no XLA FFI handler",
            handler.origin()
        ));
    }
    if !observed.api.is_null() {
        // SAFETY: the table begins with its version.
        let version = unsafe { &(*observed.api).api_version };
        if major != version.major || minor > version.minor {
            return Err(format!(
                "{} was built for XLA FFI API {major}.{minor}, the plugin has {}.{}",
                handler.origin(),
                version.major,
                version.minor
            ));
        }
    }
    Ok(())
}

/// The text of an FFI error, which is freed; `None` where the table has no functions for it.
///
/// # Safety
/// `error` is an `XLA_FFI_Error` made with `api`, which is null or an `XLA_FFI_Api`.
unsafe fn ffi_error(api: *const FfiApi, error: *mut c_void) -> Option<String> {
    let end = offset_of!(FfiApi, handler_register);
    // SAFETY: the table begins with its size.
    if api.is_null() || unsafe { (*api).struct_size } < end {
        return None;
    }
    // SAFETY: the table reaches the two functions. The message lives as long as the error.
    unsafe {
        let (get_details, destroy) = ((*api).error_get_details?, (*api).error_destroy?);
        let mut details = ErrorDetails {
            struct_size: offset_of!(ErrorDetails, code) + size_of::<c_int>(),
            extension_start: null_mut(),
            error,
            message: null(),
            code: 0,
        };
        get_details(&raw mut details);
        let text = if details.message.is_null() {
            String::new()
        } else {
            let message = CStr::from_ptr(details.message);
            lossy(message.as_ptr(), message.count_bytes())
        };
        let mut destroyed = ErrorDestroy {
            struct_size: size_of::<ErrorDestroy>(),
            extension_start: null_mut(),
            error,
        };
        destroy(&raw mut destroyed);
        Some(text)
    }
}

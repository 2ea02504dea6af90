//! Registration of FFI handlers with the plugin's FFI extension.
//!
//! The layouts are those of `xla/pjrt/c/pjrt_c_api_ffi_extension.h`.

mod handshake;

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr::{null, null_mut, NonNull};
use std::sync::PoisonError;

use pjrt_sys::*;

use handshake::Handshake;

use crate::args::{api_structs, Args};
use crate::extension;
use crate::library::Handler;
use crate::plugin::Plugin;
use crate::Error;

/// `PJRT_FFI_Extension`.
#[repr(C)]
struct FfiExtension {
    base: PJRT_Extension_Base,
    type_id_register: *const c_void,
    user_data_add: *const c_void,
    register_handler: Option<RegisterHandler>,
}

/// The argument is one of the two layouts below.
type RegisterHandler = unsafe extern "C" fn(*mut c_void) -> *mut PJRT_Error;

/// `PJRT_FFI_Register_Handler_Args`. It has no `extension_start`, other than most argument structs.
#[repr(C)]
struct RegisterHandlerArgs {
    struct_size: usize,
    target_name: *const c_char,
    target_name_size: usize,
    handler: *mut c_void,
    platform_name: *const c_char,
    platform_name_size: usize,
    traits: u32,
}

impl Default for RegisterHandlerArgs {
    fn default() -> Self {
        Self {
            struct_size: 0,
            target_name: null(),
            target_name_size: 0,
            handler: null_mut(),
            platform_name: null(),
            platform_name_size: 0,
            traits: 0,
        }
    }
}

/// `PJRT_FFI_Register_Handler_Args` in version 2 of the extension, which took untyped handlers too.
#[repr(C)]
struct OldRegisterHandlerArgs {
    struct_size: usize,
    target_name: *const c_char,
    target_name_size: usize,
    api_version: c_int,
    handler: *mut c_void,
    platform_name: *const c_char,
    platform_name_size: usize,
    traits: u32,
}

impl Default for OldRegisterHandlerArgs {
    fn default() -> Self {
        Self {
            struct_size: 0,
            target_name: null(),
            target_name_size: 0,
            api_version: 0,
            handler: null_mut(),
            platform_name: null(),
            platform_name_size: 0,
            traits: 0,
        }
    }
}

api_structs!(RegisterHandlerArgs, OldRegisterHandlerArgs);

/// `api_version` of a typed handler, the kind that `XLA_FFI_Handler` is.
const TYPED: c_int = 1;

/// A minor version of the PJRT API from which on the argument struct has no `api_version`: the
/// oldest for which that was seen. The header changed the struct without a sign of it.
const NEW_LAYOUT_SINCE: i32 = 106;

/// A handler that was registered.
#[derive(Debug)]
pub(crate) struct Registration {
    address: usize,
    traits: u32,
    origin: String,
}

/// Registers `handler` for `target` on `platform`, once.
pub(crate) fn register(
    plugin: &'static Plugin,
    platform: &str,
    target: &[u8],
    handler: &Handler,
    traits: u32,
) -> Result<(), Error> {
    let rejected = |reason: String| Error::HandlerRejected {
        target: String::from_utf8_lossy(target).into_owned(),
        reason,
    };
    if target.is_empty() {
        return Err(rejected("the target name is empty".to_owned()));
    }
    let registrar = Registrar::of(plugin)?;

    // Held until the end: XLA keeps the first handler of a name and says nothing of a second one.
    let mut registered = plugin
        .handlers
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let key = (platform.to_owned(), target.to_vec());
    let address = handler.address().as_ptr().addr();
    if let Some(known) = registered.get(&key) {
        if known.address == address && known.traits == traits {
            return Ok(());
        }
        let with = if known.address == address {
            format!(" with traits {}", known.traits)
        } else {
            String::new()
        };
        return Err(Error::HandlerConflict {
            target: String::from_utf8_lossy(target).into_owned(),
            platform: platform.to_owned(),
            registered: format!("{}{with}", known.origin),
        });
    }

    // XLA makes the same call and drops a handler that fails it without a word, so ask first.
    if let Some(handshake) = registrar.handshake(platform) {
        // SAFETY: `Handler` vouches for the function; the frame is built like XLA's own.
        unsafe { handshake.shake(handler) }.map_err(rejected)?;
    }
    // SAFETY: `Handler` vouches for the function.
    unsafe { registrar.call(platform, target, handler.address(), traits) }?;
    registered.insert(
        key,
        Registration {
            address,
            traits,
            origin: handler.origin().to_owned(),
        },
    );
    Ok(())
}

/// The plugin's function that registers handlers.
struct Registrar {
    plugin: &'static Plugin,
    function: RegisterHandler,
    new_layout: bool,
}

impl Registrar {
    fn of(plugin: &'static Plugin) -> Result<Self, Error> {
        let (base, found) = extension::all(plugin.api())
            .find(|(_, extension)| extension.kind == extension::FFI)
            .ok_or_else(|| Error::NoFfiExtension {
                path: plugin.path().to_owned(),
            })?;
        let missing = || Error::NoRegisterHandler {
            path: plugin.path().to_owned(),
        };
        let end = offset_of!(FfiExtension, register_handler) + size_of::<RegisterHandler>();
        if found.struct_size < end {
            return Err(missing());
        }
        let extension = base.as_ptr().cast::<FfiExtension>();
        // SAFETY: the kind says that this is the FFI extension, its size that it has the field.
        let function = unsafe { (&raw const (*extension).register_handler).read() };
        Ok(Self {
            plugin,
            function: function.ok_or_else(missing)?,
            new_layout: plugin.api_version().1 >= NEW_LAYOUT_SINCE,
        })
    }

    /// # Safety
    /// `handler` is an `XLA_FFI_Handler` that is never unloaded.
    unsafe fn call(
        &self,
        platform: &str,
        target: &[u8],
        handler: NonNull<c_void>,
        traits: u32,
    ) -> Result<(), Error> {
        let mut args = Args::<RegisterHandlerArgs>::new();
        args.target_name = target.as_ptr().cast();
        args.target_name_size = target.len();
        args.handler = handler.as_ptr();
        args.platform_name = platform.as_ptr().cast();
        args.platform_name_size = platform.len();
        args.traits = traits;
        if !self.new_layout {
            // Without the tail the size is enough for the new layout and too little for the old
            // one, so a plugin of the old one refuses the call before it reads a field.
            args.struct_size = size_of::<RegisterHandlerArgs>();
        }
        // SAFETY: both names outlive the call, which copies them; the caller vouches for the
        // handler.
        let result = unsafe { self.call_with(args.as_mut_ptr().cast()) };
        if result.is_ok() || self.new_layout {
            return result;
        }

        let mut args = Args::<OldRegisterHandlerArgs>::new();
        args.target_name = target.as_ptr().cast();
        args.target_name_size = target.len();
        args.api_version = TYPED;
        args.handler = handler.as_ptr();
        args.platform_name = platform.as_ptr().cast();
        args.platform_name_size = platform.len();
        args.traits = traits;
        // SAFETY: as above.
        unsafe { self.call_with(args.as_mut_ptr().cast()) }
    }

    /// # Safety
    /// `args` are arguments of the plugin's layout, or of a size that it refuses.
    unsafe fn call_with(&self, args: *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller vouches for the arguments.
        match NonNull::new(unsafe { (self.function)(args) }) {
            None => Ok(()),
            // SAFETY: the plugin returned the error to this caller.
            Some(error) => Err(unsafe { self.plugin.api().take_error(error) }),
        }
    }

    /// How this plugin's XLA shakes hands, `None` if it does not.
    fn handshake(&self, platform: &str) -> Option<Handshake> {
        Handshake::observe(|observer| {
            // SAFETY: the observer is a handler of this program. Whether XLA calls its silence an
            // error is of no interest.
            let _ = unsafe { self.call(platform, b"pjrt_runtime.handshake", observer, 0) };
        })
    }
}

#[cfg(test)]
mod tests;

//! The functions of a plugin by which it takes handlers.
//!
//! The layouts are those of `xla/pjrt/c/pjrt_c_api_ffi_extension.h` and
//! `xla/pjrt/c/pjrt_c_api_gpu_extension.h`.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::path::Path;
use std::ptr::{null, null_mut, NonNull};

use pjrt_sys::*;

use super::handshake::Handshake;
use crate::api::Api;
use crate::args::{api_structs, Args};
use crate::extension;
use crate::library::Stages;
use crate::Error;

/// `PJRT_FFI_Extension`.
#[repr(C)]
struct FfiExtension {
    base: PJRT_Extension_Base,
    type_id_register: *const c_void,
    user_data_add: Option<RegisterFunction>,
    register_handler: Option<RegisterFunction>,
}

/// `PJRT_Gpu_Custom_Call`.
#[repr(C)]
struct GpuExtension {
    base: PJRT_Extension_Base,
    custom_call: Option<RegisterFunction>,
    /// Since version 3.
    custom_call_handles_traits: bool,
}

/// The kind of the GPU custom-call extension in `PJRT_Extension_Type`.
const GPU_CUSTOM_CALL: i32 = 0;

/// The argument is one of the layouts below.
pub(crate) type RegisterFunction = unsafe extern "C" fn(*mut c_void) -> *mut PJRT_Error;

/// `PJRT_FFI_Register_Handler_Args`. It has no `extension_start`, other than most argument structs.
#[repr(C)]
pub(super) struct RegisterHandlerArgs {
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
pub(super) struct OldRegisterHandlerArgs {
    pub(super) struct_size: usize,
    target_name: *const c_char,
    target_name_size: usize,
    pub(super) api_version: c_int,
    pub(super) handler: *mut c_void,
    platform_name: *const c_char,
    platform_name_size: usize,
    pub(super) traits: u32,
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

/// `PJRT_Gpu_Register_Custom_Call_Args`, whose platform is the plugin's. Without the last field it is that of
/// version 2 of the extension.
#[repr(C)]
pub(super) struct GpuArgs {
    pub(super) struct_size: usize,
    pub(super) function_name: *const c_char,
    pub(super) function_name_size: usize,
    pub(super) api_version: c_int,
    /// In version 1 this was the function to execute, and the last field.
    pub(super) instantiate: *mut c_void,
    pub(super) prepare: *mut c_void,
    pub(super) initialize: *mut c_void,
    pub(super) execute: *mut c_void,
    pub(super) traits: u32,
}

/// `struct_size` of the three versions of [`GpuArgs`].
const GPU_SIZES: [usize; 3] = [
    offset_of!(GpuArgs, prepare),
    offset_of!(GpuArgs, traits),
    offset_of!(GpuArgs, traits) + size_of::<u32>(),
];

/// `api_version` of a typed handler, the kind that `XLA_FFI_Handler` is.
const TYPED: c_int = 1;

/// A minor version of the PJRT API from which on the argument struct of the FFI extension has no `api_version`:
/// the oldest for which that was seen. The header changed the struct without a sign of it.
const NEW_LAYOUT_SINCE: i32 = 106;

/// The plugin's function that adds user data to an execution, if it has one.
pub(super) fn user_data_add(api: &Api) -> Option<RegisterFunction> {
    let (base, found) = extension::all(api).find(|(_, found)| found.kind == extension::FFI)?;
    let end = offset_of!(FfiExtension, user_data_add) + size_of::<RegisterFunction>();
    if found.struct_size < end {
        return None;
    }
    let table = base.as_ptr().cast::<FfiExtension>();
    // SAFETY: the kind says that this is the FFI extension, its size that it has the field.
    unsafe { (&raw const (*table).user_data_add).read() }
}

/// What the observer of a handshake is registered as; XLA does not keep it.
const OBSERVER: &[u8] = b"pjrt_runtime.handshake";

/// A plugin's way of taking handlers.
pub(super) struct Registrar<'a> {
    pub(super) api: &'a Api,
    pub(super) route: Route,
}

#[derive(Clone, Copy)]
pub(super) enum Route {
    /// `PJRT_FFI_Register_Handler`, for the execute stage alone.
    Ffi {
        function: RegisterFunction,
        new_layout: bool,
    },
    /// `PJRT_Gpu_Register_Custom_Call`, with a `struct_size` of [`GPU_SIZES`].
    Gpu {
        function: RegisterFunction,
        size: usize,
    },
}

impl<'a> Registrar<'a> {
    pub(super) fn of(api: &'a Api, minor: i32, path: &Path) -> Result<Self, Error> {
        let find = |kind| extension::all(api).find(move |(_, extension)| extension.kind == kind);
        let ffi = find(extension::FFI);
        if let Some((base, found)) = &ffi {
            let end = offset_of!(FfiExtension, register_handler) + size_of::<RegisterFunction>();
            if found.struct_size >= end {
                let table = base.as_ptr().cast::<FfiExtension>();
                // SAFETY: the kind says that this is the FFI extension, its size that it has the field.
                let function = unsafe { (&raw const (*table).register_handler).read() };
                if let Some(function) = function {
                    let new_layout = minor >= NEW_LAYOUT_SINCE;
                    let route = Route::Ffi {
                        function,
                        new_layout,
                    };
                    return Ok(Self { api, route });
                }
            }
        }
        if let Some((base, found)) = find(GPU_CUSTOM_CALL) {
            let table = base.as_ptr().cast::<GpuExtension>();
            let end = offset_of!(GpuExtension, custom_call) + size_of::<RegisterFunction>();
            if found.struct_size >= end {
                // SAFETY: as above.
                let function = unsafe { (&raw const (*table).custom_call).read() };
                let end = offset_of!(GpuExtension, custom_call_handles_traits);
                // SAFETY: as above; a byte is read where the plugin has a bool.
                let takes_traits = found.struct_size > end
                    && unsafe { table.byte_add(end).cast::<u8>().read() } != 0;
                if let Some(function) = function {
                    let mut registrar = Self {
                        api,
                        route: Route::Gpu {
                            function,
                            size: GPU_SIZES[0],
                        },
                    };
                    if !registrar.takes_first_gpu_layout() {
                        let size = GPU_SIZES[if takes_traits { 2 } else { 1 }];
                        registrar.route = Route::Gpu { function, size };
                    }
                    return Ok(registrar);
                }
            }
        }
        let path = path.to_owned();
        Err(match ffi {
            Some(_) => Error::NoRegisterHandler { path },
            None => Error::NoFfiExtension { path },
        })
    }

    /// How this plugin's XLA shakes hands, `None` if it does not.
    pub(super) fn handshake(&self, platform: &str) -> Option<Handshake> {
        Handshake::observe(|observer| match self.route {
            Route::Ffi { .. } => {
                // SAFETY: the observer is a handler of this program. Whether XLA calls its silence an
                // error is of no interest.
                let _ = unsafe { self.register_ffi(platform, OBSERVER, observer, 0) };
            }
            Route::Gpu { .. } => {
                let functions = [null_mut(), null_mut(), null_mut(), observer.as_ptr()];
                // SAFETY: as above.
                let _ = unsafe { self.register_gpu(OBSERVER, functions, 0) };
            }
        })
    }

    /// Whether the plugin's GPU extension is of version 1, in which there is one function, at the place where later
    /// versions have the one for the first stage. Those refuse the size of its arguments before they read a field.
    fn takes_first_gpu_layout(&self) -> bool {
        let mut accepted = false;
        let observed = Handshake::observe(|observer| {
            let functions = [null_mut(), null_mut(), null_mut(), observer.as_ptr()];
            // SAFETY: as in `handshake`.
            accepted = unsafe { self.register_gpu(OBSERVER, functions, 0) }.is_ok();
        });
        accepted || observed.is_some()
    }

    /// Whether the plugin's own function takes a bundle.
    fn takes_all_stages(&self) -> bool {
        matches!(self.route, Route::Gpu { size, .. } if size > GPU_SIZES[0])
    }

    /// Refuses what this plugin has no place for. Where its XLA does not shake hands it lends no table either, and
    /// takes what the plugin's own function does.
    pub(super) fn check(&self, lends_table: bool, stages: &Stages) -> Result<(), String> {
        let own = self.takes_all_stages() || stages.is_plain();
        if !lends_table && (stages.state.is_some() || !own) {
            return Err(
                "this plugin's XLA takes a function for the execute stage, and no other stages and \
                 no types of states"
                    .to_owned(),
            );
        }
        match self.route {
            Route::Gpu { size, .. } if own && stages.traits != 0 && size < GPU_SIZES[2] => {
                Err(format!(
                    "the plugin's GPU custom-call extension takes no traits, {} was given",
                    stages.traits
                ))
            }
            _ => Ok(()),
        }
    }

    /// Registers a handler that passed the handshake.
    ///
    /// # Safety
    /// The functions of `stages` are `XLA_FFI_Handler`s that are never unloaded.
    pub(super) unsafe fn register(
        &self,
        handshake: Option<&Handshake>,
        platform: &str,
        target: &[u8],
        stages: &Stages,
    ) -> Result<(), Error> {
        match (self.route, handshake) {
            (_, Some(handshake)) if !stages.is_plain() && !self.takes_all_stages() => {
                // SAFETY: the caller vouches for the functions.
                unsafe { handshake.register(platform, target, stages) }
                    .map_err(|reason| super::rejected(target, reason))
            }
            (Route::Ffi { .. }, _) => {
                let execute = stages.execute.address();
                // SAFETY: as above.
                unsafe { self.register_ffi(platform, target, execute, stages.traits) }
            }
            (Route::Gpu { .. }, _) => {
                let functions = stages.functions().map(|handler| {
                    handler.map_or(null_mut(), |handler| handler.address().as_ptr())
                });
                // SAFETY: as above.
                unsafe { self.register_gpu(target, functions, stages.traits) }
            }
        }
    }

    /// # Safety
    /// `handler` is an `XLA_FFI_Handler` that is never unloaded.
    pub(super) unsafe fn register_ffi(
        &self,
        platform: &str,
        target: &[u8],
        handler: NonNull<c_void>,
        traits: u32,
    ) -> Result<(), Error> {
        let Route::Ffi {
            function,
            new_layout,
        } = self.route
        else {
            return Ok(());
        };
        let mut args = Args::<RegisterHandlerArgs>::new();
        args.target_name = target.as_ptr().cast();
        args.target_name_size = target.len();
        args.handler = handler.as_ptr();
        args.platform_name = platform.as_ptr().cast();
        args.platform_name_size = platform.len();
        args.traits = traits;
        if !new_layout {
            // Without the tail the size is enough for the new layout and too little for the old
            // one, so a plugin of the old one refuses the call before it reads a field.
            args.struct_size = size_of::<RegisterHandlerArgs>();
        }
        // SAFETY: both names outlive the call, which copies them; the caller vouches for the
        // handler.
        let result = unsafe { self.call(function, args.as_mut_ptr().cast()) };
        if result.is_ok() || new_layout {
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
        unsafe { self.call(function, args.as_mut_ptr().cast()) }
    }

    /// # Safety
    /// The functions are null, or `XLA_FFI_Handler`s that are never unloaded.
    unsafe fn register_gpu(
        &self,
        target: &[u8],
        functions: [*mut c_void; 4],
        traits: u32,
    ) -> Result<(), Error> {
        let Route::Gpu { function, size } = self.route else {
            return Ok(());
        };
        let [mut instantiate, prepare, initialize, execute] = functions;
        if size == GPU_SIZES[0] {
            instantiate = execute;
        }
        let mut args = GpuArgs {
            struct_size: size,
            function_name: target.as_ptr().cast(),
            function_name_size: target.len(),
            api_version: TYPED,
            instantiate,
            prepare,
            initialize,
            execute,
            traits,
        };
        // SAFETY: the name outlives the call, which copies it; the caller vouches for the functions.
        unsafe { self.call(function, (&raw mut args).cast()) }
    }

    /// # Safety
    /// `args` are arguments of the function's layout, or of a size that it refuses.
    unsafe fn call(&self, function: RegisterFunction, args: *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller vouches for the arguments.
        match NonNull::new(unsafe { function(args) }) {
            None => Ok(()),
            // SAFETY: the plugin returned the error to this caller.
            Some(error) => Err(unsafe { self.api.take_error(error) }),
        }
    }
}

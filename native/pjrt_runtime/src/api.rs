//! The function table of a plugin, read no further than the plugin says it reaches.

use std::mem::offset_of;
use std::ptr::NonNull;

use pjrt_sys::*;

use crate::args::{api_structs, ApiStruct, Args};
use crate::error::{Error, ErrorCode};

/// A function that returns a `PJRT_Error *`, found by the struct of its arguments.
pub(crate) trait Function: ApiStruct {
    const NAME: &'static str;
    const OFFSET: usize;
}

macro_rules! functions {
    ($($function:ident($args:ident)),* $(,)?) => {
        api_structs!($($args),*);
        $(
            impl Function for $args {
                const NAME: &'static str = stringify!($function);
                const OFFSET: usize = offset_of!(PJRT_Api, $function);
            }
        )*
    };
}

functions!(
    PJRT_Error_GetCode(PJRT_Error_GetCode_Args),
    PJRT_Plugin_Initialize(PJRT_Plugin_Initialize_Args),
    PJRT_Plugin_Attributes(PJRT_Plugin_Attributes_Args),
    PJRT_ExecuteContext_Create(PJRT_ExecuteContext_Create_Args),
    PJRT_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args),
    PJRT_Event_Destroy(PJRT_Event_Destroy_Args),
    PJRT_Event_Await(PJRT_Event_Await_Args),
    PJRT_Event_OnReady(PJRT_Event_OnReady_Args),
    PJRT_Client_Create(PJRT_Client_Create_Args),
    PJRT_Client_Destroy(PJRT_Client_Destroy_Args),
    PJRT_Client_PlatformName(PJRT_Client_PlatformName_Args),
    PJRT_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args),
    PJRT_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args),
    PJRT_Client_Devices(PJRT_Client_Devices_Args),
    PJRT_Client_AddressableMemories(PJRT_Client_AddressableMemories_Args),
    PJRT_Client_Compile(PJRT_Client_Compile_Args),
    PJRT_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args),
    PJRT_Device_GetDescription(PJRT_Device_GetDescription_Args),
    PJRT_Device_IsAddressable(PJRT_Device_IsAddressable_Args),
    PJRT_Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args),
    PJRT_Device_DefaultMemory(PJRT_Device_DefaultMemory_Args),
    PJRT_Memory_Id(PJRT_Memory_Id_Args),
    PJRT_Memory_Kind(PJRT_Memory_Kind_Args),
    PJRT_Memory_DebugString(PJRT_Memory_DebugString_Args),
    PJRT_Memory_AddressableByDevices(PJRT_Memory_AddressableByDevices_Args),
    PJRT_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args),
    PJRT_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args),
    PJRT_DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args),
    PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args),
    PJRT_Executable_Name(PJRT_Executable_Name_Args),
    PJRT_Executable_NumReplicas(PJRT_Executable_NumReplicas_Args),
    PJRT_Executable_NumPartitions(PJRT_Executable_NumPartitions_Args),
    PJRT_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args),
    PJRT_Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args),
    PJRT_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args),
    PJRT_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args),
    PJRT_Executable_SizeOfGeneratedCodeInBytes(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args),
    PJRT_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args),
    PJRT_Executable_Serialize(PJRT_Executable_Serialize_Args),
    PJRT_Executable_Fingerprint(PJRT_Executable_Fingerprint_Args),
    PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args),
    PJRT_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args),
    PJRT_LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args),
    PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args),
    PJRT_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args),
    PJRT_LoadedExecutable_Fingerprint(PJRT_LoadedExecutable_Fingerprint_Args),
    PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args),
    PJRT_Buffer_ElementType(PJRT_Buffer_ElementType_Args),
    PJRT_Buffer_Dimensions(PJRT_Buffer_Dimensions_Args),
    PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args),
    PJRT_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args),
    PJRT_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args),
    PJRT_Buffer_Device(PJRT_Buffer_Device_Args),
    PJRT_Buffer_Memory(PJRT_Buffer_Memory_Args),
    PJRT_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args),
    PJRT_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args),
    PJRT_Buffer_IsOnCpu(PJRT_Buffer_IsOnCpu_Args),
    PJRT_Buffer_GetMemoryLayout(PJRT_Buffer_GetMemoryLayout_Args),
    PJRT_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args),
    PJRT_Buffer_IncreaseExternalReferenceCount(PJRT_Buffer_IncreaseExternalReferenceCount_Args),
    PJRT_Buffer_DecreaseExternalReferenceCount(PJRT_Buffer_DecreaseExternalReferenceCount_Args),
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args),
);

type ErrorDestroy = unsafe extern "C" fn(*mut PJRT_Error_Destroy_Args);
type ErrorMessage = unsafe extern "C" fn(*mut PJRT_Error_Message_Args);

/// A plugin's `PJRT_Api`. The plugin is never unloaded, so the table lives as long as the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Api {
    table: NonNull<PJRT_Api>,
    size: usize,
    error_destroy: ErrorDestroy,
    error_message: ErrorMessage,
}

// SAFETY: the table is constant data of a library that stays loaded, and the functions in it may be
// called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// The version fields, or `None` if the table is too small to have them.
    ///
    /// # Safety
    /// `table` points to what a `GetPjrtApi` returned, at least a `size_t struct_size`.
    pub(crate) unsafe fn version(table: NonNull<PJRT_Api>) -> Option<(i32, i32)> {
        let end = offset_of!(PJRT_Api, pjrt_api_version) + size_of::<PJRT_Api_Version>();
        // SAFETY: the caller vouches for the size; no more is read than it covers.
        unsafe {
            if (&raw const (*table.as_ptr()).struct_size).read() < end {
                return None;
            }
            let version = (&raw const (*table.as_ptr()).pjrt_api_version).read();
            Some((version.major_version, version.minor_version))
        }
    }

    /// Wraps a table whose version was checked.
    ///
    /// # Errors
    /// [`Error::MissingFunction`] if errors of the plugin could not be read or freed.
    ///
    /// # Safety
    /// `table` points to the `PJRT_Api` of a plugin that is never unloaded, of a version whose
    /// table begins as the one in `pjrt-sys` does.
    pub(crate) unsafe fn new(table: NonNull<PJRT_Api>) -> Result<Self, Error> {
        // SAFETY: every table begins with its size.
        let size = unsafe { (&raw const (*table.as_ptr()).struct_size).read() };
        // SAFETY: the offsets are those of fields that hold pointers to functions of these types.
        unsafe {
            Ok(Self {
                table,
                size,
                error_destroy: pointer(
                    table,
                    size,
                    offset_of!(PJRT_Api, PJRT_Error_Destroy),
                    "PJRT_Error_Destroy",
                )?,
                error_message: pointer(
                    table,
                    size,
                    offset_of!(PJRT_Api, PJRT_Error_Message),
                    "PJRT_Error_Message",
                )?,
            })
        }
    }

    /// The first extension of the chain, which may be null.
    pub(crate) fn extension_start(&self) -> *mut PJRT_Extension_Base {
        // SAFETY: the table reaches beyond this field, or `version` would have refused it.
        unsafe { (&raw const (*self.table.as_ptr()).extension_start).read() }
    }

    /// Calls the function that takes `T`.
    ///
    /// # Errors
    /// [`Error::MissingFunction`] if the plugin has none, [`Error::Pjrt`] with the plugin's words.
    ///
    /// # Safety
    /// The pointers in `args` are what the function's documentation in `pjrt_c_api.h` asks for.
    pub(crate) unsafe fn call<T: Function>(&self, args: &mut Args<T>) -> Result<(), Error> {
        type Pointer<T> = unsafe extern "C" fn(*mut T) -> *mut PJRT_Error;
        // SAFETY: the offset is that of the field of the function that takes `T` and returns an error.
        let function: Pointer<T> = unsafe { pointer(self.table, self.size, T::OFFSET, T::NAME)? };
        // SAFETY: the caller vouches for the arguments, `Args::new` for their size.
        let error = unsafe { function(args.as_mut_ptr()) };
        match NonNull::new(error) {
            None => Ok(()),
            // SAFETY: the plugin returned the error to this caller.
            Some(error) => Err(unsafe { self.take_error(error) }),
        }
    }

    /// Reads an error and frees it.
    ///
    /// # Safety
    /// `error` is an error of this plugin that nobody else will free.
    pub(crate) unsafe fn take_error(&self, error: NonNull<PJRT_Error>) -> Error {
        let mut message = Args::<PJRT_Error_Message_Args>::new();
        message.error = error.as_ptr();
        // SAFETY: the error is alive.
        unsafe { (self.error_message)(message.as_mut_ptr()) };
        // SAFETY: the message has the lifetime of the error, which is freed below.
        let text = unsafe { lossy(message.message, message.message_size) };

        let mut code = Args::<PJRT_Error_GetCode_Args>::new();
        code.error = error.as_ptr();
        let code = {
            type GetCode = unsafe extern "C" fn(*mut PJRT_Error_GetCode_Args) -> *mut PJRT_Error;
            // SAFETY: the offset is that of the field of this function.
            let function: Result<GetCode, Error> = unsafe {
                pointer(
                    self.table,
                    self.size,
                    PJRT_Error_GetCode_Args::OFFSET,
                    PJRT_Error_GetCode_Args::NAME,
                )
            };
            match function {
                Err(_) => ErrorCode::Unknown,
                Ok(function) => {
                    // SAFETY: the error is alive. An error about the error is freed, not read.
                    let nested = unsafe { function(code.as_mut_ptr()) };
                    self.destroy_error(nested);
                    ErrorCode::from_code(code.code)
                }
            }
        };
        self.destroy_error(error.as_ptr());
        Error::Pjrt {
            code,
            message: text,
        }
    }

    // `PJRT_Error_Destroy` takes a null pointer too, by the header.
    fn destroy_error(&self, error: *mut PJRT_Error) {
        let mut args = Args::<PJRT_Error_Destroy_Args>::new();
        args.error = error;
        // SAFETY: every caller owns the error it passes.
        unsafe { (self.error_destroy)(args.as_mut_ptr()) };
    }
}

/// Reads a function pointer out of a table, if the table reaches it.
///
/// # Safety
/// `table` holds `size` readable bytes, and the field at `offset` is a nullable pointer to a
/// function of type `F`.
unsafe fn pointer<F: Copy>(
    table: NonNull<PJRT_Api>,
    size: usize,
    offset: usize,
    name: &'static str,
) -> Result<F, Error> {
    const { assert!(size_of::<Option<F>>() == size_of::<usize>()) };
    if size < offset + size_of::<usize>() {
        return Err(Error::MissingFunction { name });
    }
    // SAFETY: the field lies within the table; a null pointer reads as None.
    let function = unsafe { table.as_ptr().byte_add(offset).cast::<Option<F>>().read() };
    function.ok_or(Error::MissingFunction { name })
}

/// Copies a text of the plugin; what is not UTF-8 becomes replacement characters.
///
/// # Safety
/// `data` is null or points to `size` readable bytes.
pub(crate) unsafe fn lossy(data: *const std::ffi::c_char, size: usize) -> String {
    if data.is_null() || size == 0 {
        return String::new();
    }
    // SAFETY: the caller vouches for the bytes.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// A slice of the plugin's; empty where the plugin gives a null pointer.
///
/// # Safety
/// `data` is null or points to `len` values that live and stay unchanged for `'a`.
pub(crate) unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for the values.
    unsafe { std::slice::from_raw_parts(data, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn destroy(_: *mut PJRT_Error_Destroy_Args) {}
    unsafe extern "C" fn message(_: *mut PJRT_Error_Message_Args) {}

    fn table(size: usize) -> PJRT_Api {
        PJRT_Api {
            struct_size: size,
            PJRT_Error_Destroy: Some(destroy),
            PJRT_Error_Message: Some(message),
            ..Default::default()
        }
    }

    #[test]
    fn a_table_too_small_for_a_version_has_none() {
        let mut table = table(16);
        // SAFETY: the table is a whole PJRT_Api.
        assert_eq!(unsafe { Api::version(NonNull::from(&mut table)) }, None);
    }

    #[test]
    fn a_table_too_small_for_the_error_functions_is_refused() {
        let mut table = table(offset_of!(PJRT_Api, PJRT_Error_Message));
        // SAFETY: the table is a whole PJRT_Api.
        let error = unsafe { Api::new(NonNull::from(&mut table)) }.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the PJRT plugin does not implement PJRT_Error_Message"
        );
    }

    #[test]
    fn a_function_beyond_the_table_is_missing() {
        let mut table = table(offset_of!(PJRT_Api, PJRT_Client_Create));
        // SAFETY: the table is a whole PJRT_Api; the call ends before any function is reached.
        let error = unsafe {
            let api = Api::new(NonNull::from(&mut table)).unwrap();
            api.call(&mut Args::<PJRT_Client_Create_Args>::new())
        };
        assert_eq!(
            error,
            Err(Error::MissingFunction {
                name: "PJRT_Client_Create"
            })
        );
    }

    #[test]
    fn a_null_function_is_missing() {
        let mut table = table(size_of::<PJRT_Api>());
        // SAFETY: the table is a whole PJRT_Api; the pointer read is null.
        let error = unsafe {
            let api = Api::new(NonNull::from(&mut table)).unwrap();
            api.call(&mut Args::<PJRT_Client_Create_Args>::new())
        };
        assert_eq!(
            error,
            Err(Error::MissingFunction {
                name: "PJRT_Client_Create"
            })
        );
    }
}

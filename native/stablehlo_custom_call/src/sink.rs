use mlir_sys::MlirStringRef;
use std::{ffi::c_void, slice};

/// Collects what MLIR prints, byte for byte: MLIR's output need not be UTF-8.
pub(crate) fn collect(
    print: impl FnOnce(unsafe extern "C" fn(MlirStringRef, *mut c_void), *mut c_void),
) -> Vec<u8> {
    let mut bytes = Vec::new();
    print(append, (&raw mut bytes).cast());
    bytes
}

unsafe extern "C" fn append(chunk: MlirStringRef, bytes: *mut c_void) {
    if chunk.length == 0 || chunk.data.is_null() {
        return;
    }
    // SAFETY: `collect` passes its own Vec as the user data and MLIR calls back before it returns;
    // the chunk is readable for its length during the call.
    unsafe {
        let bytes = &mut *bytes.cast::<Vec<u8>>();
        bytes.extend_from_slice(slice::from_raw_parts(chunk.data.cast(), chunk.length));
    }
}

/// A view of bytes for a call into MLIR; the call must not keep it.
pub(crate) fn string_ref(bytes: &[u8]) -> MlirStringRef {
    MlirStringRef {
        data: bytes.as_ptr().cast(),
        length: bytes.len(),
    }
}

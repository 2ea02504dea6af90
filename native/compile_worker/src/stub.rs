//! A handler that stands in for those that are elsewhere.

use std::ffi::c_void;
use std::ptr::NonNull;

use pjrt_runtime::{Error, Handler};

xla_ffi::export! {
    /// Takes any call that XLA compiles, and says no when it is run.
    pub fn exla_custom_call_worker_stub(_operands: Vec<xla_ffi::AnyArg>) -> (_results: Vec<xla_ffi::AnyRet>)
    attrs { .. }
    {
        Err(xla_ffi::Error::new(
            xla_ffi::Code::Unimplemented,
            "a worker compiles programs and does not run them",
        ))
    }
}

pub(crate) fn handler() -> Result<Handler, Error> {
    let address = NonNull::new(exla_custom_call_worker_stub as *mut c_void).ok_or_else(|| {
        Error::HandlerRejected {
            target: String::new(),
            reason: "the stand-in has no address".into(),
        }
    })?;
    // SAFETY: `export!` makes handlers, and the program is not unloaded.
    Ok(unsafe { Handler::from_function(address, "the stand-in of the worker") })
}

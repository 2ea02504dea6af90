use crate::sys;

/// A handler with all the stages that XLA calls it in.
///
/// [`export!`](crate::export) makes a type of the handler's name that has this. It is how
/// [`library!`](crate::library) and [`testing::Executable`](crate::testing::Executable) come from a name to the
/// functions behind it.
///
/// # Safety
///
/// Each function is a handler for the stage that it is given for, of one custom call on the platform `Host`, and
/// returns for any frame that [`testing`](crate::testing) can build.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no handler",
    note = "handlers are made by `xla_ffi::export!`"
)]
pub unsafe trait Stages {
    /// The functions that XLA calls.
    const STAGES: sys::Stages;
}

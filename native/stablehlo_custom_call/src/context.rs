use crate::{diagnostics::Diagnostics, limits::Limits};
use melior::{dialect::DialectHandle, ContextRef};
use mlir_sys::{mlirContextCreateWithThreading, mlirContextDestroy};
use std::{
    fmt::{self, Debug, Formatter},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// An MLIR context: it owns every type, attribute and name of the modules built in it.
///
/// Unregistered dialects are allowed, `func` is loaded, multi-threading is off. A context serves one
/// thread at a time; a clone is another handle to the same context.
///
/// A context never frees the attributes, types and names that were made in it, so one that serves
/// modules with ever new values grows without bound. Making one costs some 20 microseconds: prefer a
/// fresh context a module, or a [`SharedContext`](crate::SharedContext), which makes a fresh one when
/// it has grown.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Mutex<Inner>>,
    limits: Limits,
}

pub(crate) struct Inner {
    raw: ContextRef<'static>,
    pub(crate) diagnostics: Box<Diagnostics>,
}

// SAFETY: an MLIRContext with multi-threading off keeps no state of the thread that made it, and
// the mutex around Inner lets one thread at a time reach it and all that lives in it.
unsafe impl Send for Inner {}

impl Inner {
    fn new() -> Self {
        // SAFETY: a new context is valid until `drop` destroys it. It is made without threads, not
        // told to stop using them: starting and ending a pool takes ten times as long as the rest.
        let raw = unsafe { ContextRef::from_raw(mlirContextCreateWithThreading(false)) };
        let diagnostics = Box::new(Diagnostics::default());
        let inner = Self { raw, diagnostics };
        inner.context().set_allow_unregistered_dialects(true);
        DialectHandle::func().load_dialect(inner.context());
        // SAFETY: the box keeps its place for Inner's life, and `drop` destroys the context before
        // the box, a field, is freed.
        unsafe { inner.diagnostics.attach(inner.context().to_raw()) };
        inner
    }

    pub(crate) fn context(&self) -> &melior::Context {
        // SAFETY: the context lives as long as `self`, to which the result is bound.
        unsafe { self.raw.to_ref() }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: Inner owns the context, and modules in it hold a handle to the Context whose last
        // one drops Inner.
        unsafe { mlirContextDestroy(self.context().to_raw()) };
    }
}

impl Context {
    pub fn new(limits: Limits) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner::new())),
            limits,
        }
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether the two are handles to one context.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// How many handles and modules keep it alive.
    #[cfg(test)]
    pub(crate) fn handles(&self) -> usize {
        Arc::strong_count(&self.inner)
    }

    // A panic while the lock was held leaves at worst unused attributes in the context.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Debug for Context {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Context")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_can_be_used_from_another_thread_and_dropped_there() {
        let context = Context::new(Limits::default());
        std::thread::spawn(move || drop(context.lock()))
            .join()
            .unwrap();
    }

    #[test]
    fn a_clone_is_the_same_context() {
        let context = Context::new(Limits::default());
        assert!(context.is_same(&context.clone()));
        assert!(!context.is_same(&Context::new(Limits::default())));
    }
}

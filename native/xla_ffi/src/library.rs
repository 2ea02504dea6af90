//! The table in which a library says what handlers it has. The layouts are those of `include/exla_custom_call.h`.

use crate::sys;
use std::ffi::c_char;
use std::ptr;

/// `EXLA_CUSTOM_CALL_ABI`, the version of the layouts below.
const ABI: u32 = 1;

/// The one platform that handlers of this crate are for.
const PLATFORM: &str = "Host";

/// The head of the table: `EXLA_CustomCall_Library`.
#[repr(C)]
#[derive(Debug)]
pub struct Library {
    struct_size: usize,
    abi: u32,
    reserved: u32,
    handler_size: usize,
    handler_count: usize,
    handlers: *const Entry,
}

/// A handler in the table: `EXLA_CustomCall_Handler`.
#[repr(C)]
#[derive(Debug)]
pub struct Entry {
    target: *const c_char,
    target_size: usize,
    platform: *const c_char,
    platform_size: usize,
    stages: sys::Stages,
    traits: u32,
    reserved: u32,
    /// For handlers that leave the registration of their state's type to the loader; those of this crate do it
    /// themselves.
    state: *const std::ffi::c_void,
}

// SAFETY: the pointers are to constant data.
unsafe impl Sync for Library {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

impl Library {
    /// A table of these handlers.
    pub const fn new(handlers: &'static [Entry]) -> Self {
        Self {
            struct_size: size_of::<Self>(),
            abi: ABI,
            reserved: 0,
            handler_size: size_of::<Entry>(),
            handler_count: handlers.len(),
            handlers: handlers.as_ptr(),
        }
    }
}

impl Entry {
    /// The handler that custom calls of this target are to reach.
    pub const fn new(target: &'static str, stages: sys::Stages) -> Self {
        assert!(!target.is_empty(), "a target's name cannot be empty");
        Self {
            target: target.as_ptr().cast(),
            target_size: target.len(),
            platform: PLATFORM.as_ptr().cast(),
            platform_size: PLATFORM.len(),
            stages,
            traits: 0,
            reserved: 0,
            state: ptr::null(),
        }
    }
}

/// Whether no name is there twice.
pub const fn distinct(names: &[&str]) -> bool {
    let mut first = 0;
    while first < names.len() {
        let mut second = first + 1;
        while second < names.len() {
            if equal(names[first].as_bytes(), names[second].as_bytes()) {
                return false;
            }
            second += 1;
        }
        first += 1;
    }
    true
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut index = 0;
    while index < a.len() {
        if a[index] != b[index] {
            return false;
        }
        index += 1;
    }
    true
}

/// Exports the table of a crate's handlers, with the names that custom calls reach them by.
///
/// Whoever loads the library needs to know nothing but its path: `EXLA.CustomCall.Library.load(client, path)`
/// finds the table and registers what is in it, all stages of each handler.
///
/// ```
/// use xla_ffi::{Arg, Ret};
///
/// xla_ffi::export! {
///     pub fn doc_library_negate(x: Arg<f32>) -> (y: Ret<f32>) {
///         y.iter_mut().zip(x.iter()).for_each(|(y, x)| *y = -x);
///         Ok(())
///     }
/// }
///
/// xla_ffi::library! {
///     "com.example.negate" => doc_library_negate,
/// }
/// # fn main() {}
/// ```
///
/// A name is a constant `&str`, and what it stands for is the path of a handler that [`export!`](crate::export)
/// made. Targets are known to the whole process, so begin them with something of your own. Names that are
/// empty, or there twice, are an error at compile time; a second table in the same library is one when it is
/// linked:
///
/// ```compile_fail
/// xla_ffi::export! {
///     fn doc_library_nothing() -> () { Ok(()) }
/// }
///
/// xla_ffi::library! {
///     "com.example.nothing" => doc_library_nothing,
///     "com.example.nothing" => doc_library_nothing, // error: a target is there twice
/// }
/// # fn main() {}
/// ```
///
/// The table is constant data under the symbol `exla_custom_call_library`, in the layout of
/// `include/exla_custom_call.h`, which libraries in C and C++ use.
#[macro_export]
macro_rules! library {
    ($($target:expr => $handler:path),* $(,)?) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static exla_custom_call_library: $crate::Library = {
            static HANDLERS: &[$crate::Entry] = &[
                $($crate::Entry::new($target, <$handler as $crate::Stages>::STAGES)),*
            ];
            const _: () = assert!(
                $crate::__private::distinct(&[$($target),*]),
                "a target is there twice"
            );
            $crate::Library::new(HANDLERS)
        };
    };
}

// Offsets and sizes of the 64-bit C ABI, as `include/exla_custom_call.h` states them.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Library>() == 40);
    assert!(offset_of!(Library, abi) == 8);
    assert!(offset_of!(Library, handler_size) == 16);
    assert!(offset_of!(Library, handlers) == 32);
    assert!(size_of::<Entry>() == 80);
    assert!(offset_of!(Entry, platform) == 16);
    assert!(offset_of!(Entry, stages) == 32);
    assert!(offset_of!(Entry, traits) == 64);
    assert!(offset_of!(Entry, state) == 72);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared() {
        assert!(distinct(&[]));
        assert!(distinct(&["a", "b", "ab"]));
        assert!(!distinct(&["a", "b", "a"]));
    }
}

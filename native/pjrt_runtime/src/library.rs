//! Shared objects with FFI handlers.

use std::ffi::c_void;
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use libloading::os::unix::Library as SharedObject;
use once_cell::sync::Lazy;

use crate::registry::{self, Registry};
use crate::Error;

/// A loaded handler library. It stays loaded for the life of the process, because XLA keeps the
/// addresses of its handlers that long.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    object: SharedObject,
}

impl Library {
    /// Loads the library at `path`, or returns it if the same file was loaded before.
    ///
    /// A file is known by its canonical path: one that was replaced since is not loaded again.
    ///
    /// # Errors
    /// [`Error::LibraryNotFound`] or [`Error::NotASharedObject`].
    pub fn load(path: &Path) -> Result<&'static Self, Error> {
        static LIBRARIES: Lazy<Registry<Library>> = Lazy::new(Registry::new);
        LIBRARIES.get(
            path,
            |path| Error::LibraryNotFound { path },
            |path| {
                let object = registry::open(&path)?;
                Ok(Self { path, object })
            },
        )
    }

    /// The canonical path of the library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The handler function that the library exports as `symbol`, such as
    /// `XLA_FFI_DEFINE_HANDLER_SYMBOL` defines.
    ///
    /// That the function is an FFI handler is the library's word: XLA calls it when it is registered.
    ///
    /// # Errors
    /// [`Error::SymbolMissing`] if there is no such symbol, or if it is data and no function.
    pub fn handler(&self, symbol: &str) -> Result<Handler, Error> {
        let missing = |reason: String| Error::SymbolMissing {
            library: self.path.clone(),
            symbol: symbol.to_owned(),
            reason,
        };
        if symbol.is_empty() {
            return Err(missing("the name is empty".to_owned()));
        }
        // SAFETY: the symbol is read as an address only.
        let address = unsafe { self.object.get::<*mut c_void>(symbol.as_bytes()) }
            .map_err(|error| missing(registry::reason(&error)))?;
        let function =
            NonNull::new(*address).ok_or_else(|| missing("its address is null".to_owned()))?;
        if is_data(function) {
            return Err(missing("the symbol is data, not a function".to_owned()));
        }
        Ok(Handler {
            function,
            origin: format!("{symbol} of {}", self.path.display()).into(),
        })
    }
}

/// The address of an XLA FFI handler that is never unloaded.
#[derive(Clone)]
pub struct Handler {
    function: NonNull<c_void>,
    origin: Arc<str>,
}

// SAFETY: the address is that of code, which XLA calls from any thread.
unsafe impl Send for Handler {}
// SAFETY: as above.
unsafe impl Sync for Handler {}

impl Handler {
    /// A handler that is part of this program; `origin` says where it is from in error messages.
    ///
    /// # Safety
    /// `function` is an `XLA_FFI_Handler` of `xla/ffi/api/c_api.h`:
    /// `XLA_FFI_Error *(XLA_FFI_CallFrame *)`, and is never unloaded.
    pub unsafe fn from_function(function: NonNull<c_void>, origin: &str) -> Self {
        Self {
            function,
            origin: origin.into(),
        }
    }

    pub(crate) fn address(&self) -> NonNull<c_void> {
        self.function
    }

    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Handler({})", self.origin)
    }
}

/// Whether the loader knows the address as that of data. Calling it would end the process.
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
fn is_data(address: NonNull<c_void>) -> bool {
    use std::ffi::{c_char, c_int};

    /// `Dl_info` of `dlfcn.h`.
    #[repr(C)]
    struct Info {
        file_name: *const c_char,
        file_base: *mut c_void,
        symbol_name: *const c_char,
        symbol_address: *mut c_void,
    }

    /// `Elf64_Sym` of `elf.h`.
    #[repr(C)]
    struct Symbol {
        name: u32,
        info: u8,
        other: u8,
        section: u16,
        value: u64,
        size: u64,
    }

    /// `RTLD_DL_SYMENT`: ask for the symbol table's entry.
    const SYMBOL_ENTRY: c_int = 1;
    /// `STT_OBJECT`, `STT_COMMON` and `STT_TLS`.
    const DATA: [u8; 3] = [1, 5, 6];

    extern "C" {
        fn dladdr1(
            address: *const c_void,
            info: *mut Info,
            extra: *mut *mut c_void,
            flags: c_int,
        ) -> c_int;
    }

    let mut info = Info {
        file_name: std::ptr::null(),
        file_base: std::ptr::null_mut(),
        symbol_name: std::ptr::null(),
        symbol_address: std::ptr::null_mut(),
    };
    let mut symbol = std::ptr::null_mut::<c_void>();
    // SAFETY: both results are written to variables of the types that SYMBOL_ENTRY asks for.
    let found = unsafe { dladdr1(address.as_ptr(), &mut info, &mut symbol, SYMBOL_ENTRY) };
    if found == 0 || info.symbol_address != address.as_ptr() || symbol.is_null() {
        return false;
    }
    // SAFETY: a symbol table's entry in a library that stays loaded.
    let kind = unsafe { (*symbol.cast::<Symbol>()).info } & 0xf;
    DATA.contains(&kind)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
fn is_data(_: NonNull<c_void>) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{libm_path, scratch};

    #[test]
    fn a_library_loads_once() {
        let first = Library::load(&libm_path()).unwrap();
        assert!(std::ptr::eq(first, Library::load(&libm_path()).unwrap()));
    }

    #[test]
    fn a_missing_library_is_named() {
        assert_eq!(
            Library::load(Path::new("/nowhere/kernels.so"))
                .unwrap_err()
                .to_string(),
            "no handler library at /nowhere/kernels.so: there is no such file"
        );
    }

    #[test]
    fn a_text_file_is_no_library() {
        let path = scratch("kernels.so", b"int main() {}\n");
        let error = Library::load(&path).unwrap_err();
        assert!(matches!(error, Error::NotASharedObject { .. }), "{error}");
    }

    #[test]
    fn a_missing_symbol_is_named() {
        let library = Library::load(&libm_path()).unwrap();
        let error = library.handler("no_such_handler").unwrap_err();
        assert!(
            matches!(&error, Error::SymbolMissing { symbol, reason, .. }
                if symbol == "no_such_handler" && reason.contains("no_such_handler")),
            "{error}"
        );
    }

    #[test]
    fn names_that_no_symbol_can_have_are_missing() {
        let library = Library::load(&libm_path()).unwrap();
        for name in ["", "a\0b"] {
            let error = library.handler(name).unwrap_err();
            assert!(matches!(error, Error::SymbolMissing { .. }), "{error}");
        }
    }

    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    #[test]
    fn data_is_no_handler() {
        let library = Library::load(&libm_path()).unwrap();
        let error = library.handler("signgam").unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("the symbol is data, not a function"),
            "{error}"
        );
        assert!(library.handler("cos").is_ok());
    }
}

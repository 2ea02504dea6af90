//! Shared objects with FFI handlers.

mod memory;
mod table;

use std::ffi::c_void;
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

use libloading::os::unix::Library as SharedObject;
use once_cell::sync::Lazy;

use crate::registry::{self, Registry};
use crate::Error;

use memory::Memory;
pub use table::TableEntry;
pub(crate) use table::SYMBOL;

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
    /// [`Error::SymbolMissing`] if there is no such symbol in the library itself, or if it is data and no
    /// function.
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
        let memory = Memory::now();
        if !memory.is_code(function.as_ptr().addr()) {
            return Err(missing("the symbol is data, not a function".to_owned()));
        }
        // The loader also looks into what the library depends on: `exit` of the C library is there,
        // and XLA would call it. The loader may know the same file by another path.
        let object = memory.object(function.as_ptr().addr());
        if let Some(object) = object.and_then(|object| object.canonicalize().ok()) {
            if object != self.path {
                return Err(missing(format!(
                    "the library does not define it, but {} does, which it depends on",
                    object.display()
                )));
            }
        }
        Ok(Handler {
            function,
            origin: format!("{symbol} of {}", self.path.display()).into(),
        })
    }

    /// The type of a handler's state by the library's own words: `id` and `info` are the symbols of two
    /// functions without parameters, as `XLA_FFI_DECLARE_TYPE_ID_SYMBOL` and
    /// `XLA_FFI_DECLARE_TYPE_INFO_SYMBOL` declare them, which are called.
    ///
    /// That they are of these types is the caller's word.
    ///
    /// # Errors
    /// [`Error::SymbolMissing`] as for [`Library::handler`], and where what a function returns is no such thing.
    pub fn state_type(&self, name: &str, id: &str, info: &str) -> Result<StateType, Error> {
        type Function = unsafe extern "C" fn() -> *mut c_void;
        let call = |symbol: &str| {
            let function = self.handler(symbol)?.function;
            // SAFETY: the caller vouches for the type of the function, which is never unloaded.
            Ok(unsafe { std::mem::transmute::<*mut c_void, Function>(function.as_ptr())() })
        };
        let memory = Memory::now();
        StateType::checked(&memory, name.as_bytes(), call(id)?, call(info)?).map_err(
            |(field, reason)| Error::SymbolMissing {
                library: self.path.clone(),
                symbol: if field == "type_id" { id } else { info }.to_owned(),
                reason,
            },
        )
    }

    /// The handlers in the table that the library exports for this purpose, as `include/exla_custom_call.h`
    /// describes it; `None` if it exports none.
    ///
    /// # Errors
    /// [`Error::BrokenTable`] if there is one that is not as it should be.
    pub fn handlers(&self) -> Result<Option<Vec<TableEntry>>, Error> {
        // SAFETY: the symbol is read as an address only.
        let Ok(address) = (unsafe { self.object.get::<*const c_void>(SYMBOL.as_bytes()) }) else {
            return Ok(None);
        };
        let display = self.path.display();
        table::read(&Memory::now(), *address, |target| {
            format!("{target:?} of {display}")
        })
        .map(Some)
        .map_err(|reason| Error::BrokenTable {
            library: self.path.clone(),
            reason,
        })
    }
}

/// The functions of one custom call, for the stages in which XLA calls it.
#[derive(Clone, Debug)]
pub struct Stages {
    /// Called once for each executable that has the custom call, while it is compiled.
    pub instantiate: Option<Handler>,
    /// Called before each execution, to ask for resources.
    pub prepare: Option<Handler>,
    /// Called before each execution, when the resources are there.
    pub initialize: Option<Handler>,
    /// Called in each execution.
    pub execute: Handler,
    /// The type that has to be registered before the handlers are, where they do not do it themselves.
    pub state: Option<StateType>,
    /// `XLA_FFI_Handler_TraitsBits`; those that the handlers name themselves are added.
    pub traits: u32,
}

impl Stages {
    /// A handler for execution alone.
    pub fn execute(handler: Handler) -> Self {
        Self {
            instantiate: None,
            prepare: None,
            initialize: None,
            execute: handler,
            state: None,
            traits: 0,
        }
    }

    /// The functions, in the order in which XLA's bundles have them.
    pub(crate) fn functions(&self) -> [Option<&Handler>; 4] {
        [
            self.instantiate.as_ref(),
            self.prepare.as_ref(),
            self.initialize.as_ref(),
            Some(&self.execute),
        ]
    }

    /// Where the functions are, 0 for one that is not there.
    pub(crate) fn addresses(&self) -> [usize; 4] {
        self.functions()
            .map(|handler| handler.map_or(0, |handler| handler.function.as_ptr().addr()))
    }

    /// Whether XLA is to call it in execution alone.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.functions(), [None, None, None, Some(_)])
    }
}

/// The type of a handler's state, for handlers that leave its registration to the loader.
#[derive(Clone)]
pub struct StateType {
    name: Arc<[u8]>,
    /// An `XLA_FFI_TypeId`, which the library reads and the loader writes.
    id: NonNull<i64>,
    /// An `XLA_FFI_TypeInfo`.
    info: NonNull<c_void>,
}

// SAFETY: the id is accessed atomically, and the other is constant data.
unsafe impl Send for StateType {}
// SAFETY: as above.
unsafe impl Sync for StateType {}

impl StateType {
    /// Checks what can be checked of the two pointers; the error names the field and says what is wrong.
    fn checked(
        memory: &Memory,
        name: &[u8],
        id: *mut c_void,
        info: *mut c_void,
    ) -> Result<Self, (&'static str, String)> {
        /// `XLA_FFI_TypeInfo` of version 0.2 and later.
        #[repr(C)]
        struct TypeInfo {
            struct_size: usize,
            extension_start: *mut c_void,
            deleter: *mut c_void,
        }
        let (size, align) = (size_of::<i64>(), align_of::<i64>());
        if id.is_null() || !memory.is_writable(id.addr(), size) || !id.addr().is_multiple_of(align)
        {
            return Err(("type_id", format!("{id:?} is no place for a type's id")));
        }
        let wrong = || {
            Err((
                "type_info",
                format!("{info:?} is no XLA_FFI_TypeInfo with a deleter"),
            ))
        };
        let size = size_of::<TypeInfo>();
        if info.is_null()
            || !memory.is_readable(info.addr(), size)
            || !info.addr().is_multiple_of(align_of::<TypeInfo>())
        {
            return wrong();
        }
        // SAFETY: the memory is mapped and stays so, and any bytes are a TypeInfo.
        let TypeInfo {
            struct_size,
            deleter,
            ..
        } = unsafe { info.cast::<TypeInfo>().read() };
        if struct_size < size || !memory.is_code(deleter.addr()) {
            return wrong();
        }
        let (Some(id), Some(info)) = (NonNull::new(id.cast()), NonNull::new(info)) else {
            return wrong();
        };
        Ok(Self {
            name: name.into(),
            id,
            info,
        })
    }

    #[cfg(test)]
    pub(crate) fn of_statics(
        name: &str,
        id: &'static AtomicI64,
        info: *const c_void,
    ) -> Result<Self, (&'static str, String)> {
        let memory = Memory::now();
        Self::checked(
            &memory,
            name.as_bytes(),
            id.as_ptr().cast(),
            info.cast_mut(),
        )
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    pub(crate) fn info(&self) -> NonNull<c_void> {
        self.info
    }

    /// The place of the id, which is not 0 any more.
    ///
    /// XLA would replace a 0 by an id of its own choice, another one in each plugin of a process, while the
    /// library has one place for it. An address is unique among the libraries of a process, and far from
    /// the small numbers that XLA counts up from.
    pub(crate) fn id(&self) -> NonNull<i64> {
        // SAFETY: the place is mapped, writable and aligned, as `checked` saw.
        let id = unsafe { AtomicI64::from_ptr(self.id.as_ptr()) };
        let address = self.id.as_ptr().addr().cast_signed() as i64;
        // Another value than 0 is the id that the type has already.
        let _ = id.compare_exchange(0, address, Ordering::SeqCst, Ordering::SeqCst);
        self.id
    }
}

impl fmt::Debug for StateType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "StateType({})", self.name.escape_ascii())
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

#[cfg(test)]
mod tests;

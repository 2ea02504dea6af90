//! Shared objects that are loaded once and never unloaded.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::elf;
use crate::Error;

/// What was made of a shared object, by the object's canonical path.
pub(crate) struct Registry<T: 'static> {
    loaded: Mutex<HashMap<PathBuf, &'static T>>,
}

impl<T> Registry<T> {
    pub(crate) fn new() -> Self {
        Self {
            loaded: Mutex::new(HashMap::new()),
        }
    }

    /// The value of `path`, made by `make` if there is none yet. A failure is not kept.
    ///
    /// # Errors
    /// `missing` where there is no file, else what `make` says.
    pub(crate) fn get(
        &self,
        path: &Path,
        missing: impl FnOnce(PathBuf) -> Error,
        make: impl FnOnce(PathBuf) -> Result<T, Error>,
    ) -> Result<&'static T, Error> {
        let canonical = path.canonicalize().map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                missing(path.to_owned())
            } else {
                Error::NotASharedObject {
                    path: path.to_owned(),
                    reason: error.to_string(),
                }
            }
        })?;
        // Held while loading, so that two threads do not load the same object. A panic in between
        // leaves the map as it was.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = loaded.get(&canonical) {
            return Ok(value);
        }
        let value: &'static T = Box::leak(Box::new(make(canonical.clone())?));
        loaded.insert(canonical, value);
        Ok(value)
    }
}

/// Refuses what the loader would not survive, or would wait for.
pub(crate) fn check(path: &Path) -> Result<(), Error> {
    elf::check(path).map_err(|reason| Error::NotASharedObject {
        path: path.to_owned(),
        reason,
    })
}

/// `dlopen` with all symbols resolved at once and none of them offered to other libraries: two
/// plugins carry two versions of the same symbols.
pub(crate) fn open(path: &Path) -> Result<Library, Error> {
    check(path)?;
    // SAFETY: loading runs the object's constructors. That a file given as a plugin or as a handler
    // library is one that may run in this process is the user's word.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        Error::NotASharedObject {
            path: path.to_owned(),
            reason: reason(&error),
        }
    })
}

/// The loader's own words, which libloading keeps in the source of its error.
pub(crate) fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

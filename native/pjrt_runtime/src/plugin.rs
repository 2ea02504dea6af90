//! PJRT plugins: shared objects that carry a compiler and its devices.

use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Mutex;

use once_cell::sync::Lazy;
use pjrt_sys::*;

use crate::api::Api;
use crate::args::Args;
use crate::extension::{self, Extension};
use crate::ffi::Registrations;
use crate::named_value::{self, NamedValue};
use crate::registry::{self, Registry};
use crate::Error;

/// The major version that the struct layouts of `pjrt-sys` belong to; it changes when they do.
const MAJOR: i32 = PJRT_API_MAJOR as i32;
/// The oldest minor version: that of the header in `pjrt-sys`. An older plugin may not know fields
/// that this crate sets.
const MINIMUM_MINOR: i32 = PJRT_API_MINOR as i32;

/// A loaded PJRT plugin. It stays loaded for the life of the process, for XLA cannot be unloaded.
pub struct Plugin {
    path: PathBuf,
    version: (i32, i32),
    api: Api,
    /// The handlers that were registered, by platform and target.
    pub(crate) handlers: Mutex<Registrations>,
}

impl Plugin {
    /// Loads and initialises the plugin at `path`, or returns it if the same file was loaded before.
    ///
    /// A file is known by its canonical path: one that was replaced since is not loaded again.
    ///
    /// # Errors
    /// [`Error::PluginNotFound`], [`Error::NotASharedObject`], [`Error::NoGetPjrtApi`],
    /// [`Error::NullApi`], [`Error::UnsupportedApi`], [`Error::MissingFunction`], or
    /// [`Error::Pjrt`] from the plugin's own initialisation.
    pub fn load(path: &Path) -> Result<&'static Self, Error> {
        static PLUGINS: Lazy<Registry<Plugin>> = Lazy::new(Registry::new);
        PLUGINS.get(path, |path| Error::PluginNotFound { path }, Self::open)
    }

    fn open(path: PathBuf) -> Result<Self, Error> {
        type GetPjrtApi = unsafe extern "C" fn() -> *const PJRT_Api;
        let library = registry::open(&path)?;
        // SAFETY: `pjrt_c_api.h` and every plugin's entry point agree on this signature.
        let get_api = match unsafe { library.get::<GetPjrtApi>(b"GetPjrtApi\0") } {
            Ok(symbol) => *symbol,
            Err(_) => return Err(Error::NoGetPjrtApi { path }),
        };
        // From here on the library's code has run: threads and tables of it may stay behind, so it
        // is never closed, also where its function table turns out to be unusable.
        let _ = library.into_raw();
        // SAFETY: the library stays loaded.
        let table = unsafe { get_api() }.cast_mut();
        let Some(table) = NonNull::new(table) else {
            return Err(Error::NullApi { path });
        };
        // SAFETY: the table comes from GetPjrtApi.
        let version = unsafe { Api::version(table) }.unwrap_or((0, 0));
        if version.0 != MAJOR || version.1 < MINIMUM_MINOR {
            return Err(Error::UnsupportedApi {
                path,
                major: version.0,
                minor: version.1,
                supported_major: MAJOR,
                minimum_minor: MINIMUM_MINOR,
            });
        }
        // SAFETY: the library stays loaded and the version is one whose layout is known.
        let api = unsafe { Api::new(table) }?;
        // SAFETY: the arguments hold no pointers. The registry's lock makes this the first call.
        unsafe { api.call(&mut Args::<PJRT_Plugin_Initialize_Args>::new()) }?;
        Ok(Self {
            path,
            version,
            api,
            handlers: Mutex::default(),
        })
    }

    /// The canonical path of the plugin's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The major and minor version of the PJRT C API that the plugin was built with.
    pub fn api_version(&self) -> (i32, i32) {
        self.version
    }

    /// What the plugin says of itself, such as `xla_version` and `stablehlo_current_version` (an
    /// [`NamedValue::Int64List`] of three numbers).
    ///
    /// # Errors
    /// [`Error::MissingFunction`] or [`Error::Pjrt`].
    pub fn attributes(&self) -> Result<Vec<(String, NamedValue)>, Error> {
        let mut args = Args::<PJRT_Plugin_Attributes_Args>::new();
        // SAFETY: the arguments hold outputs only; the attributes live as long as the process.
        unsafe {
            self.api.call(&mut args)?;
            Ok(named_value::from_plugin(
                args.attributes,
                args.num_attributes,
            ))
        }
    }

    /// The plugin's extensions, in the order in which it lists them.
    pub fn extensions(&self) -> Vec<Extension> {
        extension::all(&self.api).map(|(_, found)| found).collect()
    }

    pub(crate) fn api(&self) -> &Api {
        &self.api
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Plugin")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{cpu_plugin, cpu_plugin_path, scratch};

    #[test]
    fn a_plugin_loads_once_however_it_is_named() {
        let path = cpu_plugin_path();
        let roundabout = path
            .parent()
            .unwrap()
            .join(".")
            .join(path.file_name().unwrap());
        assert!(std::ptr::eq(cpu_plugin(), Plugin::load(&path).unwrap()));
        assert!(std::ptr::eq(
            cpu_plugin(),
            Plugin::load(&roundabout).unwrap()
        ));
    }

    #[test]
    fn a_plugin_loads_once_from_many_threads() {
        let path = cpu_plugin_path();
        let plugins: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| std::ptr::from_ref(Plugin::load(&path).unwrap()).addr()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(plugins.iter().all(|&plugin| plugin == plugins[0]));
    }

    #[test]
    fn a_plugin_tells_its_versions() {
        let plugin = cpu_plugin();
        assert_eq!(plugin.api_version().0, 0);
        assert!(plugin.api_version().1 >= 54);
        let attributes = plugin.attributes().unwrap();
        let version = attributes
            .iter()
            .find(|(name, _)| name == "stablehlo_current_version");
        assert!(
            matches!(version, Some((_, NamedValue::Int64List(numbers))) if numbers.len() == 3),
            "{attributes:?}"
        );
    }

    #[test]
    fn a_plugin_lists_the_ffi_extension() {
        let extensions = cpu_plugin().extensions();
        let ffi = extensions
            .iter()
            .find(|extension| extension.kind == 5)
            .unwrap();
        assert_eq!(ffi.name, Some("FFI"));
        assert!(ffi.struct_size >= 48, "{}", ffi.struct_size);
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Plugin::load(Path::new("/nowhere/plugin.so")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no PJRT plugin at /nowhere/plugin.so: there is no such file"
        );
    }

    #[test]
    fn a_text_file_is_no_shared_object() {
        let path = scratch("text.so", b"not a plugin\n");
        let error = Plugin::load(&path).unwrap_err();
        assert!(
            matches!(&error, Error::NotASharedObject { reason, .. } if !reason.is_empty()),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .contains("cannot be loaded as a shared object"),
            "{error}"
        );
    }

    #[test]
    fn a_directory_is_no_shared_object() {
        let error = Plugin::load(&std::env::temp_dir()).unwrap_err();
        assert!(matches!(error, Error::NotASharedObject { .. }), "{error}");
    }

    #[test]
    fn a_path_with_a_nul_is_no_shared_object() {
        let error = Plugin::load(Path::new("plugin\0.so")).unwrap_err();
        assert!(matches!(error, Error::NotASharedObject { .. }), "{error}");
    }

    #[test]
    fn a_shared_object_without_get_pjrt_api_is_no_plugin() {
        let path = crate::test_support::libm_path();
        let error = Plugin::load(&path).unwrap_err();
        assert!(matches!(error, Error::NoGetPjrtApi { .. }), "{error}");
        assert!(
            error.to_string().ends_with("it exports no GetPjrtApi"),
            "{error}"
        );
    }
}

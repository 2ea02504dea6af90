//! PJRT plugins: shared objects that carry a compiler and its devices.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Mutex, Once};

use once_cell::sync::{Lazy, OnceCell};
use pjrt_sys::*;
use sha2::{Digest, Sha256};

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
    /// The plugin's file, to be read once for its fingerprint.
    file: Option<File>,
    fingerprint: OnceCell<[u8; 32]>,
}

/// Sets the variable by which XLA's log is chosen, if nobody did.
fn quieten() {
    const VARIABLE: &str = "TF_CPP_MIN_LOG_LEVEL";
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os(VARIABLE).is_none() {
            std::env::set_var(VARIABLE, "3");
        }
    });
}

impl Plugin {
    /// Loads and initialises the plugin at `path`, or returns it if the same file was loaded before.
    ///
    /// A file is known by its canonical path: one that was replaced since is not loaded again.
    ///
    /// XLA's log, which plugins write to the terminal, is left to its fatal messages: XLA reads
    /// `TF_CPP_MIN_LOG_LEVEL` from the C environment, and where that variable is not set the first
    /// call of this function sets it to 3. Set it to 0 beforehand for all of the log. That is the
    /// one change that this crate makes to the environment. It is made under the standard library's
    /// lock, so it is safe beside Rust code; C code that reads the environment on another thread at
    /// that very moment is at risk with C libraries before glibc 2.41. Who cannot rule that out sets
    /// the variable before starting threads.
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
        quieten();
        // Before it is opened, which waits for whoever writes to a pipe.
        registry::check(&path)?;
        // Opened before it is loaded, so that it is the file that was loaded whatever becomes of
        // the path.
        let file = File::open(&path).ok();
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
            file,
            fingerprint: OnceCell::new(),
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

    /// The oldest StableHLO version that the plugin reads and the newest, as it tells them itself.
    pub fn stablehlo_versions(&self) -> Option<([i64; 3], [i64; 3])> {
        let attributes = self.attributes().ok()?;
        let version = |wanted: &str| {
            let found = attributes.iter().find(|(name, _)| name == wanted);
            match found {
                Some((_, NamedValue::Int64List(numbers))) => numbers.as_slice().try_into().ok(),
                _ => None,
            }
        };
        Some((
            version("stablehlo_minimum_version")?,
            version("stablehlo_current_version")?,
        ))
    }

    /// XLA's version as the plugin tells it: a number that counts revisions of its interfaces.
    pub fn xla_version(&self) -> Option<i64> {
        let attributes = self.attributes().ok()?;
        let found = attributes.iter().find(|(name, _)| name == "xla_version");
        match found {
            Some((_, NamedValue::Int64(number))) => Some(*number),
            _ => None,
        }
    }

    /// The SHA-256 of the plugin's file, which tells builds apart that call themselves the same.
    ///
    /// The first call reads the whole file, some hundred megabytes and some tenths of a second; the
    /// result is kept.
    ///
    /// # Errors
    /// [`Error::PluginUnreadable`].
    pub fn fingerprint(&self) -> Result<[u8; 32], Error> {
        let read = || {
            let mut file = self.file.as_ref().ok_or("it could not be opened")?;
            let mut hasher = Sha256::new();
            let mut chunk = vec![0; 1 << 20];
            file.rewind().map_err(|error| error.to_string())?;
            loop {
                match file.read(&mut chunk).map_err(|error| error.to_string())? {
                    0 => return Ok(hasher.finalize().into()),
                    count => hasher.update(&chunk[..count]),
                }
            }
        };
        let fingerprint = self.fingerprint.get_or_try_init(|| {
            read().map_err(|reason: String| Error::PluginUnreadable {
                path: self.path.clone(),
                reason,
            })
        });
        fingerprint.copied()
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

    /// Runs a test of this file in a process of its own; returns what XLA wrote to its terminal.
    fn log_of_a_client(level: Option<&str>) -> String {
        let test = "plugin::tests::a_client_comes_up";
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]);
        match level {
            Some(level) => command.env("TF_CPP_MIN_LOG_LEVEL", level),
            None => command.env_remove("TF_CPP_MIN_LOG_LEVEL"),
        };
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    #[test]
    fn a_client_comes_up() {
        let options = [("cpu_device_count".to_owned(), NamedValue::Int64(1))];
        crate::Client::new(cpu_plugin(), &options).unwrap();
    }

    #[test]
    fn the_log_is_off_unless_asked_for() {
        assert_eq!(log_of_a_client(None), "");
        assert!(log_of_a_client(Some("0")).contains("cpu_device_count"));
    }
}

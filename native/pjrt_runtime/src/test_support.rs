//! What the tests share: the plugin, a client of it, and small files.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::time::Duration;

use once_cell::sync::Lazy;

use crate::{Client, Handler, Plugin};
use xla_ffi::sys;

/// Adds two vectors of two floats.
pub(crate) const ADD: &str = "
module @add {
  func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}";

pub(crate) fn cpu_plugin_path() -> PathBuf {
    if let Some(path) = std::env::var_os("EXLA_CUSTOM_CALL_PJRT_CPU") {
        return path.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_default();
    let path = cache.join("exla_custom_call/plugins/cpu/pjrt_c_api_cpu_plugin.so");
    assert!(
        path.exists(),
        "no PJRT CPU plugin at {}: run `make plugin`, or set EXLA_CUSTOM_CALL_PJRT_CPU to one",
        path.display()
    );
    path
}

pub(crate) fn cpu_plugin() -> &'static Plugin {
    Plugin::load(&cpu_plugin_path()).unwrap()
}

/// Another build of the CPU plugin, from the directory of the first.
pub(crate) fn other_cpu_plugin() -> Option<&'static Plugin> {
    let path = cpu_plugin_path().canonicalize().unwrap();
    let siblings = path.parent()?.read_dir().ok()?;
    let other = siblings
        .filter_map(|entry| entry.ok()?.path().canonicalize().ok())
        .find(|other| *other != path && other.extension() == path.extension())?;
    Some(Plugin::load(&other).unwrap())
}

/// A client with two devices that all tests share.
pub(crate) fn client() -> &'static Client {
    static CLIENT: Lazy<Client> = Lazy::new(|| {
        let options = [("cpu_device_count".to_owned(), crate::NamedValue::Int64(2))];
        Client::new(cpu_plugin(), &options).unwrap()
    });
    &CLIENT
}

xla_ffi::export! {
    /// y = x.
    pub fn runtime_test_copy(x: xla_ffi::AnyArg) -> (y: xla_ffi::AnyRet)
    attrs { .. }
    {
        y.copy_from(&x)
    }

    /// y = x, after a while.
    pub fn runtime_test_sleep(x: xla_ffi::AnyArg) -> (y: xla_ffi::AnyRet)
    attrs { milliseconds: i64 }
    {
        std::thread::sleep(Duration::from_millis(milliseconds.unsigned_abs()));
        y.copy_from(&x)
    }

    /// An error.
    pub fn runtime_test_fail(x: xla_ffi::AnyArg) -> (y: xla_ffi::AnyRet) {
        y.copy_from(&x)?;
        Err(xla_ffi::Error::new(xla_ffi::Code::FailedPrecondition, "refused by the handler"))
    }
}

/// A handler of this program.
pub(crate) fn handler(
    function: unsafe extern "C" fn(*mut sys::CallFrame) -> *mut sys::Error,
) -> Handler {
    let address = NonNull::new(function as *mut c_void).unwrap();
    // SAFETY: `export!` makes handlers, and the program is not unloaded.
    unsafe { Handler::from_function(address, "the tests") }
}

/// Registers `runtime.copy`, `runtime.sleep` and `runtime.fail` with a client.
pub(crate) fn handlers(client: &Client) {
    let all = [
        (b"runtime.copy".as_slice(), handler(runtime_test_copy)),
        (b"runtime.sleep", handler(runtime_test_sleep)),
        (b"runtime.fail", handler(runtime_test_fail)),
    ];
    for (target, handler) in all {
        client.register_handler(target, &handler, 0).unwrap();
    }
}

/// A small file in a directory of this run's own, which other users' runs do not meet.
pub(crate) fn scratch(name: &str, content: &[u8]) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("pjrt_runtime-tests-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// The C library's mathematics, where this process has it from: a shared object and no plugin.
pub(crate) fn libm_path() -> PathBuf {
    // Loaded first, so that it is mapped.
    let library = crate::registry::open(Path::new("libm.so.6")).unwrap();
    let _ = library.into_raw();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .find(|path| path.contains("/libm.so") || path.contains("/libm-"));
    PathBuf::from(path.unwrap())
}

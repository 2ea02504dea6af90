//! What the tests share: the plugin, a client of it, and small files.

use std::path::{Path, PathBuf};

use once_cell::sync::Lazy;

use crate::{Client, Plugin};

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

/// A client with two devices that all tests share.
pub(crate) fn client() -> &'static Client {
    static CLIENT: Lazy<Client> = Lazy::new(|| {
        let options = [("cpu_device_count".to_owned(), crate::NamedValue::Int64(2))];
        Client::new(cpu_plugin(), &options).unwrap()
    });
    &CLIENT
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

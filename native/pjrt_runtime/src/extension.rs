//! A plugin's extensions: a linked list of tables behind the main one.

use std::ptr::NonNull;

use pjrt_sys::*;

use crate::api::Api;

/// The kind of the FFI extension in `PJRT_Extension_Type`.
pub(crate) const FFI: i32 = PJRT_Extension_Type_PJRT_Extension_Type_FFI as i32;

/// The kind of the Shardings extension, which came later than the header of `pjrt-sys`.
pub(crate) const SHARDINGS: i32 = 19;

/// More extensions than any plugin has: where a list goes on longer it runs in a circle.
const MOST: usize = 1_000;

/// One extension of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// The number in `PJRT_Extension_Type`.
    pub kind: i32,
    /// The name that the header gives the number, without its prefix; `None` for a newer one.
    pub name: Option<&'static str>,
    /// Bytes of the extension's table, which tell how many of its functions the plugin has.
    pub struct_size: usize,
}

/// Each extension with the address of its table.
pub(crate) fn all(api: &Api) -> impl Iterator<Item = (NonNull<PJRT_Extension_Base>, Extension)> {
    let mut next = NonNull::new(api.extension_start());
    std::iter::from_fn(move || {
        let base = next?;
        // SAFETY: the list is constant data of a plugin that stays loaded; every table in it begins
        // with PJRT_Extension_Base.
        let header = unsafe { base.read() };
        next = NonNull::new(header.next);
        let kind = header.type_.cast_signed();
        let found = Extension {
            kind,
            name: name(kind),
            struct_size: header.struct_size,
        };
        Some((base, found))
    })
    .take(MOST)
}

/// The names of `PJRT_Extension_Type` in the order of their numbers.
fn name(kind: i32) -> Option<&'static str> {
    const NAMES: [&str; 25] = [
        "GpuCustomCall",
        "Profiler",
        "CustomPartitioner",
        "Stream",
        "Layouts",
        "FFI",
        "MemoryDescriptions",
        "Triton",
        "RawBuffer",
        "PhaseCompile",
        "Example",
        "Unknown",
        "CrossHostTransfers",
        "ExecutableMetadata",
        "Callback",
        "HostAllocator",
        "TpuTopology",
        "TpuExecutable",
        "Megascale",
        "Shardings",
        "AbiVersion",
        "Collectives",
        "MultiSlice",
        "HostMemoryAllocator",
        "XlaTransform",
    ];
    NAMES.get(usize::try_from(kind).ok()?).copied()
}

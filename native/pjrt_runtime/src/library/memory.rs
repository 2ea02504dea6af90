//! What the dynamic loader has mapped, so that an address in a library's data can be doubted before it is
//! followed: one that points nowhere ends the process.

use std::path::{Path, PathBuf};

/// The segments of all shared objects and of the program, as they are now. None of those that this crate loads
/// is ever unloaded.
#[derive(Default)]
pub(super) struct Memory {
    segments: Vec<Segment>,
    /// The files of the objects, as the loader has them; empty for the program.
    objects: Vec<PathBuf>,
}

#[derive(Clone, Copy)]
struct Segment {
    start: usize,
    end: usize,
    flags: u32,
    /// An index into the objects.
    object: usize,
}

/// `PF_X`, `PF_W` and `PF_R` of `elf.h`.
const EXECUTE: u32 = 1;
const WRITE: u32 = 2;
const READ: u32 = 4;

impl Memory {
    /// Whether the bytes are data of a shared object.
    pub(super) fn is_readable(&self, address: usize, size: usize) -> bool {
        self.has(address, size, READ)
    }

    /// Whether the bytes are data that may be written to.
    pub(super) fn is_writable(&self, address: usize, size: usize) -> bool {
        self.has(address, size, WRITE)
    }

    /// Whether there is code.
    pub(super) fn is_code(&self, address: usize) -> bool {
        self.has(address, 1, EXECUTE)
    }

    /// The file that an address is in, where that is known.
    pub(super) fn object(&self, address: usize) -> Option<&Path> {
        let mut segments = self.segments.iter();
        let segment = segments.find(|segment| (segment.start..segment.end).contains(&address))?;
        self.objects.get(segment.object).map(PathBuf::as_path)
    }

    fn has(&self, address: usize, size: usize, flag: u32) -> bool {
        let Some(end) = address.checked_add(size) else {
            return false;
        };
        if address == 0 {
            return false;
        }
        !cfg!(all(target_os = "linux", target_pointer_width = "64"))
            || self.segments.iter().any(|segment| {
                segment.flags & flag != 0 && segment.start <= address && end <= segment.end
            })
    }

    /// Elsewhere nothing is known, and everything but null is believed.
    #[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
    pub(super) fn now() -> Self {
        Self::default()
    }

    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    pub(super) fn now() -> Self {
        use std::ffi::{c_char, c_int, c_void, CStr, OsStr};
        use std::os::unix::ffi::OsStrExt;

        /// The beginning of `dl_phdr_info` of `link.h`.
        #[repr(C)]
        struct Object {
            base: usize,
            name: *const c_char,
            headers: *const Header,
            header_count: u16,
        }

        /// `Elf64_Phdr` of `elf.h`.
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Header {
            kind: u32,
            flags: u32,
            offset: u64,
            address: u64,
            physical_address: u64,
            file_size: u64,
            memory_size: u64,
            align: u64,
        }

        /// `PT_LOAD`.
        const LOADED: u32 = 1;

        type Callback = unsafe extern "C" fn(*mut Object, usize, *mut c_void) -> c_int;

        extern "C" {
            fn dl_iterate_phdr(callback: Callback, data: *mut c_void) -> c_int;
        }

        unsafe extern "C" fn note(object: *mut Object, _: usize, memory: *mut c_void) -> c_int {
            // SAFETY: the loader lends the object for this call; the last is the memory below.
            let (object, memory) = unsafe { (&*object, &mut *memory.cast::<Memory>()) };
            if object.headers.is_null() {
                return 0;
            }
            let name = if object.name.is_null() {
                &[]
            } else {
                // SAFETY: the loader's own string.
                unsafe { CStr::from_ptr(object.name) }.to_bytes()
            };
            memory.objects.push(OsStr::from_bytes(name).into());
            let index = memory.objects.len() - 1;
            // SAFETY: the loader's headers of the object, as many as it says.
            let headers =
                unsafe { std::slice::from_raw_parts(object.headers, object.header_count.into()) };
            memory
                .segments
                .extend(
                    headers
                        .iter()
                        .filter(|header| header.kind == LOADED)
                        .map(|header| {
                            let start = object.base.wrapping_add(header.address as usize);
                            Segment {
                                start,
                                end: start.wrapping_add(header.memory_size as usize),
                                flags: header.flags,
                                object: index,
                            }
                        }),
                );
            0
        }

        let mut memory = Self::default();
        // SAFETY: the callback takes what it is given here, and does not unwind.
        unsafe { dl_iterate_phdr(note, (&raw mut memory).cast()) };
        memory
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI64;

    #[test]
    fn code_and_data_of_this_program() {
        static TEXT: &str = "text";
        static NUMBER: AtomicI64 = AtomicI64::new(1);
        let memory = Memory::now();
        let code = Memory::now as fn() -> Memory as usize;
        let text = TEXT.as_ptr().addr();
        let number = NUMBER.as_ptr().addr();
        let on_the_heap = Box::new(1);
        let heap = std::ptr::from_ref(&*on_the_heap).addr();
        assert!(memory.is_code(code) && !memory.is_writable(code, 1));
        assert!(memory.is_readable(text, 4) && !memory.is_code(number));
        assert!(memory.is_writable(number, 8) && !memory.is_writable(text, 4));
        for nowhere in [0, 1, heap, usize::MAX] {
            assert!(!memory.is_readable(nowhere, 1) && !memory.is_code(nowhere));
        }
        assert!(!memory.is_readable(text, usize::MAX) && !memory.is_readable(text, usize::MAX / 2));
    }
}

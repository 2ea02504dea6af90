//! Views: a buffer's bytes read where they lie.

use std::fmt;
use std::ops::Deref;
use std::ptr::{with_exposed_provenance, NonNull};

use crate::buffer::Buffer;

/// A result's bytes in memory of the host, in row-major order: those of a buffer where they lie, or
/// a copy where they do not lie so. It keeps the memory, which nothing writes to meanwhile.
pub struct View {
    source: Source,
    data: NonNull<u8>,
    len: usize,
}

enum Source {
    /// A buffer with a hold of its memory.
    Buffer(Buffer),
    /// Bytes that `data` points to.
    Copy { _bytes: Vec<u8> },
}

// SAFETY: the bytes are only read, and the hold may be given up on any thread.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Takes over a hold of the buffer's memory; gives it up where there are bytes but no address.
    ///
    /// # Safety
    /// The memory at the address `data`, 0 for none, has `len` bytes that stay readable and
    /// unchanged while the hold is kept.
    pub(crate) unsafe fn new(buffer: Buffer, data: usize, len: usize) -> Option<Self> {
        let address = NonNull::new(with_exposed_provenance::<u8>(data).cast_mut());
        match address {
            Some(data) => Some(Self {
                source: Source::Buffer(buffer),
                data,
                len,
            }),
            None if len == 0 => Some(Self {
                source: Source::Buffer(buffer),
                data: NonNull::dangling(),
                len,
            }),
            None => {
                // SAFETY: the hold is this function's, and there is no memory to use.
                unsafe { buffer.release() };
                None
            }
        }
    }

    pub(crate) fn copied(bytes: Vec<u8>) -> Self {
        Self {
            data: NonNull::from(bytes.as_slice()).cast(),
            len: bytes.len(),
            source: Source::Copy { _bytes: bytes },
        }
    }

    /// The buffer that the bytes are of; `None` for a copy.
    pub fn buffer(&self) -> Option<&Buffer> {
        match &self.source {
            Source::Buffer(buffer) => Some(buffer),
            Source::Copy { .. } => None,
        }
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new` was promised these bytes for as long as the hold is kept; a copy's are kept
        // with it.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Source::Buffer(buffer) = &self.source {
            // SAFETY: the hold is the view's, and no borrow of the bytes outlives it.
            unsafe { buffer.release() };
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.buffer() {
            Some(buffer) => write!(formatter, "View({} bytes of {buffer:?})", self.len),
            None => write!(formatter, "View({} bytes)", self.len),
        }
    }
}

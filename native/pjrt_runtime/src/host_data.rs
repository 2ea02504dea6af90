//! Bytes in host memory that a device may use where they lie.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::HostInput;
use crate::element_type::ElementType;

/// The alignment from which on XLA's CPU plugins use host memory where it lies; they copy what is
/// aligned to less. Measured on both builds that the tests run on.
pub const ZERO_COPY_ALIGNMENT: usize = 64;

/// Bytes in host memory, with the owner that keeps them there. Clones share the owner.
///
/// The owner is dropped when the last clone is, and the plugin's share in it when the plugin needs
/// the bytes no more: on whatever thread that happens, one of the plugin's own included.
#[derive(Clone)]
pub struct HostData {
    data: NonNull<u8>,
    len: usize,
    /// Held for its `Drop` alone.
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the bytes are only read, and the owner may be dropped on any thread.
unsafe impl Send for HostData {}
// SAFETY: as above.
unsafe impl Sync for HostData {}

impl HostData {
    /// The bytes of `owner`, such as a `Vec<u8>` or a memory map.
    pub fn new<T>(owner: T) -> Self
    where
        T: AsRef<[u8]> + Send + Sync + 'static,
    {
        // In its place first, since the bytes may be in the owner itself. From here on the owner is
        // neither moved nor mutably borrowed, so the bytes stay what they are.
        let owner = Arc::new(owner);
        let bytes: &[u8] = (*owner).as_ref();
        Self {
            data: NonNull::from(bytes).cast(),
            len: bytes.len(),
            owner,
        }
    }

    /// Bytes that `owner` keeps alive.
    ///
    /// # Safety
    /// `data` points to `len` readable bytes, which nobody writes to, moves or frees before `owner`
    /// is dropped.
    pub unsafe fn from_raw_parts(
        data: NonNull<u8>,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { data, len, owner }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the owner is alive and keeps the bytes.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }

    /// Whether XLA's CPU plugins can use the bytes where they lie.
    pub fn is_aligned(&self) -> bool {
        self.data.addr().get().is_multiple_of(ZERO_COPY_ALIGNMENT)
    }

    pub(crate) fn into_owner(self) -> Arc<dyn Any + Send + Sync> {
        self.owner
    }
}

impl AsRef<[u8]> for HostData {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for HostData {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "HostData({} bytes)", self.len)
    }
}

/// A tensor in host memory that the device may use where it lies: its bytes in row-major order,
/// without gaps.
#[derive(Clone, Debug)]
pub struct OwnedInput<'a> {
    /// `element_type.byte_width()` bytes for each element, in the machine's byte order.
    pub data: HostData,
    pub element_type: ElementType,
    /// The size of each dimension, most major first; empty for a scalar.
    pub dimensions: &'a [i64],
}

impl OwnedInput<'_> {
    /// The same tensor, borrowed.
    pub fn borrow(&self) -> HostInput<'_> {
        HostInput {
            data: self.data.as_slice(),
            element_type: self.element_type,
            dimensions: self.dimensions,
        }
    }
}

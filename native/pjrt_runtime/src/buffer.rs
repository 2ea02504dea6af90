//! Buffers: tensors in a device's memory.

use std::fmt;
use std::ptr::{null_mut, NonNull};

use pjrt_sys::*;

use crate::api::slice;
use crate::args::Args;
use crate::client::Client;
use crate::element_type::{self, ElementType, TensorType};
use crate::event::Event;
use crate::Error;

/// A tensor in host memory: its bytes in row-major order, without gaps.
#[derive(Clone, Copy, Debug)]
pub struct HostInput<'a> {
    /// `element_type.byte_width()` bytes for each element, in the machine's byte order.
    pub data: &'a [u8],
    pub element_type: ElementType,
    /// The size of each dimension, most major first; empty for a scalar.
    pub dimensions: &'a [i64],
}

impl HostInput<'_> {
    /// The type without the bytes.
    pub fn tensor_type(&self) -> TensorType {
        TensorType {
            element_type: self.element_type,
            dimensions: self.dimensions.to_vec(),
        }
    }

    /// Checks that the bytes fill type and shape, so that the plugin reads no byte behind them.
    pub(crate) fn check(&self, index: usize) -> Result<(), Error> {
        if self.element_type == ElementType::Token {
            return Err(Error::NoHostBytes {
                element_type: self.element_type,
            });
        }
        let expected = element_type::byte_size(self.element_type, self.dimensions);
        let expected = expected.ok_or_else(|| Error::InputShape {
            index,
            reason: format!(
                "{} has a negative dimension or more bytes than memory can have",
                self.tensor_type()
            ),
        })?;
        if self.data.len() == expected {
            return Ok(());
        }
        Err(Error::InputSize {
            index,
            tensor: self.tensor_type(),
            expected,
            found: self.data.len(),
        })
    }
}

/// A buffer on a device. It keeps its client alive; dropping it frees the device memory once all
/// work that uses it is done.
pub struct Buffer {
    client: Client,
    raw: NonNull<PJRT_Buffer>,
}

// SAFETY: PJRT buffers may be used and freed from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; no method takes the buffer's memory away while another one uses it, for the
// plugin keeps the memory until the work that uses it is done.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Copies a tensor to the device with the id `device`, in that platform's default layout.
    /// The host's bytes are free again when this returns.
    ///
    /// # Errors
    /// [`Error::InputSize`] or [`Error::InputShape`] with index 0, [`Error::NoHostBytes`] for a
    /// token, [`Error::NoSuchDevice`], [`Error::Pjrt`].
    pub fn from_host(client: &Client, device: i32, input: &HostInput<'_>) -> Result<Self, Error> {
        input.check(0)?;
        Self::from_checked(client, client.device_handle(device)?, input)
    }

    /// Copies an input whose size was checked.
    pub(crate) fn from_checked(
        client: &Client,
        device: NonNull<PJRT_Device>,
        input: &HostInput<'_>,
    ) -> Result<Self, Error> {
        let plugin = client.plugin();
        let mut args = Args::<PJRT_Client_BufferFromHostBuffer_Args>::new();
        args.client = client.raw().as_ptr();
        args.data = input.data.as_ptr().cast();
        args.type_ = input.element_type.code();
        args.dims = input.dimensions.as_ptr();
        args.num_dims = input.dimensions.len();
        args.host_buffer_semantics =
            PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
        args.device = device.as_ptr();
        // SAFETY: the client, its device and the input are alive, and the input has as many bytes
        // as its type and shape say. The borrow of its bytes outlasts the transfer: the event that
        // says so is awaited below.
        let (done, buffer) = unsafe {
            plugin.api().call(&mut args)?;
            let done = Event::from_raw(plugin, args.done_with_host_buffer);
            (done, Self::from_raw(client, args.buffer))
        };
        if let Some(done) = done {
            done.wait()?;
        }
        buffer.ok_or(Error::NullResult {
            name: "PJRT_Client_BufferFromHostBuffer",
            what: "buffer",
        })
    }

    /// Takes over a buffer that the plugin returned.
    ///
    /// # Safety
    /// `raw` is null or a buffer of `client` that nobody else will free.
    pub(crate) unsafe fn from_raw(client: &Client, raw: *mut PJRT_Buffer) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self {
            client: client.clone(),
            raw,
        })
    }

    /// The client that the buffer is of.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The buffer's element type and shape.
    ///
    /// # Errors
    /// [`Error::UnknownElementType`], [`Error::Pjrt`].
    pub fn tensor_type(&self) -> Result<TensorType, Error> {
        let api = self.client.plugin().api();
        let mut element_type = Args::<PJRT_Buffer_ElementType_Args>::new();
        element_type.buffer = self.raw.as_ptr();
        let mut dimensions = Args::<PJRT_Buffer_Dimensions_Args>::new();
        dimensions.buffer = self.raw.as_ptr();
        // SAFETY: the buffer is alive, and the dimensions live as long.
        unsafe {
            api.call(&mut element_type)?;
            api.call(&mut dimensions)?;
            Ok(TensorType {
                element_type: element_type::from_plugin(element_type.type_)?,
                dimensions: slice(dimensions.dims, dimensions.num_dims).to_vec(),
            })
        }
    }

    /// Copies the tensor to the host: its bytes in row-major order, whatever its layout on the
    /// device. Waits for work that the tensor comes from.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::NoHostBytes`] for a token, [`Error::Pjrt`] with what went wrong
    /// in the transfer or in that work.
    pub fn to_host(&self) -> Result<Vec<u8>, Error> {
        if self.is_deleted()? {
            return Err(Error::Deleted { what: "buffer" });
        }
        let TensorType {
            element_type,
            dimensions,
        } = self.tensor_type()?;
        if element_type == ElementType::Token {
            return Err(Error::NoHostBytes { element_type });
        }
        self.to_host_as(element_type, dimensions.len())
    }

    /// Copies a tensor of a known type and rank to the host.
    pub(crate) fn to_host_as(
        &self,
        element_type: ElementType,
        rank: usize,
    ) -> Result<Vec<u8>, Error> {
        if let Some(bytes) = self.read_cpu_memory(element_type, rank) {
            return Ok(bytes);
        }
        let plugin = self.client.plugin();
        // Without a host layout the bytes come as they lie on the device. Below two dimensions
        // there is one layout only.
        let minor_to_major: Vec<i64> = (0..rank as i64).rev().collect();
        let mut layout = Args::<PJRT_Buffer_MemoryLayout>::new();
        layout.type_ = PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Tiled;
        layout.__bindgen_anon_1.tiled = PJRT_Buffer_MemoryLayout_Tiled {
            struct_size: size_of::<PJRT_Buffer_MemoryLayout_Tiled>(),
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            ..Default::default()
        };
        let host_layout = if rank < 2 {
            null_mut()
        } else {
            layout.as_mut_ptr()
        };

        let mut args = Args::<PJRT_Buffer_ToHostBuffer_Args>::new();
        args.src = self.raw.as_ptr();
        args.host_layout = host_layout;
        // SAFETY: the buffer and the layout are alive; a null destination asks for the size.
        let asked = unsafe {
            plugin.api().call(&mut args)?;
            Event::from_raw(plugin, args.event)
        };
        drop(asked);
        let size = args.dst_size;

        let mut bytes: Vec<u8> = Vec::with_capacity(size);
        let mut args = Args::<PJRT_Buffer_ToHostBuffer_Args>::new();
        args.src = self.raw.as_ptr();
        args.host_layout = host_layout;
        args.dst = bytes.as_mut_ptr().cast();
        args.dst_size = size;
        // SAFETY: `bytes` has room for as many bytes as the plugin asked for and is neither moved
        // nor freed before the event says that the transfer is over.
        let done = unsafe {
            plugin.api().call(&mut args)?;
            Event::from_raw(plugin, args.event)
        };
        if let Some(done) = done {
            done.wait()?;
        }
        // SAFETY: the transfer was successful, so all bytes are written.
        unsafe { bytes.set_len(size) };
        element_type.widen(&mut bytes);
        Ok(bytes)
    }

    /// Reads the bytes where they lie, if that is memory of the host and they lie as they should.
    ///
    /// The plugin's own transfer hands even the smallest copy to another thread: ten times the time.
    /// `None` leaves everything, errors too, to that transfer.
    fn read_cpu_memory(&self, element_type: ElementType, rank: usize) -> Option<Vec<u8>> {
        // Below a byte the elements are packed on the device.
        if element_type.bit_width() < 8 {
            return None;
        }
        let plugin = self.client.plugin();
        let api = plugin.api();
        let mut on_cpu = Args::<PJRT_Buffer_IsOnCpu_Args>::new();
        on_cpu.buffer = self.raw.as_ptr();
        // SAFETY: the buffer is alive.
        unsafe { api.call(&mut on_cpu) }.ok()?;
        if !on_cpu.is_on_cpu || (rank >= 2 && !self.is_row_major()) {
            return None;
        }
        // Asked of the transfer, which knows the actual size where the shape has a bound only.
        let mut size = Args::<PJRT_Buffer_ToHostBuffer_Args>::new();
        size.src = self.raw.as_ptr();
        // SAFETY: the buffer is alive; a null destination asks for the size.
        unsafe { api.call(&mut size) }.ok()?;

        let mut ready = Args::<PJRT_Buffer_ReadyEvent_Args>::new();
        ready.buffer = self.raw.as_ptr();
        // SAFETY: the buffer is alive, and the event is this caller's to free.
        let ready = unsafe {
            api.call(&mut ready).ok()?;
            Event::from_raw(plugin, ready.event)
        };
        ready?.wait().ok()?;

        let held = ExternalReference::new(self)?;
        let mut memory = Args::<PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args>::new();
        memory.buffer = self.raw.as_ptr();
        // SAFETY: the buffer is alive.
        unsafe { api.call(&mut memory) }.ok()?;
        // SAFETY: on a CPU device the pointer is one of this process. The memory has `dst_size`
        // bytes, written by the work that was awaited, and the reference keeps it.
        let bytes = unsafe { slice(memory.device_memory_ptr.cast::<u8>(), size.dst_size) };
        let bytes = (bytes.len() == size.dst_size).then(|| bytes.to_vec());
        drop(held);
        bytes
    }

    /// Whether the device layout is that of a host tensor.
    fn is_row_major(&self) -> bool {
        let mut args = Args::<PJRT_Buffer_GetMemoryLayout_Args>::new();
        args.buffer = self.raw.as_ptr();
        // SAFETY: the buffer is alive. The type says which field of the union was written, and its
        // list lives as long as the buffer.
        unsafe {
            if self.client.plugin().api().call(&mut args).is_err()
                || args.layout.type_
                    != PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Tiled
            {
                return false;
            }
            let tiled = args.layout.__bindgen_anon_1.tiled;
            let order = slice(tiled.minor_to_major, tiled.minor_to_major_size);
            tiled.num_tiles == 0 && order.iter().rev().copied().eq(0..order.len() as i64)
        }
    }

    /// Gives up the device memory now; what uses it already goes on. The buffer can be used no more.
    ///
    /// # Errors
    /// [`Error::Pjrt`].
    pub fn delete(&self) -> Result<(), Error> {
        let mut args = Args::<PJRT_Buffer_Delete_Args>::new();
        args.buffer = self.raw.as_ptr();
        // SAFETY: the buffer is alive.
        unsafe { self.client.plugin().api().call(&mut args) }
    }

    /// Whether the device memory was given up, by [`delete`](Self::delete) or by donation.
    ///
    /// # Errors
    /// [`Error::Pjrt`].
    pub fn is_deleted(&self) -> Result<bool, Error> {
        let mut args = Args::<PJRT_Buffer_IsDeleted_Args>::new();
        args.buffer = self.raw.as_ptr();
        // SAFETY: the buffer is alive.
        unsafe { self.client.plugin().api().call(&mut args) }?;
        Ok(args.is_deleted)
    }

    pub(crate) fn raw(&self) -> NonNull<PJRT_Buffer> {
        self.raw
    }
}

/// Keeps the memory of a buffer where it is, even if the buffer is deleted meanwhile.
struct ExternalReference<'a> {
    buffer: &'a Buffer,
}

impl<'a> ExternalReference<'a> {
    fn new(buffer: &'a Buffer) -> Option<Self> {
        let mut args = Args::<PJRT_Buffer_IncreaseExternalReferenceCount_Args>::new();
        args.buffer = buffer.raw.as_ptr();
        // SAFETY: the buffer is alive.
        unsafe { buffer.client.plugin().api().call(&mut args) }.ok()?;
        Some(Self { buffer })
    }
}

impl Drop for ExternalReference<'_> {
    fn drop(&mut self) {
        let mut args = Args::<PJRT_Buffer_DecreaseExternalReferenceCount_Args>::new();
        args.buffer = self.buffer.raw.as_ptr();
        // SAFETY: the buffer is alive, and the count was increased.
        let _ = unsafe { self.buffer.client.plugin().api().call(&mut args) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut args = Args::<PJRT_Buffer_Destroy_Args>::new();
        args.buffer = self.raw.as_ptr();
        // SAFETY: this is the buffer's only owner, and its client is alive.
        let _ = unsafe { self.client.plugin().api().call(&mut args) };
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tensor_type() {
            Ok(tensor) => write!(formatter, "Buffer({tensor})"),
            Err(error) => write!(formatter, "Buffer({error})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::client;

    #[test]
    fn a_buffer_holds_a_copy() {
        let mut data: Vec<u8> = (0..24).collect();
        let input = HostInput {
            data: &data,
            element_type: ElementType::S16,
            dimensions: &[3, 4],
        };
        let buffer = Buffer::from_host(client(), 1, &input).unwrap();
        data.fill(0);
        assert_eq!(
            buffer.tensor_type(),
            Ok(TensorType {
                element_type: ElementType::S16,
                dimensions: vec![3, 4],
            })
        );
        assert_eq!(buffer.to_host(), Ok((0..24).collect()));
    }

    #[test]
    fn a_buffer_of_many_bytes_arrives_whole() {
        let data: Vec<u8> = (0..4_000_000u32).map(|index| (index % 251) as u8).collect();
        let input = HostInput {
            data: &data,
            element_type: ElementType::U8,
            dimensions: &[1_000, 4_000],
        };
        let buffer = Buffer::from_host(client(), 0, &input).unwrap();
        assert_eq!(buffer.to_host(), Ok(data));
    }

    #[test]
    fn a_deleted_buffer_is_an_error() {
        let input = HostInput {
            data: &[1],
            element_type: ElementType::U8,
            dimensions: &[],
        };
        let buffer = Buffer::from_host(client(), 0, &input).unwrap();
        assert_eq!(buffer.is_deleted(), Ok(false));
        buffer.delete().unwrap();
        assert_eq!(buffer.is_deleted(), Ok(true));
        assert_eq!(
            buffer.to_host().unwrap_err().to_string(),
            "the buffer was deleted and can be used no more"
        );
    }

    #[test]
    fn a_buffer_on_a_device_that_is_not_there_is_an_error() {
        let input = HostInput {
            data: &[1],
            element_type: ElementType::U8,
            dimensions: &[],
        };
        assert_eq!(
            Buffer::from_host(client(), 9, &input).unwrap_err(),
            Error::NoSuchDevice {
                id: 9,
                available: vec![0, 1],
            }
        );
    }
}

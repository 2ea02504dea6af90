//! Buffers: tensors in a device's memory.

use std::any::Any;
use std::fmt;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pjrt_sys::*;

use crate::api::slice;
use crate::args::Args;
use crate::client::Client;
use crate::element_type::{self, ElementType, TensorType};
use crate::event::Event;
use crate::gate::{Gate, Pass};
use crate::host_data::OwnedInput;
use crate::layout::Layout;
use crate::view::View;
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
        self.check_len(index, |expected| expected == self.data.len())
    }

    /// Checks that the plugin reads no byte behind the end, where dimension `i` has its elements
    /// `byte_strides[i]` bytes apart.
    fn check_strides(&self, byte_strides: &[i64]) -> Result<(), Error> {
        let wrong = |reason: String| Err(Error::InputShape { index: 0, reason });
        if self.element_type.bit_width() < 8 {
            return wrong(format!("{} has no byte strides", self.tensor_type()));
        }
        if byte_strides.len() != self.dimensions.len() {
            return wrong(format!(
                "{} has {} dimensions, {} byte strides were given",
                self.tensor_type(),
                self.dimensions.len(),
                byte_strides.len()
            ));
        }
        // Refuses negative dimensions and sizes that overflow; an empty tensor is read nowhere.
        let mut empty = false;
        self.check_len(0, |expected| {
            empty = expected == 0;
            true
        })?;
        if empty {
            return Ok(());
        }
        let width = self.element_type.byte_width();
        let mut end = Some(width);
        for (&size, &stride) in self.dimensions.iter().zip(byte_strides) {
            let Some(stride) = usize::try_from(stride)
                .ok()
                .filter(|stride| stride % width == 0)
            else {
                return wrong(format!(
                    "byte stride {stride} is negative or not a multiple of the {width} bytes of \
                     {}",
                    self.element_type
                ));
            };
            let steps = usize::try_from(size).unwrap_or(1).saturating_sub(1);
            end = stride
                .checked_mul(steps)
                .and_then(|reach| end?.checked_add(reach));
        }
        match end {
            Some(end) if end <= self.data.len() => Ok(()),
            _ => Err(Error::InputSize {
                index: 0,
                tensor: self.tensor_type(),
                expected: end.unwrap_or(usize::MAX),
                found: self.data.len(),
            }),
        }
    }

    fn check_len(&self, index: usize, fits: impl FnOnce(usize) -> bool) -> Result<(), Error> {
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
        if fits(expected) {
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

/// A buffer on a device. Clones are the same buffer. It keeps its client alive; dropping the last
/// clone frees the device memory once all work that uses it is done.
#[derive(Clone)]
pub struct Buffer {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    raw: NonNull<PJRT_Buffer>,
    /// Whether an execution was given the memory.
    donated: AtomicBool,
    external: Mutex<External>,
    gate: Gate,
}

/// What is known of the external reference that views hold together. The plugin keeps a buffer's
/// references in a list that it does not lock.
#[derive(Default)]
struct External {
    views: usize,
    /// Where the memory is, while there are views; null for no bytes.
    data: usize,
    /// Whether the memory is being given up: the plugin ends the process where it is asked for the
    /// address at that moment.
    deleting: bool,
}

// SAFETY: PJRT buffers may be used and freed from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above; no method takes the buffer's memory away while another one uses it, for the
// plugin keeps the memory until the work that uses it is done.
unsafe impl Sync for Inner {}

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

    /// The same for a tensor that does not lie in row-major order without gaps: the elements along
    /// dimension `i` are `byte_strides[i]` bytes apart, a multiple of the element's width; 0 repeats
    /// one element. `input.data` begins with the first element and may go on behind the last.
    ///
    /// # Errors
    /// Those of [`from_host`](Self::from_host); [`Error::InputShape`] also for negative strides and
    /// for element types below a byte.
    pub fn from_host_strided(
        client: &Client,
        device: i32,
        input: &HostInput<'_>,
        byte_strides: &[i64],
    ) -> Result<Self, Error> {
        input.check_strides(byte_strides)?;
        let device = client.device_handle(device)?;
        // SAFETY: the strides were checked against the bytes, which are borrowed until the event
        // that the transfer is over was awaited.
        unsafe { Self::copy(client, device, input, byte_strides) }
    }

    /// Hands a tensor to the device with the id `device`, without a copy where the device is a CPU,
    /// the bytes lie at a multiple of [`ZERO_COPY_ALIGNMENT`](crate::ZERO_COPY_ALIGNMENT) and the
    /// elements have at least a byte; with one copy elsewhere. Does not wait for it.
    ///
    /// The plugin lets go of the owner of the bytes on whatever thread is done with them: when the
    /// buffer and all that uses it is gone, or, where it copied, when the copy is made. The bytes
    /// are never written to: an execution that is given the memory takes a copy.
    ///
    /// # Errors
    /// Those of [`from_host`](Self::from_host).
    pub fn from_host_zero_copy(
        client: &Client,
        device: i32,
        input: OwnedInput<'_>,
    ) -> Result<Self, Error> {
        input.borrow().check(0)?;
        Self::from_checked_zero_copy(client, client.device_handle(device)?, input)
    }

    /// Copies an input whose size was checked.
    pub(crate) fn from_checked(
        client: &Client,
        device: NonNull<PJRT_Device>,
        input: &HostInput<'_>,
    ) -> Result<Self, Error> {
        // SAFETY: the input has as many bytes as its type and shape say. The borrow of them
        // outlasts the transfer, which is awaited.
        unsafe { Self::copy(client, device, input, &[]) }
    }

    /// # Safety
    /// The bytes reach as far as type, shape and strides say; no strides are those of a row-major
    /// tensor.
    unsafe fn copy(
        client: &Client,
        device: NonNull<PJRT_Device>,
        input: &HostInput<'_>,
        byte_strides: &[i64],
    ) -> Result<Self, Error> {
        const SEMANTICS: PJRT_HostBufferSemantics =
            PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
        // SAFETY: the caller vouches for the bytes, whose borrow lasts until the event was awaited.
        let (done, buffer) =
            unsafe { Self::transfer(client, device, input, byte_strides, SEMANTICS) }?;
        if let Some(done) = done {
            done.wait()?;
        }
        buffer
    }

    /// Hands over an input whose size was checked.
    pub(crate) fn from_checked_zero_copy(
        client: &Client,
        device: NonNull<PJRT_Device>,
        input: OwnedInput<'_>,
    ) -> Result<Self, Error> {
        const SEMANTICS: PJRT_HostBufferSemantics =
            PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableZeroCopy;
        // SAFETY: the input has as many bytes as its type and shape say. Their owner is dropped
        // below, when the plugin says that it is done with them.
        let (done, buffer) =
            unsafe { Self::transfer(client, device, &input.borrow(), &[], SEMANTICS) }?;
        let owner: Arc<dyn Any + Send + Sync> = input.data.into_owner();
        match done {
            Some(done) => done.on_ready(move |_| drop(owner)),
            // By the header there is an event. Without one nobody says when the owner may go.
            None => std::mem::forget(owner),
        }
        buffer
    }

    /// Starts a transfer. What the plugin left out of its answer is an error of the inner result:
    /// the event counts all the same.
    ///
    /// # Safety
    /// The bytes reach as far as type, shape and strides say, and stay until the event is ready.
    unsafe fn transfer(
        client: &Client,
        device: NonNull<PJRT_Device>,
        input: &HostInput<'_>,
        byte_strides: &[i64],
        semantics: PJRT_HostBufferSemantics,
    ) -> Result<(Option<Event>, Result<Self, Error>), Error> {
        let plugin = client.plugin();
        let mut args = Args::<PJRT_Client_BufferFromHostBuffer_Args>::new();
        args.client = client.raw().as_ptr();
        args.data = input.data.as_ptr().cast();
        args.type_ = input.element_type.code();
        args.dims = input.dimensions.as_ptr();
        args.num_dims = input.dimensions.len();
        // Left null where there are none: plugins differ in which of the two fields they look at.
        if !byte_strides.is_empty() {
            args.byte_strides = byte_strides.as_ptr();
            args.num_byte_strides = byte_strides.len();
        }
        args.host_buffer_semantics = semantics;
        args.device = device.as_ptr();
        // SAFETY: the client, its device and the lists are alive, and the caller vouches for the
        // bytes.
        let (done, buffer) = unsafe {
            plugin.api().call(&mut args)?;
            let done = Event::from_raw(plugin, args.done_with_host_buffer);
            (done, Self::from_raw(client, args.buffer))
        };
        let buffer = buffer.ok_or(Error::NullResult {
            name: "PJRT_Client_BufferFromHostBuffer",
            what: "buffer",
        });
        Ok((done, buffer))
    }

    /// Takes over a buffer that the plugin returned.
    ///
    /// # Safety
    /// `raw` is null or a buffer of `client` that nobody else will free.
    pub(crate) unsafe fn from_raw(client: &Client, raw: *mut PJRT_Buffer) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self {
            inner: Arc::new(Inner {
                client: client.clone(),
                raw,
                donated: AtomicBool::new(false),
                external: Mutex::default(),
                gate: Gate::default(),
            }),
        })
    }

    /// The client that the buffer is of.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// The buffer's element type and shape.
    ///
    /// # Errors
    /// [`Error::UnknownElementType`], [`Error::Pjrt`].
    pub fn tensor_type(&self) -> Result<TensorType, Error> {
        let api = self.client().plugin().api();
        let mut element_type = Args::<PJRT_Buffer_ElementType_Args>::new();
        element_type.buffer = self.raw().as_ptr();
        let mut dimensions = Args::<PJRT_Buffer_Dimensions_Args>::new();
        dimensions.buffer = self.raw().as_ptr();
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

    /// How the elements lie in the device's memory.
    ///
    /// # Errors
    /// [`Error::Pjrt`], [`Error::MissingFunction`].
    pub fn layout(&self) -> Result<Layout, Error> {
        // SAFETY: the layout is copied while the buffer is alive.
        self.with_layout(|layout| unsafe { Layout::from_plugin(layout) })
    }

    fn with_layout<T>(
        &self,
        read: impl FnOnce(&PJRT_Buffer_MemoryLayout) -> T,
    ) -> Result<T, Error> {
        let mut args = Args::<PJRT_Buffer_GetMemoryLayout_Args>::new();
        args.buffer = self.raw().as_ptr();
        // SAFETY: the buffer is alive.
        unsafe { self.client().plugin().api().call(&mut args) }?;
        Ok(read(&args.layout))
    }

    /// Bytes that the buffer takes on the device, padding included.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Pjrt`].
    pub fn on_device_size(&self) -> Result<usize, Error> {
        self.check_alive()?;
        let mut args = Args::<PJRT_Buffer_OnDeviceSizeInBytes_Args>::new();
        args.buffer = self.raw().as_ptr();
        // SAFETY: the buffer is alive.
        unsafe { self.client().plugin().api().call(&mut args) }?;
        Ok(args.on_device_size_in_bytes)
    }

    /// The id of the device that the buffer is on.
    ///
    /// # Errors
    /// [`Error::NullResult`], [`Error::Pjrt`].
    pub fn device(&self) -> Result<i32, Error> {
        let mut args = Args::<PJRT_Buffer_Device_Args>::new();
        args.buffer = self.raw().as_ptr();
        // SAFETY: the buffer is alive.
        unsafe { self.client().plugin().api().call(&mut args) }?;
        self.client()
            .device_id(args.device)
            .ok_or(Error::NullResult {
                name: "PJRT_Buffer_Device",
                what: "device of the client",
            })
    }

    /// The kind of memory that the buffer is in, such as `"device"` or `"pinned_host"`.
    ///
    /// # Errors
    /// [`Error::NullResult`], [`Error::Pjrt`], [`Error::MissingFunction`].
    pub fn memory_kind(&self) -> Result<String, Error> {
        let mut args = Args::<PJRT_Buffer_Memory_Args>::new();
        args.buffer = self.raw().as_ptr();
        // SAFETY: the buffer is alive.
        unsafe { self.client().plugin().api().call(&mut args) }?;
        let memory = NonNull::new(args.memory).ok_or(Error::NullResult {
            name: "PJRT_Buffer_Memory",
            what: "memory",
        })?;
        self.client().memory_kind(memory)
    }

    /// Copies the buffer to another device of the same client; to its own device too. Does not wait
    /// for the copy: what uses it does.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::NoSuchDevice`], [`Error::Pjrt`].
    pub fn to_device(&self, device: i32) -> Result<Self, Error> {
        self.check_alive()?;
        let device = self.client().device_handle(device)?;
        let mut args = Args::<PJRT_Buffer_CopyToDevice_Args>::new();
        args.buffer = self.raw().as_ptr();
        args.dst_device = device.as_ptr();
        // SAFETY: the buffer and the device, both of one client, are alive; the copy is this
        // caller's to free.
        unsafe {
            self.client().plugin().api().call(&mut args)?;
            Self::from_raw(self.client(), args.dst_buffer).ok_or(Error::NullResult {
                name: "PJRT_Buffer_CopyToDevice",
                what: "buffer",
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
        self.check_alive()?;
        let TensorType {
            element_type,
            dimensions,
        } = self.tensor_type()?;
        if element_type == ElementType::Token {
            return Err(Error::NoHostBytes { element_type });
        }
        self.to_host_as(element_type, dimensions.len())
    }

    /// The tensor's bytes where they lie, if that is memory of the host and they lie as those of a
    /// host tensor do, in row-major order and not packed; `None` if not:
    /// [`to_host`](Self::to_host) copies any. Waits for work that the tensor comes from.
    ///
    /// The view keeps the memory, also when the buffer is deleted. While there is a view the memory
    /// cannot be donated: an execution that would take it is refused.
    ///
    /// # Errors
    /// Those of [`to_host`](Self::to_host).
    pub fn to_host_view(&self) -> Result<Option<View>, Error> {
        self.check_alive()?;
        let TensorType {
            element_type,
            dimensions,
        } = self.tensor_type()?;
        if element_type == ElementType::Token {
            return Err(Error::NoHostBytes { element_type });
        }
        if !self.is_viewable(element_type, dimensions.len()) {
            return Ok(None);
        }
        self.wait()?;
        Ok(self.view(None))
    }

    /// Blocks until the work that the tensor comes from is done.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Pjrt`] with what went wrong in that work.
    pub fn wait(&self) -> Result<(), Error> {
        match self.ready_event()? {
            Some(ready) => ready.wait(),
            None => Ok(()),
        }
    }

    /// The event of the work that the tensor comes from.
    pub(crate) fn ready_event(&self) -> Result<Option<Event>, Error> {
        self.check_alive()?;
        let plugin = self.client().plugin();
        let mut ready = Args::<PJRT_Buffer_ReadyEvent_Args>::new();
        ready.buffer = self.raw().as_ptr();
        // SAFETY: the buffer is alive, and the event is this caller's to free.
        unsafe {
            plugin.api().call(&mut ready)?;
            Ok(Event::from_raw(plugin, ready.event))
        }
    }

    /// Copies a tensor of a known type and rank to the host.
    pub(crate) fn to_host_as(
        &self,
        element_type: ElementType,
        rank: usize,
    ) -> Result<Vec<u8>, Error> {
        // The plugin's own transfer hands even the smallest copy to another thread: ten times the
        // time of one made here. Where this does not work out, errors too are left to the transfer.
        if self.is_viewable(element_type, rank) && self.wait().is_ok() {
            if let Some(view) = self.view(None) {
                return Ok(view.to_vec());
            }
        }
        let plugin = self.client().plugin();
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
        args.src = self.raw().as_ptr();
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
        args.src = self.raw().as_ptr();
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

    /// Whether the bytes are in memory of the host, and lie there as those of a host tensor do.
    pub(crate) fn is_viewable(&self, element_type: ElementType, rank: usize) -> bool {
        // Below a byte the elements are packed on the device.
        if element_type.bit_width() < 8 {
            return false;
        }
        let mut on_cpu = Args::<PJRT_Buffer_IsOnCpu_Args>::new();
        on_cpu.buffer = self.raw().as_ptr();
        // SAFETY: the buffer is alive.
        let asked = unsafe { self.client().plugin().api().call(&mut on_cpu) };
        if asked.is_err() || !on_cpu.is_on_cpu {
            return false;
        }
        // SAFETY: the layout is read while the buffer is alive.
        rank < 2 || self.with_layout(|layout| unsafe { Layout::is_row_major(layout) }) == Ok(true)
    }

    /// The bytes of a viewable buffer whose work is done and succeeded. A size that is given is that
    /// of a shape without bounds.
    pub(crate) fn view(&self, size: Option<usize>) -> Option<View> {
        let size = match size {
            Some(size) => size,
            None => self.host_size()?,
        };
        let data = self.inner.hold()?;
        // The hold is the view's from here on, also where there is none.
        // SAFETY: on a CPU device the address is one of this process. The memory has `size` bytes,
        // written by the work that is done.
        unsafe { View::new(self.clone(), data, size) }
    }

    /// Bytes of the tensor on the host. Asked of the transfer, which knows the actual size where the
    /// shape has a bound only.
    fn host_size(&self) -> Option<usize> {
        let mut size = Args::<PJRT_Buffer_ToHostBuffer_Args>::new();
        size.src = self.raw().as_ptr();
        // SAFETY: the buffer is alive; a null destination asks for the size.
        unsafe { self.client().plugin().api().call(&mut size) }.ok()?;
        Some(size.dst_size)
    }

    /// Gives up a hold of the memory.
    ///
    /// # Safety
    /// The caller has one, and uses the memory no more.
    pub(crate) unsafe fn release(&self) {
        self.inner.release();
    }

    /// Gives up the device memory now; what uses it already goes on, and views stay. The buffer can
    /// be used no more.
    ///
    /// # Errors
    /// [`Error::Pjrt`].
    pub fn delete(&self) -> Result<(), Error> {
        let _guard = self.client().launch_guard(1, true);
        let mut args = Args::<PJRT_Buffer_Delete_Args>::new();
        args.buffer = self.raw().as_ptr();
        self.inner.external().deleting = true;
        // SAFETY: the buffer is alive.
        let deleted = unsafe { self.client().plugin().api().call(&mut args) };
        if deleted.is_err() {
            self.inner.external().deleting = false;
        }
        deleted
    }

    /// Waits for the right to hand the buffer to an execution, alone if it is given the memory. To be
    /// asked for in the order of the handles where there are several.
    pub(crate) fn enter(&self, alone: bool) -> Pass<'_> {
        self.inner.gate.enter(alone)
    }

    /// Whether the device memory was given up, by [`delete`](Self::delete) or by donation.
    ///
    /// # Errors
    /// [`Error::Pjrt`].
    pub fn is_deleted(&self) -> Result<bool, Error> {
        let mut args = Args::<PJRT_Buffer_IsDeleted_Args>::new();
        args.buffer = self.raw().as_ptr();
        // SAFETY: the buffer is alive.
        unsafe { self.client().plugin().api().call(&mut args) }?;
        Ok(args.is_deleted)
    }

    /// Whether the device memory was given to an execution, which keeps it whatever becomes of that.
    pub fn is_donated(&self) -> bool {
        self.inner.donated.load(Ordering::Relaxed)
    }

    /// Notes that an execution took the buffer, if it did.
    pub(crate) fn note_donation(&self) {
        if self.is_deleted() == Ok(true) {
            self.inner.donated.store(true, Ordering::Relaxed);
        }
    }

    /// # Errors
    /// [`Error::Deleted`], [`Error::Pjrt`].
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        if self.is_deleted()? {
            return Err(Error::Deleted {
                what: "buffer",
                donated: self.is_donated(),
            });
        }
        Ok(())
    }

    pub(crate) fn raw(&self) -> NonNull<PJRT_Buffer> {
        self.inner.raw
    }
}

impl Inner {
    /// Holds the memory where it is, even if the buffer is deleted meanwhile, and tells its address:
    /// 0 for no bytes.
    fn hold(&self) -> Option<usize> {
        let api = self.client.plugin().api();
        let mut external = self.external();
        if external.deleting {
            return None;
        }
        if external.views == 0 {
            let mut args = Args::<PJRT_Buffer_IncreaseExternalReferenceCount_Args>::new();
            args.buffer = self.raw.as_ptr();
            let mut memory = Args::<PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args>::new();
            memory.buffer = self.raw.as_ptr();
            // SAFETY: the buffer is alive, and nobody else is in its list of references.
            unsafe { api.call(&mut args) }.ok()?;
            let mut deleted = Args::<PJRT_Buffer_IsDeleted_Args>::new();
            deleted.buffer = self.raw.as_ptr();
            // Donated before it was held: there is no address to be asked for.
            // SAFETY: the buffer is alive.
            let is_there = unsafe { api.call(&mut deleted) }.is_ok() && !deleted.is_deleted;
            // SAFETY: as above.
            if !is_there || unsafe { api.call(&mut memory) }.is_err() {
                self.decrease();
                return None;
            }
            external.data = memory.device_memory_ptr.expose_provenance();
        }
        external.views += 1;
        Some(external.data)
    }

    fn release(&self) {
        let mut external = self.external();
        external.views = external.views.saturating_sub(1);
        if external.views == 0 {
            self.decrease();
        }
    }

    fn external(&self) -> MutexGuard<'_, External> {
        self.external.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only with `external` locked.
    fn decrease(&self) {
        let mut args = Args::<PJRT_Buffer_DecreaseExternalReferenceCount_Args>::new();
        args.buffer = self.raw.as_ptr();
        // SAFETY: the buffer is alive, and the count was increased.
        let _ = unsafe { self.client.plugin().api().call(&mut args) };
    }
}

impl Drop for Inner {
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
    use crate::host_data::{HostData, ZERO_COPY_ALIGNMENT};
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

    /// Bytes at an address that XLA's CPU plugins use as it is, or at one they do not; tells when
    /// it is dropped.
    struct Watched {
        bytes: Vec<u8>,
        start: usize,
        len: usize,
        dropped: std::sync::mpsc::Sender<()>,
    }

    impl Watched {
        fn data(
            content: &[u8],
            past_alignment: usize,
        ) -> (HostData, std::sync::mpsc::Receiver<()>) {
            let mut bytes = vec![0; content.len() + 2 * ZERO_COPY_ALIGNMENT];
            let start = bytes.as_ptr().align_offset(ZERO_COPY_ALIGNMENT) + past_alignment;
            bytes[start..start + content.len()].copy_from_slice(content);
            let (dropped, receiver) = std::sync::mpsc::channel();
            let watched = Self {
                bytes,
                start,
                len: content.len(),
                dropped,
            };
            (HostData::new(watched), receiver)
        }
    }

    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            &self.bytes[self.start..][..self.len]
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            self.bytes.fill(0xff);
            let _ = self.dropped.send(());
        }
    }

    fn zero_copy(data: HostData, dimensions: &[i64]) -> Buffer {
        let input = OwnedInput {
            data,
            element_type: ElementType::U8,
            dimensions,
        };
        Buffer::from_host_zero_copy(client(), 0, input).unwrap()
    }

    #[test]
    fn aligned_bytes_are_used_where_they_lie_until_all_that_uses_them_is_gone() {
        let (data, dropped) = Watched::data(&[1, 2, 3, 4], 0);
        assert!(data.is_aligned());
        let address = data.as_slice().as_ptr();
        let buffer = zero_copy(data, &[4]);
        let view = buffer.to_host_view().unwrap().unwrap();
        assert_eq!(view.as_ptr(), address);
        let elsewhere = buffer.to_device(1).unwrap();
        assert_eq!(elsewhere.to_host(), Ok(vec![1, 2, 3, 4]));
        buffer.delete().unwrap();
        drop(buffer);
        assert!(dropped.try_recv().is_err());
        assert_eq!(&view[..], [1, 2, 3, 4]);
        drop(view);
        dropped
            .recv_timeout(std::time::Duration::from_secs(10))
            .unwrap();
        assert_eq!(elsewhere.to_host(), Ok(vec![1, 2, 3, 4]));
    }

    #[test]
    fn other_bytes_are_copied_and_let_go() {
        for offset in [1, 8, 16, 32] {
            let content: Vec<u8> = (0..200_000u32).map(|index| (index % 251) as u8).collect();
            let (data, dropped) = Watched::data(&content, offset);
            assert!(!data.is_aligned());
            let buffer = zero_copy(data, &[200_000]);
            dropped
                .recv_timeout(std::time::Duration::from_secs(10))
                .unwrap();
            assert_eq!(buffer.to_host(), Ok(content));
        }
    }

    #[test]
    fn packed_elements_are_copied_from_aligned_bytes_too() {
        let (data, dropped) = Watched::data(&[1, 2, 0xff, 7], 0);
        let input = OwnedInput {
            data,
            element_type: ElementType::S4,
            dimensions: &[4],
        };
        let buffer = Buffer::from_host_zero_copy(client(), 0, input).unwrap();
        dropped
            .recv_timeout(std::time::Duration::from_secs(10))
            .unwrap();
        assert_eq!(buffer.to_host(), Ok(vec![1, 2, 0xff, 7]));
        assert!(buffer.to_host_view().unwrap().is_none());
    }

    #[test]
    fn an_owner_is_let_go_where_its_bytes_are_refused() {
        let (data, dropped) = Watched::data(&[1, 2, 3], 0);
        let input = OwnedInput {
            data,
            element_type: ElementType::U8,
            dimensions: &[4],
        };
        let error = Buffer::from_host_zero_copy(client(), 0, input).unwrap_err();
        assert_eq!(
            error.to_string(),
            "input 0: u8[4] takes 4 bytes, 3 were given"
        );
        assert!(dropped.try_recv().is_ok());
    }

    #[test]
    fn an_empty_tensor_is_viewed_as_no_bytes() {
        let buffer = zero_copy(HostData::new(Vec::new()), &[0, 3]);
        assert_eq!(buffer.to_host_view().unwrap().as_deref(), Some(&[][..]));
        assert_eq!(buffer.to_host(), Ok(vec![]));
    }

    #[test]
    fn threads_view_one_buffer_at_the_same_time() {
        let buffer = zero_copy(HostData::new(vec![7; 100]), &[100]);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let first = buffer.to_host_view().unwrap().unwrap();
                        let second = buffer.to_host().unwrap();
                        assert_eq!(&first[..], second);
                    }
                });
            }
        });
    }

    #[test]
    fn strides_are_followed() {
        let data: Vec<u8> = (0..24).collect();
        let bytes = |element_type: ElementType, dimensions: &[i64], strides: &[i64]| {
            let input = HostInput {
                data: &data,
                element_type,
                dimensions,
            };
            Buffer::from_host_strided(client(), 0, &input, strides)
                .and_then(|buffer| buffer.to_host())
        };
        let u8 = ElementType::U8;
        assert_eq!(bytes(u8, &[2, 3], &[3, 1]), Ok(vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(bytes(u8, &[3, 2], &[1, 3]), Ok(vec![0, 3, 1, 4, 2, 5]));
        assert_eq!(bytes(u8, &[2, 3], &[0, 1]), Ok(vec![0, 1, 2, 0, 1, 2]));
        assert_eq!(bytes(u8, &[2, 3], &[5, 2]), Ok(vec![0, 2, 4, 5, 7, 9]));
        assert_eq!(bytes(u8, &[], &[]), Ok(vec![0]));
        assert_eq!(bytes(u8, &[0, 9], &[1, 1]), Ok(vec![]));
        assert_eq!(
            bytes(ElementType::S16, &[2, 2], &[2, 8]),
            Ok(vec![0, 1, 8, 9, 2, 3, 10, 11])
        );
    }

    #[test]
    fn strides_that_leave_the_bytes_are_refused() {
        let message = |element_type: ElementType, dimensions: &[i64], strides: &[i64]| {
            let input = HostInput {
                data: &[0; 24],
                element_type,
                dimensions,
            };
            let buffer = Buffer::from_host_strided(client(), 0, &input, strides);
            buffer.unwrap_err().to_string()
        };
        let s16 = ElementType::S16;
        assert_eq!(
            message(s16, &[2, 3], &[20, 4]),
            "input 0: s16[2,3] takes 30 bytes, 24 were given"
        );
        assert!(message(s16, &[2], &[i64::MAX - 1]).contains("24 were given"));
        assert_eq!(
            message(s16, &[2], &[-2]),
            "input 0: byte stride -2 is negative or not a multiple of the 2 bytes of s16"
        );
        assert!(message(s16, &[2], &[3]).contains("byte stride 3"));
        assert_eq!(
            message(s16, &[2, 2], &[2]),
            "input 0: s16[2,2] has 2 dimensions, 1 byte strides were given"
        );
        assert_eq!(
            message(ElementType::S4, &[2], &[1]),
            "input 0: s4[2] has no byte strides"
        );
        assert!(message(s16, &[-1], &[2]).contains("negative dimension"));
    }

    #[test]
    fn a_buffer_tells_where_and_how_it_lies() {
        let input = HostInput {
            data: &[0; 24],
            element_type: ElementType::F32,
            dimensions: &[2, 3],
        };
        let buffer = Buffer::from_host(client(), 1, &input).unwrap();
        let layout = buffer.layout().unwrap();
        assert_eq!(
            layout,
            Layout::Tiled {
                minor_to_major: vec![1, 0],
                tiles: vec![],
            }
        );
        let strides = layout.byte_strides(&buffer.tensor_type().unwrap());
        assert_eq!(strides, Some(vec![12, 4]));
        assert_eq!(buffer.on_device_size(), Ok(24));
        assert_eq!(buffer.device(), Ok(1));
        assert_eq!(buffer.memory_kind().as_deref(), Ok("device"));
        buffer.delete().unwrap();
        assert!(matches!(
            buffer.on_device_size(),
            Err(Error::Deleted { .. })
        ));
        assert!(matches!(buffer.to_device(0), Err(Error::Deleted { .. })));
        assert!(matches!(buffer.to_host_view(), Err(Error::Deleted { .. })));
        assert!(matches!(buffer.wait(), Err(Error::Deleted { .. })));
    }

    #[test]
    fn a_copy_is_made_on_the_same_device_too() {
        let input = HostInput {
            data: &[5],
            element_type: ElementType::U8,
            dimensions: &[],
        };
        let buffer = Buffer::from_host(client(), 0, &input).unwrap();
        let (same, other) = (buffer.to_device(0).unwrap(), buffer.to_device(1).unwrap());
        buffer.delete().unwrap();
        assert_eq!((same.device(), same.to_host()), (Ok(0), Ok(vec![5])));
        assert_eq!((other.device(), other.to_host()), (Ok(1), Ok(vec![5])));
        assert!(matches!(
            same.to_device(9),
            Err(Error::NoSuchDevice { id: 9, .. })
        ));
    }
}

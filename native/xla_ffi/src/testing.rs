//! Calls of handlers without XLA, for their tests.
//!
//! ```
//! use xla_ffi::testing::Frame;
//! use xla_ffi::{Arg, Ret};
//!
//! xla_ffi::export! {
//!     pub fn doc_testing_add(a: Arg<f32>, b: Arg<f32>) -> (sum: Ret<f32>) {
//!         for ((sum, a), b) in sum.iter_mut().zip(a.iter()).zip(b.iter()) {
//!             *sum = a + b;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let mut frame = Frame::new()
//!     .operand(&[2], &[1.0f32, 2.0])
//!     .operand(&[2], &[10.0f32, 20.0])
//!     .result::<f32>(&[2]);
//! // SAFETY: `export!` made the handler.
//! unsafe { frame.call(doc_testing_add) }?;
//! assert_eq!(frame.values::<f32>(0), [11.0, 22.0]);
//!
//! let mut frame = Frame::new().operand(&[2], &[1.0f32, 2.0]).operand(&[2], &[1.0f64, 2.0]).result::<f32>(&[2]);
//! // SAFETY: as above.
//! let error = unsafe { frame.call(doc_testing_add) }.unwrap_err();
//! assert_eq!(error.message(), "operand 1 (b): expected f32, found f64");
//! # Ok::<(), xla_ffi::Error>(())
//! ```

use crate::user_data::type_id;
use crate::{sys, Code, DataType, Element, Error, Pred, Result, Stages};
use half::{bf16, f16};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void, CStr, CString};
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};
use std::{fmt, mem, ptr, slice};

/// The value of an attribute to be passed to a handler.
///
/// Numbers and `bool` become scalars, vectors of them arrays, and `&str` becomes a string.
///
/// ```
/// use xla_ffi::testing::Value;
///
/// Value::from(0.5f32);
/// Value::from(vec![1i64, 2]);
/// Value::from("text");
/// Value::string([0xff, 0x00]);
/// Value::dictionary([("eps", Value::from(1e-6f64)), ("flags", Value::from(vec![true, false]))]);
/// ```
#[derive(Clone, Debug)]
pub struct Value(Inner);

#[derive(Clone, Debug)]
enum Inner {
    Scalar(DataType, Memory),
    Array(DataType, usize, Memory),
    String(Vec<u8>),
    Dictionary(Vec<(String, Value)>),
}

impl Value {
    /// A string of any bytes.
    pub fn string(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Inner::String(bytes.into()))
    }

    /// A dictionary. Its entries are passed sorted by name, as XLA does.
    pub fn dictionary<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        let mut entries: Vec<_> = entries
            .into_iter()
            .map(|(name, value)| (name.to_string(), value))
            .collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        Self(Inner::Dictionary(entries))
    }
}

macro_rules! from_element {
    ($($type:ty),*) => {
        $(
            impl From<$type> for Value {
                fn from(value: $type) -> Self {
                    Self(Inner::Scalar(<$type as Element>::DATA_TYPE, Memory::of(&[value])))
                }
            }

            impl From<Vec<$type>> for Value {
                fn from(values: Vec<$type>) -> Self {
                    Self(Inner::Array(<$type as Element>::DATA_TYPE, values.len(), Memory::of(&values)))
                }
            }
        )*
    };
}

from_element!(Pred, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, [f32; 2], [f64; 2]);

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Pred::from(value).into()
    }
}

impl From<Vec<bool>> for Value {
    fn from(values: Vec<bool>) -> Self {
        values
            .into_iter()
            .map(Pred::from)
            .collect::<Vec<_>>()
            .into()
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::string(value)
    }
}

/// Bytes with the alignment that XLA gives, 16 at least.
#[derive(Clone, Debug)]
struct Memory {
    words: Vec<u128>,
    len: usize,
}

impl Memory {
    fn zeroed(len: usize) -> Self {
        Self {
            words: vec![0; len.div_ceil(size_of::<u128>())],
            len,
        }
    }

    fn of<T: Element>(values: &[T]) -> Self {
        let mut memory = Self::zeroed(mem::size_of_val(values));
        // SAFETY: an `Element` has no padding, so its bytes can be read.
        let bytes = unsafe { slice::from_raw_parts(values.as_ptr().cast::<u8>(), memory.len) };
        memory.bytes_mut().copy_from_slice(bytes);
        memory
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `words` has room for `len` bytes.
        unsafe { slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len) }
    }
}

#[derive(Clone, Debug)]
struct Shape {
    data_type: DataType,
    dims: Vec<i64>,
    /// Which of the frame's memories it lies in.
    memory: usize,
}

/// A call frame with memory of its own.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    memories: Vec<Memory>,
    operands: Vec<Shape>,
    results: Vec<Shape>,
    attributes: Vec<(String, Value)>,
    user_data: Vec<(String, Vec<u8>)>,
}

impl Frame {
    /// A frame without operands, results and attributes.
    pub fn new() -> Self {
        Self::default()
    }

    fn shape(&mut self, data_type: DataType, dims: &[usize], memory: Memory) -> Shape {
        self.memories.push(memory);
        Shape {
            data_type,
            dims: dims.iter().map(|dim| *dim as i64).collect(),
            memory: self.memories.len() - 1,
        }
    }

    /// Adds an operand.
    ///
    /// # Panics
    ///
    /// If there are not as many values as the dimensions say.
    pub fn operand<T: Element>(mut self, dims: &[usize], values: &[T]) -> Self {
        assert_eq!(
            dims.iter().product::<usize>(),
            values.len(),
            "values for dimensions {dims:?}"
        );
        let shape = self.shape(T::DATA_TYPE, dims, Memory::of(values));
        self.operands.push(shape);
        self
    }

    /// Adds an operand of any type by its bytes, also of types that Rust does not have.
    ///
    /// # Panics
    ///
    /// If there are not as many bytes as type and dimensions say, where the size of the type is known.
    pub fn operand_of(mut self, data_type: DataType, dims: &[usize], bytes: &[u8]) -> Self {
        if let Some(size) = data_type.byte_size() {
            let expected = dims.iter().product::<usize>() * size;
            assert_eq!(expected, bytes.len(), "bytes for {data_type}{dims:?}");
        }
        let shape = self.shape(data_type, dims, Memory::of(bytes));
        self.operands.push(shape);
        self
    }

    /// Adds a result, zeroed.
    pub fn result<T: Element>(mut self, dims: &[usize]) -> Self {
        let memory = Memory::zeroed(dims.iter().product::<usize>() * size_of::<T>());
        let shape = self.shape(T::DATA_TYPE, dims, memory);
        self.results.push(shape);
        self
    }

    /// Adds a result in the memory of an operand, as `output_operand_aliases` makes XLA do.
    ///
    /// # Panics
    ///
    /// If there is no such operand.
    pub fn aliased_result(mut self, operand: usize) -> Self {
        self.results.push(self.operands[operand].clone());
        self
    }

    /// Adds an attribute.
    pub fn attribute(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.attributes.push((name.to_string(), value.into()));
        self.attributes.sort_by(|a, b| a.0.cmp(&b.0));
        self
    }

    /// Adds user data, which an [`Executable`]'s handler sees while it executes.
    pub fn user_data(mut self, name: &str, bytes: &[u8]) -> Self {
        self.user_data.push((name.to_string(), bytes.to_vec()));
        self
    }

    /// Gives an attribute another value.
    #[cfg(test)]
    pub(crate) fn replaced(mut self, name: &str, value: Value) -> Self {
        self.attributes.retain(|(other, _)| other != name);
        self.attribute(name, value)
    }

    /// The values of a result.
    ///
    /// # Panics
    ///
    /// If there is no such result, or if it is of another type.
    pub fn values<T: Element>(&self, result: usize) -> Vec<T> {
        let shape = &self.results[result];
        assert_eq!(shape.data_type, T::DATA_TYPE, "the type of result {result}");
        let memory = &self.memories[shape.memory];
        // SAFETY: the memory is aligned for every element type, has `len` bytes, and any bytes are a T.
        unsafe { slice::from_raw_parts(memory.words.as_ptr().cast(), memory.len / size_of::<T>()) }
            .to_vec()
    }

    /// Calls the handler for the execute stage.
    ///
    /// # Safety
    ///
    /// The handler is made by [`export!`](crate::export), or keeps to the rules of XLA's FFI in another way.
    pub unsafe fn call(&mut self, handler: sys::Handler) -> Result<()> {
        // SAFETY: the caller's promise, passed on; the frame is as it should be.
        unsafe { self.call_altered(handler, |_| ()) }
    }

    /// Calls the handler with a frame that is changed before.
    ///
    /// # Safety
    ///
    /// As for [`Frame::call`], and the handler can stand the changes.
    pub(crate) unsafe fn call_altered(
        &mut self,
        handler: sys::Handler,
        alter: impl FnOnce(&mut sys::CallFrame),
    ) -> Result<()> {
        let mut arena = Arena::default();
        let memories: Vec<*mut c_void> = self
            .memories
            .iter_mut()
            .map(|memory| memory.words.as_mut_ptr().cast())
            .collect();
        let operands = arena.buffers(&mut self.operands, &memories);
        let results = arena.buffers(&mut self.results, &memories);
        let attributes = arena.attributes(&mut self.attributes);
        let api = api();
        let mut frame = sys::CallFrame {
            struct_size: mem::offset_of!(sys::CallFrame, future),
            extensions: ptr::null_mut(),
            api: &api,
            context: ptr::null_mut(),
            stage: sys::STAGE_EXECUTE,
            operands,
            results,
            attributes,
            future: ptr::null_mut(),
        };
        alter(&mut frame);
        // SAFETY: all that the frame points to is in `self`, `arena` and `api`, which outlive the call.
        let error = unsafe { handler(&mut frame) };
        // SAFETY: an error can only come from `raise`.
        unsafe { take_error(error) }
    }
}

/// A handler's instance in a program, with the state that the handler made for it, if it does.
///
/// ```
/// use xla_ffi::testing::{Executable, Frame};
///
/// xla_ffi::export! {
///     /// The number of letters, counted once.
///     fn doc_testing_letters() -> (count: xla_ffi::Ret<i64>)
///     attrs { text: &str }
///     state { letters: usize = text.chars().filter(|c| c.is_alphabetic()).count() }
///     {
///         count.fill(*letters as i64);
///         Ok(())
///     }
/// }
///
/// let mut frame = Frame::new().result::<i64>(&[]).attribute("text", "to be");
/// let executable = Executable::<doc_testing_letters>::new(&frame)?;
/// executable.run(&mut frame)?;
/// assert_eq!(frame.values::<i64>(0), [4]);
/// # Ok::<(), xla_ffi::Error>(())
/// ```
pub struct Executable<H> {
    context: Box<Context>,
    handler: PhantomData<fn() -> H>,
}

/// What stands behind the context that frames carry.
#[derive(Default)]
struct Context {
    state: Cell<Option<(i64, *mut c_void)>>,
    /// Of the execution that is under way, by their ids.
    user_data: RefCell<BTreeMap<i64, Box<sys::UserData>>>,
}

impl<H: Stages> Executable<H> {
    /// Calls the handler for the instantiate stage, if there is one, with the attributes of the frame.
    pub fn new(frame: &Frame) -> Result<Self> {
        let executable = Self {
            context: Box::default(),
            handler: PhantomData,
        };
        let mut attributes = Frame {
            attributes: frame.attributes.clone(),
            ..Frame::default()
        };
        executable.call(
            &mut attributes,
            H::STAGES.instantiate,
            sys::STAGE_INSTANTIATE,
        )?;
        Ok(executable)
    }

    /// Calls the handlers for the stages prepare, initialize and execute, those that there are.
    pub fn run(&self, frame: &mut Frame) -> Result<()> {
        self.call(frame, H::STAGES.prepare, sys::STAGE_PREPARE)?;
        self.call(frame, H::STAGES.initialize, sys::STAGE_INITIALIZE)?;
        self.call(frame, Some(H::STAGES.execute), sys::STAGE_EXECUTE)
    }

    fn call(&self, frame: &mut Frame, handler: Option<sys::Handler>, stage: c_int) -> Result<()> {
        let Some(handler) = handler else {
            return Ok(());
        };
        let data = frame.user_data.clone();
        *self.context.user_data.borrow_mut() = data
            .iter()
            .map(|(name, bytes)| {
                let entry = sys::UserData {
                    struct_size: size_of::<sys::UserData>(),
                    name: span(name.as_bytes()),
                    data: span(bytes),
                };
                (type_id(name.as_bytes()).id, Box::new(entry))
            })
            .collect();
        let context = ptr::from_ref(&*self.context).cast_mut().cast();
        // SAFETY: `Stages` vouches for the handler; the frame is as it should be.
        unsafe {
            frame.call_altered(handler, |raw| {
                raw.stage = stage;
                raw.context = context;
            })
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let Some((id, state)) = self.state.take() else {
            return;
        };
        if let Some(deleter) = types().get(&id).copied() {
            // SAFETY: the state is of the type that was registered with this id, and nobody has it any more.
            unsafe { deleter(state) };
        }
    }
}

impl<H> fmt::Debug for Executable<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable")
            .field("has_state", &self.context.state.get().is_some())
            .finish()
    }
}

/// The types that handlers registered, by their ids.
fn types() -> std::sync::MutexGuard<'static, BTreeMap<i64, sys::Deleter>> {
    static TYPES: Mutex<BTreeMap<i64, sys::Deleter>> = Mutex::new(BTreeMap::new());
    TYPES.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn register_type(args: *mut sys::TypeRegisterArgs) -> *mut sys::Error {
    // SAFETY: called by `RawState::register`, with arguments for XLA's function of this purpose.
    let (id, deleter) = unsafe { ((*(*args).type_id).id, (*(*args).type_info).deleter) };
    match deleter {
        Some(deleter) if id != 0 => {
            types().insert(id, deleter);
            ptr::null_mut()
        }
        _ => error("a type without an id or a deleter"),
    }
}

unsafe extern "C" fn set_state(args: *mut c_void) -> *mut sys::Error {
    // SAFETY: called by `Context::exchange`, with arguments for XLA's function of this purpose.
    let (args, context) = unsafe { state_args(args) };
    match context {
        None => error("no context"),
        Some(context) if context.state.get().is_some() => error("the state is set"),
        Some(context) => {
            // SAFETY: as above.
            let (id, state) = unsafe { ((*(*args).type_id).id, (*args).state) };
            context.state.set(Some((id, state)));
            ptr::null_mut()
        }
    }
}

unsafe extern "C" fn get_state(args: *mut c_void) -> *mut sys::Error {
    // SAFETY: called by `Context::exchange`, with arguments for XLA's function of this purpose.
    let (args, context) = unsafe { state_args(args) };
    // SAFETY: as above.
    let wanted = unsafe { (*(*args).type_id).id };
    match context.and_then(|context| context.state.get()) {
        None => error("State is not set"),
        Some((id, _)) if id != wanted => error("the state is of another type"),
        Some((_, state)) => {
            // SAFETY: as above.
            unsafe { (*args).state = state };
            ptr::null_mut()
        }
    }
}

/// # Safety
///
/// `args` are [`sys::StateArgs`], whose context is null or that of a living [`Executable`].
unsafe fn state_args<'a>(args: *mut c_void) -> (*mut sys::StateArgs, Option<&'a Context>) {
    let args: *mut sys::StateArgs = args.cast();
    // SAFETY: the caller's promise.
    (args, unsafe { (*args).context.cast::<Context>().as_ref() })
}

unsafe extern "C" fn get_user_data(args: *mut sys::ContextGetArgs) -> *mut sys::Error {
    // SAFETY: called by `Context::user_data`, with arguments for XLA's function of this purpose, whose context is
    // that of a living `Executable`.
    let (context, id) = unsafe { (&*(*args).context.cast::<Context>(), (*(*args).type_id).id) };
    match context.user_data.borrow_mut().get_mut(&id) {
        None => error("no user data of this type"),
        Some(entry) => {
            // SAFETY: as above.
            unsafe { (*args).data = ptr::from_mut(&mut **entry).cast() };
            ptr::null_mut()
        }
    }
}

/// An error as this module's table hands it out, with its text as C wants it.
struct Raised {
    error: Error,
    text: CString,
}

/// For [`take_error`].
fn raise(error: Error) -> *mut sys::Error {
    let text = CString::new(error.message().replace('\0', "\\0")).unwrap_or_default();
    Box::into_raw(Box::new(Raised { error, text })).cast()
}

fn error(message: &str) -> *mut sys::Error {
    raise(Error::internal(message))
}

unsafe extern "C" fn error_message(args: *mut sys::ErrorMessageArgs) {
    // SAFETY: called with an error of this module's, which keeps its text.
    unsafe {
        let raised = &*(*args).error.cast::<Raised>();
        (*args).message = raised.text.as_ptr();
        (*args).code = raised.error.code() as c_int;
    }
}

unsafe extern "C" fn destroy_error(args: *mut sys::ErrorDestroyArgs) {
    // SAFETY: called with an error of this module's, which nobody uses any more.
    let _ = unsafe { take_error((*args).error) };
}

/// Asks a handler for its metadata, as XLA does when the handler is registered, and returns the API version it
/// answers with. XLA drops a handler that has no answer.
///
/// # Safety
///
/// As for [`Frame::call`].
pub unsafe fn api_version(handler: sys::Handler) -> Result<Option<(i32, i32)>> {
    // SAFETY: the caller's promise, passed on.
    let sys::ApiVersion { major, minor, .. } = unsafe { metadata(handler) }?.api_version;
    Ok((major >= 0).then_some((major, minor)))
}

/// # Safety
///
/// As for [`Frame::call`].
pub(crate) unsafe fn metadata(handler: sys::Handler) -> Result<sys::Metadata> {
    let mut metadata = sys::Metadata {
        struct_size: size_of::<sys::Metadata>(),
        api_version: sys::ApiVersion {
            struct_size: size_of::<sys::ApiVersion>(),
            extensions: ptr::null_mut(),
            major: -1,
            minor: -1,
        },
        traits: 0,
        state_type_id: sys::TypeId { id: 0 },
    };
    let mut extension = sys::MetadataExtension {
        base: sys::Extension {
            struct_size: size_of::<sys::MetadataExtension>(),
            kind: sys::EXTENSION_METADATA,
            next: ptr::null_mut(),
        },
        metadata: &raw mut metadata,
    };
    let extensions = (&raw mut extension).cast();
    // SAFETY: the caller's promise, passed on; the extension outlives the call.
    unsafe { Frame::new().call_altered(handler, |frame| frame.extensions = extensions) }?;
    // SAFETY: read through the pointer that the handler got, as it may have written through it.
    Ok(unsafe { *extension.metadata })
}

pub(crate) fn api() -> sys::Api {
    sys::Api {
        struct_size: size_of::<sys::Api>(),
        extensions: ptr::null_mut(),
        version: sys::ApiVersion {
            struct_size: size_of::<sys::ApiVersion>(),
            extensions: ptr::null_mut(),
            major: sys::API_MAJOR,
            minor: sys::API_MINOR,
        },
        internal: ptr::null(),
        error_create: Some(create_error),
        error_message: Some(error_message),
        error_destroy: Some(destroy_error),
        handler_register: ptr::null(),
        stream_get: ptr::null(),
        type_register: Some(register_type),
        context_get: Some(get_user_data),
        state_set: Some(set_state),
        state_get: Some(get_state),
    }
}

unsafe extern "C" fn create_error(args: *mut sys::ErrorCreateArgs) -> *mut sys::Error {
    // SAFETY: called by `run`, with arguments for XLA's function of this purpose.
    let (message, code) = unsafe { (CStr::from_ptr((*args).message), (*args).code) };
    let code = Code::from_raw(code).unwrap_or(Code::Unknown);
    raise(Error::new(code, message.to_string_lossy()))
}

/// # Safety
///
/// The error is null or from [`raise`], and used here only.
pub(crate) unsafe fn take_error(error: *mut sys::Error) -> Result<()> {
    if error.is_null() {
        Ok(())
    } else {
        // SAFETY: `raise` made a box of it.
        Err(unsafe { Box::from_raw(error.cast::<Raised>()) }.error)
    }
}

/// Keeps the C structs of a frame where they are until the call is over.
#[derive(Default)]
struct Arena {
    buffers: Vec<Vec<sys::Buffer>>,
    kinds: Vec<Vec<c_int>>,
    pointers: Vec<Vec<*mut c_void>>,
    spans: Vec<Vec<sys::ByteSpan>>,
    names: Vec<Vec<*mut sys::ByteSpan>>,
    scalars: Vec<Vec<sys::Scalar>>,
    arrays: Vec<Vec<sys::Array>>,
    dictionaries: Vec<Vec<sys::Attributes>>,
}

/// Where the first of the values stays.
fn keep<T>(place: &mut Vec<Vec<T>>, mut values: Vec<T>) -> *mut T {
    let first = values.as_mut_ptr();
    place.push(values);
    first
}

impl Arena {
    fn buffers(&mut self, shapes: &mut [Shape], memories: &[*mut c_void]) -> sys::Buffers {
        let len = shapes.len();
        let buffers = shapes.iter_mut().map(|shape| sys::Buffer {
            struct_size: size_of::<sys::Buffer>(),
            extensions: ptr::null_mut(),
            data_type: shape.data_type.to_raw(),
            data: memories[shape.memory],
            rank: shape.dims.len() as i64,
            dims: shape.dims.as_mut_ptr(),
        });
        let first = keep(&mut self.buffers, buffers.collect());
        let items = (0..len).map(|index| first.wrapping_add(index).cast());
        sys::Buffers {
            struct_size: size_of::<sys::Buffers>(),
            extensions: ptr::null_mut(),
            len: len as i64,
            kinds: keep(&mut self.kinds, vec![sys::KIND_BUFFER; len]),
            items: keep(&mut self.pointers, items.collect()),
        }
    }

    fn attributes(&mut self, attributes: &mut [(String, Value)]) -> sys::Attributes {
        let len = attributes.len();
        let spans = attributes.iter().map(|(name, _)| span(name.as_bytes()));
        let first = keep(&mut self.spans, spans.collect());
        let names = (0..len).map(|index| first.wrapping_add(index));
        let (kinds, items) = attributes
            .iter_mut()
            .map(|(_, value)| self.value(value))
            .unzip();
        sys::Attributes {
            struct_size: size_of::<sys::Attributes>(),
            extensions: ptr::null_mut(),
            len: len as i64,
            kinds: keep(&mut self.kinds, kinds),
            names: keep(&mut self.names, names.collect()),
            items: keep(&mut self.pointers, items),
        }
    }

    fn value(&mut self, value: &mut Value) -> (c_int, *mut c_void) {
        match &mut value.0 {
            Inner::Scalar(data_type, memory) => {
                let scalar = sys::Scalar {
                    data_type: data_type.to_raw(),
                    value: memory.words.as_mut_ptr().cast(),
                };
                let kept = keep(&mut self.scalars, vec![scalar]);
                (sys::ATTRIBUTE_SCALAR, kept.cast())
            }
            Inner::Array(data_type, len, memory) => {
                let array = sys::Array {
                    data_type: data_type.to_raw(),
                    len: *len,
                    data: memory.words.as_mut_ptr().cast(),
                };
                let kept = keep(&mut self.arrays, vec![array]);
                (sys::ATTRIBUTE_ARRAY, kept.cast())
            }
            Inner::String(bytes) => {
                let kept = keep(&mut self.spans, vec![span(bytes)]);
                (sys::ATTRIBUTE_STRING, kept.cast())
            }
            Inner::Dictionary(entries) => {
                let attributes = self.attributes(entries);
                let kept = keep(&mut self.dictionaries, vec![attributes]);
                (sys::ATTRIBUTE_DICTIONARY, kept.cast())
            }
        }
    }
}

fn span(bytes: &[u8]) -> sys::ByteSpan {
    sys::ByteSpan {
        pointer: bytes.as_ptr().cast(),
        len: bytes.len(),
    }
}

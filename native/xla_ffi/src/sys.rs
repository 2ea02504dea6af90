//! The C side of the XLA FFI, as memory layouts.
//!
//! A frame is built by whatever version of XLA runs the handler, which may know fewer fields than these
//! definitions do. So no reference to a whole struct is ever made from a pointer that XLA passed: fields
//! are read one by one, each after the sender's `struct_size` has been seen to reach its end.
//! Enumerations travel as [`c_int`], since a C caller can send values that Rust does not know.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("XLA runs on 64-bit platforms only, and dimensions are read in place as usize");

/// The version of the interface that the definitions in this module describe.
pub const API_MAJOR: c_int = 0;
/// See [`API_MAJOR`].
pub const API_MINOR: c_int = 4;

/// `kind` of the extension that asks a handler for its metadata.
pub const EXTENSION_METADATA: c_int = 1;
/// The one kind of operand and of result there is.
pub const KIND_BUFFER: c_int = 1;

pub const ATTRIBUTE_ARRAY: c_int = 1;
pub const ATTRIBUTE_DICTIONARY: c_int = 2;
pub const ATTRIBUTE_SCALAR: c_int = 3;
pub const ATTRIBUTE_STRING: c_int = 4;

pub const STAGE_INSTANTIATE: c_int = 0;
pub const STAGE_PREPARE: c_int = 1;
pub const STAGE_INITIALIZE: c_int = 2;
pub const STAGE_EXECUTE: c_int = 3;
pub const STAGE_RECORD: c_int = 4;

/// An error object that belongs to XLA.
#[repr(C)]
#[derive(Debug)]
pub struct Error {
    _opaque: [u8; 0],
}

/// What XLA knows about the running execution.
#[repr(C)]
#[derive(Debug)]
pub struct InvokeContext {
    _opaque: [u8; 0],
}

/// A completion that XLA waits for.
#[repr(C)]
#[derive(Debug)]
pub struct Future {
    _opaque: [u8; 0],
}

/// The head of every element of an extension chain.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Extension {
    pub struct_size: usize,
    pub kind: c_int,
    pub next: *mut Extension,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ApiVersion {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub major: c_int,
    pub minor: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorCreateArgs {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub message: *const c_char,
    pub code: c_int,
}

/// Makes an error object; the message is copied.
pub type ErrorCreate = unsafe extern "C" fn(*mut ErrorCreateArgs) -> *mut Error;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorMessageArgs {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub error: *mut Error,
    pub message: *const c_char,
    /// Since 0.4.
    pub code: c_int,
}

/// Lends an error's message, which lives as long as the error.
pub type ErrorMessage = unsafe extern "C" fn(*mut ErrorMessageArgs);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorDestroyArgs {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub error: *mut Error,
}

pub type ErrorDestroy = unsafe extern "C" fn(*mut ErrorDestroyArgs);

/// What XLA has to know of a type to own values of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TypeInfo {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub deleter: Option<Deleter>,
}

pub type Deleter = unsafe extern "C" fn(*mut c_void);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TypeRegisterArgs {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub name: ByteSpan,
    pub type_id: *mut TypeId,
    pub type_info: *const TypeInfo,
}

/// Registers a type under the given id, or under a new one where that is 0; once more under the same name and id
/// is no error.
pub type TypeRegister = unsafe extern "C" fn(*mut TypeRegisterArgs) -> *mut Error;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StateArgs {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub context: *mut InvokeContext,
    /// The stage that makes the state.
    pub stage: c_int,
    pub type_id: *mut TypeId,
    pub state: *mut c_void,
}

/// [`StateArgs`] of version 0.2, where the only stage to make a state was the first one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OldStateArgs {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub context: *mut InvokeContext,
    pub type_id: *mut TypeId,
    pub state: *mut c_void,
}

/// Gives a state to XLA, or gets it back; the argument is one of the two layouts above.
pub type State = unsafe extern "C" fn(*mut c_void) -> *mut Error;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ContextGetArgs {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub context: *mut InvokeContext,
    pub type_id: *mut TypeId,
    pub data: *mut c_void,
}

/// Looks user data up by the id of its type; an error where there is none.
pub type ContextGet = unsafe extern "C" fn(*mut ContextGetArgs) -> *mut Error;

/// What a user datum is where it comes from this package: `EXLA_CustomCall_UserData`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UserData {
    pub struct_size: usize,
    pub name: ByteSpan,
    pub data: ByteSpan,
}

/// The start of XLA's table of functions, as far as this crate calls it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Api {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub version: ApiVersion,
    pub internal: *const c_void,
    pub error_create: Option<ErrorCreate>,
    pub error_message: Option<ErrorMessage>,
    pub error_destroy: Option<ErrorDestroy>,
    pub handler_register: *const c_void,
    pub stream_get: *const c_void,
    /// Of another signature before 0.2.
    pub type_register: Option<TypeRegister>,
    pub context_get: Option<ContextGet>,
    /// Of another signature before 0.2.
    pub state_set: Option<State>,
    pub state_get: Option<State>,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub data_type: c_int,
    pub data: *mut c_void,
    pub rank: i64,
    pub dims: *mut i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ByteSpan {
    pub pointer: *const c_char,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scalar {
    pub data_type: c_int,
    pub value: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Array {
    pub data_type: c_int,
    pub len: usize,
    pub data: *mut c_void,
}

/// The operands or, laid out alike, the results of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub len: i64,
    pub kinds: *mut c_int,
    pub items: *mut *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub len: i64,
    pub kinds: *mut c_int,
    pub names: *mut *mut ByteSpan,
    pub items: *mut *mut c_void,
}

/// All that one call of a handler gets.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CallFrame {
    pub struct_size: usize,
    pub extensions: *mut Extension,
    pub api: *const Api,
    pub context: *mut InvokeContext,
    pub stage: c_int,
    pub operands: Buffers,
    pub results: Buffers,
    pub attributes: Attributes,
    /// Newer than the rest, and not counted in the `struct_size` that XLA sends even where it is there.
    pub future: *mut Future,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TypeId {
    pub id: i64,
}

/// What a handler tells about itself when XLA asks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    pub struct_size: usize,
    pub api_version: ApiVersion,
    pub traits: u32,
    /// Newer than the rest.
    pub state_type_id: TypeId,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MetadataExtension {
    pub base: Extension,
    pub metadata: *mut Metadata,
}

/// A handler, as XLA calls it: null means success, an error belongs to XLA from then on.
pub type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut Error;

/// The handlers of one custom call, one for each stage that it takes part in.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Stages {
    pub instantiate: Option<Handler>,
    pub prepare: Option<Handler>,
    pub initialize: Option<Handler>,
    pub execute: Handler,
}

/// The number of bytes a struct must have for one of its fields to be there in full.
macro_rules! end_of {
    ($type:ty, $field:ident: $field_type:ty) => {{
        // Fails to compile where the stated type is not the field's.
        const _: fn(&$type) -> &$field_type = |value| &value.$field;
        ::std::mem::offset_of!($type, $field) + ::std::mem::size_of::<$field_type>()
    }};
}

/// Whether a struct of the given size, as its sender states it, holds a field in full.
macro_rules! covers {
    ($struct_size:expr, $type:ty, $field:ident: $field_type:ty) => {
        $struct_size >= $crate::sys::end_of!($type, $field: $field_type)
    };
}

pub(crate) use {covers, end_of};

// Offsets and sizes of the 64-bit C ABI.
const _: () = {
    assert!(size_of::<c_int>() == 4);
    assert!(size_of::<Extension>() == 24);
    assert!(offset_of!(Extension, next) == 16);
    assert!(size_of::<ApiVersion>() == 24);
    assert!(offset_of!(ApiVersion, minor) == 20);
    assert!(size_of::<ErrorCreateArgs>() == 32);
    assert!(end_of!(ErrorCreateArgs, code: c_int) == 28);
    assert!(offset_of!(Api, version) == 16);
    assert!(offset_of!(Api, error_create) == 48);
    assert!(end_of!(ErrorMessageArgs, message: *const c_char) == 32);
    assert!(end_of!(ErrorMessageArgs, code: c_int) == 36);
    assert!(size_of::<ErrorDestroyArgs>() == 24);
    assert!(size_of::<TypeInfo>() == 24);
    assert!(offset_of!(TypeRegisterArgs, type_id) == 32);
    assert!(size_of::<TypeRegisterArgs>() == 48);
    assert!(offset_of!(StateArgs, type_id) == 32);
    assert!(size_of::<StateArgs>() == 48);
    assert!(size_of::<OldStateArgs>() == 40);
    assert!(offset_of!(Api, type_register) == 88);
    assert!(offset_of!(Api, context_get) == 96);
    assert!(offset_of!(Api, state_get) == 112);
    assert!(size_of::<ContextGetArgs>() == 40);
    assert!(size_of::<UserData>() == 40);
    assert!(size_of::<Stages>() == 32);
    assert!(size_of::<Buffer>() == 48);
    assert!(offset_of!(Buffer, data_type) == 16);
    assert!(offset_of!(Buffer, data) == 24);
    assert!(offset_of!(Buffer, rank) == 32);
    assert!(offset_of!(Buffer, dims) == 40);
    assert!(size_of::<ByteSpan>() == 16);
    assert!(size_of::<Scalar>() == 16);
    assert!(size_of::<Array>() == 24);
    assert!(offset_of!(Array, len) == 8);
    assert!(size_of::<Buffers>() == 40);
    assert!(offset_of!(Buffers, len) == 16);
    assert!(offset_of!(Buffers, items) == 32);
    assert!(size_of::<Attributes>() == 48);
    assert!(offset_of!(Attributes, names) == 32);
    assert!(offset_of!(Attributes, items) == 40);
    assert!(offset_of!(CallFrame, api) == 16);
    assert!(offset_of!(CallFrame, stage) == 32);
    assert!(offset_of!(CallFrame, operands) == 40);
    assert!(offset_of!(CallFrame, results) == 80);
    assert!(offset_of!(CallFrame, attributes) == 120);
    assert!(offset_of!(CallFrame, future) == 168);
    assert!(size_of::<CallFrame>() == 176);
    assert!(offset_of!(Metadata, api_version) == 8);
    assert!(end_of!(Metadata, traits: u32) == 36);
    assert!(offset_of!(Metadata, state_type_id) == 40);
    assert!(size_of::<Metadata>() == 48);
    assert!(size_of::<MetadataExtension>() == 32);
};

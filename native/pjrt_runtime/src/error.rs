//! What can go wrong, each with what was found and what would be right.

use std::fmt;
use std::path::PathBuf;

use crate::element_type::TensorType;

/// Every way in which this crate's functions fail.
///
/// Indexes of inputs count from 0, as in the entry function; sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no file where the plugin should be.
    #[error("no PJRT plugin at {}: there is no such file", path.display())]
    PluginNotFound { path: PathBuf },

    /// There is no file where the handler library should be.
    #[error("no handler library at {}: there is no such file", path.display())]
    LibraryNotFound { path: PathBuf },

    /// The dynamic loader refuses the file.
    #[error("{} cannot be loaded as a shared object: {reason}", path.display())]
    NotASharedObject { path: PathBuf, reason: String },

    /// A shared object, but not a plugin.
    #[error("{} is a shared object but no PJRT plugin: it exports no GetPjrtApi", path.display())]
    NoGetPjrtApi { path: PathBuf },

    /// `GetPjrtApi` returned no function table.
    #[error("GetPjrtApi of {} returned a null pointer instead of its function table", path.display())]
    NullApi { path: PathBuf },

    /// The plugin's function table has another layout than the one this crate was built for.
    #[error(
        "{} speaks PJRT API {major}.{minor}; this library works with API {supported_major}.{minimum_minor} \
         and later minor versions of {supported_major}",
        path.display()
    )]
    UnsupportedApi {
        path: PathBuf,
        major: i32,
        minor: i32,
        supported_major: i32,
        minimum_minor: i32,
    },

    /// The plugin's function table ends before the function, or holds a null pointer in its place.
    #[error("the PJRT plugin does not implement {name}")]
    MissingFunction { name: &'static str },

    /// The plugin's own words.
    #[error("{code}: {message}")]
    Pjrt { code: ErrorCode, message: String },

    /// The plugin reported success and left out what it should have returned.
    #[error("{name} reported success but returned no {what}")]
    NullResult {
        name: &'static str,
        what: &'static str,
    },

    /// A handler library has no such function.
    #[error("{} has no handler function {symbol:?}: {reason}", library.display())]
    SymbolMissing {
        library: PathBuf,
        symbol: String,
        reason: String,
    },

    /// A handler library exports no table, and no names were given.
    #[error(
        "{} exports no table of its handlers: give the names of the handlers to register, or export \
         the table with xla_ffi::library! in Rust or include/exla_custom_call.h in C and C++",
        library.display()
    )]
    NoTable { library: PathBuf },

    /// A handler library's table is not as it should be.
    #[error("the table of handlers that {} exports is broken: {reason}", library.display())]
    BrokenTable { library: PathBuf, reason: String },

    /// A handler library's table has handlers for other platforms alone.
    #[error(
        "{} has no handler for platform {platform}, only for {}",
        library.display(),
        found.join(", ")
    )]
    NoHandlersFor {
        library: PathBuf,
        platform: String,
        found: Vec<String>,
    },

    /// The plugin cannot take FFI handlers.
    #[error("{} has no FFI extension, so it takes no custom call handlers", path.display())]
    NoFfiExtension { path: PathBuf },

    /// The plugin's FFI extension is too old to take handlers.
    #[error(
        "{} takes no custom call handlers: its FFI extension is from before mid-2025 and has no \
         register_handler function, and it has no GPU custom-call extension",
        path.display()
    )]
    NoRegisterHandler { path: PathBuf },

    /// The plugin takes no data for an execution.
    #[error(
        "{} takes no user data: its FFI extension has no PJRT_FFI_UserData_Add function, or it has no such \
         extension",
        path.display()
    )]
    NoUserData { path: PathBuf },

    /// User data that was made for another client.
    #[error("the user data was made for another client than the executable's")]
    ForeignUserData,

    /// The handler did not pass the handshake that XLA makes at registration.
    #[error("handler for target {target:?} rejected: {reason}")]
    HandlerRejected { target: String, reason: String },

    /// XLA keeps the first handler of a name for the life of the process.
    #[error(
        "target {target:?} already has a handler on platform {platform}, {registered}, and cannot \
         have {refused}: a process keeps the first one, choose another target name"
    )]
    HandlerConflict {
        target: String,
        platform: String,
        registered: String,
        refused: String,
    },

    /// A create option that would end the process instead of being refused by the plugin.
    #[error("create option {name}: {reason}")]
    CreateOption { name: String, reason: String },

    /// Compile options that contradict themselves or the client.
    #[error("compile options: {0}")]
    CompileOptions(String),

    /// The number of inputs is not the entry function's.
    #[error("the executable takes {expected} inputs, {found} were given")]
    InputCount { expected: usize, found: usize },

    /// An input's bytes do not fill its type and shape.
    #[error("input {index}: {tensor} takes {expected} bytes, {found} were given")]
    InputSize {
        index: usize,
        tensor: TensorType,
        expected: usize,
        found: usize,
    },

    /// An input's type or shape is not the entry function's.
    #[error("input {index}: the executable takes {expected}, {found} was given")]
    InputType {
        index: usize,
        expected: TensorType,
        found: TensorType,
    },

    /// A shape that no tensor can have.
    #[error("input {index}: {reason}")]
    InputShape { index: usize, reason: String },

    /// An output's bytes are not what its type and shape say.
    #[error("output {index}: {tensor} takes {expected} bytes, the plugin returned {found}")]
    OutputSize {
        index: usize,
        tensor: TensorType,
        expected: usize,
        found: usize,
    },

    /// Inputs were given for another number of devices than the executable runs on.
    #[error("the executable runs on {expected} devices, inputs for {found} were given")]
    DeviceCount { expected: usize, found: usize },

    /// The client has no such addressable device.
    #[error(
        "the client has no addressable device {id}; its addressable devices are {available:?}"
    )]
    NoSuchDevice { id: i32, available: Vec<i32> },

    /// A buffer of another client.
    #[error("input {index}: the buffer belongs to another client than the executable")]
    ForeignBuffer { index: usize },

    /// A buffer on another device than the one it is an input for.
    #[error(
        "input {index}: the buffer is on device {found}, and the program runs on device {expected} \
         with it; copy it there first"
    )]
    WrongDevice {
        index: usize,
        expected: i32,
        found: i32,
    },

    /// A buffer or executable that was given up earlier.
    #[error("the {what} was {} and can be used no more", if *donated { "donated to an execution" } else { "deleted" })]
    Deleted {
        what: &'static str,
        /// Whether its memory was given to an execution.
        donated: bool,
    },

    /// An input whose memory cannot be given away.
    #[error("input {index} cannot be donated: {reason}")]
    Donation { index: usize, reason: String },

    /// The plugin's file cannot be read again.
    #[error("the plugin's file {} cannot be read: {reason}", path.display())]
    PluginUnreadable { path: PathBuf, reason: String },

    /// Bytes that are not taken for a serialized executable.
    #[error("the serialized executable is refused: {0}")]
    Refused(Refusal),

    /// A compiled program that cannot be written as text.
    #[error("the compiled program has no HLO text: {reason}")]
    HloText { reason: String },

    /// A sharding that the plugin told and that contradicts itself.
    #[error("the plugin's sharding of {what} {index} cannot be read: {reason}")]
    Sharding {
        /// `"parameter"` or `"result"`.
        what: &'static str,
        index: usize,
        reason: String,
    },

    /// A tensor that cannot be cut into the slices that were given, or put together from them.
    #[error("slices of a tensor: {reason}")]
    Slices { reason: String },

    /// A type the plugin named and this crate does not know.
    #[error("the plugin returned element type code {code}, which this library does not know")]
    UnknownElementType { code: u32 },

    /// A type that has no bytes on the host.
    #[error("a {element_type} has no bytes to move between host and device")]
    NoHostBytes { element_type: crate::ElementType },

    /// A thread could not be started, or ended by a panic.
    #[error("thread {name:?}: {reason}")]
    Thread { name: String, reason: String },
}

/// Why bytes are not taken for a serialized executable of a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Something else altogether.
    #[error("the bytes do not begin as one does")]
    Foreign,

    /// Written by a version of this crate that laid it out in another way.
    #[error("it is in format {found}, this library reads format {supported}")]
    Format { found: u32, supported: u32 },

    /// The end is missing, or there is something behind it.
    #[error("it is {found} bytes long, it should be {expected}")]
    Length { expected: u64, found: u64 },

    /// The checksum does not match.
    #[error("it is damaged: its checksum does not match its content")]
    Damaged,

    /// Written by another version of this package.
    #[error("it was written by version {found} of this library, this is version {expected}")]
    Package { expected: String, found: String },

    /// Written with another build of the plugin, or on another kind of machine: what was compiled
    /// there need not run here.
    #[error("its {what} is {found}, here it is {expected}")]
    Platform {
        /// Such as `"plugin file"`, `"platform version"` or `"processor"`.
        what: &'static str,
        expected: String,
        found: String,
    },

    /// Compiled for devices that the client does not have.
    #[error("it runs on devices {needed:?}, the client has {available:?}")]
    Devices {
        needed: Vec<i32>,
        available: Vec<i32>,
    },
}

/// The status codes of `PJRT_Error_Code` in `xla/pjrt/c/pjrt_c_api.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    Ok,
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
    /// A code that is none of the above.
    Other(u32),
}

impl ErrorCode {
    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Ok,
            1 => Self::Cancelled,
            2 => Self::Unknown,
            3 => Self::InvalidArgument,
            4 => Self::DeadlineExceeded,
            5 => Self::NotFound,
            6 => Self::AlreadyExists,
            7 => Self::PermissionDenied,
            8 => Self::ResourceExhausted,
            9 => Self::FailedPrecondition,
            10 => Self::Aborted,
            11 => Self::OutOfRange,
            12 => Self::Unimplemented,
            13 => Self::Internal,
            14 => Self::Unavailable,
            15 => Self::DataLoss,
            16 => Self::Unauthenticated,
            other => Self::Other(other),
        }
    }

    /// The code's name as XLA spells it, `"INVALID_ARGUMENT"`; `"OTHER"` for a code that has none.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
            Self::Other(_) => "OTHER",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(code) => write!(formatter, "error code {code}"),
            known => formatter.write_str(known.name()),
        }
    }
}

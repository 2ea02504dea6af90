use std::fmt;

/// The result of a handler and of everything in it that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $raw:literal, $name:literal;)*) => {
        /// What kind of failure an [`Error`] is, by the code that XLA's status carries.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $variant = $raw,)*
        }

        impl Code {
            /// Every code there is, in the order of their numbers.
            pub const ALL: [Code; 16] = [$(Code::$variant,)*];

            /// The code with this number; `None` for 0, which means success, and for numbers without a code.
            pub const fn from_raw(raw: i32) -> Option<Self> {
                match raw {
                    $($raw => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The name that XLA prints for the code.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

codes! {
    /// The caller gave up.
    Cancelled = 1, "CANCELLED";
    /// Nothing more is known.
    Unknown = 2, "UNKNOWN";
    /// An operand, a result or an attribute is not what the handler takes.
    InvalidArgument = 3, "INVALID_ARGUMENT";
    /// It took too long.
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED";
    /// Something asked for does not exist.
    NotFound = 5, "NOT_FOUND";
    /// Something to be made exists.
    AlreadyExists = 6, "ALREADY_EXISTS";
    /// It is not allowed.
    PermissionDenied = 7, "PERMISSION_DENIED";
    /// Out of memory, or of another resource.
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED";
    /// The state of the system does not allow it.
    FailedPrecondition = 9, "FAILED_PRECONDITION";
    /// Stopped by a conflict.
    Aborted = 10, "ABORTED";
    /// Past the end of a valid range.
    OutOfRange = 11, "OUT_OF_RANGE";
    /// The handler cannot do this.
    Unimplemented = 12, "UNIMPLEMENTED";
    /// Something that always holds does not.
    Internal = 13, "INTERNAL";
    /// It may work later.
    Unavailable = 14, "UNAVAILABLE";
    /// Data is lost or damaged.
    DataLoss = 15, "DATA_LOSS";
    /// It is not known who asks.
    Unauthenticated = 16, "UNAUTHENTICATED";
}

/// The failure of a handler: it fails the execution that called the handler, and its message reaches whoever
/// started that.
///
/// ```
/// use xla_ffi::{Code, Error};
///
/// let error = Error::invalid_argument(format!("k must be positive, found {}", -1));
/// assert_eq!(error.code(), Code::InvalidArgument);
/// assert_eq!(error.to_string(), "k must be positive, found -1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    message: String,
}

impl Error {
    /// An error of any code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// The caller passed something the handler does not take.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// The handler does not support what it was asked for.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(Code::Unimplemented, message)
    }

    /// Something went wrong that should not be able to.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }

    /// The kind of failure.
    pub fn code(&self) -> Code {
        self.code
    }

    /// What went wrong, for the person who has to put it right.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_numbered_as_in_xla() {
        for (index, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, index + 1);
            assert_eq!(Code::from_raw(code as i32), Some(code));
        }
        for raw in [0, 17, -1, i32::MAX] {
            assert_eq!(Code::from_raw(raw), None);
        }
    }
}

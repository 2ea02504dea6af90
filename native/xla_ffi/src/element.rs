use crate::DataType;
use half::{bf16, f16};

/// A boolean as XLA stores it: one byte, where zero is false.
///
/// It is not a `bool`, because a `bool` that is neither 0 nor 1 is undefined behaviour in Rust and nothing
/// keeps a buffer from holding such a byte.
///
/// ```
/// use xla_ffi::Pred;
///
/// assert!(Pred::from(true).get());
/// assert_eq!(Pred::default(), Pred::from(false));
/// ```
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Pred(u8);

impl Pred {
    /// The value as a `bool`.
    #[inline]
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Pred {
    #[inline]
    fn from(value: bool) -> Self {
        Self(value as u8)
    }
}

impl From<Pred> for bool {
    #[inline]
    fn from(value: Pred) -> Self {
        value.get()
    }
}

impl PartialEq for Pred {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Pred {}

impl std::fmt::Debug for Pred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

/// A Rust type with the same memory as the elements of one XLA data type.
///
/// Complex numbers are pairs of real and imaginary part. The types of less than a byte and the 8-bit floats
/// have no Rust counterpart; the bytes of the latter can be had with [`AnyArg::as_bytes`](crate::AnyArg::as_bytes).
///
/// # Safety
///
/// Any bytes must be a value of the type, it must have no padding, and its size must be that of `DATA_TYPE`.
pub unsafe trait Element: Copy + Send + Sync + std::fmt::Debug + 'static {
    /// The data type whose elements these are.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($type:ty => $data_type:ident;)*) => {
        $(
            // SAFETY: a number, a transparent wrapper of one or an array of two: no padding, and every bit
            // pattern is a value; the size is asserted below.
            unsafe impl Element for $type {
                const DATA_TYPE: DataType = DataType::$data_type;
            }

            const _: () = assert!(matches!(
                DataType::$data_type.byte_size(),
                Some(size) if size == ::std::mem::size_of::<$type>()
            ));
        )*
    };
}

elements! {
    Pred => Pred;
    i8 => S8;
    i16 => S16;
    i32 => S32;
    i64 => S64;
    u8 => U8;
    u16 => U16;
    u32 => U32;
    u64 => U64;
    f16 => F16;
    bf16 => BF16;
    f32 => F32;
    f64 => F64;
    [f32; 2] => C64;
    [f64; 2] => C128;
}

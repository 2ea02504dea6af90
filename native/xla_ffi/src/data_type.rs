use std::ffi::c_int;
use std::fmt;

macro_rules! data_types {
    ($($(#[$doc:meta])* $variant:ident = $raw:literal, $name:literal, $bits:expr;)*) => {
        /// The type of the elements of a buffer or of an attribute.
        ///
        /// A newer XLA may know types that this crate does not: they arrive as [`DataType::Unknown`], so a
        /// handler that does not look at the elements works with them too.
        ///
        /// ```
        /// use xla_ffi::DataType;
        ///
        /// assert_eq!(DataType::BF16.to_string(), "bf16");
        /// assert_eq!(DataType::BF16.byte_size(), Some(2));
        /// assert_eq!(DataType::from_raw(11), DataType::F32);
        /// assert_eq!(DataType::from_raw(1000), DataType::Unknown(1000));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DataType {
            $($(#[$doc])* $variant,)*
            /// A type of this number, which this crate has no name for.
            Unknown(i32),
        }

        impl DataType {
            /// The type with this number in XLA's enumeration.
            pub const fn from_raw(raw: c_int) -> Self {
                match raw {
                    $($raw => Self::$variant,)*
                    other => Self::Unknown(other),
                }
            }

            /// The number of the type in XLA's enumeration.
            pub const fn to_raw(self) -> c_int {
                match self {
                    $(Self::$variant => $raw,)*
                    Self::Unknown(raw) => raw,
                }
            }

            /// The number of bits of an element, where it is known.
            pub const fn bit_width(self) -> Option<usize> {
                match self {
                    $(Self::$variant => $bits,)*
                    Self::Unknown(_) => None,
                }
            }
        }

        impl fmt::Display for DataType {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant => f.pad($name),)*
                    Self::Unknown(raw) => write!(f, "type #{raw}"),
                }
            }
        }

        #[cfg(test)]
        const ALL: &[DataType] = &[$(DataType::$variant,)*];
    };
}

data_types! {
    /// No type. Never that of a buffer.
    Invalid = 0, "invalid", None;
    /// A boolean, one byte each.
    Pred = 1, "pred", Some(8);
    S1 = 30, "s1", Some(1);
    S2 = 26, "s2", Some(2);
    S4 = 21, "s4", Some(4);
    S8 = 2, "s8", Some(8);
    S16 = 3, "s16", Some(16);
    S32 = 4, "s32", Some(32);
    S64 = 5, "s64", Some(64);
    U1 = 31, "u1", Some(1);
    U2 = 27, "u2", Some(2);
    U4 = 22, "u4", Some(4);
    U8 = 6, "u8", Some(8);
    U16 = 7, "u16", Some(16);
    U32 = 8, "u32", Some(32);
    U64 = 9, "u64", Some(64);
    F16 = 10, "f16", Some(16);
    F32 = 11, "f32", Some(32);
    F64 = 12, "f64", Some(64);
    BF16 = 16, "bf16", Some(16);
    /// Two `f32`: the real part, then the imaginary one.
    C64 = 15, "c64", Some(64);
    /// Two `f64`: the real part, then the imaginary one.
    C128 = 18, "c128", Some(128);
    /// Orders effects; has no elements.
    Token = 17, "token", Some(0);
    F4E2M1FN = 32, "f4e2m1fn", Some(4);
    F8E5M2 = 19, "f8e5m2", Some(8);
    F8E3M4 = 29, "f8e3m4", Some(8);
    F8E4M3 = 28, "f8e4m3", Some(8);
    F8E4M3FN = 20, "f8e4m3fn", Some(8);
    F8E4M3B11FNUZ = 23, "f8e4m3b11fnuz", Some(8);
    F8E5M2FNUZ = 24, "f8e5m2fnuz", Some(8);
    F8E4M3FNUZ = 25, "f8e4m3fnuz", Some(8);
    F8E8M0FNU = 33, "f8e8m0fnu", Some(8);
}

impl DataType {
    /// The number of bytes of an element.
    ///
    /// `None` for types of less than a byte, since a frame does not tell whether their elements are packed,
    /// and for types of unknown size.
    pub const fn byte_size(self) -> Option<usize> {
        match self.bit_width() {
            Some(bits) if bits % 8 == 0 => Some(bits / 8),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_round_trips() {
        for &data_type in ALL {
            assert_eq!(DataType::from_raw(data_type.to_raw()), data_type);
        }
        for raw in [-1, 13, 14, 34, i32::MAX, i32::MIN] {
            assert_eq!(DataType::from_raw(raw), DataType::Unknown(raw));
            assert_eq!(DataType::from_raw(raw).to_raw(), raw);
            assert_eq!(DataType::from_raw(raw).byte_size(), None);
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(DataType::Token.byte_size(), Some(0));
        assert_eq!(DataType::S4.byte_size(), None);
        assert_eq!(DataType::C128.byte_size(), Some(16));
        assert_eq!(DataType::Unknown(99).to_string(), "type #99");
    }
}

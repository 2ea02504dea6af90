//! The types of tensor elements, and how their values lie in host memory.

use std::fmt;

use crate::Error;

/// The element types of PJRT buffers (`PJRT_Buffer_Type` in `xla/pjrt/c/pjrt_c_api.h`).
///
/// On the host an element takes [`byte_width`](Self::byte_width) bytes in the machine's byte order.
/// The types below a byte are not packed there: each element takes a byte of its own, in the byte's
/// low bits. On the way to the device the high bits do not count; on the way back they are those of
/// the same number as a byte: copies of the sign for the signed types, zero for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// A boolean; one byte, 0 or 1.
    Pred,
    S2,
    S4,
    S8,
    S16,
    S32,
    S64,
    U2,
    U4,
    U8,
    U16,
    U32,
    U64,
    F4E2M1FN,
    F8E3M4,
    F8E4M3,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E4M3B11FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0FNU,
    BF16,
    F16,
    F32,
    F64,
    /// Two `F32`: the real part, then the imaginary one.
    C64,
    /// Two `F64`: the real part, then the imaginary one.
    C128,
    /// A value that orders effects and has no bytes.
    Token,
}

/// Name, code in `PJRT_Buffer_Type`, code in `xla.PrimitiveType`, bytes on the host.
const TABLE: [(ElementType, &str, u32, i32, usize); 29] = [
    (ElementType::Pred, "pred", 1, 1, 1),
    (ElementType::S2, "s2", 24, 26, 1),
    (ElementType::S4, "s4", 21, 21, 1),
    (ElementType::S8, "s8", 2, 2, 1),
    (ElementType::S16, "s16", 3, 3, 2),
    (ElementType::S32, "s32", 4, 4, 4),
    (ElementType::S64, "s64", 5, 5, 8),
    (ElementType::U2, "u2", 25, 27, 1),
    (ElementType::U4, "u4", 22, 22, 1),
    (ElementType::U8, "u8", 6, 6, 1),
    (ElementType::U16, "u16", 7, 7, 2),
    (ElementType::U32, "u32", 8, 8, 4),
    (ElementType::U64, "u64", 9, 9, 8),
    (ElementType::F4E2M1FN, "f4e2m1fn", 29, 32, 1),
    (ElementType::F8E3M4, "f8e3m4", 27, 29, 1),
    (ElementType::F8E4M3, "f8e4m3", 26, 28, 1),
    (ElementType::F8E4M3FN, "f8e4m3fn", 17, 20, 1),
    (ElementType::F8E4M3FNUZ, "f8e4m3fnuz", 20, 25, 1),
    (ElementType::F8E4M3B11FNUZ, "f8e4m3b11fnuz", 18, 23, 1),
    (ElementType::F8E5M2, "f8e5m2", 16, 19, 1),
    (ElementType::F8E5M2FNUZ, "f8e5m2fnuz", 19, 24, 1),
    (ElementType::F8E8M0FNU, "f8e8m0fnu", 28, 33, 1),
    (ElementType::BF16, "bf16", 13, 16, 2),
    (ElementType::F16, "f16", 10, 10, 2),
    (ElementType::F32, "f32", 11, 11, 4),
    (ElementType::F64, "f64", 12, 12, 8),
    (ElementType::C64, "c64", 14, 15, 8),
    (ElementType::C128, "c128", 15, 18, 16),
    (ElementType::Token, "token", 23, 17, 0),
];

impl ElementType {
    /// Every element type, in the order of the enum.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// The type of a `PJRT_Buffer_Type` code, `None` if it is unknown.
    pub fn from_code(code: u32) -> Option<Self> {
        TABLE.iter().find(|row| row.2 == code).map(|row| row.0)
    }

    /// The type of a name as [`Display`](fmt::Display) writes it: `"f32"`, `"s8"`, `"pred"`, `"bf16"`.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The type of an `xla.PrimitiveType` code (`xla/xla_data.proto`).
    pub(crate) fn from_primitive_type(code: i32) -> Option<Self> {
        TABLE.iter().find(|row| row.3 == code).map(|row| row.0)
    }

    /// The type's code in `PJRT_Buffer_Type`.
    pub fn code(self) -> u32 {
        self.row().2
    }

    /// Bytes that one element takes on the host: 1 for the types below a byte, 0 for a token.
    pub fn byte_width(self) -> usize {
        self.row().4
    }

    /// Bits that one element takes where elements are packed.
    pub(crate) fn bit_width(self) -> usize {
        match self {
            Self::S2 | Self::U2 => 2,
            Self::S4 | Self::U4 | Self::F4E2M1FN => 4,
            other => other.byte_width() * 8,
        }
    }

    /// Fills the high bits of elements below a byte, which plugins leave zero or as they were.
    pub(crate) fn widen(self, bytes: &mut [u8]) {
        let bits = self.bit_width();
        if !(1..8).contains(&bits) {
            return;
        }
        let signed = matches!(self, Self::S2 | Self::S4);
        let shift = 8 - bits;
        for byte in bytes {
            let high = *byte << shift;
            *byte = if signed {
                (high.cast_signed() >> shift).cast_unsigned()
            } else {
                high >> shift
            };
        }
    }

    // TABLE follows the order of the enum (a test holds it to that), so the index is the discriminant.
    fn row(self) -> &'static (Self, &'static str, u32, i32, usize) {
        &TABLE[self as usize]
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.row().1)
    }
}

/// An element type and a shape: what a tensor is, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    pub element_type: ElementType,
    /// The size of each dimension, most major first; empty for a scalar.
    pub dimensions: Vec<i64>,
}

impl TensorType {
    /// Bytes that the tensor takes on the host, `None` if a dimension is negative or the product is
    /// more than an address can count.
    pub fn byte_size(&self) -> Option<usize> {
        byte_size(self.element_type, &self.dimensions)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.element_type == ElementType::Token {
            return formatter.write_str("token");
        }
        write!(formatter, "{}[", self.element_type)?;
        for (index, dimension) in self.dimensions.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(formatter, "{comma}{dimension}")?;
        }
        formatter.write_str("]")
    }
}

pub(crate) fn byte_size(element_type: ElementType, dimensions: &[i64]) -> Option<usize> {
    let width = element_type.byte_width();
    // A negative size is as good as one that is too large.
    let sizes = dimensions.iter();
    let sizes = sizes.map(|&size| usize::try_from(size).unwrap_or(usize::MAX));
    let bytes = byte_count(width.max(1), sizes)?;
    Some(if width == 0 { 0 } else { bytes })
}

/// The bytes of a tensor of elements of `width`; `None` where memory cannot have so many.
pub(crate) fn byte_count(width: usize, sizes: impl IntoIterator<Item = usize>) -> Option<usize> {
    // XLA multiplies in 64 bits whatever the order, so a zero must not hide an overflow elsewhere.
    let mut bytes = width;
    let mut empty = false;
    for size in sizes {
        match size {
            0 => empty = true,
            size => bytes = bytes.checked_mul(size)?,
        }
    }
    if bytes > isize::MAX as usize {
        return None;
    }
    Some(if empty { 0 } else { bytes })
}

pub(crate) fn from_plugin(code: u32) -> Result<ElementType, Error> {
    ElementType::from_code(code).ok_or(Error::UnknownElementType { code })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_follows_the_order_of_the_enum() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, index, "{}", row.1);
        }
    }

    #[test]
    fn codes_are_those_of_the_bound_header() {
        assert_eq!(
            ElementType::Pred.code(),
            pjrt_sys::PJRT_Buffer_Type_PJRT_Buffer_Type_PRED
        );
        assert_eq!(
            ElementType::U64.code(),
            pjrt_sys::PJRT_Buffer_Type_PJRT_Buffer_Type_U64
        );
        assert_eq!(
            ElementType::BF16.code(),
            pjrt_sys::PJRT_Buffer_Type_PJRT_Buffer_Type_BF16
        );
        assert_eq!(
            ElementType::C128.code(),
            pjrt_sys::PJRT_Buffer_Type_PJRT_Buffer_Type_C128
        );
        assert_eq!(
            ElementType::F8E4M3FNUZ.code(),
            pjrt_sys::PJRT_Buffer_Type_PJRT_Buffer_Type_F8E4M3FNUZ
        );
        assert_eq!(
            ElementType::Token.code(),
            pjrt_sys::PJRT_Buffer_Type_PJRT_Buffer_Type_TOKEN
        );
        assert_eq!(
            ElementType::U2.code(),
            pjrt_sys::PJRT_Buffer_Type_PJRT_Buffer_Type_U2
        );
    }

    #[test]
    fn a_code_and_a_name_lead_back_to_their_type() {
        for element_type in ElementType::all() {
            assert_eq!(
                ElementType::from_code(element_type.code()),
                Some(element_type)
            );
            assert_eq!(
                ElementType::from_name(&element_type.to_string()),
                Some(element_type)
            );
        }
        assert_eq!(ElementType::from_code(0), None);
        assert_eq!(ElementType::from_code(9_999), None);
        assert_eq!(ElementType::from_name("float"), None);
    }

    #[test]
    fn a_tensor_type_reads_as_in_hlo() {
        let matrix = TensorType {
            element_type: ElementType::F32,
            dimensions: vec![2, 3],
        };
        let scalar = TensorType {
            element_type: ElementType::Pred,
            dimensions: vec![],
        };
        assert_eq!(matrix.to_string(), "f32[2,3]");
        assert_eq!(scalar.to_string(), "pred[]");
    }

    #[test]
    fn byte_sizes_count_elements_times_width() {
        assert_eq!(byte_size(ElementType::F32, &[2, 3]), Some(24));
        assert_eq!(byte_size(ElementType::C128, &[]), Some(16));
        assert_eq!(byte_size(ElementType::S4, &[5]), Some(5));
        assert_eq!(byte_size(ElementType::F32, &[0, 3]), Some(0));
        assert_eq!(byte_size(ElementType::Token, &[]), Some(0));
    }

    #[test]
    fn elements_below_a_byte_become_the_same_number_as_a_byte() {
        let widened = |element_type: ElementType, mut bytes: Vec<u8>| {
            element_type.widen(&mut bytes);
            bytes
        };
        assert_eq!(
            widened(ElementType::S2, vec![0, 1, 2, 3]),
            vec![0, 1, 0xfe, 0xff]
        );
        assert_eq!(
            widened(ElementType::S4, vec![7, 8, 0xff]),
            vec![7, 0xf8, 0xff]
        );
        assert_eq!(widened(ElementType::U2, vec![3, 0xfe]), vec![3, 2]);
        assert_eq!(widened(ElementType::U4, vec![15, 0xf8]), vec![15, 8]);
        assert_eq!(widened(ElementType::S8, vec![0x80]), vec![0x80]);
    }

    #[test]
    fn sizes_that_no_memory_holds_are_none() {
        assert_eq!(byte_size(ElementType::F32, &[-1]), None);
        assert_eq!(byte_size(ElementType::F32, &[i64::MAX, 2]), None);
        assert_eq!(byte_size(ElementType::F32, &[i64::MAX, i64::MAX, 0]), None);
    }
}

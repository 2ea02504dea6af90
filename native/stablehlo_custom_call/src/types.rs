use crate::{error::Error, sink::collect};
use melior::{
    ir::{Type as MlirType, TypeLike},
    Context,
};
use mlir_sys::{
    mlirAffineMapIsIdentity, mlirAttributeGetNull, mlirBF16TypeGet, mlirComplexTypeGet,
    mlirF16TypeGet, mlirF32TypeGet, mlirF64TypeGet, mlirFloat8E4M3FNTypeGet, mlirFloat8E5M2TypeGet,
    mlirIntegerTypeGet, mlirIntegerTypeUnsignedGet, mlirMemRefTypeContiguousGet,
    mlirMemRefTypeGetAffineMap, mlirMemRefTypeGetMemorySpace, mlirOpaqueTypeGet,
    mlirRankedTensorTypeGet, mlirRankedTensorTypeGetEncoding, mlirShapedTypeGetDimSize,
    mlirShapedTypeGetElementType, mlirShapedTypeGetRank, mlirTupleTypeGet,
    mlirTupleTypeGetNumTypes, mlirTupleTypeGetType, mlirTypeIsAMemRef, mlirTypeIsARankedTensor,
    mlirTypeIsATuple, mlirTypePrint,
};
use std::fmt::{self, Display, Formatter};

/// A tensor's element type, as StableHLO has it.
///
/// Source: StableHLO specification, section Types. Signed integers are MLIR's signless ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
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
    F8E5M2,
    F8E4M3FN,
    F16,
    BF16,
    F32,
    F64,
    C64,
    C128,
}

impl ElementType {
    pub const ALL: [Self; 21] = [
        Self::Pred,
        Self::S2,
        Self::S4,
        Self::S8,
        Self::S16,
        Self::S32,
        Self::S64,
        Self::U2,
        Self::U4,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::F8E5M2,
        Self::F8E4M3FN,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::C64,
        Self::C128,
    ];

    /// The type as MLIR writes it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Pred => "i1",
            Self::S2 => "i2",
            Self::S4 => "i4",
            Self::S8 => "i8",
            Self::S16 => "i16",
            Self::S32 => "i32",
            Self::S64 => "i64",
            Self::U2 => "ui2",
            Self::U4 => "ui4",
            Self::U8 => "ui8",
            Self::U16 => "ui16",
            Self::U32 => "ui32",
            Self::U64 => "ui64",
            Self::F8E5M2 => "f8E5M2",
            Self::F8E4M3FN => "f8E4M3FN",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::C64 => "complex<f32>",
            Self::C128 => "complex<f64>",
        }
    }

    /// Bytes an element takes in a constant. Elements of less than a byte take a whole one, an
    /// 8-bit integer of their value, as in XLA's host literals.
    pub fn byte_size(self) -> usize {
        match self {
            Self::Pred
            | Self::S2
            | Self::S4
            | Self::S8
            | Self::U2
            | Self::U4
            | Self::U8
            | Self::F8E5M2
            | Self::F8E4M3FN => 1,
            Self::S16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::S32 | Self::U32 | Self::F32 => 4,
            Self::S64 | Self::U64 | Self::F64 | Self::C64 => 8,
            Self::C128 => 16,
        }
    }

    /// Whether an element can be this byte. Only types of less than a byte have bytes that they
    /// cannot; theirs are 8-bit integers of the element's value.
    pub(crate) fn holds(self, byte: u8) -> bool {
        match self {
            Self::Pred => byte < 2,
            Self::U2 => byte < 4,
            Self::U4 => byte < 16,
            Self::S2 => (-2..2).contains(&byte.cast_signed()),
            Self::S4 => (-8..8).contains(&byte.cast_signed()),
            _ => true,
        }
    }

    fn from_text(text: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|element| element.text().as_bytes() == text)
    }

    fn to_mlir(self, context: &Context) -> MlirType<'_> {
        let raw = context.to_raw();
        // SAFETY: each function makes a type of a live context.
        unsafe {
            MlirType::from_raw(match self {
                Self::Pred => mlirIntegerTypeGet(raw, 1),
                Self::S2 => mlirIntegerTypeGet(raw, 2),
                Self::S4 => mlirIntegerTypeGet(raw, 4),
                Self::S8 => mlirIntegerTypeGet(raw, 8),
                Self::S16 => mlirIntegerTypeGet(raw, 16),
                Self::S32 => mlirIntegerTypeGet(raw, 32),
                Self::S64 => mlirIntegerTypeGet(raw, 64),
                Self::U2 => mlirIntegerTypeUnsignedGet(raw, 2),
                Self::U4 => mlirIntegerTypeUnsignedGet(raw, 4),
                Self::U8 => mlirIntegerTypeUnsignedGet(raw, 8),
                Self::U16 => mlirIntegerTypeUnsignedGet(raw, 16),
                Self::U32 => mlirIntegerTypeUnsignedGet(raw, 32),
                Self::U64 => mlirIntegerTypeUnsignedGet(raw, 64),
                Self::F8E5M2 => mlirFloat8E5M2TypeGet(raw),
                Self::F8E4M3FN => mlirFloat8E4M3FNTypeGet(raw),
                Self::F16 => mlirF16TypeGet(raw),
                Self::BF16 => mlirBF16TypeGet(raw),
                Self::F32 => mlirF32TypeGet(raw),
                Self::F64 => mlirF64TypeGet(raw),
                Self::C64 => mlirComplexTypeGet(mlirF32TypeGet(raw)),
                Self::C128 => mlirComplexTypeGet(mlirF64TypeGet(raw)),
            })
        }
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// A dense tensor of static shape.
    Tensor {
        element: ElementType,
        dimensions: Vec<i64>,
    },
    /// What orders operations with side effects.
    Token,
    /// Several values as one, `tuple<...>`.
    Tuple(Vec<Type>),
    /// A tensor at a fixed place in memory, `memref<...>`, which the custom calls `CreateBuffer`, `Pin`
    /// and `Unpin` make and end.
    Buffer {
        element: ElementType,
        dimensions: Vec<i64>,
    },
}

impl Type {
    pub fn tensor(element: ElementType, dimensions: &[i64]) -> Self {
        Self::Tensor {
            element,
            dimensions: dimensions.to_vec(),
        }
    }

    /// Checks the dimensions; `place` begins the error's message.
    pub(crate) fn check(&self, place: impl FnOnce() -> String) -> Result<(), Error> {
        let (element, dimensions) = match self {
            Self::Token => return Ok(()),
            Self::Tuple(elements) => return check_tuple(elements, &place()),
            Self::Tensor {
                element,
                dimensions,
            }
            | Self::Buffer {
                element,
                dimensions,
            } => (element, dimensions),
        };
        check_shape(*element, dimensions, place)
    }

    /// The dimensions of a tensor or buffer.
    pub(crate) fn dimensions(&self) -> Option<&[i64]> {
        match self {
            Self::Tensor { dimensions, .. } | Self::Buffer { dimensions, .. } => Some(dimensions),
            Self::Token | Self::Tuple(_) => None,
        }
    }

    /// The type in MLIR. It must have been checked.
    pub(crate) fn to_mlir<'c>(&self, context: &'c Context) -> MlirType<'c> {
        match self {
            Self::Tensor {
                element,
                dimensions,
            } => {
                let element = element.to_mlir(context);
                // SAFETY: the dimensions are readable for their count during the call, and MLIR
                // copies them.
                unsafe {
                    MlirType::from_raw(mlirRankedTensorTypeGet(
                        dimensions.len() as isize,
                        dimensions.as_ptr(),
                        element.to_raw(),
                        mlirAttributeGetNull(),
                    ))
                }
            }
            Self::Buffer {
                element,
                dimensions,
            } => {
                let element = element.to_mlir(context);
                // SAFETY: as for a tensor; a null memory space is the default one.
                unsafe {
                    MlirType::from_raw(mlirMemRefTypeContiguousGet(
                        element.to_raw(),
                        dimensions.len() as isize,
                        dimensions.as_ptr(),
                        mlirAttributeGetNull(),
                    ))
                }
            }
            Self::Tuple(elements) => {
                let elements: Vec<_> = elements
                    .iter()
                    .map(|element| element.to_mlir(context).to_raw())
                    .collect();
                // SAFETY: the elements are readable for their count during the call.
                unsafe {
                    MlirType::from_raw(mlirTupleTypeGet(
                        context.to_raw(),
                        elements.len() as isize,
                        elements.as_ptr(),
                    ))
                }
            }
            // SAFETY: MLIR copies both strings.
            Self::Token => unsafe {
                MlirType::from_raw(mlirOpaqueTypeGet(
                    context.to_raw(),
                    crate::sink::string_ref(b"stablehlo"),
                    crate::sink::string_ref(b"token"),
                ))
            },
        }
    }

    /// The type that an MLIR type is, when it is one of ours.
    pub(crate) fn from_mlir(r#type: MlirType<'_>) -> Option<Self> {
        let raw = r#type.to_raw();
        // SAFETY: `raw` is a live type; its kind is checked before it is read as that kind, and indices
        // stay below the counts that MLIR gives.
        unsafe {
            if mlirTypeIsATuple(raw) {
                return (0..mlirTupleTypeGetNumTypes(raw))
                    .map(|index| {
                        Self::from_mlir(MlirType::from_raw(mlirTupleTypeGetType(raw, index)))
                    })
                    .collect::<Option<_>>()
                    .map(Self::Tuple);
            }
            let is_buffer = mlirTypeIsAMemRef(raw);
            if !is_buffer && !mlirTypeIsARankedTensor(raw) {
                return (print(r#type) == b"!stablehlo.token").then_some(Self::Token);
            }
            let is_plain = if is_buffer {
                mlirMemRefTypeGetMemorySpace(raw).ptr.is_null()
                    && mlirAffineMapIsIdentity(mlirMemRefTypeGetAffineMap(raw))
            } else {
                mlirRankedTensorTypeGetEncoding(raw).ptr.is_null()
            };
            if !is_plain {
                return None;
            }
            let element = MlirType::from_raw(mlirShapedTypeGetElementType(raw));
            let dimensions = (0..mlirShapedTypeGetRank(raw))
                .map(|index| mlirShapedTypeGetDimSize(raw, index as isize))
                .collect::<Vec<_>>();
            if dimensions.iter().any(|&dimension| dimension < 0) {
                return None;
            }
            let element = ElementType::from_text(&print(element))?;
            Some(if is_buffer {
                Self::Buffer {
                    element,
                    dimensions,
                }
            } else {
                Self::Tensor {
                    element,
                    dimensions,
                }
            })
        }
    }
}

pub(crate) fn print(r#type: MlirType<'_>) -> Vec<u8> {
    // SAFETY: the type is live for the call.
    collect(|callback, data| unsafe { mlirTypePrint(r#type.to_raw(), Some(callback), data) })
}

impl Display for Type {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor {
                element,
                dimensions,
            } => {
                formatter.write_str("tensor<")?;
                for dimension in dimensions {
                    write!(formatter, "{dimension}x")?;
                }
                write!(formatter, "{}>", element.text())
            }
            Self::Buffer {
                element,
                dimensions,
            } => {
                formatter.write_str("memref<")?;
                for dimension in dimensions {
                    write!(formatter, "{dimension}x")?;
                }
                write!(formatter, "{}>", element.text())
            }
            Self::Tuple(elements) => {
                formatter.write_str("tuple<")?;
                for (index, element) in elements.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(formatter, "{comma}{element}")?;
                }
                formatter.write_str(">")
            }
            Self::Token => formatter.write_str("!stablehlo.token"),
        }
    }
}

fn check_shape(
    element: ElementType,
    dimensions: &[i64],
    place: impl FnOnce() -> String,
) -> Result<(), Error> {
    if let Some((index, &found)) = dimensions.iter().enumerate().find(|(_, &d)| d < 0) {
        return Err(Error::NegativeDimension {
            place: place(),
            index,
            found,
        });
    }
    // Multiplied without the zeros first: XLA computes strides of empty tensors too.
    let bytes = dimensions
        .iter()
        .filter(|&&dimension| dimension != 0)
        .try_fold(element.byte_size() as i64, |bytes, &d| bytes.checked_mul(d));
    if bytes.is_none() {
        return Err(Error::TensorTooLarge {
            place: place(),
            dimensions: dimensions.to_vec(),
            element_type: element.text(),
        });
    }
    Ok(())
}

/// Tuples in tuples deeper than this are refused: what reads and prints them recurses.
const DEEPEST_TUPLE: usize = 16;

fn check_tuple(elements: &[Type], place: &str) -> Result<(), Error> {
    let mut pending: Vec<_> = elements
        .iter()
        .enumerate()
        .map(|(i, t)| (i, t, 1))
        .collect();
    while let Some((index, element, depth)) = pending.pop() {
        match element {
            Type::Tuple(_) if depth >= DEEPEST_TUPLE => {
                return Err(Error::TupleTooDeep {
                    place: place.into(),
                    limit: DEEPEST_TUPLE,
                });
            }
            Type::Tuple(inner) => {
                pending.extend(inner.iter().enumerate().map(|(i, t)| (i, t, depth + 1)));
            }
            Type::Token => {}
            Type::Tensor {
                element,
                dimensions,
            }
            | Type::Buffer {
                element,
                dimensions,
            } => check_shape(*element, dimensions, || format!("{place}, element {index}"))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Limits};

    #[test]
    fn every_type_reads_back_from_mlir_as_it_was_and_prints_as_mlir_prints_it() {
        let context = Context::new(Limits::default());
        let inner = context.lock();
        for element in ElementType::ALL {
            for dimensions in [&[][..], &[0], &[2, 3]] {
                let r#type = Type::tensor(element, dimensions);
                let mlir = r#type.to_mlir(inner.context());
                assert_eq!(Type::from_mlir(mlir), Some(r#type.clone()));
                assert_eq!(print(mlir), r#type.to_string().into_bytes());
            }
        }
        let token = Type::Token.to_mlir(inner.context());
        assert_eq!(Type::from_mlir(token), Some(Type::Token));
    }

    #[test]
    fn a_type_that_is_not_ours_reads_back_as_none() {
        let context = Context::new(Limits::default());
        let inner = context.lock();
        for text in [
            "tensor<?xf32>",
            "tensor<*xf32>",
            "tensor<2xi3>",
            "tuple<i32>",
            "tuple<tensor<f32>, tuple<i32>>",
            "tensor<2xf32, #stablehlo.bounds<2>>",
            "memref<2xf32, 3>",
            "memref<2xf32, strided<[2]>>",
            "memref<?xf32>",
        ] {
            let mlir = MlirType::parse(inner.context(), text).unwrap();
            assert_eq!(Type::from_mlir(mlir), None, "{text}");
        }
    }

    #[test]
    fn a_negative_dimension_is_refused_with_its_index() {
        let error = Type::tensor(ElementType::F32, &[2, -3]).check(|| "operand 0".into());
        assert_eq!(
            error.unwrap_err().to_string(),
            "operand 0: dimension 1 is -3; a dimension is 0 or more"
        );
    }

    #[test]
    fn a_tensor_whose_bytes_overflow_is_refused_even_when_a_dimension_is_zero() {
        let error =
            Type::tensor(ElementType::F32, &[1 << 40, 0, 1 << 40]).check(|| "result 1".into());
        assert_eq!(
            error.unwrap_err().to_string(),
            "result 1: the dimensions [1099511627776, 0, 1099511627776] of f32 take more than 2^63 - 1 bytes"
        );
    }
}

//! A look into attributes that MLIR parsed.

use melior::ir::{Attribute, AttributeLike};
use mlir_sys::{
    mlirArrayAttrGetElement, mlirArrayAttrGetNumElements, mlirAttributeGetType,
    mlirAttributeIsAArray, mlirAttributeIsABool, mlirAttributeIsADenseElements,
    mlirAttributeIsADenseF32Array, mlirAttributeIsADenseF64Array, mlirAttributeIsADenseI16Array,
    mlirAttributeIsADenseI32Array, mlirAttributeIsADenseI64Array, mlirAttributeIsADenseI8Array,
    mlirAttributeIsADenseIntElements, mlirAttributeIsADictionary, mlirAttributeIsAFlatSymbolRef,
    mlirAttributeIsAFloat, mlirAttributeIsAInteger, mlirAttributeIsAOpaque, mlirAttributeIsAString,
    mlirAttributeIsASymbolRef, mlirAttributeIsAType, mlirAttributeIsAUnit,
    mlirDenseArrayGetNumElements, mlirDenseElementsAttrGetDoubleValue,
    mlirDenseElementsAttrGetFloatValue, mlirDenseElementsAttrGetInt64Value,
    mlirDenseElementsAttrIsSplat, mlirDenseF32ArrayGetElement, mlirDenseF64ArrayGetElement,
    mlirDictionaryAttrGetElement, mlirDictionaryAttrGetNumElements, mlirElementsAttrGetNumElements,
    mlirFlatSymbolRefAttrGetValue, mlirFloatAttrGetValueDouble, mlirIdentifierStr,
    mlirIntegerTypeGetWidth, mlirIntegerTypeIsSignless, mlirOpaqueAttrGetData,
    mlirOpaqueAttrGetDialectNamespace, mlirShapedTypeGetDimSize, mlirShapedTypeGetElementType,
    mlirShapedTypeGetRank, mlirShapedTypeHasStaticShape, mlirStringAttrGetValue,
    mlirTypeIsAComplex, mlirTypeIsAF32, mlirTypeIsAF64, mlirTypeIsAFloat, mlirTypeIsAIndex,
    mlirTypeIsAInteger, MlirAttribute, MlirStringRef, MlirType,
};
use std::slice;

/// What an attribute is, as far as the rules ask.
#[derive(Debug)]
pub(crate) enum View<'c> {
    Unit,
    Bool,
    Integer(Scalar),
    Float(Scalar),
    /// The bytes of a string.
    String(&'c [u8]),
    /// A symbol without nested ones.
    Symbol(&'c [u8]),
    NestedSymbol,
    /// `[...]`
    Array(Vec<Attribute<'c>>),
    Dictionary(Vec<(&'c [u8], Attribute<'c>)>),
    /// `array<...>` of signless integers of 8 to 64 bits, of f32, or of f64: its bytes.
    Numbers(u64),
    /// `dense<...>`
    Dense(Dense<'c>),
    /// `#dialect...`: the dialect, and what follows its name.
    Opaque(&'c [u8], &'c [u8]),
    Type,
    Other,
}

/// The type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Index,
    Integer { width: u32, signless: bool },
    F32,
    F64,
    OtherFloat,
    Complex,
    Other,
}

#[derive(Debug)]
pub(crate) struct Dense<'c> {
    raw: MlirAttribute,
    pub scalar: Scalar,
    pub rank: i64,
    /// Saturates.
    pub count: u64,
    context: std::marker::PhantomData<&'c ()>,
}

impl Dense<'_> {
    /// The values of elements of type index. They must be index elements, which the caller has seen.
    pub(crate) fn indices(&self) -> Option<Vec<i64>> {
        // SAFETY: the attribute is live for the context's life; it has integer elements of type index,
        // which are kept as 64 bits, and the indices stay below its count.
        unsafe {
            if self.scalar != Scalar::Index || !mlirAttributeIsADenseIntElements(self.raw) {
                return None;
            }
            let count = mlirElementsAttrGetNumElements(self.raw);
            Some(
                (0..count)
                    .map(|at| mlirDenseElementsAttrGetInt64Value(self.raw, at as isize))
                    .collect(),
            )
        }
    }
}

impl<'c> View<'c> {
    pub(crate) fn of(attribute: Attribute<'c>) -> Self {
        let raw = attribute.to_raw();
        // SAFETY: the attribute is live for 'c, and so are the strings that it holds; its kind is
        // checked before it is read as that kind, and indices stay below the counts that MLIR gives.
        unsafe {
            if mlirAttributeIsABool(raw) {
                Self::Bool
            } else if mlirAttributeIsAInteger(raw) {
                Self::Integer(scalar(mlirAttributeGetType(raw)))
            } else if mlirAttributeIsAString(raw) {
                Self::String(bytes(mlirStringAttrGetValue(raw)))
            } else if mlirAttributeIsADictionary(raw) {
                Self::Dictionary(
                    (0..mlirDictionaryAttrGetNumElements(raw))
                        .map(|at| {
                            let entry = mlirDictionaryAttrGetElement(raw, at);
                            (
                                bytes(mlirIdentifierStr(entry.name)),
                                Attribute::from_raw(entry.attribute),
                            )
                        })
                        .collect(),
                )
            } else if mlirAttributeIsAFloat(raw) {
                Self::Float(scalar(mlirAttributeGetType(raw)))
            } else if mlirAttributeIsAArray(raw) {
                Self::Array(
                    (0..mlirArrayAttrGetNumElements(raw))
                        .map(|at| Attribute::from_raw(mlirArrayAttrGetElement(raw, at)))
                        .collect(),
                )
            } else if mlirAttributeIsADenseElements(raw) {
                Self::Dense(dense(raw))
            } else if let Some(width) = width_of_numbers(raw) {
                let count = mlirDenseArrayGetNumElements(raw);
                Self::Numbers(width.saturating_mul(count.unsigned_abs() as u64))
            } else if mlirAttributeIsAOpaque(raw) {
                Self::Opaque(
                    bytes(mlirOpaqueAttrGetDialectNamespace(raw)),
                    bytes(mlirOpaqueAttrGetData(raw)),
                )
            } else if mlirAttributeIsAFlatSymbolRef(raw) {
                Self::Symbol(bytes(mlirFlatSymbolRefAttrGetValue(raw)))
            } else if mlirAttributeIsASymbolRef(raw) {
                Self::NestedSymbol
            } else if mlirAttributeIsAUnit(raw) {
                Self::Unit
            } else if mlirAttributeIsAType(raw) {
                Self::Type
            } else {
                Self::Other
            }
        }
    }

    /// In words, with an article.
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Self::Unit => "the unit attribute",
            Self::Bool => "a boolean",
            Self::Integer(Scalar::Index) => "an integer of type index",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::String(_) => "a string",
            Self::Symbol(_) | Self::NestedSymbol => "a symbol",
            Self::Array(_) => "a list",
            Self::Dictionary(_) => "a dictionary",
            Self::Numbers(_) => "an array of numbers",
            Self::Dense(_) => "a dense array",
            Self::Opaque(..) => "an attribute of a dialect",
            Self::Type => "a type",
            Self::Other => "an attribute of another kind",
        }
    }
}

/// Whether an attribute is an infinite float of 32 or 64 bits, or has one as an element.
pub(crate) fn has_infinity(attribute: Attribute<'_>) -> bool {
    let raw = attribute.to_raw();
    // SAFETY: the attribute is live; its kind and the type of its elements are checked before it is read
    // as such, and indices stay below the counts that MLIR gives.
    unsafe {
        if mlirAttributeIsAFloat(raw) {
            return matches!(scalar(mlirAttributeGetType(raw)), Scalar::F32 | Scalar::F64)
                && mlirFloatAttrGetValueDouble(raw).is_infinite();
        }
        if mlirAttributeIsADenseF32Array(raw) {
            let count = mlirDenseArrayGetNumElements(raw);
            return (0..count).any(|at| mlirDenseF32ArrayGetElement(raw, at).is_infinite());
        }
        if mlirAttributeIsADenseF64Array(raw) {
            let count = mlirDenseArrayGetNumElements(raw);
            return (0..count).any(|at| mlirDenseF64ArrayGetElement(raw, at).is_infinite());
        }
        if !mlirAttributeIsADenseElements(raw) {
            return false;
        }
        // All elements of a splat are the first.
        let count = match mlirDenseElementsAttrIsSplat(raw) {
            true => 1,
            false => mlirElementsAttrGetNumElements(raw) as isize,
        };
        match scalar(mlirShapedTypeGetElementType(mlirAttributeGetType(raw))) {
            Scalar::F32 => {
                (0..count).any(|at| mlirDenseElementsAttrGetFloatValue(raw, at).is_infinite())
            }
            Scalar::F64 => {
                (0..count).any(|at| mlirDenseElementsAttrGetDoubleValue(raw, at).is_infinite())
            }
            _ => false,
        }
    }
}

/// The bytes that an element of an `array<...>` takes.
///
/// # Safety
/// `raw` must be a live attribute.
unsafe fn width_of_numbers(raw: MlirAttribute) -> Option<u64> {
    // SAFETY: the caller's promise.
    unsafe {
        if mlirAttributeIsADenseI8Array(raw) {
            Some(1)
        } else if mlirAttributeIsADenseI16Array(raw) {
            Some(2)
        } else if mlirAttributeIsADenseI32Array(raw) || mlirAttributeIsADenseF32Array(raw) {
            Some(4)
        } else if mlirAttributeIsADenseI64Array(raw) || mlirAttributeIsADenseF64Array(raw) {
            Some(8)
        } else {
            None
        }
    }
}

/// # Safety
/// `raw` must be a live dense elements attribute.
unsafe fn dense<'c>(raw: MlirAttribute) -> Dense<'c> {
    // SAFETY: the caller's promise; such an attribute has a shaped type, and one of static shape.
    unsafe {
        let shaped = mlirAttributeGetType(raw);
        let rank = mlirShapedTypeGetRank(shaped);
        let count = if mlirShapedTypeHasStaticShape(shaped) {
            (0..rank)
                .map(|at| mlirShapedTypeGetDimSize(shaped, at as isize).unsigned_abs())
                .fold(1, u64::saturating_mul)
        } else {
            u64::MAX
        };
        Dense {
            raw,
            scalar: scalar(mlirShapedTypeGetElementType(shaped)),
            rank,
            count,
            context: std::marker::PhantomData,
        }
    }
}

/// # Safety
/// `raw` must be a live type.
unsafe fn scalar(raw: MlirType) -> Scalar {
    // SAFETY: the caller's promise; the width is read of an integer type only.
    unsafe {
        if mlirTypeIsAInteger(raw) {
            Scalar::Integer {
                width: mlirIntegerTypeGetWidth(raw),
                signless: mlirIntegerTypeIsSignless(raw),
            }
        } else if mlirTypeIsAF32(raw) {
            Scalar::F32
        } else if mlirTypeIsAF64(raw) {
            Scalar::F64
        } else if mlirTypeIsAIndex(raw) {
            Scalar::Index
        } else if mlirTypeIsAFloat(raw) {
            Scalar::OtherFloat
        } else if mlirTypeIsAComplex(raw) {
            Scalar::Complex
        } else {
            Scalar::Other
        }
    }
}

/// # Safety
/// `string` must be readable for its length, for 'c.
unsafe fn bytes<'c>(string: MlirStringRef) -> &'c [u8] {
    if string.length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise; the length is not 0, so the pointer is not null.
    unsafe { slice::from_raw_parts(string.data.cast(), string.length) }
}

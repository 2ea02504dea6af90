//! Constants: `1.5`, `{1, 2}`, and `{...}` for what is too large to be of interest.

use std::fmt::{self, Write};

use pjrt_sys::protos::xla::{HloInstructionProto, LiteralProto};

use super::Joined;
use crate::element_type::ElementType;

/// More elements than this are left out, as XLA does.
const MOST: i64 = 10;

pub(super) fn print(out: &mut String, instruction: &HloInstructionProto) -> fmt::Result {
    let Some(literal) = &instruction.literal else {
        return out.write_str("{...}");
    };
    let dimensions = literal
        .shape
        .as_ref()
        .map_or(&[][..], |shape| &shape.dimensions);
    let count = dimensions.iter().try_fold(1i64, |count, &size| {
        count.checked_mul(size).filter(|&count| count <= MOST)
    });
    let values = count.and_then(|_| values(literal));
    match values {
        Some(values) if count == i64::try_from(values.len()).ok() => {
            nested(out, dimensions, &values, true)
        }
        _ => out.write_str("{...}"),
    }
}

/// The braces of each dimension around the values.
fn nested(out: &mut String, dimensions: &[i64], values: &[String], outermost: bool) -> fmt::Result {
    match dimensions {
        [] => write!(out, "{}", Joined(values, ", ")),
        [_] if outermost => write!(out, "{{{}}}", Joined(values, ", ")),
        [_] => write!(out, "{{ {} }}", Joined(values, ", ")),
        [size, inner @ ..] => {
            out.push_str("{ ");
            let size = usize::try_from(*size).unwrap_or(0);
            let each = values.len().checked_div(size).unwrap_or(0);
            for index in 0..size {
                out.push_str(if index > 0 { ", " } else { "" });
                nested(out, inner, &values[index * each..(index + 1) * each], false)?;
            }
            out.push_str(" }");
            Ok(())
        }
    }
}

/// The elements in row-major order; `None` for types that are not spelled out.
fn values(literal: &LiteralProto) -> Option<Vec<String>> {
    let shape = literal.shape.as_ref()?;
    // The elements are listed as they lie.
    let layout = shape.layout.as_ref();
    let row_major = layout.is_none_or(|layout| {
        let order = &layout.minor_to_major;
        order.iter().rev().copied().eq(0..order.len() as i64)
    });
    if !row_major {
        return None;
    }
    let values = match ElementType::from_primitive_type(shape.element_type)? {
        // As XLA writes them: words alone, digits in a row.
        ElementType::Pred if shape.dimensions.is_empty() => texts(&literal.preds),
        ElementType::Pred => {
            let digits = literal
                .preds
                .iter()
                .map(|&truth| u8::from(truth).to_string());
            digits.collect()
        }
        ElementType::S8 => literal
            .s8s
            .iter()
            .map(|&byte| byte.cast_signed().to_string())
            .collect(),
        ElementType::U8 => texts(&literal.u8s),
        ElementType::S16 => pairs(&literal.s16s, |bytes| i16::from_le_bytes(bytes).to_string()),
        ElementType::U16 => pairs(&literal.u16s, |bytes| u16::from_le_bytes(bytes).to_string()),
        ElementType::S32 => texts(&literal.s32s),
        ElementType::U32 => texts(&literal.u32s),
        ElementType::S64 => texts(&literal.s64s),
        ElementType::U64 => texts(&literal.u64s),
        ElementType::F16 => pairs(&literal.f16s, |bytes| {
            let value = half(u16::from_le_bytes(bytes)).into();
            float(value, (3, 5), |read| read == value)
        }),
        ElementType::BF16 => pairs(&literal.bf16s, |bytes| {
            let value = f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16).into();
            float(value, (2, 4), |read| read == value)
        }),
        ElementType::F32 => literal.f32s.iter().map(|&value| single(value)).collect(),
        ElementType::F64 => literal.f64s.iter().map(|&value| double(value)).collect(),
        ElementType::C64 => complex(&literal.c64s, single),
        ElementType::C128 => complex(&literal.c128s, double),
        _ => return None,
    };
    Some(values)
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn pairs(bytes: &[u8], text: impl Fn([u8; 2]) -> String) -> Vec<String> {
    let (pairs, _) = bytes.as_chunks::<2>();
    pairs.iter().map(|&pair| text(pair)).collect()
}

fn complex<T: Copy>(parts: &[T], text: impl Fn(T) -> String) -> Vec<String> {
    let (pairs, _) = parts.as_chunks::<2>();
    let pair = |&[real, imaginary]: &[T; 2]| format!("({}, {})", text(real), text(imaginary));
    pairs.iter().map(pair).collect()
}

/// The number with as many digits as it takes to read it back, as C's `%g` writes it: with the
/// fewer digits if they are enough, else with the more.
fn float(value: f64, digits: (usize, usize), reads_back: impl Fn(f64) -> bool) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() {
            "-nan"
        } else {
            "nan"
        }
        .to_owned();
    }
    if value == 0.0 || value.is_infinite() {
        return value.to_string();
    }
    let few = format!("{value:.*e}", digits.0 - 1);
    let (text, digits) = match few.parse() {
        Ok(same) if reads_back(same) => (few, digits.0),
        _ => (format!("{value:.*e}", digits.1 - 1), digits.1),
    };
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let digits = i32::try_from(digits).unwrap_or(i32::MAX);
    if exponent < -4 || exponent >= digits {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs());
    }
    let decimals = usize::try_from(digits - 1 - exponent).unwrap_or(0);
    trimmed(&format!("{value:.decimals$}"))
}

fn double(value: f64) -> String {
    float(value, (15, 17), |read| read == value)
}

fn single(value: f32) -> String {
    float(value.into(), (6, 9), |read| read as f32 == value)
}

/// The value of a half-precision float.
fn half(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f32::from(bits & 0x3ff);
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

//! What XLA's typed FFI takes in a `backend_config` dictionary.
//!
//! Source: the function that turns the dictionary into a handler's attributes, in `xla/ffi` of
//! openxla/xla; found by experiment to be the same in PJRT 0.106 and 0.115. An integer of type index
//! ends the process there, as does an array that does not fit into memory.

use super::{Findings, Parsed, ATTRIBUTES, MLIR_ATTRIBUTES};
use crate::{
    error::Quoted,
    path::Step,
    view::{has_infinity, Dense, Scalar, View},
};
use melior::ir::{Attribute, AttributeLike};

const INTEGERS: &str = "a handler takes integers of 8, 16, 32 and 64 bits, such as 4 : i64";
const FLOATS: &str = "a handler takes floats of type f32 and f64, such as 0.5 : f32";
const DENSE: &str =
    "a handler takes dense arrays of integers of 8, 16, 32 and 64 bits, of f32 and of f64";
const ARRAYS: &str =
    "a handler takes arrays of i8, i16, i32, i64, f32 and f64; write unsigned ones as \
                      dense, such as dense<[1, 2]> : tensor<2xui8>";

/// The bytes that the arrays of a module's custom calls may still make XLA allocate.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    spent: u64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, spent: 0 }
    }

    /// The bytes that it would take, where they are more than there may be.
    fn spend_on(&mut self, dense: &Dense<'_>) -> Option<u64> {
        let width = match dense.scalar {
            Scalar::Integer { width, .. } => u64::from(width.div_ceil(8)),
            Scalar::F32 => 4,
            _ => 8,
        };
        self.spend(dense.count.saturating_mul(width))
    }

    fn spend(&mut self, bytes: u64) -> Option<u64> {
        self.spent = self.spent.saturating_add(bytes);
        (self.spent > self.limit).then_some(bytes)
    }
}

/// Checks one attribute that a handler is to see.
pub(super) fn check<'a>(parsed: &Parsed<'a, '_>, budget: &mut Budget, findings: &mut Findings) {
    // Bits in hexadecimal can be those of an infinity; a number in decimals that is one was too large.
    let has_bits = parsed.given.text.windows(2).any(|pair| pair == b"0x");
    if !has_bits {
        check_overflow(parsed, parsed.attribute, &mut Vec::new(), findings);
    }
    // A text nests no deeper than its limit, so that this recursion is bounded too.
    value(parsed, parsed.attribute, &mut Vec::new(), budget, findings);
}

/// MLIR rounds a float that is too large for its type to infinity.
fn check_overflow<'c>(
    parsed: &Parsed<'_, 'c>,
    attribute: Attribute<'c>,
    path: &mut Vec<Step<'c>>,
    findings: &mut Findings,
) {
    if let View::Dictionary(entries) = View::of(attribute) {
        for (key, entry) in entries {
            path.push(Step::Key(key));
            check_overflow(parsed, entry, path, findings);
            path.pop();
        }
    } else if has_infinity(attribute) {
        findings.fault(
            ATTRIBUTES,
            parsed.given,
            path,
            "a float is too large for its type",
            "f32 goes to 3.4028235e38 and f64 to 1.7976931348623157e308; infinity is written in bits, \
             as 0x7F800000 : f32",
        );
    }
}

fn value<'c>(
    parsed: &Parsed<'_, 'c>,
    attribute: Attribute<'c>,
    path: &mut Vec<Step<'c>>,
    budget: &mut Budget,
    findings: &mut Findings,
) {
    let view = View::of(attribute);
    let expected = match &view {
        View::Bool | View::String(_) => return,
        View::Numbers(bytes) => {
            if let Some(bytes) = budget.spend(*bytes) {
                too_large(ATTRIBUTES, parsed, path, bytes, budget, findings);
            }
            return;
        }
        View::Integer(scalar) if is_integer(*scalar) => return,
        View::Float(Scalar::F32 | Scalar::F64) => return,
        View::Dense(dense) if is_element(dense.scalar) => {
            if let Some(bytes) = budget.spend_on(dense) {
                too_large(ATTRIBUTES, parsed, path, bytes, budget, findings);
            }
            return;
        }
        View::Dictionary(entries) => {
            for (key, entry) in entries {
                path.push(Step::Key(key));
                value(parsed, *entry, path, budget, findings);
                path.pop();
            }
            return;
        }
        View::Integer(_) => INTEGERS,
        View::Float(_) => FLOATS,
        View::Dense(_) => DENSE,
        View::Other if array_of(attribute).is_some() => ARRAYS,
        View::Unit => "a handler takes no unit; write true",
        View::Symbol(_) | View::NestedSymbol => "a handler takes no symbol; write it as a string",
        View::Type => "a handler takes no type; write it as a string",
        View::Array(_) => {
            "a handler takes no list; write numbers as array<i64: 1, 2>, and others as a dictionary"
        }
        View::Opaque(..) | View::Other => {
            "a handler takes booleans, integers, floats, strings, arrays of numbers and dictionaries"
        }
    };
    findings.fault(
        ATTRIBUTES,
        parsed.given,
        path,
        found(&view, attribute),
        expected,
    );
}

fn found(view: &View<'_>, attribute: Attribute<'_>) -> String {
    match view {
        View::Integer(Scalar::Integer { width, .. }) => format!("an integer of {width} bits"),
        View::Float(_) => format!("a float of type {}", attribute.r#type()),
        View::Dense(dense) => match dense.scalar {
            Scalar::Integer { width, .. } => format!("a dense array of integers of {width} bits"),
            _ => format!("a dense array of type {}", attribute.r#type()),
        },
        View::Other => match array_of(attribute) {
            Some(element) => format!("an array of {element}"),
            None => Quoted(attribute.to_string().as_bytes()).to_string(),
        },
        other => other.describe().into(),
    }
}

/// The type of the elements of an `array<...>` that [`View`] has no word for.
fn array_of(attribute: Attribute<'_>) -> Option<String> {
    let text = attribute.to_string();
    let (element, _) = text.strip_prefix("array<")?.split_once([':', '>'])?;
    Some(element.into())
}

/// `mhlo.literal` becomes a constant of XLA's own, which ends the process at a type that XLA lacks.
pub(super) fn check_literal(parsed: &Parsed<'_, '_>, budget: &mut Budget, findings: &mut Findings) {
    let View::Dense(dense) = parsed.view() else {
        return;
    };
    let is_xlas = match dense.scalar {
        Scalar::Integer { width, .. } => matches!(width, 1 | 2 | 4 | 8 | 16 | 32 | 64),
        scalar => matches!(scalar, Scalar::F32 | Scalar::F64),
    };
    if !is_xlas {
        findings.fault(
            MLIR_ATTRIBUTES,
            parsed.given,
            &[],
            format!("it is {}", found(&View::Dense(dense), parsed.attribute)),
            "XLA's compiler ends the process over such a literal; pass a constant as an operand",
        );
    } else if let Some(bytes) = budget.spend_on(&dense) {
        too_large(MLIR_ATTRIBUTES, parsed, &[], bytes, budget, findings);
    }
}

fn too_large(
    field: &'static str,
    parsed: &Parsed<'_, '_>,
    path: &[Step<'_>],
    bytes: u64,
    budget: &Budget,
    findings: &mut Findings,
) {
    findings.fault(
        field,
        parsed.given,
        path,
        format!("XLA would make an array of {bytes} bytes of it"),
        format!(
            "the arrays of a module's custom calls take at most {} bytes in all; pass large data as \
             an operand, or raise max_array_bytes of the context",
            budget.limit
        ),
    );
}

fn is_integer(scalar: Scalar) -> bool {
    matches!(
        scalar,
        Scalar::Integer {
            width: 8 | 16 | 32 | 64,
            ..
        }
    )
}

fn is_element(scalar: Scalar) -> bool {
    is_integer(scalar) || matches!(scalar, Scalar::F32 | Scalar::F64)
}

//! `operand_layouts`, `result_layouts` and `result_tilings`.
//!
//! Source: StableHLO specification, `custom_call`, and the verifier of `stablehlo.custom_call`.

use super::{Findings, Parsed, Subject, MLIR_ATTRIBUTES};
use crate::{
    error::{Count, Integers},
    path::Step,
    types::Type,
    view::{Dense, Scalar, View},
};

/// Found by experiment: the CPU plugin of PJRT 0.115 ends the process over more elements in many
/// dimensions, and both plugins over none.
const MOST_TRANSPOSED: u64 = 1 << 34;

const A_LAYOUT: &str =
    "a layout is a tensor of type index, such as dense<[1, 0]> : tensor<2xindex>";

pub(super) fn check(
    subject: Subject<'_>,
    operands: Option<&Parsed<'_, '_>>,
    results: Option<&Parsed<'_, '_>>,
    complete: bool,
    findings: &mut Findings,
) {
    if let (Some(given), None, true) | (None, Some(given), true) = (operands, results, complete) {
        let (missing, what) = if operands.is_some() {
            ("result_layouts", "result")
        } else {
            ("operand_layouts", "operand")
        };
        findings.fault(
            MLIR_ATTRIBUTES,
            given.given,
            &[],
            format!("{missing} is missing"),
            format!("layouts are for both sides or neither: give {missing} with a layout for each {what}"),
        );
    }
    if let Some(parsed) = operands {
        side(parsed, "operand", subject.operands, findings);
    }
    if let Some(parsed) = results {
        let (what, types) = values(subject);
        side(parsed, what, &types.iter().collect::<Vec<_>>(), findings);
    }
}

/// What results' layouts and tilings are of, and what one is called: of a single tuple its elements.
fn values<'a>(subject: Subject<'a>) -> (&'static str, &'a [Type]) {
    match subject.results {
        [Type::Tuple(elements)] => ("element", elements),
        results => ("result", results),
    }
}

/// Who has the values.
fn owner(what: &str) -> &'static str {
    match what {
        "element" => "the tuple result",
        _ => "the custom call",
    }
}

fn side(parsed: &Parsed<'_, '_>, what: &'static str, types: &[&Type], findings: &mut Findings) {
    let view = parsed.view();
    let View::Array(layouts) = view else {
        let found = format!("it is {}", view.describe());
        let expected = format!("it is a list with a layout for each {what}; {A_LAYOUT}");
        findings.fault(MLIR_ATTRIBUTES, parsed.given, &[], found, expected);
        return;
    };
    if layouts.len() != types.len() {
        findings.fault(
            MLIR_ATTRIBUTES,
            parsed.given,
            &[],
            match layouts.len() {
                1 => "there is 1 layout".into(),
                layouts => format!("there are {}", Count(layouts, "layout")),
            },
            format!(
                "{} has {}, and takes one for each",
                owner(what),
                Count(types.len(), what)
            ),
        );
    }
    for (index, layout) in layouts.iter().enumerate() {
        let path = [Step::Element(index)];
        let view = View::of(*layout);
        let dense = match view {
            View::Dense(dense) if dense.scalar == Scalar::Index && dense.rank == 1 => dense,
            View::Dense(dense) => {
                let found = match dense.scalar {
                    Scalar::Index => format!("a layout of rank {}", dense.rank),
                    _ => "a layout of another type than index".into(),
                };
                findings.fault(MLIR_ATTRIBUTES, parsed.given, &path, found, A_LAYOUT);
                continue;
            }
            other => {
                findings.fault(
                    MLIR_ATTRIBUTES,
                    parsed.given,
                    &path,
                    other.describe(),
                    A_LAYOUT,
                );
                continue;
            }
        };
        if let Some(r#type) = types.get(index) {
            if let Some((found, expected)) = mismatch(&dense, r#type, what, index) {
                findings.fault(MLIR_ATTRIBUTES, parsed.given, &path, found, expected);
            }
        }
    }
}

/// Why a layout does not fit a type.
fn mismatch(
    layout: &Dense<'_>,
    r#type: &Type,
    what: &str,
    index: usize,
) -> Option<(String, String)> {
    let of = |noun: &str| format!("{what} {index} is a {noun}");
    let Some(dimensions) = r#type.dimensions() else {
        return match r#type {
            Type::Tuple(_) => Some((
                of("tuple"),
                "a custom call with layouts takes no tuples here; pass the elements by themselves"
                    .into(),
            )),
            _ if layout.count == 0 => None,
            _ => Some((
                format!(
                    "a layout of {} for a token",
                    Count(layout.count as usize, "dimension")
                ),
                format!("{}, whose layout is dense<> : tensor<0xindex>", of("token")),
            )),
        };
    };
    let rank = dimensions.len();
    let expected = || {
        match rank {
        0 => format!("{what} {index} is a scalar, whose layout is dense<> : tensor<0xindex>"),
        1 => format!("{what} {index} has one dimension, so its layout is dense<0> : tensor<1xindex>"),
        _ => format!(
            "{what} {index} is a {type}, so its layout holds each of 0 to {} once, the dimension that \
             varies fastest first",
            rank - 1
        ),
    }
    };
    if layout.count != rank as u64 {
        return Some((
            format!("a layout of {}", Count(layout.count as usize, "dimension")),
            expected(),
        ));
    }
    let minor_to_major = layout.indices()?;
    let is_row_major = (0..rank as i64).rev().eq(minor_to_major.iter().copied());
    let elements = dimensions
        .iter()
        .fold(1u64, |product, d| product.saturating_mul(d.unsigned_abs()));
    if !is_row_major && (elements == 0 || elements > MOST_TRANSPOSED) {
        let row_major: Vec<_> = (0..rank as i64).rev().collect();
        return Some((
            format!("the layout {} for a {type}", Integers(&minor_to_major)),
            format!(
                "XLA divides by zero where it transposes a tensor of no element, or of more than \
                 2^34; write dense<{}> : tensor<{rank}xindex>",
                Integers(&row_major)
            ),
        ));
    }
    let mut seen = vec![false; rank];
    for &dimension in &minor_to_major {
        match usize::try_from(dimension)
            .ok()
            .and_then(|at| seen.get_mut(at))
        {
            Some(seen) if !*seen => *seen = true,
            _ => {
                return Some((
                    format!("the layout {}", Integers(&minor_to_major)),
                    expected(),
                ))
            }
        }
    }
    None
}

/// `result_tilings` is a list with, for each result, a list of tiles.
pub(super) fn check_tilings(
    subject: Subject<'_>,
    parsed: &Parsed<'_, '_>,
    findings: &mut Findings,
) {
    let expected = "result_tilings is a list, with a list of tiles for each result, such as \
                    [[dense<[8, 128]> : tensor<2xindex>]]";
    let view = parsed.view();
    let View::Array(tilings) = view else {
        let found = format!("it is {}", view.describe());
        findings.fault(MLIR_ATTRIBUTES, parsed.given, &[], found, expected);
        return;
    };
    let (what, types) = values(subject);
    if tilings.len() != types.len() {
        findings.fault(
            MLIR_ATTRIBUTES,
            parsed.given,
            &[],
            format!("it has {}", Count(tilings.len(), "list")),
            format!(
                "{} has {}, and takes a list for each",
                owner(what),
                Count(types.len(), what)
            ),
        );
    }
    for (index, tiling) in tilings.iter().enumerate() {
        let view = View::of(*tiling);
        let View::Array(tiles) = view else {
            let path = [Step::Element(index)];
            findings.fault(
                MLIR_ATTRIBUTES,
                parsed.given,
                &path,
                view.describe(),
                expected,
            );
            continue;
        };
        for (at, tile) in tiles.iter().enumerate() {
            let view = View::of(*tile);
            let is_tile = matches!(
                &view,
                View::Dense(dense) if dense.scalar == Scalar::Index && dense.rank == 1
            );
            if !is_tile {
                let path = [Step::Element(index), Step::Element(at)];
                findings.fault(
                    MLIR_ATTRIBUTES,
                    parsed.given,
                    &path,
                    view.describe(),
                    expected,
                );
            }
        }
    }
}

//! What XLA's compiler will not read, though it is legal.
//!
//! Found by compiling custom calls with each attribute on both CPU plugins and looking for it in the
//! optimised HLO.

use super::{Findings, Parsed, MLIR_ATTRIBUTES};
use crate::{error::Quoted, path::Step, view::View, warning::Warning};

/// The attributes that the translation to HLO reads.
const READ: [&str; 10] = [
    "has_side_effect",
    "called_computations",
    "operand_layouts",
    "result_layouts",
    "result_tilings",
    "output_operand_aliases",
    "mhlo.frontend_attributes",
    "mhlo.sharding",
    "sdy.sharding",
    "sdy.sharding_rule",
];

/// Names whose value Shardy keeps while it propagates.
const SHARDY: [&str; 3] = [
    "sdy.propagation_edges",
    "sdy.result_propagation_edges",
    "sdy.block_arg_propagation_edges",
];

pub(super) fn check(parsed: &Parsed<'_, '_>, findings: &mut Findings) {
    let mut warn = |found: String, instead: String| {
        findings.warnings.push(Warning {
            field: MLIR_ATTRIBUTES,
            name: parsed.given.name.into(),
            found,
            instead,
        });
    };
    match parsed.given.name {
        b"mhlo.frontend_attributes" => match parsed.view() {
            View::Dictionary(entries) => {
                for (key, entry) in entries {
                    if is_shardys(key) {
                        // Told as a fault.
                        continue;
                    }
                    let view = View::of(entry);
                    if !matches!(view, View::String(_)) {
                        warn(
                            format!(
                                "XLA drops the entry {}, which is {}",
                                Quoted(key),
                                view.describe()
                            ),
                            "its entries are strings; write the value as one".into(),
                        );
                    }
                }
            }
            view => warn(
                format!("XLA drops it, since it is {}", view.describe()),
                "it is a dictionary of strings, such as {key = \"value\"}".into(),
            ),
        },
        name if READ.iter().any(|read| read.as_bytes() == name) => {}
        name if SHARDY.iter().any(|read| read.as_bytes() == name) => {}
        name => {
            let instead = match nearest(name) {
                Some(near) => format!("did you mean {near}?"),
                None => {
                    "for the handler use attributes, for the HLO mhlo.frontend_attributes".into()
                }
            };
            warn(
                "XLA drops it: nothing of it reaches the HLO".into(),
                instead,
            );
        }
    }
}

/// Entries that XLA writes for Shardy, and reads again without checking them.
fn is_shardys(key: &[u8]) -> bool {
    key.starts_with(b"xla.sdy.")
}

/// Refuses entries of `mhlo.frontend_attributes` over which XLA ends the process, wherever they stand.
pub(crate) fn check_frontend(
    field: &'static str,
    parsed: &Parsed<'_, '_>,
    findings: &mut Findings,
) {
    if parsed.given.name != b"mhlo.frontend_attributes" {
        return;
    }
    let View::Dictionary(entries) = parsed.view() else {
        return;
    };
    for (key, _) in entries.iter().filter(|(key, _)| is_shardys(key)) {
        findings.fault(
            field,
            parsed.given,
            &[Step::Key(key)],
            "XLA writes the entry itself, and ends the process over another",
            "write sdy.sharding, sdy.sharding_rule, or the option meshes of the module",
        );
    }
}

/// What people call some of them.
const SHORT: [(&str, &str); 5] = [
    ("side_effect", "has_side_effect"),
    ("layouts", "operand_layouts"),
    ("layout", "operand_layouts"),
    ("aliases", "output_operand_aliases"),
    ("aliasing", "output_operand_aliases"),
];

/// A known name that differs by a slip of the keyboard, or by a missing dialect.
fn nearest(name: &[u8]) -> Option<&'static str> {
    let name = str::from_utf8(name).ok()?;
    if let Some((_, meant)) = SHORT.into_iter().find(|(short, _)| *short == name) {
        return Some(meant);
    }
    let last = |name: &'static str| name.rsplit('.').next().unwrap_or(name);
    let bare = name.rsplit('.').next().unwrap_or(name);
    READ.into_iter()
        .map(|known| {
            let whole = distance(name, known);
            // Of those that are equally near without their dialects, the one of the same dialect.
            (whole.min(distance(bare, last(known))), whole, known)
        })
        .filter(|(distance, _, known)| *distance <= 1 + known.len() / 8)
        .min_by_key(|(distance, whole, _)| (*distance, *whole))
        .map(|(_, _, known)| known)
}

/// Levenshtein's distance; a name much longer than any known one is far from all.
fn distance(one: &str, other: &str) -> usize {
    if one.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.bytes().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_keyboard_is_near_the_name_that_was_meant() {
        for (name, meant) in [
            ("output_operand_alias", Some("output_operand_aliases")),
            ("operand_layout", Some("operand_layouts")),
            ("frontend_attributes", Some("mhlo.frontend_attributes")),
            ("mhlo.operand_layouts", Some("operand_layouts")),
            ("sharding_rule", Some("sdy.sharding_rule")),
            ("has_sideeffect", Some("has_side_effect")),
            ("side_effect", Some("has_side_effect")),
            ("sdy.shardings", Some("sdy.sharding")),
            ("mhlo.shardings", Some("mhlo.sharding")),
            ("layouts", Some("operand_layouts")),
            ("aliases", Some("output_operand_aliases")),
            ("scale", None),
            ("my.attribute", None),
            ("", None),
        ] {
            assert_eq!(nearest(name.as_bytes()), meant, "{name}");
        }
    }
}

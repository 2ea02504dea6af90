//! `sdy.*` attributes of an operation, against its operands, its results and the module's meshes.
//!
//! Source: Shardy's verifier of operation attributes (`shardy/dialect/sdy/ir/verifiers.cc`).

use super::{Findings, MLIR_ATTRIBUTES};
use crate::{
    error::Quoted,
    graph::NamedText,
    shardy::{find_place, Attribute, Fault, Meshes, Role, TensorShape},
    types::Type,
    warning::Warning,
};

/// Checks one attribute of an operation, whose texts were read already.
pub(crate) fn check_operation(
    field: &'static str,
    meshes: &Meshes,
    operands: &[&Type],
    results: &[Type],
    given: &NamedText<'_>,
    findings: &mut Findings,
) {
    if !given.name.starts_with(b"sdy.") {
        return;
    }
    let read = Attribute::parse(given.text.trim_ascii()).ok();
    if let Some(attribute) = &read {
        for advice in attribute.portability() {
            findings.needs_newer = true;
            findings.warnings.push(Warning {
                field,
                name: given.name.into(),
                found: format!("{}: {}", advice.place, advice.message),
                instead: "write it in a way that both read, or use a newer plugin".into(),
            });
        }
    }
    let found = other(read.as_ref(), given.text);
    let expected = match (given.name, read) {
        (b"sdy.sharding_rule", Some(Attribute::ShardingRule(rule))) => {
            let operands: Vec<_> = operands.iter().map(|t| shape(t)).collect();
            let results: Vec<_> = results.iter().map(shape).collect();
            let faults = rule.verify(&operands, &results);
            if faults.is_empty() {
                for advice in rule.size_mismatches(&operands, &results) {
                    findings.warnings.push(Warning {
                        field,
                        name: given.name.into(),
                        found: format!("{}: {}", advice.place, advice.message),
                        instead: "Shardy splits by the factors, not by the dimensions".into(),
                    });
                }
            }
            push(field, given, faults, findings);
            return;
        }
        (b"sdy.sharding", Some(Attribute::ShardingPerValue(shardings))) => {
            let results: Vec<_> = results.iter().map(shape).collect();
            let faults = shardings.verify(Role::Result, &results, meshes);
            push(field, given, faults, findings);
            return;
        }
        (b"sdy.propagation_edges", Some(Attribute::PropagationEdges(_))) => return,
        (b"sdy.sharding_rule", _) => "it is #sdy.op_sharding_rule<...>",
        (b"sdy.sharding", _) => {
            "on an operation it is #sdy.sharding_per_value<[...]>, with a sharding for each result"
        }
        (b"sdy.propagation_edges", _) => "it is #sdy.propagation_edges<...>",
        // Shardy writes them itself, while it works.
        (b"sdy.result_propagation_edges" | b"sdy.block_arg_propagation_edges", _) => {
            "Shardy writes it itself; leave it out"
        }
        _ => return,
    };
    findings.fault(field, given, &[], found, expected);
}

/// What stands where another attribute of Shardy's should.
pub(super) fn other(read: Option<&Attribute>, text: &[u8]) -> String {
    match read {
        Some(attribute) => format!("it is #sdy.{}", attribute.mnemonic()),
        None => format!("it is {}", Quoted(text.trim_ascii())),
    }
}

/// Checks `sdy.sharding` of a function's parameter or result.
pub(crate) fn check_value(
    field: &'static str,
    meshes: &Meshes,
    r#type: &Type,
    given: &NamedText<'_>,
    findings: &mut Findings,
) {
    if given.name != b"sdy.sharding" {
        return;
    }
    match Attribute::parse(given.text.trim_ascii()) {
        Ok(Attribute::Sharding(sharding)) => {
            push(
                field,
                given,
                sharding.verify(&shape(r#type), meshes),
                findings,
            );
        }
        read => findings.fault(
            field,
            given,
            &[],
            other(read.ok().as_ref(), given.text),
            "on a parameter or a result it is #sdy.sharding<...>",
        ),
    }
}

pub(super) fn check(
    scope: super::Scope<'_>,
    subject: super::Subject<'_>,
    parsed: &super::Parsed<'_, '_>,
    findings: &mut Findings,
) {
    check_operation(
        MLIR_ATTRIBUTES,
        scope.meshes,
        subject.operands,
        subject.results,
        parsed.given,
        findings,
    );
}

pub(super) fn push(
    field: &'static str,
    given: &NamedText<'_>,
    faults: Vec<Fault>,
    findings: &mut Findings,
) {
    for fault in faults {
        let (found, expected) = fault.parts();
        let at = find_place(given.text, &fault.place);
        // The attribute itself begins where its text does: that is no place to tell.
        let at = if given.text[..at].trim_ascii().is_empty() {
            0
        } else {
            at
        };
        findings.push(field, given, at, found, expected);
    }
}

fn shape(r#type: &Type) -> TensorShape {
    match r#type {
        Type::Tensor { dimensions, .. } | Type::Buffer { dimensions, .. } => {
            TensorShape::of(dimensions)
        }
        Type::Tuple(elements) => match elements.as_slice() {
            [Type::Tensor { dimensions, .. } | Type::Buffer { dimensions, .. }] => {
                TensorShape::of(dimensions)
            }
            _ => TensorShape::NotATensor,
        },
        Type::Token => TensorShape::NotATensor,
    }
}

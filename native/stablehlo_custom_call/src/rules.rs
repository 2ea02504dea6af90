//! The rules of a custom call: those of StableHLO's verifier, of XLA's typed FFI and of Shardy, and
//! what keeps XLA from ending the process.
//!
//! MLIR 19 knows neither dialect, so that nothing but this stands between a spec and XLA's compiler.
//! Every rule was held against the verdict of XLA's CPU plugins: see the crate `differential`.

mod advice;
mod aliases;
mod computations;
mod dialects;
mod hlo_sharding;
mod layouts;
mod sharding;
mod targets;
mod typed_ffi;

pub(crate) use advice::check_frontend;
pub(crate) use computations::{check_calls, in_reducer, Calls};
pub(crate) use dialects::{check as check_dialect_symbol, Position, Wrong};
pub(crate) use hlo_sharding::check as check_hlo_sharding;
pub(crate) use sharding::{check_operation as check_sharding, check_value as check_value_sharding};
pub(crate) use targets::{module_reads_blindly, INSTEAD_OF_READ_BLINDLY};
pub(crate) use typed_ffi::Budget;

use crate::{
    error::{Error, ErrorKind, Rule},
    graph::NamedText,
    path::{locate, Step, Words},
    scan::position,
    shardy::{self, Meshes},
    types::Type,
    view::View,
    warning::Warning,
};
use melior::ir::Attribute;
use std::collections::HashSet;

pub(crate) const ATTRIBUTES: &str = "attributes";
pub(crate) const MLIR_ATTRIBUTES: &str = "mlir_attributes";

/// What a custom call's rules ask of the module around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'a> {
    /// The functions of the module.
    pub functions: &'a HashSet<&'a [u8]>,
    pub meshes: &'a Meshes,
}

/// The custom call without its attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub target: &'a [u8],
    pub operands: &'a [&'a Type],
    pub results: &'a [Type],
}

/// An attribute as it was given, and as MLIR read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed<'a, 'c> {
    pub given: &'a NamedText<'a>,
    pub attribute: Attribute<'c>,
}

impl<'c> Parsed<'_, 'c> {
    pub(crate) fn view(&self) -> View<'c> {
        View::of(self.attribute)
    }
}

/// Of one attribute, more faults than this tell nobody anything.
const MOST_FAULTS: usize = 16;

/// The PJRT API of the older CPU plugin that the rules were held against, which reads less of Shardy's
/// attributes than the newer one. What is between the two is not known.
pub(crate) const OLD_API: (i32, i32) = (0, 106);

/// What was found wrong, and what was found odd.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub errors: Vec<Error>,
    pub warnings: Vec<Warning>,
    /// Whether something needs a plugin that is newer than [`OLD_API`].
    pub needs_newer: bool,
}

impl Findings {
    /// A fault of an attribute, at `path` inside it.
    pub(crate) fn fault(
        &mut self,
        field: &'static str,
        given: &NamedText<'_>,
        path: &[Step<'_>],
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        let found = found.into();
        let found = if path.is_empty() {
            found
        } else {
            format!("{}: {found}", Words(path))
        };
        self.push(field, given, locate(given.text, path), found, expected);
    }

    /// A fault of an attribute, at a byte of its text.
    pub(crate) fn push(
        &mut self,
        field: &'static str,
        given: &NamedText<'_>,
        at: usize,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        // Those of one attribute come one after the other.
        let faults =
            self.errors.iter().rev().take_while(|error| {
                error.name() == Some(given.name) && error.field() == Some(field)
            });
        if faults.count() >= MOST_FAULTS {
            return;
        }
        self.errors.push(Error::Rule(Box::new(Rule {
            kind: ErrorKind::Spec,
            field: Some(field),
            name: Some(given.name.into()),
            position: Some(position(given.text, at.min(given.text.len()))),
            found: found.into(),
            expected: expected.into(),
        })));
    }

    /// A fault of a field of the spec that is no attribute.
    pub(crate) fn field(
        &mut self,
        field: &'static str,
        name: Option<&[u8]>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.errors.push(Error::Rule(Box::new(Rule {
            kind: ErrorKind::Spec,
            field: Some(field),
            name: name.map(Into::into),
            position: None,
            found: found.into(),
            expected: expected.into(),
        })));
    }
}

/// Checks a custom call whose names and texts MLIR took.
///
/// `functions` that it calls go to `called`. Attributes that did not parse are not in the lists, and
/// `complete` is false: then nothing is said about an attribute that seems to be missing.
pub(crate) fn check<'a>(
    scope: Scope<'_>,
    subject: Subject<'_>,
    attributes: &[Parsed<'a, '_>],
    mlir_attributes: &[Parsed<'a, '_>],
    complete: bool,
    budget: &mut Budget,
    findings: &mut Findings,
) -> Vec<Vec<u8>> {
    let find = |name: &[u8]| {
        mlir_attributes
            .iter()
            .find(|parsed| parsed.given.name == name)
    };
    targets::check(subject, findings);
    for parsed in attributes {
        typed_ffi::check(parsed, budget, findings);
    }
    if let Some(parsed) = find(b"has_side_effect") {
        let view = parsed.view();
        if !matches!(view, View::Bool) {
            findings.fault(
                MLIR_ATTRIBUTES,
                parsed.given,
                &[],
                format!("it is {}", view.describe()),
                "has_side_effect is true or false",
            );
        }
    }
    let called = find(b"called_computations")
        .map(|parsed| computations::check(scope, parsed, findings))
        .unwrap_or_default();
    layouts::check(
        subject,
        find(b"operand_layouts"),
        find(b"result_layouts"),
        complete,
        findings,
    );
    if let Some(parsed) = find(b"result_tilings") {
        layouts::check_tilings(subject, parsed, findings);
    }
    aliases::check(subject, find(b"output_operand_aliases"), complete, findings);
    if let Some(parsed) = find(b"mhlo.literal") {
        typed_ffi::check_literal(parsed, budget, findings);
    }
    if let Some(parsed) = find(b"mhlo.sharding") {
        hlo_sharding::check(MLIR_ATTRIBUTES, subject.results, parsed, findings);
    }
    for parsed in mlir_attributes {
        sharding::check(scope, subject, parsed, findings);
        targets::check_attribute(parsed, findings);
        advice::check(parsed, findings);
        advice::check_frontend(MLIR_ATTRIBUTES, parsed, findings);
    }
    called
}

/// The meshes of a module, by name.
pub(crate) fn meshes(given: &[NamedText<'_>], findings: &mut Findings) -> Meshes {
    let mut meshes = Meshes::default();
    for mesh in given {
        let name = str::from_utf8(mesh.name).unwrap_or_default();
        match shardy::Attribute::parse(mesh.text.trim_ascii()) {
            Ok(shardy::Attribute::Mesh(read)) => {
                sharding::push("meshes", mesh, read.verify(), findings);
                if meshes.insert(name.into(), read).is_some() {
                    findings.fault(
                        "meshes",
                        mesh,
                        &[],
                        "the name is given twice",
                        "give each mesh its own name",
                    );
                }
            }
            Ok(read) => findings.fault(
                "meshes",
                mesh,
                &[],
                sharding::other(Some(&read), mesh.text),
                "a mesh is #sdy.mesh<[\"x\"=2]>",
            ),
            Err(fault) => {
                let expected = "a mesh is #sdy.mesh<[\"x\"=2]>";
                findings.push("meshes", mesh, fault.offset, fault.message, expected);
            }
        }
    }
    meshes
}

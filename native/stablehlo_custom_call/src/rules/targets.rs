//! Targets and attributes that XLA's compiler takes for its own.

use super::{Findings, Parsed, Subject, MLIR_ATTRIBUTES};
use crate::types::Type;

const TARGET: &str = "call_target_name";

/// Custom calls that XLA's compiler takes apart itself. No handler sees them, and over operands or
/// attributes that it does not expect it ends the process, or the run does.
///
/// Found by compiling a custom call of each of the 104,720 words in the CPU plugin of PJRT 0.115, and by
/// compiling those that fared unlike others with other operands; and of some 11,500 of them where the
/// program is partitioned by Shardy.
const XLAS_OWN: [&str; 22] = [
    "ApproxTopK",
    "Cholesky",
    "Eigh",
    "GetRngSeed",
    "LayoutConstraint",
    "MoveToDevice",
    "MoveToHost",
    "PadToStatic",
    "PartialReduce",
    "ProductOfElementaryHouseholderReflectors",
    "Qr",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "SetBound",
    "ShardBarrierFrom",
    "ShardBarrierTo",
    "Sharding",
    "SliceToDynamic",
    "TopK",
    "annotate_device_placement",
    "control_dep",
    "ragged_all_to_all",
];

/// The beginnings of more such names.
///
/// Those of operations stand for the operations, which XLA makes of them where it partitions. With two
/// underscores begin the names of libraries that XLA calls itself, such as `__onednn$matmul`.
const XLAS_OWN_BEGINNINGS: [&str; 8] = [
    "PinToDevice",
    "X64",
    "_SPMDInternalOp_",
    "__",
    "chlo.",
    "mhlo.",
    "stablehlo.",
    "xla.sdy.",
];

pub(super) fn check(subject: Subject<'_>, findings: &mut Findings) {
    let target = subject.target;
    if target.is_empty() {
        findings.field(
            TARGET,
            None,
            "it is empty",
            "give the name under which the handler is registered",
        );
    } else if target.starts_with(b"$") {
        findings.field(
            TARGET,
            Some(target),
            "it begins with $",
            "XLA keeps such names for itself; choose another",
        );
    }
    check_empty(subject, findings);
    if is_xlas_own(target) {
        findings.field(
            TARGET,
            Some(target),
            "XLA's compiler takes this custom call apart itself, and may end the process over it",
            "choose another name for your handler",
        );
    }
    match target {
        b"CreateBuffer" => {
            buffer(
                subject,
                findings,
                target,
                "no operand and one buffer result",
                |operands, results| operands.is_empty() && matches!(results, [Type::Buffer { .. }]),
            );
        }
        b"Pin" => buffer(
            subject,
            findings,
            target,
            "one tensor operand and one buffer result of the same shape",
            |operands, results| matches!((operands, results), ([Type::Tensor { .. }], [Type::Buffer { .. }]) if same_shape(operands[0], &results[0])),
        ),
        b"Unpin" => buffer(
            subject,
            findings,
            target,
            "one buffer operand and one tensor result of the same shape",
            |operands, results| matches!((operands, results), ([Type::Buffer { .. }], [Type::Tensor { .. }]) if same_shape(operands[0], &results[0])),
        ),
        _ => {}
    }
}

fn buffer(
    subject: Subject<'_>,
    findings: &mut Findings,
    target: &[u8],
    takes: &str,
    fits: impl FnOnce(&[&Type], &[Type]) -> bool,
) {
    if !fits(subject.operands, subject.results) {
        shapes(subject, findings, target, takes);
    }
}

/// XLA counts through the dimensions before one of size 0, at some 10 million steps a second.
const MOST_STEPS: u64 = 1 << 24;

/// Tensors of no elements that take XLA for ever.
fn check_empty(subject: Subject<'_>, findings: &mut Findings) {
    let operands = subject
        .operands
        .iter()
        .map(|t| ("operands", *t))
        .enumerate();
    let results = subject.results.iter().map(|t| ("results", t)).enumerate();
    for (index, (field, r#type)) in operands.chain(results) {
        let dimensions = r#type.dimensions().unwrap_or_default();
        let Some(zero) = dimensions.iter().position(|&dimension| dimension == 0) else {
            continue;
        };
        let steps = dimensions[..zero]
            .iter()
            .fold(1u64, |steps, d| steps.saturating_mul(d.unsigned_abs()));
        if steps > MOST_STEPS {
            findings.field(
                field,
                None,
                format!("number {index} is a {type}, which has no element"),
                "XLA counts through the dimensions before the one of size 0, and takes for ever; give \
                 it smaller ones",
            );
        }
    }
}

fn is_xlas_own(target: &[u8]) -> bool {
    XLAS_OWN.iter().any(|name| name.as_bytes() == target)
        || XLAS_OWN_BEGINNINGS
            .iter()
            .any(|beginning| target.starts_with(beginning.as_bytes()))
}

fn shapes(subject: Subject<'_>, findings: &mut Findings, target: &[u8], takes: &str) {
    let list = |types: Vec<String>| format!("({})", types.join(", "));
    let operands = list(subject.operands.iter().map(ToString::to_string).collect());
    let results = list(subject.results.iter().map(ToString::to_string).collect());
    findings.field(
        TARGET,
        Some(target),
        format!("the custom call is {operands} -> {results}"),
        format!("XLA's own custom call of this name has {takes}"),
    );
}

fn same_shape(one: &Type, other: &Type) -> bool {
    let (
        Type::Tensor {
            element,
            dimensions,
        }
        | Type::Buffer {
            element,
            dimensions,
        },
        Type::Tensor {
            element: other_element,
            dimensions: other_dimensions,
        }
        | Type::Buffer {
            element: other_element,
            dimensions: other_dimensions,
        },
    ) = (one, other)
    else {
        return false;
    };
    element == other_element && dimensions == other_dimensions
}

/// Attributes of whole modules, which MLIR's verifier of `mhlo` looks into wherever they are.
const READ_BLINDLY: [&str; 3] = [
    "mhlo.cross_program_prefetches",
    "mhlo.spmd_output_sharding",
    "mhlo.spmd_parameters_shardings",
];

pub(crate) const INSTEAD_OF_READ_BLINDLY: &str =
    "XLA reads it without checking it, and may end the process; give parameters and results their \
     shardings";

pub(super) fn check_attribute(parsed: &Parsed<'_, '_>, findings: &mut Findings) {
    if READ_BLINDLY
        .iter()
        .any(|name| name.as_bytes() == parsed.given.name)
    {
        findings.fault(
            MLIR_ATTRIBUTES,
            parsed.given,
            &[],
            "it is an attribute of a whole module, on a custom call",
            INSTEAD_OF_READ_BLINDLY,
        );
    }
}

/// Whether XLA reads this attribute of a module without checking it.
pub(crate) fn module_reads_blindly(name: &[u8]) -> bool {
    name == b"mhlo.use_auto_spmd_partitioning"
        || READ_BLINDLY.iter().any(|read| read.as_bytes() == name)
}

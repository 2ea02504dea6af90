//! Shardy's attributes as terms: what `EXLA.CustomCall.Mesh`, `Sharding` and `ShardingRule` read.

use crate::{atoms, error::binary, graph};
use rustler::{Binary, Encoder, Env, NifResult, Term};
use stablehlo_custom_call::shardy::{
    Attribute, AxisRef, Fault, Mesh, MeshRef, Meshes, Reduction, Sharding, ShardingRule,
    TensorMapping, TensorShape,
};

/// Reads and checks a mesh, a sharding or a rule. The names in a sharding are looked up in `meshes`,
/// `{name, text}` pairs.
///
/// `{:ok, data}`, `{:syntax, byte, message}` or `{:faults, data, messages}`. A text may list thousands of
/// devices.
#[rustler::nif(schedule = "DirtyCpu")]
fn shardy_read<'a>(env: Env<'a>, text: Binary, meshes: Term<'a>) -> NifResult<Term<'a>> {
    let mut known = Meshes::new();
    for mesh in graph::named_texts(meshes).map_err(graph::Refusal::into_term)? {
        if let (Ok(name), Ok(Attribute::Mesh(mesh))) =
            (std::str::from_utf8(mesh.name), Attribute::parse(mesh.text))
        {
            known.insert(name.into(), mesh);
        }
    }
    let attribute = match Attribute::parse(text.trim_ascii()) {
        Ok(attribute) => attribute,
        Err(fault) => return Ok((atoms::syntax(), fault.offset, fault.message).encode(env)),
    };
    let (faults, data) = match &attribute {
        Attribute::Mesh(mesh) => (mesh.verify(), mesh_term(env, mesh)),
        Attribute::Sharding(sharding) => (
            sharding.verify(&any_shape(sharding), &known),
            sharding_term(env, sharding),
        ),
        Attribute::ShardingRule(rule) => (check_rule(rule), rule_term(env, rule)),
        other => (Vec::new(), (atoms::other(), other.mnemonic()).encode(env)),
    };
    if faults.is_empty() {
        return Ok((atoms::ok(), data).encode(env));
    }
    let messages: Vec<_> = faults.iter().map(Fault::to_string).collect();
    Ok((atoms::faults(), data, messages).encode(env))
}

/// A shape that the sharding fits: that of the value is not known here.
fn any_shape(sharding: &Sharding) -> TensorShape {
    TensorShape::of(&vec![i64::from(i32::MAX); sharding.dimensions.len()])
}

/// Against tensors whose dimensions are what their factors multiply to.
fn check_rule(rule: &ShardingRule) -> Vec<Fault> {
    let shapes = |mappings: &[TensorMapping]| -> Vec<TensorShape> {
        let size = |factor: &usize| rule.factor_sizes.get(*factor).copied().unwrap_or(1);
        let mut shapes = Vec::with_capacity(mappings.len());
        for mapping in mappings {
            let dimensions = mapping.dimensions.iter();
            shapes.push(TensorShape::Ranked(
                dimensions
                    .map(|dimension| {
                        dimension
                            .factors
                            .iter()
                            .map(size)
                            .try_fold(1i64, i64::checked_mul)
                    })
                    .collect(),
            ));
        }
        shapes
    };
    rule.verify(&shapes(&rule.operands), &shapes(&rule.results))
}

/// `{:mesh, [{name, size}], device_ids}`
fn mesh_term<'a>(env: Env<'a>, mesh: &Mesh) -> Term<'a> {
    let axes: Vec<_> = mesh
        .axes
        .iter()
        .map(|axis| (binary(env, axis.name.as_bytes()), axis.size))
        .collect();
    (atoms::mesh(), axes, &mesh.device_ids).encode(env)
}

/// `{:sharding, mesh_name | mesh, [{axes, open, priority}], replicated, unreduced, reduction}`
fn sharding_term<'a>(env: Env<'a>, sharding: &Sharding) -> Term<'a> {
    let mesh = match &sharding.mesh {
        MeshRef::Name(name) => binary(env, name.as_bytes()).encode(env),
        MeshRef::Inline(mesh) => mesh_term(env, mesh),
    };
    let dimensions: Vec<_> = sharding
        .dimensions
        .iter()
        .map(|dimension| {
            (
                axes_term(env, &dimension.axes),
                dimension.open,
                dimension.priority,
            )
        })
        .collect();
    let reduction = match sharding.reduction {
        Reduction::Sum => atoms::sum(),
        Reduction::Max => atoms::max(),
        Reduction::Min => atoms::min(),
    };
    (
        atoms::sharding(),
        mesh,
        dimensions,
        axes_term(env, &sharding.replicated),
        axes_term(env, &sharding.unreduced),
        reduction,
    )
        .encode(env)
}

/// Each axis `name` or `{name, pre_size, size}`.
fn axes_term<'a>(env: Env<'a>, axes: &[AxisRef]) -> Vec<Term<'a>> {
    axes.iter()
        .map(|axis| {
            let name = binary(env, axis.name.as_bytes());
            match axis.sub_axis {
                None => name.encode(env),
                Some(part) => (name, part.pre_size, part.size).encode(env),
            }
        })
        .collect()
}

/// `{:rule, operands, results, sizes, {reduction, need_replication, permutation,
/// blocked_propagation}, custom}`, a value being a list of dimensions, a dimension a list of factors.
fn rule_term<'a>(env: Env<'a>, rule: &ShardingRule) -> Term<'a> {
    let values = |mappings: &[TensorMapping]| -> Vec<Vec<Vec<usize>>> {
        mappings
            .iter()
            .map(|mapping| {
                let dimensions = mapping.dimensions.iter();
                dimensions.map(|d| d.factors.clone()).collect()
            })
            .collect()
    };
    (
        atoms::rule(),
        values(&rule.operands),
        values(&rule.results),
        &rule.factor_sizes,
        (
            &rule.reduction,
            &rule.need_replication,
            &rule.permutation,
            &rule.blocked_propagation,
        ),
        rule.custom,
    )
        .encode(env)
}

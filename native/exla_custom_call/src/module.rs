use crate::{
    atoms,
    context::ContextResource,
    error::{binary, Error},
    graph::{self, Refusal},
    list::List,
};
use rustler::{Binary, Encoder, Env, NifResult, Resource, ResourceArc, Term};
use stablehlo_custom_call::{
    BackendConfig, Context, ElementType, EmittedCall, EmittedType, Limits, Module, Needs, Type,
};

/// A built module, as bytes.
///
/// The MLIR it was built as is freed at once: a live context weighs some hundred kilobytes that the
/// VM does not know of, and each one makes the making of the next slower.
pub(crate) struct ModuleResource {
    bytecode: Vec<u8>,
    /// Printed while the MLIR was there, when that was cheap.
    text: Option<String>,
    needs: Needs,
    /// The MLIR itself, where it could not be made from the bytecode again.
    live: Option<Module>,
}

#[rustler::resource_impl]
impl Resource for ModuleResource {}

impl ModuleResource {
    pub(crate) fn bytecode(&self) -> &[u8] {
        &self.bytecode
    }

    /// The bytecode of the same module with some parameters of `main` marked as donated.
    pub(crate) fn with_donors(&self, parameters: &[usize]) -> Result<Vec<u8>, Error> {
        let module = self.parse()?;
        module.donate(parameters)?;
        Ok(module.to_bytecode())
    }

    pub(crate) fn needs(&self) -> Needs {
        self.needs
    }

    fn parse(&self) -> Result<Module, Error> {
        if let Some(live) = &self.live {
            return Ok(live.duplicate());
        }
        Ok(Module::parse(
            &Context::new(Limits::default()),
            &self.bytecode,
        )?)
    }
}

/// A module of at most this many operations and bytes is printed when it is built, and read on the
/// caller's scheduler: at some 5 microseconds an operation, well under a millisecond.
const LIGHT_OPERATIONS: usize = 64;
const LIGHT_BYTES: usize = 16 * 1024;

/// The resource, its bytecode as a binary that the resource keeps alive, and the warnings.
type Built<'a> = NifResult<Result<(ResourceArc<ModuleResource>, Binary<'a>, Vec<Term<'a>>), Error>>;

/// Builds a module from a whole graph, in the given context, or in a fresh one when it is `nil`.
#[rustler::nif]
fn module_build<'a>(env: Env<'a>, context: Term, graph: Term) -> Built<'a> {
    build(env, context, graph)
}

#[rustler::nif(schedule = "DirtyCpu")]
fn module_build_dirty<'a>(env: Env<'a>, context: Term, graph: Term) -> Built<'a> {
    build(env, context, graph)
}

/// The warnings of a module that would be built, which is not kept.
#[rustler::nif]
fn module_check<'a>(
    env: Env<'a>,
    context: Term,
    graph: Term,
) -> NifResult<Result<Vec<Term<'a>>, Error>> {
    check(env, context, graph)
}

#[rustler::nif(schedule = "DirtyCpu")]
fn module_check_dirty<'a>(
    env: Env<'a>,
    context: Term,
    graph: Term,
) -> NifResult<Result<Vec<Term<'a>>, Error>> {
    check(env, context, graph)
}

fn check<'a>(env: Env<'a>, context: Term, graph: Term) -> NifResult<Result<Vec<Term<'a>>, Error>> {
    Ok(built(context, graph)?.map(|module| warnings(env, &module)))
}

fn built(context: Term, graph: Term) -> NifResult<Result<Module, Error>> {
    let shared: Option<ResourceArc<ContextResource>> = context.decode()?;
    let graph = match graph::graph(graph) {
        Ok(graph) => graph,
        Err(Refusal::Graph(error)) => return Ok(Err(error)),
        Err(Refusal::Term(error)) => return Err(error),
    };
    let built = match &shared {
        Some(shared) => shared.get()?.build(&graph),
        None => Module::build(&Context::new(Limits::default()), &graph),
    };
    Ok(built.map_err(Error::from))
}

/// `{field, name, found, instead, message}`
fn warnings<'a>(env: Env<'a>, module: &Module) -> Vec<Term<'a>> {
    let warnings = module.warnings().iter();
    warnings
        .map(|warning| {
            (
                atoms::field(warning.field),
                binary(env, &warning.name),
                &warning.found,
                &warning.instead,
                warning.to_string(),
            )
                .encode(env)
        })
        .collect()
}

fn build<'a>(env: Env<'a>, context: Term, graph: Term) -> Built<'a> {
    let module = match built(context, graph)? {
        Ok(module) => module,
        Err(error) => return Ok(Err(error)),
    };
    let light = module.operation_count() <= LIGHT_OPERATIONS && module.data_bytes() <= LIGHT_BYTES;
    let warnings = warnings(env, &module);
    let resource = ResourceArc::new(ModuleResource {
        bytecode: module.to_bytecode(),
        text: light.then(|| module.to_text()),
        needs: module.needs(),
        live: (!module.can_be_parsed()).then_some(module),
    });
    let bytecode = resource.make_binary(env, |module| module.bytecode());
    Ok(Ok((resource, bytecode, warnings)))
}

/// Whether the client's plugin can compile the module with that partitioner.
#[rustler::nif]
fn module_check_needs(
    module: ResourceArc<ModuleResource>,
    shardy: bool,
    api_version: (i32, i32),
) -> Result<(), Error> {
    Ok(module.needs.check(shardy, api_version)?)
}

/// The bytecode of the module with some parameters of `main` marked as donated.
#[rustler::nif(schedule = "DirtyCpu")]
fn module_donating<'a>(
    env: Env<'a>,
    module: ResourceArc<ModuleResource>,
    parameters: List<usize>,
) -> Result<Binary<'a>, Error> {
    Ok(binary(env, &module.with_donors(&parameters.0)?))
}

/// The text of a light module, or `nil`: then [`module_to_text_dirty`] makes it.
#[rustler::nif]
fn module_text(module: ResourceArc<ModuleResource>) -> Option<String> {
    module.text.clone()
}

#[rustler::nif(schedule = "DirtyCpu")]
fn module_to_text_dirty(module: ResourceArc<ModuleResource>) -> Result<String, Error> {
    Ok(module.parse()?.to_text())
}

/// The custom calls of a light module, or `nil`: then [`module_custom_calls_dirty`] reads them.
#[rustler::nif]
fn module_custom_calls(
    env: Env,
    module: ResourceArc<ModuleResource>,
) -> Result<Option<Vec<Term>>, Error> {
    if module.text.is_none() {
        return Ok(None);
    }
    custom_calls(env, &module).map(Some)
}

#[rustler::nif(schedule = "DirtyCpu")]
fn module_custom_calls_dirty(
    env: Env,
    module: ResourceArc<ModuleResource>,
) -> Result<Vec<Term>, Error> {
    custom_calls(env, &module)
}

fn custom_calls<'a>(env: Env<'a>, module: &ModuleResource) -> Result<Vec<Term<'a>>, Error> {
    let calls = module.parse()?.custom_calls();
    Ok(calls.iter().map(|call| emitted(env, call)).collect())
}

/// `{function, target, api_version, backend_config, mlir_attributes, operands, results}`
fn emitted<'a>(env: Env<'a>, call: &EmittedCall) -> Term<'a> {
    let backend_config = match &call.backend_config {
        BackendConfig::Absent => atoms::absent().encode(env),
        BackendConfig::Bytes(bytes) => (atoms::bytes(), binary(env, bytes)).encode(env),
        BackendConfig::Dictionary(entries) => {
            (atoms::dictionary(), pairs(env, entries)).encode(env)
        }
    };
    (
        binary(env, &call.function),
        binary(env, &call.call_target_name),
        call.api_version,
        backend_config,
        pairs(env, &call.mlir_attributes),
        types(env, &call.operands),
        types(env, &call.results),
    )
        .encode(env)
}

fn pairs<'a>(env: Env<'a>, entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<(Binary<'a>, Binary<'a>)> {
    entries
        .iter()
        .map(|(name, text)| (binary(env, name), binary(env, text)))
        .collect()
}

fn types<'a>(env: Env<'a>, types: &[EmittedType]) -> Vec<Term<'a>> {
    types
        .iter()
        .map(|r#type| match r#type {
            EmittedType::Known(known) => known_type(env, known),
            EmittedType::Other(text) => (atoms::other(), binary(env, text)).encode(env),
        })
        .collect()
}

/// As [`graph`] reads it.
fn known_type<'a>(env: Env<'a>, r#type: &Type) -> Term<'a> {
    let index = |element: &ElementType| ElementType::ALL.iter().position(|e| e == element);
    match r#type {
        Type::Token => atoms::token().encode(env),
        Type::Tensor {
            element,
            dimensions,
        } => (index(element), dimensions).encode(env),
        Type::Buffer {
            element,
            dimensions,
        } => (atoms::buffer(), index(element), dimensions).encode(env),
        // The core builds no deep ones.
        Type::Tuple(elements) => {
            let elements: Vec<_> = elements.iter().map(|t| known_type(env, t)).collect();
            (atoms::tuple(), elements).encode(env)
        }
    }
}

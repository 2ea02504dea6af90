use crate::{
    answer::{self, TicketResource},
    atoms,
    error::{binary, Error, Kind},
    executable::ExecutableResource,
    list::List,
    module::ModuleResource,
    reaper,
};
use pjrt_runtime::{
    thread, Client, CompileOptions, Library, NamedValue, OptionValue, Plugin, Stages,
};
use rustler::{
    Encoder, Env, NifMap, NifResult, NifTuple, NifUntaggedEnum, Resource, ResourceArc, Term,
};
use std::path::PathBuf;

pub(crate) struct ClientResource {
    /// Taken when the resource is freed.
    client: Option<Client>,
}

#[rustler::resource_impl]
impl Resource for ClientResource {}

impl ClientResource {
    pub(crate) fn get(&self) -> NifResult<&Client> {
        self.client.as_ref().ok_or(rustler::Error::BadArg)
    }
}

impl Drop for ClientResource {
    fn drop(&mut self) {
        // The last handle to a client waits for its devices.
        if let Some(client) = self.client.take() {
            reaper::free(client);
        }
    }
}

/// A create option's value, as the PJRT API has them.
#[derive(NifUntaggedEnum)]
#[rustler(decode)]
enum Value {
    Bool(bool),
    Int64(i64),
    Float(f64),
    String(String),
    Int64List(List<i64>),
}

impl Value {
    /// As one of XLA's own options, which are no lists.
    fn into_option(self) -> Option<OptionValue> {
        Some(match self {
            Self::Bool(value) => OptionValue::Bool(value),
            Self::Int64(value) => OptionValue::Int(value),
            Self::Float(value) => OptionValue::Double(value),
            Self::String(value) => OptionValue::String(value),
            Self::Int64List(_) => return None,
        })
    }
}

impl From<Value> for NamedValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Bool(value) => Self::Bool(value),
            Value::Int64(value) => Self::Int64(value),
            Value::Float(value) => Self::Float(value as f32),
            Value::String(value) => Self::String(value),
            Value::Int64List(List(value)) => Self::Int64List(value),
        }
    }
}

#[derive(NifTuple)]
struct DeviceInfo {
    id: i32,
    kind: String,
    addressable: bool,
}

/// `{platform_name, platform_version, {api_major, api_minor}, devices}`
type ClientInfo = (String, String, (i32, i32), Vec<DeviceInfo>);

/// Loads a plugin and makes a client of it.
#[rustler::nif(schedule = "DirtyIo")]
fn client_new(
    plugin_path: String,
    List(options): List<(String, Value)>,
) -> Result<(ResourceArc<ClientResource>, ClientInfo), Error> {
    let options: Vec<_> = options
        .into_iter()
        .map(|(name, value)| (name, value.into()))
        .collect();
    let client = roomy(Kind::Client, move || {
        Client::new(Plugin::load(&PathBuf::from(plugin_path))?, &options)
    })?;
    let info = (
        client.platform_name().to_owned(),
        client.platform_version().to_owned(),
        client.plugin().api_version(),
        client
            .devices()
            .iter()
            .map(|device| DeviceInfo {
                id: device.id,
                kind: device.kind.clone(),
                addressable: device.addressable,
            })
            .collect(),
    );
    let resource = ResourceArc::new(ClientResource {
        client: Some(client),
    });
    Ok((resource, info))
}

/// The symbols of a handler's stages, and of its state's type.
#[derive(NifTuple)]
struct Symbols {
    execute: String,
    instantiate: Option<String>,
    prepare: Option<String>,
    initialize: Option<String>,
    state: Option<StateSymbols>,
}

#[derive(NifTuple)]
struct StateSymbols {
    name: String,
    id: String,
    info: String,
}

impl Symbols {
    fn find(&self, library: &Library) -> Result<Stages, pjrt_runtime::Error> {
        let stage = |symbol: &Option<String>| {
            symbol
                .as_deref()
                .map(|symbol| library.handler(symbol))
                .transpose()
        };
        let state = self
            .state
            .as_ref()
            .map(|state| library.state_type(&state.name, &state.id, &state.info));
        Ok(Stages {
            instantiate: stage(&self.instantiate)?,
            prepare: stage(&self.prepare)?,
            initialize: stage(&self.initialize)?,
            state: state.transpose()?,
            ..Stages::execute(library.handler(&self.execute)?)
        })
    }
}

/// `{path, targets}`
type Loaded<'a> = (String, Vec<rustler::Binary<'a>>);

/// Registers handlers of a shared object: those named, by target, or without names those of its table. Either all
/// of them are there, or none is registered.
#[rustler::nif(schedule = "DirtyIo")]
fn library_load<'a>(
    env: Env<'a>,
    client: ResourceArc<ClientResource>,
    path: String,
    handlers: Option<List<(rustler::Binary, Symbols)>>,
) -> NifResult<Result<Loaded<'a>, Error>> {
    let client = client.get()?.clone();
    let handlers: Option<Vec<_>> = handlers.map(|List(handlers)| {
        handlers
            .into_iter()
            .map(|(target, symbols)| (target.as_slice().to_vec(), symbols))
            .collect()
    });
    let loaded = roomy(Kind::Library, move || {
        let library = Library::load(&PathBuf::from(path))?;
        let targets = match handlers {
            None => client.register_library(library)?,
            Some(handlers) => {
                let handlers = handlers
                    .into_iter()
                    .map(|(target, symbols)| Ok((target, symbols.find(library)?)))
                    .collect::<Result<Vec<_>, pjrt_runtime::Error>>()?;
                client.register_handlers(&handlers)?;
                handlers.into_iter().map(|(target, _)| target).collect()
            }
        };
        Ok((library.path().to_string_lossy().into_owned(), targets))
    });
    Ok(loaded.map(|(path, targets)| {
        let targets = targets.iter().map(|target| binary(env, target));
        (path, targets.collect())
    }))
}

/// Compile options as `EXLA.CustomCall.Client` has checked them.
#[derive(NifMap)]
#[rustler(decode)]
struct Options {
    replicas: usize,
    partitions: usize,
    spmd: bool,
    shardy: bool,
    propagate_to_outputs: List<bool>,
    propagate_to_parameters: List<bool>,
    parameter_count: usize,
    result_count: usize,
    device_assignment: Option<List<List<i32>>>,
    donate: List<usize>,
    xla_options: List<(String, Value)>,
}

impl Options {
    fn into_runtime(self) -> (CompileOptions, Vec<usize>) {
        let options = CompileOptions {
            num_replicas: self.replicas,
            num_partitions: self.partitions,
            use_spmd_partitioning: self.spmd,
            use_shardy_partitioner: self.shardy,
            allow_spmd_sharding_propagation_to_output: self.propagate_to_outputs.0,
            allow_spmd_sharding_propagation_to_parameters: self.propagate_to_parameters.0,
            num_outputs: Some(self.result_count),
            num_parameters: Some(self.parameter_count),
            device_assignment: self
                .device_assignment
                .map(|List(rows)| rows.into_iter().map(|List(row)| row).collect()),
            env_option_overrides: self
                .xla_options
                .0
                .into_iter()
                .filter_map(|(name, value)| Some((name, value.into_option()?)))
                .collect(),
        };
        (options, self.donate.0)
    }
}

/// Compiles a module on a worker thread; the answer is an executable.
#[rustler::nif]
fn client_compile<'a>(
    env: Env<'a>,
    client: ResourceArc<ClientResource>,
    module: ResourceArc<ModuleResource>,
    options: Options,
    tag: Term<'a>,
) -> NifResult<Result<ResourceArc<TicketResource>, Error>> {
    let client = client.get()?.clone();
    let (options, donate) = options.into_runtime();
    let nothing = atoms::nil().encode(env);
    Ok(answer::by_message(
        env,
        tag,
        nothing,
        Kind::Compile,
        move |_, answer| {
            let compiled = compile(&client, &module, &options, &donate);
            answer.send(move |env| Ok(ExecutableResource::new(compiled?).encode(env)));
        },
    ))
}

fn compile(
    client: &Client,
    module: &ModuleResource,
    options: &CompileOptions,
    donate: &[usize],
) -> Result<pjrt_runtime::Executable, Error> {
    module.needs().check(
        options.use_shardy_partitioner,
        client.plugin().api_version(),
    )?;
    let with_donors;
    let program = if donate.is_empty() {
        module.bytecode()
    } else {
        with_donors = module.with_donors(donate)?;
        &with_donors
    };
    client
        .compile(program, options)
        .map_err(|error| Error::Runtime(Kind::Compile, error))
}

/// What a plugin and its client tell of themselves.
#[rustler::nif(schedule = "DirtyIo")]
fn client_info<'a>(
    env: Env<'a>,
    client: ResourceArc<ClientResource>,
) -> NifResult<Result<Term<'a>, Error>> {
    let client = client.get()?;
    let info = || {
        let plugin = client.plugin();
        let attributes: Vec<_> = plugin
            .attributes()?
            .into_iter()
            .map(|(name, value)| (name, NamedTerm(value)))
            .collect();
        let extensions: Vec<_> = plugin
            .extensions()
            .into_iter()
            .map(|extension| (extension.kind, extension.name, extension.struct_size))
            .collect();
        let devices: Vec<_> = client
            .devices()
            .iter()
            .map(|device| {
                (
                    device.id,
                    device.kind.as_str(),
                    device.addressable,
                    device.local_hardware_id,
                    device.debug_string.as_str(),
                )
            })
            .collect();
        let memories: Vec<_> = client
            .memories()?
            .into_iter()
            .map(|memory| (memory.id, memory.kind, memory.devices, memory.default_of))
            .collect();
        Ok((
            attributes,
            extensions,
            devices,
            memories,
            client.process_index(),
        )
            .encode(env))
    };
    Ok(info().map_err(|error| Error::Runtime(Kind::Client, error)))
}

/// A value that a plugin gives, as a term.
pub(crate) struct NamedTerm(pub(crate) NamedValue);

impl Encoder for NamedTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        match &self.0 {
            NamedValue::String(value) => value.encode(env),
            NamedValue::Int64(value) => value.encode(env),
            NamedValue::Int64List(value) => value.encode(env),
            NamedValue::Bool(value) => value.encode(env),
            NamedValue::Float(value) => crate::host::float(env, f64::from(*value)),
        }
    }
}

/// Runs foreign code that is done soon on a thread whose stack is large enough for it, while a dirty
/// scheduler, whose stack is not, waits.
pub(crate) fn roomy<T, F>(kind: Kind, work: F) -> Result<T, Error>
where
    F: FnOnce() -> Result<T, pjrt_runtime::Error> + Send + 'static,
    T: Send + 'static,
{
    thread::run("custom_call_loader", work)
        .and_then(|outcome| outcome)
        .map_err(|error| Error::Runtime(kind, error))
}

use crate::{
    answer,
    error::{binary, Error, Kind},
    executable::ExecutableResource,
    module::ModuleResource,
    reaper,
};
use pjrt_runtime::{thread, Client, CompileOptions, Library, NamedValue, Plugin, Stages};
use rustler::{
    Atom, Encoder, Env, NifResult, NifTuple, NifUntaggedEnum, Resource, ResourceArc, Term,
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
enum Value {
    Bool(bool),
    Int64(i64),
    Float(f64),
    String(String),
    Int64List(Vec<i64>),
}

impl From<Value> for NamedValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Bool(value) => Self::Bool(value),
            Value::Int64(value) => Self::Int64(value),
            Value::Float(value) => Self::Float(value as f32),
            Value::String(value) => Self::String(value),
            Value::Int64List(value) => Self::Int64List(value),
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
    options: Vec<(String, Value)>,
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
    handlers: Option<Vec<(rustler::Binary, Symbols)>>,
) -> NifResult<Result<Loaded<'a>, Error>> {
    let client = client.get()?.clone();
    let handlers: Option<Vec<_>> = handlers.map(|handlers| {
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

/// Compiles a module on a worker thread; the answer is an executable.
#[rustler::nif]
fn client_compile<'a>(
    env: Env<'a>,
    client: ResourceArc<ClientResource>,
    module: ResourceArc<ModuleResource>,
    tag: Term<'a>,
) -> NifResult<Result<Atom, Error>> {
    let client = client.get()?.clone();
    let nothing = crate::atoms::nil().encode(env);
    Ok(answer::by_message(
        env,
        tag,
        nothing,
        Kind::Compile,
        move |env, _| {
            let executable = client
                .compile(module.bytecode(), &CompileOptions::default())
                .map_err(|error| Error::Runtime(Kind::Compile, error))?;
            Ok(ExecutableResource::new(executable).encode(env))
        },
    ))
}

/// Runs foreign code that is done soon on a thread whose stack is large enough for it, while a dirty
/// scheduler, whose stack is not, waits.
fn roomy<T, F>(kind: Kind, work: F) -> Result<T, Error>
where
    F: FnOnce() -> Result<T, pjrt_runtime::Error> + Send + 'static,
    T: Send + 'static,
{
    thread::run("custom_call_loader", work)
        .and_then(|outcome| outcome)
        .map_err(|error| Error::Runtime(kind, error))
}

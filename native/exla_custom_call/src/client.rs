use crate::{
    answer,
    error::{Error, Kind},
    executable::ExecutableResource,
    module::ModuleResource,
    reaper,
};
use pjrt_runtime::{thread, Client, CompileOptions, Library, NamedValue, Plugin};
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

/// Registers handlers, `{target, symbol}`, of a shared object. Either all of them are there, or none
/// is registered.
#[rustler::nif(schedule = "DirtyIo")]
fn library_load(
    client: ResourceArc<ClientResource>,
    path: String,
    handlers: Vec<(rustler::Binary, String)>,
) -> NifResult<Result<String, Error>> {
    let client = client.get()?.clone();
    let handlers: Vec<_> = handlers
        .into_iter()
        .map(|(target, symbol)| (target.as_slice().to_vec(), symbol))
        .collect();
    Ok(roomy(Kind::Library, move || {
        let library = Library::load(&PathBuf::from(path))?;
        let handlers = handlers
            .into_iter()
            .map(|(target, symbol)| Ok((target, library.handler(&symbol)?)))
            .collect::<Result<Vec<_>, pjrt_runtime::Error>>()?;
        for (target, handler) in handlers {
            client.register_handler(&target, &handler, 0)?;
        }
        Ok(library.path().to_string_lossy().into_owned())
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

use crate::{
    answer::{self, Answer, TicketResource},
    atoms,
    buffer::BufferResource,
    client::{ClientResource, NamedTerm},
    error::{binary, Error, Kind},
    host,
    list::List,
    reaper,
};
use pjrt_runtime::{
    Buffer, Executable, ExecuteOptions, GroupKind, HostData, OwnedInput, Sharding, TensorType,
    UserData, View,
};
use rustler::{Binary, Encoder, Env, NifResult, Resource, ResourceArc, Term};

pub(crate) struct ExecutableResource {
    /// Taken when the resource is freed.
    executable: Option<Executable>,
}

#[rustler::resource_impl]
impl Resource for ExecutableResource {}

impl ExecutableResource {
    pub(crate) fn new(executable: Executable) -> ResourceArc<Self> {
        ResourceArc::new(Self {
            executable: Some(executable),
        })
    }

    fn get(&self) -> NifResult<&Executable> {
        self.executable.as_ref().ok_or(rustler::Error::BadArg)
    }
}

impl Drop for ExecutableResource {
    fn drop(&mut self) {
        // Compiled code, and perhaps the last handle to the client.
        if let Some(executable) = self.executable.take() {
            reaper::free(executable);
        }
    }
}

fn failed(error: pjrt_runtime::Error) -> Error {
    Error::Runtime(Kind::Run, error)
}

/// What a run takes for one parameter.
enum Input {
    Host(TensorType, HostData),
    Buffer(ResourceArc<BufferResource>),
}

/// Runs an executable on a worker thread. `inputs` is a list with the inputs of each device, each
/// `{{element_index, dimensions}, binary}` or a buffer. `donate` are the indexes of buffers to give
/// up, and `user_data` are pairs of binaries, a name and what handlers get by it. The answer has the results of each device, as binaries or as buffers.
#[rustler::nif]
fn executable_run<'a>(
    env: Env<'a>,
    executable: ResourceArc<ExecutableResource>,
    inputs: Term<'a>,
    options: (List<usize>, bool, List<(Binary<'a>, Binary<'a>)>),
    tag: Term<'a>,
) -> NifResult<Result<ResourceArc<TicketResource>, Error>> {
    let executable = executable.get()?.clone();
    let (List(donate), as_buffers, user_data) = options;
    let user_data = user_data
        .iter()
        .map(|(name, data)| (name.to_vec(), data.to_vec()))
        .collect();
    let options = RunOptions {
        donate,
        as_buffers,
        user_data,
    };
    Ok(answer::by_message(
        env,
        tag,
        inputs,
        Kind::Run,
        move |inputs, answer| match read_inputs(inputs) {
            Ok(inputs) => run(&executable, inputs, options, answer),
            Err(error) => answer.send(move |_| Err(host::malformed(Kind::Run)(error))),
        },
    ))
}

fn read_inputs(term: Term<'_>) -> NifResult<Vec<Vec<Input>>> {
    let List(devices): List<List<Term>> = term.decode()?;
    devices
        .into_iter()
        .map(|List(inputs)| inputs.into_iter().map(read_input).collect())
        .collect()
}

fn read_input(term: Term<'_>) -> NifResult<Input> {
    if let Ok(buffer) = term.decode() {
        return Ok(Input::Buffer(buffer));
    }
    let (r#type, binary): (Term, Term) = term.decode()?;
    Ok(Input::Host(
        host::read_type(r#type)?,
        host::host_data(binary)?,
    ))
}

struct RunOptions {
    donate: Vec<usize>,
    as_buffers: bool,
    user_data: Vec<(Vec<u8>, Vec<u8>)>,
}

fn run(executable: &Executable, inputs: Vec<Vec<Input>>, options: RunOptions, answer: Answer) {
    let RunOptions {
        donate,
        as_buffers,
        user_data,
    } = options;
    let user_data = match make_user_data(executable, &user_data) {
        Ok(user_data) => user_data,
        Err(error) => return answer.send(move |_| Err(failed(error))),
    };
    if let ([inputs], false, None) = (inputs.as_slice(), as_buffers, &user_data) {
        if let Some(inputs) = all_on_host(inputs) {
            // The short way: from binaries to binaries on one device.
            let views = executable.run_view(inputs).map_err(failed);
            answer.send(move |env| Ok(vec![binaries(env, views?)].encode(env)));
            return;
        }
    }
    let owned = match on_devices(executable, &inputs) {
        Ok(owned) => owned,
        Err(error) => return answer.send(move |_| Err(error)),
    };
    let lists: Result<Vec<Vec<&Buffer>>, Error> = inputs
        .iter()
        .zip(&owned)
        .map(|(inputs, owned)| {
            let mut owned = owned.iter();
            inputs
                .iter()
                .map(|input| match input {
                    Input::Host(..) => owned.next().ok_or(rustler::Error::BadArg),
                    Input::Buffer(buffer) => buffer.get(),
                })
                .collect::<NifResult<Vec<_>>>()
                .map_err(host::malformed(Kind::Run))
        })
        .collect();
    let lists = match lists {
        Ok(lists) => lists,
        Err(error) => return answer.send(move |_| Err(error)),
    };
    let lists: Vec<&[&Buffer]> = lists.iter().map(Vec::as_slice).collect();
    let options = ExecuteOptions {
        donate,
        user_data,
        ..ExecuteOptions::default()
    };
    executable.execute_async(&lists, &options, move |outputs| {
        answer.send(move |env| results(env, outputs.map_err(failed)?, as_buffers));
    });
}

fn make_user_data(
    executable: &Executable,
    entries: &[(Vec<u8>, Vec<u8>)],
) -> Result<Option<UserData>, pjrt_runtime::Error> {
    if entries.is_empty() {
        return Ok(None);
    }
    let entries: Vec<(&[u8], &[u8])> = entries
        .iter()
        .map(|(name, data)| (name.as_slice(), data.as_slice()))
        .collect();
    UserData::new(executable.client(), &entries).map(Some)
}

fn all_on_host(inputs: &[Input]) -> Option<Vec<OwnedInput<'_>>> {
    inputs
        .iter()
        .map(|input| match input {
            Input::Host(r#type, data) => Some(OwnedInput {
                data: data.clone(),
                element_type: r#type.element_type,
                dimensions: &r#type.dimensions,
            }),
            Input::Buffer(_) => None,
        })
        .collect()
}

/// The host inputs as buffers, for each device.
fn on_devices(executable: &Executable, inputs: &[Vec<Input>]) -> Result<Vec<Vec<Buffer>>, Error> {
    let devices = executable.devices();
    if devices.len() != inputs.len() {
        return Err(failed(pjrt_runtime::Error::DeviceCount {
            expected: devices.len(),
            found: inputs.len(),
        }));
    }
    inputs
        .iter()
        .zip(devices)
        .map(|(inputs, device)| {
            inputs
                .iter()
                .filter_map(|input| match input {
                    Input::Host(r#type, data) => Some(Buffer::from_host_zero_copy(
                        executable.client(),
                        device,
                        OwnedInput {
                            data: data.clone(),
                            element_type: r#type.element_type,
                            dimensions: &r#type.dimensions,
                        },
                    )),
                    Input::Buffer(_) => None,
                })
                .collect::<Result<Vec<_>, _>>()
                .map_err(failed)
        })
        .collect()
}

fn results<'a>(
    env: Env<'a>,
    outputs: Vec<Vec<Buffer>>,
    as_buffers: bool,
) -> Result<Term<'a>, Error> {
    let lists = outputs
        .into_iter()
        .map(|outputs| {
            outputs
                .into_iter()
                .map(|buffer| result(env, buffer, as_buffers))
                .collect::<Result<Vec<_>, Error>>()
        })
        .collect::<Result<Vec<_>, Error>>()?;
    Ok(lists.encode(env))
}

fn result<'a>(env: Env<'a>, buffer: Buffer, as_buffer: bool) -> Result<Term<'a>, Error> {
    if as_buffer {
        return Ok(BufferResource::new(buffer).encode(env));
    }
    let is_token =
        buffer.tensor_type().map_err(failed)?.element_type == pjrt_runtime::ElementType::Token;
    if is_token {
        return Ok(binary(env, &[]).encode(env));
    }
    Ok(match buffer.to_host_view().map_err(failed)? {
        Some(view) => host::view_to_binary(env, view).encode(env),
        None => host::vec_to_binary(env, buffer.to_host().map_err(failed)?).encode(env),
    })
}

fn binaries<'a>(env: Env<'a>, views: Vec<View>) -> Vec<Binary<'a>> {
    views
        .into_iter()
        .map(|view| host::view_to_binary(env, view))
        .collect()
}

/// What is known of an executable: each a term or nil where the plugin does not tell.
#[rustler::nif(schedule = "DirtyIo")]
fn executable_info<'a>(
    env: Env<'a>,
    executable: ResourceArc<ExecutableResource>,
) -> NifResult<Term<'a>> {
    let executable = executable.get()?;
    let memory = executable.memory_stats().ok().map(|stats| {
        // In the order of EXLA.CustomCall.Executable's keys.
        [
            Some(stats.generated_code_size),
            Some(stats.argument_size),
            Some(stats.output_size),
            Some(stats.alias_size),
            Some(stats.temp_size),
            Some(stats.host_generated_code_size),
            Some(stats.host_argument_size),
            Some(stats.host_output_size),
            Some(stats.host_alias_size),
            Some(stats.host_temp_size),
            stats.peak_memory,
        ]
        .to_vec()
    });
    let cost = executable.cost_analysis().ok().map(|properties| {
        properties
            .into_iter()
            .map(|(name, value)| (name, NamedTerm(value)))
            .collect::<Vec<_>>()
    });
    let fingerprint = executable
        .fingerprint()
        .ok()
        .map(|fingerprint| binary(env, &fingerprint));
    Ok((
        executable.name(),
        executable.num_replicas(),
        executable.num_partitions(),
        executable.devices(),
        memory,
        cost,
        fingerprint,
    )
        .encode(env))
}

/// `{inputs | nil, outputs}` as types.
#[rustler::nif]
fn executable_types<'a>(
    env: Env<'a>,
    executable: ResourceArc<ExecutableResource>,
) -> NifResult<(Option<Vec<Term<'a>>>, Vec<Term<'a>>)> {
    let executable = executable.get()?;
    let terms = |types: &[TensorType]| -> Vec<Term<'a>> {
        types
            .iter()
            .map(|r#type| host::write_type(env, r#type))
            .collect()
    };
    Ok((executable.inputs().map(terms), terms(executable.outputs())))
}

/// Of the parameters, and of the results; `None` where the plugin does not tell.
type Shardings<'a> = (Option<Vec<Term<'a>>>, Option<Vec<Term<'a>>>);

/// Each is a list of `:replicated`, `{:maximal, device}`, `:manual`, `:unknown` or
/// `{:tiled, dimensions, devices, [{:replicated | :manual | :unreduced, size}]}`.
#[rustler::nif(schedule = "DirtyIo")]
fn executable_shardings(
    env: Env,
    executable: ResourceArc<ExecutableResource>,
) -> NifResult<Result<Shardings, Error>> {
    let executable = executable.get()?;
    let terms = |shardings: Vec<Sharding>| -> Vec<Term> {
        shardings
            .iter()
            .map(|sharding| write_sharding(env, sharding))
            .collect()
    };
    let shardings = || {
        let parameters = executable.parameter_shardings()?;
        let results = executable.result_shardings()?;
        Ok((parameters.map(terms), results.map(terms)))
    };
    Ok(shardings().map_err(|error| Error::Runtime(Kind::Compile, error)))
}

fn write_sharding<'a>(env: Env<'a>, sharding: &Sharding) -> Term<'a> {
    match sharding {
        Sharding::Replicated => atoms::replicated().encode(env),
        Sharding::Maximal(device) => (atoms::maximal(), device).encode(env),
        Sharding::Manual => atoms::manual().encode(env),
        Sharding::Unknown => atoms::unknown().encode(env),
        Sharding::Tiled {
            dimensions,
            devices,
            groups,
        } => {
            let groups: Vec<_> = groups
                .iter()
                .map(|group| {
                    let kind = match group.kind {
                        GroupKind::Replicated => atoms::replicated(),
                        GroupKind::Manual => atoms::manual(),
                        GroupKind::Unreduced => atoms::unreduced(),
                    };
                    (kind, group.size)
                })
                .collect();
            (atoms::tiled(), dimensions, devices, groups).encode(env)
        }
    }
}

#[rustler::nif(schedule = "DirtyIo")]
fn executable_hlo_text(
    executable: ResourceArc<ExecutableResource>,
) -> NifResult<Result<String, Error>> {
    let executable = executable.get()?.clone();
    Ok(crate::client::roomy(Kind::Compile, move || {
        executable.hlo_text()
    }))
}

#[rustler::nif]
fn executable_serialize<'a>(
    env: Env<'a>,
    executable: ResourceArc<ExecutableResource>,
    tag: Term<'a>,
) -> NifResult<Result<ResourceArc<TicketResource>, Error>> {
    let executable = executable.get()?.clone();
    let nothing = atoms::nil().encode(env);
    Ok(answer::by_message(
        env,
        tag,
        nothing,
        Kind::Compile,
        move |_, answer| {
            let bytes = executable
                .serialize()
                .map_err(|error| Error::Runtime(Kind::Compile, error));
            answer.send(move |env| Ok(host::vec_to_binary(env, bytes?).encode(env)));
        },
    ))
}

#[rustler::nif]
fn client_deserialize<'a>(
    env: Env<'a>,
    client: ResourceArc<ClientResource>,
    bytes: Term<'a>,
    tag: Term<'a>,
) -> NifResult<Result<ResourceArc<TicketResource>, Error>> {
    let client = client.get()?.clone();
    let data = host::host_data(bytes)?;
    let nothing = atoms::nil().encode(env);
    Ok(answer::by_message(
        env,
        tag,
        nothing,
        Kind::Compile,
        move |_, answer| {
            let loaded = client
                .deserialize(data.as_slice())
                .map_err(|error| Error::Runtime(Kind::Compile, error));
            answer.send(move |env| Ok(ExecutableResource::new(loaded?).encode(env)));
        },
    ))
}

use crate::{
    answer::{self, TicketResource},
    atoms,
    client::ClientResource,
    error::{Error, Kind},
    host,
    list::List,
    reaper,
};
use pjrt_runtime::{Buffer, HostInput, Layout, OwnedInput};
use rustler::{Encoder, Env, NifResult, Resource, ResourceArc, Term};

/// A device buffer. Shared by those who read it; none is freed while another uses it.
pub(crate) struct BufferResource {
    /// Taken when the resource is freed.
    buffer: Option<Buffer>,
}

#[rustler::resource_impl]
impl Resource for BufferResource {}

impl BufferResource {
    pub(crate) fn new(buffer: Buffer) -> ResourceArc<Self> {
        ResourceArc::new(Self {
            buffer: Some(buffer),
        })
    }

    pub(crate) fn get(&self) -> NifResult<&Buffer> {
        self.buffer.as_ref().ok_or(rustler::Error::BadArg)
    }
}

impl Drop for BufferResource {
    fn drop(&mut self) {
        // Device memory, and perhaps the last handle to the client.
        if let Some(buffer) = self.buffer.take() {
            reaper::free(buffer);
        }
    }
}

fn failed(error: pjrt_runtime::Error) -> Error {
    Error::Runtime(Kind::Buffer, error)
}

/// Hands a binary to a device, on a worker thread. With strides, one copy is made in any case.
#[rustler::nif]
fn buffer_from_binary<'a>(
    env: Env<'a>,
    client: ResourceArc<ClientResource>,
    device: i32,
    tensor: (Term<'a>, Term<'a>, Option<List<i64>>),
    tag: Term<'a>,
) -> NifResult<Result<ResourceArc<TicketResource>, Error>> {
    let client = client.get()?.clone();
    let (r#type, binary, strides) = tensor;
    let r#type = host::read_type(r#type)?;
    let data = host::host_data(binary)?;
    let nothing = atoms::nil().encode(env);
    Ok(answer::by_message(
        env,
        tag,
        nothing,
        Kind::Buffer,
        move |_, answer| {
            let made = match &strides {
                None => Buffer::from_host_zero_copy(
                    &client,
                    device,
                    OwnedInput {
                        data,
                        element_type: r#type.element_type,
                        dimensions: &r#type.dimensions,
                    },
                ),
                Some(strides) => Buffer::from_host_strided(
                    &client,
                    device,
                    &HostInput {
                        data: data.as_slice(),
                        element_type: r#type.element_type,
                        dimensions: &r#type.dimensions,
                    },
                    strides,
                ),
            };
            answer.send(move |env| Ok(BufferResource::new(made.map_err(failed)?).encode(env)));
        },
    ))
}

/// Answers with what `work` makes of a buffer, on a worker thread: the plugin waits for the work that the
/// tensor comes from.
fn with_buffer<F>(
    env: Env<'_>,
    buffer: ResourceArc<BufferResource>,
    tag: Term<'_>,
    work: F,
) -> Result<ResourceArc<TicketResource>, Error>
where
    F: for<'a> FnOnce(Env<'a>, &Buffer) -> Result<Term<'a>, Error> + Send + 'static,
{
    let nothing = atoms::nil().encode(env);
    answer::by_message(env, tag, nothing, Kind::Buffer, move |_, answer| {
        answer.send(move |env| {
            let buffer = buffer.get().map_err(host::malformed(Kind::Buffer))?;
            work(env, buffer)
        });
    })
}

/// The buffer's bytes as a binary.
#[rustler::nif]
fn buffer_to_binary<'a>(
    env: Env<'a>,
    buffer: ResourceArc<BufferResource>,
    tag: Term<'a>,
) -> Result<ResourceArc<TicketResource>, Error> {
    with_buffer(env, buffer, tag, |env, buffer| {
        Ok(match buffer.to_host_view().map_err(failed)? {
            Some(view) => host::view_to_binary(env, view).encode(env),
            None => host::vec_to_binary(env, buffer.to_host().map_err(failed)?).encode(env),
        })
    })
}

#[rustler::nif]
fn buffer_to_device<'a>(
    env: Env<'a>,
    buffer: ResourceArc<BufferResource>,
    device: i32,
    tag: Term<'a>,
) -> Result<ResourceArc<TicketResource>, Error> {
    with_buffer(env, buffer, tag, move |env, buffer| {
        let copy = buffer.to_device(device).map_err(failed)?;
        Ok(BufferResource::new(copy).encode(env))
    })
}

#[rustler::nif]
fn buffer_delete<'a>(
    env: Env<'a>,
    buffer: ResourceArc<BufferResource>,
    tag: Term<'a>,
) -> Result<ResourceArc<TicketResource>, Error> {
    with_buffer(env, buffer, tag, |env, buffer| {
        buffer.delete().map_err(failed)?;
        Ok(atoms::ok().encode(env))
    })
}

#[rustler::nif]
fn buffer_deleted(buffer: ResourceArc<BufferResource>) -> NifResult<Result<bool, Error>> {
    Ok(buffer.get()?.is_deleted().map_err(failed))
}

/// `{device, memory_kind, on_device_bytes, minor_to_major | nil}`
type BufferInfo = (i32, String, usize, Option<Vec<i64>>);

#[rustler::nif]
fn buffer_info(buffer: ResourceArc<BufferResource>) -> NifResult<Result<BufferInfo, Error>> {
    let buffer = buffer.get()?;
    let info = || {
        let layout = match buffer.layout()? {
            Layout::Tiled { minor_to_major, .. } => Some(minor_to_major),
            _ => None,
        };
        Ok((
            buffer.device()?,
            buffer.memory_kind()?,
            buffer.on_device_size()?,
            layout,
        ))
    };
    Ok(info().map_err(failed))
}

use crate::{
    answer,
    error::{binary, Error, Kind},
    reaper,
};
use pjrt_runtime::{ElementType, Executable, HostInput};
use rustler::{
    Atom, Binary, Decoder, Encoder, Env, ListIterator, NifResult, Resource, ResourceArc, Term,
};
use stablehlo_custom_call::ElementType as CoreElement;

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

/// The bytes of a result. A binary of them keeps the resource alive and copies nothing.
struct ResultResource(Vec<u8>);

#[rustler::resource_impl]
impl Resource for ResultResource {}

/// Below this a copy costs less than a resource.
const SMALL_RESULT: usize = 1024;

/// Runs an executable on a worker thread, on inputs of `{element_index, dimensions, binary}`; the
/// answer is the list of the results' binaries.
#[rustler::nif]
fn executable_run<'a>(
    env: Env<'a>,
    executable: ResourceArc<ExecutableResource>,
    inputs: Term<'a>,
    tag: Term<'a>,
) -> NifResult<Result<Atom, Error>> {
    let executable = executable.get()?.clone();
    Ok(answer::by_message(
        env,
        tag,
        inputs,
        Kind::Run,
        move |env, inputs| {
            let inputs = decode(inputs)?;
            let host: Vec<_> = inputs
                .iter()
                .map(|(element_type, dimensions, binary)| HostInput {
                    data: binary.as_slice(),
                    element_type: *element_type,
                    dimensions,
                })
                .collect();
            let outputs = executable
                .run(&host)
                .map_err(|error| Error::Runtime(Kind::Run, error))?;
            let outputs: Vec<Binary> = outputs
                .into_iter()
                .map(|bytes| result(env, bytes))
                .collect();
            Ok(outputs.encode(env))
        },
    ))
}

type Input<'a> = (ElementType, Vec<i64>, Binary<'a>);

fn decode(term: Term<'_>) -> Result<Vec<Input<'_>>, Error> {
    let wrong = |_| {
        Error::Runtime(
            Kind::Run,
            pjrt_runtime::Error::InputShape {
                index: 0,
                reason: "not {element, dimensions, binary}".into(),
            },
        )
    };
    <ListIterator as Decoder>::decode(term)
        .map_err(wrong)?
        .map(|input| {
            let (element, dimensions, binary): (usize, Vec<i64>, Binary) =
                input.decode().map_err(wrong)?;
            let element = CoreElement::ALL
                .get(element)
                .copied()
                .ok_or(rustler::Error::BadArg)
                .map_err(wrong)?;
            Ok((runtime_element(element), dimensions, binary))
        })
        .collect()
}

fn runtime_element(element: CoreElement) -> ElementType {
    match element {
        CoreElement::Pred => ElementType::Pred,
        CoreElement::S2 => ElementType::S2,
        CoreElement::S4 => ElementType::S4,
        CoreElement::S8 => ElementType::S8,
        CoreElement::S16 => ElementType::S16,
        CoreElement::S32 => ElementType::S32,
        CoreElement::S64 => ElementType::S64,
        CoreElement::U2 => ElementType::U2,
        CoreElement::U4 => ElementType::U4,
        CoreElement::U8 => ElementType::U8,
        CoreElement::U16 => ElementType::U16,
        CoreElement::U32 => ElementType::U32,
        CoreElement::U64 => ElementType::U64,
        CoreElement::F8E5M2 => ElementType::F8E5M2,
        CoreElement::F8E4M3FN => ElementType::F8E4M3FN,
        CoreElement::F16 => ElementType::F16,
        CoreElement::BF16 => ElementType::BF16,
        CoreElement::F32 => ElementType::F32,
        CoreElement::F64 => ElementType::F64,
        CoreElement::C64 => ElementType::C64,
        CoreElement::C128 => ElementType::C128,
    }
}

fn result<'a>(env: Env<'a>, bytes: Vec<u8>) -> Binary<'a> {
    if bytes.len() < SMALL_RESULT {
        return binary(env, &bytes);
    }
    ResourceArc::new(ResultResource(bytes)).make_binary(env, |result| &result.0)
}

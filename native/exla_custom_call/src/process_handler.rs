//! Handlers that an Elixir process answers.
//!
//! XLA calls a handler by its address and tells it neither the target nor anything of ours, so each
//! registered target has a function of its own: one of a fixed number that are compiled in, which
//! differ in the slot that they look up.
//!
//! The thread that XLA calls from sends the operands to the process and waits. What ends the wait: the
//! answer; the time-out; or the garbage collector, when nobody holds the request any more, as after the
//! process has died. So no call waits for ever, and none outlives its caller's memory.

use crate::{
    atoms,
    client::ClientResource,
    error::{binary, Error as NifError, Kind},
    host::float,
    list::List,
};
use once_cell::sync::Lazy;
use pjrt_runtime::Handler;
use rustler::{
    env::SavedTerm, Atom, Binary, Encoder, Env, LocalPid, NifResult, OwnedEnv, Resource,
    ResourceArc, Term,
};
use stablehlo_custom_call::ElementType;
use std::{
    collections::HashMap,
    ffi::c_void,
    ptr::NonNull,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use xla_ffi::{
    __private::{run, Call, Definition},
    half, sys, AnyArg, AnyRet, Arity, AttrValue, Attrs, Code, DataType, Element, Error,
    FromOperands, FromResults, Pred,
};

const ROWS: usize = 16;
const SLOTS: usize = ROWS * ROWS;

const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

type Trampoline = unsafe extern "C" fn(*mut sys::CallFrame) -> *mut sys::Error;

/// Who answers the calls of a slot's target.
#[derive(Clone, Copy)]
struct Answerer {
    process: LocalPid,
    timeout: Duration,
}

#[derive(Default)]
struct Registry {
    /// Slots by plugin and target: a target that is registered again keeps its slot.
    slots: HashMap<(usize, Vec<u8>), usize>,
    answerers: Vec<Answerer>,
}

static REGISTRY: Lazy<Mutex<Registry>> = Lazy::new(Mutex::default);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const DEFINITION: Definition = Definition {
    stage: sys::STAGE_EXECUTE,
    traits: 0,
    operands: &[Arity::Rest],
    results: &[Arity::Rest],
    attributes: None,
};

unsafe extern "C" fn trampoline<const SLOT: usize>(frame: *mut sys::CallFrame) -> *mut sys::Error {
    // SAFETY: XLA calls this with a frame of its own, and a process handler is registered for
    // platforms whose buffers are memory of the host only.
    unsafe { run(frame, &DEFINITION, None, |call| serve(SLOT, call)) }
}

macro_rules! row {
    ($row:literal: $($column:literal)*) => {
        [$(trampoline::<{ $row * ROWS + $column }> as Trampoline),*]
    };
}
macro_rules! rows {
    ($($row:literal)*) => {
        [$(row!($row: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)),*]
    };
}
static TRAMPOLINES: [[Trampoline; ROWS]; ROWS] = rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

/// Registers `process` for calls of `target`. One that was registered before is replaced, and returned.
#[rustler::nif(schedule = "DirtyIo")]
fn process_handler_register(
    client: ResourceArc<ClientResource>,
    target: Binary,
    process: LocalPid,
    timeout_ms: u64,
) -> NifResult<Result<Option<LocalPid>, NifError>> {
    let client = client.get()?;
    if client.ffi_platform() != "Host" {
        return Ok(Err(NifError::Refused(
            Kind::Library,
            format!(
                "process handlers read the memory of the host, and this client's platform is {}",
                client.platform_name()
            ),
        )));
    }
    let answerer = Answerer {
        process,
        timeout: Duration::from_millis(timeout_ms).min(LONGEST_WAIT),
    };
    let key = (
        std::ptr::from_ref(client.plugin()) as usize,
        target.as_slice().to_vec(),
    );
    let mut registry = locked(&REGISTRY);
    if let Some(&slot) = registry.slots.get(&key) {
        let previous = std::mem::replace(&mut registry.answerers[slot], answerer);
        let replaced = previous.process != process;
        return Ok(Ok(replaced.then_some(previous.process)));
    }
    let slot = registry.answerers.len();
    if slot == SLOTS {
        return Ok(Err(NifError::Refused(
            Kind::Library,
            format!("{SLOTS} targets have process handlers, and no more can be registered"),
        )));
    }
    let function = TRAMPOLINES[slot / ROWS][slot % ROWS] as *mut c_void;
    let Some(function) = NonNull::new(function) else {
        return Err(rustler::Error::BadArg);
    };
    // SAFETY: a trampoline is an XLA FFI handler, and this library is never unloaded.
    let handler = unsafe { Handler::from_function(function, "an Elixir process") };
    if let Err(error) = client.register_handler(target.as_slice(), &handler, 0) {
        return Ok(Err(NifError::Runtime(Kind::Library, error)));
    }
    registry.answerers.push(answerer);
    registry.slots.insert(key, slot);
    Ok(Ok(None))
}

enum Outcome {
    Waiting,
    Answered(OwnedEnv, SavedTerm),
    Dropped,
}

struct Request {
    outcome: Mutex<Outcome>,
    changed: Condvar,
}

/// The right to answer a call, once. Freed without an answer, it ends the call with an error.
pub(crate) struct ResponderResource {
    request: Arc<Request>,
}

#[rustler::resource_impl]
impl Resource for ResponderResource {}

impl Drop for ResponderResource {
    fn drop(&mut self) {
        let mut outcome = locked(&self.request.outcome);
        if matches!(*outcome, Outcome::Waiting) {
            *outcome = Outcome::Dropped;
            self.request.changed.notify_one();
        }
    }
}

/// Answers a call with `{:ok, binaries}` or `{:error, message}`; false if it waits no more.
#[rustler::nif]
fn process_handler_answer(responder: ResourceArc<ResponderResource>, answer: Term) -> bool {
    let mut outcome = locked(&responder.request.outcome);
    if !matches!(*outcome, Outcome::Waiting) {
        return false;
    }
    let memory = OwnedEnv::new();
    let answer = memory.save(answer);
    *outcome = Outcome::Answered(memory, answer);
    responder.request.changed.notify_one();
    true
}

/// The body of every trampoline.
fn serve(slot: usize, mut call: Call<'_>) -> xla_ffi::Result<()> {
    let operands = Vec::<AnyArg>::from_operands(&mut call.operands, "operands")?;
    let mut results = Vec::<AnyRet>::from_results(&mut call.results, "results")?;
    let answerer = locked(&REGISTRY).answerers.get(slot).copied();
    let answerer = answerer.ok_or_else(|| Error::internal("no process is registered"))?;

    let request = Arc::new(Request {
        outcome: Mutex::new(Outcome::Waiting),
        changed: Condvar::new(),
    });
    let sent = send(&answerer, &request, &operands, &call.attributes, &results)?;
    if !sent {
        return Err(unavailable("the process that answers it is not alive"));
    }
    let (memory, answer) = wait(&request, answerer.timeout)?;
    memory.run(|env| write(answer.load(env), &mut results))
}

fn unavailable(reason: &str) -> Error {
    Error::new(Code::Unavailable, reason)
}

fn send(
    answerer: &Answerer,
    request: &Arc<Request>,
    operands: &[AnyArg<'_>],
    attributes: &Attrs<'_>,
    results: &[AnyRet<'_>],
) -> xla_ffi::Result<bool> {
    let mut failed = None;
    let sent = OwnedEnv::new().send_and_clear(&answerer.process, |env| {
        let responder = ResourceArc::new(ResponderResource {
            request: request.clone(),
        });
        match message(env, operands, attributes, results) {
            Ok((operands, attributes, results)) => (
                atoms::custom_call(),
                responder,
                operands,
                attributes,
                results,
            )
                .encode(env),
            Err(error) => {
                failed = Some(error);
                // Nobody waits for it: the answerer drops it.
                atoms::nil().encode(env)
            }
        }
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(sent.is_ok()),
    }
}

type Message<'a> = (Vec<Term<'a>>, Term<'a>, Vec<Term<'a>>);

fn message<'a>(
    env: Env<'a>,
    operands: &[AnyArg<'_>],
    attributes: &Attrs<'_>,
    results: &[AnyRet<'_>],
) -> xla_ffi::Result<Message<'a>> {
    let operands = operands
        .iter()
        .map(|operand| {
            let r#type = tensor_type(env, operand.data_type(), operand.dims())?;
            let bytes = match operand.data_type() {
                DataType::Token => binary(env, &[]),
                _ => binary(env, operand.as_bytes()?),
            };
            Ok((bytes, r#type).encode(env))
        })
        .collect::<xla_ffi::Result<_>>()?;
    let results = results
        .iter()
        .map(|result| tensor_type(env, result.data_type(), result.dims()))
        .collect::<xla_ffi::Result<_>>()?;
    Ok((operands, dictionary(env, attributes, 0)?, results))
}

fn tensor_type<'a>(env: Env<'a>, data_type: DataType, dims: &[usize]) -> xla_ffi::Result<Term<'a>> {
    if data_type == DataType::Token {
        return Ok(atoms::token().encode(env));
    }
    let name = data_type.to_string();
    let element = ElementType::ALL
        .iter()
        .position(|element| element_name(*element) == name)
        .ok_or_else(|| Error::unimplemented(format!("{name} is not one of Nx's types")))?;
    Ok((element, dims).encode(env))
}

/// The name of XLA's type.
fn element_name(element: ElementType) -> &'static str {
    match element {
        ElementType::Pred => "pred",
        ElementType::S2 => "s2",
        ElementType::S4 => "s4",
        ElementType::S8 => "s8",
        ElementType::S16 => "s16",
        ElementType::S32 => "s32",
        ElementType::S64 => "s64",
        ElementType::U2 => "u2",
        ElementType::U4 => "u4",
        ElementType::U8 => "u8",
        ElementType::U16 => "u16",
        ElementType::U32 => "u32",
        ElementType::U64 => "u64",
        ElementType::F8E5M2 => "f8e5m2",
        ElementType::F8E4M3FN => "f8e4m3fn",
        ElementType::F16 => "f16",
        ElementType::BF16 => "bf16",
        ElementType::F32 => "f32",
        ElementType::F64 => "f64",
        ElementType::C64 => "c64",
        ElementType::C128 => "c128",
    }
}

/// Deeper than XLA nests them.
const DEEPEST: usize = 64;

fn dictionary<'a>(env: Env<'a>, attributes: &Attrs<'_>, depth: usize) -> xla_ffi::Result<Term<'a>> {
    if depth > DEEPEST {
        return Err(Error::unimplemented("attributes nest too deep"));
    }
    let mut map = Term::map_new(env);
    for attribute in attributes.iter() {
        let name = binary(env, attribute.name());
        let value = match attribute.value()? {
            AttrValue::Scalar(scalar) => {
                numbers(env, scalar.data_type(), |visit| visit.scalar(scalar))?
            }
            AttrValue::Array(array) => numbers(env, array.data_type(), |visit| visit.array(array))?,
            AttrValue::String(bytes) => binary(env, bytes).encode(env),
            AttrValue::Dictionary(inner) => dictionary(env, &inner, depth + 1)?,
            other => {
                return Err(Error::unimplemented(format!(
                    "an attribute of another kind: {other}"
                )))
            }
        };
        map = map
            .map_put(name, value)
            .map_err(|_| Error::internal("an attribute cannot be a term"))?;
    }
    Ok(map)
}

/// Reads a scalar or an array of the element type that a match has found.
trait Visit<'a> {
    fn scalar(&self, scalar: xla_ffi::Scalar<'_>) -> xla_ffi::Result<Term<'a>>;
    fn array(&self, array: xla_ffi::Array<'_>) -> xla_ffi::Result<Term<'a>>;
}

struct As<'a, T, F: Fn(Env<'a>, T) -> Term<'a>> {
    env: Env<'a>,
    encode: F,
    element: std::marker::PhantomData<T>,
}

impl<'a, T: Element, F: Fn(Env<'a>, T) -> Term<'a>> Visit<'a> for As<'a, T, F> {
    fn scalar(&self, scalar: xla_ffi::Scalar<'_>) -> xla_ffi::Result<Term<'a>> {
        Ok((self.encode)(self.env, scalar.get::<T>()?))
    }

    fn array(&self, array: xla_ffi::Array<'_>) -> xla_ffi::Result<Term<'a>> {
        let elements = array.as_slice::<T>()?;
        let terms: Vec<_> = elements
            .iter()
            .map(|&element| (self.encode)(self.env, element))
            .collect();
        Ok(terms.encode(self.env))
    }
}

fn numbers<'a>(
    env: Env<'a>,
    data_type: DataType,
    read: impl Fn(&dyn Visit<'a>) -> xla_ffi::Result<Term<'a>>,
) -> xla_ffi::Result<Term<'a>> {
    fn of<'a, T: Element>(
        env: Env<'a>,
        encode: impl Fn(Env<'a>, T) -> Term<'a>,
        read: impl Fn(&dyn Visit<'a>) -> xla_ffi::Result<Term<'a>>,
    ) -> xla_ffi::Result<Term<'a>> {
        read(&As {
            env,
            encode,
            element: std::marker::PhantomData,
        })
    }
    match data_type {
        DataType::Pred => of::<Pred>(env, |env, value| bool::from(value).encode(env), read),
        DataType::S8 => of::<i8>(env, |env, value| value.encode(env), read),
        DataType::S16 => of::<i16>(env, |env, value| value.encode(env), read),
        DataType::S32 => of::<i32>(env, |env, value| value.encode(env), read),
        DataType::S64 => of::<i64>(env, |env, value| value.encode(env), read),
        DataType::U8 => of::<u8>(env, |env, value| value.encode(env), read),
        DataType::U16 => of::<u16>(env, |env, value| value.encode(env), read),
        DataType::U32 => of::<u32>(env, |env, value| value.encode(env), read),
        DataType::U64 => of::<u64>(env, |env, value| value.encode(env), read),
        DataType::F16 => of::<half::f16>(env, |env, value| float(env, value.to_f64()), read),
        DataType::BF16 => of::<half::bf16>(env, |env, value| float(env, value.to_f64()), read),
        DataType::F32 => of::<f32>(env, |env, value| float(env, value.into()), read),
        DataType::F64 => of::<f64>(env, float, read),
        other => Err(Error::unimplemented(format!(
            "an attribute of type {other}"
        ))),
    }
}

fn wait(request: &Request, timeout: Duration) -> xla_ffi::Result<(OwnedEnv, SavedTerm)> {
    let deadline = Instant::now() + timeout;
    let mut outcome = locked(&request.outcome);
    loop {
        match std::mem::replace(&mut *outcome, Outcome::Dropped) {
            Outcome::Answered(memory, answer) => return Ok((memory, answer)),
            Outcome::Dropped => {
                return Err(unavailable("the process that answers it has died"));
            }
            Outcome::Waiting => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(
                Code::DeadlineExceeded,
                format!("no answer within {} ms", timeout.as_millis()),
            ));
        }
        *outcome = Outcome::Waiting;
        outcome = request
            .changed
            .wait_timeout(outcome, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

fn write(answer: Term<'_>, results: &mut [AnyRet<'_>]) -> xla_ffi::Result<()> {
    let (tag, value): (Atom, Term) = answer
        .decode()
        .map_err(|_| Error::internal("an answer is {:ok, binaries} or {:error, message}"))?;
    if tag != atoms::ok() {
        let message = Binary::from_term(value).map_or("an error".into(), |message| {
            String::from_utf8_lossy(message.as_slice()).into_owned()
        });
        return Err(Error::internal(message));
    }
    let List(binaries): List<Binary> = value
        .decode()
        .map_err(|_| Error::internal("an answer is {:ok, binaries} or {:error, message}"))?;
    if binaries.len() != results.len() {
        return Err(Error::invalid_argument(format!(
            "expected {} results, got {}",
            results.len(),
            binaries.len()
        )));
    }
    // All are checked before the first is written.
    for (index, (result, binary)) in results.iter_mut().zip(&binaries).enumerate() {
        let expected = match result.data_type() {
            DataType::Token => 0,
            _ => result.as_bytes_mut()?.len(),
        };
        if binary.len() != expected {
            return Err(Error::invalid_argument(format!(
                "result {index}: expected {expected} bytes, got {}",
                binary.len()
            )));
        }
    }
    for (result, binary) in results.iter_mut().zip(&binaries) {
        if result.data_type() != DataType::Token {
            result.as_bytes_mut()?.copy_from_slice(binary.as_slice());
        }
    }
    Ok(())
}

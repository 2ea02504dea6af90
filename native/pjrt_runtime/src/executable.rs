//! Executables: programs that a client compiled and can run.

use std::borrow::Borrow;
use std::fmt;
use std::ptr::{null_mut, NonNull};
use std::sync::Arc;

use once_cell::sync::OnceCell;
use pjrt_sys::*;

use crate::api::slice;
use crate::args::{ApiStruct, Args};
use crate::buffer::{Buffer, HostInput};
use crate::client::Client;
use crate::compile_options::CompileOptions;
use crate::description::{Description, MemoryStats, Program};
use crate::element_type::{ElementType, TensorType};
use crate::event::{self, Event};
use crate::gate::Pass;
use crate::hlo;
use crate::host_data::OwnedInput;
use crate::launch::Launch;
use crate::named_value::NamedValue;
use crate::program;
use crate::serialized;
use crate::sharding::{Sharded, Sharding};
use crate::user_data::UserData;
use crate::view::View;
use crate::Error;

/// A compiled program. Clones are the same program; it keeps its client alive.
#[derive(Clone)]
pub struct Executable {
    inner: Arc<Inner>,
}

struct Inner {
    loaded: Loaded,
    description: Description,
    name: String,
    num_replicas: usize,
    num_partitions: usize,
    inputs: Option<Vec<TensorType>>,
    outputs: Vec<TensorType>,
    has_static_outputs: bool,
    /// Whether an output can be viewed, once the first of them was seen: where and how they lie is
    /// the compiler's choice.
    viewable: Vec<OnceCell<bool>>,
    /// For executions without any: XLA, as of PJRT 0.115, dies over a handler that asks for user data in an
    /// execution that has no context at all. `None` where the plugin takes no user data.
    no_user_data: Option<UserData>,
    /// The addressable devices the program runs on, in the order of its input lists.
    devices: Vec<(i32, NonNull<PJRT_Device>)>,
}

/// The runnable program that this process has to free.
struct Loaded {
    client: Client,
    raw: NonNull<PJRT_LoadedExecutable>,
}

// SAFETY: PJRT executables may be used, by several threads at once, and freed from any thread; the
// device handles point to constant data of the client, which `loaded` keeps alive.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Loaded {
    fn drop(&mut self) {
        let mut args = Args::<PJRT_LoadedExecutable_Destroy_Args>::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: this is the executable's only owner, and its client is alive.
        let _ = unsafe { self.client.plugin().api().call(&mut args) };
    }
}

impl Executable {
    pub(crate) fn compile(
        client: &Client,
        code: &[u8],
        options: &CompileOptions,
    ) -> Result<Self, Error> {
        const FORMAT: &str = "mlir";
        let ids: Vec<i32> = client.devices().iter().map(|device| device.id).collect();
        options.check(&ids)?;
        let options = options.encode();

        let mut program = Args::<PJRT_Program>::new();
        // The compiler reads the code only; the field is mutable for functions that return programs.
        program.code = code.as_ptr().cast_mut().cast();
        program.code_size = code.len();
        program.format = FORMAT.as_ptr().cast();
        program.format_size = FORMAT.len();
        let mut args = Args::<PJRT_Client_Compile_Args>::new();
        args.client = client.raw().as_ptr();
        args.program = program.as_mut_ptr();
        args.compile_options = options.as_ptr().cast();
        args.compile_options_size = options.len();
        // SAFETY: the client is alive; code, format and options outlive the call, which is all they
        // have to.
        unsafe { client.plugin().api().call(&mut args) }?;
        let raw = NonNull::new(args.executable).ok_or(Error::NullResult {
            name: "PJRT_Client_Compile",
            what: "executable",
        })?;
        Self::from_loaded(Loaded {
            client: client.clone(),
            raw,
        })
    }

    /// Loads the bytes that the plugin itself wrote.
    pub(crate) fn deserialize(client: &Client, payload: &[u8]) -> Result<Self, Error> {
        let mut args = Args::<PJRT_Executable_DeserializeAndLoad_Args>::new();
        args.client = client.raw().as_ptr();
        args.serialized_executable = payload.as_ptr().cast();
        args.serialized_executable_size = payload.len();
        // SAFETY: the client is alive, and the bytes outlive the call, which is all they have to.
        unsafe { client.plugin().api().call(&mut args) }?;
        let raw = NonNull::new(args.loaded_executable).ok_or(Error::NullResult {
            name: "PJRT_Executable_DeserializeAndLoad",
            what: "executable",
        })?;
        Self::from_loaded(Loaded {
            client: client.clone(),
            raw,
        })
    }

    fn from_loaded(loaded: Loaded) -> Result<Self, Error> {
        let description = loaded.description()?;
        let devices = loaded.devices()?;
        let signature = description
            .optimized_program()
            .map(|program| program::signature(&program.format, &program.code))
            .unwrap_or_default();
        let outputs = description.outputs()?;
        Ok(Self {
            inner: Arc::new(Inner {
                name: description.name()?,
                num_replicas: description.num_replicas()?,
                num_partitions: description.num_partitions()?,
                viewable: outputs.iter().map(|_| OnceCell::new()).collect(),
                outputs,
                inputs: signature.inputs,
                has_static_outputs: signature.has_static_outputs,
                devices,
                description,
                no_user_data: UserData::new(&loaded.client, &[]).ok(),
                loaded,
            }),
        })
    }

    /// The client that compiled the program.
    pub fn client(&self) -> &Client {
        &self.inner.loaded.client
    }

    /// The program's name, which is that of its module.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Copies of the program that run on different data.
    pub fn num_replicas(&self) -> usize {
        self.inner.num_replicas
    }

    /// Parts into which the program was split.
    pub fn num_partitions(&self) -> usize {
        self.inner.num_partitions
    }

    /// The ids of the devices of this process that the program runs on, in the order in which
    /// inputs and outputs are listed.
    pub fn devices(&self) -> Vec<i32> {
        self.inner.devices.iter().map(|(id, _)| *id).collect()
    }

    /// What the program takes on each device; `None` if the plugin does not tell.
    pub fn inputs(&self) -> Option<&[TensorType]> {
        self.inner.inputs.as_deref()
    }

    /// What the program returns on each device.
    pub fn outputs(&self) -> &[TensorType] {
        &self.inner.outputs
    }

    /// The program as the compiler left it: for XLA a serialized `xla.HloModuleProtoWithConfig`.
    ///
    /// # Errors
    /// [`Error::MissingFunction`] or [`Error::Pjrt`].
    pub fn optimized_program(&self) -> Result<Program, Error> {
        self.inner.description.optimized_program()
    }

    /// The program as the compiler left it, in XLA's HLO text syntax, so that `all-gather(` or
    /// `custom_call_target="name"` can be searched for.
    ///
    /// The plugin gives the program as a message, and this crate writes it. Left out are elements of
    /// constants with more than 10 of them or of 4 and 8 bit floats and integers below a byte
    /// (`{...}`), of the metadata all but the operation's type and name and its file and line, the
    /// origins of values, statistics, and what only TPUs know: sparsity, domains, prefetches, the
    /// configurations of infeed and outfeed, and the inside of asynchronous operations' types.
    ///
    /// # Errors
    /// [`Error::HloText`] of a plugin whose compiled programs are in no format of XLA's, and those
    /// of [`optimized_program`](Self::optimized_program).
    pub fn hlo_text(&self) -> Result<String, Error> {
        hlo::text(&self.optimized_program()?)
    }

    /// The compiled program as bytes for [`Client::deserialize`], behind a header that says where
    /// they can be read.
    ///
    /// # Errors
    /// [`Error::MissingFunction`], [`Error::PluginUnreadable`], or [`Error::Pjrt`] of a plugin or a
    /// program that cannot be serialized.
    pub fn serialize(&self) -> Result<Vec<u8>, Error> {
        let payload = self.inner.description.serialize()?;
        serialized::write(self.client(), &self.devices(), &payload)
    }

    /// How each parameter is spread over the devices, as the compiler left it; `None` if the plugin does not tell,
    /// as of programs that are not partitioned.
    ///
    /// # Errors
    /// [`Error::Sharding`], [`Error::NullResult`] or [`Error::Pjrt`].
    pub fn parameter_shardings(&self) -> Result<Option<Vec<Sharding>>, Error> {
        self.inner.description.shardings(Sharded::Parameter)
    }

    /// The same of the results; those in a tuple are results of their own.
    ///
    /// # Errors
    /// Those of [`parameter_shardings`](Self::parameter_shardings).
    pub fn result_shardings(&self) -> Result<Option<Vec<Sharding>>, Error> {
        self.inner.description.shardings(Sharded::Result)
    }

    /// How much memory the program takes.
    ///
    /// # Errors
    /// [`Error::MissingFunction`] or [`Error::Pjrt`].
    pub fn memory_stats(&self) -> Result<MemoryStats, Error> {
        self.inner.description.memory_stats()
    }

    /// What the compiler expects the program to cost, by names such as `"flops"` and
    /// `"bytes accessed"`; which there are is the plugin's choice.
    ///
    /// # Errors
    /// [`Error::MissingFunction`] or [`Error::Pjrt`].
    pub fn cost_analysis(&self) -> Result<Vec<(String, NamedValue)>, Error> {
        self.inner.description.cost_analysis()
    }

    /// Bytes of machine code; the CPU plugins do not tell and say 0 or -1.
    ///
    /// # Errors
    /// [`Error::MissingFunction`] or [`Error::Pjrt`].
    pub fn generated_code_size(&self) -> Result<i64, Error> {
        self.inner.description.generated_code_size()
    }

    /// Bytes that are the same for the same compiled program; no text.
    ///
    /// # Errors
    /// [`Error::MissingFunction`] or [`Error::Pjrt`], of a plugin that offers none.
    pub fn fingerprint(&self) -> Result<Vec<u8>, Error> {
        let fingerprint = self.inner.description.fingerprint();
        match fingerprint {
            Ok(bytes) if !bytes.is_empty() => Ok(bytes),
            // Where older plugins have it.
            other => self.inner.loaded.fingerprint().or(other),
        }
    }

    /// Runs a program of one device: copies the inputs to it, runs, and copies the outputs back,
    /// each as the bytes of a row-major tensor. Blocks until all is done. A token has no bytes.
    ///
    /// # Errors
    /// [`Error::InputCount`], [`Error::InputSize`], [`Error::InputShape`] or [`Error::InputType`]
    /// before anything runs; [`Error::DeviceCount`] if the program is of several devices;
    /// [`Error::Pjrt`] with what went wrong in the plugin or in a handler.
    pub fn run(&self, inputs: &[HostInput<'_>]) -> Result<Vec<Vec<u8>>, Error> {
        let mut outputs = self.run_on_devices(&[inputs])?;
        outputs.pop().ok_or(Error::DeviceCount {
            expected: self.inner.devices.len(),
            found: 1,
        })
    }

    /// Runs the program on all its devices at once, with one list of inputs for each, in the order
    /// of [`devices`](Self::devices). Returns one list of outputs for each.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_on_devices(&self, inputs: &[&[HostInput<'_>]]) -> Result<Vec<Vec<Vec<u8>>>, Error> {
        self.check_devices(inputs.len())?;
        for inputs in inputs {
            self.check_count(inputs.len())?;
            for (index, input) in inputs.iter().enumerate() {
                input.check(index)?;
                self.check_type(index, input.element_type, input.dimensions)?;
            }
        }
        let mut buffers = Vec::with_capacity(inputs.len());
        for (inputs, (_, device)) in inputs.iter().zip(&self.inner.devices) {
            let on_device: Result<Vec<Buffer>, Error> = inputs
                .iter()
                .map(|input| Buffer::from_checked(self.client(), *device, input))
                .collect();
            buffers.push(on_device?);
        }
        let turn = self.client().turn(inputs.len());
        let guard = self.client().launch_guard(inputs.len(), false);
        // The buffers are copies that nobody else knows, so the program may reuse their memory.
        // SAFETY: the buffers are alive, of this client, and on their devices.
        let launch = unsafe { self.launch(&arguments(&buffers), &[], 0, None) };
        drop(guard);
        let outputs = Launch { turn, ..launch? }.wait()?;
        // Given back before more is taken: memory that goes back to the system is dear to get anew.
        drop(buffers);
        outputs
            .into_iter()
            .map(|outputs| {
                let pairs = outputs.into_iter().zip(self.outputs()).enumerate();
                pairs
                    .map(|(index, (buffer, tensor))| to_host(index, &buffer, tensor))
                    .collect()
            })
            .collect()
    }

    /// Runs a program of one device like [`run`](Self::run), without copies where there need be
    /// none: inputs as [`Buffer::from_host_zero_copy`] takes them, outputs as
    /// [`Buffer::to_host_view`] gives them, a copy where it gives none. The inputs' bytes are never
    /// written to.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_view(&self, inputs: Vec<OwnedInput<'_>>) -> Result<Vec<View>, Error> {
        self.check_devices(1)?;
        self.check_count(inputs.len())?;
        for (index, input) in inputs.iter().enumerate() {
            input.borrow().check(index)?;
            self.check_type(index, input.element_type, input.dimensions)?;
        }
        let kept = indexes(inputs.len());
        // The one device, repeated.
        let devices = self.inner.devices.iter().cycle();
        let on_device: Result<Vec<Buffer>, Error> = inputs
            .into_iter()
            .zip(devices)
            .map(|(input, (_, device))| {
                Buffer::from_checked_zero_copy(self.client(), *device, input)
            })
            .collect();
        let buffers = on_device?;
        // SAFETY: the buffers are alive, of this client, and on the program's device.
        let launch = unsafe { self.launch(&arguments(&[buffers]), &kept, 0, None) }?;
        let outputs = launch.wait()?.pop().unwrap_or_default();
        let pairs = outputs.into_iter().zip(self.outputs()).enumerate();
        pairs
            .map(|(index, (buffer, tensor))| self.to_view(index, &buffer, tensor))
            .collect()
    }

    /// Runs the program on buffers that are on its devices already: one list of inputs for each
    /// device, in the order of [`devices`](Self::devices). Returns one list of outputs for each,
    /// ready to be read. The inputs stay as they are: no memory of theirs is reused.
    ///
    /// # Errors
    /// Those of [`run`](Self::run), [`Error::Deleted`] and [`Error::ForeignBuffer`].
    pub fn execute(&self, inputs: &[&[&Buffer]]) -> Result<Vec<Vec<Buffer>>, Error> {
        self.execute_with(inputs, &ExecuteOptions::default())
    }

    /// Runs the program like [`execute`](Self::execute), with options.
    ///
    /// # Errors
    /// Those of [`execute`](Self::execute), and [`Error::Donation`].
    pub fn execute_with(
        &self,
        inputs: &[&[&Buffer]],
        options: &ExecuteOptions,
    ) -> Result<Vec<Vec<Buffer>>, Error> {
        self.launch_checked(inputs, options)?.wait()
    }

    /// Hands the program over to its devices and calls `on_done` when all of them are done, with
    /// what [`execute_with`](Self::execute_with) would return. The inputs may be dropped as soon as
    /// this returns.
    ///
    /// `on_done` is called exactly once, and dropped with all it owns then: on this thread and
    /// before this returns where the inputs are refused or the work is done by then, else on a
    /// thread of the plugin's. It must not block there; a panic in it ends there. The outputs, the
    /// executable and the client may be dropped in it.
    ///
    /// The thread is held for as long as the plugin likes: on a GPU until the work is enqueued, but
    /// the CPU plugins run nearly every program whose inputs are ready on this very thread, the
    /// handlers of its custom calls included, however long they take, and hand it to a thread of
    /// their own only where an input is not ready, or where they see fit. Who must not be held calls
    /// this, as [`execute`](Self::execute), on a thread for it. A handler's error comes the same way
    /// from both.
    pub fn execute_async<F>(&self, inputs: &[&[&Buffer]], options: &ExecuteOptions, on_done: F)
    where
        F: FnOnce(Result<Vec<Vec<Buffer>>, Error>) + Send + 'static,
    {
        match self.launch_checked(inputs, options) {
            Ok(launch) => launch.on_done(self.clone(), on_done),
            Err(error) => event::guarded(|| on_done(Err(error))),
        }
    }

    fn launch_checked(
        &self,
        inputs: &[&[&Buffer]],
        options: &ExecuteOptions,
    ) -> Result<Launch, Error> {
        self.check_devices(inputs.len())?;
        if let Some(user_data) = &options.user_data {
            if !user_data.client().is_same(self.client()) {
                return Err(Error::ForeignUserData);
            }
        }
        let count = inputs.first().map_or(0, |inputs| inputs.len());
        let turn = self.client().turn(inputs.len());
        // Both from the checks until the plugin has the inputs.
        let _passes = passes(inputs, &options.donate);
        let _guard = self
            .client()
            .launch_guard(inputs.len(), !options.donate.is_empty());
        for (inputs, (device, _)) in inputs.iter().zip(&self.inner.devices) {
            self.check_count(inputs.len())?;
            if inputs.len() != count {
                return Err(Error::InputCount {
                    expected: count,
                    found: inputs.len(),
                });
            }
            for (index, buffer) in inputs.iter().enumerate() {
                if !buffer.client().is_same(self.client()) {
                    return Err(Error::ForeignBuffer { index });
                }
                buffer.check_alive()?;
                let found = buffer.device()?;
                if found != *device {
                    return Err(Error::WrongDevice {
                        index,
                        expected: *device,
                        found,
                    });
                }
                let tensor = buffer.tensor_type()?;
                self.check_type(index, tensor.element_type, &tensor.dimensions)?;
            }
        }
        for &index in &options.donate {
            let shared = |list: &[&Buffer]| {
                let given = list.get(index).map(|buffer| buffer.raw());
                list.iter()
                    .filter(|buffer| Some(buffer.raw()) == given)
                    .count()
                    > 1
            };
            let reason = if index >= count {
                format!("there are {count} inputs")
            } else if inputs.iter().any(|list| shared(list)) {
                "the same buffer is given as another input too".to_owned()
            } else {
                continue;
            };
            return Err(Error::Donation { index, reason });
        }
        let mut kept = indexes(count);
        kept.retain(|&index| !options.donate.iter().any(|&given| given as i64 == index));
        // SAFETY: the buffers are alive and of this client, and the lists are of equal length.
        let launch = unsafe {
            self.launch(
                &arguments(inputs),
                &kept,
                options.launch_id,
                options.user_data.as_ref(),
            )
        };
        // Also where the launch failed: what the plugin took by then is gone.
        for inputs in inputs {
            for &index in &options.donate {
                inputs[index].note_donation();
            }
        }
        Ok(Launch { turn, ..launch? })
    }

    /// # Safety
    /// `arguments` has one list for each device, of equal length, of live buffers of this client, of which
    /// `user_data` is too.
    unsafe fn launch(
        &self,
        arguments: &[Vec<*mut PJRT_Buffer>],
        non_donatable: &[i64],
        launch_id: i32,
        user_data: Option<&UserData>,
    ) -> Result<Launch, Error> {
        let client = self.client();
        let plugin = client.plugin();
        let devices = self.inner.devices.len();
        let user_data = user_data.or(self.inner.no_user_data.as_ref());

        let mut options = Args::<LaunchOptions>::new();
        options.known.launch_id = launch_id;
        options.known.non_donatable_input_indices = non_donatable.as_ptr();
        options.known.num_non_donatable_input_indices = non_donatable.len();
        options.context = user_data.map(UserData::raw);

        let argument_lists: Vec<*const *mut PJRT_Buffer> =
            arguments.iter().map(|list| list.as_ptr()).collect();
        let mut outputs: Vec<Vec<*mut PJRT_Buffer>> =
            vec![vec![null_mut(); self.outputs().len()]; devices];
        let output_lists: Vec<*mut *mut PJRT_Buffer> =
            outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut events: Vec<*mut PJRT_Event> = vec![null_mut(); devices];

        let mut args = Args::<PJRT_LoadedExecutable_Execute_Args>::new();
        args.executable = self.inner.loaded.raw.as_ptr();
        args.options = options.as_mut_ptr().cast();
        args.argument_lists = argument_lists.as_ptr().cast();
        args.num_devices = devices;
        args.num_args = arguments.first().map_or(0, Vec::len);
        args.output_lists = output_lists.as_ptr();
        args.device_complete_events = events.as_mut_ptr();
        // SAFETY: the caller vouches for the arguments. The output lists have as many places as the
        // plugin said the program has outputs, the event list as many as it has devices.
        let called = unsafe { plugin.api().call(&mut args) };
        // Taken over before any error is returned, so that nothing leaks.
        // SAFETY: what the plugin put into the lists is this caller's to free.
        let mut launch = unsafe {
            Launch {
                outputs: outputs
                    .iter()
                    .map(|list| {
                        list.iter()
                            .map(|&raw| Buffer::from_raw(client, raw))
                            .collect()
                    })
                    .collect(),
                events: events
                    .iter()
                    .filter_map(|&raw| Event::from_raw(plugin, raw))
                    .collect(),
                turn: None,
                user_data: user_data.cloned(),
            }
        };
        if called.is_err() && devices > 1 {
            // Devices that began before another one failed may be at work still, and nothing tells when they are
            // done: then the data has to stay for good.
            launch.user_data.iter().for_each(UserData::keep);
        }
        called?;
        if launch.events.len() < devices {
            // A plugin that says nothing of its devices tells when the outputs are ready.
            let mut ready = Ok(());
            for output in launch.outputs.iter().flatten().flatten() {
                match output.ready_event() {
                    Ok(event) => launch.events.extend(event),
                    Err(error) => ready = Err(error),
                }
            }
            if ready.is_err() {
                // As above.
                launch.user_data.iter().for_each(UserData::keep);
            }
            ready?;
        }
        Ok(launch)
    }

    /// An output that is done as a view.
    fn to_view(&self, index: usize, buffer: &Buffer, tensor: &TensorType) -> Result<View, Error> {
        if tensor.element_type == ElementType::Token {
            return Ok(View::copied(Vec::new()));
        }
        let ask = || buffer.is_viewable(tensor.element_type, tensor.dimensions.len());
        let viewable = self.inner.viewable.get(index);
        if viewable.is_some_and(|known| *known.get_or_init(ask)) {
            let size = tensor.byte_size().filter(|_| self.inner.has_static_outputs);
            if let Some(view) = buffer.view(size) {
                check_size(index, tensor, view.len())?;
                return Ok(view);
            }
        }
        to_host(index, buffer, tensor).map(View::copied)
    }

    fn check_devices(&self, found: usize) -> Result<(), Error> {
        let expected = self.inner.devices.len();
        if found == expected {
            return Ok(());
        }
        Err(Error::DeviceCount { expected, found })
    }

    fn check_count(&self, found: usize) -> Result<(), Error> {
        match self.inputs() {
            Some(inputs) if inputs.len() != found => Err(Error::InputCount {
                expected: inputs.len(),
                found,
            }),
            _ => Ok(()),
        }
    }

    fn check_type(
        &self,
        index: usize,
        element_type: ElementType,
        dimensions: &[i64],
    ) -> Result<(), Error> {
        let Some(expected) = self.inputs().and_then(|inputs| inputs.get(index)) else {
            return Ok(());
        };
        if expected.element_type == element_type && expected.dimensions == dimensions {
            return Ok(());
        }
        Err(Error::InputType {
            index,
            expected: expected.clone(),
            found: TensorType {
                element_type,
                dimensions: dimensions.to_vec(),
            },
        })
    }
}

/// `PJRT_ExecuteOptions` with a field that pjrt-sys's header does not have yet. A plugin that does not know it
/// does not read it.
#[repr(C)]
#[derive(Default)]
struct LaunchOptions {
    known: PJRT_ExecuteOptions,
    context: Option<NonNull<PJRT_ExecuteContext>>,
}

// SAFETY: repr(C), and the first field of the first field is `struct_size`. The others are integers and nullable
// pointers.
unsafe impl ApiStruct for LaunchOptions {
    fn size_field(&mut self) -> &mut usize {
        &mut self.known.struct_size
    }
}

// Where the header has the field.
const _: () = assert!(std::mem::offset_of!(LaunchOptions, context) == 72);

/// How an execution treats its inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecuteOptions {
    /// The inputs, by their indexes on every device, whose memory the program may take for its
    /// outputs: it does so where it was compiled with an alias or a donor for the input. A buffer
    /// that was taken can be used no more; one that was not stays as it is.
    pub donate: Vec<usize>,
    /// Tells executions that are meant to meet from others: the same number on all hosts that run
    /// one program together, 0 where it does not matter.
    pub launch_id: i32,
    /// What handlers get of it besides operands and attributes.
    pub user_data: Option<UserData>,
}

fn indexes(count: usize) -> Vec<i64> {
    (0..count as i64).collect()
}

/// The right to hand over each of the buffers, those in `donate` alone.
fn passes<'a>(inputs: &[&[&'a Buffer]], donate: &[usize]) -> Vec<Pass<'a>> {
    let lists = inputs.iter().flat_map(|list| list.iter().enumerate());
    let mut wanted: Vec<(&Buffer, bool)> = lists
        .map(|(index, buffer)| (*buffer, donate.contains(&index)))
        .collect();
    // In one order for all, and once for a buffer that is given twice.
    wanted.sort_by_key(|(buffer, alone)| (buffer.raw(), !alone));
    wanted.dedup_by_key(|(buffer, _)| buffer.raw());
    let wanted = wanted.into_iter();
    wanted.map(|(buffer, alone)| buffer.enter(alone)).collect()
}

/// The plugin's handles of one list of buffers for each device.
fn arguments<L, B>(lists: &[L]) -> Vec<Vec<*mut PJRT_Buffer>>
where
    L: AsRef<[B]>,
    B: Borrow<Buffer>,
{
    lists
        .iter()
        .map(|list| {
            let handles = list.as_ref().iter();
            handles
                .map(|buffer| buffer.borrow().raw().as_ptr())
                .collect()
        })
        .collect()
}

fn to_host(index: usize, buffer: &Buffer, tensor: &TensorType) -> Result<Vec<u8>, Error> {
    if tensor.element_type == ElementType::Token {
        return Ok(Vec::new());
    }
    let bytes = buffer.to_host_as(tensor.element_type, tensor.dimensions.len())?;
    check_size(index, tensor, bytes.len())?;
    Ok(bytes)
}

fn check_size(index: usize, tensor: &TensorType, found: usize) -> Result<(), Error> {
    match tensor.byte_size() {
        Some(expected) if expected != found => Err(Error::OutputSize {
            index,
            tensor: tensor.clone(),
            expected,
            found,
        }),
        _ => Ok(()),
    }
}

impl Loaded {
    fn fingerprint(&self) -> Result<Vec<u8>, Error> {
        let mut args = Args::<PJRT_LoadedExecutable_Fingerprint_Args>::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the executable is alive, and the bytes live as long.
        unsafe {
            self.client.plugin().api().call(&mut args)?;
            let (data, size) = (
                args.executable_fingerprint,
                args.executable_fingerprint_size,
            );
            Ok(slice(data.cast::<u8>(), size).to_vec())
        }
    }

    fn description(&self) -> Result<Description, Error> {
        let mut args = Args::<PJRT_LoadedExecutable_GetExecutable_Args>::new();
        args.loaded_executable = self.raw.as_ptr();
        // SAFETY: the executable is alive.
        unsafe { self.client.plugin().api().call(&mut args) }?;
        let raw = NonNull::new(args.executable).ok_or(Error::NullResult {
            name: "PJRT_LoadedExecutable_GetExecutable",
            what: "executable",
        })?;
        // SAFETY: the plugin made the description for this caller.
        Ok(unsafe { Description::from_raw(&self.client, raw) })
    }

    fn devices(&self) -> Result<Vec<(i32, NonNull<PJRT_Device>)>, Error> {
        let mut args = Args::<PJRT_LoadedExecutable_AddressableDevices_Args>::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the executable is alive, and the list lives as long.
        let handles = unsafe {
            self.client.plugin().api().call(&mut args)?;
            slice(args.addressable_devices, args.num_addressable_devices)
        };
        let devices = handles
            .iter()
            .filter_map(|&handle| Some((self.client.device_id(handle)?, NonNull::new(handle)?)));
        Ok(devices.collect())
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Executable")
            .field("name", &self.inner.name)
            .field("inputs", &self.inner.inputs)
            .field("outputs", &self.inner.outputs)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

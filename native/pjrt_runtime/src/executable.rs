//! Executables: programs that a client compiled and can run.

use std::fmt;
use std::ptr::{null_mut, NonNull};
use std::sync::Arc;

use pjrt_sys::*;

use crate::api::slice;
use crate::args::Args;
use crate::buffer::{Buffer, HostInput};
use crate::client::Client;
use crate::compile_options::CompileOptions;
use crate::description::{Description, Program};
use crate::element_type::{ElementType, TensorType};
use crate::event::Event;
use crate::program;
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

    fn from_loaded(loaded: Loaded) -> Result<Self, Error> {
        let description = loaded.description()?;
        let devices = loaded.devices()?;
        let inputs = description
            .optimized_program()
            .ok()
            .and_then(|program| program::inputs(&program.format, &program.code));
        Ok(Self {
            inner: Arc::new(Inner {
                name: description.name()?,
                num_replicas: description.num_replicas()?,
                num_partitions: description.num_partitions()?,
                outputs: description.outputs()?,
                inputs,
                devices,
                description,
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
        let arguments: Vec<Vec<*mut PJRT_Buffer>> = buffers
            .iter()
            .map(|buffers| buffers.iter().map(|buffer| buffer.raw().as_ptr()).collect())
            .collect();
        // The buffers are copies that nobody else knows, so the program may reuse their memory.
        // SAFETY: the buffers are alive, of this client, and on their devices.
        let outputs = unsafe { self.execute_raw(&arguments, &[]) }?;
        outputs
            .iter()
            .map(|outputs| {
                let pairs = outputs.iter().zip(self.outputs()).enumerate();
                pairs
                    .map(|(index, (buffer, tensor))| to_host(index, buffer, tensor))
                    .collect()
            })
            .collect()
    }

    /// Runs the program on buffers that are on its devices already: one list of inputs for each
    /// device, in the order of [`devices`](Self::devices). Returns one list of outputs for each,
    /// ready to be read. The inputs stay as they are: no memory of theirs is reused.
    ///
    /// # Errors
    /// Those of [`run`](Self::run), [`Error::Deleted`] and [`Error::ForeignBuffer`].
    pub fn execute(&self, inputs: &[&[&Buffer]]) -> Result<Vec<Vec<Buffer>>, Error> {
        self.check_devices(inputs.len())?;
        for inputs in inputs {
            self.check_count(inputs.len())?;
            for (index, buffer) in inputs.iter().enumerate() {
                if !buffer.client().is_same(self.client()) {
                    return Err(Error::ForeignBuffer { index });
                }
                if buffer.is_deleted()? {
                    return Err(Error::Deleted { what: "buffer" });
                }
                let tensor = buffer.tensor_type()?;
                self.check_type(index, tensor.element_type, &tensor.dimensions)?;
            }
        }
        let arguments: Vec<Vec<*mut PJRT_Buffer>> = inputs
            .iter()
            .map(|buffers| buffers.iter().map(|buffer| buffer.raw().as_ptr()).collect())
            .collect();
        let kept: Vec<i64> = (0..inputs.first().map_or(0, |inputs| inputs.len()) as i64).collect();
        // SAFETY: the buffers are alive and of this client.
        unsafe { self.execute_raw(&arguments, &kept) }
    }

    /// # Safety
    /// `arguments` has one list for each device, of equal length, of live buffers of this client.
    unsafe fn execute_raw(
        &self,
        arguments: &[Vec<*mut PJRT_Buffer>],
        non_donatable: &[i64],
    ) -> Result<Vec<Vec<Buffer>>, Error> {
        let client = self.client();
        let plugin = client.plugin();
        let devices = self.inner.devices.len();

        let mut options = Args::<PJRT_ExecuteOptions>::new();
        options.non_donatable_input_indices = non_donatable.as_ptr();
        options.num_non_donatable_input_indices = non_donatable.len();

        let argument_lists: Vec<*const *mut PJRT_Buffer> =
            arguments.iter().map(|list| list.as_ptr()).collect();
        let mut outputs: Vec<Vec<*mut PJRT_Buffer>> =
            vec![vec![null_mut(); self.outputs().len()]; devices];
        let output_lists: Vec<*mut *mut PJRT_Buffer> =
            outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut events: Vec<*mut PJRT_Event> = vec![null_mut(); devices];

        let mut args = Args::<PJRT_LoadedExecutable_Execute_Args>::new();
        args.executable = self.inner.loaded.raw.as_ptr();
        args.options = options.as_mut_ptr();
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
        let (outputs, events) = unsafe {
            let outputs: Vec<Vec<Option<Buffer>>> = outputs
                .iter()
                .map(|list| {
                    list.iter()
                        .map(|&raw| Buffer::from_raw(client, raw))
                        .collect()
                })
                .collect();
            let events: Vec<Option<Event>> = events
                .iter()
                .map(|&raw| Event::from_raw(plugin, raw))
                .collect();
            (outputs, events)
        };
        called?;
        // Wait for all devices before an error of one is returned: the others use the inputs too.
        let waited: Vec<Result<(), Error>> = events.iter().flatten().map(Event::wait).collect();
        waited.into_iter().collect::<Result<(), Error>>()?;
        let complete: Option<Vec<Vec<Buffer>>> = outputs
            .into_iter()
            .map(|list| list.into_iter().collect())
            .collect();
        complete.ok_or(Error::NullResult {
            name: "PJRT_LoadedExecutable_Execute",
            what: "output buffer",
        })
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

fn to_host(index: usize, buffer: &Buffer, tensor: &TensorType) -> Result<Vec<u8>, Error> {
    if tensor.element_type == ElementType::Token {
        return Ok(Vec::new());
    }
    let bytes = buffer.to_host_as(tensor.element_type, tensor.dimensions.len())?;
    match tensor.byte_size() {
        Some(expected) if expected != bytes.len() => Err(Error::OutputSize {
            index,
            tensor: tensor.clone(),
            expected,
            found: bytes.len(),
        }),
        _ => Ok(bytes),
    }
}

impl Loaded {
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

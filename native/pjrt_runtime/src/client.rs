//! Clients: a plugin's compiler and devices, brought up once.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pjrt_sys::*;

use crate::api::{lossy, slice};
use crate::args::Args;
use crate::compile_options::CompileOptions;
use crate::event;
use crate::executable::Executable;
use crate::named_value::{self, NamedValue};
use crate::plugin::Plugin;
use crate::serialized;
use crate::thread;
use crate::Error;

/// A PJRT client. Clones are the same client, which lives until the last clone, buffer and
/// executable of it is dropped. Dropping the last one frees the devices and can take long.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Handle,
    platform_name: String,
    platform_version: String,
    process_index: i32,
    devices: Vec<Device>,
    /// The plugin's handles of `devices`, in the same order.
    device_handles: Vec<NonNull<PJRT_Device>>,
    launches: RwLock<()>,
    /// Whether a program of several devices is at work, and where others wait for it.
    busy: Mutex<bool>,
    idle: Condvar,
}

/// The right of a program of several devices to be at work, given back when it is dropped.
pub(crate) struct Turn(Client);

impl Drop for Turn {
    fn drop(&mut self) {
        let inner = &self.0.inner;
        *inner.busy.lock().unwrap_or_else(PoisonError::into_inner) = false;
        inner.idle.notify_one();
    }
}

/// What a launch holds while it hands its inputs over.
pub(crate) enum LaunchGuard<'a> {
    /// Of a program of several devices.
    Alone(#[allow(dead_code)] RwLockWriteGuard<'a, ()>),
    /// Of what takes buffers away.
    Shared(#[allow(dead_code)] RwLockReadGuard<'a, ()>),
    /// Of what does neither.
    None,
}

/// The client that this process has to free.
struct Handle {
    plugin: &'static Plugin,
    raw: NonNull<PJRT_Client>,
}

// SAFETY: PJRT clients may be used and freed from any thread; the device handles point to constant
// data of the client.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Handle {
    fn drop(&mut self) {
        let (plugin, raw) = (self.plugin, Raw(self.raw));
        let destroy = move || {
            let Raw(raw) = { raw };
            let mut args = Args::<PJRT_Client_Destroy_Args>::new();
            args.client = raw.as_ptr();
            // SAFETY: this was the client's only owner, and everything made of it holds a `Client`.
            let _ = unsafe { plugin.api().call(&mut args) };
        };
        if !event::in_callback() {
            return destroy();
        }
        // The thread may be one of the client's own, which the client's end waits for. Where there
        // is no thread to be had the client stays: better than to wait for ever.
        let _ = thread::spawn("pjrt_client_end", destroy);
    }
}

/// A client's handle on its way to another thread.
struct Raw(NonNull<PJRT_Client>);

// SAFETY: PJRT clients may be freed from any thread.
unsafe impl Send for Raw {}

/// One device of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The id that device assignments name it by.
    pub id: i32,
    /// The vendor's name for this kind of device, `"cpu"` or `"NVIDIA H100 80GB HBM3"`.
    pub kind: String,
    /// Whether this process can use it.
    pub addressable: bool,
    /// The hardware's number, such as the CUDA ordinal; `None` where the platform has none.
    pub local_hardware_id: Option<i32>,
    /// What the platform writes of it into its own error messages.
    pub debug_string: String,
}

/// One memory that devices of a client can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    pub id: i32,
    /// Such as `"device"`, `"pinned_host"` or `"unpinned_host"`.
    pub kind: String,
    /// The ids of the devices that can use it.
    pub devices: Vec<i32>,
    /// The ids of those among them that put buffers there unless told otherwise.
    pub default_of: Vec<i32>,
    /// What the platform writes of it into its own error messages.
    pub debug_string: String,
}

impl Client {
    /// Brings up a client. The options are the plugin's own, such as
    /// `("cpu_device_count", Int64(2))` of the CPU plugin.
    ///
    /// What becomes of an option that the plugin does not know is the plugin's choice: of the CPU
    /// plugins that the tests run on, PJRT 0.115 refuses it and names it, 0.106 ignores it.
    ///
    /// # Errors
    /// [`Error::CreateOption`], [`Error::Pjrt`] with the plugin's words, [`Error::MissingFunction`].
    pub fn new(plugin: &'static Plugin, options: &[(String, NamedValue)]) -> Result<Self, Error> {
        check_options(options)?;
        let lent = named_value::to_plugin(options);
        let mut args = Args::<PJRT_Client_Create_Args>::new();
        args.create_options = lent.as_ptr();
        args.num_options = lent.len();
        // SAFETY: the options outlive the call. There are no callbacks: a client of one process
        // needs no key-value store.
        unsafe { plugin.api().call(&mut args) }?;
        let raw = NonNull::new(args.client).ok_or(Error::NullResult {
            name: "PJRT_Client_Create",
            what: "client",
        })?;
        let handle = Handle { plugin, raw };
        let (devices, device_handles) = handle.devices()?;
        Ok(Self {
            inner: Arc::new(Inner {
                platform_name: handle.platform_name()?,
                platform_version: handle.platform_version()?,
                process_index: handle.process_index()?,
                devices,
                device_handles,
                handle,
                launches: RwLock::new(()),
                busy: Mutex::new(false),
                idle: Condvar::new(),
            }),
        })
    }

    /// The plugin that the client is of.
    pub fn plugin(&self) -> &'static Plugin {
        self.inner.handle.plugin
    }

    /// The platform's name, such as `"cpu"` or `"cuda"`.
    pub fn platform_name(&self) -> &str {
        &self.inner.platform_name
    }

    /// The platform's version, for people to read.
    pub fn platform_version(&self) -> &str {
        &self.inner.platform_version
    }

    /// The number of this process among those that share the devices; 0 where there is one only.
    pub fn process_index(&self) -> i32 {
        self.inner.process_index
    }

    /// All devices, also those of other processes.
    pub fn devices(&self) -> &[Device] {
        &self.inner.devices
    }

    /// The memories that the devices of this process can use.
    ///
    /// # Errors
    /// [`Error::Pjrt`], or [`Error::MissingFunction`] of a plugin that does not tell.
    pub fn memories(&self) -> Result<Vec<Memory>, Error> {
        let api = self.plugin().api();
        let mut args = Args::<PJRT_Client_AddressableMemories_Args>::new();
        args.client = self.raw().as_ptr();
        // SAFETY: the client is alive, and the list is the client's.
        let memories = unsafe {
            api.call(&mut args)?;
            slice(args.addressable_memories, args.num_addressable_memories)
        };
        let mut defaults = Vec::new();
        for (device, handle) in self.devices().iter().zip(&self.inner.device_handles) {
            let mut args = Args::<PJRT_Device_DefaultMemory_Args>::new();
            args.device = handle.as_ptr();
            // SAFETY: the device lives as long as the client. One of another process has none.
            if device.addressable && unsafe { api.call(&mut args) }.is_ok() {
                defaults.push((args.memory, device.id));
            }
        }
        memories
            .iter()
            .filter_map(|&memory| NonNull::new(memory))
            .map(|memory| {
                let default_of = defaults.iter().filter(|(of, _)| *of == memory.as_ptr());
                self.memory(memory, default_of.map(|(_, id)| *id).collect())
            })
            .collect()
    }

    fn memory(&self, memory: NonNull<PJRT_Memory>, default_of: Vec<i32>) -> Result<Memory, Error> {
        let api = self.plugin().api();
        let mut id = Args::<PJRT_Memory_Id_Args>::new();
        id.memory = memory.as_ptr();
        let mut devices = Args::<PJRT_Memory_AddressableByDevices_Args>::new();
        devices.memory = memory.as_ptr();
        let mut debug = Args::<PJRT_Memory_DebugString_Args>::new();
        debug.memory = memory.as_ptr();
        // SAFETY: the memory lives as long as the client, and its list and text as long as it.
        unsafe {
            api.call(&mut id)?;
            api.call(&mut devices)?;
            api.call(&mut debug)?;
            let handles = slice(devices.devices, devices.num_devices);
            Ok(Memory {
                id: id.id,
                kind: self.memory_kind(memory)?,
                devices: handles
                    .iter()
                    .filter_map(|&handle| self.device_id(handle))
                    .collect(),
                default_of,
                debug_string: lossy(debug.debug_string, debug.debug_string_size),
            })
        }
    }

    /// The kind of a memory of this client.
    pub(crate) fn memory_kind(&self, memory: NonNull<PJRT_Memory>) -> Result<String, Error> {
        let mut args = Args::<PJRT_Memory_Kind_Args>::new();
        args.memory = memory.as_ptr();
        // SAFETY: the memory lives as long as the client, and the text as long as it.
        unsafe {
            self.plugin().api().call(&mut args)?;
            Ok(lossy(args.kind, args.kind_size))
        }
    }

    /// The platform's name in XLA's registry of FFI handlers, which is another one than PJRT's.
    pub fn ffi_platform(&self) -> &str {
        match self.platform_name() {
            name if name.eq_ignore_ascii_case("cpu") => "Host",
            name if name.eq_ignore_ascii_case("cuda") => "CUDA",
            name if name.eq_ignore_ascii_case("rocm") => "ROCM",
            name => name,
        }
    }

    /// Compiles an MLIR module, given as text or bytecode.
    ///
    /// Takes the stack that the module's operation chains need: call it on a thread of
    /// [`crate::thread`]'s.
    ///
    /// # Errors
    /// [`Error::CompileOptions`], or [`Error::Pjrt`] with the compiler's words.
    pub fn compile(&self, program: &[u8], options: &CompileOptions) -> Result<Executable, Error> {
        Executable::compile(self, program, options)
    }

    /// Loads an executable that [`Executable::serialize`] wrote, without compiling.
    ///
    /// The bytes are taken only if they are whole and undamaged, and were written by this version of
    /// the package, with the same build of the plugin, on the same kind of processor and devices,
    /// for devices that this client has. They are not safe from someone who wants to do harm: who
    /// can write them can run code in this process.
    ///
    /// The handlers of custom calls are looked up again by their names, so they have to be
    /// registered before.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::PluginUnreadable`], [`Error::Pjrt`] with the plugin's words,
    /// also for a handler that is missing, [`Error::MissingFunction`].
    pub fn deserialize(&self, bytes: &[u8]) -> Result<Executable, Error> {
        Executable::deserialize(self, serialized::read(self, bytes)?)
    }

    /// Holds off what would break a launch on several devices half-way.
    ///
    /// A plugin that refuses one device's inputs when others have started leaves those waiting for it
    /// for ever, and so does one that starts two programs with collectives in another order on each
    /// device. So a launch on several devices goes alone: no other one, and nothing that deletes or
    /// donates a buffer, comes between its checks and its start.
    pub(crate) fn launch_guard(&self, devices: usize, takes_buffers: bool) -> LaunchGuard<'_> {
        let launches = &self.inner.launches;
        if devices > 1 {
            LaunchGuard::Alone(launches.write().unwrap_or_else(PoisonError::into_inner))
        } else if takes_buffers {
            LaunchGuard::Shared(launches.read().unwrap_or_else(PoisonError::into_inner))
        } else {
            LaunchGuard::None
        }
    }

    /// Waits until no other program of several devices is at work, where devices are threads of one
    /// pool: programs that wait in collectives, each for a thread that another one has, would wait for
    /// ever, and XLA ends the process over it. `None` for a program of one device, and elsewhere.
    pub(crate) fn turn(&self, devices: usize) -> Option<Turn> {
        if devices < 2 || self.ffi_platform() != "Host" {
            return None;
        }
        let inner = &self.inner;
        let mut busy = inner.busy.lock().unwrap_or_else(PoisonError::into_inner);
        while *busy {
            busy = inner
                .idle
                .wait(busy)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *busy = true;
        Some(Turn(self.clone()))
    }

    pub(crate) fn raw(&self) -> NonNull<PJRT_Client> {
        self.inner.handle.raw
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The handle of an addressable device.
    pub(crate) fn device_handle(&self, id: i32) -> Result<NonNull<PJRT_Device>, Error> {
        let devices = || self.devices().iter().zip(&self.inner.device_handles);
        devices()
            .find(|(device, _)| device.id == id && device.addressable)
            .map(|(_, &handle)| handle)
            .ok_or_else(|| Error::NoSuchDevice {
                id,
                available: devices()
                    .filter(|(device, _)| device.addressable)
                    .map(|(device, _)| device.id)
                    .collect(),
            })
    }

    /// The id of a device of this client by its handle.
    pub(crate) fn device_id(&self, handle: *mut PJRT_Device) -> Option<i32> {
        let handles = &self.inner.device_handles;
        let index = handles.iter().position(|known| known.as_ptr() == handle)?;
        Some(self.devices().get(index)?.id)
    }
}

/// The most devices that a CPU client is asked for. Each has threads of its own; 100,000 take the
/// plugin minutes.
const MOST_CPU_DEVICES: i64 = 1_024;

/// Refuses what CPU plugins do not check: a count of another type or below zero ends the process,
/// one beyond 32 bits is cut, and with no device at all nothing runs.
fn check_options(options: &[(String, NamedValue)]) -> Result<(), Error> {
    for (name, value) in options {
        if name != "cpu_device_count" || matches!(value, NamedValue::Int64(1..=MOST_CPU_DEVICES)) {
            continue;
        }
        return Err(Error::CreateOption {
            name: name.clone(),
            reason: format!("takes an Int64 from 1 to {MOST_CPU_DEVICES}, {value:?} was given"),
        });
    }
    Ok(())
}

impl Handle {
    fn platform_name(&self) -> Result<String, Error> {
        let mut args = Args::<PJRT_Client_PlatformName_Args>::new();
        args.client = self.raw.as_ptr();
        // SAFETY: the client is alive, and the text is the client's.
        unsafe {
            self.plugin.api().call(&mut args)?;
            Ok(lossy(args.platform_name, args.platform_name_size))
        }
    }

    fn platform_version(&self) -> Result<String, Error> {
        let mut args = Args::<PJRT_Client_PlatformVersion_Args>::new();
        args.client = self.raw.as_ptr();
        // SAFETY: the client is alive, and the text is the client's.
        unsafe {
            self.plugin.api().call(&mut args)?;
            Ok(lossy(args.platform_version, args.platform_version_size))
        }
    }

    fn process_index(&self) -> Result<i32, Error> {
        let mut args = Args::<PJRT_Client_ProcessIndex_Args>::new();
        args.client = self.raw.as_ptr();
        // SAFETY: the client is alive.
        unsafe { self.plugin.api().call(&mut args) }?;
        Ok(args.process_index)
    }

    fn devices(&self) -> Result<(Vec<Device>, Vec<NonNull<PJRT_Device>>), Error> {
        let mut args = Args::<PJRT_Client_Devices_Args>::new();
        args.client = self.raw.as_ptr();
        // SAFETY: the client is alive, and the list is the client's.
        let handles = unsafe {
            self.plugin.api().call(&mut args)?;
            slice(args.devices, args.num_devices)
        };
        handles
            .iter()
            .filter_map(|&handle| NonNull::new(handle))
            .map(|handle| Ok((self.device(handle)?, handle)))
            .collect()
    }

    fn device(&self, handle: NonNull<PJRT_Device>) -> Result<Device, Error> {
        let api = self.plugin.api();
        let device = handle.as_ptr();

        let mut addressable = Args::<PJRT_Device_IsAddressable_Args>::new();
        addressable.device = device;
        let mut hardware = Args::<PJRT_Device_LocalHardwareId_Args>::new();
        hardware.device = device;
        let mut description = Args::<PJRT_Device_GetDescription_Args>::new();
        description.device = device;
        // SAFETY: the device lives as long as the client.
        let local_hardware_id = unsafe {
            api.call(&mut addressable)?;
            api.call(&mut description)?;
            // By the header -1 is "undefined"; a device of another process has none at all.
            let known = api.call(&mut hardware).is_ok() && hardware.local_hardware_id >= 0;
            known.then_some(hardware.local_hardware_id)
        };

        let mut id = Args::<PJRT_DeviceDescription_Id_Args>::new();
        id.device_description = description.device_description;
        let mut kind = Args::<PJRT_DeviceDescription_Kind_Args>::new();
        kind.device_description = description.device_description;
        let mut debug = Args::<PJRT_DeviceDescription_DebugString_Args>::new();
        debug.device_description = description.device_description;
        // SAFETY: the description lives as long as the device, and the texts as long as it.
        unsafe {
            api.call(&mut id)?;
            api.call(&mut kind)?;
            api.call(&mut debug)?;
            Ok(Device {
                id: id.id,
                kind: lossy(kind.device_kind, kind.device_kind_size),
                addressable: addressable.is_addressable,
                local_hardware_id,
                debug_string: lossy(debug.debug_string, debug.debug_string_size),
            })
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Client")
            .field("platform_name", &self.inner.platform_name)
            .field("devices", &self.inner.devices.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use crate::test_support::{client, cpu_plugin, ADD};

    #[test]
    fn a_client_names_its_platform() {
        let client = client();
        assert_eq!(client.platform_name(), "cpu");
        assert_eq!(client.ffi_platform(), "Host");
        assert_eq!(client.process_index(), 0);
        assert!(!client.platform_version().is_empty());
        assert!(std::ptr::eq(client.plugin(), cpu_plugin()));
    }

    #[test]
    fn the_create_options_reach_the_plugin() {
        let options = [("cpu_device_count".to_owned(), NamedValue::Int64(2))];
        let client = Client::new(cpu_plugin(), &options).unwrap();
        let ids: Vec<i32> = client.devices().iter().map(|device| device.id).collect();
        assert_eq!(ids, vec![0, 1]);
        assert!(client.devices().iter().all(|device| device.addressable));
        assert!(client.devices().iter().all(|device| device.kind == "cpu"));
    }

    #[test]
    fn a_device_count_that_would_end_the_process_is_refused() {
        let message = |value: NamedValue| {
            let options = [("cpu_device_count".to_owned(), value)];
            Client::new(cpu_plugin(), &options).unwrap_err().to_string()
        };
        assert_eq!(
            message(NamedValue::String("two".to_owned())),
            "create option cpu_device_count: takes an Int64 from 1 to 1024, String(\"two\") was given"
        );
        assert!(message(NamedValue::Int64(-1)).ends_with("Int64(-1) was given"));
        assert!(message(NamedValue::Int64(0)).ends_with("Int64(0) was given"));
        assert!(message(NamedValue::Int64(i64::MAX)).contains("from 1 to 1024"));
    }

    #[test]
    fn an_unknown_option_is_ignored_or_gets_the_plugins_words() {
        let options = [("no_such_option".to_owned(), NamedValue::Bool(true))];
        match Client::new(cpu_plugin(), &options) {
            Ok(client) => assert_eq!(client.platform_name(), "cpu"),
            Err(Error::Pjrt { code, message }) => {
                assert_eq!(code, ErrorCode::InvalidArgument);
                assert!(message.contains("no_such_option"), "{message}");
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn an_executable_keeps_its_client_alive() {
        let client = Client::new(cpu_plugin(), &[]).unwrap();
        let executable = client
            .compile(ADD.as_bytes(), &CompileOptions::default())
            .unwrap();
        drop(client);
        assert_eq!(executable.client().platform_name(), "cpu");
        assert_eq!(executable.outputs().len(), 1);
    }

    #[test]
    fn a_device_that_is_not_there_is_named() {
        let error = client().device_handle(1_000).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the client has no addressable device 1000;"),
            "{error}"
        );
    }
}

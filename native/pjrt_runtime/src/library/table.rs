//! The table in which a library says what handlers it has. The layouts are those of
//! `include/exla_custom_call.h`, which explains them.

use std::collections::HashSet;
use std::ffi::{c_char, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;

use super::memory::Memory;
use super::{Handler, Stages, StateType};

/// What the table is exported as.
pub(crate) const SYMBOL: &str = "exla_custom_call_library";

/// `EXLA_CUSTOM_CALL_ABI`.
const ABI: u32 = 1;

/// More than any library has; a larger number is a broken one.
const MOST_HANDLERS: usize = 65_536;
/// The longest name of a target, in bytes.
const LONGEST_TARGET: usize = 65_536;
/// The longest name of a platform, in bytes.
const LONGEST_PLATFORM: usize = 256;
/// The longest name of a state's type, in bytes.
const LONGEST_TYPE: usize = 4_096;
/// The largest struct that a later version of the table may have.
const LARGEST_STRUCT: usize = 4_096;

/// `EXLA_CustomCall_Library`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawLibrary {
    struct_size: usize,
    abi: u32,
    reserved: u32,
    handler_size: usize,
    handler_count: usize,
    handlers: *const c_void,
}

/// `EXLA_CustomCall_Handler`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawHandler {
    target: *const c_char,
    target_size: usize,
    platform: *const c_char,
    platform_size: usize,
    instantiate: *mut c_void,
    prepare: *mut c_void,
    initialize: *mut c_void,
    execute: *mut c_void,
    traits: u32,
    reserved: u32,
    state: *const c_void,
}

/// `EXLA_CustomCall_State`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawState {
    struct_size: usize,
    name: *const c_char,
    name_size: usize,
    type_id: *mut c_void,
    type_info: *mut c_void,
}

// The sizes that the header states.
const _: () = {
    assert!(size_of::<RawLibrary>() == 40);
    assert!(size_of::<RawHandler>() == 80);
    assert!(offset_of!(RawHandler, traits) == 64);
    assert!(size_of::<RawState>() == 40);
};

/// A handler in a library's table.
#[derive(Clone, Debug)]
pub struct TableEntry {
    /// The target that custom calls name, any bytes.
    pub target: Vec<u8>,
    /// The platform by its name in XLA's registry of handlers, such as `Host` or `CUDA`.
    pub platform: String,
    /// The functions.
    pub stages: Stages,
}

/// Reads the table at an address. `origin` says in messages where the handler of a target is from.
///
/// What the table points to is followed only into memory of shared objects, so that a broken table is an error
/// and no crash; whether a function is a handler cannot be seen.
pub(super) fn read(
    memory: &Memory,
    address: *const c_void,
    origin: impl Fn(&str) -> String,
) -> Result<Vec<TableEntry>, String> {
    let head = value::<usize>(memory, address, "the table")?;
    if head < size_of::<RawLibrary>() || head > LARGEST_STRUCT {
        return Err(format!(
            "its struct_size is {head}, expected {} or a little more",
            size_of::<RawLibrary>()
        ));
    }
    let library = value::<RawLibrary>(memory, address, "the table")?;
    if library.abi != ABI {
        return Err(format!(
            "it is of version {} of the table's layout, and version {ABI} is read here",
            library.abi
        ));
    }
    let (size, count) = (library.handler_size, library.handler_count);
    if size < size_of::<RawHandler>()
        || size > LARGEST_STRUCT
        || !size.is_multiple_of(align_of::<RawHandler>())
    {
        return Err(format!(
            "its handler_size is {size}, expected {} or a little more",
            size_of::<RawHandler>()
        ));
    }
    if count > MOST_HANDLERS {
        return Err(format!(
            "it has {count} handlers, more than {MOST_HANDLERS}"
        ));
    }
    let mut entries = Vec::with_capacity(count);
    let mut seen = HashSet::with_capacity(count);
    for index in 0..count {
        let at = library.handlers.wrapping_byte_add(index * size);
        let entry = handler(memory, at, &origin)
            .map_err(|reason| format!("handler {index} of {count}: {reason}"))?;
        if !seen.insert((entry.target.clone(), entry.platform.to_ascii_lowercase())) {
            return Err(format!(
                "handler {index} of {count}: target {:?} is there twice for platform {}",
                String::from_utf8_lossy(&entry.target),
                entry.platform
            ));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn handler(
    memory: &Memory,
    address: *const c_void,
    origin: &impl Fn(&str) -> String,
) -> Result<TableEntry, String> {
    let raw = value::<RawHandler>(memory, address, "the handler's description")?;
    let target = bytes(
        memory,
        raw.target,
        raw.target_size,
        LONGEST_TARGET,
        "target",
    )?;
    let platform = bytes(
        memory,
        raw.platform,
        raw.platform_size,
        LONGEST_PLATFORM,
        "platform",
    )?;
    if !platform.iter().all(u8::is_ascii_graphic) {
        return Err(format!(
            "the platform \"{}\" is no name of printable ASCII characters",
            platform.escape_ascii()
        ));
    }
    let origin: std::sync::Arc<str> = origin(&String::from_utf8_lossy(&target)).into();
    let stage = |address: *mut c_void, stage: &str| match NonNull::new(address) {
        None => Ok(None),
        Some(function) if memory.is_code(address.addr()) => Ok(Some(Handler {
            function,
            origin: origin.clone(),
        })),
        Some(_) => Err(format!("{stage} is {address:?}, where no code is")),
    };
    let state = if raw.state.is_null() {
        None
    } else {
        Some(state(memory, raw.state).map_err(|reason| format!("state: {reason}"))?)
    };
    Ok(TableEntry {
        platform: String::from_utf8_lossy(&platform).into_owned(),
        stages: Stages {
            instantiate: stage(raw.instantiate, "instantiate")?,
            prepare: stage(raw.prepare, "prepare")?,
            initialize: stage(raw.initialize, "initialize")?,
            execute: stage(raw.execute, "execute")?
                .ok_or("there is no function for the execute stage")?,
            state,
            traits: raw.traits,
        },
        target,
    })
}

fn state(memory: &Memory, address: *const c_void) -> Result<StateType, String> {
    let raw = value::<RawState>(memory, address, "its description")?;
    if raw.struct_size < size_of::<RawState>() {
        return Err(format!(
            "its struct_size is {}, expected {} or more",
            raw.struct_size,
            size_of::<RawState>()
        ));
    }
    let name = bytes(memory, raw.name, raw.name_size, LONGEST_TYPE, "name")?;
    StateType::checked(memory, &name, raw.type_id, raw.type_info)
        .map_err(|(field, reason)| format!("{field}: {reason}"))
}

/// A type of which any bytes are a value.
trait Plain: Copy {}
impl Plain for usize {}
impl Plain for RawLibrary {}
impl Plain for RawHandler {}
impl Plain for RawState {}

/// Reads a value from a library's data.
fn value<T: Plain>(memory: &Memory, address: *const c_void, what: &str) -> Result<T, String> {
    let fits = memory.is_readable(address.addr(), size_of::<T>());
    if !fits || !address.addr().is_multiple_of(align_of::<T>()) {
        return Err(format!("{what} is at {address:?}, where no data is"));
    }
    // SAFETY: the memory is mapped and stays so, it is aligned, and any bytes are a T.
    Ok(unsafe { address.cast::<T>().read() })
}

/// Copies a name from a library's data.
fn bytes(
    memory: &Memory,
    address: *const c_char,
    size: usize,
    longest: usize,
    what: &str,
) -> Result<Vec<u8>, String> {
    if size == 0 || size > longest {
        return Err(format!(
            "the {what} has {size} bytes, expected 1 to {longest}"
        ));
    }
    if !memory.is_readable(address.addr(), size) {
        return Err(format!("the {what} is at {address:?}, where no data is"));
    }
    // SAFETY: the memory is mapped and stays so.
    Ok(unsafe { std::slice::from_raw_parts(address.cast::<u8>(), size) }.to_vec())
}

#[cfg(test)]
mod tests;

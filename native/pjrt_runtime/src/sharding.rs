//! How a compiled program spreads its parameters and results over devices.
//!
//! The layouts are those of `xla/pjrt/c/pjrt_c_api_shardings_extension.h`.

use std::ffi::c_char;
use std::mem::offset_of;
use std::ptr::{null, null_mut, NonNull};

use pjrt_sys::*;
use prost::Message;

use crate::api::{slice, Api};
use crate::args::{api_structs, Args};
use crate::extension;
use crate::Error;

/// Where the parts of one tensor are. Devices are logical ones: places in the program's device assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// The whole tensor is on every device.
    Replicated,
    /// The whole tensor is on one device.
    Maximal(i64),
    /// The program was written for the parts, and knows of no whole.
    Manual,
    /// XLA does not say, or says it in a form that this crate does not read.
    Unknown,
    /// The tensor is cut along its dimensions.
    Tiled {
        /// Into how many parts, for each dimension of the tensor.
        dimensions: Vec<i64>,
        /// The device of each part, the parts in row-major order: by the dimensions, then by the groups.
        devices: Vec<i64>,
        /// How devices that have the same part differ.
        groups: Vec<Group>,
    },
}

/// Devices that have the same part of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub kind: GroupKind,
    /// How many they are.
    pub size: i64,
}

/// What the same part is on several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// A copy.
    Replicated,
    /// What the program makes of it.
    Manual,
    /// A summand: the part is the sum over the devices.
    Unreduced,
}

/// What is sharded: the extension has a function for each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sharded {
    Parameter,
    Result,
}

/// `PJRT_Shardings_Extension`.
#[repr(C)]
struct ShardingsExtension {
    base: PJRT_Extension_Base,
    parameter_shardings: Option<ShardingsFunction>,
    output_shardings: Option<ShardingsFunction>,
}

type ShardingsFunction = unsafe extern "C" fn(*mut ShardingsArgs) -> *mut PJRT_Error;

/// `PJRT_Shardings_PJRT_Executable_ParameterShardings_Args`, and the one of the outputs, which is alike.
#[repr(C)]
struct ShardingsArgs {
    struct_size: usize,
    extension_start: *mut PJRT_Extension_Base,
    executable: *mut PJRT_Executable,
    num_shardings: usize,
    shardings: *const *const c_char,
    sharding_sizes: *const usize,
}

impl Default for ShardingsArgs {
    fn default() -> Self {
        Self {
            struct_size: 0,
            extension_start: null_mut(),
            executable: null_mut(),
            num_shardings: 0,
            shardings: null(),
            sharding_sizes: null(),
        }
    }
}

api_structs!(ShardingsArgs);

/// The shardings of all parameters or of all results; `None` where the plugin does not tell.
///
/// # Safety
/// `executable` is a live executable of the plugin.
pub(crate) unsafe fn of(
    api: &Api,
    executable: NonNull<PJRT_Executable>,
    sharded: Sharded,
) -> Result<Option<Vec<Sharding>>, Error> {
    let Some(function) = function(api, sharded) else {
        return Ok(None);
    };
    let mut args = Args::<ShardingsArgs>::new();
    args.executable = executable.as_ptr();
    // SAFETY: the plugin's function for these arguments; the caller vouches for the executable.
    let error = unsafe { function(args.as_mut_ptr()) };
    if let Some(error) = NonNull::new(error) {
        // SAFETY: the plugin returned the error to this caller.
        return Err(unsafe { api.take_error(error) });
    }
    if args.shardings.is_null() {
        return Ok(None);
    }
    // SAFETY: the lists have one entry for each, and live as long as the executable.
    let (messages, sizes) = unsafe {
        (
            slice(args.shardings, args.num_shardings),
            slice(args.sharding_sizes, args.num_shardings),
        )
    };
    // A null message would be read as one without fields, which says that the tensor is replicated.
    if sizes.len() != messages.len() || messages.iter().any(|message| message.is_null()) {
        return Err(Error::NullResult {
            name: "the PJRT Shardings extension",
            what: "message for each sharding",
        });
    }
    let messages = messages.iter().zip(sizes).map(|(&message, &size)| {
        // SAFETY: as above; each message is of its size.
        unsafe { slice(message.cast::<u8>(), size) }
    });
    read(sharded, messages).map(Some)
}

fn function(api: &Api, sharded: Sharded) -> Option<ShardingsFunction> {
    let offset = match sharded {
        Sharded::Parameter => offset_of!(ShardingsExtension, parameter_shardings),
        Sharded::Result => offset_of!(ShardingsExtension, output_shardings),
    };
    let (base, found) =
        extension::all(api).find(|(_, found)| found.kind == extension::SHARDINGS)?;
    if found.struct_size < offset + size_of::<ShardingsFunction>() {
        return None;
    }
    let field = base.as_ptr().cast::<Option<ShardingsFunction>>();
    // SAFETY: the kind says that this is the Shardings extension, its size that it has the field.
    unsafe { field.byte_add(offset).read() }
}

/// The devices in all shardings of one answer. A few bytes of a message can stand for any number of
/// devices, and this is more than the largest programs have.
const MOST_DEVICES: usize = 1 << 22;

/// Reads serialized messages of `xla.OpSharding`.
fn read<'a>(
    sharded: Sharded,
    messages: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<Sharding>, Error> {
    let mut shardings = Vec::new();
    let mut room = MOST_DEVICES;
    for message in messages {
        OpSharding::decode(message)
            .map_err(|error| error.to_string())
            .and_then(|message| message.flatten(&mut room, &mut shardings))
            .map_err(|reason| Error::Sharding {
                what: match sharded {
                    Sharded::Parameter => "parameter",
                    Sharded::Result => "result",
                },
                index: shardings.len(),
                reason,
            })?;
    }
    Ok(shardings)
}

/// `xla.OpSharding`, by the numbers of its fields in `xla/xla_data.proto`. The message of `pjrt-sys`
/// does not have the last one yet, which replaces all others, and without them reads as replicated.
#[derive(Clone, PartialEq, Message)]
struct OpSharding {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(int64, repeated, tag = "3")]
    dimensions: Vec<i64>,
    #[prost(int64, repeated, tag = "4")]
    devices: Vec<i64>,
    #[prost(message, repeated, tag = "5")]
    tuple: Vec<OpSharding>,
    #[prost(bool, tag = "6")]
    replicate_on_last_dimension: bool,
    #[prost(int32, repeated, tag = "8")]
    last_dimensions: Vec<i32>,
    #[prost(int64, repeated, tag = "9")]
    iota_dimensions: Vec<i64>,
    #[prost(int32, repeated, tag = "10")]
    iota_permutation: Vec<i32>,
    #[prost(bytes = "vec", optional, tag = "14")]
    named: Option<Vec<u8>>,
}

// `xla.OpSharding.Type`; the last came later than the messages of `pjrt-sys`.
const REPLICATED: i32 = 0;
const MAXIMAL: i32 = 1;
const TUPLE: i32 = 2;
const OTHER: i32 = 3;
const MANUAL: i32 = 4;
const UNREDUCED: i32 = 6;

impl OpSharding {
    /// Adds the sharding, or those of a tuple's parts. Tuples are no deeper than `prost` reads them.
    fn flatten(self, room: &mut usize, shardings: &mut Vec<Sharding>) -> Result<(), String> {
        if self.named.is_none() && self.kind == TUPLE {
            return self
                .tuple
                .into_iter()
                .try_for_each(|part| part.flatten(room, shardings));
        }
        shardings.push(self.read(room)?);
        Ok(())
    }

    fn read(self, room: &mut usize) -> Result<Sharding, String> {
        if self.named.is_some() {
            return Ok(Sharding::Unknown);
        }
        match self.kind {
            REPLICATED => Ok(Sharding::Replicated),
            MANUAL => Ok(Sharding::Manual),
            MAXIMAL => match self.devices[..] {
                [device] => Ok(Sharding::Maximal(device)),
                _ => Err(format!("maximal on {} devices", self.devices.len())),
            },
            OTHER => self.tiled(room),
            _ => Ok(Sharding::Unknown),
        }
    }

    fn tiled(self, room: &mut usize) -> Result<Sharding, String> {
        let count = product(&self.dimensions)
            .filter(|count| count <= room)
            .ok_or_else(|| {
                format!(
                    "tiles {:?} are none, or with all others more than {MOST_DEVICES}",
                    self.dimensions
                )
            })?;
        *room -= count;
        let groups = self.groups()?;
        let devices = if self.iota_dimensions.is_empty() {
            self.devices
        } else if product(&self.iota_dimensions) == Some(count) {
            transposed_iota(&self.iota_dimensions, &self.iota_permutation)?
        } else {
            return Err(format!(
                "device numbers of shape {:?} for tiles {:?}",
                self.iota_dimensions, self.dimensions
            ));
        };
        if devices.len() != count {
            return Err(format!(
                "{} devices for tiles {:?}",
                devices.len(),
                self.dimensions
            ));
        }
        let mut dimensions = self.dimensions;
        dimensions.truncate(dimensions.len() - groups.len());
        Ok(Sharding::Tiled {
            dimensions,
            devices,
            groups,
        })
    }

    /// What the last dimensions mean, where they are not the tensor's.
    fn groups(&self) -> Result<Vec<Group>, String> {
        let kinds = match &self.last_dimensions[..] {
            [] if self.replicate_on_last_dimension => &[REPLICATED],
            kinds => kinds,
        };
        let first = self.dimensions.len().checked_sub(kinds.len());
        let sizes = first.and_then(|first| self.dimensions.get(first..));
        let sizes = sizes.ok_or_else(|| {
            format!(
                "{} groups in the dimensions {:?}",
                kinds.len(),
                self.dimensions
            )
        })?;
        let groups = kinds.iter().zip(sizes).map(|(&kind, &size)| {
            let kind = match kind {
                REPLICATED => GroupKind::Replicated,
                MANUAL => GroupKind::Manual,
                UNREDUCED => GroupKind::Unreduced,
                _ => return Err(format!("a group of type {kind}")),
            };
            Ok(Group { kind, size })
        });
        groups.collect()
    }
}

/// How many elements an array has; `None` where a dimension is none or the number too large.
fn product(dimensions: &[i64]) -> Option<usize> {
    dimensions.iter().try_fold(1usize, |product, &size| {
        let size = usize::try_from(size).ok().filter(|&size| size > 0)?;
        product.checked_mul(size)
    })
}

/// 0, 1, 2, ... in an array of these dimensions, read in the order of the permuted ones. Only for
/// dimensions whose product is bounded.
fn transposed_iota(dimensions: &[i64], permutation: &[i32]) -> Result<Vec<i64>, String> {
    let mut sorted = permutation.to_vec();
    sorted.sort_unstable();
    if sorted.len() != dimensions.len() || !sorted.iter().copied().eq(0..sorted.len() as i32) {
        return Err(format!("{permutation:?} permutes no {dimensions:?}"));
    }
    let mut strides = vec![1; dimensions.len()];
    for axis in (1..dimensions.len()).rev() {
        strides[axis - 1] = strides[axis] * dimensions[axis];
    }
    let axes = permutation.iter().map(|&axis| {
        let axis = axis as usize;
        (dimensions[axis], strides[axis])
    });
    // Each dimension multiplies what the dimensions before it made; of those with one element there may be many.
    let axes = axes.filter(|&(size, _)| size > 1);
    Ok(axes.fold(vec![0], |numbers, (size, stride)| {
        let steps = |number| (0..size).map(move |step| number + step * stride);
        numbers.into_iter().flat_map(steps).collect()
    }))
}

#[cfg(test)]
mod tests;

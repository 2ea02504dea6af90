//! What a plugin tells of a compiled program.

use std::mem::offset_of;
use std::ptr::NonNull;

use pjrt_sys::*;

use crate::api::{lossy, slice, Function};
use crate::args::{ApiStruct, Args};
use crate::client::Client;
use crate::element_type::{self, TensorType};
use crate::named_value::{self, NamedValue};
use crate::sharding::{self, Sharded, Sharding};
use crate::Error;

/// A program in a format that only compilers read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Such as `"hlo_with_config"`, a serialized `xla.HloModuleProtoWithConfig`.
    pub format: String,
    pub code: Vec<u8>,
}

/// How much memory a program takes, in bytes, by the compiler's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    pub generated_code_size: i64,
    pub argument_size: i64,
    pub output_size: i64,
    /// How much of the arguments is used again for outputs.
    pub alias_size: i64,
    /// Scratch space.
    pub temp_size: i64,
    pub host_generated_code_size: i64,
    pub host_argument_size: i64,
    pub host_output_size: i64,
    pub host_alias_size: i64,
    pub host_temp_size: i64,
    /// The most that is taken at any time; `None` of a plugin that is too old to tell.
    pub peak_memory: Option<i64>,
}

/// `PJRT_Executable_GetCompiledMemoryStats_Args` as newer headers have it.
#[repr(C)]
pub(crate) struct MemoryStatsArgs {
    known: PJRT_Executable_GetCompiledMemoryStats_Args,
    peak_memory: i64,
}

/// No plugin says so many bytes: what it leaves in a field that it does not know.
const UNWRITTEN: i64 = i64::MIN;

impl Default for MemoryStatsArgs {
    fn default() -> Self {
        Self {
            known: PJRT_Executable_GetCompiledMemoryStats_Args::default(),
            peak_memory: UNWRITTEN,
        }
    }
}

// SAFETY: the struct is repr(C), and the header puts `size_t struct_size` first. The plugin writes
// to the other fields alone, but for a nullable pointer; zeroes are valid in all of them.
unsafe impl ApiStruct for MemoryStatsArgs {
    fn size_field(&mut self) -> &mut usize {
        &mut self.known.struct_size
    }
}

impl Function for MemoryStatsArgs {
    const NAME: &'static str = "PJRT_Executable_GetCompiledMemoryStats";
    const OFFSET: usize = offset_of!(PJRT_Api, PJRT_Executable_GetCompiledMemoryStats);
}

/// The program's description that this process has to free.
pub(crate) struct Description {
    client: Client,
    raw: NonNull<PJRT_Executable>,
}

impl Drop for Description {
    fn drop(&mut self) {
        let mut args = Args::<PJRT_Executable_Destroy_Args>::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: this is the description's only owner, and its client is alive.
        let _ = unsafe { self.client.plugin().api().call(&mut args) };
    }
}

impl Description {
    /// Takes over a description that the plugin returned.
    ///
    /// # Safety
    /// `raw` is an executable of `client` that nobody else will free.
    pub(crate) unsafe fn from_raw(client: &Client, raw: NonNull<PJRT_Executable>) -> Self {
        Self {
            client: client.clone(),
            raw,
        }
    }

    pub(crate) fn name(&self) -> Result<String, Error> {
        let mut args = Args::<PJRT_Executable_Name_Args>::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the description is alive, and the text lives as long.
        unsafe {
            self.client.plugin().api().call(&mut args)?;
            Ok(lossy(args.executable_name, args.executable_name_size))
        }
    }

    pub(crate) fn num_replicas(&self) -> Result<usize, Error> {
        let mut args = Args::<PJRT_Executable_NumReplicas_Args>::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the description is alive.
        unsafe { self.client.plugin().api().call(&mut args) }?;
        Ok(args.num_replicas)
    }

    pub(crate) fn num_partitions(&self) -> Result<usize, Error> {
        let mut args = Args::<PJRT_Executable_NumPartitions_Args>::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the description is alive.
        unsafe { self.client.plugin().api().call(&mut args) }?;
        Ok(args.num_partitions)
    }

    pub(crate) fn outputs(&self) -> Result<Vec<TensorType>, Error> {
        let api = self.client.plugin().api();
        let mut number = Args::<PJRT_Executable_NumOutputs_Args>::new();
        number.executable = self.raw.as_ptr();
        let mut types = Args::<PJRT_Executable_OutputElementTypes_Args>::new();
        types.executable = self.raw.as_ptr();
        let mut shapes = Args::<PJRT_Executable_OutputDimensions_Args>::new();
        shapes.executable = self.raw.as_ptr();
        // SAFETY: the description is alive, and the lists live as long. One type and one rank are
        // listed for each output, and as many dimensions as the ranks sum up to.
        let (types, ranks, dimensions) = unsafe {
            api.call(&mut number)?;
            api.call(&mut types)?;
            api.call(&mut shapes)?;
            let ranks = slice(shapes.dim_sizes, shapes.num_outputs);
            (
                slice(types.output_types, types.num_output_types),
                ranks,
                slice(shapes.dims, ranks.iter().sum()),
            )
        };
        // `execute` gives the plugin a place for each of these, so the three have to agree.
        let differs = [types.len(), ranks.len()]
            .iter()
            .any(|&len| len != number.num_outputs);
        if differs {
            return Err(Error::NullResult {
                name: "PJRT_Executable_OutputDimensions",
                what: "type and shape for each output",
            });
        }
        let mut rest = dimensions;
        let outputs = types.iter().zip(ranks).map(|(&code, &rank)| {
            let (dimensions, behind) = rest.split_at(rank.min(rest.len()));
            rest = behind;
            Ok(TensorType {
                element_type: element_type::from_plugin(code)?,
                dimensions: dimensions.to_vec(),
            })
        });
        outputs.collect()
    }

    /// # Errors
    /// [`Error::MissingFunction`] or [`Error::Pjrt`].
    pub(crate) fn memory_stats(&self) -> Result<MemoryStats, Error> {
        let mut args = Args::<MemoryStatsArgs>::new();
        args.known.executable = self.raw.as_ptr();
        // SAFETY: the description is alive; the other fields are outputs.
        unsafe { self.client.plugin().api().call(&mut args) }?;
        let newer = |value: i64| (value != UNWRITTEN).then_some(value);
        let known = &args.known;
        Ok(MemoryStats {
            generated_code_size: known.generated_code_size_in_bytes,
            argument_size: known.argument_size_in_bytes,
            output_size: known.output_size_in_bytes,
            alias_size: known.alias_size_in_bytes,
            temp_size: known.temp_size_in_bytes,
            host_generated_code_size: known.host_generated_code_size_in_bytes,
            host_argument_size: known.host_argument_size_in_bytes,
            host_output_size: known.host_output_size_in_bytes,
            host_alias_size: known.host_alias_size_in_bytes,
            host_temp_size: known.host_temp_size_in_bytes,
            peak_memory: newer(args.peak_memory),
        })
    }

    pub(crate) fn cost_analysis(&self) -> Result<Vec<(String, NamedValue)>, Error> {
        let mut args = Args::<PJRT_Executable_GetCostAnalysis_Args>::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the description is alive, and the properties live as long.
        unsafe {
            self.client.plugin().api().call(&mut args)?;
            Ok(named_value::from_plugin(
                args.properties,
                args.num_properties,
            ))
        }
    }

    pub(crate) fn generated_code_size(&self) -> Result<i64, Error> {
        let mut args = Args::<PJRT_Executable_SizeOfGeneratedCodeInBytes_Args>::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the description is alive.
        unsafe { self.client.plugin().api().call(&mut args) }?;
        Ok(args.size_in_bytes)
    }

    pub(crate) fn fingerprint(&self) -> Result<Vec<u8>, Error> {
        let mut args = Args::<PJRT_Executable_Fingerprint_Args>::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the description is alive, and the bytes live as long.
        unsafe {
            self.client.plugin().api().call(&mut args)?;
            let (data, size) = (
                args.executable_fingerprint,
                args.executable_fingerprint_size,
            );
            Ok(slice(data.cast::<u8>(), size).to_vec())
        }
    }

    pub(crate) fn shardings(&self, sharded: Sharded) -> Result<Option<Vec<Sharding>>, Error> {
        // SAFETY: the description is alive.
        unsafe { sharding::of(self.client.plugin().api(), self.raw, sharded) }
    }

    /// The program in the plugin's own format.
    pub(crate) fn serialize(&self) -> Result<Vec<u8>, Error> {
        let mut args = Args::<PJRT_Executable_Serialize_Args>::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the description is alive. The bytes live until the deleter is called, once.
        unsafe {
            self.client.plugin().api().call(&mut args)?;
            let size = args.serialized_bytes_size;
            let bytes = slice(args.serialized_bytes.cast::<u8>(), size).to_vec();
            if let Some(delete) = args.serialized_executable_deleter {
                delete(args.serialized_executable);
            }
            Ok(bytes)
        }
    }

    pub(crate) fn optimized_program(&self) -> Result<Program, Error> {
        let api = self.client.plugin().api();
        let mut program = Args::<PJRT_Program>::new();
        let mut args = Args::<PJRT_Executable_OptimizedProgram_Args>::new();
        args.executable = self.raw.as_ptr();
        args.program = program.as_mut_ptr();
        // SAFETY: the description and the program are alive; a null code asks for the size.
        unsafe { api.call(&mut args) }?;
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        args.program = program.as_mut_ptr();
        // SAFETY: the code has room for as many bytes as were asked for.
        unsafe { api.call(&mut args) }?;
        // SAFETY: the format's name is the plugin's and lives as long as the description.
        let format = unsafe { lossy(program.format, program.format_size) };
        Ok(Program { format, code })
    }
}

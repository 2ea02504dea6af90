//! What a plugin tells of a compiled program.

use std::ptr::NonNull;

use pjrt_sys::*;

use crate::api::{lossy, slice};
use crate::args::Args;
use crate::client::Client;
use crate::element_type::{self, TensorType};
use crate::Error;

/// A program in a format that only compilers read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Such as `"hlo_with_config"`, a serialized `xla.HloModuleProtoWithConfig`.
    pub format: String,
    pub code: Vec<u8>,
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

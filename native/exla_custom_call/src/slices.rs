//! Host tensors cut into slices and put together again, without copies where there can be none.

use crate::{
    error::{Error, Kind},
    host,
    list::List,
};
use pjrt_runtime::slices::{self, Joined, Part, Slice};
use rustler::{Binary, Env, NifResult};

/// `{starts, sizes}`, with an element count for each dimension.
type Slices = List<(List<usize>, List<usize>)>;

fn read(slices: Slices) -> Vec<Slice> {
    slices
        .0
        .into_iter()
        .map(|(List(starts), List(sizes))| Slice { starts, sizes })
        .collect()
}

fn failed(error: pjrt_runtime::Error) -> Error {
    Error::Runtime(Kind::Buffer, error)
}

/// The binary of each slice. One that lies in the tensor in one piece is a part of its binary.
#[rustler::nif]
fn tensor_split<'a>(
    env: Env<'a>,
    binary: Binary<'a>,
    element_bytes: usize,
    dimensions: List<usize>,
    slices: Slices,
) -> NifResult<Result<Vec<Binary<'a>>, Error>> {
    split(env, binary, element_bytes, &dimensions, slices)
}

#[rustler::nif(schedule = "DirtyCpu")]
fn tensor_split_dirty<'a>(
    env: Env<'a>,
    binary: Binary<'a>,
    element_bytes: usize,
    dimensions: List<usize>,
    slices: Slices,
) -> NifResult<Result<Vec<Binary<'a>>, Error>> {
    split(env, binary, element_bytes, &dimensions, slices)
}

fn split<'a>(
    env: Env<'a>,
    binary: Binary<'a>,
    element_bytes: usize,
    dimensions: &[usize],
    slices: Slices,
) -> NifResult<Result<Vec<Binary<'a>>, Error>> {
    let parts = match slices::split(&binary, element_bytes, dimensions, &read(slices)) {
        Ok(parts) => parts,
        Err(error) => return Ok(Err(failed(error))),
    };
    let mut binaries: Vec<Binary> = Vec::with_capacity(parts.len());
    for part in parts {
        binaries.push(match part {
            Part::Range(range) if range.len() == binary.len() => binary,
            Part::Range(range) => binary.make_subbinary(range.start, range.len())?,
            Part::Copied(bytes) => host::vec_to_binary(env, bytes),
            Part::Same(index) => binaries[index],
        });
    }
    Ok(Ok(binaries))
}

/// The binary of the tensor whose slices the binaries are. Where the first is the whole tensor, it is that one.
#[rustler::nif]
fn tensor_join<'a>(
    env: Env<'a>,
    binaries: List<Binary<'a>>,
    element_bytes: usize,
    dimensions: List<usize>,
    slices: Slices,
) -> Result<Binary<'a>, Error> {
    join(env, &binaries, element_bytes, &dimensions, slices)
}

#[rustler::nif(schedule = "DirtyCpu")]
fn tensor_join_dirty<'a>(
    env: Env<'a>,
    binaries: List<Binary<'a>>,
    element_bytes: usize,
    dimensions: List<usize>,
    slices: Slices,
) -> Result<Binary<'a>, Error> {
    join(env, &binaries, element_bytes, &dimensions, slices)
}

fn join<'a>(
    env: Env<'a>,
    binaries: &[Binary<'a>],
    element_bytes: usize,
    dimensions: &[usize],
    slices: Slices,
) -> Result<Binary<'a>, Error> {
    let parts: Vec<&[u8]> = binaries.iter().map(Binary::as_slice).collect();
    let joined = slices::join(&parts, element_bytes, dimensions, &read(slices));
    Ok(match joined.map_err(failed)? {
        Joined::Part(index) => binaries[index],
        Joined::Copied(bytes) => host::vec_to_binary(env, bytes),
    })
}

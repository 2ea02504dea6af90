//! Host tensors cut into slices, one for each device, and put together again.
//!
//! All tensors are row-major. What lies in one piece is not copied at all, and the rest by the
//! longest runs of bytes that lie in one piece.

use std::collections::HashMap;
use std::ops::Range;

use crate::element_type::byte_count;
use crate::Error;

/// A box of elements in a tensor: for each dimension the first one, and how many they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    pub starts: Vec<usize>,
    pub sizes: Vec<usize>,
}

/// The bytes of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// They lie in one piece, here in the tensor.
    Range(Range<usize>),
    Copied(Vec<u8>),
    /// They are those of an earlier slice, the one with this index.
    Same(usize),
}

/// The bytes of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// They are those of the part with this index.
    Part(usize),
    Copied(Vec<u8>),
}

/// Cuts a tensor into slices, which may overlap.
///
/// # Errors
/// [`Error::Slices`] if the tensor's bytes do not fill its dimensions, or a slice is not inside.
pub fn split(
    data: &[u8],
    element_bytes: usize,
    dimensions: &[usize],
    slices: &[Slice],
) -> Result<Vec<Part>, Error> {
    let expected = tensor_bytes(element_bytes, dimensions)?;
    if data.len() != expected {
        return refuse(format!(
            "the tensor takes {expected} bytes, its binary has {}",
            data.len()
        ));
    }
    // All are checked before the first is copied.
    for (index, slice) in slices.iter().enumerate() {
        slice.check(index, dimensions)?;
    }
    let whole = Slice::whole(dimensions);
    let mut seen = HashMap::new();
    let parts = slices.iter().enumerate().map(|(index, slice)| {
        let first = *seen.entry(slice).or_insert(index);
        if first != index {
            return Part::Same(first);
        }
        let len = slice.bytes(element_bytes);
        if len == 0 {
            return Part::Range(0..0);
        }
        let copy = RunCopy::new(element_bytes, slice, &whole, slice);
        if copy.run == len {
            return Part::Range(copy.from..copy.from + len);
        }
        let mut bytes = vec![0; len];
        copy.execute(data, &mut bytes);
        Part::Copied(bytes)
    });
    Ok(parts.collect())
}

/// Puts a tensor together from the bytes of its slices. Where slices overlap, the first one counts.
///
/// # Errors
/// [`Error::Slices`] if the bytes of a part do not fill its slice, a slice is not inside the tensor,
/// or an element is in none.
pub fn join(
    parts: &[&[u8]],
    element_bytes: usize,
    dimensions: &[usize],
    slices: &[Slice],
) -> Result<Joined, Error> {
    let len = tensor_bytes(element_bytes, dimensions)?;
    if parts.len() != slices.len() {
        return refuse(format!(
            "there are {} slices and {} binaries; each slice has to have one",
            slices.len(),
            parts.len()
        ));
    }
    for (index, (part, slice)) in parts.iter().zip(slices).enumerate() {
        slice.check(index, dimensions)?;
        let expected = slice.bytes(element_bytes);
        if part.len() != expected {
            return refuse(format!(
                "slice {index} takes {expected} bytes, its binary has {}",
                part.len()
            ));
        }
    }
    let whole = Slice::whole(dimensions);
    if slices.first() == Some(&whole) {
        return Ok(Joined::Part(0));
    }
    // Before memory is taken: the parts that cover the tensor have as many bytes as it has.
    let pieces = cover(&whole, slices)?;
    let mut bytes = vec![0; len];
    for (index, piece) in pieces {
        RunCopy::new(element_bytes, &piece, &slices[index], &whole)
            .execute(parts[index], &mut bytes);
    }
    Ok(Joined::Copied(bytes))
}

/// Each piece of the tensor with the index of the first slice that has it. No two pieces overlap.
fn cover(whole: &Slice, slices: &[Slice]) -> Result<Vec<(usize, Slice)>, Error> {
    let mut pieces = Vec::new();
    let mut missing = vec![whole.clone()];
    missing.retain(|place| !place.sizes.contains(&0));
    for (index, slice) in slices.iter().enumerate() {
        if missing.is_empty() {
            break;
        }
        let mut rest = Vec::with_capacity(missing.len());
        for place in missing {
            match place.common(slice) {
                Some(common) => {
                    place.without(&common, &mut rest);
                    pieces.push((index, common));
                }
                None => rest.push(place),
            }
        }
        missing = rest;
    }
    match missing.first() {
        None => Ok(pieces),
        Some(Slice { starts, sizes }) => refuse(format!(
            "no slice has the elements that start at {starts:?} and are {sizes:?} in number; the slices have to \
             cover the whole tensor"
        )),
    }
}

impl Slice {
    fn whole(dimensions: &[usize]) -> Self {
        Self {
            starts: vec![0; dimensions.len()],
            sizes: dimensions.to_vec(),
        }
    }

    fn check(&self, index: usize, dimensions: &[usize]) -> Result<(), Error> {
        let Self { starts, sizes } = self;
        if [starts.len(), sizes.len()] != [dimensions.len(); 2] {
            return refuse(format!(
                "slice {index} has {} starts and {} sizes; the tensor has {} dimensions",
                starts.len(),
                sizes.len(),
                dimensions.len()
            ));
        }
        for (axis, ((&start, &size), &all)) in starts.iter().zip(sizes).zip(dimensions).enumerate()
        {
            if start.checked_add(size).is_none_or(|end| end > all) {
                return refuse(format!(
                    "slice {index} starts at {start} and takes {size} in dimension {axis}, which has {all}"
                ));
            }
        }
        Ok(())
    }

    /// Only for slices that are inside a tensor whose bytes were counted.
    fn bytes(&self, element_bytes: usize) -> usize {
        self.sizes.iter().product::<usize>() * element_bytes
    }

    /// The elements that are in both.
    fn common(&self, other: &Self) -> Option<Self> {
        let mut common = self.clone();
        for (axis, (start, size)) in common.starts.iter_mut().zip(&mut common.sizes).enumerate() {
            let end = (*start + *size).min(other.starts[axis] + other.sizes[axis]);
            *start = (*start).max(other.starts[axis]);
            *size = end.checked_sub(*start).filter(|&size| size > 0)?;
        }
        Some(common)
    }

    /// Adds what is left without `part`, which lies inside, as slices that do not overlap.
    fn without(mut self, part: &Self, rest: &mut Vec<Self>) {
        for axis in 0..self.sizes.len() {
            let (start, end) = (self.starts[axis], self.starts[axis] + self.sizes[axis]);
            let part_start = part.starts[axis];
            let part_end = part_start + part.sizes[axis];
            for side in [start..part_start, part_end..end] {
                if !side.is_empty() {
                    self.starts[axis] = side.start;
                    self.sizes[axis] = side.len();
                    rest.push(self.clone());
                }
            }
            self.starts[axis] = part_start;
            self.sizes[axis] = part.sizes[axis];
        }
    }
}

/// A copy of a box of elements from one array to another, by runs of bytes.
struct RunCopy {
    /// The bytes that lie in one piece in both.
    run: usize,
    /// Where the first run is.
    from: usize,
    to: usize,
    /// The dimensions along which there are more runs: how many, and how far apart in both arrays.
    /// The innermost is the first.
    axes: Vec<(usize, usize, usize)>,
}

impl RunCopy {
    /// `region`, which has elements, lies inside of what the two arrays have of the tensor.
    fn new(element_bytes: usize, region: &Slice, from: &Slice, to: &Slice) -> Self {
        let mut copy = Self {
            run: element_bytes,
            from: 0,
            to: 0,
            axes: Vec::new(),
        };
        let (mut from_stride, mut to_stride) = (element_bytes, element_bytes);
        for (axis, &size) in region.sizes.iter().enumerate().rev() {
            let start = region.starts[axis];
            copy.from += (start - from.starts[axis]) * from_stride;
            copy.to += (start - to.starts[axis]) * to_stride;
            if [from_stride, to_stride] == [copy.run; 2] {
                // The dimensions behind this one are whole in both arrays.
                copy.run *= size;
            } else if size > 1 {
                copy.axes.push((size, from_stride, to_stride));
            }
            from_stride *= from.sizes[axis];
            to_stride *= to.sizes[axis];
        }
        copy
    }

    fn execute(&self, from: &[u8], to: &mut [u8]) {
        copy_runs(self.run, &self.axes, &from[self.from..], &mut to[self.to..]);
    }
}

/// No deeper than an address has bits, since each of the axes has two runs at least.
fn copy_runs(run: usize, axes: &[(usize, usize, usize)], from: &[u8], to: &mut [u8]) {
    match axes.split_last() {
        None => to[..run].copy_from_slice(&from[..run]),
        Some((&(count, from_stride, to_stride), inner)) => {
            for step in 0..count {
                copy_runs(
                    run,
                    inner,
                    &from[step * from_stride..],
                    &mut to[step * to_stride..],
                );
            }
        }
    }
}

fn tensor_bytes(element_bytes: usize, dimensions: &[usize]) -> Result<usize, Error> {
    if element_bytes == 0 {
        return refuse("an element has 0 bytes; it has to have some".to_owned());
    }
    byte_count(element_bytes, dimensions.iter().copied()).map_or_else(
        || {
            refuse(format!(
                "{dimensions:?} elements of {element_bytes} bytes are more than memory can have"
            ))
        },
        Ok,
    )
}

fn refuse<T>(reason: String) -> Result<T, Error> {
    Err(Error::Slices { reason })
}

#[cfg(test)]
mod tests;

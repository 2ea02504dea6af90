use crate::{sys, DataType, Element, Error, Result};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::{mem, ptr, slice};

/// On which side of a call a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Operand,
    Result,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operand => "operand",
            Self::Result => "result",
        })
    }
}

/// How messages call a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) role: Role,
    pub(crate) index: usize,
    pub(crate) name: &'static str,
}

impl Label {
    fn error(self, message: impl fmt::Display) -> Error {
        Error::invalid_argument(format!("{self}: {message}"))
    }

    fn internal(self, message: impl fmt::Display) -> Error {
        Error::internal(format!("{self}: {message}"))
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.index)?;
        if !self.name.is_empty() {
            write!(f, " ({})", self.name)?;
        }
        Ok(())
    }
}

/// A buffer as the frame describes it, with what can be checked without looking at the memory checked.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) label: Label,
    data_type: DataType,
    data: *mut u8,
    dims: &'a [usize],
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> View<'a> {
    /// # Safety
    ///
    /// `buffer` is null or points to a buffer as XLA passes it, which stays as it is for `'a`.
    pub(crate) unsafe fn decode(buffer: *const sys::Buffer, label: Label) -> Result<Self> {
        if buffer.is_null() {
            return Err(label.internal("the frame holds no buffer"));
        }
        // SAFETY: not null, and the caller vouches for the rest; every XLA struct starts with its size.
        let struct_size = unsafe { (*buffer).struct_size };
        if !sys::covers!(struct_size, sys::Buffer, dims: *mut i64) {
            return Err(label.internal(format!(
                "the buffer's description has {struct_size} bytes only"
            )));
        }
        // SAFETY: the size covers the last of these fields, hence all.
        let (data_type, data, rank, dims) = unsafe {
            (
                (*buffer).data_type,
                (*buffer).data,
                (*buffer).rank,
                (*buffer).dims,
            )
        };

        let dims: &[i64] = match usize::try_from(rank) {
            Ok(0) => &[],
            Ok(rank) if !dims.is_null() => {
                // SAFETY: XLA passes an array of `rank` dimensions, which the caller vouches for.
                unsafe { slice::from_raw_parts(dims, rank) }
            }
            _ => return Err(label.internal(format!("rank {rank} without that many dimensions"))),
        };
        if let Some(dim) = dims.iter().find(|dim| **dim < 0) {
            return Err(label.internal(format!("negative dimension {dim}")));
        }
        // SAFETY: i64 and usize have the same layout on the 64-bit platforms that `sys` insists on, and none
        // of the values is negative.
        let dims: &'a [usize] = unsafe { slice::from_raw_parts(dims.as_ptr().cast(), dims.len()) };

        // A zero anywhere means no elements, whatever the product of the others.
        let len = if dims.contains(&0) {
            Some(0)
        } else {
            dims.iter()
                .try_fold(1usize, |len, dim| len.checked_mul(*dim))
        };
        let data_type = DataType::from_raw(data_type);
        let bytes = len.and_then(|len| len.checked_mul(data_type.byte_size().unwrap_or(1)));
        match (len, bytes) {
            (Some(len), Some(bytes)) if bytes <= isize::MAX as usize => Ok(Self {
                label,
                data_type,
                data: data.cast(),
                dims,
                len,
                memory: PhantomData,
            }),
            _ => Err(label.internal("more elements than memory can hold")),
        }
    }

    fn byte_size(&self) -> Option<usize> {
        // `decode` has seen that the product does not overflow.
        self.data_type.byte_size().map(|size| size * self.len)
    }

    /// The addresses of the memory that slices can be made of, if any.
    fn addresses(&self) -> Option<(usize, usize)> {
        let start = self.data as usize;
        match self.byte_size() {
            Some(bytes) if bytes > 0 && start != 0 => Some((start, start.saturating_add(bytes))),
            _ => None,
        }
    }

    fn expect<T: Element>(&self) -> Result<()> {
        if self.data_type == T::DATA_TYPE {
            Ok(())
        } else {
            let (expected, found) = (T::DATA_TYPE, self.data_type);
            Err(self
                .label
                .error(format!("expected {expected}, found {found}")))
        }
    }

    /// A pointer to `len` elements of which slices can be made: aligned, not null, possibly dangling if there
    /// are none.
    fn elements<T: Element>(&self) -> Result<*mut T> {
        self.expect::<T>()?;
        self.pointer(mem::align_of::<T>())
            .map(|pointer| pointer.cast())
    }

    /// Likewise for bytes, with their number.
    fn bytes(&self) -> Result<(*mut u8, usize)> {
        match self.byte_size() {
            Some(0) => Ok((ptr::NonNull::dangling().as_ptr(), 0)),
            Some(bytes) => Ok((self.pointer(1)?, bytes)),
            None => Err(self.label.error(format!(
                "how elements of {} lie in memory is not known",
                self.data_type
            ))),
        }
    }

    fn pointer(&self, alignment: usize) -> Result<*mut u8> {
        if self.len == 0 {
            Ok(ptr::without_provenance_mut(alignment))
        } else if self.data.is_null() {
            Err(self
                .label
                .internal(format!("no memory behind its {} elements", self.len)))
        } else if !(self.data as usize).is_multiple_of(alignment) {
            Err(self
                .label
                .internal(format!("memory not aligned to {alignment} bytes")))
        } else {
            Ok(self.data)
        }
    }

    fn shape<const N: usize>(&self) -> Result<[usize; N]> {
        <[usize; N]>::try_from(self.dims).map_err(|_| {
            self.label.error(format!(
                "expected {N} dimensions, found {}",
                shape(self.data_type, self.dims)
            ))
        })
    }
}

fn shape(data_type: DataType, dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    format!("{data_type}[{}]", dims.join(","))
}

/// Which memory the results of a call have, to tell which operands share it.
///
/// This is what makes slices sound: results are disjoint, and no slice is ever made of an operand that has
/// memory in common with a result.
pub(crate) struct ResultMemory {
    /// Start, end and result, by ascending address.
    ranges: Vec<(usize, usize, usize)>,
}

impl ResultMemory {
    pub(crate) fn of(results: &[View<'_>]) -> Result<Self> {
        let mut ranges: Vec<_> = results
            .iter()
            .filter_map(|view| {
                view.addresses()
                    .map(|(start, end)| (start, end, view.label.index))
            })
            .collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            if let [(_, end, first), (start, _, second)] = pair {
                if start < end {
                    return Err(Error::internal(format!(
                        "results {first} and {second} share memory"
                    )));
                }
            }
        }
        Ok(Self { ranges })
    }

    /// A result that shares memory with the buffer.
    pub(crate) fn sharing(&self, view: &View<'_>) -> Option<usize> {
        let (start, end) = view.addresses()?;
        // Ranges are disjoint and ascending: of those that start before the buffer ends, the last ends last.
        let before = self.ranges.partition_point(|range| range.0 < end);
        let (_, last_end, index) = *self.ranges[..before].last()?;
        (start < last_end).then_some(index)
    }
}

macro_rules! common_methods {
    () => {
        /// The sizes of the dimensions, slowest first unless the custom call's layouts say otherwise.
        pub fn dims(&self) -> &'a [usize] {
            self.view.dims
        }

        /// The dimensions of a buffer that must have `N` of them.
        ///
        /// ```
        /// # use xla_ffi::{Arg, Result};
        /// fn check(x: &Arg<f32>) -> Result<()> {
        ///     let [rows, columns] = x.shape()?;
        ///     // operand 0 (x): expected 2 dimensions, found f32[2,3,4]
        ///     # let _: usize = rows * columns;
        ///     Ok(())
        /// }
        /// ```
        pub fn shape<const N: usize>(&self) -> Result<[usize; N]> {
            self.view.shape()
        }

        /// The type of the elements.
        pub fn data_type(&self) -> DataType {
            self.view.data_type
        }

        /// An `INVALID_ARGUMENT` error about this buffer; the message starts with which one it is.
        pub fn error(&self, message: impl fmt::Display) -> Error {
            self.view.label.error(message)
        }
    };
}

macro_rules! any_methods {
    () => {
        /// The number of elements.
        pub fn len(&self) -> usize {
            self.view.len
        }

        /// Whether there are no elements.
        pub fn is_empty(&self) -> bool {
            self.view.len == 0
        }

        /// The number of bytes, where it is known: see [`DataType::byte_size`].
        pub fn byte_size(&self) -> Option<usize> {
            self.view.byte_size()
        }

        /// Where the memory starts, for passing it on to foreign code. It can be null if there are no elements.
        pub fn as_ptr(&self) -> *const u8 {
            self.view.data
        }
    };
}

macro_rules! fmt_as_shape {
    ($($type:ident $(<$parameter:ident>)?),*) => {
        $(
            impl<$($parameter: Element)?> fmt::Debug for $type<'_, $($parameter)?> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(f, "{}: {self}", self.view.label)
                }
            }

            /// Type and dimensions: `f32[2,3]`.
            impl<$($parameter: Element)?> fmt::Display for $type<'_, $($parameter)?> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.pad(&shape(self.view.data_type, self.view.dims))
                }
            }
        )*
    };
}

fmt_as_shape!(AnyArg, Arg<T>, AliasedArg<T>, AnyRet, Ret<T>);

/// An operand of any type.
///
/// It can share memory with a result, where the custom call has `output_operand_aliases`. Then its elements
/// cannot be had from it, since writing the result would change them; [`AnyRet::copy_from`] takes it all the
/// same.
#[derive(Clone, Copy)]
pub struct AnyArg<'a> {
    view: View<'a>,
    shares: Option<usize>,
}

impl<'a> AnyArg<'a> {
    pub(crate) fn new(view: View<'a>, results: &ResultMemory) -> Self {
        let shares = results.sharing(&view);
        Self { view, shares }
    }

    common_methods!();
    any_methods!();

    /// Whether a result lies in the same memory.
    pub fn is_aliased(&self) -> bool {
        self.shares.is_some()
    }

    fn not_aliased(&self) -> Result<()> {
        match self.shares {
            None => Ok(()),
            Some(index) => Err(Error::new(
                crate::Code::FailedPrecondition,
                format!(
                    "{}: shares its memory with result {index}, but the handler needs them apart; \
                     drop output_operand_aliases, or take the operand as AliasedArg",
                    self.view.label
                ),
            )),
        }
    }

    /// The elements, if they are of this type and no result shares their memory.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        let pointer = self.view.elements::<T>()?;
        self.not_aliased()?;
        // SAFETY: `elements` gives an aligned pointer to `len` elements that XLA keeps alive for 'a, and any
        // bytes are a T. Nothing writes them meanwhile: no result shares the memory, and XLA writes no
        // operand of a running call.
        Ok(unsafe { slice::from_raw_parts(pointer, self.view.len) })
    }

    /// The bytes, if how many there are is known and no result shares them.
    pub fn as_bytes(&self) -> Result<&'a [u8]> {
        let (pointer, len) = self.view.bytes()?;
        self.not_aliased()?;
        // SAFETY: as in `as_slice`, with bytes for elements.
        Ok(unsafe { slice::from_raw_parts(pointer, len) })
    }

    /// The operand as one of this type.
    pub fn typed<T: Element>(self) -> Result<Arg<'a, T>> {
        let values = self.as_slice()?;
        let view = self.view;
        Ok(Arg { view, values })
    }

    /// The operand as one of this type that can share memory with a result.
    pub fn aliased<T: Element>(self) -> Result<AliasedArg<'a, T>> {
        let pointer = self.view.elements()?;
        let values = match self.shares {
            None => Ok(self.as_slice()?),
            Some(_) => Err(pointer),
        };
        let view = self.view;
        Ok(AliasedArg { view, values })
    }
}

/// An operand of one type: a slice with dimensions.
///
/// The elements come in the order they lie in memory. That is row-major, unless the custom call has
/// `operand_layouts`.
///
/// A call in which a result shares the operand's memory is refused before the handler's body runs; a handler
/// that can work in place takes an [`AliasedArg`].
#[derive(Clone, Copy)]
pub struct Arg<'a, T> {
    view: View<'a>,
    values: &'a [T],
}

impl<'a, T: Element> Arg<'a, T> {
    common_methods!();

    /// The elements, for as long as the call lasts.
    pub fn as_slice(&self) -> &'a [T] {
        self.values
    }
}

impl<T> Deref for Arg<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.values
    }
}

/// An operand that can share its memory with a result, because the custom call has `output_operand_aliases`.
///
/// Such memory has one owner, the result: [`Ret::copy_from`] makes the result hold the operand's elements,
/// for nothing if they already are in it, and the handler goes on in place.
///
/// ```
/// use xla_ffi::{AliasedArg, Ret};
///
/// xla_ffi::export! {
///     /// y = factor * x, in place where x and y share memory.
///     pub fn doc_scale_in_place(x: AliasedArg<f32>) -> (y: Ret<f32>)
///     attrs { factor: f32 }
///     {
///         y.copy_from(&x)?;
///         for y in y.iter_mut() {
///             *y *= factor;
///         }
///         Ok(())
///     }
/// }
/// ```
#[derive(Clone, Copy)]
pub struct AliasedArg<'a, T> {
    view: View<'a>,
    /// The elements, or only where they are, if reading them there would race with writing a result.
    values: Result<&'a [T], *mut T>,
}

impl<T: Element> AliasedArg<'_, T> {
    /// Whether a result lies in the same memory.
    pub fn is_aliased(&self) -> bool {
        self.values.is_err()
    }
}

impl<'a, T: Element> AliasedArg<'a, T> {
    common_methods!();

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.view.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.view.len == 0
    }
}

/// A result of any type, to be written.
///
/// What its memory holds at first is of no meaning, except where it is an operand's.
pub struct AnyRet<'a> {
    view: View<'a>,
}

impl<'a> AnyRet<'a> {
    /// # Safety
    ///
    /// The view is a result's, the call's results are disjoint as [`ResultMemory::of`] finds out, and this is
    /// the one `AnyRet` made of it.
    pub(crate) unsafe fn new(view: View<'a>) -> Self {
        Self { view }
    }

    common_methods!();
    any_methods!();

    /// Where the memory starts, for foreign code to write it. It can be null if there are no elements.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.view.data
    }

    /// The elements, if they are of this type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        let pointer = self.view.elements::<T>()?;
        // SAFETY: `elements` gives an aligned pointer to `len` elements, and any bytes are a T. Nothing else
        // refers to them while `self` is borrowed: results are disjoint, each has one `AnyRet`, and operands
        // that share memory with a result give no slices.
        Ok(unsafe { slice::from_raw_parts_mut(pointer, self.view.len) })
    }

    /// The bytes, if how many there are is known.
    pub fn as_bytes_mut(&mut self) -> Result<&mut [u8]> {
        let (pointer, len) = self.view.bytes()?;
        // SAFETY: as in `as_mut_slice`, with bytes for elements.
        Ok(unsafe { slice::from_raw_parts_mut(pointer, len) })
    }

    /// The result as one of this type.
    pub fn typed<T: Element>(self) -> Result<Ret<'a, T>> {
        let pointer = self.view.elements::<T>()?;
        // SAFETY: as in `as_mut_slice`; `self` is given up, so the slice is the only way to the memory for 'a.
        let values = unsafe { slice::from_raw_parts_mut(pointer, self.view.len) };
        let view = self.view;
        Ok(Ret { view, values })
    }

    /// Makes the result hold the operand's bytes, of which there must be as many. There is nothing to do if
    /// both are the same memory.
    pub fn copy_from(&mut self, operand: &AnyArg<'_>) -> Result<()> {
        let (from, len) = operand.view.bytes()?;
        let to = self.as_bytes_mut()?;
        if to.len() != len {
            return Err(self.error(format!(
                "expected {len} bytes as in {operand:?}, found {self}"
            )));
        }
        if operand.is_aliased() && ptr::eq(from, to.as_ptr()) {
            return Ok(());
        }
        to.copy_from_slice(operand.as_bytes()?);
        Ok(())
    }
}

/// A result of one type, to be written: a mutable slice with dimensions.
///
/// The elements go in the order they lie in memory. That is row-major, unless the custom call has
/// `result_layouts`. What they are at first is of no meaning, except after [`Ret::copy_from`].
pub struct Ret<'a, T> {
    view: View<'a>,
    values: &'a mut [T],
}

impl<'a, T: Element> Ret<'a, T> {
    common_methods!();

    /// The elements, for as long as the call lasts.
    pub fn into_slice(self) -> &'a mut [T] {
        self.values
    }

    /// Makes the result hold the operand's elements, of which there must be as many. There is nothing to do
    /// if both are the same memory.
    pub fn copy_from(&mut self, operand: &AliasedArg<'_, T>) -> Result<()> {
        if operand.len() != self.values.len() {
            return Err(self.error(format!(
                "expected {} elements as in {operand:?}, found {self}",
                operand.len()
            )));
        }
        match operand.values {
            Ok(values) => self.values.copy_from_slice(values),
            Err(pointer) if ptr::eq(pointer, self.values.as_ptr()) => (),
            Err(_) => {
                return Err(operand
                    .error("shares its memory with another result, or with a part of this one"))
            }
        }
        Ok(())
    }
}

impl<T> Deref for Ret<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.values
    }
}

impl<T> DerefMut for Ret<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.values
    }
}

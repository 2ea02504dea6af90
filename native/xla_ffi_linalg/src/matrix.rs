use crate::scalar::{Scalar, Work};
use faer::dyn_stack::{MemBuffer, StackReq};
use faer::{Mat, MatMut};
use xla_ffi::{Code, Error, Result};

/// Which elements of an operand are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    /// The diagonal and what is below it.
    Lower,
}

/// Copies a row-major matrix into `to`, and returns the largest absolute value of an element; `None` if one of
/// them is not finite.
pub(crate) fn read<S: Scalar<W>, W: Work>(
    from: &[S],
    part: Part,
    mut to: MatMut<'_, W>,
) -> Option<W> {
    let columns = to.ncols();
    if columns == 0 {
        return Some(W::ZERO);
    }
    let mut largest = W::ZERO;
    for (i, row) in from.chunks_exact(columns).enumerate() {
        let len = match part {
            Part::All => columns,
            Part::Lower => i + 1,
        };
        for (j, value) in row.iter().take(len).enumerate() {
            let value = value.widen();
            if !value.is_finite() {
                return None;
            }
            if value.abs() > largest {
                largest = value.abs();
            }
            to[(i, j)] = value;
        }
    }
    Some(largest)
}

/// Multiplies the matrix by a power of two, which is exact unless elements vanish beside the largest.
pub(crate) fn scale<W: Work>(matrix: MatMut<'_, W>, exponent: i32) {
    if exponent != 0 {
        for column in matrix.col_iter_mut() {
            for value in column.iter_mut() {
                *value = value.times_power_of_two(exponent);
            }
        }
    }
}

/// Writes a row-major matrix whose elements `value` computes from their row and column.
pub(crate) fn write<S: Scalar<W>, W: Work>(
    to: &mut [S],
    columns: usize,
    value: impl Fn(usize, usize) -> W,
) {
    for (i, row) in to.chunks_exact_mut(columns.max(1)).enumerate() {
        for (j, to) in row.iter_mut().enumerate() {
            *to = S::narrow(value(i, j));
        }
    }
}

/// The elements of the matrix at this place of a batch, of matrices of `len` elements.
pub(crate) fn nth<T>(batch: &[T], index: usize, len: usize) -> &[T] {
    &batch[index * len..][..len]
}

/// Likewise, to be written.
pub(crate) fn nth_mut<T>(batch: &mut [T], index: usize, len: usize) -> &mut [T] {
    &mut batch[index * len..][..len]
}

/// Memory for faer to work in.
pub(crate) fn scratch(request: StackReq) -> Result<MemBuffer> {
    MemBuffer::try_new(request).map_err(|_| {
        Error::new(
            Code::ResourceExhausted,
            format!("no memory for {} bytes of work space", request.size_bytes()),
        )
    })
}

/// A matrix of zeros to work in.
pub(crate) fn zeros<W: Work>(rows: usize, columns: usize) -> Mat<W> {
    Mat::from_fn(rows, columns, |_, _| W::ZERO)
}

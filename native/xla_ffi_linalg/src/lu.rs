//! LU with partial pivoting. faer's kernels do the work, but not its driver: that divides by zero pivots.

use crate::matrix::{nth, nth_mut, read, write, zeros, Part};
use crate::scalar::{Scalar, Work};
use crate::shape::Batch;
use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::solve_unit_lower_triangular_in_place;
use faer::prelude::{Reborrow, ReborrowMut};
use faer::{Accum, MatMut, Par};
use xla_ffi::{Arg, Result, Ret};

/// Up to so many columns are eliminated one by one.
const UNBLOCKED: usize = 8;

/// A = P L U for each matrix of a batch.
///
/// A, L and U: `{..., n, n}`; P: `{..., n, n}`, of zeros and ones.
///
/// Fails if the shapes are not these.
pub(crate) fn decompose<S: Scalar<W>, W: Work>(
    a: &Arg<'_, S>,
    p: &mut Ret<'_, u8>,
    l: &mut Ret<'_, S>,
    u: &mut Ret<'_, S>,
) -> Result<()> {
    let batch = Batch::of_square(a)?;
    let n = batch.rows;
    batch.expect(p, &[n, n])?;
    batch.expect(l, &[n, n])?;
    batch.expect(u, &[n, n])?;
    if p.is_empty() {
        return Ok(());
    }

    let mut matrix = zeros::<W>(n, n);
    let mut swaps = vec![0; n];
    let mut rows: Vec<usize> = Vec::with_capacity(n);
    for index in 0..batch.len() {
        let a = nth(a, index, n * n);
        let p = nth_mut(p, index, n * n);
        let l = nth_mut(l, index, n * n);
        let u = nth_mut(u, index, n * n);
        rows.clear();
        rows.extend(0..n);
        if read(a, Part::All, matrix.as_mut()).is_some() {
            factorise(matrix.as_mut(), &mut swaps);
            for (row, other) in swaps.iter().enumerate() {
                rows.swap(row, row + other);
            }
        } else {
            matrix.fill(W::NAN);
        }
        p.fill(0);
        for (column, row) in rows.iter().enumerate() {
            p[row * n + column] = 1;
        }
        write(l, n, |i, j| match i.cmp(&j) {
            std::cmp::Ordering::Less => W::ZERO,
            std::cmp::Ordering::Equal => W::ONE,
            std::cmp::Ordering::Greater => matrix[(i, j)],
        });
        write(u, n, |i, j| if i > j { W::ZERO } else { matrix[(i, j)] });
    }
    Ok(())
}

/// Replaces a matrix, with no more columns than rows, by U and, below the diagonal, L. Row i was swapped with row
/// i + swaps\[i\], for each i in turn.
fn factorise<W: Work>(mut a: MatMut<'_, W>, swaps: &mut [usize]) {
    let columns = a.ncols();
    if columns <= UNBLOCKED {
        return eliminate(a, swaps);
    }
    let half = columns / 2;
    let (swaps_top, swaps_bottom) = swaps.split_at_mut(half);
    let (mut left, mut right) = a.rb_mut().split_at_col_mut(half);
    factorise(left.rb_mut(), swaps_top);
    swap_rows(right.rb_mut(), swaps_top);
    let (l_top, l_bottom) = left.rb().split_at_row(half);
    let (mut u_top, mut rest) = right.split_at_row_mut(half);
    solve_unit_lower_triangular_in_place(l_top, u_top.rb_mut(), Par::Seq);
    matmul(
        rest.rb_mut(),
        Accum::Add,
        l_bottom,
        u_top.rb(),
        W::ZERO - W::ONE,
        Par::Seq,
    );
    factorise(rest, swaps_bottom);
    swap_rows(left.split_at_row_mut(half).1, swaps_bottom);
}

fn eliminate<W: Work>(mut a: MatMut<'_, W>, swaps: &mut [usize]) {
    let (m, n) = (a.nrows(), a.ncols());
    for (j, swap) in swaps.iter_mut().enumerate() {
        let mut pivot = j;
        for i in j + 1..m {
            if a[(i, j)].abs() > a[(pivot, j)].abs() {
                pivot = i;
            }
        }
        *swap = pivot - j;
        if *swap > 0 {
            for k in 0..n {
                swap_elements(a.rb_mut(), k, j, pivot);
            }
        }
        let pivot = a[(j, j)];
        if pivot == W::ZERO {
            // So is all below it: nothing to eliminate.
            continue;
        }
        for i in j + 1..m {
            // Divided, because the reciprocal of a tiny pivot is infinite.
            a[(i, j)] /= pivot;
        }
        for k in j + 1..n {
            let factor = a[(j, k)];
            for i in j + 1..m {
                let product = a[(i, j)] * factor;
                a[(i, k)] -= product;
            }
        }
    }
}

fn swap_rows<W: Work>(mut a: MatMut<'_, W>, swaps: &[usize]) {
    for column in 0..a.ncols() {
        for (row, swap) in swaps.iter().enumerate() {
            swap_elements(a.rb_mut(), column, row, row + swap);
        }
    }
}

fn swap_elements<W: Work>(mut a: MatMut<'_, W>, column: usize, row: usize, other: usize) {
    let (this, that) = (a[(row, column)], a[(other, column)]);
    a[(row, column)] = that;
    a[(other, column)] = this;
}

#[cfg(test)]
mod tests;

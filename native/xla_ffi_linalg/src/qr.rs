//! Householder QR. faer's kernels do the work, but not its driver: that takes a column for a dependent one, and
//! drops what is left of it, when it falls below 16 m ε of its norm. In `f32` and with a thousand rows these are
//! three of seven digits.

use crate::matrix::{nth, nth_mut, read, scale, scratch, write, zeros, Part};
use crate::scalar::{Scalar, Work};
use crate::shape::Batch;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::householder::{
    apply_block_householder_sequence_on_the_left_in_place_scratch,
    apply_block_householder_sequence_on_the_left_in_place_with_conj,
    apply_block_householder_transpose_on_the_left_in_place_scratch,
    apply_block_householder_transpose_on_the_left_in_place_with_conj, make_householder_in_place,
};
use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::linalg::qr::no_pivoting::factor::recommended_block_size;
use faer::prelude::{Reborrow, ReborrowMut};
use faer::{Accum, Conj, Mat, MatMut, Par};
use xla_ffi::{Arg, Element, Result, Ret};

/// A = Q R for each matrix of a batch.
///
/// A: `{..., m, n}`; Q: `{..., m, k}`; R: `{..., k, n}`, where k is min(m, n), or m for a complete decomposition.
///
/// Fails if the shapes are not these.
pub(crate) fn decompose<S: Scalar<W>, W: Work>(
    a: &Arg<'_, S>,
    q: &mut Ret<'_, S>,
    r: &mut Ret<'_, S>,
) -> Result<()> {
    let batch = Batch::of(a)?;
    let (m, n) = (batch.rows, batch.columns);
    let k = inner_dimension(&batch, q, r)?;
    if q.is_empty() && r.is_empty() {
        return Ok(());
    }

    let mut work = Workspace::<W>::new(m, n, k)?;
    for index in 0..batch.len() {
        let a = nth(a, index, m * n);
        let q = nth_mut(q, index, m * k);
        let r = nth_mut(r, index, k * n);
        let Some(largest) = read(a, Part::All, work.a.as_mut()) else {
            write(q, k, |_, _| W::NAN);
            write(r, n, |i, j| if i > j { W::ZERO } else { W::NAN });
            continue;
        };
        let exponent = safe_exponent(largest);
        scale(work.a.as_mut(), exponent);
        work.factorise();
        work.form_q();
        write(q, k, |i, j| work.q[(i, j)]);
        write(r, n, |i, j| {
            if i > j {
                W::ZERO
            } else {
                work.a[(i, j)].times_power_of_two(-exponent)
            }
        });
    }
    Ok(())
}

/// The k that the results are shaped for.
fn inner_dimension<S: Element>(batch: &Batch<'_>, q: &Ret<'_, S>, r: &Ret<'_, S>) -> Result<usize> {
    let (m, n) = (batch.rows, batch.columns);
    let reduced = m.min(n);
    if batch.fits(q, &[m, reduced]) && batch.fits(r, &[reduced, n]) {
        return Ok(reduced);
    }
    if batch.fits(q, &[m, m]) && batch.fits(r, &[m, n]) {
        return Ok(m);
    }
    let describe = |inner| batch.describe(S::DATA_TYPE, inner);
    let expected = |reduced, complete| {
        if m > n {
            format!("expected {reduced}, or {complete} for a complete decomposition")
        } else {
            format!("expected {reduced}")
        }
    };
    if !batch.fits(q, &[m, reduced]) && !batch.fits(q, &[m, m]) {
        let expected = expected(describe(&[m, reduced]), describe(&[m, m]));
        return Err(q.error(format!("{expected}, found {q}")));
    }
    if !batch.fits(r, &[reduced, n]) && !batch.fits(r, &[m, n]) {
        let expected = expected(describe(&[reduced, n]), describe(&[m, n]));
        return Err(r.error(format!("{expected}, found {r}")));
    }
    let other = if batch.fits(q, &[m, m]) { m } else { reduced };
    let expected = describe(&[other, n]);
    Err(r.error(format!(
        "expected {expected} beside {q} as result 0 (q), found {r}"
    )))
}

/// The power of two that brings elements of a size near the end of the range to where their norms are safe; 0 for
/// all others, as small elements may vanish beside large ones.
fn safe_exponent<W: Work>(largest: W) -> i32 {
    if largest > W::ZERO {
        let exponent = largest.exponent();
        exponent.clamp(-W::SAFE_EXPONENT, W::SAFE_EXPONENT) - exponent
    } else {
        0
    }
}

struct Workspace<W: Work> {
    /// The operand, then R and, below the diagonal, the Householder vectors without their leading ones.
    a: Mat<W>,
    /// The triangular factors T of the blocks I - V T⁻¹ Vᵀ of Householder reflections, side by side.
    factors: Mat<W>,
    q: Mat<W>,
    scratch: MemBuffer,
}

impl<W: Work> Workspace<W> {
    fn new(m: usize, n: usize, k: usize) -> Result<Self> {
        let block = recommended_block_size::<W>(m, n);
        Ok(Self {
            a: zeros(m, n),
            factors: zeros(block, m.min(n)),
            q: zeros(m, k),
            scratch: scratch(
                apply_block_householder_transpose_on_the_left_in_place_scratch::<W>(m, block, n)
                    .or(
                        apply_block_householder_sequence_on_the_left_in_place_scratch::<W>(
                            m, block, k,
                        ),
                    ),
            )?,
        })
    }

    fn factorise(&mut self) {
        let (m, n) = (self.a.nrows(), self.a.ncols());
        let size = m.min(n);
        let block = self.factors.nrows();
        let stack = MemStack::new(&mut self.scratch);
        for start in (0..size).step_by(block) {
            let width = block.min(size - start);
            let rest = self
                .a
                .as_mut()
                .submatrix_mut(start, start, m - start, n - start);
            let (mut panel, right) = rest.split_at_col_mut(width);
            let mut factor = self.factors.as_mut().submatrix_mut(0, start, width, width);
            factorise_panel(panel.rb_mut(), factor.rb_mut(), stack);
            apply_block_householder_transpose_on_the_left_in_place_with_conj(
                panel.rb(),
                factor.rb(),
                Conj::No,
                right,
                Par::Seq,
                stack,
            );
        }
    }

    fn form_q(&mut self) {
        self.q.fill(W::ZERO);
        self.q.diagonal_mut().fill(W::ONE);
        if self.factors.ncols() > 0 {
            apply_block_householder_sequence_on_the_left_in_place_with_conj(
                self.a.as_ref(),
                self.factors.as_ref(),
                Conj::No,
                self.q.as_mut(),
                Par::Seq,
                MemStack::new(&mut self.scratch),
            );
        }
    }
}

/// Reduces the panel column by column, and computes the factor of its reflections as one block.
fn factorise_panel<W: Work>(
    mut panel: MatMut<'_, W>,
    mut factor: MatMut<'_, W>,
    stack: &mut MemStack,
) {
    let (m, width) = (panel.nrows(), panel.ncols());
    for j in 0..width {
        let rest = panel.rb_mut().submatrix_mut(j, j, m - j, width - j);
        let (mut column, right) = rest.split_at_col_mut(1);
        let (mut head, mut tail) = column.rb_mut().col_mut(0).split_at_row_mut(1);
        let tau = make_householder_in_place(&mut head[0], tail.rb_mut()).tau;
        factor[(j, j)] = tau;
        if tau.is_finite() {
            apply_block_householder_transpose_on_the_left_in_place_with_conj(
                column.rb(),
                factor.rb().submatrix(j, j, 1, 1),
                Conj::No,
                right,
                Par::Seq,
                stack,
            );
        } else {
            // Nothing to reflect, which an infinite tau says; but the tail may be tiny rather than zero.
            tail.fill(W::ZERO);
        }
    }
    // What is above the diagonal of T is what is above that of Vᵀ V.
    let (top, bottom) = panel.rb().split_at_row(width);
    triangular::matmul(
        factor.rb_mut(),
        BlockStructure::UnitTriangularUpper,
        Accum::Replace,
        top.transpose(),
        BlockStructure::UnitTriangularUpper,
        top,
        BlockStructure::UnitTriangularLower,
        W::ONE,
        Par::Seq,
    );
    triangular::matmul(
        factor,
        BlockStructure::UnitTriangularUpper,
        Accum::Add,
        bottom.transpose(),
        BlockStructure::Rectangular,
        bottom,
        BlockStructure::Rectangular,
        W::ONE,
        Par::Seq,
    );
}

#[cfg(test)]
mod tests;

use crate::matrix::{nth, nth_mut, read, scale, scratch, write, zeros, Part};
use crate::scalar::{Scalar, Work};
use crate::shape::Batch;
use faer::diag::Diag;
use faer::dyn_stack::MemStack;
use faer::linalg::evd::{self_adjoint_evd, self_adjoint_evd_scratch, ComputeEigenvectors};
use faer::Par;
use std::cmp::Ordering;
use std::str::FromStr;
use xla_ffi::{Arg, Error, Result, Ret};

/// The order of the eigenvalues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// From the least to the greatest.
    Ascending,
    /// By absolute value, from the greatest to the least; of two that differ in sign only, the negative first.
    Magnitude,
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "ascending" => Ok(Self::Ascending),
            "magnitude" => Ok(Self::Magnitude),
            other => Err(Error::invalid_argument(format!(
                "attribute \"order\": expected \"ascending\" or \"magnitude\", found {other:?}"
            ))),
        }
    }
}

/// A = V diag(w) Vᵀ for each symmetric matrix of a batch.
///
/// A: `{..., n, n}`, of which the lower triangle is read; w: `{..., n}`; V: `{..., n, n}`, the eigenvectors as
/// columns.
///
/// Fails if the shapes are not these, or if the eigenvalues of a matrix do not converge.
pub(crate) fn decompose<S: Scalar<W>, W: Work>(
    a: &Arg<'_, S>,
    eigenvalues: &mut Ret<'_, S>,
    eigenvectors: &mut Ret<'_, S>,
    order: Order,
) -> Result<()> {
    let batch = Batch::of_square(a)?;
    let n = batch.rows;
    batch.expect(eigenvalues, &[n])?;
    batch.expect(eigenvectors, &[n, n])?;
    if eigenvalues.is_empty() {
        return Ok(());
    }

    let mut matrix = zeros::<W>(n, n);
    let mut values = Diag::<W>::zeros(n);
    let mut vectors = zeros::<W>(n, n);
    let mut columns: Vec<usize> = Vec::with_capacity(n);
    let mut scratch = scratch(self_adjoint_evd_scratch::<W>(
        n,
        ComputeEigenvectors::Yes,
        Par::Seq,
        Default::default(),
    ))?;

    for index in 0..batch.len() {
        let from = nth(a, index, n * n);
        let to_values = nth_mut(eigenvalues, index, n);
        let to_vectors = nth_mut(eigenvectors, index, n * n);
        let Some(largest) = read(from, Part::Lower, matrix.as_mut()) else {
            to_values.fill(S::narrow(W::NAN));
            to_vectors.fill(S::narrow(W::NAN));
            continue;
        };
        // To a size of 1, because faer takes some differences for negligible by absolute bounds.
        let exponent = if largest > W::ZERO {
            -largest.exponent()
        } else {
            0
        };
        scale(matrix.as_mut(), exponent);
        self_adjoint_evd(
            matrix.as_ref(),
            values.as_mut(),
            Some(vectors.as_mut()),
            Par::Seq,
            MemStack::new(&mut scratch),
            Default::default(),
        )
        .map_err(|_| {
            Error::internal(format!(
                "{a:?}: the eigenvalues of matrix {index} did not converge"
            ))
        })?;

        sort(&mut columns, n, order, |column| values[column]);
        for (to, column) in to_values.iter_mut().zip(&columns) {
            *to = S::narrow(values[*column].times_power_of_two(-exponent));
        }
        write(to_vectors, n, |i, j| vectors[(i, columns[j])]);
    }
    Ok(())
}

/// Fills `columns` with where the eigenvalues are in the given order.
fn sort<W: Work>(columns: &mut Vec<usize>, n: usize, order: Order, value: impl Fn(usize) -> W) {
    let compare = |a: &W, b: &W| a.partial_cmp(b).unwrap_or(Ordering::Equal);
    columns.clear();
    columns.extend(0..n);
    columns.sort_by(|a, b| compare(&value(*a), &value(*b)));
    if order == Order::Magnitude {
        columns.sort_by(|a, b| compare(&value(*b).abs(), &value(*a).abs()));
    }
}

#[cfg(test)]
mod tests;

use xla_ffi::{Arg, DataType, Element, Result, Ret};

/// A batch of matrices, as an operand's dimensions describe it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    /// The dimensions of the batch, none for a single matrix.
    dims: &'a [usize],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl<'a> Batch<'a> {
    pub(crate) fn of<S: Element>(a: &Arg<'a, S>) -> Result<Self> {
        match a.dims() {
            [dims @ .., rows, columns] => Ok(Self {
                dims,
                rows: *rows,
                columns: *columns,
            }),
            _ => Err(a.error(format!(
                "expected matrices, at least 2 dimensions, found {a}"
            ))),
        }
    }

    pub(crate) fn of_square<S: Element>(a: &Arg<'a, S>) -> Result<Self> {
        let batch = Self::of(a)?;
        if batch.rows == batch.columns {
            Ok(batch)
        } else {
            Err(a.error(format!("expected square matrices, found {a}")))
        }
    }

    /// How many matrices there are.
    ///
    /// With more of them than a `usize` counts, they have no elements, and no results that do; see
    /// [`Batch::expect`].
    pub(crate) fn len(&self) -> usize {
        if self.dims.contains(&0) {
            return 0;
        }
        self.dims
            .iter()
            .fold(1, |len: usize, dim| len.saturating_mul(*dim))
    }

    /// Whether the result has these dimensions behind those of the batch.
    pub(crate) fn fits<T: Element>(&self, result: &Ret<'_, T>, inner: &[usize]) -> bool {
        result.dims().strip_prefix(self.dims) == Some(inner)
    }

    /// An error unless the result has these dimensions behind those of the batch.
    pub(crate) fn expect<T: Element>(&self, result: &Ret<'_, T>, inner: &[usize]) -> Result<()> {
        if self.fits(result, inner) {
            Ok(())
        } else {
            let expected = self.describe(T::DATA_TYPE, inner);
            Err(result.error(format!("expected {expected}, found {result}")))
        }
    }

    /// These dimensions behind those of the batch, as messages have them: `f32[2,3]`.
    pub(crate) fn describe(&self, data_type: DataType, inner: &[usize]) -> String {
        let dims: Vec<String> = self
            .dims
            .iter()
            .chain(inner)
            .map(usize::to_string)
            .collect();
        format!("{data_type}[{}]", dims.join(","))
    }
}

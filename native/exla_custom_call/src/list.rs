use rustler::{Decoder, NifResult, Term};
use std::ops::Deref;

/// A list that ends as one should. Rustler's decoder of `Vec` panics at the tail of one that does not.
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<'a, T: Decoder<'a>> Decoder<'a> for List<T> {
    fn decode(term: Term<'a>) -> NifResult<Self> {
        term.list_length()?;
        Ok(Self(term.decode()?))
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

use crate::state::Context;
use crate::{sys, Error, Result};
use std::{ptr, slice};

/// A type that a handler can take user data as.
///
/// | type | user data |
/// |---|---|
/// | `&[u8]` | the bytes, which must be there |
/// | `Option<&[u8]>` | the bytes, if they are there |
///
/// The bytes are aligned in no particular way.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be user data of a handler",
    note = "take user data as `&[u8]` or `Option<&[u8]>`"
)]
pub trait FromUserData<'a>: Sized {
    /// Takes what the execution has by the name.
    fn from_user_data(data: Option<&'a [u8]>, name: &str) -> Result<Self>;
}

impl<'a> FromUserData<'a> for &'a [u8] {
    fn from_user_data(data: Option<&'a [u8]>, name: &str) -> Result<Self> {
        data.ok_or_else(|| {
            Error::invalid_argument(format!(
                "the handler needs user data {name:?}, which this execution was not given"
            ))
        })
    }
}

impl<'a> FromUserData<'a> for Option<&'a [u8]> {
    fn from_user_data(data: Option<&'a [u8]>, _name: &str) -> Result<Self> {
        Ok(data)
    }
}

/// The id by which XLA knows user data of a name: FNV-1a of 64 bits, with the highest bits 01. It is thus positive,
/// and neither an address nor one of the small numbers that XLA counts up from.
pub(crate) const fn type_id(name: &[u8]) -> sys::TypeId {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut index = 0;
    while index < name.len() {
        hash = (hash ^ name[index] as u64).wrapping_mul(0x0100_0000_01b3);
        index += 1;
    }
    sys::TypeId {
        id: (hash & (u64::MAX >> 2) | 1 << 62) as i64,
    }
}

impl Context {
    /// What the execution has by the name.
    ///
    /// # Safety
    ///
    /// The context is of a call that is not over while the data is used, and who added something under the id of
    /// the name added a [`sys::UserData`].
    pub unsafe fn user_data<'a, T: FromUserData<'a>>(self, name: &str) -> Result<T> {
        // SAFETY: the caller's promise, passed on.
        T::from_user_data(unsafe { self.find(name) }, name)
    }

    /// # Safety
    ///
    /// As for [`Context::user_data`].
    unsafe fn find<'a>(self, name: &str) -> Option<&'a [u8]> {
        let (api, context) = self.parts();
        if api.is_null() || context.is_null() {
            return None;
        }
        // SAFETY: not null, and XLA's table begins with its size.
        let struct_size = unsafe { (*api).struct_size };
        if !sys::covers!(struct_size, sys::Api, context_get: Option<sys::ContextGet>) {
            return None;
        }
        // SAFETY: the size covers the field.
        let get = unsafe { (*api).context_get }?;
        let mut id = type_id(name.as_bytes());
        let mut args = sys::ContextGetArgs {
            struct_size: size_of::<sys::ContextGetArgs>(),
            extensions: ptr::null_mut(),
            context,
            type_id: &mut id,
            data: ptr::null_mut(),
        };
        // SAFETY: XLA's function, with arguments as it takes them.
        let error = unsafe { get(&mut args) };
        if !error.is_null() {
            // It says that there is nothing by this id.
            // SAFETY: the field comes before the one that the size covers.
            if let Some(destroy) = unsafe { (*api).error_destroy } {
                let mut args = sys::ErrorDestroyArgs {
                    struct_size: size_of::<sys::ErrorDestroyArgs>(),
                    extensions: ptr::null_mut(),
                    error,
                };
                // SAFETY: the error is the caller's to free.
                unsafe { destroy(&mut args) };
            }
            return None;
        }
        let entry: *const sys::UserData = args.data.cast_const().cast();
        // SAFETY: the caller vouches for the type, which begins with its size.
        if entry.is_null() || unsafe { (*entry).struct_size } < size_of::<sys::UserData>() {
            return None;
        }
        // SAFETY: as above; what it points to lives as long as the execution.
        let (found, data) = unsafe { (bytes((*entry).name), bytes((*entry).data)) };
        // Another name could have the same id.
        (found == name.as_bytes()).then_some(data)
    }
}

/// # Safety
///
/// The bytes are readable for `'a`, if there are any.
unsafe fn bytes<'a>(span: sys::ByteSpan) -> &'a [u8] {
    if span.len == 0 || span.pointer.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(span.pointer.cast(), span.len) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Executable, Frame};
    use crate::Ret;

    crate::export! {
        fn user_data_lengths() -> (lengths: Ret<i64>)
        user_data { needed: &[u8] = "com.example.needed", other: Option<&[u8]> = "com.example.other" }
        {
            lengths.fill(0);
            for (length, found) in lengths.iter_mut().zip([Some(needed), other]) {
                *length = found.map_or(-1, |bytes| bytes.len() as i64);
            }
            Ok(())
        }
    }

    fn lengths(frame: Frame) -> Result<Vec<i64>> {
        let mut frame = frame.result::<i64>(&[2]);
        Executable::<user_data_lengths>::new(&frame)?.run(&mut frame)?;
        Ok(frame.values(0))
    }

    #[test]
    fn the_id_of_a_name_is_the_same_everywhere() {
        assert_eq!(type_id(b"com.example.settings").id, 0x7ce9_d97e_c771_0a4d);
    }

    #[test]
    fn a_handler_takes_user_data_by_name() {
        let frame = Frame::new().user_data("com.example.needed", b"four");
        assert_eq!(lengths(frame.clone()), Ok(vec![4, -1]));
        assert_eq!(
            lengths(frame.user_data("com.example.other", b"")),
            Ok(vec![4, 0])
        );
    }

    #[test]
    fn user_data_that_is_not_there_is_an_error_unless_it_is_optional() {
        let error = lengths(Frame::new()).unwrap_err();
        assert_eq!(
            error.message(),
            "the handler needs user data \"com.example.needed\", which this execution was not given"
        );
    }
}

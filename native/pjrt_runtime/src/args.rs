//! Argument structs as newer plugins want them.

use std::ops::{Deref, DerefMut};

use pjrt_sys::*;

/// A plugin takes a struct that is larger than the one it knows and refuses a smaller one
/// ("Unexpected ... size: expected 88, got 72"), and `xla/pjrt/c/pjrt_c_api.h` adds fields at the
/// end only. So every struct carries this many zero bytes for the fields of later headers: zero
/// there means that an option is absent.
const TAIL_WORDS: usize = 16;

/// A struct of the PJRT C API that begins with its own size.
///
/// # Safety
/// The type is `repr(C)`, its first field is the `struct_size` that `size_field` returns, and all
/// zero bytes are a valid value of it.
pub(crate) unsafe trait ApiStruct: Default {
    fn size_field(&mut self) -> &mut usize;
}

/// A struct for the plugin, followed by the zeroed tail that its `struct_size` counts.
///
/// Only for structs that are passed by a pointer of their own: an array's stride is the plugin's
/// `sizeof`, so the elements of an array (`PJRT_NamedValue`) must not carry a tail, and neither can
/// a struct inside another one.
#[repr(C)]
pub(crate) struct Args<T> {
    fields: T,
    tail: [u64; TAIL_WORDS],
}

impl<T: ApiStruct> Args<T> {
    pub(crate) fn new() -> Self {
        let mut fields = T::default();
        *fields.size_field() = size_of::<Self>();
        Self {
            fields,
            tail: [0; TAIL_WORDS],
        }
    }

    /// A pointer that may be used for the fields and the tail.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut T {
        std::ptr::from_mut(self).cast()
    }
}

impl<T> Deref for Args<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.fields
    }
}

impl<T> DerefMut for Args<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.fields
    }
}

macro_rules! api_structs {
    ($($name:ident),* $(,)?) => {
        $(
            // SAFETY: bindgen makes the struct repr(C), and the header puts `size_t struct_size`
            // first. Its other fields are integers, booleans and nullable pointers.
            unsafe impl $crate::args::ApiStruct for $name {
                fn size_field(&mut self) -> &mut usize {
                    &mut self.struct_size
                }
            }
        )*
    };
}
pub(crate) use api_structs;

api_structs!(
    PJRT_Error_Destroy_Args,
    PJRT_Error_Message_Args,
    PJRT_Program,
    PJRT_Buffer_MemoryLayout,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_follows_the_fields_and_counts() {
        let args = Args::<PJRT_Error_Destroy_Args>::new();
        assert_eq!(args.struct_size, size_of::<PJRT_Error_Destroy_Args>() + 128);
        assert_eq!(
            std::mem::offset_of!(Args<PJRT_Error_Destroy_Args>, tail),
            size_of::<PJRT_Error_Destroy_Args>()
        );
        assert_eq!(args.tail, [0; 16]);
    }
}

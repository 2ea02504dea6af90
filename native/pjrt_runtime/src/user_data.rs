//! Data that a caller adds to an execution, for the handlers of its custom calls.
//!
//! XLA hands it on as a pointer under the id of a type. Here the type is that of [`Entry`] always, and
//! the id is made from a name, so that caller and handler need to agree on nothing but the name. The layout and
//! the ids are documented for handlers in `include/exla_custom_call.h`.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use pjrt_sys::*;

use crate::args::{api_structs, Args};
use crate::{ffi, Client, Error};

/// Bytes by names, for one execution or many. Cheap to clone; an execution that is under way keeps it.
#[derive(Clone)]
pub struct UserData {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    raw: NonNull<PJRT_ExecuteContext>,
    /// What the entries point to.
    items: Box<[Item]>,
    /// What the context points to.
    entries: Box<[Entry]>,
    /// Whether a device may read it for longer than anybody can tell.
    is_kept: AtomicBool,
}

struct Item {
    name: Box<[u8]>,
    data: Box<[u8]>,
}

/// `EXLA_CustomCall_UserData`.
#[repr(C)]
struct Entry {
    struct_size: usize,
    name: *const u8,
    name_size: usize,
    data: *const u8,
    data_size: usize,
}

/// `PJRT_FFI_UserData_Add_Args`; later versions of the header have no deleter.
#[repr(C)]
struct AddArgs {
    struct_size: usize,
    extension_start: *mut PJRT_Extension_Base,
    context: *mut PJRT_ExecuteContext,
    type_id: i64,
    data: *mut c_void,
    deleter: *const c_void,
}

impl Default for AddArgs {
    fn default() -> Self {
        Self {
            struct_size: 0,
            extension_start: null_mut(),
            context: null_mut(),
            type_id: 0,
            data: null_mut(),
            deleter: null_mut(),
        }
    }
}

api_structs!(AddArgs);

// SAFETY: the pointers are to bytes of the struct's own, which nobody writes, and to a context, which executions
// read only and which may be freed from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if *self.is_kept.get_mut() {
            std::mem::forget(std::mem::take(&mut self.items));
            std::mem::forget(std::mem::take(&mut self.entries));
            return;
        }
        let mut args = Args::<PJRT_ExecuteContext_Destroy_Args>::new();
        args.context = self.raw.as_ptr();
        // SAFETY: this is the context's only owner, no execution has it any more, and its client is alive.
        let _ = unsafe { self.client.plugin().api().call(&mut args) };
    }
}

impl UserData {
    /// Copies the entries, `(name, bytes)`, for executions on the client.
    ///
    /// # Errors
    /// [`Error::NoUserData`] of a plugin that takes none, and [`Error::Pjrt`], as for a name that is there twice.
    pub fn new(client: &Client, entries: &[(&[u8], &[u8])]) -> Result<Self, Error> {
        let plugin = client.plugin();
        let absent = || Error::NoUserData {
            path: plugin.path().to_owned(),
        };
        let add = ffi::user_data_add(plugin.api()).ok_or_else(absent)?;
        let mut args = Args::<PJRT_ExecuteContext_Create_Args>::new();
        // SAFETY: the arguments hold no pointers.
        unsafe { plugin.api().call(&mut args) }?;
        let raw = NonNull::new(args.context).ok_or(Error::NullResult {
            name: "PJRT_ExecuteContext_Create",
            what: "context",
        })?;
        let items: Box<[Item]> = entries
            .iter()
            .map(|&(name, data)| Item {
                name: name.into(),
                data: data.into(),
            })
            .collect();
        let entries = items
            .iter()
            .map(|Item { name, data }| Entry {
                struct_size: size_of::<Entry>(),
                name: name.as_ptr(),
                name_size: name.len(),
                data: data.as_ptr(),
                data_size: data.len(),
            })
            .collect();
        let inner = Inner {
            client: client.clone(),
            raw,
            items,
            entries,
            is_kept: AtomicBool::new(false),
        };
        for (item, entry) in inner.items.iter().zip(&inner.entries) {
            let mut args = Args::<AddArgs>::new();
            args.context = raw.as_ptr();
            args.type_id = type_id(&item.name);
            args.data = std::ptr::from_ref(entry).cast_mut().cast();
            // SAFETY: the plugin's function for this purpose; the entry lives as long as the context, and without
            // a deleter it is not the plugin's to free.
            let error = unsafe { add(args.as_mut_ptr().cast()) };
            if let Some(error) = NonNull::new(error) {
                // SAFETY: the plugin returned the error to this caller.
                return Err(unsafe { plugin.api().take_error(error) });
            }
        }
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Never frees the data: for an execution of which nothing tells when it is over.
    pub(crate) fn keep(&self) {
        self.inner.is_kept.store(true, Ordering::Relaxed);
    }

    pub(crate) fn client(&self) -> &Client {
        &self.inner.client
    }

    pub(crate) fn raw(&self) -> NonNull<PJRT_ExecuteContext> {
        self.inner.raw
    }
}

impl PartialEq for UserData {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for UserData {}

impl fmt::Debug for UserData {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = formatter.debug_map();
        for Item { name, data } in &self.inner.items {
            map.entry(&name.escape_ascii().to_string(), &data.len());
        }
        map.finish()
    }
}

/// The id for a name: FNV-1a of 64 bits, with the highest bits 01. It is thus positive, and neither an address
/// nor one of the small numbers that XLA counts up from. Two names of one id cannot be in one execution, and a
/// handler compares the name.
pub(crate) fn type_id(name: &[u8]) -> i64 {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash & (u64::MAX >> 2) | 1 << 62).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::client;

    #[test]
    fn the_id_of_a_name_is_the_same_everywhere() {
        assert_eq!(type_id(b"com.example.settings"), 0x7ce9d97ec7710a4d);
    }

    #[test]
    fn a_name_is_taken_once() {
        let twice: &[(&[u8], &[u8])] = &[(b"a", b"1"), (b"a", b"2")];
        let error = UserData::new(client(), twice).unwrap_err();
        assert!(matches!(error, Error::Pjrt { .. }), "{error}");
        let once = UserData::new(client(), &[(b"a", b"12"), (b"b", b"")]).unwrap();
        assert_eq!(format!("{once:?}"), r#"{"a": 2, "b": 0}"#);
    }
}

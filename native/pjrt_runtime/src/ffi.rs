//! Registration of FFI handlers.
//!
//! A plugin takes handlers by its FFI extension, or by its GPU custom-call extension where it is older
//! ([`registrar`]). The first takes a function for the execute stage alone. XLA itself takes a
//! bundle of functions for all stages, by a function in the table that it lends to handlers, and lends it to
//! one that is registered for nothing but to see it ([`handshake`]).
//!
//! Not offered: types that are no state of a handler (`PJRT_FFI_TypeID_Register`; [`crate::UserData`] needs none),
//! and the stage that records a GPU's commands.

mod handshake;
mod registrar;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use handshake::Handshake;
use registrar::Registrar;

use crate::api::Api;
use crate::library::{Handler, Library, Stages, TableEntry};
use crate::{Client, Error};

/// The plugin's function that adds user data to an execution, if it has one.
pub(crate) fn user_data_add(api: &Api) -> Option<registrar::RegisterFunction> {
    registrar::user_data_add(api)
}

/// A handler that was registered.
#[derive(Debug)]
pub(crate) struct Registration {
    addresses: [usize; 4],
    traits: u32,
    origin: String,
}

impl Registration {
    fn of(stages: &Stages) -> Self {
        Self {
            addresses: stages.addresses(),
            traits: stages.traits,
            origin: stages.execute.origin().to_owned(),
        }
    }

    /// Which of two handlers this is, in words that tell it from the other.
    fn describe(&self, other: &Self) -> String {
        let Self {
            addresses,
            traits,
            origin,
        } = self;
        if addresses[3] != other.addresses[3] {
            origin.clone()
        } else if addresses != &other.addresses {
            let names = ["instantiate", "prepare", "initialize", "execute"];
            let present = names
                .iter()
                .zip(addresses)
                .filter(|(_, address)| **address != 0);
            let present: Vec<_> = present.map(|(name, _)| *name).collect();
            format!("{origin} for the stages {}", present.join(", "))
        } else {
            format!("{origin} with traits {traits}")
        }
    }
}

impl Client {
    /// Registers a handler for custom calls of `target` with `api_version = 4`.
    ///
    /// The registration holds for all clients of the plugin and for the life of the process.
    /// Registering the same handler again does nothing. XLA calls the handler to ask for its
    /// metadata. `traits` are those of `XLA_FFI_Handler_TraitsBits`; the handler's own are added.
    ///
    /// # Errors
    /// Those of [`Client::register_handlers`].
    pub fn register_handler(
        &self,
        target: &[u8],
        handler: &Handler,
        traits: u32,
    ) -> Result<(), Error> {
        let stages = Stages {
            traits,
            ..Stages::execute(handler.clone())
        };
        self.register_handlers(&[(target.to_vec(), stages)])
    }

    /// Registers handlers of one stage or more, each for custom calls of its target: all of them, or, where one
    /// of them cannot be, none.
    ///
    /// The registrations hold for all clients of the plugin and for the life of the process. What is registered
    /// already stays as it is.
    ///
    /// # Errors
    /// [`Error::NoFfiExtension`] or [`Error::NoRegisterHandler`] where the plugin takes no handlers,
    /// [`Error::HandlerRejected`] for one that XLA would not take, [`Error::HandlerConflict`] for a target that
    /// has another handler, or [`Error::Pjrt`]. The last, where XLA refuses what passed all checks,
    /// leaves the handlers before it registered.
    pub fn register_handlers(&self, handlers: &[(Vec<u8>, Stages)]) -> Result<(), Error> {
        let plugin = self.plugin();
        let registrar = Registrar::of(plugin.api(), plugin.api_version().1, plugin.path())?;
        register(&registrar, &plugin.handlers, self.ffi_platform(), handlers)
    }

    /// Registers the handlers that a library's table has for this client's platform, as
    /// [`Client::register_handlers`] does, and returns their targets.
    ///
    /// # Errors
    /// Besides those: [`Error::NoTable`], [`Error::BrokenTable`], and [`Error::NoHandlersFor`] where all
    /// handlers of the table are for other platforms.
    pub fn register_library(&self, library: &Library) -> Result<Vec<Vec<u8>>, Error> {
        let entries = library.handlers()?.ok_or_else(|| Error::NoTable {
            library: library.path().to_owned(),
        })?;
        let platforms: Vec<_> = entries.iter().map(|entry| entry.platform.clone()).collect();
        let ours: Vec<_> = entries
            .into_iter()
            .filter(|entry| self.is_for(entry))
            .map(|entry| (entry.target, entry.stages))
            .collect();
        if ours.is_empty() && !platforms.is_empty() {
            let mut found = platforms;
            found.sort_unstable();
            found.dedup();
            return Err(Error::NoHandlersFor {
                library: library.path().to_owned(),
                platform: self.ffi_platform().to_owned(),
                found,
            });
        }
        self.register_handlers(&ours)?;
        Ok(ours.into_iter().map(|(target, _)| target).collect())
    }

    /// Whether XLA would find the handler on this client's platform. It knows some by several names.
    fn is_for(&self, entry: &TableEntry) -> bool {
        let canonical = |name: &str| match name.to_ascii_lowercase() {
            name if name == "cpu" => "host".to_owned(),
            name => name,
        };
        let ours = canonical(self.ffi_platform());
        let theirs = canonical(&entry.platform);
        theirs == ours || (theirs == "gpu" && matches!(ours.as_str(), "cuda" | "rocm"))
    }
}

/// The handlers that were registered with a plugin, by platform and target.
pub(crate) type Registrations = HashMap<(String, Vec<u8>), Registration>;

/// Registers handlers for targets on `platform`, each once.
fn register(
    registrar: &Registrar<'_>,
    registered: &Mutex<Registrations>,
    platform: &str,
    handlers: &[(Vec<u8>, Stages)],
) -> Result<(), Error> {
    // Held until the end: XLA keeps the first handler of a name, and tells nobody of a second one.
    let mut registered = registered.lock().unwrap_or_else(PoisonError::into_inner);
    let key = |target: &[u8]| (platform.to_owned(), target.to_vec());

    let mut new = HashMap::new();
    let mut order = Vec::new();
    for (target, stages) in handlers {
        if target.is_empty() {
            return Err(rejected(target, "the target name is empty".to_owned()));
        }
        let registration = Registration::of(stages);
        let key = key(target);
        let known = registered.get(&key).or_else(|| new.get(&key));
        if let Some(known) = known {
            if known.addresses != registration.addresses || known.traits != registration.traits {
                return Err(Error::HandlerConflict {
                    target: String::from_utf8_lossy(target).into_owned(),
                    platform: platform.to_owned(),
                    registered: known.describe(&registration),
                    refused: registration.describe(known),
                });
            }
        } else {
            new.insert(key, registration);
            order.push((target, stages));
        }
    }
    if order.is_empty() {
        return Ok(());
    }

    // XLA asks the same of a handler and drops one that fails it, some versions of it without a word. So it is
    // asked of all of them before the first is registered.
    let handshake = registrar.handshake(platform);
    for (target, stages) in &order {
        registrar
            .check(handshake.is_some(), stages)
            .and_then(|()| match &handshake {
                // SAFETY: `Stages` vouches for the functions and for the type.
                Some(handshake) => unsafe { check(handshake, stages) },
                None => Ok(()),
            })
            .map_err(|reason| rejected(target, reason))?;
    }
    for (target, stages) in order {
        // SAFETY: `Stages` vouches for the functions.
        unsafe { registrar.register(handshake.as_ref(), platform, target, stages) }?;
        let key = key(target);
        if let Some(registration) = new.remove(&key) {
            registered.insert(key, registration);
        }
    }
    Ok(())
}

/// Asks each function for its metadata, as XLA will.
///
/// # Safety
/// The functions are handlers that are never unloaded, and so is the type.
unsafe fn check(handshake: &Handshake, stages: &Stages) -> Result<(), String> {
    // A handler that makes a state answers with an error as long as the state's type is not registered.
    if let Some(state) = &stages.state {
        // SAFETY: the caller vouches for it.
        unsafe { handshake.register_type(state) }
            .map_err(|error| format!("the type of its state: {error}"))?;
    }
    for handler in stages.functions().into_iter().flatten() {
        // SAFETY: the caller vouches for it; the frame is built like XLA's own.
        unsafe { handshake.shake(handler) }?;
    }
    Ok(())
}

fn rejected(target: &[u8], reason: String) -> Error {
    Error::HandlerRejected {
        target: String::from_utf8_lossy(target).into_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests;

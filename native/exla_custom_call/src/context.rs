use crate::{
    error::{binary, Error},
    graph::{self, Refusal},
    reaper,
};
use rustler::{Binary, Env, NifResult, Resource, ResourceArc, Term};
use stablehlo_custom_call::{dictionary_text, Context, Limits, SharedContext};

/// A context that many modules can be built in.
pub(crate) struct ContextResource {
    /// Taken when the resource is freed.
    context: Option<SharedContext>,
}

#[rustler::resource_impl]
impl Resource for ContextResource {}

impl ContextResource {
    pub(crate) fn get(&self) -> NifResult<&SharedContext> {
        self.context.as_ref().ok_or(rustler::Error::BadArg)
    }
}

impl Drop for ContextResource {
    fn drop(&mut self) {
        // All types and attributes that were ever made in it are freed with it.
        if let Some(context) = self.context.take() {
            reaper::free(context);
        }
    }
}

/// `rotate_after` is `nil` where the context is to be kept for good.
#[rustler::nif]
fn context_new(
    max_nesting: usize,
    max_text_bytes: usize,
    max_array_bytes: u64,
    rotate_after: Option<usize>,
) -> ResourceArc<ContextResource> {
    let limits = Limits {
        max_nesting: max_nesting.min(Limits::NESTING_CEILING),
        max_text_bytes,
        max_array_bytes,
    };
    ResourceArc::new(ContextResource {
        context: Some(SharedContext::new(limits, rotate_after)),
    })
}

/// `{modules, refused, texts, text_bytes, bytes, rotations, builders}`
#[rustler::nif]
fn context_stats(context: ResourceArc<ContextResource>) -> NifResult<StatsTerm> {
    let stats = context.get()?.stats();
    Ok((
        stats.modules,
        stats.refused,
        stats.texts,
        stats.text_bytes,
        stats.bytes,
        stats.rotations,
        stats.builders,
    ))
}

type StatsTerm = (u64, u64, u64, u64, u64, u64, u64);

/// The text of a dictionary of `{name, text}` entries, each parsed alone.
#[rustler::nif(schedule = "DirtyCpu")]
fn attribute_dictionary<'a>(
    env: Env<'a>,
    entries: Term<'a>,
) -> NifResult<Result<Binary<'a>, Error>> {
    let entries = match graph::named_texts(entries) {
        Ok(entries) => entries,
        Err(Refusal::Graph(error)) => return Ok(Err(error)),
        Err(Refusal::Term(error)) => return Err(error),
    };
    let text = dictionary_text(&Context::new(Limits::default()), &entries);
    Ok(text.map(|text| binary(env, &text)).map_err(Error::from))
}

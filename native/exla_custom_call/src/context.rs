use crate::reaper;
use rustler::{Resource, ResourceArc};
use stablehlo_custom_call::{Context, Limits};

/// An MLIR context that modules can be built in.
pub(crate) struct ContextResource {
    /// Taken when the resource is freed.
    context: Option<Context>,
}

#[rustler::resource_impl]
impl Resource for ContextResource {}

impl ContextResource {
    pub(crate) fn get(&self) -> rustler::NifResult<&Context> {
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

#[rustler::nif]
fn context_new(max_nesting: usize, max_text_bytes: usize) -> ResourceArc<ContextResource> {
    ResourceArc::new(ContextResource {
        context: Some(Context::new(Limits {
            max_nesting: max_nesting.min(Limits::NESTING_CEILING),
            max_text_bytes,
        })),
    })
}

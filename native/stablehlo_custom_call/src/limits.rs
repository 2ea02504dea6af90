/// What a [`Context`](crate::Context) refuses before MLIR's parser sees it.
///
/// MLIR's attribute parser recurses once a bracket, so a text of some thousand nested brackets
/// overflows the stack of the thread that parses it. The default ceiling keeps a thread with 320 KiB
/// of stack, a BEAM dirty scheduler's default, safe with a wide margin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The deepest nesting of brackets in one attribute text, of operators in one affine
    /// expression, and of regions in one function.
    pub max_nesting: usize,
    /// The longest attribute text, in bytes.
    pub max_text_bytes: usize,
    /// The bytes that the arrays of all custom calls of a module may make XLA allocate: `dense<0> :
    /// tensor<1000000000xi64>` is short as a text, and XLA writes out every element.
    pub max_array_bytes: u64,
}

impl Limits {
    /// No limit on nesting may be set higher than this: it is what the smallest stack that parses
    /// texts was tested with.
    pub const NESTING_CEILING: usize = 64;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_nesting: Self::NESTING_CEILING,
            max_text_bytes: 1 << 20,
            max_array_bytes: 1 << 26,
        }
    }
}

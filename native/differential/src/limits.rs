//! What the package refuses though XLA takes it: on purpose, and written down.

/// A limit of the package's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Part of the message of the refusal.
    pub words: &'static str,
    pub reason: &'static str,
}

/// Every limit there is. A refusal that is none of these has to be XLA's too.
pub const LIMITS: &[Limit] = &[
    Limit {
        words: "nests deeper than ",
        reason: "the parser recurses, and the stack of a scheduler's thread is small",
    },
    Limit {
        words: ", more than the limit of ",
        reason: "a text is read in one go",
    },
    Limit {
        words: "a comment has no place in an attribute",
        reason: "dialects' attributes read comments in another way than the rest does",
    },
    Limit {
        words: "sparse elements are not taken",
        reason: "MLIR 19 crashes over many of them",
    },
    Limit {
        words: "an array has elements of i1, or of 8, 16, 32 or 64 bits",
        reason: "MLIR 19 crashes over other elements",
    },
    Limit {
        words: "the elements of an array of i1 are true and false",
        reason: "MLIR 19 crashes over digits there",
    },
    Limit {
        words: "the elements of a complex type are pairs",
        reason: "MLIR 19 crashes over other elements",
    },
    Limit {
        words: "a pair is an element of a complex type only",
        reason: "MLIR 19 reads beyond its memory over them",
    },
    Limit {
        words: "an integer type has at most 128 bits",
        reason: "a short text would take megabytes",
    },
    Limit {
        words: "a number has at most 1024 digits",
        reason: "reading one takes the square of its length",
    },
    Limit {
        words: "a word has at most 1024 characters",
        reason: "reading one takes the square of its length",
    },
    Limit {
        words: "there are more than 1024 dimensions",
        reason: "reading them takes the square of their number",
    },
    Limit {
        words: "is not valid UTF-8; MLIR identifiers are UTF-8 text",
        reason: "names are text in Elixir",
    },
    Limit {
        words: "holds a NUL byte; MLIR identifiers cannot",
        reason: "C interfaces end a name there",
    },
    Limit {
        words: "the attribute name \"mhlo.backend_config\" is reserved",
        reason: "it would shadow the spec's own backend_config",
    },
];

/// The limit that a refusal is.
pub fn of(message: &str) -> Option<&'static Limit> {
    LIMITS.iter().find(|limit| message.contains(limit.words))
}

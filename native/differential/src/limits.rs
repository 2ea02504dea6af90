//! What the package refuses though XLA takes it: on purpose, and written down.

/// A limit of the package's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Part of the message of the refusal.
    pub words: &'static str,
    /// Parts of the text that the message quotes, of which it has to have one; empty for any text.
    pub texts: &'static [&'static str],
    pub reason: &'static str,
}

/// Every limit there is. A refusal that is none of these has to be XLA's too.
pub const LIMITS: &[Limit] = &[
    Limit {
        words: ", an integer, found ",
        texts: &["found \"true\"", "found \"false\""],
        reason: "Shardy reads them as -1 and 0, which says something else than what stands there",
    },
    Limit {
        words: "nests deeper than ",
        texts: &[],
        reason: "the parser recurses, and the stack of a scheduler's thread is small",
    },
    Limit {
        words: ", more than the limit of ",
        texts: &[],
        reason: "a text is read in one go",
    },
    Limit {
        words: "a comment has no place in an attribute",
        texts: &[],
        reason: "dialects' attributes read comments in another way than the rest does",
    },
    Limit {
        words: "sparse elements are not taken",
        texts: &[],
        reason: "MLIR 19 crashes over many of them",
    },
    Limit {
        words: "an array has elements of i1, or of 8, 16, 32 or 64 bits",
        texts: &[],
        reason: "MLIR 19 crashes over other elements",
    },
    Limit {
        words: "the elements of an array of i1 are true and false",
        texts: &[],
        reason: "MLIR 19 crashes over digits there",
    },
    Limit {
        words: "the elements of a complex type are pairs",
        texts: &[],
        reason: "MLIR 19 crashes over other elements",
    },
    Limit {
        words: "a pair is an element of a complex type only",
        texts: &[],
        reason: "MLIR 19 reads beyond its memory over them",
    },
    Limit {
        words: "an integer type has at most 128 bits",
        texts: &[],
        reason: "a short text would take megabytes",
    },
    Limit {
        words: "a number has at most 1024 digits",
        texts: &[],
        reason: "reading one takes the square of its length",
    },
    Limit {
        words: "a word has at most 1024 characters",
        texts: &[],
        reason: "reading one takes the square of its length",
    },
    Limit {
        words: "there are more than 1024 dimensions",
        texts: &[],
        reason: "reading them takes the square of their number",
    },
    Limit {
        words: "is not valid UTF-8; MLIR identifiers are UTF-8 text",
        texts: &[],
        reason: "names are text in Elixir",
    },
    Limit {
        words: "holds a NUL byte; MLIR identifiers cannot",
        texts: &[],
        reason: "C interfaces end a name there",
    },
    Limit {
        words: "\" is reserved; ",
        texts: &[],
        reason: "the spec has a field for it, or it would shadow one",
    },
    Limit {
        words: "a float is too large for its type",
        texts: &[],
        reason: "MLIR makes an infinity of it, which nobody wrote",
    },
    Limit {
        words: "of the attributes of dialects, a custom call takes those of sdy",
        texts: &[],
        reason: "those of others are not read here, and XLA ends the process over some",
    },
    Limit {
        words: "of the types of dialects, a custom call's attributes take",
        texts: &[],
        reason: "those of others are not read here, and XLA ends the process over some",
    },
    Limit {
        words: "XLA's compiler takes this custom call apart itself",
        texts: &[],
        reason: "over some operands and attributes it ends the process",
    },
    Limit {
        words: "XLA's own custom call of this name has",
        texts: &[],
        reason: "over others it ends the process, or the run",
    },
    Limit {
        words: "call_target_name: it is empty",
        texts: &[],
        reason: "no handler can have that name",
    },
    Limit {
        words: "raise max_array_bytes of the context",
        texts: &[],
        reason: "XLA writes all elements out, as often as it copies the custom call",
    },
    Limit {
        words: "a resource has no bytes here",
        texts: &[],
        reason: "nobody can give a resource its bytes, and MLIR 19 reads fewer names of them",
    },
    Limit {
        words: "of the 8-bit floats there are",
        texts: NEW_TYPES,
        reason: "the types came after MLIR 19",
    },
    Limit {
        words: "XLA divides by zero where it transposes",
        texts: &[],
        reason: "it does so where the value is used, which the custom call alone does not tell",
    },
    Limit {
        words: "XLA counts through the dimensions before the one of size 0",
        texts: &[],
        reason: "it does so where the value is used, as above",
    },
    Limit {
        words: ", and takes a list for each",
        texts: &[],
        reason:
            "PJRT 0.115 fails a check over fewer lists where results are used, and 0.106 reads none",
    },
    Limit {
        words: "MLIR reads it, but not what it prints for it",
        texts: &[],
        reason: "the module could not be read back",
    },
    Limit {
        words: "XLA's compiler ends the process over such a literal",
        texts: &[],
        reason:
            "it does so over types that it lacks, and a literal has no other use than as an operand",
    },
    Limit {
        words: "its grid has another size than its list of devices",
        texts: &[],
        reason: "XLA reads an mhlo.sharding unless there is an sdy.sharding, too",
    },
    Limit {
        words: "it has a part that is manual, unknown or in subgroups",
        texts: &[],
        reason: "XLA fails checks over them where it partitions",
    },
    Limit {
        words: "its grid splits ",
        texts: &[],
        reason: "XLA reads an mhlo.sharding unless there is an sdy.sharding, too",
    },
    Limit {
        words: "XLA writes the entry itself",
        texts: &[],
        reason: "XLA reads memory that is not there over them where Shardy partitions",
    },
    Limit {
        words: "only tensors can be split",
        texts: &[],
        reason: "XLA fails a check over it unless nobody uses the value",
    },
    Limit {
        words: "the module has mhlo.sharding, which Shardy does not read",
        texts: &[],
        reason: "PJRT 0.115 fails a check over those that are not replicated",
    },
];

/// Types that came after MLIR 19.
const NEW_TYPES: &[&str] = &[
    "f8E3M4",
    "f8E4M3",
    "f8E8M0FNU",
    "f4E2M1FN",
    "f6E2M3FN",
    "f6E3M2FN",
];

/// The limit that a refusal is. One of several faults, numbered line by line, is one where each fault is.
pub fn of(message: &str) -> Option<&'static Limit> {
    match message.split_once(" faults:\n") {
        Some((count, faults)) if count.bytes().all(|byte| byte.is_ascii_digit()) => {
            let limits: Option<Vec<_>> = faults.lines().map(of_one).collect();
            limits?.first().copied()
        }
        _ => of_one(message),
    }
}

fn of_one(message: &str) -> Option<&'static Limit> {
    LIMITS.iter().find(|limit| {
        let quotes = |text: &&str| message.contains(text);
        message.contains(limit.words) && (limit.texts.is_empty() || limit.texts.iter().any(quotes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_known_by_its_words_and_where_it_says_so_by_the_text() {
        assert!(of("the text of \"k\" nests deeper than 64 at line 1").is_some());
        let refusal = |text: &str| {
            format!("of the 8-bit floats there are f8E5M2, at line 1, column 1: \"{text}\"")
        };
        assert!(of(&refusal("f8E3M4")).is_some());
        assert_eq!(of(&refusal("f33")), None);
    }

    #[test]
    fn several_faults_are_a_limit_where_each_of_them_is() {
        let deep = "the text of \"k\" nests deeper than 64 at line 1";
        assert!(of(&format!("2 faults:\n  1. {deep}\n  2. {deep}")).is_some());
        assert_eq!(
            of(&format!("2 faults:\n  1. {deep}\n  2. something else")),
            None
        );
    }
}

//! Attributes and types of dialects, `#dialect.name<...>` and `!dialect.name<...>`.
//!
//! MLIR takes those of any dialect here, since none is registered; XLA takes those of its own dialects
//! only, and reads them. Both CPU plugins have the same dialects.

use super::aliases::Alias;
use crate::error::Quoted;
use crate::shardy::{self, find_place};

/// Where an attribute text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// In the dictionary of a typed FFI handler, which XLA reads again without any dialect.
    TypedFfi,
    /// On a custom call.
    CustomCall,
    /// On a module, a function or another operation.
    Elsewhere,
}

/// The dialects whose attributes and types XLA reads.
const DIALECTS: [&str; 13] = [
    "arith",
    "cf",
    "chlo",
    "func",
    "mhlo",
    "ml_program",
    "quant",
    "sdy",
    "shape",
    "sparse_tensor",
    "stablehlo",
    "tensor",
    "vhlo",
];

/// What is wrong with an attribute or a type of a dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Its dialect does not read it.
    Syntax(String),
    /// It can be read and is not taken: what was found, and what would be right.
    Rule { found: String, expected: String },
}

fn rule(found: impl Into<String>, expected: impl Into<String>) -> Wrong {
    Wrong::Rule {
        found: found.into(),
        expected: expected.into(),
    }
}

/// Checks the symbol that begins at `at` with a `#` or a `!`. The error is a byte of the text, and what
/// is wrong there.
pub(crate) fn check(text: &[u8], at: usize, position: Position) -> Result<(), (usize, Wrong)> {
    let is_type = text.get(at) == Some(&b'!');
    let name = word(text, at + 1);
    let after = at + 1 + name.len();
    let opens = text.get(after) == Some(&b'<');
    // `#map`: an alias, which MLIR does not know.
    if name.is_empty() || (!opens && !name.contains(&b'.')) {
        return Ok(());
    }
    let end = if opens {
        end_of_body(text, after)
    } else {
        after
    };
    let symbol = &text[at..end];
    let dialect = name.split(|&byte| byte == b'.').next().unwrap_or_default();
    let shown = String::from_utf8_lossy(dialect).into_owned();
    if position == Position::TypedFfi {
        return Err((
            at,
            rule(
                "what belongs to a dialect reaches no handler",
                "write it as a string",
            ),
        ));
    }
    if !DIALECTS.iter().any(|known| known.as_bytes() == dialect) {
        return Err((
            at,
            rule(
                format!("XLA has no dialect {shown}"),
                format!("it reads attributes and types of {}", DIALECTS.join(", ")),
            ),
        ));
    }
    if dialect == b"sdy" && !is_type {
        let attribute = shardy::Attribute::parse(symbol)
            .map_err(|fault| (at + fault.offset, Wrong::Syntax(fault.message)))?;
        // What Shardy checks of an attribute wherever it stands.
        return match attribute.verify().into_iter().next() {
            Some(fault) => {
                let place = at + find_place(symbol, &fault.place);
                let (found, expected) = fault.parts();
                Err((place, rule(found, expected)))
            }
            None => Ok(()),
        };
    }
    if position == Position::Elsewhere {
        return Ok(());
    }
    if symbol == b"!stablehlo.token" {
        return Ok(());
    }
    if !is_type && dialect == b"stablehlo" {
        let (data, from) = data(symbol);
        let mnemonic = b"output_operand_alias";
        if data.starts_with(mnemonic) {
            return Alias::parse(data).map(|_| ()).map_err(|wrong| {
                (
                    at + from + wrong,
                    Wrong::Syntax(
                        "an alias is #stablehlo.output_operand_alias<output_tuple_indices = [], \
                         operand_index = 0, operand_tuple_indices = []>"
                            .into(),
                    ),
                )
            });
        }
    }
    Err((
        at,
        if is_type {
            rule(
                format!("it is {}", Quoted(symbol)),
                "of the types of dialects, a custom call's attributes take !stablehlo.token only",
            )
        } else {
            rule(
                format!("it is {}", Quoted(symbol)),
                "of the attributes of dialects, a custom call takes those of sdy and \
                 #stablehlo.output_operand_alias",
            )
        },
    ))
}

/// What follows the dialect's name, in the short form or in the long one, `#dialect<...>`, and where.
fn data(symbol: &[u8]) -> (&[u8], usize) {
    match symbol.iter().position(|byte| matches!(byte, b'.' | b'<')) {
        Some(at) if symbol[at] == b'.' => (&symbol[at + 1..], at + 1),
        Some(at) => {
            let end = symbol.len() - usize::from(symbol.ends_with(b">"));
            (symbol.get(at + 1..end).unwrap_or_default(), at + 1)
        }
        None => (&[], symbol.len()),
    }
}

/// As MLIR lexes what follows a `#` or a `!`.
fn word(text: &[u8], at: usize) -> &[u8] {
    let rest = text.get(at..).unwrap_or_default();
    let begins = rest
        .first()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_');
    let length = rest
        .iter()
        .position(|byte| !byte.is_ascii_alphanumeric() && !b"_$.-".contains(byte))
        .unwrap_or(rest.len());
    if begins {
        &rest[..length]
    } else {
        &[]
    }
}

/// The index after the bracket that closes the one at `open`.
fn end_of_body(text: &[u8], open: usize) -> usize {
    let mut depth = 0usize;
    let mut at = open;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => {
                at = crate::scan::end_of_string(text, at + 1);
                continue;
            }
            b'-' if text.get(at + 1) == Some(&b'>') => at += 1,
            b'<' | b'[' | b'(' | b'{' => depth += 1,
            b'>' | b']' | b')' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    text.len()
}

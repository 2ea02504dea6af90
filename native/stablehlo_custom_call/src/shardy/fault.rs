pub(super) use crate::error::Count;
use std::fmt::{self, Display, Formatter};

/// Why a text is no attribute of Shardy's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxFault {
    /// The byte of the text that is wrong.
    pub offset: usize,
    /// What was found there and what would be right.
    pub message: String,
}

impl Display for SyntaxFault {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (at byte {})", self.message, self.offset)
    }
}

impl std::error::Error for SyntaxFault {}

/// A rule that an attribute breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The part of the attribute, or the value that it is about: `operand 1, dimension 0`.
    pub place: String,
    /// What was found there and what would be right.
    pub message: String,
}

impl Fault {
    /// Place and finding, and what would be right. A message has the two with a semicolon between.
    pub(crate) fn parts(&self) -> (String, String) {
        let (found, expected) = self
            .message
            .rsplit_once("; ")
            .unwrap_or((&self.message, "see Shardy's rules"));
        (format!("{}: {found}", self.place), expected.into())
    }
}

impl Display for Fault {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.message)
    }
}

/// The most faults that are told one by one. One more says how many there are beside these.
pub const MOST_FAULTS: usize = 64;

/// The faults of one attribute, so far.
#[derive(Default)]
pub(super) struct Faults {
    told: Vec<Fault>,
    others: usize,
}

impl Faults {
    /// Neither the place nor the message is made where nobody would read them.
    pub(super) fn add(&mut self, place: impl Display, message: fmt::Arguments<'_>) {
        if self.told.len() == MOST_FAULTS {
            self.others += 1;
            return;
        }
        self.told.push(Fault {
            place: place.to_string(),
            message: message.to_string(),
        });
    }

    pub(super) fn into_vec(mut self) -> Vec<Fault> {
        if self.others > 0 {
            self.told.push(Fault {
                place: "the attribute".into(),
                message: format!("it has {} faults more", self.others),
            });
        }
        self.told
    }
}

const LONGEST_QUOTE: usize = 60;

/// Bytes of a text, quoted, and cut where they are many.
pub(super) struct Quoted<'a>(pub &'a [u8]);

impl Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let cut = self.0.len() > LONGEST_QUOTE;
        let bytes = &self.0[..self.0.len().min(LONGEST_QUOTE)];
        formatter.write_str("\"")?;
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            for character in chunk.valid().chars() {
                match character {
                    '\'' => formatter.write_str("'")?,
                    _ => write!(formatter, "{}", character.escape_debug())?,
                }
            }
            // A character that the cut went through is no fault of the text.
            if cut && chunks.peek().is_none() {
                break;
            }
            for byte in chunk.invalid() {
                write!(formatter, "\\x{byte:02x}")?;
            }
        }
        formatter.write_str(if cut { "\"..." } else { "\"" })
    }
}

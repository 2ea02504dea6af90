//! Two answers to one question, compared.

use std::fmt;

use crate::checker::Ours;
use crate::limits::{self, Limit};
use crate::plugin::Theirs;

/// How answers differ that should not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The package's own process ended, or hung.
    CheckerDies,
    /// The package accepts what ends XLA's process.
    AcceptsWhatEndsXla,
    /// The package accepts what XLA refuses to read.
    AcceptsWhatXlaRefuses,
    /// The package refuses what every plugin accepts.
    RefusesWhatXlaAccepts,
    /// The package accepts what XLA refuses later, in words.
    AcceptsWhatXlaRefusesLater,
    /// XLA's process ended over something accepted, and did not when it was asked again.
    Unsteady,
}

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::CheckerDies,
        Self::AcceptsWhatEndsXla,
        Self::AcceptsWhatXlaRefuses,
        Self::RefusesWhatXlaAccepts,
        Self::AcceptsWhatXlaRefusesLater,
        Self::Unsteady,
    ];

    /// Whether it breaks a promise; the others are reported only.
    pub fn is_fault(self) -> bool {
        !matches!(self, Self::AcceptsWhatXlaRefusesLater | Self::Unsteady)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::CheckerDies => "the checker dies",
            Self::AcceptsWhatEndsXla => "accepted, and ends XLA",
            Self::AcceptsWhatXlaRefuses => "accepted, and XLA refuses to read it",
            Self::RefusesWhatXlaAccepts => "refused, and XLA accepts it",
            Self::AcceptsWhatXlaRefusesLater => {
                "accepted, and XLA refuses it later, in words (known: see guides/checking.md)"
            }
            Self::Unsteady => "accepted, and ended XLA once but not again",
        })
    }
}

/// What becomes of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    BothAccept,
    BothRefuse,
    /// A refusal that is a limit of the package's.
    Limit(&'static Limit),
    /// A refusal for which XLA cannot be asked the same, and why.
    NotComparable(&'static str),
    Differ(Class),
}

/// Disagreements that look alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    pub kind: Kind,
    /// The package's message, without names and numbers.
    pub ours: String,
    /// Each plugin's word and message, likewise.
    pub theirs: Vec<String>,
}

/// Why nothing follows from XLA's taking a custom call that is dead.
const DEAD: &str = "XLA drops the custom call unread";

/// Compares; `theirs` has an answer of each plugin, in order, or why there is none. `dead` is whether
/// XLA drops the custom call as [dead code](crate::case::Case::is_dead).
pub fn judge(ours: &Ours, theirs: &Result<Vec<Theirs>, &'static str>, dead: bool) -> Verdict {
    let said = match ours {
        Ours::Accepts { .. } => String::new(),
        Ours::Refuses { message, .. } => shape(message),
        Ours::Dies { cause, stderr } => {
            format!("dies: {cause} {}", stderr.last().map_or("", String::as_str))
        }
        Ours::Hangs => "hangs".into(),
    };
    let differ = |kind, theirs: &[Theirs]| {
        Verdict::Differ(Class {
            kind,
            ours: said.clone(),
            theirs: theirs
                .iter()
                .map(|theirs| match theirs.gist() {
                    "" => theirs.word().to_owned(),
                    gist => format!("{}: {}", theirs.word(), shape(gist)),
                })
                .collect(),
        })
    };
    let (answers, reason) = match theirs {
        Ok(theirs) => (theirs.as_slice(), None),
        Err(reason) => (&[][..], Some(*reason)),
    };
    match ours {
        Ours::Dies { .. } | Ours::Hangs => differ(Kind::CheckerDies, &[]),
        Ours::Accepts { .. } => {
            let any = |is_one: fn(&Theirs) -> bool| answers.iter().any(is_one);
            if any(Theirs::is_end) {
                differ(Kind::AcceptsWhatEndsXla, answers)
            } else if any(|theirs| matches!(theirs, Theirs::RefusesToRead { .. })) {
                differ(Kind::AcceptsWhatXlaRefuses, answers)
            } else if any(|theirs| matches!(theirs, Theirs::RefusesToCompile { .. })) {
                differ(Kind::AcceptsWhatXlaRefusesLater, answers)
            } else {
                Verdict::BothAccept
            }
        }
        Ours::Refuses { message, .. } => {
            if let Some(reason) = reason {
                Verdict::NotComparable(reason)
            } else if answers.iter().any(|theirs| *theirs != Theirs::Accepts) {
                Verdict::BothRefuse
            } else if let Some(limit) = limits::of(message) {
                Verdict::Limit(limit)
            } else if dead {
                Verdict::NotComparable(DEAD)
            } else {
                differ(Kind::RefusesWhatXlaAccepts, answers)
            }
        }
    }
}

const LONGEST_SHAPE: usize = 160;

/// A message without what differs from case to case: quotations, numbers, types, names.
pub fn shape(message: &str) -> String {
    // What follows these words is the case's own.
    const OWN: [&str; 5] = [
        " sharding=",
        " attribute: ",
        "unknown mesh: ",
        "); got",
        "%custom-call",
    ];
    let end = OWN
        .iter()
        .filter_map(|words| message.find(words).map(|at| at + words.len()))
        .min()
        .unwrap_or(message.len());
    let mut shape = String::new();
    let mut rest = message[..end].chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '"' | '\'' if !shape.ends_with(char::is_alphanumeric) => {
                let mut escaped = false;
                for inner in rest.by_ref() {
                    if inner == character && !escaped {
                        break;
                    }
                    escaped = inner == '\\' && !escaped;
                }
                shape.push_str("'_'");
            }
            '0'..='9' => {
                while rest.peek().is_some_and(char::is_ascii_digit) {
                    rest.next();
                }
                shape.push('N');
            }
            '<' | '[' | '{' if shape.ends_with(char::is_alphanumeric) || character != '<' => {
                // A type, a list.
                let mut depth = 1;
                for inner in rest.by_ref() {
                    match inner {
                        '<' | '[' | '{' | '(' => depth += 1,
                        '>' | ']' | '}' | ')' => depth -= 1,
                        _ => {}
                    }
                    if depth == 0 {
                        break;
                    }
                }
                shape.push(character);
                shape.push_str("..");
            }
            _ => shape.push(character),
        }
        if shape.len() >= LONGEST_SHAPE {
            break;
        }
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts() -> Ours {
        Ours::Accepts { program: vec![] }
    }

    fn refuses(message: &str) -> Ours {
        Ours::Refuses {
            kind: "Text".into(),
            message: message.into(),
        }
    }

    fn dies() -> Theirs {
        Theirs::Dies {
            message: "SIGSEGV".into(),
        }
    }

    fn refuses_to_read() -> Theirs {
        Theirs::RefusesToRead {
            message: "UNKNOWN: -:3:4: error: expected ']' at 7\nmore".into(),
        }
    }

    fn refuses_later() -> Theirs {
        Theirs::RefusesToCompile {
            message: "INVALID_ARGUMENT: Unsupported attribute type for attribute: k".into(),
        }
    }

    fn kind(verdict: &Verdict) -> Option<Kind> {
        match verdict {
            Verdict::Differ(class) => Some(class.kind),
            _ => None,
        }
    }

    #[test]
    fn what_is_accepted_must_be_accepted_by_every_plugin() {
        let of = |theirs: &[Theirs]| judge(&accepts(), &Ok(theirs.to_vec()), false);
        assert_eq!(of(&[Theirs::Accepts, Theirs::Accepts]), Verdict::BothAccept);
        assert_eq!(
            kind(&of(&[Theirs::Accepts, refuses_to_read()])),
            Some(Kind::AcceptsWhatXlaRefuses)
        );
        assert_eq!(
            kind(&of(&[Theirs::Accepts, refuses_later()])),
            Some(Kind::AcceptsWhatXlaRefusesLater)
        );
        for end in [dies(), Theirs::TimesOut, Theirs::OutOfMemory] {
            assert_eq!(
                kind(&of(&[refuses_to_read(), end])),
                Some(Kind::AcceptsWhatEndsXla)
            );
        }
    }

    #[test]
    fn what_is_refused_must_be_refused_by_a_plugin_or_be_a_limit() {
        let of = |message: &str, theirs: &[Theirs]| {
            judge(&refuses(message), &Ok(theirs.to_vec()), false)
        };
        assert_eq!(of("no", &[Theirs::Accepts, dies()]), Verdict::BothRefuse);
        assert_eq!(of("no", &[refuses_later()]), Verdict::BothRefuse);
        assert_eq!(
            kind(&of("no", &[Theirs::Accepts])),
            Some(Kind::RefusesWhatXlaAccepts)
        );
        assert!(matches!(
            of("it nests deeper than 64", &[Theirs::Accepts]),
            Verdict::Limit(_)
        ));
        assert_eq!(
            judge(&refuses("no"), &Err("brackets do not match"), false),
            Verdict::NotComparable("brackets do not match")
        );
        assert_eq!(
            judge(&refuses("no"), &Ok(vec![Theirs::Accepts]), true),
            Verdict::NotComparable(DEAD)
        );
    }

    #[test]
    fn messages_that_differ_in_names_and_numbers_are_of_one_class() {
        assert_eq!(
            shape(r#"attributes: the text of "k\"1" is 17, at line 2: "x""#),
            "attributes: the text of '_' is N, at line N: '_'"
        );
        assert_eq!(
            shape("op operand part has type 'tensor<2xf32>' in range [0, 3); got: 4"),
            "op operand part has type '_' in range [..; got"
        );
        assert_eq!(refuses_to_read().gist(), "expected ']' at 7");
    }
}

//! The way from an attribute to one inside it, in words and in the attribute's text.

use crate::scan::end_of_string;
use std::fmt::{self, Display, Formatter};

/// A step into an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// Into an entry of a dictionary.
    Key(&'a [u8]),
    /// Into an element of a list.
    Element(usize),
}

/// Where a step of a path leads in a text, as far as it can be followed: MLIR keeps no places of what
/// it parsed. A text in a form that MLIR reads and this does not leads to its beginning.
pub(crate) fn locate(text: &[u8], path: &[Step<'_>]) -> usize {
    let mut start = skip_space(text, 0);
    let mut end = text.len();
    for step in path {
        let (open, found) = match step {
            Step::Key(_) => (b'{', b'}'),
            Step::Element(_) => (b'[', b']'),
        };
        if text.get(start) != Some(&open) {
            return start;
        }
        let parts = parts(text, start + 1, end, found);
        let part = match step {
            Step::Element(index) => parts.get(*index).copied(),
            Step::Key(key) => parts
                .iter()
                .find_map(|&(from, to)| value_of(text, from, to, key).map(|at| (at, to))),
        };
        let Some((from, to)) = part else {
            return start;
        };
        (start, end) = (skip_space(text, from), to);
    }
    start
}

/// The parts between commas, up to the bracket that closes.
fn parts(text: &[u8], from: usize, end: usize, closer: u8) -> Vec<(usize, usize)> {
    let mut parts = Vec::new();
    let (mut depth, mut start, mut at) = (0usize, from, from);
    while at < end {
        match text[at] {
            b'"' => {
                at = end_of_string(text, at + 1);
                continue;
            }
            b'-' if text.get(at + 1) == Some(&b'>') => at += 1,
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            byte if depth == 0 && byte == closer => break,
            b')' | b']' | b'}' | b'>' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push((start, at));
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    parts.push((start, at.min(end)));
    parts
}

/// Where the value begins in `key = value`, or the key where it has none.
fn value_of(text: &[u8], from: usize, to: usize, key: &[u8]) -> Option<usize> {
    let from = skip_space(text, from);
    let (name, after) = if text.get(from) == Some(&b'"') {
        let end = end_of_string(text, from + 1);
        (text.get(from + 1..end.checked_sub(1)?)?, end)
    } else {
        let length = text[from..to]
            .iter()
            .position(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'='))
            .unwrap_or(to - from);
        (&text[from..from + length], from + length)
    };
    if name != key {
        return None;
    }
    let equals = skip_space(text, after);
    Some(match text.get(equals) {
        Some(b'=') if equals < to => skip_space(text, equals + 1),
        _ => from,
    })
}

fn skip_space(text: &[u8], at: usize) -> usize {
    let space = text.get(at..).map_or(0, |rest| {
        rest.iter()
            .take_while(|byte| byte.is_ascii_whitespace())
            .count()
    });
    at + space
}

/// A path in words: `entry "a", element 2`.
pub(crate) struct Words<'p, 'a>(pub &'p [Step<'a>]);

impl Display for Words<'_, '_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match step {
                Step::Key(key) => write!(formatter, "{comma}entry {}", crate::error::Quoted(key))?,
                Step::Element(at) => write!(formatter, "{comma}element {at}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_the_attribute_in_the_text() {
        let text =
            br#" { a = "}, b", "b" = [1, {c = 2 : i8}, dense<[[1, 2]]> : tensor<1x2xi8>], d} "#;
        let at = |path: &[Step<'_>]| {
            let at = locate(text, path);
            String::from_utf8_lossy(&text[at..(at + 5).min(text.len())]).into_owned()
        };
        assert_eq!(at(&[]), "{ a =");
        assert_eq!(at(&[Step::Key(b"a")]), "\"}, b");
        assert_eq!(at(&[Step::Key(b"b"), Step::Element(0)]), "1, {c");
        assert_eq!(
            at(&[Step::Key(b"b"), Step::Element(1), Step::Key(b"c")]),
            "2 : i"
        );
        assert_eq!(at(&[Step::Key(b"b"), Step::Element(2)]), "dense");
        assert_eq!(at(&[Step::Key(b"d")]), "d} ");
    }

    #[test]
    fn a_path_that_the_text_does_not_have_leads_as_far_as_it_goes() {
        assert_eq!(locate(b"[1]", &[Step::Element(5)]), 0);
        assert_eq!(locate(b"  1", &[Step::Key(b"a")]), 2);
        assert_eq!(locate(b"", &[Step::Key(b"a")]), 0);
        assert_eq!(locate(b"{a = [1", &[Step::Key(b"a"), Step::Element(0)]), 6);
    }

    #[test]
    fn a_path_is_said_in_words() {
        assert_eq!(
            Words(&[Step::Key(b"a b"), Step::Element(3)]).to_string(),
            "entry \"a b\", element 3"
        );
    }
}

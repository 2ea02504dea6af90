//! Tokens, as MLIR's lexer cuts them.

use super::names::is_word_byte;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `mesh`, `true`, `i32`
    Word,
    /// `#sdy.mesh`, up to what no identifier holds
    Hash,
    /// `@mesh` or `@"mesh"`
    Symbol,
    /// With its quotes.
    String,
    /// `8` or `0x8`
    Integer,
    Float,
    /// `->`
    Arrow,
    /// One byte that is its own meaning.
    Sign(u8),
    End,
    /// What no token begins with, and why.
    Bad(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
}

/// The token at or after a position. Always of at least one byte, but for [`Kind::End`].
pub(super) fn token(text: &[u8], from: usize) -> Token {
    let space = count(text, from, |byte| {
        matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
    });
    let start = from + space;
    let Some(&first) = text.get(start) else {
        return Token {
            kind: Kind::End,
            start,
            end: start,
        };
    };
    let next = text.get(start + 1).copied();
    let (kind, end) = match first {
        b'a'..=b'z' | b'A'..=b'Z' | b'_' => (Kind::Word, start + count(text, start, is_word_byte)),
        b'0'..=b'9' => number(text, start),
        b'"' => string(text, start),
        b'@' => symbol(text, start),
        b'#' => hash(text, start),
        b'-' if next == Some(b'>') => (Kind::Arrow, start + 2),
        b'/' if next == Some(b'/') => (
            Kind::Bad("a comment has no place in an attribute; take it out"),
            start + 2,
        ),
        b'<' | b'>' | b'[' | b']' | b'{' | b'}' | b'(' | b')' | b',' | b':' | b'=' | b'?'
        | b'-' | b'+' | b'*' => (Kind::Sign(first), start + 1),
        _ => (
            Kind::Bad("no token of MLIR begins like this; take it out"),
            start + 1,
        ),
    };
    Token { kind, start, end }
}

fn count(text: &[u8], from: usize, mut is_part: impl FnMut(u8) -> bool) -> usize {
    text[from..]
        .iter()
        .take_while(|&&byte| is_part(byte))
        .count()
}

fn number(text: &[u8], start: usize) -> (Kind, usize) {
    let digits = |from: usize| from + count(text, from, |byte| byte.is_ascii_digit());
    let hex = |from: usize| from + count(text, from, |byte| byte.is_ascii_hexdigit());
    if text[start..].starts_with(b"0x") {
        // Without a digit after it the x is another token.
        let end = hex(start + 2);
        return (Kind::Integer, if end > start + 2 { end } else { start + 1 });
    }
    let end = digits(start);
    if text.get(end) != Some(&b'.') {
        return (Kind::Integer, end);
    }
    let end = digits(end + 1);
    if !matches!(text.get(end), Some(b'e' | b'E')) {
        return (Kind::Float, end);
    }
    let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
    let exponent = digits((end + 1 + sign).min(text.len()));
    let has_exponent = exponent > end + 1 + sign;
    (Kind::Float, if has_exponent { exponent } else { end })
}

fn string(text: &[u8], start: usize) -> (Kind, usize) {
    let mut at = start + 1;
    loop {
        match text.get(at) {
            Some(b'"') => return (Kind::String, at + 1),
            Some(b'\\') => {
                let one = matches!(text.get(at + 1), Some(b'"' | b'\\' | b'n' | b't'));
                let two = [1, 2]
                    .iter()
                    .all(|after| text.get(at + after).is_some_and(u8::is_ascii_hexdigit));
                at += match (one, two) {
                    (true, _) => 2,
                    (_, true) => 3,
                    _ => return (
                        Kind::Bad(
                            "a string has an unknown escape; there are \\\", \\\\, \\n, \\t and \
                                 two hexadecimal digits",
                        ),
                        at + 1,
                    ),
                };
            }
            None | Some(b'\n' | 0x0b | 0x0c) => {
                return (
                    Kind::Bad("a string does not end on its line; close it with '\"'"),
                    at,
                )
            }
            Some(_) => at += 1,
        }
    }
}

fn symbol(text: &[u8], start: usize) -> (Kind, usize) {
    match text.get(start + 1) {
        Some(b'"') => match string(text, start + 1) {
            (Kind::String, end) => (Kind::Symbol, end),
            bad => bad,
        },
        Some(b'a'..=b'z' | b'A'..=b'Z' | b'_') => (
            Kind::Symbol,
            start + 1 + count(text, start + 1, is_word_byte),
        ),
        _ => (
            Kind::Bad("a name follows '@', as in @mesh or @\"my mesh\""),
            start + 1,
        ),
    }
}

fn hash(text: &[u8], start: usize) -> (Kind, usize) {
    let is_part = |byte| is_word_byte(byte) || byte == b'-';
    let length = match text.get(start + 1) {
        Some(b'0'..=b'9') => count(text, start + 1, |byte| byte.is_ascii_digit()),
        Some(&byte) if is_part(byte) => count(text, start + 1, is_part),
        _ => 0,
    };
    if length == 0 {
        return (
            Kind::Bad("a dialect follows '#', as in #sdy.sharding"),
            start + 1,
        );
    }
    (Kind::Hash, start + 1 + length)
}

/// What a string token stands for.
pub(super) fn unescape(token: &[u8]) -> Vec<u8> {
    let mut bytes = token[1..token.len() - 1].iter().copied();
    let mut value = Vec::with_capacity(token.len());
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            value.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'n') => value.push(b'\n'),
            Some(b't') => value.push(b'\t'),
            Some(quote @ (b'"' | b'\\')) => value.push(quote),
            Some(high) => {
                let low = bytes.next().unwrap_or(b'0');
                value.push(hex_digit(high) << 4 | hex_digit(low));
            }
            None => {}
        }
    }
    value
}

fn hex_digit(digit: u8) -> u8 {
    char::from(digit)
        .to_digit(16)
        .map_or(0, |digit| digit as u8)
}

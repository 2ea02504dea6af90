use crate::{
    error::{Error, ErrorKind, Rule},
    graph::NamedText,
    limits::Limits,
    rules::{check_dialect_symbol, Position, Wrong},
};

/// Refuses a text that is too long for a context, nests too deep for the stack, or is written in a way
/// that this MLIR's parser mishandles, before that parser sees it.
///
/// What the parser recurses on is a bracket, or an operator of an affine expression. Brackets inside
/// strings do not count, a `>` that closes nothing is an arrow or a comparison, and a comment is
/// refused since the bodies of dialect attributes read `//` in another way than the rest does.
///
/// MLIR 19 reads beyond its memory, or crashes, over some texts that are wrong: see [`Refusal`]. The
/// bodies of dialect attributes are looked at in the same way as the rest, though MLIR does not read
/// them: the scan does not know where they end as surely as the parser does.
pub(crate) fn check(
    field: &'static str,
    attribute: &NamedText<'_>,
    limits: &Limits,
    place: Position,
) -> Result<(), Error> {
    let text = attribute.text;
    if text.len() > limits.max_text_bytes {
        return Err(Error::TextTooLong {
            field,
            name: attribute.name.into(),
            found: text.len(),
            limit: limits.max_text_bytes,
        });
    }
    let outcome = match text.trim_ascii() {
        [] => Err((text.len(), Refusal::Empty)),
        _ => Scan::new(text, limits.max_nesting, place).run(),
    };
    let Err((at, refusal)) = outcome else {
        return Ok(());
    };
    let (line, column) = position(text, at);
    let (name, text) = (attribute.name.into(), text.into());
    Err(match refusal {
        Refusal::TooDeep => Error::TextTooDeep {
            field,
            name,
            text,
            limit: limits.max_nesting,
            line,
            column,
        },
        Refusal::Dialect(Wrong::Rule { found, expected }) => Error::Rule(Box::new(Rule {
            kind: ErrorKind::Spec,
            field: Some(field),
            name: Some(name),
            position: Some((line, column)),
            found,
            expected,
        })),
        other => Error::Syntax {
            field,
            name,
            text,
            message: other.message(),
            line,
            column,
        },
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    TooDeep,
    /// What is wrong with an empty text is for MLIR at the character before it, which it then reads.
    Empty,
    Comment,
    /// `sparse<1, 2> : tensor<4xf32>` and many more crash.
    Sparse,
    /// `array<i1: 1>` crashes, and elements of types that have no whole number of bytes are read from
    /// anywhere.
    ArrayType,
    ArrayOfDigits,
    /// `dense<1.0> : tensor<2xcomplex<f32>>` crashes.
    NotAPair,
    /// `dense<(1, 2)> : tensor<3xi32>` reads elements from anywhere.
    Pair,
    /// An element of `tensor<500xi16777215>` takes two megabytes.
    WideInteger,
    /// Their reading takes the square of their length.
    LongNumber,
    LongWord,
    ManyDimensions,
    /// A type that this MLIR does not have yet.
    NewFloat,
    /// Its bytes are elsewhere in a module's text, where nobody can put them.
    Resource,
    /// What belongs to a dialect, and why it does not stand here.
    Dialect(Wrong),
}

impl Refusal {
    fn message(self) -> String {
        let message = match self {
            Self::Dialect(Wrong::Syntax(message) | Wrong::Rule { found: message, .. }) => {
                return message;
            }
            Self::TooDeep => "it nests too deep",
            Self::Empty => "expected attribute value",
            Self::Comment => "a comment has no place in an attribute",
            Self::Sparse => "sparse elements are not taken; write them as dense",
            Self::ArrayType => {
                "an array has elements of i1, or of 8, 16, 32 or 64 bits; write others as dense"
            }
            Self::ArrayOfDigits => "the elements of an array of i1 are true and false",
            Self::NotAPair => "the elements of a complex type are pairs, such as (1.0, 0.0)",
            Self::Pair => "a pair is an element of a complex type only",
            Self::WideInteger => "an integer type has at most 128 bits",
            Self::LongNumber => "a number has at most 1024 digits",
            Self::LongWord => "a word has at most 1024 characters",
            Self::NewFloat => {
                "of the 8-bit floats there are f8E5M2, f8E4M3FN, f8E5M2FNUZ, f8E4M3FNUZ and \
                 f8E4M3B11FNUZ here, and no smaller ones"
            }
            Self::Resource => "a resource has no bytes here; write the elements as dense",
            Self::ManyDimensions => "there are more than 1024 dimensions",
        };
        message.into()
    }
}

const LONGEST_WORD: usize = 1024;
const MOST_DIMENSIONS: usize = 1024;
const WIDEST_INTEGER: usize = 128;

/// An open bracket, and what is to be known of it when it closes.
#[derive(Clone, Copy)]
struct Open {
    bracket: u8,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// The `<` of `array<i1:`.
    ArrayOfBits,
    /// The `<` of `dense<`: where the first pair is in it, and the first element that is in none.
    Dense {
        pair: Option<usize>,
        single: Option<usize>,
    },
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    max_nesting: usize,
    place: Position,
    open: Vec<Open>,
    /// How many brackets were open when an affine keyword came, and the operators and words since.
    affine: Option<(usize, usize, usize)>,
    unknown_dimensions: usize,
}

type Outcome<T> = Result<T, (usize, Refusal)>;

impl<'a> Scan<'a> {
    fn new(text: &'a [u8], max_nesting: usize, place: Position) -> Self {
        Self {
            text,
            at: 0,
            max_nesting,
            place,
            open: Vec::new(),
            affine: None,
            unknown_dimensions: 0,
        }
    }

    fn run(mut self) -> Outcome<()> {
        while let Some(&byte) = self.text.get(self.at) {
            let next = self.text.get(self.at + 1).copied();
            match byte {
                b'"' => {
                    self.element(self.at);
                    self.at = end_of_string(self.text, self.at + 1);
                    continue;
                }
                b'/' if next == Some(b'/') => return Err((self.at, Refusal::Comment)),
                b'(' | b'[' | b'{' | b'<' => self.open(byte, Kind::Plain)?,
                b')' | b']' | b'}' | b'>' => {
                    let closes = self.close(byte)?;
                    if !closes && byte != b'>' {
                        // The parser stops here too, and says why.
                        return Ok(());
                    }
                }
                b'-' if next == Some(b'>') => {
                    self.at += 2;
                    continue;
                }
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                    self.word()?;
                    continue;
                }
                b'0'..=b'9' => {
                    self.number()?;
                    continue;
                }
                b'#' | b'!' => check_dialect_symbol(self.text, self.at, self.place)
                    .map_err(|(at, wrong)| (at, Refusal::Dialect(wrong)))?,
                b'-' | b'+' | b'*' => self.operator(self.at)?,
                b'?' => {
                    self.unknown_dimensions += 1;
                    if self.unknown_dimensions > MOST_DIMENSIONS {
                        return Err((self.at, Refusal::ManyDimensions));
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
        Ok(())
    }

    fn open(&mut self, bracket: u8, kind: Kind) -> Outcome<()> {
        let at = self.at;
        if bracket == b'(' {
            if let Some(Open {
                kind: Kind::Dense { pair, .. },
                ..
            }) = self.dense()
            {
                pair.get_or_insert(at);
            }
        }
        self.open.push(Open { bracket, kind });
        if self.open.len() > self.max_nesting {
            return Err((self.at, Refusal::TooDeep));
        }
        Ok(())
    }

    /// Closes a bracket; false if it is not the one that is open.
    fn close(&mut self, closer: u8) -> Outcome<bool> {
        let Some(open) = self.open.last().copied() else {
            return Ok(false);
        };
        if open.bracket != opener_of(closer) {
            return Ok(false);
        }
        self.open.pop();
        self.affine = self.affine.filter(|(depth, ..)| self.open.len() > *depth);
        if let Kind::Dense { pair, single } = open.kind {
            let complex = self.is_complex_type(self.at + 1);
            match (complex, pair, single) {
                (true, _, Some(at)) => return Err((at, Refusal::NotAPair)),
                (false, Some(at), _) => return Err((at, Refusal::Pair)),
                _ => {}
            }
        }
        Ok(true)
    }

    /// The innermost dense elements that are open, with nothing but lists between.
    fn dense(&mut self) -> Option<&mut Open> {
        self.open
            .iter_mut()
            .rev()
            .find(|open| open.bracket != b'[')
            .filter(|open| matches!(open.kind, Kind::Dense { .. }))
    }

    /// An element: a number, a boolean, or a string of bytes, which any type takes.
    fn element(&mut self, at: usize) {
        let is_string = self.text[at] == b'"';
        if let Some(Open {
            kind: Kind::Dense { single, .. },
            ..
        }) = self.dense()
        {
            if !is_string {
                single.get_or_insert(at);
            }
        }
    }

    fn word(&mut self) -> Outcome<()> {
        let start = self.at;
        let end = end_of_word(self.text, start);
        let word = &self.text[start..end];
        if word.len() > LONGEST_WORD {
            return Err((start, Refusal::LongWord));
        }
        self.at = end;
        if is_wide_integer(word) || dimensions_end_in_wide_integer(word) {
            return Err((start, Refusal::WideInteger));
        }
        if let Some((_, _, words)) = &mut self.affine {
            *words += 1;
            if *words > MOST_DIMENSIONS {
                return Err((start, Refusal::ManyDimensions));
            }
        }
        let is_builtin = !matches!(
            start.checked_sub(1).map(|before| self.text[before]),
            Some(b'.' | b'#' | b'!')
        );
        let bracket = end + space(&self.text[end..]);
        let opens = self.text.get(bracket) == Some(&b'<');
        match word {
            b"affine_map" | b"affine_set" if self.affine.is_none() => {
                self.affine = Some((self.open.len(), 0, 0));
            }
            b"mod" | b"floordiv" | b"ceildiv" => self.operator(start)?,
            b"true" | b"false" => self.element(start),
            b"dense_resource" if is_builtin => return Err((start, Refusal::Resource)),
            _ if is_new_float(word) => return Err((start, Refusal::NewFloat)),
            b"sparse" if is_builtin && opens => return Err((start, Refusal::Sparse)),
            b"dense" if is_builtin && opens => {
                self.at = bracket;
                self.open(
                    b'<',
                    Kind::Dense {
                        pair: None,
                        single: None,
                    },
                )?;
                self.at += 1;
            }
            b"array" if is_builtin && opens => {
                self.at = bracket;
                let inner = bracket + 1 + space(&self.text[bracket + 1..]);
                let element = &self.text[inner..end_of_word(self.text, inner)];
                let kind = match element {
                    b"i1" => Kind::ArrayOfBits,
                    b"i8" | b"i16" | b"i32" | b"i64" | b"si8" | b"si16" | b"si32" | b"si64"
                    | b"ui8" | b"ui16" | b"ui32" | b"ui64" | b"f16" | b"bf16" | b"f32" | b"f64" => {
                        Kind::Plain
                    }
                    _ => return Err((inner, Refusal::ArrayType)),
                };
                self.open(b'<', kind)?;
                // The type is no element.
                self.at = inner + element.len();
            }
            _ => {}
        }
        Ok(())
    }

    /// As MLIR lexes it: hexadecimal digits after 0x, or digits with a point and an exponent. What
    /// follows, be it a letter, is a token of its own.
    fn number(&mut self) -> Outcome<()> {
        let start = self.at;
        let text = self.text;
        let digits = |from: usize, is_digit: fn(&u8) -> bool| {
            text[from..]
                .iter()
                .take_while(|byte| is_digit(byte))
                .count()
        };
        let is_hex = text[start..].starts_with(b"0x")
            && text.get(start + 2).is_some_and(u8::is_ascii_hexdigit);
        let mut end = if is_hex {
            start + 2 + digits(start + 2, u8::is_ascii_hexdigit)
        } else {
            start + digits(start, u8::is_ascii_digit)
        };
        if !is_hex && text.get(end) == Some(&b'.') {
            end += 1 + digits(end + 1, u8::is_ascii_digit);
            if matches!(text.get(end), Some(b'e' | b'E')) {
                let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
                let exponent = digits(end + 1 + sign, u8::is_ascii_digit);
                if exponent > 0 {
                    end += 1 + sign + exponent;
                }
            }
        }
        if end - start > LONGEST_WORD {
            return Err((start, Refusal::LongNumber));
        }
        if self
            .open
            .last()
            .is_some_and(|open| open.kind == Kind::ArrayOfBits)
        {
            return Err((start, Refusal::ArrayOfDigits));
        }
        self.element(start);
        self.at = end;
        Ok(())
    }

    fn operator(&mut self, at: usize) -> Outcome<()> {
        if let Some((_, operators, _)) = &mut self.affine {
            *operators += 1;
            if *operators > self.max_nesting {
                return Err((at, Refusal::TooDeep));
            }
        }
        Ok(())
    }

    /// Whether `: tensor<...>` with complex elements comes next.
    fn is_complex_type(&self, from: usize) -> bool {
        let rest = &self.text[from..];
        let rest = &rest[space(rest)..];
        let Some(rest) = rest.strip_prefix(b":") else {
            return false;
        };
        // The shaped type's own brackets, without what may come after it.
        let mut depth = 0usize;
        let mut end = 0;
        for (index, &byte) in rest.iter().enumerate() {
            end = index;
            match byte {
                b'<' => depth += 1,
                b'>' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        break;
                    }
                }
                b',' | b']' | b'}' if depth == 0 => break,
                _ => {}
            }
        }
        rest[..end].windows(8).any(|window| window == b"complex<")
    }
}

/// Types that newer MLIR has; after the dimensions of a tensor, too.
fn is_new_float(word: &[u8]) -> bool {
    let word = match word.iter().rposition(|&byte| byte == b'x') {
        Some(at) if word[0] == b'x' => &word[at + 1..],
        _ => word,
    };
    matches!(
        word,
        b"f8E3M4" | b"f8E4M3" | b"f8E8M0FNU" | b"f6E2M3FN" | b"f6E3M2FN" | b"f4E2M1FN"
    )
}

fn is_wide_integer(word: &[u8]) -> bool {
    let digits = word
        .strip_prefix(b"si")
        .or_else(|| word.strip_prefix(b"ui"))
        .or_else(|| word.strip_prefix(b"i"));
    digits.is_some_and(|digits| {
        !digits.is_empty()
            && digits.iter().all(u8::is_ascii_digit)
            && str::from_utf8(digits)
                .ok()
                .and_then(|digits| digits.parse::<usize>().ok())
                .is_none_or(|width| width > WIDEST_INTEGER)
    })
}

/// The `x3xi16777215` of `tensor<2x3xi16777215>`.
fn dimensions_end_in_wide_integer(word: &[u8]) -> bool {
    word.first() == Some(&b'x')
        && word
            .rsplit(|&byte| byte == b'x')
            .next()
            .is_some_and(is_wide_integer)
}

fn space(text: &[u8]) -> usize {
    text.iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
        .count()
}

fn opener_of(closer: u8) -> u8 {
    match closer {
        b')' => b'(',
        b']' => b'[',
        b'}' => b'{',
        _ => b'<',
    }
}

/// The index after the quote that ends the string whose content starts at `at`.
pub(crate) fn end_of_string(text: &[u8], mut at: usize) -> usize {
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

fn end_of_word(text: &[u8], at: usize) -> usize {
    text[at..]
        .iter()
        .position(|b| !b.is_ascii_alphanumeric() && *b != b'_')
        .map_or(text.len(), |length| at + length)
}

/// The offset of a line and a byte column, both from 1.
pub(crate) fn offset(text: &[u8], line: usize, column: usize) -> usize {
    let start: usize = text
        .split_inclusive(|&byte| byte == b'\n')
        .take(line.saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    (start + column.saturating_sub(1)).min(text.len())
}

/// The line and the byte column of an offset, both from 1.
pub(crate) fn position(text: &[u8], at: usize) -> (usize, usize) {
    let before = &text[..at];
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let start = before
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |newline| newline + 1);
    (line, at - start + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str, max_nesting: usize) -> Outcome<()> {
        Scan::new(text.as_bytes(), max_nesting, Position::Elsewhere).run()
    }

    fn refusal(text: &str) -> Option<(usize, Refusal)> {
        scan(text, 64).err()
    }

    fn depth_at_most(text: &str, limit: usize) -> bool {
        scan(text, limit).is_ok()
    }

    #[test]
    fn a_text_with_nothing_in_it_never_reaches_the_parser() {
        let message = |text| {
            let attribute = NamedText { name: b"k", text };
            check(
                "attributes",
                &attribute,
                &Limits::default(),
                Position::Elsewhere,
            )
            .unwrap_err()
            .to_string()
        };
        assert_eq!(
            message(b""),
            r#"attributes: the text of "k" is not an MLIR attribute: expected attribute value, at line 1, column 1: ""; write an attribute, such as 1 : i64"#
        );
        assert_eq!(
            message(b" \n "),
            r#"attributes: the text of "k" is not an MLIR attribute: expected attribute value, at line 2, column 2: " "; write an attribute, such as 1 : i64"#
        );
    }

    #[test]
    fn nesting_is_counted_over_all_kinds_of_brackets() {
        assert!(depth_at_most("[{a = (<1>)}]", 4));
        assert!(!depth_at_most("[{a = (<1>)}]", 3));
    }

    #[test]
    fn brackets_inside_strings_do_not_count() {
        assert!(depth_at_most(r#""[[[[[[ \" [[[[ \\""#, 1));
        assert!(!depth_at_most(r#""\\" [[["#, 2));
        assert!(depth_at_most(r#"#vhlo.b<"<<<<">"#, 1));
    }

    #[test]
    fn arrows_and_comparisons_close_nothing() {
        assert!(!depth_at_most("[(i32) -> [(i32) -> [1", 2));
        assert!(depth_at_most("() -> ()", 1));
        assert!(depth_at_most("affine_set<(d0) : (d0 >= 0)>", 2));
        assert!(!depth_at_most("<<-><->[", 2));
    }

    #[test]
    fn operators_of_an_affine_expression_count_as_nesting() {
        let expression = format!("affine_map<(d0) -> ({}d0)>", "-".repeat(65));
        assert!(!depth_at_most(&expression, 64));
        let words = format!("affine_map<(d0) -> (d0{})>", " mod 3".repeat(65));
        assert!(!depth_at_most(&words, 64));
        assert!(depth_at_most(&format!("[{}1]", "-1, ".repeat(65)), 64));
    }

    #[test]
    fn a_text_after_an_affine_map_counts_afresh() {
        let many = vec!["affine_map<(d0) -> (d0 + 1)>"; 100].join(", ");
        assert!(depth_at_most(&format!("[{many}]"), 64));
    }

    #[test]
    fn a_comment_is_refused_since_dialect_bodies_read_it_as_text() {
        assert_eq!(refusal("[#vhlo.b<//>, [[["), Some((9, Refusal::Comment)));
        assert!(depth_at_most(r#""http://example""#, 1));
    }

    #[test]
    fn a_position_is_a_line_and_a_byte_column_from_one() {
        assert_eq!(position(b"ab\ncd", 0), (1, 1));
        assert_eq!(position(b"ab\ncd", 4), (2, 2));
        assert_eq!(offset(b"ab\ncd", 2, 2), 4);
        assert_eq!(offset(b"ab\ncd", 9, 9), 5);
    }

    #[test]
    fn an_operator_that_is_glued_to_a_number_counts() {
        let glued = format!("affine_map<(d0) -> (d0 {})>", "mod 0x5mod 0x7".repeat(33));
        assert!(matches!(refusal(&glued), Some((_, Refusal::TooDeep))));
        let decimal = format!("affine_map<(d0) -> (d0 {})>", "mod 5mod 7".repeat(33));
        assert!(matches!(refusal(&decimal), Some((_, Refusal::TooDeep))));
    }

    #[test]
    fn elements_that_mlir_reads_from_anywhere_are_refused() {
        for (text, expected) in [
            ("sparse<1, 2> : tensor<4xf32>", (0, Refusal::Sparse)),
            (
                "[sparse <[[0]], [1]> : tensor<4xi32>]",
                (1, Refusal::Sparse),
            ),
            ("array<i1: 1>", (10, Refusal::ArrayOfDigits)),
            ("array<i1: true, 0>", (16, Refusal::ArrayOfDigits)),
            ("array<index: 1>", (6, Refusal::ArrayType)),
            ("array< tf32: 1.0>", (7, Refusal::ArrayType)),
            ("array<i7: 1>", (6, Refusal::ArrayType)),
            (
                "dense<1.0> : tensor<2xcomplex<f32>>",
                (6, Refusal::NotAPair),
            ),
            ("dense<0> : tensor<complex<i8>>", (6, Refusal::NotAPair)),
            (
                "dense<[(1.0, 2.0), 3.0]> : tensor<2xcomplex<f32>>",
                (19, Refusal::NotAPair),
            ),
            (
                "dense<true> : tensor<2xcomplex<f32>>",
                (6, Refusal::NotAPair),
            ),
            ("dense<(1, 2)> : tensor<3xi32>", (6, Refusal::Pair)),
            ("{a = dense<[(1,2)]> : tensor<2xi8>}", (12, Refusal::Pair)),
        ] {
            assert_eq!(refusal(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn elements_that_mlir_reads_well_pass() {
        for text in [
            "array<i1: true, false>",
            "array<i64: 1, -2>",
            "array<f32>",
            "array<ui8: 1>",
            "dense<(1.0, 2.0)> : tensor<4xcomplex<f32>>",
            "dense<[(1.0, 2.0), (3.0, -4.0)]> : tensor<2xcomplex<f64>>",
            "dense<> : tensor<0xcomplex<f32>>",
            "dense<\"0x0000803F00000040\"> : tensor<1xcomplex<f32>>",
            "dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>",
            "[dense<1> : tensor<i8>, dense<(1.0, 2.0)> : tensor<complex<f32>>]",
            "#vhlo.dense<1> ",
            "#vhlo.sparse<1>",
        ] {
            assert_eq!(refusal(text), None, "{text}");
        }
    }

    #[test]
    fn texts_that_take_much_memory_or_time_to_read_are_refused() {
        for (text, expected) in [
            ("1 : i129".to_owned(), (4, Refusal::WideInteger)),
            (
                "dense<1> : tensor<2x3xi16777215>".into(),
                (19, Refusal::WideInteger),
            ),
            ("1 : si16777215".into(), (4, Refusal::WideInteger)),
            (
                "1 : i99999999999999999999999".into(),
                (4, Refusal::WideInteger),
            ),
            ("7".repeat(1025), (0, Refusal::LongNumber)),
            (
                format!("memref<1{}i1>", "x1".repeat(600)),
                (8, Refusal::LongWord),
            ),
            (
                format!("tensor<{}i1>", "?x".repeat(1025)),
                (7 + 2048, Refusal::ManyDimensions),
            ),
        ] {
            assert_eq!(refusal(&text), Some(expected), "{text:.40}");
        }
        let dimensions = vec!["d"; 2000].join(", ");
        assert!(matches!(
            refusal(&format!("affine_map<({dimensions}) -> (d)>")),
            Some((_, Refusal::ManyDimensions))
        ));
        assert_eq!(refusal("dense<1> : tensor<2xi128>"), None);
    }
}

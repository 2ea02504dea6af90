use crate::{error::Error, graph::NamedText, limits::Limits};

/// Refuses a text that is too long for a context or nests too deep for the stack, before MLIR's
/// recursive parser sees it.
///
/// What the parser recurses on is a bracket, or an operator of an affine expression. Brackets inside
/// strings do not count, a `>` that closes nothing is an arrow or a comparison, and a comment is
/// refused since the bodies of dialect attributes read `//` in another way than the rest does.
pub(crate) fn check(
    field: &'static str,
    attribute: &NamedText<'_>,
    limits: &Limits,
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
    match scan(text, limits.max_nesting) {
        Ok(()) => Ok(()),
        Err(Refusal::TooDeep(at)) => {
            let (line, column) = position(text, at);
            Err(Error::TextTooDeep {
                field,
                name: attribute.name.into(),
                text: text.into(),
                limit: limits.max_nesting,
                line,
                column,
            })
        }
        Err(Refusal::Comment(at)) => {
            let (line, column) = position(text, at);
            Err(Error::Syntax {
                field,
                name: attribute.name.into(),
                text: text.into(),
                message: "a comment has no place in an attribute".into(),
                line,
                column,
            })
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    TooDeep(usize),
    Comment(usize),
}

fn scan(text: &[u8], max_nesting: usize) -> Result<(), Refusal> {
    let mut open: Vec<u8> = Vec::new();
    // How many brackets were open when an affine keyword came, and the operators since then.
    let mut affine: Option<(usize, usize)> = None;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let next = text.get(at + 1).copied();
        match byte {
            b'"' => {
                at = end_of_string(text, at + 1);
                continue;
            }
            b'/' if next == Some(b'/') => return Err(Refusal::Comment(at)),
            b'(' | b'[' | b'{' | b'<' => {
                open.push(byte);
                if open.len() > max_nesting {
                    return Err(Refusal::TooDeep(at));
                }
            }
            b')' | b']' | b'}' | b'>' => {
                if open.last() == Some(&opener_of(byte)) {
                    open.pop();
                    affine = affine.filter(|&(depth, _)| open.len() > depth);
                } else if byte != b'>' {
                    // The parser stops here too, and says why.
                    return Ok(());
                }
            }
            b'-' if next == Some(b'>') => {
                at += 2;
                continue;
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let end = end_of_word(text, at);
                match &text[at..end] {
                    b"affine_map" | b"affine_set" if affine.is_none() => {
                        affine = Some((open.len(), 0));
                    }
                    b"mod" | b"floordiv" | b"ceildiv" => count(&mut affine, max_nesting, at)?,
                    _ => {}
                }
                at = end;
                continue;
            }
            b'-' | b'+' | b'*' => count(&mut affine, max_nesting, at)?,
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

fn count(
    affine: &mut Option<(usize, usize)>,
    max_nesting: usize,
    at: usize,
) -> Result<(), Refusal> {
    if let Some((_, operators)) = affine {
        *operators += 1;
        if *operators > max_nesting {
            return Err(Refusal::TooDeep(at));
        }
    }
    Ok(())
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
fn end_of_string(text: &[u8], mut at: usize) -> usize {
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

    fn depth_at_most(text: &str, limit: usize) -> bool {
        scan(text.as_bytes(), limit).is_ok()
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
        assert!(depth_at_most(r#"#a.b<"<<<<">"#, 1));
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
        assert_eq!(scan(b"[#a.b<//>, [[[", 64), Err(Refusal::Comment(6)),);
        assert!(depth_at_most(r#""http://example""#, 1));
    }

    #[test]
    fn a_position_is_a_line_and_a_byte_column_from_one() {
        assert_eq!(position(b"ab\ncd", 0), (1, 1));
        assert_eq!(position(b"ab\ncd", 4), (2, 2));
        assert_eq!(offset(b"ab\ncd", 2, 2), 4);
        assert_eq!(offset(b"ab\ncd", 9, 9), 5);
    }
}

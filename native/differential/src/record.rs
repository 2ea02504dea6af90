//! Cases as text, one `name = value` a line, with an empty line between two cases. A line that begins
//! with `#` is a comment.
//!
//! ```text
//! operands = tensor<2x3xf32>, !stablehlo.token
//! results = tensor<f32>
//! attribute scale = 2.0 : f32
//! mlir called_computations = [@f]
//! mesh mesh = #sdy.mesh<["x"=2]>
//! function f = tensor<f32>
//! verdict = accept
//! plugin 0.115 = accepts
//! ```
//!
//! A value of bytes that are not plain text is written as `escaped "..."`, a name as `"..."`, with
//! `\xNN` for a byte.

use std::fmt::Write;

use stablehlo_custom_call::Type;

use crate::case::{parse_type, Case};

/// A case with what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub case: Case,
    /// Whether the package should take it; `None` in a record that only says what happened.
    pub accept: Option<bool>,
    /// The reason why the package does not yet answer as it should.
    pub open: Option<String>,
    /// What plugins do, by the version of their API.
    pub plugins: Vec<(String, String)>,
    pub note: Option<String>,
    /// The line on which the record begins, from 1.
    pub line: usize,
}

/// A line that is no part of a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}: {text:?}")]
pub struct BadRecord {
    pub line: usize,
    pub reason: &'static str,
    pub text: String,
}

impl Record {
    /// The lines of the case alone.
    pub fn of(case: &Case) -> Self {
        Self {
            case: case.clone(),
            ..Self::default()
        }
    }

    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let case = &self.case;
        let mut line = |name: &str, value: &str| {
            // Writing to a string never fails.
            let _ = writeln!(text, "{name} = {value}");
        };
        let plain = Case::default();
        if case.target != plain.target {
            line("target", &value(&case.target));
        }
        if case.api_version != plain.api_version {
            line("api_version", &case.api_version.to_string());
        }
        if !case.operands.is_empty() {
            line("operands", &types(&case.operands));
        }
        if !case.results.is_empty() {
            line("results", &types(&case.results));
        }
        for (key, text) in &case.attributes {
            line(&format!("attribute {}", name(key)), &value(text));
        }
        if let Some(bytes) = &case.backend_config {
            line("backend_config", &value(bytes));
        }
        for (key, text) in &case.mlir_attributes {
            line(&format!("mlir {}", name(key)), &value(text));
        }
        for (key, text) in &case.meshes {
            line(&format!("mesh {}", name(key)), &value(text));
        }
        for (key, list) in &case.functions {
            line(&format!("function {}", name(key)), &types(list));
        }
        if case.shardy {
            line("shardy", "true");
        }
        if case.partitions != plain.partitions {
            line("partitions", &case.partitions.to_string());
        }
        if let Some(accept) = self.accept {
            line("verdict", if accept { "accept" } else { "refuse" });
        }
        if let Some(reason) = &self.open {
            line("open", reason);
        }
        for (version, behaviour) in &self.plugins {
            line(&format!("plugin {version}"), behaviour);
        }
        if let Some(note) = &self.note {
            line("note", note);
        }
        text
    }

    /// Reads one record.
    pub fn parse(text: &str) -> Result<Self, BadRecord> {
        Ok(parse_all(text)?.into_iter().next().unwrap_or_default())
    }

    fn line(&mut self, key: &str, text: &str) -> Result<(), &'static str> {
        const WRONG: &str = "the value is not as it should be";
        let case = &mut self.case;
        let (word, rest) = key.split_once(' ').unwrap_or((key, ""));
        match word {
            "target" => case.target = parse_value(text).ok_or(WRONG)?,
            "api_version" => case.api_version = text.parse().map_err(|_| WRONG)?,
            "operands" => case.operands = parse_types(text).ok_or(WRONG)?,
            "results" => case.results = parse_types(text).ok_or(WRONG)?,
            "attribute" => case.attributes.push((
                parse_name(rest).ok_or("the name is not as it should be")?,
                parse_value(text).ok_or(WRONG)?,
            )),
            "backend_config" => case.backend_config = Some(parse_value(text).ok_or(WRONG)?),
            "mlir" => case.mlir_attributes.push((
                parse_name(rest).ok_or("the name is not as it should be")?,
                parse_value(text).ok_or(WRONG)?,
            )),
            "mesh" => case.meshes.push((
                parse_name(rest).ok_or("the name is not as it should be")?,
                parse_value(text).ok_or(WRONG)?,
            )),
            "function" => case.functions.push((
                parse_name(rest).ok_or("the name is not as it should be")?,
                parse_types(text).ok_or(WRONG)?,
            )),
            "shardy" => case.shardy = text.parse().map_err(|_| WRONG)?,
            "partitions" => case.partitions = text.parse().map_err(|_| WRONG)?,
            "verdict" => {
                self.accept = Some(match text {
                    "accept" => true,
                    "refuse" => false,
                    _ => return Err(WRONG),
                });
            }
            "open" => self.open = Some(text.to_owned()),
            "plugin" => self.plugins.push((rest.to_owned(), text.to_owned())),
            "note" => self.note = Some(text.to_owned()),
            _ => return Err("there is no such line in a record"),
        }
        Ok(())
    }
}

/// Reads records with empty lines between them.
///
/// # Errors
/// [`BadRecord`] for the first line that is none of a record.
pub fn parse_all(text: &str) -> Result<Vec<Record>, BadRecord> {
    let mut records = Vec::new();
    let mut current: Option<Record> = None;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            continue;
        }
        if line.is_empty() {
            records.extend(current.take());
            continue;
        }
        let bad = |reason| BadRecord {
            line: index + 1,
            reason,
            text: line.to_owned(),
        };
        let (key, value) = split(line).ok_or_else(|| bad("there is no \" = \" in it"))?;
        current
            .get_or_insert_with(|| Record {
                line: index + 1,
                ..Record::default()
            })
            .line(key, value)
            .map_err(bad)?;
    }
    records.extend(current);
    Ok(records)
}

/// Name and value of a line; a name in quotes may hold anything.
fn split(line: &str) -> Option<(&str, &str)> {
    let from = match line.find('"') {
        Some(quote) if line.find(" = ").is_none_or(|at| quote < at) => {
            let mut escaped = false;
            let end = line[quote + 1..].find(|character| {
                let ends = character == '"' && !escaped;
                escaped = character == '\\' && !escaped;
                ends
            })?;
            quote + 1 + end
        }
        _ => 0,
    };
    // A value may be empty, and an editor may take the space before it away.
    if let Some(key) = line.strip_suffix(" =") {
        return Some((key, ""));
    }
    let at = from + line[from..].find(" = ")?;
    Some((&line[..at], &line[at + 3..]))
}

fn types(list: &[Type]) -> String {
    let texts: Vec<_> = list.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

fn parse_types(text: &str) -> Option<Vec<Type>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split(", ").map(parse_type).collect()
}

fn is_plain(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_ok_and(|text| {
        !text.is_empty()
            && text.trim() == text
            && !text.starts_with("escaped ")
            && !text.chars().any(char::is_control)
    })
}

fn value(bytes: &[u8]) -> String {
    if is_plain(bytes) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    format!("escaped {}", quoted(bytes))
}

fn parse_value(text: &str) -> Option<Vec<u8>> {
    match text.strip_prefix("escaped ") {
        Some(quoted) => unquoted(quoted),
        None => Some(text.as_bytes().to_vec()),
    }
}

fn name(bytes: &[u8]) -> String {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.$-".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(is_word) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    quoted(bytes)
}

fn parse_name(text: &str) -> Option<Vec<u8>> {
    if text.starts_with('"') {
        unquoted(text)
    } else {
        Some(text.as_bytes().to_vec())
    }
}

fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => {
                text.push('\\');
                text.push(char::from(byte));
            }
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text.push('"');
    text
}

fn unquoted(text: &str) -> Option<Vec<u8>> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?.as_bytes();
    let mut bytes = Vec::new();
    let mut at = 0;
    while at < inner.len() {
        let (byte, length) = match inner[at..] {
            [b'\\', b'x', ..] => {
                let digits = str::from_utf8(inner.get(at + 2..at + 4)?).ok()?;
                (u8::from_str_radix(digits, 16).ok()?, 4)
            }
            [b'\\', byte, ..] => (byte, 2),
            [byte, ..] => (byte, 1),
            [] => return None,
        };
        bytes.push(byte);
        at += length;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stablehlo_custom_call::ElementType;

    #[test]
    fn a_record_of_any_bytes_reads_back_as_it_was_written() {
        let record = Record {
            case: Case {
                target: b" t".to_vec(),
                api_version: -1,
                operands: vec![Type::tensor(ElementType::C128, &[0, 2]), Type::Token],
                results: vec![],
                attributes: vec![
                    (b"".to_vec(), b"".to_vec()),
                    (b"a = \"\\".to_vec(), b"1 = 2\n\xff\"".to_vec()),
                    (b"k".to_vec(), b"\"a\" = \"b\"".to_vec()),
                    (b"k".to_vec(), b"escaped x".to_vec()),
                ],
                backend_config: Some(b"\0".to_vec()),
                mlir_attributes: vec![(b"a.b-c".to_vec(), "\"é\"".into())],
                meshes: vec![(b"mesh".to_vec(), b"#sdy.mesh<[]>".to_vec())],
                functions: vec![
                    (b"f".to_vec(), vec![]),
                    (b"g h".to_vec(), vec![Type::Token]),
                ],
                shardy: true,
                partitions: 2,
            },
            accept: Some(false),
            open: Some("no rule".into()),
            plugins: vec![("0.115".into(), "crashes: SIGSEGV".into())],
            note: Some("a note = here".into()),
            line: 1,
        };
        let text = record.to_text();
        assert_eq!(parse_all(&text).unwrap(), [record], "{text}");
    }

    #[test]
    fn records_are_divided_by_empty_lines_and_know_theirs() {
        let records = parse_all("# two\n\nattribute a = 1\nverdict = accept\n\n\ntarget = t\n");
        let lines: Vec<_> = records.unwrap().iter().map(|record| record.line).collect();
        assert_eq!(lines, [3, 7]);
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let error = parse_all("verdict = accept\noperand = tensor<f32>").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 2: there is no such line in a record: \"operand = tensor<f32>\""
        );
    }
}

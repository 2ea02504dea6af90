//! `output_operand_aliases`: results that share the memory of operands.
//!
//! Source: StableHLO specification, `custom_call`, and the verifier of `stablehlo.custom_call`.

use super::{Findings, Parsed, Subject, MLIR_ATTRIBUTES};
use crate::{
    error::Integers,
    path::{Step, Words},
    types::Type,
    view::View,
    warning::Warning,
};
use std::collections::HashSet;

const AN_ALIAS: &str = "an alias is #stablehlo.output_operand_alias<output_tuple_indices = [], \
                        operand_index = 0, operand_tuple_indices = []>";

/// `#stablehlo.output_operand_alias<...>`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Alias {
    pub output: Vec<i64>,
    pub operand: i64,
    pub operand_part: Vec<i64>,
}

impl Alias {
    /// Reads what follows the dialect's name. The error is the byte at which it is not an alias.
    pub(super) fn parse(data: &[u8]) -> Result<Self, usize> {
        let mut reader = Reader { data, at: 0 };
        reader.word("output_operand_alias")?;
        reader.word("<")?;
        reader.word("output_tuple_indices")?;
        reader.word("=")?;
        let output = reader.list()?;
        reader.word(",")?;
        reader.word("operand_index")?;
        reader.word("=")?;
        let operand = reader.integer()?;
        reader.word(",")?;
        reader.word("operand_tuple_indices")?;
        reader.word("=")?;
        let operand_part = reader.list()?;
        reader.word(">")?;
        reader.space();
        if reader.at < data.len() {
            return Err(reader.at);
        }
        Ok(Self {
            output,
            operand,
            operand_part,
        })
    }
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn space(&mut self) {
        while self.data.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn word(&mut self, word: &str) -> Result<(), usize> {
        self.space();
        let rest = self.data.get(self.at..).unwrap_or_default();
        let Some(rest) = rest.strip_prefix(word.as_bytes()) else {
            return Err(self.at);
        };
        // A longer word is another.
        let is_name = word.ends_with(|last: char| last.is_ascii_alphanumeric());
        if is_name
            && rest
                .first()
                .is_some_and(|b| b.is_ascii_alphanumeric() || b"_.$".contains(b))
        {
            return Err(self.at);
        }
        self.at += word.len();
        Ok(())
    }

    fn integer(&mut self) -> Result<i64, usize> {
        self.space();
        let start = self.at;
        let sign = usize::from(self.data.get(start) == Some(&b'-'));
        if sign == 1 {
            self.at += 1;
            self.space();
        }
        let from = self.at;
        while self.data.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        let digits = str::from_utf8(&self.data[from..self.at]).unwrap_or_default();
        let value = digits.parse::<i64>().map_err(|_| start)?;
        // As MLIR lexes it, 0x begins another number.
        if self
            .data
            .get(self.at)
            .is_some_and(u8::is_ascii_alphanumeric)
        {
            return Err(start);
        }
        Ok(if sign == 1 { -value } else { value })
    }

    fn list(&mut self) -> Result<Vec<i64>, usize> {
        self.word("[")?;
        let mut integers = Vec::new();
        if self.word("]").is_ok() {
            return Ok(integers);
        }
        loop {
            integers.push(self.integer()?);
            if self.word("]").is_ok() {
                return Ok(integers);
            }
            self.word(",")?;
        }
    }
}

pub(super) fn check(
    subject: Subject<'_>,
    parsed: Option<&Parsed<'_, '_>>,
    complete: bool,
    findings: &mut Findings,
) {
    let mut outputs = HashSet::new();
    let mut operands = HashSet::new();
    if let Some(parsed) = parsed {
        let view = parsed.view();
        let View::Array(aliases) = view else {
            let found = format!("it is {}", view.describe());
            let expected = format!("output_operand_aliases is a list; {AN_ALIAS}");
            findings.fault(MLIR_ATTRIBUTES, parsed.given, &[], found, expected);
            return;
        };
        for (index, alias) in aliases.iter().enumerate() {
            let mut fault = |found: String, expected: String| {
                findings.fault(
                    MLIR_ATTRIBUTES,
                    parsed.given,
                    &[Step::Element(index)],
                    found,
                    expected,
                );
            };
            let view = View::of(*alias);
            let alias = match view {
                View::Opaque(b"stablehlo", data) => Alias::parse(data).ok(),
                _ => None,
            };
            let Some(alias) = alias else {
                fault(view.describe().into(), AN_ALIAS.into());
                continue;
            };
            let operand = operand_part(subject, &alias);
            let output = output_part(subject, &alias);
            for wrong in [&operand, &output]
                .into_iter()
                .filter_map(|part| part.as_ref().err())
            {
                fault(wrong.0.clone(), wrong.1.clone());
            }
            let (Ok(operand), Ok(output)) = (operand, output) else {
                continue;
            };
            if operand != output {
                fault(
                    format!("the operand is a {operand} and the result a {output}"),
                    "an operand and a result that share memory have one type".into(),
                );
            }
            let is_buffer = matches!(operand, Type::Buffer { .. });
            let noun = if is_buffer { "buffer " } else { "" };
            let mut twice = Vec::new();
            if !outputs.insert(alias.output.clone()) {
                let output = Integers(&alias.output);
                twice.push(format!("the {noun}result {output} has an alias already"));
            }
            if !operands.insert((alias.operand, alias.operand_part.clone())) {
                let Alias { operand, .. } = alias;
                let part = Integers(&alias.operand_part);
                twice.push(format!(
                    "the {noun}operand {operand}{part} has an alias already"
                ));
            }
            let path = [Step::Element(index)];
            for found in twice {
                if is_buffer {
                    let expected = "a buffer has one alias";
                    findings.fault(MLIR_ATTRIBUTES, parsed.given, &path, found, expected);
                } else {
                    // XLA takes it.
                    findings.warnings.push(Warning {
                        field: MLIR_ATTRIBUTES,
                        name: parsed.given.name.into(),
                        found: format!("{}: {found}", Words(&path)),
                        instead:
                            "more than two values would share its memory; give each result and \
                                  each operand one alias"
                                .into(),
                    });
                }
            }
        }
    }
    let makes_buffers = matches!(subject.target, b"CreateBuffer" | b"Pin" | b"Unpin");
    if !makes_buffers && complete {
        for buffer in buffers(subject.results) {
            if !outputs.contains(&buffer) {
                findings.field(
                    MLIR_ATTRIBUTES,
                    Some(b"output_operand_aliases"),
                    format!("the buffer result {} has no alias", Integers(&buffer)),
                    "every buffer result is an alias of a buffer operand",
                );
            }
        }
    }
}

/// The type of the operand, or of the part of it, that an alias names.
fn operand_part<'a>(subject: Subject<'a>, alias: &Alias) -> Result<&'a Type, (String, String)> {
    let count = subject.operands.len();
    let operand = usize::try_from(alias.operand)
        .ok()
        .and_then(|index| subject.operands.get(index));
    let Some(operand) = operand else {
        return Err((
            format!("operand_index is {}", alias.operand),
            match count {
                0 => "the custom call has no operands".into(),
                1 => "the custom call has one operand, number 0".into(),
                _ => format!("the operands are numbers 0 to {}", count - 1),
            },
        ));
    };
    part(operand, &alias.operand_part).ok_or_else(|| {
        (
            format!(
                "operand_tuple_indices are {}",
                Integers(&alias.operand_part)
            ),
            match operand {
                Type::Tuple(_) => format!("operand {} is a {operand}", alias.operand),
                _ => format!("operand {} is no tuple, so they are []", alias.operand),
            },
        )
    })
}

/// The same for a result.
fn output_part<'a>(subject: Subject<'a>, alias: &Alias) -> Result<&'a Type, (String, String)> {
    let found = || format!("output_tuple_indices are {}", Integers(&alias.output));
    match subject.results {
        [] => Err((found(), "the custom call has no result".into())),
        [result] => part(result, &alias.output).ok_or_else(|| {
            let expected = match result {
                Type::Tuple(_) => format!("the result is a {result}"),
                _ => "the custom call has one result, so they are []".into(),
            };
            (found(), expected)
        }),
        results => alias
            .output
            .split_first()
            .and_then(|(&first, rest)| part(results.get(usize::try_from(first).ok()?)?, rest))
            .ok_or_else(|| {
                let last = results.len() - 1;
                (found(), format!("the results are [0] to [{last}]"))
            }),
    }
}

fn part<'a>(mut whole: &'a Type, indices: &[i64]) -> Option<&'a Type> {
    for &index in indices {
        let Type::Tuple(elements) = whole else {
            return None;
        };
        whole = elements.get(usize::try_from(index).ok()?)?;
    }
    Some(whole)
}

/// Where the buffers among results are, as an alias names them.
fn buffers(results: &[Type]) -> Vec<Vec<i64>> {
    let mut found = Vec::new();
    let mut pending: Vec<(Vec<i64>, &Type)> = match results {
        [result] => vec![(vec![], result)],
        results => (0..).map(|index| vec![index]).zip(results).collect(),
    };
    while let Some((at, r#type)) = pending.pop() {
        match r#type {
            Type::Buffer { .. } => found.push(at),
            Type::Tuple(elements) => {
                for (index, element) in (0..).zip(elements) {
                    pending.push(([&at[..], &[index]].concat(), element));
                }
            }
            Type::Tensor { .. } | Type::Token => {}
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_is_read_with_any_white_space() {
        assert_eq!(
            Alias::parse(b"output_operand_alias<output_tuple_indices = [0, 1], operand_index = 2, operand_tuple_indices = []>"),
            Ok(Alias { output: vec![0, 1], operand: 2, operand_part: vec![] })
        );
        assert_eq!(
            Alias::parse(b"output_operand_alias<output_tuple_indices=[ ],operand_index=-1,\n operand_tuple_indices=[3]>"),
            Ok(Alias { output: vec![], operand: -1, operand_part: vec![3] })
        );
    }

    #[test]
    fn what_is_no_alias_is_refused_at_the_byte() {
        for (text, at) in [
            (&b""[..], 0),
            (b"output_operand_aliases<", 0),
            (b"output_operand_alias<operand_index = 0>", 21),
            (b"output_operand_alias<output_tuple_indices = [], operand_index = 99999999999999999999, operand_tuple_indices = []>", 64),
            (b"output_operand_alias<output_tuple_indices = [,], operand_index = 0, operand_tuple_indices = []>", 45),
            (b"output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>x", 94),
        ] {
            assert_eq!(Alias::parse(text), Err(at), "{}", String::from_utf8_lossy(text));
        }
    }
}

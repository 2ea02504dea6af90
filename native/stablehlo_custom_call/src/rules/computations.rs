//! Functions that a custom call names, and functions that call each other.

use super::{Findings, Parsed, Scope, MLIR_ATTRIBUTES};
use crate::{
    error::{Error, ErrorKind, Quoted, Rule},
    path::Step,
    view::View,
};
use std::collections::HashMap;

/// Checks `called_computations` and returns the functions that it names.
pub(super) fn check(
    scope: Scope<'_>,
    parsed: &Parsed<'_, '_>,
    findings: &mut Findings,
) -> Vec<Vec<u8>> {
    let expected = "called_computations is a list of functions of the module, such as [@f]";
    let view = parsed.view();
    let View::Array(elements) = view else {
        let found = format!("it is {}", view.describe());
        findings.fault(MLIR_ATTRIBUTES, parsed.given, &[], found, expected);
        return Vec::new();
    };
    let mut called = Vec::new();
    for (index, element) in elements.iter().enumerate() {
        let path = [Step::Element(index)];
        match View::of(*element) {
            View::Symbol(name) if scope.functions.contains(name) => called.push(name.to_vec()),
            View::Symbol(name) => findings.fault(
                MLIR_ATTRIBUTES,
                parsed.given,
                &path,
                format!("the module has no function {}", Quoted(name)),
                "give it with the option functions of the module, or correct the name",
            ),
            other => findings.fault(
                MLIR_ATTRIBUTES,
                parsed.given,
                &path,
                other.describe(),
                expected,
            ),
        }
    }
    if elements.len() > 1 {
        findings.fault(
            MLIR_ATTRIBUTES,
            parsed.given,
            &[],
            format!("it names {} functions", elements.len()),
            "XLA takes one at most",
        );
    }
    called
}

/// Refuses functions that call each other in a circle, through `func.call` or `called_computations`:
/// XLA's compiler recurses over them until it ends the process.
pub(crate) fn check_acyclic(calls: &HashMap<Vec<u8>, Vec<Vec<u8>>>) -> Result<(), Error> {
    let mut done: HashMap<&[u8], bool> = HashMap::with_capacity(calls.len());
    for start in calls.keys() {
        // The functions that lead to the one at hand, each with its callees that are still to be seen.
        let mut way: Vec<(&[u8], std::slice::Iter<'_, Vec<u8>>)> = Vec::new();
        let mut next: Option<&[u8]> = Some(start);
        loop {
            if let Some(name) = next.take() {
                match done.get(name) {
                    Some(true) => {}
                    Some(false) => return Err(circle(&way, name)),
                    None => {
                        let callees = calls.get(name).map_or([].iter(), |callees| callees.iter());
                        done.insert(name, false);
                        way.push((name, callees));
                    }
                }
            }
            match way.last_mut() {
                None => break,
                Some((name, callees)) => match callees.next() {
                    Some(callee) => next = Some(callee),
                    None => {
                        done.insert(name, true);
                        way.pop();
                    }
                },
            }
        }
    }
    Ok(())
}

fn circle(way: &[(&[u8], std::slice::Iter<'_, Vec<u8>>)], name: &[u8]) -> Error {
    let from = way
        .iter()
        .position(|(on_the_way, _)| *on_the_way == name)
        .unwrap_or_default();
    let names: Vec<_> = way[from..]
        .iter()
        .map(|(name, _)| *name)
        .chain([name])
        .map(|name| Quoted(name).to_string())
        .collect();
    Error::Rule(Box::new(Rule {
        kind: ErrorKind::Graph,
        field: None,
        name: Some(name.into()),
        position: None,
        found: format!(
            "functions call each other in a circle: {}",
            names.join(", ")
        ),
        expected: "XLA has no recursion; use the operation stablehlo.while".into(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acyclic(calls: &[(&str, &[&str])]) -> Result<(), String> {
        let calls = calls
            .iter()
            .map(|(name, callees)| {
                let callees = callees.iter().map(|name| name.as_bytes().to_vec());
                (name.as_bytes().to_vec(), callees.collect())
            })
            .collect();
        check_acyclic(&calls).map_err(|error| error.found())
    }

    #[test]
    fn functions_may_call_one_function_by_several_ways() {
        assert_eq!(
            acyclic(&[("main", &["a", "b"]), ("a", &["c"]), ("b", &["c", "c"])]),
            Ok(())
        );
    }

    #[test]
    fn a_circle_is_refused_with_its_functions() {
        assert_eq!(
            acyclic(&[("f", &["f"])]).unwrap_err(),
            "functions call each other in a circle: \"f\", \"f\""
        );
        let longer = acyclic(&[("main", &["a"]), ("a", &["b"]), ("b", &["a"])]).unwrap_err();
        assert!(
            longer.ends_with("\"a\", \"b\", \"a\"") || longer.ends_with("\"b\", \"a\", \"b\""),
            "{longer}"
        );
    }

    #[test]
    fn a_chain_of_a_hundred_thousand_functions_does_not_overflow_the_stack() {
        let name = |index: usize| index.to_string().into_bytes();
        let calls = (0..100_000)
            .map(|index| (name(index), vec![name(index + 1)]))
            .collect();
        let outcome = std::thread::Builder::new()
            .stack_size(320 * 1024)
            .spawn(move || check_acyclic(&calls))
            .unwrap()
            .join()
            .unwrap();
        assert_eq!(outcome, Ok(()));
    }
}

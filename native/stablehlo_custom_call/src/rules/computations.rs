//! Functions that a custom call names, and functions that call each other.

use super::{Findings, Parsed, Scope, MLIR_ATTRIBUTES};
use crate::{
    error::{Error, ErrorKind, Quoted, Rule},
    path::Step,
    view::View,
};
use std::collections::{HashMap, HashSet};

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

/// What is known of the functions of a module when all are built.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// The functions that each function calls, or names as called computations.
    pub callees: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    /// Those that are called in a region that XLA makes a loop of its own of.
    pub from_reducers: Vec<Vec<u8>>,
    pub with_custom_calls: HashSet<Vec<u8>>,
}

/// XLA's compiler recurses over calls; it was seen to overflow a stack of 64 MiB at 5,000.
const DEEPEST_CALL: usize = 1_000;

/// XLA makes a copy of a function for each call of it, and of the functions that it calls.
const MOST_COPIES: u64 = 1 << 16;

/// How far the calls of a function reach.
#[derive(Clone, Copy, Debug, Default)]
struct Reach {
    depth: usize,
    copies: u64,
    has_custom_call: bool,
}

/// Refuses functions that call each other in a circle, through `func.call` or `called_computations`, those
/// that XLA's compiler would overflow its stack or fill the memory over, and custom calls that are made by
/// a function in a region where XLA expects none.
pub(crate) fn check_calls(calls: &Calls) -> Result<(), Error> {
    // `None` is a function that is on the way.
    let mut done: HashMap<&[u8], Option<Reach>> = HashMap::with_capacity(calls.callees.len());
    for start in calls.callees.keys() {
        // The functions that lead to the one at hand, each with its callees that are still to be seen.
        let mut way: Vec<(&[u8], std::slice::Iter<'_, Vec<u8>>)> = Vec::new();
        let mut next: Option<&[u8]> = Some(start);
        loop {
            if let Some(name) = next.take() {
                match done.get(name) {
                    Some(Some(_)) => {}
                    Some(None) => return Err(circle(&way, name)),
                    None => {
                        let callees = calls
                            .callees
                            .get(name)
                            .map_or([].iter(), |callees| callees.iter());
                        done.insert(name, None);
                        way.push((name, callees));
                    }
                }
            }
            match way.last_mut() {
                None => break,
                Some((name, callees)) => match callees.next() {
                    Some(callee) => next = Some(callee),
                    None => {
                        let reach = reach(calls, name, &done)?;
                        done.insert(name, Some(reach));
                        way.pop();
                    }
                },
            }
        }
    }
    for name in &calls.from_reducers {
        let reaches = match done.get(name.as_slice()) {
            Some(Some(reach)) => reach.has_custom_call,
            _ => calls.with_custom_calls.contains(name),
        };
        if reaches {
            return Err(in_reducer(name, "a reducing operation"));
        }
    }
    Ok(())
}

/// That of a function whose callees' are known.
fn reach(calls: &Calls, name: &[u8], done: &HashMap<&[u8], Option<Reach>>) -> Result<Reach, Error> {
    let mut reach = Reach {
        depth: 1,
        copies: 1,
        has_custom_call: calls.with_custom_calls.contains(name),
    };
    for callee in calls.callees.get(name).into_iter().flatten() {
        let of_callee = done.get(callee.as_slice()).copied().flatten();
        let of_callee = of_callee.unwrap_or_default();
        reach.depth = reach.depth.max(of_callee.depth + 1);
        reach.copies = reach.copies.saturating_add(of_callee.copies);
        reach.has_custom_call |= of_callee.has_custom_call;
    }
    let wrong = if reach.depth > DEEPEST_CALL {
        (
            format!("calls nest deeper than {DEEPEST_CALL}"),
            "XLA's compiler recurses over calls; write the functions' bodies in place",
        )
    } else if reach.copies > MOST_COPIES {
        (
            format!("all calls together reach more than {MOST_COPIES} functions"),
            "XLA makes a copy of a function for each call; use the operation stablehlo.while",
        )
    } else {
        return Ok(reach);
    };
    Err(graph_rule(name, wrong.0, wrong.1))
}

/// The error of a custom call where XLA expects none.
pub(crate) fn in_reducer(name: &[u8], reducer: &str) -> Error {
    graph_rule(
        name,
        format!("a custom call is in a region of {reducer}"),
        "XLA's CPU compiler ends the process over it; make the call outside of the region",
    )
}

fn graph_rule(name: &[u8], found: String, expected: &str) -> Error {
    Error::Rule(Box::new(Rule {
        kind: ErrorKind::Graph,
        field: None,
        name: Some(name.into()),
        position: None,
        found,
        expected: expected.into(),
    }))
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
    graph_rule(
        name,
        format!(
            "functions call each other in a circle, in calls or called_computations: {}",
            names.join(", ")
        ),
        "XLA has no recursion; use the operation stablehlo.while",
    )
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
        let calls = Calls {
            callees: calls,
            ..Calls::default()
        };
        check_calls(&calls).map_err(|error| error.found())
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
            "functions call each other in a circle, in calls or called_computations: \"f\", \"f\""
        );
        let longer = acyclic(&[("main", &["a"]), ("a", &["b"]), ("b", &["a"])]).unwrap_err();
        assert!(
            longer.ends_with("\"a\", \"b\", \"a\"") || longer.ends_with("\"b\", \"a\", \"b\""),
            "{longer}"
        );
    }

    #[test]
    fn calls_that_nest_too_deep_are_refused_without_overflowing_the_stack() {
        fn name(index: usize) -> Vec<u8> {
            index.to_string().into_bytes()
        }
        let chain = |length: usize| Calls {
            callees: (1..length)
                .map(|index| (name(index), vec![name(index + 1)]))
                .collect(),
            ..Calls::default()
        };
        assert_eq!(check_calls(&chain(1_000)), Ok(()));
        let outcome = std::thread::Builder::new()
            .stack_size(320 * 1024)
            .spawn(move || check_calls(&chain(100_000)).map_err(|error| error.found()))
            .unwrap()
            .join()
            .unwrap();
        assert_eq!(outcome.unwrap_err(), "calls nest deeper than 1000");
    }

    #[test]
    fn calls_that_double_too_often_are_refused() {
        let name = |index: usize| index.to_string().into_bytes();
        let doubling = |levels: usize| Calls {
            callees: (0..levels)
                .map(|index| (name(index), vec![name(index + 1), name(index + 1)]))
                .collect(),
            ..Calls::default()
        };
        assert_eq!(check_calls(&doubling(15)), Ok(()));
        assert_eq!(
            check_calls(&doubling(64)).unwrap_err().found(),
            "all calls together reach more than 65536 functions"
        );
    }

    #[test]
    fn a_custom_call_in_a_function_that_a_reducer_calls_is_refused() {
        let mut calls = Calls::default();
        calls.callees.insert(b"main".to_vec(), vec![b"a".to_vec()]);
        calls.callees.insert(b"a".to_vec(), vec![b"b".to_vec()]);
        calls.from_reducers = vec![b"a".to_vec()];
        assert_eq!(check_calls(&calls), Ok(()));
        calls.with_custom_calls.insert(b"b".to_vec());
        assert_eq!(
            check_calls(&calls).unwrap_err().found(),
            "a custom call is in a region of a reducing operation"
        );
    }
}

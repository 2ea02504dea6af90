use crate::{
    error::{Error, ErrorKind, Rule},
    graph::NamedText,
};
use std::collections::HashSet;

/// Checks the names of one list of attributes and returns them as text, in order; `None` is a name that
/// is wrong, and `errors` says why.
pub(crate) fn check<'a>(
    field: &'static str,
    attributes: &[NamedText<'a>],
    errors: &mut Vec<Error>,
) -> Vec<Option<&'a str>> {
    let mut seen = HashSet::with_capacity(attributes.len());
    attributes
        .iter()
        .enumerate()
        .map(|(index, attribute)| {
            let checked = check_one(field, index, attribute.name).and_then(|name| {
                if seen.insert(name) {
                    Ok(name)
                } else {
                    Err(Error::DuplicateName {
                        field,
                        name: name.into(),
                    })
                }
            });
            checked.map_err(|error| errors.push(error)).ok()
        })
        .collect()
}

fn check_one<'a>(field: &'static str, index: usize, name: &'a [u8]) -> Result<&'a str, Error> {
    if name.is_empty() {
        return Err(Error::EmptyName { field, index });
    }
    let name = str::from_utf8(name).map_err(|_| Error::NameNotUtf8 {
        field,
        name: name.into(),
    })?;
    if name.contains('\0') {
        return Err(Error::NameWithNul {
            field,
            name: name.into(),
        });
    }
    Ok(name)
}

/// On modules, and on functions' parameters and results, MLIR takes attributes of dialects only.
pub(crate) fn check_dialects(
    field: &'static str,
    attributes: &[NamedText<'_>],
) -> Result<(), Error> {
    let bare = attributes
        .iter()
        .filter(|given| !given.name.is_empty() && !given.name.contains(&b'.'));
    let expected = match field {
        "module_attributes" => "a module takes names such as mhlo.num_partitions",
        _ => {
            "parameters and results take names such as sdy.sharding and jax.buffer_donor; what is for \
             a kernel goes on its custom call"
        }
    };
    Error::all(
        bare.map(|given| {
            Error::Rule(Box::new(Rule {
                kind: ErrorKind::Name,
                field: Some(field),
                name: Some(given.name.into()),
                position: None,
                found: "the name has no dialect".into(),
                expected: expected.into(),
            }))
        })
        .collect(),
    )
}

/// Checks the name of a generic operation.
pub(crate) fn check_operation(name: &[u8]) -> Result<&str, Error> {
    let is_word = |part: &[u8]| {
        part.first()
            .is_some_and(|&b| b.is_ascii_alphabetic() || b == b'_')
            && part
                .iter()
                .all(|&b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'.'))
    };
    let dot = name.iter().position(|&byte| byte == b'.');
    let (Some(dot), Ok(text)) = (dot, str::from_utf8(name)) else {
        return Err(Error::OperationName { name: name.into() });
    };
    if !is_word(&name[..dot]) || !is_word(&name[dot + 1..]) {
        return Err(Error::OperationName { name: name.into() });
    }
    if text == "stablehlo.custom_call" {
        return Err(Error::OperationDialect {
            name: name.into(),
            remedy: "a custom call is written as a spec, so that its rules are checked",
        });
    }
    // These dialects are registered: their operations keep attributes as typed properties, which a
    // wrong attribute would corrupt rather than fail.
    if matches!(&text[..dot], "func" | "builtin") {
        return Err(Error::OperationDialect {
            name: name.into(),
            remedy: "functions, calls and returns are written as such, not as operations",
        });
    }
    Ok(text)
}

/// Checks the name of a function and returns it as text.
pub(crate) fn check_function(name: &[u8]) -> Result<&str, Error> {
    let refuse = |problem| Error::FunctionName {
        name: name.into(),
        problem,
    };
    if name.is_empty() {
        return Err(refuse("is empty; give every function a name"));
    }
    let text = str::from_utf8(name)
        .map_err(|_| refuse("is not valid UTF-8; MLIR symbols are UTF-8 text"))?;
    if text.contains('\0') {
        return Err(refuse("holds a NUL byte; MLIR symbols cannot"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&'static [u8]]) -> Vec<NamedText<'static>> {
        names
            .iter()
            .map(|name| NamedText { name, text: b"1" })
            .collect()
    }

    fn refusal(names: &[&'static [u8]]) -> String {
        let mut errors = Vec::new();
        check("attributes", &named(names), &mut errors);
        Error::all(errors).unwrap_err().to_string()
    }

    #[test]
    fn names_of_any_utf8_text_pass_and_keep_their_order() {
        let names = check(
            "attributes",
            &named(&[b"b", "é \"}".as_bytes(), b"a"]),
            &mut Vec::new(),
        );
        assert_eq!(names, [Some("b"), Some("é \"}"), Some("a")]);
    }

    #[test]
    fn a_name_is_refused_when_it_is_empty_twice_there_not_utf8_or_holds_a_nul() {
        assert_eq!(
            refusal(&[b"a", b""]),
            "attributes: the attribute name at index 1 is empty; give every attribute a name"
        );
        assert_eq!(
            refusal(&[b"a", b"b", b"a"]),
            r#"attributes: the attribute name "a" is given twice; give each name once"#
        );
        assert_eq!(
            refusal(&[b"a\xff"]),
            r#"attributes: the attribute name "a\xff" is not valid UTF-8; MLIR identifiers are UTF-8 text"#
        );
        assert_eq!(
            refusal(&[b"a\0b"]),
            r#"attributes: the attribute name "a\0b" holds a NUL byte; MLIR identifiers cannot"#
        );
    }

    #[test]
    fn an_operation_name_is_a_dialect_a_dot_and_a_word() {
        assert_eq!(check_operation(b"stablehlo.add").unwrap(), "stablehlo.add");
        assert_eq!(check_operation(b"a.b.c$").unwrap(), "a.b.c$");
        for name in [
            &b""[..],
            b"add",
            b".add",
            b"stablehlo.",
            b"a.b\"c",
            b"a.b\0",
            b"1.b",
        ] {
            assert!(check_operation(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn operations_of_registered_dialects_are_refused() {
        assert_eq!(
            check_operation(b"func.func").unwrap_err().to_string(),
            "the operation \"func.func\" is emitted from the graph itself; functions, calls and returns are written as such, not as operations"
        );
    }
}

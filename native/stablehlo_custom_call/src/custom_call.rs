use crate::{
    attribute::{self, Named},
    context::Inner,
    error::Error,
    graph::NamedText,
    limits::Limits,
    rules::{
        self, Budget, Findings, Parsed, Position, Scope, Subject, ATTRIBUTES, MLIR_ATTRIBUTES,
    },
    types::Type,
    warning::Warning,
};
use melior::ir::{attribute::IntegerAttribute, r#type::IntegerType, Identifier};

/// A `stablehlo.custom_call` before it is emitted.
///
/// Source: StableHLO specification, `custom_call`; the dictionary `backend_config` of API version 4
/// is XLA's typed FFI.
#[derive(Clone, Debug)]
pub struct CustomCall<'a> {
    /// The handler's name: any bytes.
    pub call_target_name: &'a [u8],
    /// 1 to 4; 4 is the typed FFI.
    pub api_version: i64,
    /// The dictionary `backend_config`, which the handler sees; API version 4 only. None given, no
    /// `backend_config` on the operation.
    pub attributes: Vec<NamedText<'a>>,
    /// The string `backend_config` of API versions 1 to 3: any bytes.
    pub backend_config: Option<&'a [u8]>,
    /// On the operation itself, each under its exact name: what the compiler sees.
    pub mlir_attributes: Vec<NamedText<'a>>,
}

/// Names that `mlir_attributes` may not hold, and what to use instead.
pub const RESERVED_NAMES: [(&str, &str); 4] = [
    ("call_target_name", "set the spec's field call_target_name"),
    ("api_version", "set the spec's field api_version"),
    (
        "backend_config",
        "use the spec's field attributes, or its field backend_config with an api_version below 4",
    ),
    (
        "mhlo.backend_config",
        "it would shadow backend_config; use the spec's field attributes",
    ),
];

/// A custom call's attributes, as they stand on the operation.
#[derive(Debug)]
pub(crate) struct Emitted<'c> {
    pub attributes: Vec<Named<'c>>,
    /// The functions that `called_computations` names.
    pub called: Vec<Vec<u8>>,
    pub warnings: Vec<Warning>,
    pub needs_newer: bool,
}

impl CustomCall<'_> {
    /// The attributes of the operation, checked and parsed. All faults are told at once.
    pub(crate) fn emit<'c>(
        &self,
        inner: &'c Inner,
        limits: &Limits,
        scope: Option<Scope<'_>>,
        operands: &[&Type],
        results: &[Type],
        budget: &mut Budget,
    ) -> Result<Emitted<'c>, Error> {
        let context = inner.context();
        let mut findings = Findings::default();
        self.check(&mut findings);
        let mlir_attributes = attribute::parse_list(
            inner,
            limits,
            MLIR_ATTRIBUTES,
            Position::CustomCall,
            &self.mlir_attributes,
            &mut findings,
        );
        let attributes = attribute::parse_list(
            inner,
            limits,
            ATTRIBUTES,
            Position::TypedFfi,
            &self.attributes,
            &mut findings,
        );
        let called = scope.map_or_else(Vec::new, |scope| {
            rules::check(
                scope,
                Subject {
                    target: self.call_target_name,
                    operands,
                    results,
                },
                &parsed_of(&attributes),
                &parsed_of(&mlir_attributes),
                mlir_attributes.len() == self.mlir_attributes.len(),
                budget,
                &mut findings,
            )
        });
        Error::all(findings.errors)?;

        let named = |list: Vec<(Identifier<'c>, Parsed<'_, 'c>)>| -> Vec<Named<'c>> {
            list.into_iter()
                .map(|(name, parsed)| (name, parsed.attribute))
                .collect()
        };
        let mut emitted = named(mlir_attributes);
        emitted.push((
            Identifier::new(context, "api_version"),
            IntegerAttribute::new(IntegerType::new(context, 32).into(), self.api_version).into(),
        ));
        emitted.push((
            Identifier::new(context, "call_target_name"),
            attribute::string(inner, self.call_target_name),
        ));
        let backend_config = match self.backend_config {
            Some(bytes) => Some(attribute::string(inner, bytes)),
            None if attributes.is_empty() => None,
            None => Some(attribute::dictionary(inner, &named(attributes))),
        };
        if let Some(value) = backend_config {
            emitted.push((Identifier::new(context, "backend_config"), value));
        }
        Ok(Emitted {
            attributes: emitted,
            called,
            warnings: findings.warnings,
            needs_newer: findings.needs_newer,
        })
    }

    fn check(&self, findings: &mut Findings) {
        let errors = &mut findings.errors;
        let api_version = self.api_version;
        if !(1..=4).contains(&api_version) {
            errors.push(Error::ApiVersion { found: api_version });
        }
        if api_version == 4 && self.backend_config.is_some() {
            errors.push(Error::BackendConfigForTypedFfi);
        }
        if api_version < 4 && !self.attributes.is_empty() {
            errors.push(Error::AttributesForOldApi { api_version });
        }
        for attribute in &self.mlir_attributes {
            for (name, remedy) in RESERVED_NAMES {
                if attribute.name == name.as_bytes() {
                    errors.push(Error::ReservedName {
                        field: MLIR_ATTRIBUTES,
                        name: name.into(),
                        remedy,
                    });
                }
            }
        }
    }
}

fn parsed_of<'a, 'c>(list: &[(Identifier<'c>, Parsed<'a, 'c>)]) -> Vec<Parsed<'a, 'c>> {
    list.iter().map(|(_, parsed)| *parsed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{attribute::print, Context};

    fn call<'a>() -> CustomCall<'a> {
        CustomCall {
            call_target_name: b"target",
            api_version: 4,
            attributes: vec![],
            backend_config: None,
            mlir_attributes: vec![],
        }
    }

    fn named<'a>(name: &'a str, text: &'a str) -> NamedText<'a> {
        NamedText {
            name: name.as_bytes(),
            text: text.as_bytes(),
        }
    }

    fn emitted(call: &CustomCall<'_>) -> Result<Vec<String>, String> {
        let context = Context::new(Limits::default());
        let inner = context.lock();
        let mut lines = call
            .emit(
                &inner,
                &Limits::default(),
                None,
                &[],
                &[],
                &mut Budget::new(0),
            )
            .map_err(|error| error.to_string())?
            .attributes
            .iter()
            .map(|(name, value)| {
                let value = String::from_utf8(print(value)).unwrap();
                format!("{} = {value}", name.as_string_ref().as_str().unwrap())
            })
            .collect::<Vec<_>>();
        lines.sort();
        Ok(lines)
    }

    #[test]
    fn without_attributes_there_is_no_backend_config() {
        assert_eq!(
            emitted(&call()).unwrap(),
            ["api_version = 4 : i32", "call_target_name = \"target\""]
        );
    }

    #[test]
    fn attributes_become_the_backend_config_dictionary_in_any_order() {
        let mut call = call();
        call.attributes = vec![named("b", "true"), named("a", "\"x\"")];
        let expected = [
            "api_version = 4 : i32",
            "backend_config = {a = \"x\", b = true}",
            "call_target_name = \"target\"",
        ];
        assert_eq!(emitted(&call).unwrap(), expected);
        call.attributes.reverse();
        assert_eq!(emitted(&call).unwrap(), expected);
    }

    #[test]
    fn mlir_attributes_stand_on_the_operation_under_their_own_names() {
        let mut call = call();
        call.mlir_attributes = vec![
            named(
                "sdy.sharding_rule",
                "#sdy.op_sharding_rule<([i])->([i]) {i=2}>",
            ),
            named("has_side_effect", "true"),
        ];
        assert_eq!(
            emitted(&call).unwrap(),
            [
                "api_version = 4 : i32",
                "call_target_name = \"target\"",
                "has_side_effect = true",
                "sdy.sharding_rule = #sdy.op_sharding_rule<([i])->([i]) {i=2}>",
            ]
        );
    }

    #[test]
    fn a_string_backend_config_keeps_every_byte() {
        let mut call = call();
        call.api_version = 2;
        call.backend_config = Some(b"\"\\\n\0\xff");
        assert_eq!(
            emitted(&call).unwrap()[1],
            r#"backend_config = "\22\\\0A\00\FF""#
        );
    }

    #[test]
    fn api_versions_other_than_1_to_4_are_refused() {
        for found in [i64::MIN, -1, 0, 5, i64::MAX] {
            let mut call = call();
            call.api_version = found;
            assert_eq!(
                emitted(&call).unwrap_err(),
                format!("api_version: {found} is not one of 1, 2, 3 and 4; use 4 for a typed FFI handler")
            );
        }
    }

    #[test]
    fn the_kind_of_backend_config_must_fit_the_api_version() {
        let mut binary = call();
        binary.backend_config = Some(b"x");
        assert_eq!(
            emitted(&binary).unwrap_err(),
            "backend_config: a binary needs api_version 1, 2 or 3, and api_version is 4; with 4 the backend_config is a dictionary, given as attributes"
        );
        let mut dictionary = call();
        dictionary.api_version = 2;
        dictionary.attributes = vec![named("a", "1")];
        assert_eq!(
            emitted(&dictionary).unwrap_err(),
            "attributes: they need api_version 4, and api_version is 2; below 4 the backend_config is a string, given as the field backend_config"
        );
    }

    #[test]
    fn reserved_names_are_refused_with_what_to_use_instead() {
        for (name, remedy) in RESERVED_NAMES {
            let mut call = call();
            call.mlir_attributes = vec![named("ok", "1"), named(name, "1")];
            assert_eq!(
                emitted(&call).unwrap_err(),
                format!("mlir_attributes: the attribute name \"{name}\" is reserved; {remedy}")
            );
        }
    }
}

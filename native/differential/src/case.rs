//! One question: a custom call in a module of its own.

use stablehlo_custom_call::{
    Block, CustomCall, ElementType, Function, Graph, NamedText, Operation, OperationKind, Output,
    Parameter, Type,
};

/// An attribute: its name and its text.
pub type Named = (Vec<u8>, Vec<u8>);

/// A custom call, the functions beside it, and how it is compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub target: Vec<u8>,
    pub api_version: i64,
    pub operands: Vec<Type>,
    pub results: Vec<Type>,
    pub attributes: Vec<Named>,
    pub backend_config: Option<Vec<u8>>,
    pub mlir_attributes: Vec<Named>,
    /// Device meshes by name.
    pub meshes: Vec<Named>,
    /// Private functions that return what they are given, by name and types.
    pub functions: Vec<(Vec<u8>, Vec<Type>)>,
    /// Whether Shardy partitions.
    pub shardy: bool,
    pub partitions: usize,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            target: b"target".to_vec(),
            api_version: 4,
            operands: Vec::new(),
            results: Vec::new(),
            attributes: Vec::new(),
            backend_config: None,
            mlir_attributes: Vec::new(),
            meshes: Vec::new(),
            functions: Vec::new(),
            shardy: false,
            partitions: 1,
        }
    }
}

/// Targets that XLA replaces by their operand where there is one device.
const REPLACED: [&str; 7] = [
    "LayoutConstraint",
    "MoveToDevice",
    "MoveToHost",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "Sharding",
    "annotate_device_placement",
];

fn named(list: &[Named]) -> Vec<NamedText<'_>> {
    list.iter()
        .map(|(name, text)| NamedText { name, text })
        .collect()
}

impl Case {
    /// The module as the package builds it. Tokens are made in it and stay in it: an entry function
    /// neither takes nor returns one.
    pub fn graph(&self) -> Graph<'_> {
        let mut functions: Vec<_> = self
            .functions
            .iter()
            .map(|(name, types)| identity(name, types))
            .collect();
        let mut parameters = Vec::new();
        let mut operations = Vec::new();
        for (index, r#type) in self.operands.iter().enumerate() {
            let value = index as u32;
            if *r#type == Type::Token {
                operations.push(Operation {
                    kind: OperationKind::Generic {
                        name: b"stablehlo.create_token",
                        attributes: vec![],
                    },
                    operands: vec![],
                    first_result: value,
                    results: vec![Type::Token],
                    regions: vec![],
                });
            } else {
                parameters.push(parameter(value, r#type));
            }
        }
        let first_result = self.operands.len() as u32;
        operations.push(Operation {
            kind: OperationKind::CustomCall(CustomCall {
                call_target_name: &self.target,
                api_version: self.api_version,
                attributes: named(&self.attributes),
                backend_config: self.backend_config.as_deref(),
                mlir_attributes: named(&self.mlir_attributes),
            }),
            operands: (0..first_result).collect(),
            first_result,
            results: self.results.clone(),
            regions: vec![],
        });
        let returned: Vec<_> = (first_result..)
            .zip(&self.results)
            .filter(|(_, r#type)| **r#type != Type::Token)
            .collect();
        functions.push(Function {
            name: b"main",
            private: false,
            parameters,
            results: returned.iter().map(|(_, r#type)| output(r#type)).collect(),
            body: Block {
                operations,
                outputs: returned.iter().map(|(value, _)| *value).collect(),
                ..Block::default()
            },
        });
        Graph {
            meshes: named(&self.meshes),
            functions,
            ..Graph::default()
        }
    }

    /// The module as text, with the attribute texts spliced in. `Err` says why that would ask another
    /// question than the texts alone do.
    pub fn text(&self) -> Result<Vec<u8>, &'static str> {
        let mut dictionary = format!(
            "api_version = {} : i32, call_target_name = ",
            self.api_version
        )
        .into_bytes();
        quote(&mut dictionary, &self.target);
        match &self.backend_config {
            Some(_) if !self.attributes.is_empty() => {
                return Err("the spec has a backend_config of both kinds");
            }
            Some(bytes) => {
                dictionary.extend(b", backend_config = ");
                quote(&mut dictionary, bytes);
            }
            None if self.attributes.is_empty() => {}
            None => {
                dictionary.extend(b", backend_config = {");
                entries(&mut dictionary, &self.attributes)?;
                dictionary.extend(b"}");
            }
        }
        if !self.mlir_attributes.is_empty() {
            dictionary.extend(b", ");
            entries(&mut dictionary, &self.mlir_attributes)?;
        }

        let mut module = b"module {\n".to_vec();
        for (name, text) in &self.meshes {
            splices(text)?;
            module.extend(b"  \"sdy.mesh\"() {sym_name = ");
            quote(&mut module, name);
            module.extend(b", mesh = ");
            module.extend(text);
            module.extend(b"} : () -> ()\n");
        }
        for (name, types) in &self.functions {
            module.extend(b"  func.func private @");
            quote(&mut module, name);
            let parameters: Vec<_> = (0..)
                .zip(types)
                .map(|(i, t)| format!("%a{i}: {t}"))
                .collect();
            let values: Vec<_> = (0..types.len()).map(|i| format!("%a{i}")).collect();
            module.extend(format!("({}) -> ({}) {{\n", parameters.join(", "), list(types)).bytes());
            module.extend(b"    return");
            if !types.is_empty() {
                module.extend(format!(" {} : {}", values.join(", "), list(types)).bytes());
            }
            module.extend(b"\n  }\n");
        }
        let parameters: Vec<_> = (0..)
            .zip(&self.operands)
            .filter(|(_, r#type)| **r#type != Type::Token)
            .map(|(i, r#type)| format!("%a{i}: {type}"))
            .collect();
        let returned: Vec<_> = (0..)
            .zip(&self.results)
            .filter(|(_, r#type)| **r#type != Type::Token)
            .collect();
        let returned_types: Vec<_> = returned.iter().map(|(_, t)| (*t).clone()).collect();
        module.extend(
            format!(
                "  func.func @main({}) -> ({}) {{\n",
                parameters.join(", "),
                list(&returned_types)
            )
            .bytes(),
        );
        for (index, r#type) in self.operands.iter().enumerate() {
            if *r#type == Type::Token {
                module.extend(
                    format!(
                        "    %a{index} = \"stablehlo.create_token\"() : () -> !stablehlo.token\n"
                    )
                    .bytes(),
                );
            }
        }
        module.extend(b"    ");
        if !self.results.is_empty() {
            module.extend(format!("%r:{} = ", self.results.len()).bytes());
        }
        let operands: Vec<_> = (0..self.operands.len()).map(|i| format!("%a{i}")).collect();
        module.extend(format!("\"stablehlo.custom_call\"({}) {{", operands.join(", ")).bytes());
        module.extend(dictionary);
        module.extend(
            format!(
                "}} : ({}) -> ({})\n    return",
                list(&self.operands),
                list(&self.results)
            )
            .bytes(),
        );
        if !returned.is_empty() {
            let values: Vec<_> = returned.iter().map(|(i, _)| format!("%r#{i}")).collect();
            module.extend(format!(" {} : {}", values.join(", "), list(&returned_types)).bytes());
        }
        module.extend(b"\n  }\n}\n");
        Ok(module)
    }

    /// Whether XLA throws the custom call away before it looks into its attributes: nobody uses its
    /// results, or there are no elements in them, and it has no side effect; or XLA has something else
    /// to put in its place.
    pub fn is_dead(&self) -> bool {
        if REPLACED.iter().any(|name| name.as_bytes() == self.target) {
            return true;
        }
        let has_effect = (&b"has_side_effect"[..], &b"true"[..]);
        let has_effect = self
            .mlir_attributes
            .iter()
            .any(|(name, text)| (name.as_slice(), text.trim_ascii()) == has_effect);
        let is_empty = |r#type: &Type| match r#type {
            Type::Tensor { dimensions, .. } => dimensions.contains(&0),
            _ => true,
        };
        !has_effect && self.results.iter().all(is_empty)
    }

    /// What a shrunken case should have less of.
    pub fn weight(&self) -> usize {
        let texts = |list: &[Named]| -> usize {
            list.iter()
                .map(|(name, text)| 20 + name.len() + text.len())
                .sum()
        };
        let types = |list: &[Type]| -> usize { list.iter().map(|t| 5 + t.to_string().len()).sum() };
        self.target.len()
            + texts(&self.attributes)
            + texts(&self.mlir_attributes)
            + texts(&self.meshes)
            + self
                .backend_config
                .as_ref()
                .map_or(0, |bytes| 20 + bytes.len())
            + types(&self.operands)
            + types(&self.results)
            + self
                .functions
                .iter()
                .map(|(name, list)| 20 + name.len() + types(list))
                .sum::<usize>()
            + usize::from(self.shardy)
            + self.partitions
    }
}

fn list(types: &[Type]) -> String {
    let texts: Vec<_> = types.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

fn parameter<'a>(value: u32, r#type: &Type) -> Parameter<'a> {
    Parameter {
        value,
        r#type: r#type.clone(),
        attributes: vec![],
    }
}

fn output<'a>(r#type: &Type) -> Output<'a> {
    Output {
        r#type: r#type.clone(),
        attributes: vec![],
    }
}

fn identity<'a>(name: &'a [u8], types: &[Type]) -> Function<'a> {
    Function {
        name,
        private: true,
        parameters: (0..)
            .zip(types)
            .map(|(value, r#type)| parameter(value, r#type))
            .collect(),
        results: types.iter().map(output).collect(),
        body: Block {
            outputs: (0..types.len() as u32).collect(),
            ..Block::default()
        },
    }
}

/// A string as MLIR reads it back, whatever its bytes.
fn quote(to: &mut Vec<u8>, bytes: &[u8]) {
    to.push(b'"');
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | 0..=31 | 127..=255 => to.extend(format!("\\{byte:02X}").bytes()),
            _ => to.push(byte),
        }
    }
    to.push(b'"');
}

fn entries(to: &mut Vec<u8>, list: &[Named]) -> Result<(), &'static str> {
    for (index, (name, text)) in list.iter().enumerate() {
        splices(text)?;
        if index > 0 {
            to.extend(b", ");
        }
        quote(to, name);
        to.extend(b" = ");
        to.extend(text);
    }
    Ok(())
}

/// Whether a text means the same within a dictionary as it does alone: its brackets and strings are
/// whole, and there is nothing in it that ends it.
fn splices(text: &[u8]) -> Result<(), &'static str> {
    let mut open = Vec::new();
    let mut at = 0;
    if text.trim_ascii().is_empty() {
        return Err("a text is empty");
    }
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            0 => return Err("a text holds a NUL"),
            b'"' => loop {
                match text.get(at) {
                    None | Some(b'\n') => return Err("a string does not end"),
                    Some(b'"') => {
                        at += 1;
                        break;
                    }
                    Some(b'\\') => at += 2,
                    Some(_) => at += 1,
                }
            },
            b'/' if text.get(at) == Some(&b'/') => return Err("a text has a comment"),
            b'-' if text.get(at) == Some(&b'>') => at += 1,
            b'>' | b'<' if text.get(at) == Some(&b'=') => at += 1,
            b'(' => open.push(b')'),
            b'[' => open.push(b']'),
            b'{' => open.push(b'}'),
            b'<' => open.push(b'>'),
            b')' | b']' | b'}' | b'>' if open.pop() != Some(byte) => {
                return Err("brackets do not match");
            }
            b',' if open.is_empty() => return Err("a comma is outside of brackets"),
            _ => {}
        }
    }
    if open.is_empty() {
        Ok(())
    } else {
        Err("a bracket stays open")
    }
}

/// A type from its text.
pub fn parse_type(text: &str) -> Option<Type> {
    if text == "!stablehlo.token" {
        return Some(Type::Token);
    }
    let inner = text.strip_prefix("tensor<")?.strip_suffix('>')?;
    let mut dimensions = Vec::new();
    let mut rest = inner;
    loop {
        if let Some(element) = ElementType::ALL.iter().find(|e| e.text() == rest) {
            return Some(Type::tensor(*element, &dimensions));
        }
        let (dimension, after) = rest.split_once('x')?;
        dimensions.push(dimension.parse().ok()?);
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stablehlo_custom_call::{Context, Limits, Module};

    fn case() -> Case {
        let f32 = Type::tensor(ElementType::F32, &[2, 3]);
        Case {
            operands: vec![f32.clone(), Type::Token],
            results: vec![
                Type::tensor(ElementType::C64, &[]),
                Type::Token,
                f32.clone(),
            ],
            attributes: vec![(b"a \"b".to_vec(), b"{x = 2 : i8}".to_vec())],
            mlir_attributes: vec![
                (b"called_computations".to_vec(), b"[@f]".to_vec()),
                (b"x.y".to_vec(), b"\"}\"".to_vec()),
            ],
            meshes: vec![(b"m".to_vec(), b"#sdy.mesh<[\"x\"=2]>".to_vec())],
            functions: vec![(b"f".to_vec(), vec![f32])],
            ..Case::default()
        }
    }

    #[test]
    fn the_text_and_the_graph_are_the_same_module() {
        let context = Context::new(Limits::default());
        let case = case();
        let built = Module::build(&context, &case.graph()).unwrap();
        let parsed = Module::parse(&context, &case.text().unwrap()).unwrap();
        assert_eq!(built.to_text(), parsed.to_text());
    }

    #[test]
    fn a_call_without_elements_in_its_results_and_without_effect_is_dead() {
        assert!(!case().is_dead());
        let mut dead = Case {
            results: vec![Type::Token, Type::tensor(ElementType::F32, &[2, 0])],
            ..case()
        };
        assert!(dead.is_dead());
        let effect = (b"has_side_effect".to_vec(), b" true".to_vec());
        dead.mlir_attributes.push(effect);
        assert!(!dead.is_dead());
    }

    #[test]
    fn a_text_that_would_end_its_entry_or_reach_beyond_it_is_not_spliced() {
        let refused = |text: &str| splices(text.as_bytes()).unwrap_err();
        assert_eq!(refused("1, x = 2"), "a comma is outside of brackets");
        assert_eq!(refused("1}, x = {"), "brackets do not match");
        assert_eq!(refused("[1"), "a bracket stays open");
        assert_eq!(refused("\"a"), "a string does not end");
        assert_eq!(refused("1 // x"), "a text has a comment");
        assert_eq!(refused(" "), "a text is empty");
        for text in [
            "\"}\\\"\"",
            "affine_map<(d0) -> (d0)>",
            "affine_set<(d0) : (d0 >= 0)>",
            "[1, \"]\"]",
        ] {
            assert_eq!(splices(text.as_bytes()), Ok(()), "{text}");
        }
    }

    #[test]
    fn every_type_is_read_from_its_text() {
        for element in ElementType::ALL {
            for dimensions in [&[][..], &[0], &[2, 3]] {
                let r#type = Type::tensor(element, dimensions);
                assert_eq!(parse_type(&r#type.to_string()), Some(r#type));
            }
        }
        assert_eq!(parse_type("!stablehlo.token"), Some(Type::Token));
        assert_eq!(parse_type("tensor<2xi3>"), None);
    }
}

use crate::{
    context::{Context, Inner},
    error::Error,
    graph::NamedText,
    limits::Limits,
    names,
    rules::{Findings, Parsed, Position},
    scan,
    sink::{collect, string_ref},
};
use melior::ir::{Attribute, AttributeLike, Identifier};
use mlir_sys::{
    mlirAttributeParseGet, mlirAttributePrint, mlirDictionaryAttrGet, mlirNamedAttributeGet,
    mlirStringAttrGet,
};

pub(crate) type Named<'c> = (Identifier<'c>, Attribute<'c>);

/// Parses one attribute text, alone: no text can reach into its neighbours.
pub(crate) fn parse<'c>(
    inner: &'c Inner,
    limits: &Limits,
    field: &'static str,
    place: Position,
    attribute: &NamedText<'_>,
) -> Result<Attribute<'c>, Error> {
    scan::check(field, attribute, limits, place)?;
    inner.diagnostics.take();
    // MLIR takes white space before the text for trailing characters after it.
    let text = attribute.text.trim_ascii();
    // SAFETY: MLIR reads the text during the call only; a null attribute becomes None.
    let parsed = unsafe {
        Attribute::from_option_raw(mlirAttributeParseGet(
            inner.context().to_raw(),
            string_ref(text),
        ))
    };
    let said = inner.diagnostics.take();
    if let Some(parsed) = &parsed {
        check_printing(inner, field, attribute, parsed)?;
    }
    parsed.ok_or_else(|| {
        let first = said.into_iter().next();
        let (message, at) = first.map_or(("it does not parse".into(), 0), |diagnostic| {
            let at = scan::offset(text, diagnostic.line, diagnostic.column);
            (diagnostic.message, at)
        });
        let leading = attribute.text.len() - attribute.text.trim_ascii_start().len();
        let (line, column) = scan::position(attribute.text, leading + next_token(text, at));
        Error::Syntax {
            field,
            name: attribute.name.into(),
            text: attribute.text.into(),
            message,
            line,
            column,
        }
    })
}

/// Some attributes parse and cannot be read back as they print, so that a compiler could not read the
/// module: a NUL or a lone `-` in a dialect's attribute, an empty symbol, the least integer in an affine
/// expression; or are read back as others: dense floats of 80 and 128 bits. Only texts with a part of those kinds are looked at.
fn check_printing(
    inner: &Inner,
    field: &'static str,
    attribute: &NamedText<'_>,
    parsed: &Attribute<'_>,
) -> Result<(), Error> {
    let text = attribute.text;
    let is_suspect = text.iter().any(|byte| matches!(byte, b'#' | b'!' | b'@'))
        || ["affine", "f80", "f128"]
            .iter()
            .any(|word| contains(text, word.as_bytes()));
    if !is_suspect {
        return Ok(());
    }
    let printed = print(parsed);
    // SAFETY: MLIR reads the text during the call only; a null attribute becomes None.
    let again = unsafe {
        Attribute::from_option_raw(mlirAttributeParseGet(
            inner.context().to_raw(),
            string_ref(&printed),
        ))
    };
    inner.diagnostics.take();
    // Bytecode ends a dialect's attribute at its first NUL.
    if again.as_ref() == Some(parsed) && !printed.contains(&0) {
        return Ok(());
    }
    Err(Error::Syntax {
        field,
        name: attribute.name.into(),
        text: text.into(),
        message: "MLIR reads it, but not what it prints for it".into(),
        line: 1,
        column: 1,
    })
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

/// MLIR reports a wrong token at the end of the one before it; a reader looks for the token itself.
fn next_token(text: &[u8], at: usize) -> usize {
    let skipped = text[at..]
        .iter()
        .take_while(|&&byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
        .count();
    at + skipped
}

/// Checks and parses a list of attributes. What is wrong with any goes to `findings`; the others are
/// returned, in order, with the names that MLIR has for them.
pub(crate) fn parse_list<'a, 'c>(
    inner: &'c Inner,
    limits: &Limits,
    field: &'static str,
    place: Position,
    attributes: &'a [NamedText<'a>],
    findings: &mut Findings,
) -> Vec<(Identifier<'c>, Parsed<'a, 'c>)> {
    let names = names::check(field, attributes, &mut findings.errors);
    names
        .into_iter()
        .zip(attributes)
        .filter_map(|(name, given)| {
            // The text is looked at even where the name is wrong, so that both are told.
            let attribute = parse(inner, limits, field, place, given)
                .map_err(|error| findings.errors.push(error))
                .ok()?;
            let name = Identifier::new(inner.context(), name?);
            Some((name, Parsed { given, attribute }))
        })
        .collect()
}

/// The same, all or nothing.
pub(crate) fn parse_all<'c>(
    inner: &'c Inner,
    limits: &Limits,
    field: &'static str,
    place: Position,
    attributes: &[NamedText<'_>],
) -> Result<Vec<Named<'c>>, Error> {
    let mut findings = Findings::default();
    let parsed = parse_list(inner, limits, field, place, attributes, &mut findings);
    Error::all(findings.errors)?;
    Ok(parsed
        .into_iter()
        .map(|(name, parsed)| (name, parsed.attribute))
        .collect())
}

/// The text of a dictionary attribute of these entries, each parsed alone.
pub fn dictionary_text(context: &Context, entries: &[NamedText<'_>]) -> Result<Vec<u8>, Error> {
    let inner = context.lock();
    let entries = parse_all(
        &inner,
        &context.limits(),
        "dictionary",
        Position::Elsewhere,
        entries,
    )?;
    Ok(print(&dictionary(&inner, &entries)))
}

/// A string attribute of any bytes.
pub(crate) fn string<'c>(inner: &'c Inner, bytes: &[u8]) -> Attribute<'c> {
    // SAFETY: MLIR copies the bytes; the result is never null.
    unsafe {
        Attribute::from_raw(mlirStringAttrGet(
            inner.context().to_raw(),
            string_ref(bytes),
        ))
    }
}

/// A dictionary attribute; its names must be distinct.
pub(crate) fn dictionary<'c>(inner: &'c Inner, attributes: &[Named<'c>]) -> Attribute<'c> {
    let entries: Vec<_> = attributes
        .iter()
        // SAFETY: both belong to the live context.
        .map(|(name, value)| unsafe { mlirNamedAttributeGet(name.to_raw(), value.to_raw()) })
        .collect();
    // SAFETY: the entries are readable for their count during the call.
    unsafe {
        Attribute::from_raw(mlirDictionaryAttrGet(
            inner.context().to_raw(),
            entries.len() as isize,
            entries.as_ptr(),
        ))
    }
}

pub(crate) fn print(attribute: &Attribute<'_>) -> Vec<u8> {
    // SAFETY: the attribute is live for the call.
    collect(|callback, data| unsafe {
        mlirAttributePrint(attribute.to_raw(), Some(callback), data);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &[u8]) -> NamedText<'_> {
        NamedText { name: b"k", text }
    }

    fn printed(bytes: &[u8]) -> Result<String, String> {
        let context = Context::new(Limits::default());
        let inner = context.lock();
        parse(
            &inner,
            &Limits::default(),
            "attributes",
            Position::Elsewhere,
            &text(bytes),
        )
        .map(|attribute| String::from_utf8(print(&attribute)).unwrap())
        .map_err(|error| error.to_string())
    }

    #[test]
    fn a_text_parses_to_the_attribute_that_mlir_makes_of_it() {
        assert_eq!(printed(b"42 : i64").unwrap(), "42 : i64");
        assert_eq!(
            printed(b" \n[dense<[1, 0]> : tensor<2xindex>]\t").unwrap(),
            "[dense<[1, 0]> : tensor<2xindex>]"
        );
        assert_eq!(
            printed(b"#sdy.op_sharding_rule<([i])->([i]) {i=2}>").unwrap(),
            "#sdy.op_sharding_rule<([i])->([i]) {i=2}>"
        );
    }

    #[test]
    fn a_text_cannot_close_its_neighbours_bracket() {
        assert_eq!(
            printed(b"1 : i64}, evil = {").unwrap_err(),
            r#"attributes: the text of "k" is not an MLIR attribute: found trailing characters: '}, evil = {', at line 1, column 8: "1 : i64}, evil = {""#
        );
    }

    #[test]
    fn a_text_that_does_not_parse_is_refused_with_mlirs_words_and_the_column() {
        assert_eq!(
            printed(b"[1 : i64, oops]").unwrap_err(),
            r#"attributes: the text of "k" is not an MLIR attribute: expected attribute value, at line 1, column 11: "[1 : i64, oops]""#
        );
        assert_eq!(
            printed(b"").unwrap_err(),
            r#"attributes: the text of "k" is not an MLIR attribute: expected attribute value, at line 1, column 1: ""; write an attribute, such as 1 : i64"#
        );
        assert_eq!(
            printed(b"\n  [1,\n   oops]").unwrap_err(),
            r#"attributes: the text of "k" is not an MLIR attribute: expected attribute value, at line 3, column 4: "   oops]""#
        );
    }

    #[test]
    fn what_is_written_as_in_another_language_gets_a_hint() {
        for (text, hint) in [
            ("True", "a boolean is true or false"),
            ("[1, nil]", "there is no nil; leave the attribute out, or write unit"),
            ("-inf : f32", "infinities and NaN are the bits of the float, such as 0x7F800000 : f32 and 0x7FC00000 : f32"),
            ("1e10", "a float has a point, such as 1.0e10 : f64"),
            ("1e-5 : f32", "a float has a point, such as 1.0e10 : f64"),
            ("'fast'", "a string is in double quotes, such as \"fast\""),
            ("\"fast", "the quote that is open is to be closed"),
            ("[1, 2", "the text ends too early; close what is open"),
            ("300 : i8", "an integer without a type is an i64; give it one that holds it, such as ui64"),
            ("99999999999999999999", "an integer without a type is an i64; give it one that holds it, such as ui64"),
            ("1.5 : i32", "a number with a point is a float, such as 0.5 : f32; an integer has none"),
            ("{a = ", "the text ends too early; close what is open"),
        ] {
            let message = printed(text.as_bytes()).unwrap_err();
            assert!(message.ends_with(&format!("; {hint}")), "{text}: {message}");
        }
    }

    #[test]
    fn a_text_of_bytes_that_are_not_utf8_neither_panics_nor_passes_silently_changed() {
        assert!(printed(b"\xff\xfe")
            .unwrap_err()
            .contains("is not an MLIR attribute"));
        let context = Context::new(Limits::default());
        let inner = context.lock();
        let parsed = parse(
            &inner,
            &Limits::default(),
            "attributes",
            Position::Elsewhere,
            &text(b"\"\xff\""),
        );
        assert_eq!(print(&parsed.unwrap()), br#""\FF""#);
    }

    #[test]
    fn what_mlir_cannot_read_back_is_refused() {
        for text in [
            &b"#vhlo.b<\"\0\">"[..],
            b"#vhlo.bj-",
            b"@\"\"",
            b"dense<0x3> : tensor<f128>",
            b"[dense<0x3> : tensor<2xf128>]",
            b"@a::@\"\"",
            b"affine_map<(d0) -> ((-9223372036854775807 - 1) floordiv -1)>",
        ] {
            let error = printed(text).unwrap_err();
            assert!(
                error.contains("MLIR reads it, but not what it prints for it"),
                "{error}"
            );
        }
        assert_eq!(printed(b"@a::@b").unwrap(), "@a::@b");
        assert!(printed(b"1.5 : f128").is_ok());
    }

    #[test]
    fn a_string_attribute_keeps_every_byte() {
        let context = Context::new(Limits::default());
        let inner = context.lock();
        assert_eq!(
            print(&string(&inner, b"a\"\\\n\0\xff\xc3\xa9")),
            br#""a\22\\\0A\00\FF\C3\A9""#
        );
    }

    #[test]
    fn texts_at_the_ceiling_parse_on_a_stack_of_320_kib_and_deeper_ones_are_refused() {
        let shapes: [(&str, &str, &str); 6] = [
            ("[", "1", "]"),
            ("{a = ", "1", "}"),
            ("#vhlo.b<", "1", ">"),
            ("tuple<", "i1", ">"),
            ("(i1) -> (", "i1", ")"),
            ("[#vhlo.b<{c = [", "1", "]}>]"),
        ];
        for (open, middle, close) in shapes {
            let brackets = open.matches(['[', '{', '(', '<']).count() - open.matches([')']).count();
            let repeat = Limits::NESTING_CEILING / brackets;
            let nested = format!("{}{middle}{}", open.repeat(repeat), close.repeat(repeat));
            let deeper = format!("{}{nested}{}", open.repeat(5), close.repeat(5));
            let outcome = std::thread::Builder::new()
                .stack_size(320 * 1024)
                .spawn(move || (printed(nested.as_bytes()), printed(deeper.as_bytes())))
                .unwrap()
                .join()
                .unwrap();
            let (at_the_ceiling, deeper) = outcome;
            assert!(at_the_ceiling.is_ok(), "{open}: {at_the_ceiling:?}");
            assert!(
                deeper.unwrap_err().contains("nests deeper than 64"),
                "{open}"
            );
        }
    }

    #[test]
    fn the_longest_affine_expression_parses_on_a_stack_of_320_kib() {
        let minus = format!("affine_map<(d0) -> ({}d0)>", "-".repeat(63));
        let sum = format!("affine_map<(d0) -> (d0{})>", " + d0 * 2".repeat(32));
        for text in [minus, sum] {
            let outcome = std::thread::Builder::new()
                .stack_size(320 * 1024)
                .spawn(move || printed(text.as_bytes()))
                .unwrap()
                .join()
                .unwrap();
            assert!(outcome.is_ok(), "{outcome:?}");
        }
    }
}

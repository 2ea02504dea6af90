//! Texts of every syntax that MLIR's builtin attributes and types have, right and nearly right.

use crate::rng::Rng;

/// Types of numbers, the odd ones included.
const NUMBERS: [&str; 40] = [
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "ui8",
    "ui16",
    "ui32",
    "ui64",
    "si8",
    "si16",
    "si32",
    "si64",
    "f16",
    "bf16",
    "f32",
    "f64",
    "index",
    "i2",
    "i4",
    "i7",
    "i33",
    "i65",
    "i128",
    "ui1",
    "ui2",
    "ui4",
    "ui128",
    "si4",
    "f80",
    "f128",
    "tf32",
    "f8E5M2",
    "f8E4M3",
    "f8E4M3FN",
    "f8E5M2FNUZ",
    "f8E4M3FNUZ",
    "f8E4M3B11FNUZ",
    "f8E3M4",
    "i0",
];

/// The types that the typed FFI and arrays know.
const COMMON: [&str; 13] = [
    "i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f32", "f64", "f16", "bf16",
];

const WORDS: [&str; 12] = [
    "a",
    "b",
    "k",
    "scale",
    "x_1",
    "long_name",
    "A",
    "_z",
    "value",
    "f32",
    "true",
    "loc",
];

const DIALECTS: [&str; 14] = [
    "stablehlo",
    "mhlo",
    "sdy",
    "chlo",
    "vhlo",
    "func",
    "builtin",
    "arith",
    "tensor",
    "foo",
    "xla",
    "sparse_tensor",
    "quant",
    "shape",
];

fn is_float(r#type: &str) -> bool {
    r#type.starts_with('f') || r#type.starts_with("bf") || r#type.starts_with("tf")
}

/// Any attribute, nesting at most so deep.
pub fn attribute(rng: &mut Rng, depth: usize) -> String {
    let kinds = if depth == 0 { 13 } else { 22 };
    match rng.below(kinds) {
        0 | 1 => integer(rng),
        2 => float(rng),
        3 => rng.pick(&["true", "false"]).into(),
        4 => string(rng),
        5 => array(rng),
        6 | 7 => dense(rng),
        8 => symbol(rng),
        9 => r#type(rng, 1),
        10 => rng
            .pick(&["unit", "unit", "affine_map<()->()>", "[]", "{}", "\"\""])
            .into(),
        11 => odd(rng),
        12 => dialect(rng, 0),
        13 | 14 => {
            let count = rng.below(4);
            let items: Vec<_> = (0..count).map(|_| attribute(rng, depth - 1)).collect();
            format!("[{}]", items.join(", "))
        }
        15..=17 => dictionary(rng, depth),
        18 => affine(rng),
        19 => r#type(rng, depth),
        20 => dialect(rng, depth),
        _ => location(rng, depth),
    }
}

fn dictionary(rng: &mut Rng, depth: usize) -> String {
    let count = rng.below(4);
    let entries: Vec<_> = (0..count)
        .map(|_| {
            let key = if rng.once_in(6) {
                string(rng)
            } else {
                rng.pick(&WORDS).into()
            };
            if rng.once_in(8) {
                return key;
            }
            format!("{key} = {}", attribute(rng, depth - 1))
        })
        .collect();
    format!("{{{}}}", entries.join(", "))
}

fn digits(rng: &mut Rng) -> String {
    match rng.below(10) {
        0 => "0".into(),
        1 => "1".into(),
        2 => format!("{}", rng.below(300)),
        3 => format!("-{}", rng.below(300)),
        4 => format!("0x{:X}", rng.below(70000)),
        5 => (rng.pick(&[
            "127",
            "128",
            "255",
            "256",
            "-128",
            "-129",
            "32768",
            "65536",
            "2147483647",
            "2147483648",
            "-2147483648",
            "4294967295",
            "4294967296",
        ]))
        .into(),
        6 => (rng.pick(&[
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "340282366920938463463374607431768211455",
        ]))
        .into(),
        _ => format!("{}", rng.below(10)),
    }
}

fn integer(rng: &mut Rng) -> String {
    let digits = digits(rng);
    match rng.below(6) {
        0 => digits,
        1 | 2 => format!("{digits} : {}", rng.pick(&COMMON[..9])),
        3 if rng.once_in(3) => format!("{digits} : i{}", rng.between(0, 130)),
        3 => format!("{digits} : index"),
        _ => format!("{digits} : {}", rng.pick(&NUMBERS)),
    }
}

fn float(rng: &mut Rng) -> String {
    let text = float_digits(rng);
    match rng.below(5) {
        0 => text,
        1 | 2 => format!("{text} : {}", rng.pick(&["f32", "f64"])),
        _ => format!("{text} : {}", rng.pick(&NUMBERS)),
    }
}

fn float_digits(rng: &mut Rng) -> String {
    match rng.below(8) {
        0 => rng
            .pick(&["0.0", "-0.0", "1.", "1.e5", "1.0E-5", "1.e+400", "1.0e-400"])
            .into(),
        1 => (rng.pick(&[
            "0x7F800000",
            "0xFF800000",
            "0x7FC00000",
            "0x7FF0000000000000",
            "0x7FF8000000000001",
            "0x7C00",
            "0x7E00",
            "0x7F80",
            "0xFF",
            "0x1p3",
        ]))
        .into(),
        2 => format!("-{}.{}", rng.below(100), rng.below(1000)),
        3 => format!(
            "{}.{}e{}",
            rng.below(10),
            rng.below(1000),
            rng.between(0, 50)
        ),
        4 => format!("{}", rng.below(100)),
        _ => format!("{}.{}", rng.below(100), rng.below(1000)),
    }
}

fn string(rng: &mut Rng) -> String {
    let text = rng.pick(&[
        "",
        "a",
        "hello world",
        "\\22",
        "\\0A",
        "\\00",
        "\\5C",
        "\\\\",
        "\\\"",
        "\\n\\t",
        "é",
        "}",
        "]>",
        "//",
        "@x",
        "\\FF\\FE",
        "{\\\"a\\\": 1}",
        "x\\00y",
        "long long long long text",
    ]);
    match rng.below(8) {
        0 => format!("\"{text}\" : {}", rng.pick(&NUMBERS)),
        1 => format!("\"{text}\" : {}", r#type(rng, 1)),
        _ => format!("\"{text}\""),
    }
}

/// `array<i32: 1, 2>`
pub fn array(rng: &mut Rng) -> String {
    let element = if rng.once_in(4) {
        rng.pick(&NUMBERS)
    } else {
        rng.pick(&COMMON)
    };
    let count = rng.below(5);
    if count == 0 {
        return format!("array<{element}>");
    }
    let items: Vec<_> = (0..count)
        .map(|_| match element {
            "i1" if !rng.once_in(10) => rng.pick(&["true", "false"]).into(),
            element if is_float(element) => float_digits(rng),
            _ => digits(rng),
        })
        .collect();
    format!("array<{element}: {}>", items.join(", "))
}

fn element(rng: &mut Rng, r#type: &str) -> String {
    if let Some(inner) = r#type
        .strip_prefix("complex<")
        .and_then(|rest| rest.strip_suffix('>'))
    {
        if rng.once_in(8) {
            return element(rng, inner);
        }
        return format!("({}, {})", element(rng, inner), element(rng, inner));
    }
    match r#type {
        "i1" => rng
            .pick(&["true", "false", "true", "false", "1", "0"])
            .into(),
        "!foo.bar" | "!stablehlo.token" => string(rng),
        float if is_float(float) => match rng.below(6) {
            0 => "0x7F800000".into(),
            1 => format!("{}", rng.below(9)),
            _ => format!("{}.5", rng.below(9)),
        },
        unsigned if unsigned.starts_with('u') => format!("{}", rng.below(2)),
        _ if rng.once_in(12) => digits(rng),
        _ => format!("{}", rng.below(2) as i32 - 1),
    }
}

fn nested(rng: &mut Rng, r#type: &str, shape: &[usize]) -> String {
    match shape {
        [] => element(rng, r#type),
        [count, rest @ ..] => {
            let count = if rng.once_in(25) { count + 1 } else { *count };
            let items: Vec<_> = (0..count).map(|_| nested(rng, r#type, rest)).collect();
            format!("[{}]", items.join(", "))
        }
    }
}

/// Dense, sparse and resource elements.
pub fn dense(rng: &mut Rng) -> String {
    let element_type = match rng.below(8) {
        0 | 1 => rng.pick(&NUMBERS).to_owned(),
        2 => format!(
            "complex<{}>",
            rng.pick(&["f32", "f64", "i32", "bf16", "ui8"])
        ),
        3 => rng
            .pick(&["!foo.bar", "!stablehlo.token", "none", "tensor<2xf32>"])
            .to_owned(),
        _ => rng.pick(&COMMON).to_owned(),
    };
    let rank = rng.below(4);
    let shape: Vec<usize> = (0..rank)
        .map(|_| if rng.once_in(8) { 0 } else { rng.between(1, 3) })
        .collect();
    let shaped = |kind: &str, shape: &[usize]| {
        let dimensions: String = shape.iter().map(|size| format!("{size}x")).collect();
        format!("{kind}<{dimensions}{element_type}>")
    };
    let kind = if rng.once_in(8) {
        rng.pick(&["vector", "memref", "tensor"])
    } else {
        "tensor"
    };
    let full = shaped(kind, &shape);
    match rng.below(14) {
        0 | 1 => format!("dense<{}> : {full}", element(rng, &element_type)),
        2 => {
            // A splat as large as a program's weights, or as nothing there is.
            let huge: &[usize] = rng.pick(&[
                &[1 << 20, 1 << 10][..],
                &[1 << 40],
                &[1 << 31, 1 << 31],
                &[4_000_000_000],
                &[1 << 16],
            ]);
            format!(
                "dense<{}> : {}",
                element(rng, &element_type),
                shaped(kind, huge)
            )
        }
        3 => {
            let count = rng.between(0, 16);
            let hex: String = (0..count)
                .map(|_| format!("{:02X}", rng.below(256)))
                .collect();
            format!("dense<\"0x{hex}\"> : {full}")
        }
        4 => format!(
            "dense_resource<{}> : {full}",
            rng.pick(&["blob", "\"a b\"", "__elided__", "x1"])
        ),
        5 => format!(
            "sparse<{}, {}> : {full}",
            rng.pick(&["0", "[0, 1]", "[[0, 0], [1, 2]]", ""]),
            rng.pick(&["1", "[1, 2]", "1.5", ""])
        ),
        6 => format!("dense<> : {full}"),
        7 => {
            let odd = rng.pick(&["?x2x", "*x", "?x", "2x?x"]);
            format!(
                "dense<{}> : tensor<{odd}{element_type}>",
                element(rng, &element_type)
            )
        }
        8 => format!(
            "dense<{}> : tensor<2x{element_type}, {}>",
            element(rng, &element_type),
            rng.pick(&["#stablehlo.bounds<?, 2>", "#foo.bar", "\"x\"", "1"])
        ),
        _ => format!("dense<{}> : {full}", nested(rng, &element_type, &shape)),
    }
}

fn symbol(rng: &mut Rng) -> String {
    (rng.pick(&[
        "@a",
        "@main",
        "@f",
        "@\"a b\"",
        "@a::@b",
        "@a::@b::@c",
        "@missing",
        "@\"\"",
        "@a.b$c",
    ]))
    .into()
}

/// A type, which is an attribute too.
pub fn r#type(rng: &mut Rng, depth: usize) -> String {
    let plain = if depth == 0 { 3 } else { 12 };
    match rng.below(plain) {
        0 | 1 => rng.pick(&NUMBERS).into(),
        2 => (rng.pick(&[
            "none",
            "!stablehlo.token",
            "!foo.bar",
            "!mhlo.token",
            "!foo.bar<1, [2]>",
            "!foo<x>",
            "complex<f32>",
            "complex<i32>",
            "i16777215",
            "i16777216",
        ]))
        .into(),
        3 | 4 => format!(
            "tensor<{}{}>",
            rng.pick(&["", "2x", "2x3x", "0x", "?x", "*x", "4294967296x", "-1x"]),
            r#type(rng, 0)
        ),
        5 => format!(
            "vector<{}{}>",
            rng.pick(&["", "2x", "[4]x", "0x"]),
            r#type(rng, 0)
        ),
        6 => format!(
            "memref<{}{}{}>",
            rng.pick(&["", "2x", "?x", "*x"]),
            r#type(rng, 0),
            rng.pick(&["", ", 1", ", affine_map<(d0) -> (d0)>", ", strided<[1]>"])
        ),
        7 => format!(
            "tuple<{}, {}>",
            r#type(rng, depth - 1),
            r#type(rng, depth - 1)
        ),
        8 => format!("({}) -> {}", r#type(rng, depth - 1), r#type(rng, depth - 1)),
        9 => format!("complex<{}>", r#type(rng, depth - 1)),
        10 => format!("tensor<2xf32, {}>", attribute(rng, depth - 1)),
        _ => format!(
            "!{}.{}",
            rng.pick(&DIALECTS),
            rng.pick(&[
                "t",
                "token",
                "uniform<i8:f32, 0.5>",
                "quantized<>",
                "array<2xf32>"
            ])
        ),
    }
}

fn affine(rng: &mut Rng) -> String {
    (rng.pick(&[
        "affine_map<(d0, d1) -> (d1, d0)>",
        "affine_map<(d0) -> (d0)>",
        "affine_map<(d0)[s0] -> (d0 + s0 * 2, d0 mod 3)>",
        "affine_map<(d0) -> (d0 floordiv 0)>",
        "affine_map<(d0) -> (-d0 ceildiv 2)>",
        "affine_map<() -> (1)>",
        "affine_set<(d0) : (d0 >= 0)>",
        "affine_set<(d0)[s0] : (d0 - s0 == 0, d0 >= 1)>",
        "affine_map<(d0) -> (d1)>",
        "affine_set<(d0) : (d0 <= 0)>",
    ]))
    .into()
}

fn location(rng: &mut Rng, depth: usize) -> String {
    match rng.below(5) {
        0 => "loc(unknown)".into(),
        1 => "loc(\"a.py\":1:2)".into(),
        2 => "loc(callsite(\"a\" at \"b\"))".into(),
        3 => format!("loc(fused<{}>[\"a\", \"b\"])", attribute(rng, depth - 1)),
        _ => "loc(\"name\"(\"f\":1:1))".into(),
    }
}

fn odd(rng: &mut Rng) -> String {
    (rng.pick(&[
        "distinct[0]<42 : i32>",
        "distinct[1]<>",
        "strided<[2, 1], offset: 3>",
        "strided<[?, 1]>",
        "strided<[]>",
        "#alias",
        "!alias",
        "loc(unknown)",
        "ceildiv",
        "none",
        "%0",
        "^bb0",
        "dense",
        "-",
        "0x",
        "1.0.0",
        "1e5",
        "--1",
        "nan",
        "inf",
        "array<>",
        "array<i32: >",
        "array<i32, 1>",
        "array<1, 2>",
        "array<tensor<f32>: 1>",
        "vector<2xi32>",
        "\"a\" \"b\"",
        "1 2",
        "tensor<2xf32",
        "[1,]",
        "{a = 1,}",
        "{a = 1, a = 2}",
        "opaque<\"x\", \"0x00\"> : tensor<1xi8>",
        "#llvm.noalias",
        "1 : none",
        "1 : vector<2xi32>",
        "true : i1",
        "unit : i1",
    ]))
    .into()
}

fn dialect(rng: &mut Rng, depth: usize) -> String {
    let body = if depth == 0 {
        rng.pick(&["1", "a", "\"x\"", "[1]", "a = 1", "x : y", ""])
            .to_owned()
    } else {
        attribute(rng, depth - 1)
    };
    let name = rng.pick(&DIALECTS);
    match rng.below(9) {
        0 => format!("#{name}.{}", rng.pick(&WORDS)),
        1 => format!("#{name}<{body}>"),
        2 => format!("#{name}<{} {body}>", rng.pick(&WORDS)),
        3 => format!("#{name}.{}<{body}>", rng.pick(&WORDS)),
        _ => (rng.pick(&[
            "#stablehlo<precision DEFAULT>",
            "#stablehlo<precision FAST>",
            "#stablehlo<custom_call_api_version API_VERSION_TYPED_FFI>",
            "#stablehlo<custom_call_api_version API_VERSION_UNSPECIFIED>",
            "#stablehlo.bounds<2, ?>",
            "#stablehlo.type_extensions<bounds = [2]>",
            "#stablehlo.channel_handle<handle = 1, type = 2>",
            "#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 0, operand_tuple_indices = []>",
            "#stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>",
            "#stablehlo.result_accuracy_mode<DEFAULT>",
            "#mhlo<custom_call_schedule LATEST>",
            "#mhlo<custom_call_schedule NONE>",
            "#mhlo.bounds<2>",
            "#sdy.mesh<[\"x\"=2]>",
            "#sdy.sharding<@mesh, [{\"x\"}]>",
            "#sdy<manual_axes{\"x\"}>",
            "#chlo<comparison_direction EQ>",
            "#builtin.int<1>",
            "#vhlo.bool_v1<true>",
            "#sparse_tensor.encoding<{ map = (d0) -> (d0 : dense) }>",
        ]))
        .into(),
    }
}

/// A text with something small changed in it.
pub fn mutate(rng: &mut Rng, text: &[u8]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    const BYTES: &[u8] = b"[]{}<>(),:=#!@\"-+.0123456789 abdefiknstx_?*/\\\n\0\xff";
    let at = rng.below(bytes.len().max(1));
    match rng.below(9) {
        0 if !bytes.is_empty() => {
            bytes.remove(at);
        }
        1 => bytes.insert(at.min(bytes.len()), rng.pick(BYTES)),
        2 if !bytes.is_empty() => bytes[at] = rng.pick(BYTES),
        3 if !bytes.is_empty() => {
            // A part twice, or gone.
            let end = (at + rng.between(1, 6)).min(bytes.len());
            let part = bytes[at..end].to_vec();
            if rng.once_in(2) {
                bytes.splice(at..at, part);
            } else {
                bytes.drain(at..end);
            }
        }
        4 => replace_number(rng, &mut bytes),
        5 => replace_word(rng, &mut bytes),
        6 => bytes = [&b"["[..], &bytes, b"]"].concat(),
        7 => bytes = [&b"{a = "[..], &bytes, b"}"].concat(),
        _ => {
            let spaces: &[u8] = rng.pick(&[&b" "[..], b"\n", b"\t", b"\r\n"]);
            bytes.splice(at..at, spaces.iter().copied());
        }
    }
    bytes
}

/// Where a run of bytes of one sort is, chosen among all such runs.
fn run(rng: &mut Rng, bytes: &[u8], is_one: impl Fn(u8) -> bool) -> Option<std::ops::Range<usize>> {
    let mut runs = Vec::new();
    let mut start = None;
    for index in 0..=bytes.len() {
        let inside = bytes.get(index).is_some_and(|&byte| is_one(byte));
        match (inside, start) {
            (true, None) => start = Some(index),
            (false, Some(from)) => {
                runs.push(from..index);
                start = None;
            }
            _ => {}
        }
    }
    if runs.is_empty() {
        return None;
    }
    let at = rng.below(runs.len());
    Some(runs.swap_remove(at))
}

fn replace_number(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if let Some(range) = run(rng, bytes, |byte| byte.is_ascii_digit()) {
        let number = digits(rng);
        bytes.splice(range, number.bytes());
    }
}

fn replace_word(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if let Some(range) = run(rng, bytes, |byte| {
        byte.is_ascii_alphanumeric() || byte == b'_'
    }) {
        let word = match rng.below(4) {
            0 => rng.pick(&NUMBERS).to_owned(),
            1 => rng.pick(&WORDS).to_owned(),
            2 => digits(rng),
            _ => (rng.pick(&[
                "tensor",
                "dense",
                "index",
                "array",
                "true",
                "mesh",
                "replicated",
                "i",
                "j",
                "k",
                "a",
                "unit",
                "custom",
                "reduction",
                "sparse",
            ]))
            .to_owned(),
        };
        bytes.splice(range, word.bytes());
    }
}

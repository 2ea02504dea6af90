//! Shardy's own cases (`shardy/dialect/sdy/ir/test` of openxla/shardy), told anew, and what the parser
//! and the verifier do beyond them. Every verdict here is XLA's too, but for what the module's
//! documentation says is refused here alone.

use super::*;

fn parse(text: &str) -> Attribute {
    Attribute::parse(text.as_bytes()).unwrap_or_else(|fault| panic!("{text}: {fault}"))
}

fn refusal(text: &str) -> (usize, String) {
    let fault = Attribute::parse(text.as_bytes()).expect_err(text);
    (fault.offset, fault.message)
}

/// `"2x4"` is a tensor of two dimensions, `""` a scalar, `"?"` a dimension that is not known.
fn shape(text: &str) -> TensorShape {
    match text {
        "token" => TensorShape::NotATensor,
        "unranked" => TensorShape::Unranked,
        _ => TensorShape::Ranked(
            text.split('x')
                .filter(|size| !size.is_empty())
                .map(|size| size.parse().ok())
                .collect(),
        ),
    }
}

fn shapes(texts: &[&str]) -> Vec<TensorShape> {
    texts.iter().map(|text| shape(text)).collect()
}

fn told(faults: &[Fault]) -> Vec<String> {
    faults.iter().map(Fault::to_string).collect()
}

fn rule(body: &str) -> ShardingRule {
    match parse(&format!("#sdy.op_sharding_rule<{body}>")) {
        Attribute::ShardingRule(rule) => rule,
        other => panic!("{other}"),
    }
}

fn rule_faults(body: &str, operands: &[&str], results: &[&str]) -> Vec<String> {
    told(&rule(body).verify(&shapes(operands), &shapes(results)))
}

fn mesh(body: &str) -> Mesh {
    match parse(&format!("#sdy.mesh{body}")) {
        Attribute::Mesh(mesh) => mesh,
        other => panic!("{other}"),
    }
}

fn meshes(bodies: &[(&str, &str)]) -> Meshes {
    bodies
        .iter()
        .map(|(name, body)| ((*name).to_owned(), mesh(body)))
        .collect()
}

/// The faults of a sharding of a value, whose mesh is `@mesh`.
fn sharding_faults(mesh: &str, body: &str, of: &str) -> Vec<String> {
    match parse(&format!("#sdy.sharding<@mesh, {body}>")) {
        Attribute::Sharding(sharding) => {
            told(&sharding.verify(&shape(of), &meshes(&[("mesh", mesh)])))
        }
        other => panic!("{other}"),
    }
}

fn per_value_faults(mesh: &str, body: &str, of: &[&str]) -> Vec<String> {
    match parse(&format!("#sdy.sharding_per_value<[{body}]>")) {
        Attribute::ShardingPerValue(value) => {
            let meshes = meshes(&[("mesh", mesh)]);
            told(&value.verify(Role::Result, &shapes(of), &meshes))
        }
        other => panic!("{other}"),
    }
}

const NONE: [&str; 0] = [];

// Sharding rules.

#[test]
fn a_rule_that_shardy_takes_has_no_fault() {
    let many = (0..28).map(|factor| printer::factor_symbol(factor).to_string());
    let many: Vec<String> = many.collect();
    let sizes: Vec<String> = many.iter().map(|symbol| format!("{symbol}=2")).collect();
    let all = many.join(", ");
    let compound = format!("{}, z_8z_9z_10", many[..25].join(", "));
    let of_many = format!("([{all}])->([{compound}]) {{{}}}", sizes.join(", "));
    let twos = ["2"; 28].join("x");
    let last_is_eight = format!("{}x8", ["2"; 25].join("x"));
    for (body, operands, results) in [
        ("([], [])->([])", &["", ""][..], &[""][..]),
        ("([i, j])->([ij]) {i=2, j=4}", &["2x4"], &["8"]),
        (&of_many, &[&twos], &[&last_is_eight]),
        ("([i, j])->([i, j]) {i=16, j=32}, custom", &["16x32"], &["16x32"]),
        ("([i])->([i]) {i=8589934592}, custom", &["8589934592"], &["8589934592"]),
        (
            "([i, j, k, l])->([i, k, l]) {i=2, j=3, k=5, l=7} reduction={j} need_replication={i, l} \
             permutation={k}, custom",
            &["2x3x5x7"],
            &["2x11x7"],
        ),
        (
            "([i, j, k, l])->([i, k, l]) {i=2, j=3, k=5, l=7} reduction={j} need_replication={i, l} \
             permutation={k} blocked_propagation={l}",
            &["2x3x5x7"],
            &["2x11x7"],
        ),
    ] {
        assert_eq!(rule_faults(body, operands, results), NONE, "{body}");
        let text = format!("#sdy.op_sharding_rule<{body}>");
        assert_eq!(parse(&text).to_string(), text);
    }
}

#[test]
fn a_rule_is_read_into_factors_by_index() {
    assert_eq!(
        rule(
            "([i, jk], [])->([zz_2]) {i=1, j=2, k=-0x10} reduction={k} need_replication={i} \
             permutation={j} blocked_propagation={i, z_1}, custom"
        ),
        ShardingRule {
            factor_sizes: vec![1, 2, -16],
            operands: vec![
                TensorMapping {
                    dimensions: vec![
                        DimMapping { factors: vec![0] },
                        DimMapping {
                            factors: vec![1, 2]
                        }
                    ]
                },
                TensorMapping::default()
            ],
            results: vec![TensorMapping {
                dimensions: vec![DimMapping {
                    factors: vec![17, 19]
                }]
            }],
            reduction: vec![2],
            need_replication: vec![0],
            permutation: vec![1],
            blocked_propagation: vec![0, 18],
            custom: true,
        }
    );
}

#[test]
fn a_rule_maps_every_value_of_the_operation() {
    assert_eq!(
        rule_faults("([i, j])->([i, j]) {i=2, j=4}", &["2x4", "2x4"], &["2x4"]),
        ["operands: the rule maps 1 and the operation has 2; map each, a scalar as []"]
    );
    assert_eq!(
        rule_faults("([i, j])->([i, j], [i, j]) {i=2, j=4}", &["2x4"], &["2x4"]),
        ["results: the rule maps 2 and the operation has 1; map each, a scalar as []"]
    );
    assert_eq!(
        told(&ShardingRule::default().verify(&[], &[])),
        [
            "operands: the operation has none; only one with operands and results has a rule",
            "results: the operation has none; only one with operands and results has a rule"
        ]
    );
}

#[test]
fn a_rule_maps_every_dimension_of_a_value() {
    assert_eq!(
        rule_faults("([i, j], [i])->([i, j]) {i=2, j=4}", &["2x4", "2x4"], &["2x4"]),
        [
            "operand 1: the mapping [i] has 1 dimension and the tensor has 2; map each dimension of \
             the tensor"
        ]
    );
    assert_eq!(
        rule_faults("([i, j], [i, j])->([i]) {i=2, j=4}", &["2x4", "2x4"], &["2x4"]),
        [
            "result 0: the mapping [i] has 1 dimension and the tensor has 2; map each dimension of \
             the tensor"
        ]
    );
    assert_eq!(
        rule_faults(
            "([i,], [i,])->([i, j]) {i=2, j=8}",
            &["2x8", "2x8"],
            &["2x8"]
        ),
        [
            "operand 0, dimension 1: it has no factor; give it one, of the size of the dimension",
            "operand 1, dimension 1: it has no factor; give it one, of the size of the dimension"
        ]
    );
}

#[test]
fn an_operation_with_a_rule_has_tensors_of_known_shapes_only() {
    let body = "([i, j])->([i, j]) {i=2, j=4}";
    assert_eq!(
        rule_faults(body, &["unranked"], &["2x4"]),
        ["operand 0: it is no tensor of a known shape; an operation with a rule has nothing else"]
    );
    assert_eq!(
        rule_faults(body, &["2x4"], &["?x4"]),
        [
            "result 0: it has a dimension that is not known before the run; an operation with a rule \
             has none"
        ]
    );
    assert_eq!(
        rule_faults("([])->([i]) {i=8}", &["token"], &["8"]),
        ["operand 0: it is no tensor of a known shape; an operation with a rule has nothing else"]
    );
}

#[test]
fn a_factor_of_size_one_stands_alone_in_a_dimension() {
    assert_eq!(
        rule_faults(
            "([i, jk], [i, j])->([i, j]) {i=2, j=8, k=1}",
            &["2x8", "2x8"],
            &["2x8"]
        ),
        [
            "operand 0, dimension 1, factor k: its size is 1 and there are others beside it; leave it \
             out here"
        ]
    );
}

#[test]
fn a_factor_of_a_mapping_has_a_size() {
    assert_eq!(
        rule_faults(
            "([i, u], [i, j])->([i, j]) {i=2, j=8}",
            &["2x8", "2x8"],
            &["2x8"]
        ),
        [
            "operand 0, dimension 1, factor u: the rule gives it no size; give one to each factor \
             from k to u"
        ]
    );
    assert_eq!(
        rule_faults("([i])->([i])", &["8"], &["8"]),
        [
            "operand 0, dimension 0, factor i: the rule gives it no size; give one to i",
            "result 0, dimension 0, factor i: the rule gives it no size; give one to i"
        ]
    );
}

#[test]
fn a_factor_with_a_size_is_in_a_mapping() {
    assert_eq!(
        rule_faults(
            "([i, j], [i, j])->([i, j]) {i=2, j=8, k=2}",
            &["2x8", "2x8"],
            &["2x8"]
        ),
        ["factor k: no operand and no result has it; map a dimension to it, or leave it out"]
    );
}

#[test]
fn a_value_has_a_factor_once() {
    assert_eq!(
        rule_faults("([ij, k])->([iik]) {i=2, j=2, k=2}", &["4x2"], &["8"]),
        ["result 0, dimension 0, factor i: the value has it twice; a value has each factor once"]
    );
    assert_eq!(
        rule_faults("([i, i])->([ij]) {i=2, j=2}", &["2x2"], &["4"]),
        ["operand 0, dimension 1, factor i: the value has it twice; a value has each factor once"]
    );
}

#[test]
fn special_factors_are_in_order_unique_sized_and_of_one_kind() {
    for (lists, expected) in [
        (
            "need_replication={k, i}",
            &["need_replication: k is before i; the factors are listed in order"][..],
        ),
        (
            "need_replication={i, i}",
            &["need_replication, factor i: it is listed twice; list it once"],
        ),
        (
            "need_replication={z}",
            &["need_replication, factor z: the rule gives it no size; give one to each factor from l to z"],
        ),
        (
            "reduction={j} need_replication={j}",
            &["need_replication, factor j: it is in reduction too; a factor is in one of the two"],
        ),
        (
            "reduction={j} need_replication={j} permutation={j}",
            &[
                "need_replication, factor j: it is in reduction too; a factor is in one of the two",
                "permutation, factor j: it is in reduction too; a factor is in one of the two",
            ],
        ),
        (
            "blocked_propagation={k, i}",
            &["blocked_propagation: k is before i; the factors are listed in order"],
        ),
        (
            "blocked_propagation={i, i, l}",
            &[
                "blocked_propagation, factor i: it is listed twice; list it once",
                "blocked_propagation, factor l: the rule gives it no size; give one to l",
            ],
        ),
        // Blocked propagation is beside the kinds.
        ("reduction={j} blocked_propagation={j}", &[]),
    ] {
        let body = format!("([i, j, k])->([i, k]) {{i=2, j=4, k=8}} {lists}");
        assert_eq!(rule_faults(&body, &["2x4x8"], &["2x8"]), expected, "{lists}");
    }
}

#[test]
fn no_result_has_a_factor_that_is_summed_over() {
    assert_eq!(
        rule_faults(
            "([i, j, k, l])->([i, k, l]) {i=2, j=3, k=5, l=7} reduction={k}",
            &["2x3x5x7"],
            &["2x5x7"]
        ),
        ["reduction, factor k: a result has it; results have no factor that is summed over"]
    );
}

#[test]
fn every_fault_of_a_rule_is_told_at_once() {
    assert_eq!(
        rule_faults(
            "([i, i], [l])->([j]) {i=2, j=3, k=4} reduction={j, i} permutation={i}",
            &["2x2", "4x4"],
            &["3"]
        ),
        [
            "operand 0, dimension 1, factor i: the value has it twice; a value has each factor once",
            "operand 1: the mapping [l] has 1 dimension and the tensor has 2; map each dimension of \
             the tensor",
            "operand 1, dimension 0, factor l: the rule gives it no size; give one to l",
            "factor k: no operand and no result has it; map a dimension to it, or leave it out",
            "reduction: j is before i; the factors are listed in order",
            "permutation, factor i: it is in reduction too; a factor is in one of the two",
            "reduction, factor j: a result has it; results have no factor that is summed over",
        ]
    );
}

#[test]
fn faults_beyond_many_are_counted_only() {
    let body = format!("([{}i])->([i]) {{i=1}}", "i, ".repeat(99));
    let sizes = ["1"; 100].join("x");
    let faults = rule_faults(&body, &[&sizes], &["1"]);
    assert_eq!(faults.len(), MOST_FAULTS + 1);
    assert_eq!(faults[MOST_FAULTS], "the attribute: it has 35 faults more");
}

#[test]
fn a_size_that_is_not_the_product_of_its_factors_is_worth_a_word() {
    let rule = rule("([i, jk], [m])->([j, n]) {i=2, j=3, k=4, l=9223372036854775807, m=5, n=6}");
    assert_eq!(
        told(&rule.size_mismatches(&shapes(&["2x12", "7"]), &shapes(&["3x?"]))),
        ["operand 1, dimension 0: its size is 7 and the product of its factors is 5"]
    );
    let rule = self::rule("([ij])->([ij]) {i=9223372036854775807, j=2}");
    assert_eq!(
        told(&rule.size_mismatches(&shapes(&["8"]), &[])),
        ["operand 0, dimension 0: its size is 8 and the product of its factors is beyond 2^63 - 1"]
    );
}

#[test]
fn a_text_that_is_no_rule_is_refused_where_it_goes_wrong() {
    const SYMBOLS: &str = "factor symbols are the letters i to z, then z_1, z_2, ...";
    const ORDER: &str =
        "the sizes of the factors are given one by one and in order, i, j, k, ...; ";
    const CLOSE: &str = "expected '>', or what may come before it in this order: {i=2, ...} \
         reduction={...} need_replication={...} permutation={...} blocked_propagation={...}, custom, ";
    let four = "([i, j, k, l])->([i, k, l]) {i=2, j=3, k=5, l=7}";
    for (body, offset, message) in [
        ("([i])->([i]) {i=8},", 19, "expected custom after ',', found \">\"".to_owned()),
        (
            "([i])->([i]) {i=8}, custom_rule",
            20,
            "expected custom after ',', found \"custom_rule\"".into(),
        ),
        (
            "([i, j])->([i j]) {i=2, j=4}",
            14,
            "expected ',' or ']', since the factors of one dimension are one word, found \"j\"".into(),
        ),
        ("([i])->([i]) {j=4, i=2}", 14, format!("{ORDER}expected \"i\", found \"j\"")),
        ("([i])->([i]) {i=2, k=4}", 19, format!("{ORDER}expected \"j\", found \"k\"")),
        ("([i])->([i]) {ij=4}", 14, format!("{ORDER}expected \"i\", found \"ij\"")),
        ("([z_, j])->([i])", 2, format!("{SYMBOLS}, with a number after z_; found \"z_\"")),
        ("([i_1, j])->([i])", 3, format!("{SYMBOLS}; found \"_\" in \"i_1\"")),
        (
            "([z_z_1, j])->([i])",
            2,
            format!("{SYMBOLS}, with a number after z_; found \"z_\" in \"z_z_1\""),
        ),
        (
            "([z_0z_, j])->([i])",
            2,
            format!(
                "{SYMBOLS}, numbered from 1 and without zeros before the number; found \"z_0\" in \
                 \"z_0z_\""
            ),
        ),
        ("([a, j])->([j])", 2, format!("{SYMBOLS}; found \"a\"")),
        ("([z_-1, j])->([i])", 2, format!("{SYMBOLS}, with a number after z_; found \"z_\"")),
        ("([z_ 1, j])->([i])", 2, format!("{SYMBOLS}, with a number after z_; found \"z_\"")),
        (
            "([j, z_0])->([j])",
            5,
            format!("{SYMBOLS}, numbered from 1 and without zeros before the number; found \"z_0\""),
        ),
        (
            "([z_9223372036854775808])->([j])",
            2,
            format!("{SYMBOLS}, numbered up to 2^63 - 18; found \"z_9223372036854775808\""),
        ),
        (
            "([z_9223372036854775791])->([j])",
            2,
            format!("{SYMBOLS}, numbered up to 2^63 - 18; found \"z_9223372036854775791\""),
        ),
        (
            "([z_9223372036854775790i])->([j]) {z_2i=3}",
            35,
            format!("{ORDER}expected \"i\", found \"z_2i\""),
        ),
        ("([j, z_2_i])->([j])", 8, format!("{SYMBOLS}; found \"_\" in \"z_2_i\"")),
        (
            "()->([i]) {i=2}",
            1,
            "the rule maps no operands; only an operation with operands and results has a rule, and a \
             scalar is mapped as []"
                .into(),
        ),
        (
            "([i])->() {i=2}",
            8,
            "the rule maps no results; only an operation with operands and results has a rule, and a \
             scalar is mapped as []"
                .into(),
        ),
        (
            &format!("{four} reduction: {{j}}"),
            58,
            "expected '=' after reduction, found \":\"".into(),
        ),
        (&format!("{four} reduce={{j}}"), 49, format!("{CLOSE}found \"reduce\"")),
        (
            &format!("{four} need_replication={{i}} reduction={{j}}"),
            70,
            format!("{CLOSE}found \"reduction\""),
        ),
        (&format!("{four} reduction={{a}}"), 60, format!("{SYMBOLS}; found \"a\"")),
        (
            &format!("{four} reduction={{jk}}"),
            61,
            "XLA would pass over all but the first factor of \"jk\"; write the factors of reduction \
             with commas between"
                .into(),
        ),
        ("([i])>([i]) {i=2}", 5, "expected '->' before the mappings of the results, found \">\"".into()),
        ("([*])->([i]) {i=2}", 2, "expected ',' or ']', found \"*\"".into()),
        ("([i])->([i]) {i=2,}", 18, "expected the size of the factor j, as j=2, found \"}\"".into()),
        (
            "([i])->([i]) {i=9223372036854775808}",
            16,
            "expected the size of a factor from -2^63 to 2^63 - 1, found \"9223372036854775808\"".into(),
        ),
        (
            "([i])->([i]) {i=true}",
            16,
            "expected the size of a factor, an integer, found \"true\"".into(),
        ),
        (
            "([i])->([i]) {i=2.5}",
            16,
            "expected the size of a factor, an integer, found \"2.5\"".into(),
        ),
    ] {
        let before = "#sdy.op_sharding_rule<";
        let text = format!("{before}{body}>");
        assert_eq!(refusal(&text), (before.len() + offset, message), "{body}");
    }
}

// Meshes.

#[test]
fn a_mesh_that_shardy_takes_has_no_fault() {
    for body in [
        "<[]>",
        "<[], device_ids=[0]>",
        "<[], device_ids=[3]>",
        r#"<["a"=1]>"#,
        r#"<["a"=2]>"#,
        r#"<["a"=2], device_ids=[1, 0]>"#,
        r#"<["a"=2, "b"=1]>"#,
        r#"<["a"=2, "b"=1], device_ids=[1, 0]>"#,
        r#"<["a"=9223372036854775807]>"#,
        r#"<[""=2, "a b\22"=2]>"#,
    ] {
        assert_eq!(mesh(body).verify(), [], "{body}");
        assert_eq!(mesh(body).to_string(), body);
    }
}

#[test]
fn devices_that_are_listed_in_their_order_are_not_listed() {
    for (body, printed) in [
        (r#"<["a"=1], device_ids=[0]>"#, r#"<["a"=1]>"#),
        (
            r#"<["a"=2, "b"=2], device_ids=[0, 1, 2, 3]>"#,
            r#"<["a"=2, "b"=2]>"#,
        ),
        (
            r#"<["a"=2, "b"=2], device_ids=[0, 1]>"#,
            r#"<["a"=2, "b"=2], device_ids=[0, 1]>"#,
        ),
    ] {
        assert_eq!(mesh(body).to_string(), printed);
    }
}

#[test]
fn every_fault_of_a_mesh_is_told() {
    for (body, expected) in [
        (
            r#"<["a"=-2, "b"=0]>"#,
            &[
                r#"axis "a": its size is -2; a size is 1 or more"#,
                r#"axis "b": its size is 0; a size is 1 or more"#,
            ][..],
        ),
        (
            r#"<["a"=2, "b"=2, "a"=4]>"#,
            &[r#"axis "a": the mesh has two axes of this name; name each differently"#],
        ),
        ("<[], device_ids=[-1]>", &["device_ids: -1 is no device; an id is 0 or more"]),
        (
            "<[], device_ids=[1, 0]>",
            &["the mesh: it has no axes and 2 devices; without axes it has one device at most"],
        ),
        (
            r#"<["a"=2, "b"=2], device_ids=[0, 2, 1, 3, 4, 5]>"#,
            &["device_ids: 6 devices are listed and the axes span 4; list every device once, or none"],
        ),
        (
            r#"<["a"=2], device_ids=[0]>"#,
            &["device_ids: 1 device is listed and the axes span 2; list every device once, or none"],
        ),
        (
            r#"<["a"=2], device_ids=[1, 1]>"#,
            &["device_ids: device 1 is listed twice; list every device once"],
        ),
        (
            r#"<["a"=2], device_ids=[2, 1]>"#,
            &["device_ids: device 2 is beyond the 2 of the mesh, 0 to 1"],
        ),
        (
            r#"<["a"=4294967296, "b"=2147483648]>"#,
            &["the mesh: its axes span more than 2^63 - 1 devices, over which XLA may end the process; \
               make them smaller"],
        ),
    ] {
        assert_eq!(told(&mesh(body).verify()), expected, "{body}");
    }
}

#[test]
fn a_mesh_that_was_made_of_data_has_names_that_xla_can_carry() {
    let mesh = Mesh {
        axes: vec![MeshAxis {
            name: "é".into(),
            size: 2,
        }],
        device_ids: vec![],
    };
    assert_eq!(
        told(&mesh.verify()),
        [
            "axis \"é\": the name \"é\" holds the byte 0xc3: XLA cannot carry it and may end the \
             process; use printable ASCII without a backslash"
        ]
    );
}

// Shardings.

const FOO: &str = r#"<["a"=2, "c"=2, "b"=4, "d"=2]>"#;
const BAR: &str = r#"<["a"=4, "b"=2]>"#;
const SINGLE: &str = "<[], device_ids=[0]>";

#[test]
fn a_sharding_that_shardy_takes_has_no_fault() {
    for (mesh, body, of) in [
        (FOO, r#"[], replicated={"b"}"#, ""),
        (FOO, r#"[{"a"}, {}]"#, "8x8"),
        (FOO, r#"[{}, {}], replicated={"a", "b"}"#, "8x8"),
        (FOO, r#"[{}, {}], unreduced={"a", "b"}"#, "8x8"),
        (FOO, r#"[{}, {}], unreduced=max{"a"}"#, "8x8"),
        (FOO, r#"[{}, {}], replicated={"a"}, unreduced={"b"}"#, "8x8"),
        (FOO, r#"[{"a", ?}, {?}]"#, "8x8"),
        (FOO, r#"[{"a", "b", ?}, {}]"#, "16x8"),
        (FOO, r#"[{"a"}, {"b":(2)2}]"#, "8x8"),
        (FOO, r#"[{"a"}, {}], replicated={"b":(2)2}"#, "8x8"),
        (FOO, r#"[{"a"}, {}], unreduced={"b":(2)2}"#, "8x8"),
        (BAR, r#"[{"a":(1)2, "b", "a":(2)2}, {}]"#, "8x8"),
        (BAR, r#"[{"a":(2)2, "a":(1)2}, {}]"#, "8x8"),
        (FOO, r#"[{"a"}p0, {"b"}p1]"#, "8x8"),
        (FOO, r#"[{}, {"a"}]"#, "?x8"),
        (FOO, "[]", "token"),
        (SINGLE, "[]", "8x8"),
    ] {
        assert_eq!(sharding_faults(mesh, body, of), NONE, "{body}");
        let text = format!("#sdy.sharding<@mesh, {body}>");
        assert_eq!(parse(&text).to_string(), text);
    }
}

#[test]
fn every_fault_of_a_sharding_is_told() {
    const CAB: &str = r#"<["c"=2, "a"=2, "b"=2]>"#;
    const EIGHT: &str = r#"<["a"=8, "b"=2]>"#;
    const TWO: &str = r#"<["a"=2]>"#;
    const NO_TENSOR: &str = "the sharding: the value is no tensor, so it has no dimensions and no \
         replicated or unreduced axes; write []";
    const ONE_DEVICE: &str =
        "the sharding: it is one on a single device, which has no dimensions and \
         no replicated or unreduced axes; write []";
    let twice = |place: &str, axis: &str| {
        format!(
            "{place}: the axis {axis} is used twice; use it for one dimension, or in one of the lists, \
             once"
        )
    };
    let before = |place: &str, first: &str, second: &str| {
        format!(
            "{place}: {first} is before {second}; axes are listed in the order of the mesh, and parts \
             of one by their pre-size"
        )
    };
    let both = "axis \"a\": both the axis and a part of it are used; use the one or the other";
    let divides = |part: &str, next: i64| {
        format!(
            "axis \"a\": pre-size times size of {part} is {next}, which does not divide the size of \
             the axis, 8"
        )
    };
    let merge = |place: &str| {
        format!(
            "{place}: the sub-axes \"a\":(2)2 and \"a\":(4)4 follow each other; write them as one"
        )
    };
    for (mesh, body, of, expected) in [
        (TWO, "[{}]", "token", vec![NO_TENSOR.to_owned()]),
        (TWO, r#"[], replicated={"a"}"#, "token", vec![NO_TENSOR.into()]),
        (TWO, r#"[], unreduced={"a"}"#, "token", vec![NO_TENSOR.into()]),
        (
            TWO,
            "[]",
            "unranked",
            vec!["the sharding: the tensor has no known rank; only tensors of a rank are sharded".into()],
        ),
        (
            TWO,
            "[{}]",
            "?x?",
            vec!["the sharding: it has 1 dimension and the tensor has 2; write {} for a dimension that \
                  is not split"
                .into()],
        ),
        (
            TWO,
            "[{}p1, {}]",
            "?x?",
            vec!["dimension 0: it is never split, so the priority p1 means nothing; leave it out, or \
                  write {?}p1"
                .into()],
        ),
        (TWO, r#"[{}, {"c"}]"#, "8x8", vec![r#"dimension 1: the mesh has no axis "c"; there is "a""#.into()]),
        (
            TWO,
            r#"[{}, {}], replicated={"c", "d"}"#,
            "8x8",
            vec![
                r#"replicated: the mesh has no axis "c"; there is "a""#.into(),
                r#"replicated: the mesh has no axis "d"; there is "a""#.into(),
            ],
        ),
        (
            TWO,
            r#"[{}, {}], unreduced={"c"}"#,
            "8x8",
            vec![r#"unreduced: the mesh has no axis "c"; there is "a""#.into()],
        ),
        (
            TWO,
            r#"[{}, {"c":(2)2}], replicated={"a"}"#,
            "8x8",
            vec![r#"dimension 1: the mesh has no axis "c"; there is "a""#.into()],
        ),
        (TWO, r#"[{}, {"a"}], replicated={"a"}"#, "8x8", vec![twice("replicated", "\"a\"")]),
        (TWO, r#"[{}, {"a"}], unreduced={"a"}"#, "8x8", vec![twice("unreduced", "\"a\"")]),
        (
            TWO,
            r#"[{}, {}], replicated={"a"}, unreduced={"a"}"#,
            "8x8",
            vec![twice("unreduced", "\"a\"")],
        ),
        (TWO, r#"[{}, {}], replicated={"a", "a"}"#, "8x8", vec![twice("replicated", "\"a\"")]),
        (TWO, r#"[{}, {}], unreduced={"a", "a"}"#, "8x8", vec![twice("unreduced", "\"a\"")]),
        (TWO, r#"[{}, {"a", "a"}]"#, "8x8", vec![twice("dimension 1", "\"a\"")]),
        (TWO, r#"[{"a"}, {"a"}]"#, "8x8", vec![twice("dimension 1", "\"a\"")]),
        (
            CAB,
            r#"[{}, {}], replicated={"a", "b", "c"}"#,
            "8x8",
            vec![before("replicated", "\"b\"", "\"c\"")],
        ),
        (
            CAB,
            r#"[{}, {}], unreduced={"a", "b", "c"}"#,
            "8x8",
            vec![before("unreduced", "\"b\"", "\"c\"")],
        ),
        (
            EIGHT,
            r#"[{}, {"a":(2)2}], replicated={"a":(2)2}"#,
            "8x8",
            vec![twice("replicated", "\"a\":(2)2")],
        ),
        (EIGHT, r#"[{}, {"a"}], replicated={"a":(2)2}"#, "8x8", vec![both.into()]),
        (EIGHT, r#"[{}, {"a"}], unreduced={"a":(2)2}"#, "8x8", vec![both.into()]),
        (
            EIGHT,
            r#"[{}, {}], replicated={"a":(4)2, "a":(1)2, "b"}"#,
            "8x8",
            vec![before("replicated", "\"a\":(4)2", "\"a\":(1)2")],
        ),
        (
            EIGHT,
            r#"[{}, {}], unreduced={"a":(4)2, "a":(1)2, "b"}"#,
            "8x8",
            vec![before("unreduced", "\"a\":(4)2", "\"a\":(1)2")],
        ),
        (
            EIGHT,
            r#"[{}, {}], unreduced={"a", "a":(1)2}"#,
            "8x8",
            vec![before("unreduced", "\"a\"", "\"a\":(1)2"), both.into()],
        ),
        (
            EIGHT,
            r#"[{}, {"a":(2)2, "a":(4)4}]"#,
            "8x8",
            vec![merge("dimension 1"), divides("\"a\":(4)4", 16)],
        ),
        (
            EIGHT,
            r#"[{}, {}], replicated={"a":(2)2, "a":(4)4}"#,
            "8x8",
            vec![merge("replicated"), divides("\"a\":(4)4", 16)],
        ),
        (
            EIGHT,
            r#"[{}, {}], unreduced={"a":(2)2, "a":(4)4}"#,
            "8x8",
            vec![merge("unreduced"), divides("\"a\":(4)4", 16)],
        ),
        (
            EIGHT,
            r#"[{}, {"a":(-1)2}]"#,
            "8x8",
            vec![r#"axis "a": the pre-size of "a":(-1)2 is -1; a pre-size is 1 or more"#.into()],
        ),
        (
            EIGHT,
            r#"[{}, {"a":(0)2}]"#,
            "8x8",
            vec![r#"axis "a": the pre-size of "a":(0)2 is 0; a pre-size is 1 or more"#.into()],
        ),
        (
            // What is between the two parts keeps them apart, unknown as it is.
            EIGHT,
            r#"[{}, {"a":(1)2, "q", "a":(2)2}]"#,
            "8x8",
            vec![r#"dimension 1: the mesh has no axis "q"; there is "a", "b""#.into()],
        ),
        (
            EIGHT,
            r#"[{}, {"a":(2)1}]"#,
            "8x8",
            vec![r#"axis "a": the size of "a":(2)1 is 1; the size of a part is 2 or more"#.into()],
        ),
        (EIGHT, r#"[{}, {"a":(3)2}]"#, "6x6", vec![divides("\"a\":(3)2", 6)]),
        (EIGHT, r#"[{}, {"a":(2)3}]"#, "6x6", vec![divides("\"a\":(2)3", 6)]),
        (EIGHT, r#"[{}, {"a":(4)4}]"#, "8x8", vec![divides("\"a\":(4)4", 16)]),
        (
            EIGHT,
            r#"[{}, {"a":(1)8}]"#,
            "8x8",
            vec![r#"axis "a": "a":(1)8 is as large as the axis; write the axis itself"#.into()],
        ),
        (
            // Of all that XLA says here, it says nothing: it divides by zero.
            EIGHT,
            r#"[{}, {"a":(4611686018427387904)4}]"#,
            "8x8",
            vec![r#"axis "a": pre-size times size of "a":(4611686018427387904)4 is beyond 2^63 - 1, over which XLA may end the process; both divide the size of the axis, 8"#.into()],
        ),
        (
            EIGHT,
            r#"[{"a":(2)4}, {"b"}], replicated={"a":(1)4}"#,
            "8x8",
            vec![r#"axis "a": its parts "a":(1)4 and "a":(2)4 overlap; cut it into parts that do not"#.into()],
        ),
        (SINGLE, "[{}, {}]", "8x8", vec![ONE_DEVICE.into()]),
        (SINGLE, r#"[], replicated={"a"}"#, "8x8", vec![ONE_DEVICE.into()]),
        (SINGLE, r#"[], unreduced={"a"}"#, "8x8", vec![ONE_DEVICE.into()]),
    ] {
        assert_eq!(sharding_faults(mesh, body, of), expected, "{body}");
    }
}

#[test]
fn a_dimension_of_unknown_size_is_not_split() {
    assert_eq!(sharding_faults(FOO, "[{?}, {}]", "?x?"), NONE);
    assert_eq!(
        sharding_faults(FOO, r#"[{"a"}, {"c"}]"#, "8x?"),
        [
            "dimension 1: it is split and its size is not known before the run, over which XLA may \
             end the process; give it a size"
        ]
    );
}

#[test]
fn a_sharding_names_a_mesh_of_the_module() {
    let Attribute::Sharding(sharding) = parse(r#"#sdy.sharding<@other, [{}, {"a"}]>"#) else {
        panic!("no sharding");
    };
    let known = meshes(&[("mesh", FOO), ("tp", BAR)]);
    assert_eq!(
        told(&sharding.verify(&shape("8x8"), &known)),
        [
            r#"the mesh: the module has no mesh "other"; there is "mesh", "tp": give it with the module's option meshes"#
        ]
    );
    assert_eq!(
        told(&sharding.verify(&shape("8x8"), &Meshes::new())),
        [
            r#"the mesh: the module has no mesh "other"; there is no mesh: give it with the module's option meshes"#
        ]
    );
}

#[test]
fn a_mesh_inside_a_sharding_is_checked_with_it() {
    assert_eq!(
        per_value_faults(SINGLE, r#"<mesh<["a"=2, "b"=2]>, [{}, {"c"}]>"#, &["8x8"]),
        [r#"result 0, dimension 1: the mesh has no axis "c"; there is "a", "b""#]
    );
    let text = r#"#sdy.sharding_per_value<[<@m, []>, <mesh<["a"=0]>, []>]>"#;
    assert_eq!(
        told(&parse(text).verify()),
        [r#"sharding 1, axis "a": its size is 0; a size is 1 or more"#]
    );
}

#[test]
fn shardings_are_as_many_as_the_values() {
    assert_eq!(
        per_value_faults(
            BAR,
            r#"<@mesh, [{"a"}, {}]>, <@mesh, [{"b"}, {}]>, <@mesh, [{"a"}, {}]>"#,
            &["2x13", "2x13"]
        ),
        ["results: there are 3 shardings and 2 results; give each its own"]
    );
    assert_eq!(
        per_value_faults(BAR, r#"<@mesh, [{"a"}]>"#, &[]),
        ["results: there is 1 sharding and 0 results; give each its own"]
    );
    assert_eq!(
        per_value_faults(
            BAR,
            r#"<@mesh, [{"a"}, {}]>, <@mesh, [{"c"}, {}]>"#,
            &["2x13", "2x13"]
        ),
        [r#"result 1, dimension 0: the mesh has no axis "c"; there is "a", "b""#]
    );
    assert_eq!(
        per_value_faults(
            BAR,
            r#"<@mesh, [{"a"}, {}]>, <mesh<["a"=2]>, [{"a"}, {}]>"#,
            &["8x8", "8x8"]
        ),
        NONE
    );
}

#[test]
fn an_operation_without_results_may_have_a_sharding_that_splits_nothing() {
    assert_eq!(per_value_faults(BAR, "", &[]), NONE);
    assert_eq!(per_value_faults(SINGLE, "<@mesh, []>", &[]), NONE);
    assert_eq!(per_value_faults(BAR, "<@mesh, []>", &[]), NONE);
    assert_eq!(
        per_value_faults(SINGLE, "<@mesh, [{}]>", &[]),
        [
            "the sharding: it is one on a single device, which has no dimensions and no replicated or \
             unreduced axes; write []"
        ]
    );
    assert_eq!(
        per_value_faults(SINGLE, r#"<@mesh, [{"a"}]>"#, &[]),
        [
            "the sharding: it is one on a single device, which has no dimensions and no replicated or \
             unreduced axes; write []"
        ]
    );
    assert_eq!(
        per_value_faults(BAR, r#"<@mesh, [], replicated={"a"}>"#, &[]),
        [
            "the sharding: it is one of no value, which has no dimensions and no replicated or \
             unreduced axes; write []"
        ]
    );
    assert_eq!(
        per_value_faults(BAR, "<@nope, []>", &[]),
        [
            r#"the mesh: the module has no mesh "nope"; there is "mesh": give it with the module's option meshes"#
        ]
    );
}

#[test]
fn replicated_and_unreduced_axes_come_in_any_order_and_are_printed_in_one() {
    assert_eq!(
        parse(
            r#"#sdy.sharding< @"mesh" ,[{ "a":( 1 )2,?}p3 ],unreduced=min{"b"},replicated={"c"}>"#
        )
        .to_string(),
        r#"#sdy.sharding<@mesh, [{"a":(1)2, ?}p3], replicated={"c"}, unreduced=min{"b"}>"#
    );
}

#[test]
fn a_text_that_is_no_sharding_is_refused_where_it_goes_wrong() {
    for (body, offset, message) in [
        (
            r#"@m, [{"b"}phigh]"#,
            10,
            r#"a priority is p and a number, as p0 or p12; found "phigh""#,
        ),
        (
            r#"@m, [{"b"}p9999999999999999999]"#,
            10,
            r#"a priority is p and a number, as p0 or p12, which is at most 2^63 - 1; found "p9999999999999999999""#,
        ),
        (
            r#"@m, [{"b"}p01]"#,
            10,
            r#"a priority is p and a number, as p0 or p12, without zeros before it; found "p01""#,
        ),
        (r#"@m, [], replicated{"a"}"#, 18, r#"expected '=' after replicated, found "{""#),
        (r#"@m, [], unreduced=["a"]"#, 18, r#"expected '{' before the unreduced axes, found "[""#),
        (r#"@m, [], unreduced={"a"[]}"#, 22, r#"expected ',' or '}', found "[""#),
        (
            r#"@m, [], replicated={"a", b}"#,
            25,
            r#"expected the name of an axis in quotes, as "x", found "b""#,
        ),
        (
            r#"@m, [], unreduced={b}"#,
            19,
            r#"expected the name of an axis in quotes, as "x", found "b""#,
        ),
        (
            r#"@m, [], replicated unreduced={"a"}"#,
            19,
            r#"expected '=' after replicated, found "unreduced""#,
        ),
        (
            r#"@m, [],"#,
            7,
            r#"expected replicated={...} or unreduced={...}, found ">""#,
        ),
        (
            r#"@m, [], unknown={"a"}"#,
            8,
            r#"expected replicated={...} or unreduced={...}, found "unknown""#,
        ),
        (
            r#"@m, [], replicated={"a"}, replicated={"b"}"#,
            26,
            "replicated is given twice; list all its axes at once",
        ),
        (
            r#"@m, [], unreduced={"a"}, unreduced={"b"}"#,
            25,
            "unreduced is given twice; list all its axes at once",
        ),
        (
            r#"@m, [], unreduced=sum{"a"}"#,
            18,
            "PJRT 0.106 does not read the word sum here, which is what unreduced={...} means without \
             it; leave it out",
        ),
        (
            r#"@m, [], unreduced{"a"}"#,
            17,
            r#"expected '=' after unreduced, which PJRT 0.106 needs, found "{""#,
        ),
        (r#"@m, [], unreduced=avg{"a"}"#, 18, r#"expected '{', or max or min, found "avg""#),
        (r#"@m, [{?, "a"}]"#, 7, r#"expected '}' after '?', which is last in a dimension, found ",""#),
        (r#"@m, [{"a",}]"#, 10, r#"expected the name of an axis in quotes, or '?' at the end, found "}""#),
        (r#"@m, [{"a" "b"}]"#, 10, r#"expected ',' or '}', found "\"b\"""#),
        (r#"@m, [{#sdy<axis_ref"a">}]"#, 6, r##"expected the name of an axis in quotes, or '?' at the end, found "#sdy""##),
        (r#"mesh, []"#, 4, r#"expected '<' before a mesh, found ",""#),
        (r#""m", []"#, 0, r#"expected a mesh, as @mesh or mesh<["x"=2]>, found "\"m\"""#),
        (r#"@1, []"#, 0, r#"a name follows '@', as in @mesh or @"my mesh"; found "@""#),
        (r#"@m::@n, []"#, 2, r#"expected ',' after the mesh, whose name is one symbol, found ":""#),
        (
            r#"@"", []"#,
            0,
            "XLA ends the process over a mesh whose name is empty; name it",
        ),
        (
            r#"@"a\\b", []"#,
            0,
            r#"the name of a mesh holds the byte 0x5c: XLA cannot carry it and may end the process; use printable ASCII without a backslash; found "\"a\\\\b\"""#,
        ),
        (
            r#"@m, [{"é"}]"#,
            6,
            r#"the name of an axis holds the byte 0xc3: XLA cannot carry it and may end the process; use printable ASCII without a backslash; found "\"é\"""#,
        ),
        (
            r#"@m, [{"\12"}]"#,
            6,
            r#"the name of an axis holds the byte 0x12: XLA cannot carry it and may end the process; use printable ASCII without a backslash; found "\"\\12\"""#,
        ),
    ] {
        let before = "#sdy.sharding<";
        let text = format!("{before}{body}>");
        assert_eq!(refusal(&text), (before.len() + offset, message.to_owned()), "{body}");
    }
}

// All attributes.

#[test]
fn a_canonical_text_is_read_and_written_back_as_it_was() {
    for text in [
        r#"#sdy<manual_axes{}>"#,
        r#"#sdy<manual_axes{"x", "y"}>"#,
        r#"#sdy<mesh_axis"x"=2>"#,
        r#"#sdy.mesh<["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>"#,
        r#"#sdy<sub_axis_info(1)2>"#,
        r#"#sdy<axis_ref"x">"#,
        r#"#sdy<axis_ref"x":(1)2>"#,
        r#"#sdy<dimension_sharding{}>"#,
        r#"#sdy<dimension_sharding{"x", ?}p1>"#,
        r#"#sdy.sharding<@"my mesh", [{"x"}, {?}]>"#,
        r#"#sdy.sharding<mesh<["x"=2], device_ids=[1, 0]>, []>"#,
        r#"#sdy.sharding_per_value<[]>"#,
        r#"#sdy.sharding_per_value<[<@a, [{"x"}]>, <mesh<[]>, [], replicated={"x", "y"}>]>"#,
        r#"#sdy<dim_mapping ijz_1>"#,
        r#"#sdy<tensor_mapping[i, jk]>"#,
        r#"#sdy.op_sharding_rule<([i])->([i]) {i=2}>"#,
        r#"#sdy<axis_ref_list{"x":(2)2, "y"}>"#,
        r#"#sdy<list_of_axis_ref_lists[{"x"}, {}]>"#,
        r#"#sdy<all_to_all_param{"x"}: 0->1>"#,
        r#"#sdy<all_to_all_param_list[]>"#,
        r#"#sdy<all_to_all_param_list[{"x"}: 0->1, {"y", "z"}: 2->3]>"#,
        r#"#sdy<edge_value_ref operand-0>"#,
        r#"#sdy<axis_to_propagation_details{"x":(1)2 = operand-0 -> [result-0]}>"#,
        r#"#sdy<propagation_one_step{step-0 = [{"x" = operand-0 -> [result-0]}]}>"#,
        r#"#sdy.propagation_edges<[{step-2 = [{"y" = operand-1 -> [operand-0, result-0]}]}, {step-12345 = [{"x" = result-0 -> [operand-0]}]}]>"#,
    ] {
        let attribute = parse(text);
        assert_eq!(attribute.to_string(), text);
        assert!(text.contains(attribute.mnemonic()), "{text}");
    }
}

#[test]
fn the_long_form_and_any_white_space_mean_the_same() {
    for (text, canonical) in [
        (
            r#" #sdy< mesh <[ "x" = 0x2 ] > > "#,
            r#"#sdy.mesh<["x"=2]>"#,
        ),
        ("#sdy.mesh<\t\r\n[]>\n", "#sdy.mesh<[]>"),
        (
            "#sdy<op_sharding_rule<([i])->([i]){i=002}reduction=>>",
            "#sdy.op_sharding_rule<([i])->([i]) {i=2}>",
        ),
        (
            "#sdy.op_sharding_rule<([])->([]){}>",
            "#sdy.op_sharding_rule<([])->([])>",
        ),
        (
            r#"#sdy<edge_value_ref "operand" - 3>"#,
            "#sdy<edge_value_ref operand-3>",
        ),
        (r#"#sdy<axis_ref"\41\62\"">"#, r#"#sdy<axis_ref"Ab\22">"#),
    ] {
        assert_eq!(parse(text).to_string(), canonical);
    }
}

#[test]
fn a_part_may_be_written_as_an_attribute_of_its_own() {
    for (text, canonical) in [
        (
            r##"#sdy.sharding<mesh #sdy.mesh<[#sdy<mesh_axis"x"=4>]>, [#sdy<dimension_sharding{}>], replicated={#sdy<axis_ref"x":#sdy<sub_axis_info(1)2>>}>"##,
            r#"#sdy.sharding<mesh<["x"=4]>, [{}], replicated={"x":(1)2}>"#,
        ),
        (
            "#sdy.op_sharding_rule<(#sdy<tensor_mapping[i]>)->([#sdy<dim_mapping i>]) {i=2}>",
            "#sdy.op_sharding_rule<([i])->([i]) {i=2}>",
        ),
    ] {
        assert_eq!(parse(text).to_string(), canonical);
    }
    assert_eq!(
        refusal(r#"#sdy.sharding_per_value<[#sdy.mesh<[]>]>"#),
        (
            30,
            "expected the attribute sharding here, found \"mesh\"".into()
        )
    );
}

#[test]
fn a_text_that_is_no_attribute_of_shardys_is_refused_where_it_goes_wrong() {
    for (text, offset, message) in [
        ("", 0, "expected an attribute of Shardy's, as in #sdy.sharding<...>, found the end of the text"),
        ("1 : i64", 0, "expected an attribute of Shardy's, as in #sdy.sharding<...>, found \"1\""),
        (
            "#alias",
            0,
            "expected an attribute of the dialect sdy, found \"#alias\"; aliases and other dialects \
             have no place here",
        ),
        (
            "#mhlo.mesh<[]>",
            0,
            "expected an attribute of the dialect sdy, found \"#mhlo.mesh\"; aliases and other \
             dialects have no place here",
        ),
        ("#", 0, "a dialect follows '#', as in #sdy.sharding; found \"#\""),
        ("#sdy.mesh <[]>", 9, "'<' has to follow \"#sdy.mesh\" at once"),
        ("#sdy", 4, "'<' has to follow \"#sdy\" at once"),
        ("#sdy.mesh-x<[]>", 9, "expected '<' after \"mesh\", found \"-x\""),
        ("#sdy.<[]>", 5, "expected the name of an attribute of Shardy's, as sharding, found \"<\""),
        (
            "#sdy.axis_ref<\"x\">",
            13,
            "the body of axis_ref has no '<' of its own; write #sdy<axis_ref...>",
        ),
        (
            "#sdy.nope<[]>",
            5,
            "Shardy has no attribute \"nope\"; it has manual_axes, mesh_axis, mesh, sub_axis_info, \
             axis_ref, dimension_sharding, sharding, sharding_per_value, dim_mapping, tensor_mapping, \
             op_sharding_rule, axis_ref_list, list_of_axis_ref_lists, all_to_all_param, \
             all_to_all_param_list, edge_value_ref, axis_to_propagation_details, \
             propagation_one_step, propagation_edges",
        ),
        ("#sdy.mesh<[]> [", 14, "expected the end of the text, found \"[\""),
        (
            "#sdy.mesh<[]> : i32",
            14,
            "an attribute of Shardy's has no type, and XLA would pass over it; end the text before ':'",
        ),
        (
            "#sdy<mesh<[]> more>",
            14,
            "expected the '>' that ends the attribute, since XLA would pass over what is before it; \
             found \"more\"",
        ),
        ("#sdy.mesh<[] // x\n>", 13, "a comment has no place in an attribute; take it out; found \"//\""),
        ("#sdy.mesh<\0[]>", 10, "no token of MLIR begins like this; take it out; found \"\\0\""),
        ("#sdy.mesh<[], device_ids=[]>", 26, "expected the id of a device, an integer, found \"]\""),
        ("#sdy.mesh<[],>", 13, "expected device_ids, found \">\""),
        (
            "#sdy.mesh<[\"x=2]>",
            11,
            "a string does not end on its line; close it with '\"'; found \"\\\"x=2]>\"",
        ),
        (
            "#sdy.mesh<[\"\\q\"=2]>",
            11,
            "a string has an unknown escape; there are \\\", \\\\, \\n, \\t and two hexadecimal digits; \
             found \"\\\"\\\\\"",
        ),
        ("#sdy.mesh<[\"x\"=0x]>", 16, "expected ',' or ']', found \"x\""),
        ("#sdy.mesh<[\"x\"=2.5e+3]>", 15, "expected the size of an axis, an integer, found \"2.5e+3\""),
        (
            "#sdy.mesh<[\"x\"=0xfffffffffffffffff]>",
            15,
            "expected the size of an axis from -2^63 to 2^63 - 1, found \"0xfffffffffffffffff\"",
        ),
        (
            "#sdy<all_to_all_param{}: 0->1>",
            22,
            "expected the name of an axis in quotes, as \"x\", found \"}\"",
        ),
        ("#sdy<edge_value_ref value-0>", 20, "expected a value, as operand-0 or result-0, found \"value\""),
        ("#sdy.propagation_edges<[]>", 24, "expected '{' before a step of propagation, found \"]\""),
    ] {
        assert_eq!(refusal(text), (offset, message.to_owned()), "{text}");
    }
}

#[test]
fn every_fault_of_propagation_edges_is_told() {
    for (steps, expected) in [
        (
            r#"{step-1 = [{"e" = operand-0 -> [result-0]}]}, {step-1 = [{"d" = operand-1 -> [result-0]}]}"#,
            "step 1: there are two steps of this index; join them",
        ),
        (
            r#"{step--3 = [{"c":(1)4 = operand-0 -> [result-0]}]}"#,
            "step -3: the index of a step is 0 or more",
        ),
        (
            r#"{step-1 = [{"a" = operand-0 -> [operand-0]}]}"#,
            r#"step 1, axis "a": operand-0 is both the source and a target; leave the target out"#,
        ),
        (
            r#"{step-123 = [{"x" = result-0 -> [operand-0, operand-0]}]}"#,
            r#"step 123, axis "x": the target operand-0 is listed twice; list it once"#,
        ),
    ] {
        let attribute = parse(&format!("#sdy.propagation_edges<[{steps}]>"));
        assert_eq!(told(&attribute.verify()), [expected]);
    }
}

#[test]
fn what_only_the_newer_plugin_reads_is_told_apart() {
    for (text, expected) in [
        (
            "#sdy.op_sharding_rule<([i])->([i]) {i=2147483648}>",
            &["factor i: PJRT 0.106 reads sizes of factors up to 2^31 - 1, and this is 2147483648"][..],
        ),
        ("#sdy.op_sharding_rule<([i])->([i]) {i=2147483647}>", &[]),
        (
            r#"#sdy.sharding_per_value<[<@m, []>, <@m, [], unreduced=max{"a"}>]>"#,
            &["sharding 1, unreduced: PJRT 0.106 does not read the word max; it only sums"],
        ),
        (r#"#sdy.sharding<@m, [], unreduced={"a"}>"#, &[]),
    ] {
        assert_eq!(told(&parse(text).portability()), expected, "{text}");
    }
}

// Hostile texts.

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// Parses a text and checks what comes of it; says whether it was taken.
fn survives(text: &[u8]) -> bool {
    match Attribute::parse(text) {
        Err(fault) => {
            assert!(fault.offset <= text.len() && !fault.message.is_empty());
            false
        }
        Ok(attribute) => {
            let printed = attribute.to_string();
            let again = Attribute::parse(printed.as_bytes());
            assert_eq!(again.as_ref(), Ok(&attribute), "{printed}");
            let (shapes, meshes) = (shapes(&["2x4", "token"]), meshes(&[("m", BAR)]));
            attribute.verify();
            attribute.portability();
            match &attribute {
                Attribute::ShardingRule(rule) => {
                    rule.verify(&shapes, &shapes);
                    rule.size_mismatches(&shapes, &shapes);
                }
                Attribute::Sharding(sharding) => {
                    sharding.verify(&shapes[0], &meshes);
                }
                Attribute::ShardingPerValue(value) => {
                    value.verify(Role::Operand, &shapes, &meshes);
                }
                _ => {}
            }
            true
        }
    }
}

#[test]
fn random_bytes_do_no_harm() {
    let mut random = Random(0x5eed);
    for _ in 0..20_000 {
        let length = random.below(60);
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        survives(&bytes);
        survives(&[b"#sdy.sharding<".as_slice(), &bytes].concat());
    }
}

#[test]
fn random_tokens_do_no_harm_and_what_is_taken_is_written_back() {
    let tokens: Vec<&str> = "#sdy. #sdy< mesh mesh_axis sub_axis_info axis_ref dimension_sharding \
         sharding sharding_per_value dim_mapping tensor_mapping op_sharding_rule axis_ref_list \
         all_to_all_param edge_value_ref propagation_edges < > [ ] { } ( ) , : = ? - -> \"x\" \"a\" i j \
         ij z_1 2 0x4 -3 @m p1 replicated= unreduced= reduction= custom device_ids= operand- step-"
        .split_whitespace()
        .collect();
    let seeds = [
        r#"#sdy.sharding<@m, [{"a":(1)2, ?}p1, {}], replicated={"b"}>"#,
        r#"#sdy.sharding_per_value<[<@m, [{"a"}, {}]>, <mesh<["x"=2], device_ids=[1, 0]>, []>]>"#,
        r#"#sdy.op_sharding_rule<([i, jk], [])->([i], []) {i=2, j=2, k=2} reduction={j, k}, custom>"#,
        r#"#sdy.propagation_edges<[{step-0 = [{"x" = operand-0 -> [result-0]}]}]>"#,
        r#"#sdy<all_to_all_param{"x"}: 0->1>"#,
    ];
    let mut random = Random(0xcafe);
    let mut taken = 0;
    for _ in 0..40_000 {
        let mut text = seeds[random.below(seeds.len())].as_bytes().to_vec();
        for _ in 0..=random.below(3) {
            let start = random.below(text.len());
            let end = (start + random.below(4)).min(text.len());
            let token = tokens[random.below(tokens.len())];
            text.splice(start..end, token.bytes());
        }
        taken += usize::from(survives(&text));
    }
    assert!(taken > 200, "{taken}");
}

#[test]
fn a_text_of_a_megabyte_is_read_in_its_length() {
    let started = std::time::Instant::now();
    let many = |part: &str| part.repeat((1 << 20) / part.len());
    for text in [
        many("#sdy<"),
        many("#sdy.sharding_per_value<["),
        format!("#sdy.sharding<@m, [{}]>", many("{},")),
        format!("#sdy.sharding<@m, [{{{}?}}]>", many("\"a\",")),
        format!("#sdy.sharding<@m, [{{{}?}}]>", many("\"b\":(2)3,")),
        format!("#sdy.op_sharding_rule<([{}])->([])>", many("i,")),
        format!("#sdy.op_sharding_rule<([{}])->([])>", many("z_1")),
        format!("#sdy.op_sharding_rule<([z_{}])->([])>", many("9")),
        format!("#sdy.op_sharding_rule<([])->([]) {{i={}}}>", many("0x0")),
        format!("#sdy.mesh<[{}\"x\"=2]>", many("\"x\"=2,")),
        format!("#sdy.mesh<[\"{}\"=2]>", many("\\41")),
        format!("#sdy.mesh<[\"x\"=1000], device_ids=[{}0]>", many("7,")),
        many("#sdy.mesh<[\"\\"),
    ] {
        survives(text.as_bytes());
    }
    // Some ten times what it takes. To read one of them in the square of its length takes longer.
    assert!(started.elapsed().as_secs() < 8, "{:?}", started.elapsed());
}

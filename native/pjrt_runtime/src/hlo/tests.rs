use crate::test_support::{client, handlers};
use crate::{CompileOptions, Executable, OptionValue};

/// Compiles with XLA's own dump switched on; returns the program and XLA's text of it.
fn compile(name: &str, program: &str, options: CompileOptions) -> (Executable, String) {
    let plugin = client().plugin().api_version().1;
    let directory = std::env::temp_dir().join(format!(
        "pjrt_runtime-tests/hlo-{name}-{plugin}-{}",
        std::process::id()
    ));
    let _ = std::fs::remove_dir_all(&directory);
    let dump = |option: &str, value: OptionValue| (option.to_owned(), value);
    let options = CompileOptions {
        env_option_overrides: vec![
            dump(
                "xla_dump_to",
                OptionValue::String(directory.to_string_lossy().into_owned()),
            ),
            dump("xla_dump_hlo_as_text", OptionValue::Bool(true)),
        ],
        ..options
    };
    let executable = client().compile(program.as_bytes(), &options).unwrap();
    let dumped = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().ends_with("after_optimizations.txt"))
        .unwrap();
    let text = std::fs::read_to_string(dumped).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    (executable, text)
}

/// Lines without the metadata, of which the newer plugins write more than the message here has.
fn lines(text: &str) -> Vec<String> {
    let without = |line: &str| match line.split_once(", metadata={") {
        Some((before, rest)) => {
            let after = rest.split_once('}').map_or("", |(_, after)| after);
            format!("{before}{after}")
        }
        None => line.to_owned(),
    };
    // XLA prints the fields of a JSON text in any order.
    let sorted = |line: String| match line.split_once("backend_config={") {
        Some((before, json)) => {
            let mut json: Vec<char> = json.chars().collect();
            json.sort_unstable();
            format!("{before}{}", String::from_iter(json))
        }
        None => line,
    };
    let lines = text.lines().map(str::trim_end).map(without).map(sorted);
    lines.filter(|line| !line.is_empty()).collect()
}

fn same_as_xlas(name: &str, program: &str, options: CompileOptions) -> String {
    let (executable, expected) = compile(name, program, options);
    let text = executable.hlo_text().unwrap();
    // XLA lists computations, and instructions that are not scheduled, in orders of its own.
    let (mut found, mut expected) = (lines(&text), lines(&expected));
    if expected.iter().any(|line| line.contains('#')) {
        // Newer XLA writes `%tuple#0` where there is an instruction that gets it.
        found.retain(|line| !line.contains("%get-tuple-element"));
        expected.retain(|line| !line.contains('#') && !line.contains("%get-tuple-element"));
    }
    found.sort_unstable();
    expected.sort_unstable();
    let ours: Vec<_> = found
        .iter()
        .filter(|line| !expected.contains(line))
        .collect();
    let xlas: Vec<_> = expected
        .iter()
        .filter(|line| !found.contains(line))
        .collect();
    assert!(
        ours.is_empty() && xlas.is_empty(),
        "{name}: {ours:#?}, XLA has {xlas:#?}"
    );
    assert_eq!(found.len(), expected.len(), "{name}:\n{text}");
    text
}

const CASES: &[(&str, &str)] = &[
    (
        "dot",
        "func.func @main(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<64x64xf32> {
           %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
             : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
           %1 = stablehlo.sine %0 : tensor<64x64xf32>
           return %1 : tensor<64x64xf32>
         }",
    ),
    (
        "constants",
        "func.func @main() -> (tensor<2x2xf32>, tensor<3xi8>, tensor<f64>, tensor<2xi1>, tensor<20xi32>,
                               tensor<2xbf16>, tensor<2xf16>, tensor<complex<f32>>, tensor<4xf32>) {
           %0 = stablehlo.constant dense<[[1.0, 2.5], [-3.0, 1.0e-7]]> : tensor<2x2xf32>
           %1 = stablehlo.constant dense<[1, -2, 3]> : tensor<3xi8>
           %2 = stablehlo.constant dense<0x7FF0000000000000> : tensor<f64>
           %3 = stablehlo.constant dense<[true, false]> : tensor<2xi1>
           %4 = stablehlo.constant dense<[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]> : tensor<20xi32>
           %5 = stablehlo.constant dense<[1.5, 2.0]> : tensor<2xbf16>
           %6 = stablehlo.constant dense<[1.5, -0.25]> : tensor<2xf16>
           %7 = stablehlo.constant dense<(1.0, -2.0)> : tensor<complex<f32>>
           %8 = stablehlo.constant dense<[1.0e10, 123456.0, 1234567.0, 0.1]> : tensor<4xf32>
           return %0, %1, %2, %3, %4, %5, %6, %7, %8 : tensor<2x2xf32>, tensor<3xi8>, tensor<f64>,
             tensor<2xi1>, tensor<20xi32>, tensor<2xbf16>, tensor<2xf16>, tensor<complex<f32>>, tensor<4xf32>
         }",
    ),
    (
        "while",
        "func.func @main(%n: tensor<i32>, %x: tensor<2xf32>) -> tensor<2xf32> {
           %c = stablehlo.constant dense<1> : tensor<i32>
           %0:2 = stablehlo.while(%i = %n, %v = %x) : tensor<i32>, tensor<2xf32>
            cond {
             %z = stablehlo.constant dense<0> : tensor<i32>
             %p = stablehlo.compare GT, %i, %z : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %p : tensor<i1>
            } do {
             %j = stablehlo.subtract %i, %c : tensor<i32>
             %w = stablehlo.add %v, %v : tensor<2xf32>
             stablehlo.return %j, %w : tensor<i32>, tensor<2xf32>
            }
           return %0#1 : tensor<2xf32>
         }",
    ),
    (
        "shapes",
        "func.func @main(%a: tensor<4x6xf32>, %i: tensor<3x1xi32>, %s: tensor<i32>)
             -> (tensor<6x4xf32>, tensor<2x2xf32>, tensor<4xf32>, tensor<3x6xf32>, tensor<8x9xf32>,
                 tensor<4x6xf32>, tensor<2x3xf32>, tensor<4x6xf32>) {
           %t = stablehlo.transpose %a, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
           %l = stablehlo.slice %a [0:4:2, 1:5:2] : (tensor<4x6xf32>) -> tensor<2x2xf32>
           %z = stablehlo.constant dense<0.0> : tensor<f32>
           %r = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1]
             : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
           %g = \"stablehlo.gather\"(%a, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [1],
             collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
             slice_sizes = array<i64: 1, 6>} : (tensor<4x6xf32>, tensor<3x1xi32>) -> tensor<3x6xf32>
           %p = stablehlo.pad %a, %z, low = [1, 0], high = [0, 3], interior = [1, 0]
             : (tensor<4x6xf32>, tensor<f32>) -> tensor<8x9xf32>
           %o = \"stablehlo.sort\"(%a) ({
             ^bb0(%x: tensor<f32>, %y: tensor<f32>):
               %c = stablehlo.compare LT, %x, %y, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
               stablehlo.return %c : tensor<i1>
           }) {dimension = 1 : i64, is_stable = true} : (tensor<4x6xf32>) -> tensor<4x6xf32>
           %d = stablehlo.dynamic_slice %a, %s, %s, sizes = [2, 3]
             : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
           %w = stablehlo.reverse %a, dims = [0] : tensor<4x6xf32>
           return %t, %l, %r, %g, %p, %o, %d, %w : tensor<6x4xf32>, tensor<2x2xf32>, tensor<4xf32>,
             tensor<3x6xf32>, tensor<8x9xf32>, tensor<4x6xf32>, tensor<2x3xf32>, tensor<4x6xf32>
         }",
    ),
    (
        "more",
        "func.func @main(%a: tensor<1x8x8x3xf32>, %k: tensor<3x3x3x4xf32>, %b: tensor<8xcomplex<f32>>,
                         %i: tensor<2x1xi32>, %p: tensor<i1>, %r: tensor<2xui64>)
             -> (tensor<1x6x6x4xf32>, tensor<8xcomplex<f32>>, tensor<5xf32>, tensor<1x4x4x3xf32>, tensor<f32>,
                 tensor<2xui64>, tensor<4xui32>, tensor<4x4xf32>) {
           %c = stablehlo.convolution(%a, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
             window = {stride = [1, 1], pad = [[0, 0], [0, 0]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
             : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x6x6x4xf32>
           %f = stablehlo.fft %b, type = FFT, length = [8] : (tensor<8xcomplex<f32>>) -> tensor<8xcomplex<f32>>
           %z = stablehlo.constant dense<0.0> : tensor<5xf32>
           %u = stablehlo.constant dense<1.0> : tensor<2xf32>
           %s = \"stablehlo.scatter\"(%z, %i, %u) ({
             ^bb0(%x: tensor<f32>, %y: tensor<f32>):
               %q = stablehlo.add %x, %y : tensor<f32>
               stablehlo.return %q : tensor<f32>
           }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
             scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
             : (tensor<5xf32>, tensor<2x1xi32>, tensor<2xf32>) -> tensor<5xf32>
           %m = stablehlo.constant dense<0xFF800000> : tensor<f32>
           %w = \"stablehlo.reduce_window\"(%a, %m) ({
             ^bb0(%x: tensor<f32>, %y: tensor<f32>):
               %q = stablehlo.maximum %x, %y : tensor<f32>
               stablehlo.return %q : tensor<f32>
           }) {window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}
             : (tensor<1x8x8x3xf32>, tensor<f32>) -> tensor<1x4x4x3xf32>
           %e = \"stablehlo.if\"(%p) ({
               %t = stablehlo.constant dense<1.0> : tensor<f32>
               %t1 = stablehlo.custom_call @runtime.copy(%t) {api_version = 4 : i32, has_side_effect = true,
                 backend_config = {k = 1 : i64, s = \"a b\"}} : (tensor<f32>) -> tensor<f32>
               stablehlo.return %t1 : tensor<f32>
             }, {
               %t = stablehlo.constant dense<2.0> : tensor<f32>
               stablehlo.return %t : tensor<f32>
             }) : (tensor<i1>) -> tensor<f32>
           %g:2 = stablehlo.rng_bit_generator %r, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)
           %n = stablehlo.iota dim = 0 : tensor<4x4xf32>
           return %c, %f, %s, %w, %e, %g#0, %g#1, %n : tensor<1x6x6x4xf32>, tensor<8xcomplex<f32>>, tensor<5xf32>,
             tensor<1x4x4x3xf32>, tensor<f32>, tensor<2xui64>, tensor<4xui32>, tensor<4x4xf32>
         }",
    ),
    (
        "donated",
        "func.func @main(%arg0: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<3xf32> {jax.buffer_donor = true})
             -> (tensor<2xf32>, tensor<f32>) {
           %0 = stablehlo.negate %arg0 : tensor<2xf32>
           %z = stablehlo.constant dense<0.0> : tensor<f32>
           %r = stablehlo.reduce(%b init: %z) applies stablehlo.add across dimensions = [0]
             : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
           return %0, %r : tensor<2xf32>, tensor<f32>
         }",
    ),
];

#[test]
fn the_text_is_xlas_own() {
    handlers(client());
    for (name, program) in CASES {
        same_as_xlas(name, program, CompileOptions::default());
    }
}

fn sharded() -> CompileOptions {
    CompileOptions {
        num_partitions: 2,
        use_spmd_partitioning: true,
        use_shardy_partitioner: true,
        ..Default::default()
    }
}

#[test]
fn collectives_are_recognised_with_their_groups() {
    let program = r#"
        module @gathers {
          sdy.mesh @mesh = <["x"=2]>
          func.func @main(%a: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
              -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
                  tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>},
                  tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
            %0 = stablehlo.negate %a : tensor<4x4xf32>
            %z = stablehlo.constant dense<0.0> : tensor<f32>
            %r = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0]
              : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
            %s = stablehlo.sine %a : tensor<4x4xf32>
            return %0, %r, %s : tensor<4x4xf32>, tensor<4xf32>, tensor<4x4xf32>
          }
        }"#;
    let text = same_as_xlas("collectives", program, sharded());
    for needle in [
        "num_partitions=2",
        " all-gather(",
        " all-reduce(",
        " all-to-all(",
        "channel_id=1",
        "to_apply=%",
        "sharding={devices=[2,1]<=[2]}",
    ] {
        assert!(text.contains(needle), "no {needle} in\n{text}");
    }
    let groups = [
        "replica_groups={{0,1}}",
        "replica_groups=[1,2]<=[2]",
        "replica_groups=mesh['axis_0'=2",
    ];
    assert!(groups.iter().any(|groups| text.contains(groups)), "{text}");
    assert!(!text.contains("replica_groups={}"), "{text}");
}

#[test]
fn custom_calls_are_recognised_with_their_attributes() {
    handlers(client());
    let program = r#"
        func.func @main(%a: tensor<2x3xf32>) -> tensor<2x3xf32> {
          %0 = stablehlo.negate %a : tensor<2x3xf32>
          %1 = "stablehlo.custom_call"(%0) {
            call_target_name = "runtime.copy", api_version = 4 : i32,
            backend_config = {axis = 1 : i64},
            operand_layouts = [dense<[0, 1]> : tensor<2xindex>],
            result_layouts = [dense<[0, 1]> : tensor<2xindex>],
            output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [],
              operand_index = 0, operand_tuple_indices = []>],
            mhlo.frontend_attributes = {note = "he said \22so\22", dictionary = "{a=1}"}
          } : (tensor<2x3xf32>) -> tensor<2x3xf32>
          return %1 : tensor<2x3xf32>
        }"#;
    let text = same_as_xlas("custom_call", program, CompileOptions::default());
    for needle in [
        "f32[2,3]{0,1} custom-call(",
        "custom_call_target=\"runtime.copy\"",
        "operand_layout_constraints={f32[2,3]{0,1}}",
        "output_to_operand_aliasing={{}: (0, {})}",
        "api_version=API_VERSION_TYPED_FFI",
        "backend_config={axis = 1 : i64}",
        "frontend_attributes={dictionary={a=1},note=\"he said \\\"so\\\"\"}",
    ] {
        assert!(text.contains(needle), "no {needle} in\n{text}");
    }
}

#[test]
fn programs_in_other_formats_have_no_text() {
    let text = |format: &str, code: &[u8]| {
        super::text(&super::Program {
            format: format.to_owned(),
            code: code.to_vec(),
        })
    };
    assert_eq!(
        text("mlir", b"module {}").unwrap_err().to_string(),
        "the compiled program has no HLO text: format \"mlir\" is not known"
    );
    assert!(text("hlo", &[0xff, 0xff]).is_err());
    assert!(text("hlo_with_config", b"").is_err());
    assert_eq!(text("hlo", b""), Ok("HloModule \n".to_owned()));
}

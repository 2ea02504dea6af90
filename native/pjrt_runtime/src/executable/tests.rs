use super::*;
use crate::test_support::{client, ADD};

fn compile(program: &str) -> Executable {
    client()
        .compile(program.as_bytes(), &CompileOptions::default())
        .unwrap()
}

fn bytes<const N: usize, T>(values: &[T], to_bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(to_bytes).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    bytes(values, |value| value.to_ne_bytes())
}

fn f32_input<'a>(data: &'a [u8], dimensions: &'a [i64]) -> HostInput<'a> {
    HostInput {
        data,
        element_type: ElementType::F32,
        dimensions,
    }
}

fn tensor(element_type: ElementType, dimensions: &[i64]) -> TensorType {
    TensorType {
        element_type,
        dimensions: dimensions.to_vec(),
    }
}

#[test]
fn an_addition_of_floats_is_computed() {
    let executable = compile(ADD);
    let (a, b) = (floats(&[1.0, 2.0]), floats(&[10.0, 20.5]));
    let outputs = executable.run(&[f32_input(&a, &[2]), f32_input(&b, &[2])]);
    assert_eq!(outputs, Ok(vec![floats(&[11.0, 22.5])]));
}

#[test]
fn an_executable_tells_what_it_is() {
    let executable = compile(ADD);
    let vector = tensor(ElementType::F32, &[2]);
    assert_eq!(executable.name(), "add");
    assert_eq!(executable.num_replicas(), 1);
    assert_eq!(executable.num_partitions(), 1);
    assert_eq!(executable.devices(), vec![0]);
    assert_eq!(
        executable.inputs(),
        Some([vector.clone(), vector.clone()].as_slice())
    );
    assert_eq!(executable.outputs(), [vector]);
    let program = executable.optimized_program().unwrap();
    assert_eq!(program.format, "hlo_with_config");
    assert!(program.code.windows(3).any(|window| window == b"add"));
}

#[test]
fn malformed_mlir_gets_the_compilers_words() {
    let error = client()
        .compile(b"module { func.func }", &CompileOptions::default())
        .unwrap_err();
    assert!(
        matches!(&error, Error::Pjrt { message, .. } if message.contains("expected valid '@'-identifier")),
        "{error}"
    );
}

#[test]
fn an_empty_program_and_bytes_that_are_no_program_are_errors() {
    for program in [b"".as_slice(), b"\0", b"ML\xefR", &[0xff; 64]] {
        let result = client().compile(program, &CompileOptions::default());
        assert!(matches!(result, Err(Error::Pjrt { .. })), "{result:?}");
    }
}

#[test]
fn an_unknown_debug_option_gets_the_compilers_words() {
    let options = CompileOptions {
        env_option_overrides: vec![(
            "xla_no_such_option".to_owned(),
            crate::OptionValue::Bool(true),
        )],
        ..Default::default()
    };
    let error = client().compile(ADD.as_bytes(), &options).unwrap_err();
    assert!(error.to_string().contains("xla_no_such_option"), "{error}");
}

#[test]
fn a_debug_option_is_taken() {
    let options = CompileOptions {
        env_option_overrides: vec![(
            "xla_cpu_enable_fast_math".to_owned(),
            crate::OptionValue::Bool(false),
        )],
        ..Default::default()
    };
    assert!(client().compile(ADD.as_bytes(), &options).is_ok());
}

#[test]
fn options_that_contradict_the_client_are_refused() {
    let options = CompileOptions {
        num_partitions: 3,
        ..Default::default()
    };
    let error = client().compile(ADD.as_bytes(), &options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "compile options: 1 replicas of 3 partitions need more devices than the client's 2"
    );
}

#[test]
fn inputs_that_do_not_fit_are_refused_before_anything_runs() {
    let executable = compile(ADD);
    let two = floats(&[1.0, 2.0]);
    let good = f32_input(&two, &[2]);
    let message = |inputs: &[HostInput<'_>]| executable.run(inputs).unwrap_err().to_string();
    assert_eq!(
        message(&[good]),
        "the executable takes 2 inputs, 1 were given"
    );
    assert_eq!(
        message(&[good, f32_input(&two[..7], &[2])]),
        "input 1: f32[2] takes 8 bytes, 7 were given"
    );
    assert_eq!(
        message(&[f32_input(&two, &[1, 2]), good]),
        "input 0: the executable takes f32[2], f32[1,2] was given"
    );
    let integers = HostInput {
        element_type: ElementType::S32,
        ..good
    };
    assert_eq!(
        message(&[good, integers]),
        "input 1: the executable takes f32[2], s32[2] was given"
    );
    assert_eq!(
        message(&[good, f32_input(&two, &[-2])]),
        "input 1: f32[-2] has a negative dimension or more bytes than memory can have"
    );
    let token = HostInput {
        data: &[],
        element_type: ElementType::Token,
        dimensions: &[],
    };
    assert_eq!(
        message(&[good, token]),
        "a token has no bytes to move between host and device"
    );
}

#[test]
fn every_element_type_survives_the_way_to_the_device_and_back() {
    // MLIR's name, and bytes of four elements; below a byte, each in a byte of its own.
    let cases: [(ElementType, &str, Vec<u8>); 27] = [
        (ElementType::Pred, "i1", vec![1, 0, 1, 1]),
        (ElementType::S2, "i2", vec![1, 0, 0xff, 0xfe]),
        (ElementType::S4, "i4", vec![7, 0, 0xff, 0xf8]),
        (ElementType::S8, "i8", vec![127, 0, 0xff, 0x80]),
        (
            ElementType::S16,
            "i16",
            bytes(&[1i16, -1, i16::MAX, i16::MIN], |v| v.to_ne_bytes()),
        ),
        (
            ElementType::S32,
            "i32",
            bytes(&[1i32, -1, i32::MAX, i32::MIN], |v| v.to_ne_bytes()),
        ),
        (
            ElementType::S64,
            "i64",
            bytes(&[1i64, -1, i64::MAX, i64::MIN], |v| v.to_ne_bytes()),
        ),
        (ElementType::U2, "ui2", vec![0, 1, 2, 3]),
        (ElementType::U4, "ui4", vec![0, 1, 8, 15]),
        (ElementType::U8, "ui8", vec![0, 1, 128, 255]),
        (
            ElementType::U16,
            "ui16",
            bytes(&[0u16, 1, 256, u16::MAX], |v| v.to_ne_bytes()),
        ),
        (
            ElementType::U32,
            "ui32",
            bytes(&[0u32, 1, 256, u32::MAX], |v| v.to_ne_bytes()),
        ),
        (
            ElementType::U64,
            "ui64",
            bytes(&[0u64, 1, 256, u64::MAX], |v| v.to_ne_bytes()),
        ),
        (ElementType::F8E4M3FN, "f8E4M3FN", vec![0x38, 0x3c, 0xb8, 0]),
        (ElementType::F8E5M2, "f8E5M2", vec![0x3c, 0x3e, 0xbc, 0]),
        (ElementType::F8E4M3, "f8E4M3", vec![0x38, 0x3c, 0xb8, 0]),
        (ElementType::F8E3M4, "f8E3M4", vec![0x30, 0x38, 0xb0, 0]),
        (
            ElementType::F8E8M0FNU,
            "f8E8M0FNU",
            vec![0x7f, 0x80, 0x01, 0x7e],
        ),
        (ElementType::F4E2M1FN, "f4E2M1FN", vec![2, 0xa, 7, 0]),
        (
            ElementType::BF16,
            "bf16",
            bytes(&[0x3f80u16, 0xbf80, 0, 1], |v| v.to_ne_bytes()),
        ),
        (
            ElementType::F16,
            "f16",
            bytes(&[0x3c00u16, 0xbc00, 0, 1], |v| v.to_ne_bytes()),
        ),
        (
            ElementType::F64,
            "f64",
            bytes(&[1.5f64, -0.0, f64::MAX, 1e-300], |v| v.to_ne_bytes()),
        ),
        (
            ElementType::C64,
            "complex<f32>",
            floats(&[1., 2., 3., 4., 5., 6., 7., 8.]),
        ),
        (
            ElementType::C128,
            "complex<f64>",
            bytes(&[1.0f64, 2., 3., 4., 5., 6., 7., 8.], |v| v.to_ne_bytes()),
        ),
        (
            ElementType::F8E4M3FNUZ,
            "f8E4M3FNUZ",
            vec![0x38, 0x3c, 0xb8, 0],
        ),
        (
            ElementType::F8E5M2FNUZ,
            "f8E5M2FNUZ",
            vec![0x3c, 0x3e, 0xbc, 0],
        ),
        (
            ElementType::F8E4M3B11FNUZ,
            "f8E4M3B11FNUZ",
            vec![0x38, 0x3c, 0xb8, 0],
        ),
    ];
    for (element_type, name, data) in cases {
        let executable = compile(&format!(
            "func.func @main(%arg0: tensor<2x2x{name}>) -> tensor<2x2x{name}> {{
                   %0 = stablehlo.transpose %arg0, dims = [1, 0]
                     : (tensor<2x2x{name}>) -> tensor<2x2x{name}>
                   return %0 : tensor<2x2x{name}>
                 }}"
        ));
        let width = element_type.byte_width();
        let transposed: Vec<u8> = [0, 2, 1, 3]
            .iter()
            .flat_map(|&index| data[index * width..(index + 1) * width].to_vec())
            .collect();
        let input = HostInput {
            data: &data,
            element_type,
            dimensions: &[2, 2],
        };
        assert_eq!(executable.outputs(), [tensor(element_type, &[2, 2])]);
        assert_eq!(
            executable.run(&[input]),
            Ok(vec![transposed]),
            "{element_type}"
        );
    }
}

#[test]
fn a_scalar_is_a_tensor_without_dimensions() {
    let executable = compile(
        "func.func @main(%arg0: tensor<i64>) -> tensor<i64> {
               %0 = stablehlo.negate %arg0 : tensor<i64>
               return %0 : tensor<i64>
             }",
    );
    let input = HostInput {
        data: &5i64.to_ne_bytes(),
        element_type: ElementType::S64,
        dimensions: &[],
    };
    assert_eq!(executable.outputs(), [tensor(ElementType::S64, &[])]);
    assert_eq!(
        executable.run(&[input]),
        Ok(vec![(-5i64).to_ne_bytes().to_vec()])
    );
}

#[test]
fn a_tensor_without_elements_has_no_bytes() {
    let executable = compile(
        "func.func @main(%arg0: tensor<0x3xf32>) -> (tensor<0x3xf32>, tensor<3x0xf32>) {
               %0 = stablehlo.negate %arg0 : tensor<0x3xf32>
               %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<0x3xf32>) -> tensor<3x0xf32>
               return %0, %1 : tensor<0x3xf32>, tensor<3x0xf32>
             }",
    );
    assert_eq!(
        executable.run(&[f32_input(&[], &[0, 3])]),
        Ok(vec![vec![], vec![]])
    );
}

#[test]
fn a_program_without_inputs_or_outputs_runs() {
    let constant = compile(
        "func.func @main() -> tensor<2xf32> {
               %0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
               return %0 : tensor<2xf32>
             }",
    );
    assert_eq!(constant.inputs(), Some([].as_slice()));
    assert_eq!(constant.run(&[]), Ok(vec![floats(&[1.0, 2.0])]));
    let nothing = compile("func.func @main() { return }");
    assert_eq!(nothing.run(&[]), Ok(vec![]));
}

#[test]
fn results_in_another_layout_come_back_row_major() {
    let executable = compile(
        "func.func @main(%arg0: tensor<2x3xf32>)
               -> (tensor<2x3xf32> {mhlo.layout_mode = \"{0,1}\"}) {
               %0 = stablehlo.negate %arg0 : tensor<2x3xf32>
               return %0 : tensor<2x3xf32>
             }",
    );
    let data = floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(
        executable.run(&[f32_input(&data, &[2, 3])]),
        Ok(vec![floats(&[-0.0, -1.0, -2.0, -3.0, -4.0, -5.0])])
    );
}

const DONATING: &str = "
        func.func @main(%arg0: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> tensor<2xf32> {
          %0 = stablehlo.negate %arg0 : tensor<2xf32>
          return %0 : tensor<2xf32>
        }";

#[test]
fn an_output_in_its_inputs_memory_leaves_the_callers_bytes_alone() {
    let executable = compile(DONATING);
    let data = floats(&[1.0, 2.0]);
    let outputs = executable.run(&[f32_input(&data, &[2])]);
    assert_eq!(outputs, Ok(vec![floats(&[-1.0, -2.0])]));
    assert_eq!(data, floats(&[1.0, 2.0]));
}

#[test]
fn buffers_keep_their_values_where_an_output_would_take_their_memory() {
    let executable = compile(DONATING);
    let data = floats(&[1.0, 2.0]);
    let buffer = Buffer::from_host(client(), 0, &f32_input(&data, &[2])).unwrap();
    let outputs = executable.execute(&[&[&buffer]]).unwrap();
    assert_eq!(outputs[0][0].to_host(), Ok(floats(&[-1.0, -2.0])));
    assert_eq!(buffer.to_host(), Ok(data));
}

#[test]
fn buffers_of_another_client_and_deleted_ones_are_refused() {
    let executable = compile(ADD);
    let other = Client::new(client().plugin(), &[]).unwrap();
    let data = floats(&[1.0, 2.0]);
    let input = f32_input(&data, &[2]);
    let good = Buffer::from_host(client(), 0, &input).unwrap();
    let foreign = Buffer::from_host(&other, 0, &input).unwrap();
    assert_eq!(
        executable.execute(&[&[&good, &foreign]]).unwrap_err(),
        Error::ForeignBuffer { index: 1 }
    );
    good.delete().unwrap();
    assert_eq!(
        executable.execute(&[&[&good, &good]]).unwrap_err(),
        Error::Deleted {
            what: "buffer",
            donated: false
        }
    );
}

#[test]
fn a_program_of_two_partitions_runs_on_two_devices() {
    let options = CompileOptions {
        num_partitions: 2,
        use_spmd_partitioning: true,
        use_shardy_partitioner: true,
        ..Default::default()
    };
    let program = r#"
            module {
              sdy.mesh @mesh = <["x"=2]>
              func.func @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
                -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
                %0 = stablehlo.negate %arg0 : tensor<4xf32>
                return %0 : tensor<4xf32>
              }
            }"#;
    let executable = client().compile(program.as_bytes(), &options).unwrap();
    let half = tensor(ElementType::F32, &[2]);
    assert_eq!(executable.num_partitions(), 2);
    assert_eq!(executable.devices(), vec![0, 1]);
    assert_eq!(executable.inputs(), Some([half.clone()].as_slice()));
    assert_eq!(executable.outputs(), [half]);
    let (first, second) = (floats(&[1.0, 2.0]), floats(&[3.0, 4.0]));
    let outputs =
        executable.run_on_devices(&[&[f32_input(&first, &[2])], &[f32_input(&second, &[2])]]);
    assert_eq!(
        outputs,
        Ok(vec![
            vec![floats(&[-1.0, -2.0])],
            vec![floats(&[-3.0, -4.0])]
        ])
    );
    assert_eq!(
        executable
            .run(&[f32_input(&first, &[2])])
            .unwrap_err()
            .to_string(),
        "the executable runs on 2 devices, inputs for 1 were given"
    );
}

#[test]
fn threads_compile_and_run_at_the_same_time() {
    std::thread::scope(|scope| {
        for number in 0..4i32 {
            scope.spawn(move || {
                for round in 0..5i32 {
                    let executable = compile(&format!(
                        "func.func @main(%arg0: tensor<i32>) -> tensor<i32> {{
                               %0 = stablehlo.constant dense<{number}> : tensor<i32>
                               %1 = stablehlo.add %arg0, %0 : tensor<i32>
                               return %1 : tensor<i32>
                             }}"
                    ));
                    let data = round.to_ne_bytes();
                    let input = HostInput {
                        data: &data,
                        element_type: ElementType::S32,
                        dimensions: &[],
                    };
                    let expected = number + round;
                    assert_eq!(
                        executable.run(&[input]),
                        Ok(vec![expected.to_ne_bytes().to_vec()])
                    );
                }
            });
        }
    });
}

#[test]
fn threads_run_one_executable_at_the_same_time() {
    let executable = compile(ADD);
    std::thread::scope(|scope| {
        for number in 0..4u8 {
            let executable = &executable;
            scope.spawn(move || {
                let a = floats(&[f32::from(number), 1.0]);
                for _ in 0..50 {
                    let input = f32_input(&a, &[2]);
                    let expected = floats(&[2.0 * f32::from(number), 2.0]);
                    assert_eq!(executable.run(&[input, input]), Ok(vec![expected]));
                }
            });
        }
    });
}

#[test]
fn a_token_output_has_no_bytes() {
    let executable = compile(
        "func.func @main(%arg0: tensor<2xf32>) -> (tensor<2xf32>, !stablehlo.token) {
               %0 = stablehlo.create_token : !stablehlo.token
               return %arg0, %0 : tensor<2xf32>, !stablehlo.token
             }",
    );
    let data = floats(&[1.0, 2.0]);
    assert_eq!(
        executable.run(&[f32_input(&data, &[2])]),
        Ok(vec![data, vec![]])
    );
}

#[test]
fn a_buffer_on_another_device_is_an_error() {
    let executable = compile(ADD);
    let data = floats(&[1.0, 2.0]);
    let elsewhere = Buffer::from_host(client(), 1, &f32_input(&data, &[2])).unwrap();
    let result = executable.execute(&[&[&elsewhere, &elsewhere]]);
    assert!(
        matches!(
            result,
            Err(Error::WrongDevice {
                index: 0,
                expected: 0,
                found: 1
            })
        ),
        "{result:?}"
    );
}

#[test]
fn a_token_input_is_an_error() {
    let executable = compile(
        "func.func @main(%arg0: !stablehlo.token, %arg1: tensor<2xf32>) -> tensor<2xf32> {
           return %arg1 : tensor<2xf32>
         }",
    );
    assert_eq!(
        executable.inputs().map(|inputs| inputs[0].to_string()),
        Some("token".to_owned())
    );
    let data = floats(&[1.0, 2.0]);
    let token = HostInput {
        data: &[],
        element_type: ElementType::Token,
        dimensions: &[],
    };
    assert_eq!(
        executable.run(&[token, f32_input(&data, &[2])]),
        Err(Error::NoHostBytes {
            element_type: ElementType::Token
        })
    );
}

#[test]
fn the_parts_of_a_tuple_are_outputs_of_their_own() {
    let executable = compile(
        "func.func @main(%arg0: tensor<2xf32>) -> tuple<tensor<2xf32>, tensor<2xf32>> {
           %0 = stablehlo.negate %arg0 : tensor<2xf32>
           %1 = stablehlo.tuple %arg0, %0 : tuple<tensor<2xf32>, tensor<2xf32>>
           return %1 : tuple<tensor<2xf32>, tensor<2xf32>>
         }",
    );
    let data = floats(&[1.0, 2.0]);
    assert_eq!(
        executable.run(&[f32_input(&data, &[2])]),
        Ok(vec![data.clone(), floats(&[-1.0, -2.0])])
    );
}

#[test]
fn an_output_that_is_smaller_than_its_bound_is_an_error() {
    let executable = compile(
        "func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<i32>)
           -> tensor<?xf32, #stablehlo.bounds<4>> {
           %0 = stablehlo.set_dimension_size %arg0, %arg1, dim = 0
             : (tensor<4xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<4>>
           return %0 : tensor<?xf32, #stablehlo.bounds<4>>
         }",
    );
    let (data, size) = (floats(&[1.0, 2.0, 3.0, 4.0]), 2i32.to_ne_bytes());
    let size = HostInput {
        data: &size,
        element_type: ElementType::S32,
        dimensions: &[],
    };
    let error = executable.run(&[f32_input(&data, &[4]), size]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "output 0: f32[4] takes 16 bytes, the plugin returned 8"
    );
}

use super::*;
use crate::test_support::{client, cpu_plugin, other_cpu_plugin};
use crate::{Client, CompileOptions, Executable, NamedValue};

fn read_one(message: &OpSharding) -> Result<Vec<Sharding>, Error> {
    read(
        Sharded::Result,
        [message.encode_to_vec().as_slice()].into_iter(),
    )
}

fn tiles(dimensions: &[i64]) -> OpSharding {
    OpSharding {
        kind: OTHER,
        dimensions: dimensions.to_vec(),
        ..Default::default()
    }
}

fn refusal(message: &OpSharding) -> String {
    read_one(message).unwrap_err().to_string()
}

fn of_kind(kind: i32) -> OpSharding {
    OpSharding {
        kind,
        ..Default::default()
    }
}

#[test]
fn shardings_without_tiles_are_read() {
    let maximal = OpSharding {
        devices: vec![3],
        ..of_kind(MAXIMAL)
    };
    assert_eq!(
        read_one(&of_kind(REPLICATED)),
        Ok(vec![Sharding::Replicated])
    );
    assert_eq!(read_one(&maximal), Ok(vec![Sharding::Maximal(3)]));
    assert_eq!(read_one(&of_kind(MANUAL)), Ok(vec![Sharding::Manual]));
    assert_eq!(read_one(&of_kind(5)), Ok(vec![Sharding::Unknown]));
    assert_eq!(
        refusal(&of_kind(MAXIMAL)),
        "the plugin's sharding of result 0 cannot be read: maximal on 0 devices"
    );
}

#[test]
fn what_this_crate_does_not_read_is_unknown_and_not_replicated() {
    let named = OpSharding {
        named: Some(vec![]),
        ..Default::default()
    };
    assert_eq!(read_one(&named), Ok(vec![Sharding::Unknown]));
    assert_eq!(read_one(&of_kind(UNREDUCED)), Ok(vec![Sharding::Unknown]));
    assert_eq!(read_one(&of_kind(77)), Ok(vec![Sharding::Unknown]));
}

#[test]
fn listed_devices_stay_in_their_order() {
    let message = OpSharding {
        devices: vec![0, 2, 1, 3],
        ..tiles(&[2, 2])
    };
    assert_eq!(
        read_one(&message),
        Ok(vec![Sharding::Tiled {
            dimensions: vec![2, 2],
            devices: vec![0, 2, 1, 3],
            groups: vec![],
        }])
    );
}

#[test]
fn permuted_device_numbers_are_written_out() {
    let devices = |reshape: &[i64], permutation: &[i32], dimensions: &[i64]| {
        let message = OpSharding {
            iota_dimensions: reshape.to_vec(),
            iota_permutation: permutation.to_vec(),
            ..tiles(dimensions)
        };
        match read_one(&message).unwrap().remove(0) {
            Sharding::Tiled { devices, .. } => devices,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(devices(&[4], &[0], &[2, 2]), [0, 1, 2, 3]);
    // The columns of [[0, 1, 2], [3, 4, 5]].
    assert_eq!(devices(&[2, 3], &[1, 0], &[6]), [0, 3, 1, 4, 2, 5]);
    assert_eq!(
        devices(&[2, 1, 2, 2], &[2, 0, 1, 3], &[2, 4]),
        [0, 1, 4, 5, 2, 3, 6, 7]
    );
}

#[test]
fn the_last_dimensions_can_be_groups() {
    let group = |kind, size| Group { kind, size };
    let read_groups = |message: &OpSharding| match read_one(message).unwrap().remove(0) {
        Sharding::Tiled {
            dimensions, groups, ..
        } => (dimensions, groups),
        other => panic!("{other:?}"),
    };
    let message = OpSharding {
        devices: vec![0, 1, 2, 3],
        replicate_on_last_dimension: true,
        ..tiles(&[2, 1, 2])
    };
    assert_eq!(
        read_groups(&message),
        (vec![2, 1], vec![group(GroupKind::Replicated, 2)])
    );
    let message = OpSharding {
        iota_dimensions: vec![24],
        iota_permutation: vec![0],
        last_dimensions: vec![MANUAL, REPLICATED, UNREDUCED],
        ..tiles(&[2, 2, 3, 2])
    };
    assert_eq!(
        read_groups(&message),
        (
            vec![2],
            vec![
                group(GroupKind::Manual, 2),
                group(GroupKind::Replicated, 3),
                group(GroupKind::Unreduced, 2)
            ]
        )
    );
}

#[test]
fn the_parts_of_a_tuple_follow_each_other() {
    let tuple = |tuple| OpSharding {
        tuple,
        ..of_kind(TUPLE)
    };
    let nested = tuple(vec![of_kind(MANUAL), tuple(vec![of_kind(REPLICATED)])]);
    assert_eq!(
        read_one(&nested),
        Ok(vec![Sharding::Manual, Sharding::Replicated])
    );
    assert_eq!(read_one(&tuple(vec![])), Ok(vec![]));
}

#[test]
fn shardings_that_contradict_themselves_are_errors() {
    let iota = |reshape: &[i64], permutation: &[i32]| OpSharding {
        iota_dimensions: reshape.to_vec(),
        iota_permutation: permutation.to_vec(),
        ..tiles(&[2, 2])
    };
    let groups = |kinds: &[i32]| OpSharding {
        last_dimensions: kinds.to_vec(),
        ..iota(&[4], &[0])
    };
    let cases = [
        (tiles(&[2, 2]), "0 devices for tiles [2, 2]"),
        (
            tiles(&[2, 0]),
            "tiles [2, 0] are none, or with all others more than 4194304",
        ),
        (
            tiles(&[2, -1]),
            "tiles [2, -1] are none, or with all others more than 4194304",
        ),
        (
            iota(&[5], &[0]),
            "device numbers of shape [5] for tiles [2, 2]",
        ),
        (iota(&[2, 2], &[0]), "[0] permutes no [2, 2]"),
        (iota(&[2, 2], &[1, 1]), "[1, 1] permutes no [2, 2]"),
        (iota(&[2, 2], &[-1, 0]), "[-1, 0] permutes no [2, 2]"),
        (groups(&[MANUAL; 3]), "3 groups in the dimensions [2, 2]"),
        (groups(&[TUPLE]), "a group of type 2"),
    ];
    for (message, reason) in cases {
        assert_eq!(
            refusal(&message),
            format!("the plugin's sharding of result 0 cannot be read: {reason}")
        );
    }
}

#[test]
fn bytes_that_are_no_message_are_an_error() {
    let messages: [&[u8]; 2] = [b"", b"\xff"];
    let error = read(Sharded::Parameter, messages.into_iter()).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Sharding {
                what: "parameter",
                index: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn devices_are_bounded_in_all_shardings_together() {
    let iota = |count: i64| OpSharding {
        iota_dimensions: vec![count],
        iota_permutation: vec![0],
        ..tiles(&[count])
    };
    let half = MOST_DEVICES as i64 / 2;
    let tuple = |counts: &[i64]| OpSharding {
        tuple: counts.iter().map(|&count| iota(count)).collect(),
        ..of_kind(TUPLE)
    };
    assert!(read_one(&tuple(&[half, half])).is_ok());
    assert_eq!(
        refusal(&tuple(&[half, half, 1])),
        "the plugin's sharding of result 2 cannot be read: tiles [1] are none, or with all others more than 4194304"
    );
    assert_eq!(
        refusal(&iota(i64::MAX)),
        "the plugin's sharding of result 0 cannot be read: tiles [9223372036854775807] are none, or with all others more than 4194304"
    );
    assert_eq!(
        refusal(&tiles(&[i64::MAX, 2])),
        "the plugin's sharding of result 0 cannot be read: tiles [9223372036854775807, 2] are none, or with all others more than 4194304"
    );
}

/// A program for four devices, whose mesh is not in the order of the devices.
const PROGRAM: &str = r#"
module {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(
      %arg0: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>},
      %arg1: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
    -> (tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>},
        tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<4x6xf32>
    %1 = stablehlo.negate %arg0 : tensor<4x6xf32>
    return %0, %1 : tensor<4x6xf32>, tensor<4x6xf32>
  }
}"#;

fn partitioned(plugin: &'static crate::Plugin) -> Executable {
    let options = [("cpu_device_count".to_owned(), NamedValue::Int64(4))];
    let options_of_program = CompileOptions {
        num_partitions: 4,
        use_spmd_partitioning: true,
        use_shardy_partitioner: true,
        ..Default::default()
    };
    Client::new(plugin, &options)
        .and_then(|client| client.compile(PROGRAM.as_bytes(), &options_of_program))
        .unwrap()
}

#[test]
fn a_partitioned_program_tells_where_its_parameters_and_results_are() {
    for plugin in std::iter::once(cpu_plugin()).chain(other_cpu_plugin()) {
        let executable = partitioned(plugin);
        assert_eq!(
            executable.parameter_shardings(),
            Ok(Some(vec![
                Sharding::Tiled {
                    dimensions: vec![2, 1],
                    devices: vec![0, 2, 1, 3],
                    groups: vec![Group {
                        kind: GroupKind::Replicated,
                        size: 2
                    }],
                },
                Sharding::Replicated
            ]))
        );
        assert_eq!(
            executable.result_shardings(),
            Ok(Some(vec![
                Sharding::Tiled {
                    dimensions: vec![2, 2],
                    devices: vec![0, 2, 1, 3],
                    groups: vec![],
                },
                Sharding::Tiled {
                    dimensions: vec![2, 1],
                    devices: vec![0, 1, 2, 3],
                    groups: vec![Group {
                        kind: GroupKind::Replicated,
                        size: 2
                    }],
                },
            ]))
        );
    }
}

#[test]
fn a_program_for_one_device_tells_no_shardings() {
    let program = crate::test_support::ADD.as_bytes();
    let executable = client()
        .compile(program, &CompileOptions::default())
        .unwrap();
    assert_eq!(executable.parameter_shardings(), Ok(None));
    assert_eq!(executable.result_shardings(), Ok(None));
}

unsafe extern "C" fn destroy(_: *mut PJRT_Error_Destroy_Args) {}
unsafe extern "C" fn message(_: *mut PJRT_Error_Message_Args) {}

unsafe extern "C" fn tells_nothing(_: *mut ShardingsArgs) -> *mut PJRT_Error {
    null_mut()
}

unsafe extern "C" fn tells_a_null_message(args: *mut ShardingsArgs) -> *mut PJRT_Error {
    struct Messages([*const c_char; 1]);
    // SAFETY: the pointer is null.
    unsafe impl Sync for Messages {}
    static MESSAGES: Messages = Messages([null()]);
    static SIZES: [usize; 1] = [0];
    // SAFETY: `of` passes the arguments of this function.
    unsafe {
        (*args).num_shardings = 1;
        (*args).shardings = MESSAGES.0.as_ptr();
        (*args).sharding_sizes = SIZES.as_ptr();
    }
    null_mut()
}

unsafe extern "C" fn tells_no_sizes(args: *mut ShardingsArgs) -> *mut PJRT_Error {
    // SAFETY: `of` passes the arguments of this function.
    unsafe {
        tells_a_null_message(args);
        (*args).sharding_sizes = null();
    }
    null_mut()
}

/// What a plugin with this extension says of the results.
fn told(
    kind: i32,
    struct_size: usize,
    function: Option<ShardingsFunction>,
) -> Result<Option<Vec<Sharding>>, Error> {
    let mut extension = ShardingsExtension {
        base: PJRT_Extension_Base {
            struct_size,
            type_: kind as PJRT_Extension_Type,
            next: null_mut(),
        },
        parameter_shardings: None,
        output_shardings: function,
    };
    let mut table = PJRT_Api {
        struct_size: size_of::<PJRT_Api>(),
        extension_start: (&raw mut extension).cast(),
        PJRT_Error_Destroy: Some(destroy),
        PJRT_Error_Message: Some(message),
        ..Default::default()
    };
    // SAFETY: the table and its extension outlive the call, and the functions use no executable.
    unsafe {
        let api = Api::new(NonNull::from(&mut table))?;
        of(&api, NonNull::dangling(), Sharded::Result)
    }
}

const WHOLE: usize = size_of::<ShardingsExtension>();

#[test]
fn a_plugin_without_the_function_tells_no_shardings() {
    let function: ShardingsFunction = tells_a_null_message;
    assert_eq!(told(extension::FFI, WHOLE, Some(function)), Ok(None));
    assert_eq!(
        told(extension::SHARDINGS, WHOLE - 8, Some(function)),
        Ok(None)
    );
    assert_eq!(told(extension::SHARDINGS, WHOLE, None), Ok(None));
    assert_eq!(
        told(extension::SHARDINGS, WHOLE, Some(tells_nothing)),
        Ok(None)
    );
}

#[test]
fn an_answer_that_lacks_a_message_or_its_size_is_an_error() {
    let functions: [ShardingsFunction; 2] = [tells_a_null_message, tells_no_sizes];
    for function in functions {
        let error = told(extension::SHARDINGS, WHOLE, Some(function)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the PJRT Shardings extension reported success but returned no message for each sharding"
        );
    }
}

//! Compile options, as users set them and as XLA reads them.

use std::collections::HashSet;

use pjrt_sys::protos::xla::device_assignment_proto::ComputationDevice;
use pjrt_sys::protos::xla::option_override_proto::Value;
use pjrt_sys::protos::xla::{
    CompileOptionsProto, DeviceAssignmentProto, ExecutableBuildOptionsProto, OptionOverrideProto,
};
use prost::Message;

use crate::Error;

/// How a program is compiled. The default is one replica and one partition: a program for one
/// device, the client's first.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    /// Copies of the program that run on different data.
    pub num_replicas: usize,
    /// Parts into which the program is split.
    pub num_partitions: usize,
    /// Split by XLA's SPMD partitioner: needed for more than one partition of one program.
    pub use_spmd_partitioning: bool,
    /// Read the program's `sdy` attributes and propagate them with Shardy.
    pub use_shardy_partitioner: bool,
    /// Whether the partitioner may choose the sharding of an output that has none: empty for no,
    /// one value for all outputs, or one for each.
    pub allow_spmd_sharding_propagation_to_output: Vec<bool>,
    /// The same for the inputs.
    pub allow_spmd_sharding_propagation_to_parameters: Vec<bool>,
    /// How many outputs the entry function has. Needed where the list for the outputs has values
    /// that differ, since XLA ends the process over a list of another length.
    pub num_outputs: Option<usize>,
    /// The same for the inputs.
    pub num_parameters: Option<usize>,
    /// Device ids by replica, then partition; `None` leaves the choice to the plugin.
    pub device_assignment: Option<Vec<Vec<i32>>>,
    /// XLA's debug options by name, such as `("xla_cpu_enable_fast_math", Bool(false))`. XLA takes
    /// any of them as [`OptionValue::String`] too.
    pub env_option_overrides: Vec<(String, OptionValue)>,
}

/// The value of one of XLA's debug options.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    String(String),
    Bool(bool),
    Int(i64),
    Double(f64),
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            num_replicas: 1,
            num_partitions: 1,
            use_spmd_partitioning: false,
            use_shardy_partitioner: false,
            allow_spmd_sharding_propagation_to_output: Vec::new(),
            allow_spmd_sharding_propagation_to_parameters: Vec::new(),
            num_outputs: None,
            num_parameters: None,
            device_assignment: None,
            env_option_overrides: Vec::new(),
        }
    }
}

impl CompileOptions {
    /// Checks the options against the ids of the client's devices: XLA ends the process at some
    /// contradictions, where it should say what is wrong.
    pub(crate) fn check(&self, devices: &[i32]) -> Result<(), Error> {
        let wrong = |message: String| Err(Error::CompileOptions(message));
        let (replicas, partitions) = (self.num_replicas, self.num_partitions);
        if replicas == 0 || partitions == 0 {
            return wrong(format!(
                "num_replicas is {replicas} and num_partitions is {partitions}; both have to be at least 1"
            ));
        }
        let needed = replicas.checked_mul(partitions);
        if needed.is_none_or(|needed| needed > devices.len()) {
            return wrong(format!(
                "{replicas} replicas of {partitions} partitions need more devices than the client's {}",
                devices.len()
            ));
        }
        let lists = [
            (
                "allow_spmd_sharding_propagation_to_output",
                &self.allow_spmd_sharding_propagation_to_output,
                self.num_outputs,
            ),
            (
                "allow_spmd_sharding_propagation_to_parameters",
                &self.allow_spmd_sharding_propagation_to_parameters,
                self.num_parameters,
            ),
        ];
        for (name, list, count) in lists {
            let len = list.len();
            match count {
                Some(count) if len > 1 && len != count => {
                    return wrong(format!(
                        "{name} has {len} values; it should have none, one, or {count}"
                    ));
                }
                None if uniform(list).len() > 1 => {
                    return wrong(format!(
                        "{name} has values that differ, so the number of what they are for has to \
                         be given"
                    ));
                }
                _ => {}
            }
        }
        let Some(assignment) = &self.device_assignment else {
            return Ok(());
        };
        if assignment.len() != replicas || assignment.iter().any(|row| row.len() != partitions) {
            return wrong(format!(
                "device_assignment {assignment:?} should have {replicas} lists (one a replica) of \
                 {partitions} device ids (one a partition)"
            ));
        }
        let mut seen = HashSet::new();
        for id in assignment.iter().flatten() {
            if !devices.contains(id) {
                return wrong(format!(
                    "device_assignment names device {id}; the client has {devices:?}"
                ));
            }
            if !seen.insert(id) {
                return wrong(format!("device_assignment names device {id} twice"));
            }
        }
        Ok(())
    }

    /// The serialized `xla.CompileOptionsProto`. Only for options that were checked.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let device_assignment = self.device_assignment.as_ref().map(|assignment| {
            // The message lists the devices of each partition, replica by replica.
            let partition = |index: usize| ComputationDevice {
                replica_device_ids: assignment
                    .iter()
                    .filter_map(|row| row.get(index).map(|&id| i64::from(id)))
                    .collect(),
            };
            DeviceAssignmentProto {
                replica_count: self.num_replicas as i32,
                computation_count: self.num_partitions as i32,
                computation_devices: (0..self.num_partitions).map(partition).collect(),
            }
        });
        let overrides = self.env_option_overrides.iter().map(|(name, value)| {
            let value = match value {
                OptionValue::String(text) => Value::StringField(text.clone()),
                OptionValue::Bool(truth) => Value::BoolField(*truth),
                OptionValue::Int(number) => Value::IntField(*number),
                OptionValue::Double(number) => Value::DoubleField(*number),
            };
            (name.clone(), OptionOverrideProto { value: Some(value) })
        });
        CompileOptionsProto {
            executable_build_options: Some(ExecutableBuildOptionsProto {
                // By the message's comment -1 is "not set", while the absent value reads as device 0.
                device_ordinal: -1,
                num_replicas: self.num_replicas as i64,
                num_partitions: self.num_partitions as i64,
                use_spmd_partitioning: self.use_spmd_partitioning,
                use_shardy_partitioner: self.use_shardy_partitioner,
                allow_spmd_sharding_propagation_to_output: uniform(
                    &self.allow_spmd_sharding_propagation_to_output,
                )
                .to_vec(),
                allow_spmd_sharding_propagation_to_parameters: uniform(
                    &self.allow_spmd_sharding_propagation_to_parameters,
                )
                .to_vec(),
                device_assignment,
                ..Default::default()
            }),
            env_option_overrides: overrides.collect(),
            ..Default::default()
        }
        .encode_to_vec()
    }
}

/// A list of one value where all are the same: it means the same, whatever the number.
fn uniform(list: &[bool]) -> &[bool] {
    match list {
        [first, rest @ ..] if rest.iter().all(|value| value == first) => &list[..1],
        _ => list,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(options: CompileOptions) -> String {
        options.check(&[0, 1, 2, 3]).unwrap_err().to_string()
    }

    #[test]
    fn the_default_is_a_program_for_one_device() {
        let options = CompileOptions::default();
        assert_eq!(options.check(&[0]), Ok(()));
        let proto = CompileOptionsProto::decode(options.encode().as_slice()).unwrap();
        let build = proto.executable_build_options.unwrap();
        assert_eq!(build.num_replicas, 1);
        assert_eq!(build.num_partitions, 1);
        assert_eq!(build.device_ordinal, -1);
        assert_eq!(build.device_assignment, None);
    }

    #[test]
    fn an_assignment_is_encoded_by_partition() {
        let options = CompileOptions {
            num_replicas: 2,
            num_partitions: 2,
            device_assignment: Some(vec![vec![0, 1], vec![2, 3]]),
            ..Default::default()
        };
        assert_eq!(options.check(&[0, 1, 2, 3]), Ok(()));
        let proto = CompileOptionsProto::decode(options.encode().as_slice()).unwrap();
        let devices = proto
            .executable_build_options
            .and_then(|build| build.device_assignment)
            .unwrap()
            .computation_devices;
        assert_eq!(devices[0].replica_device_ids, vec![0, 2]);
        assert_eq!(devices[1].replica_device_ids, vec![1, 3]);
    }

    #[test]
    fn more_parts_than_devices_are_refused() {
        let options = CompileOptions {
            num_partitions: 5,
            ..Default::default()
        };
        assert_eq!(
            message(options),
            "compile options: 1 replicas of 5 partitions need more devices than the client's 4"
        );
    }

    #[test]
    fn no_parts_and_parts_beyond_counting_are_refused() {
        let none = CompileOptions {
            num_replicas: 0,
            ..Default::default()
        };
        let all = CompileOptions {
            num_replicas: usize::MAX,
            num_partitions: 2,
            ..Default::default()
        };
        assert!(message(none).contains("both have to be at least 1"));
        assert!(message(all).contains("need more devices"));
    }

    #[test]
    fn an_assignment_of_another_shape_is_refused() {
        let options = CompileOptions {
            num_partitions: 2,
            device_assignment: Some(vec![vec![0], vec![1]]),
            ..Default::default()
        };
        assert_eq!(
            message(options),
            "compile options: device_assignment [[0], [1]] should have 1 lists (one a replica) of 2 \
             device ids (one a partition)"
        );
    }

    #[test]
    fn a_device_that_is_missing_or_named_twice_is_refused() {
        let with = |ids: [i32; 2]| CompileOptions {
            num_partitions: 2,
            device_assignment: Some(vec![ids.to_vec()]),
            ..Default::default()
        };
        assert!(message(with([0, 7])).ends_with("names device 7; the client has [0, 1, 2, 3]"));
        assert!(message(with([2, 2])).ends_with("names device 2 twice"));
    }
    #[test]
    fn a_propagation_list_has_one_value_for_each_or_one_for_all() {
        let with = |list: &[bool], count: Option<usize>| CompileOptions {
            allow_spmd_sharding_propagation_to_parameters: list.to_vec(),
            num_parameters: count,
            ..Default::default()
        };
        assert_eq!(with(&[true, true, true], None).check(&[0]), Ok(()));
        assert_eq!(with(&[true, false], Some(2)).check(&[0]), Ok(()));
        assert!(message(with(&[true, false], Some(3))).ends_with("none, one, or 3"));
        assert!(message(with(&[true, true], Some(3))).ends_with("none, one, or 3"));
        assert!(message(with(&[true, false], None)).contains("has to be given"));
        let proto = with(&[true, true, true], None).encode();
        let proto = CompileOptionsProto::decode(proto.as_slice()).unwrap();
        let build = proto.executable_build_options.unwrap();
        assert_eq!(build.allow_spmd_sharding_propagation_to_parameters, [true]);
    }
}

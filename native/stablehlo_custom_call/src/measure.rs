//! Tests that measure the memory of their process: each is an ignored test that another starts, for
//! it alone. Only Linux tells in /proc what a process weighs.

use std::{env, fs, process::Command};

const ARGUMENT: &str = "STABLEHLO_CUSTOM_CALL_MEASURE";

/// The process's resident memory in bytes.
pub(crate) fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().strip_suffix(" kB").unwrap();
    kib.parse::<usize>().unwrap() * 1024
}

/// What the process that runs a measuring test was started for.
pub(crate) fn argument() -> String {
    env::var(ARGUMENT).unwrap()
}

/// What a measuring test prints, in a process of its own.
pub(crate) struct Measured {
    output: String,
}

impl Measured {
    pub(crate) fn run(test: &str, argument: &str) -> Self {
        let output = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--ignored", "--nocapture"])
            .env(ARGUMENT, argument)
            .output()
            .unwrap();
        Self {
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
        }
    }

    /// The number of the line `label: number`.
    pub(crate) fn number(&self, label: &str) -> f64 {
        let mut lines = self.output.lines();
        let found = lines.find_map(|line| line.strip_prefix(label)?.strip_prefix(": "));
        let number = found.unwrap_or_else(|| panic!("no {label} in: {}", self.output));
        number.parse().unwrap()
    }
}

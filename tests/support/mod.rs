//! What the tests share: a device of either kind, and a verdict of the simulated one at the end.

#![allow(dead_code, unreachable_pub, reason = "each test target uses a part of it")]

pub mod foreign;

use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CheckedDevice, Device, DeviceBlock, DeviceLayout, DeviceResource, Stream, device::BackendKind,
};
use std::io::Write;
use std::process::Command;

/// Whether the suite runs on a GPU: `AQUIFER_BACKEND=cuda`.
pub fn on_gpu() -> bool {
    std::env::var("AQUIFER_BACKEND").is_ok_and(|backend| backend == "cuda")
}

/// GPU 0 with `AQUIFER_BACKEND=cuda`, else a simulated device of its own for each call.
pub fn device() -> CheckedDevice {
    seeded(0)
}

/// As [`device`], the simulated one with this seed for its scheduler.
pub fn seeded(seed: u64) -> CheckedDevice {
    device_or(SimConfig::default().seed(seed))
}

/// As [`device`], the simulated one without a look at what pools hand out: for what a pool does on a
/// GPU, and for bugs that are planted for the pool itself.
pub fn unfollowed() -> CheckedDevice {
    device_or(SimConfig::default().without_pool_checks())
}

fn device_or(config: SimConfig) -> CheckedDevice {
    let device = if on_gpu() {
        Device::open(0).expect("AQUIFER_BACKEND=cuda asks for a GPU")
    } else {
        Device::simulated(as_asked(config))
    };
    device.into()
}

/// Whether the simulated device is to follow what pools hand out, by `AQUIFER_TEST_POOL_CHECKS`, `on` or
/// `off`. It does by default, but for half of the programs of a soak. Without, pools take their way without
/// a lock, as on a GPU: `cargo xtask test` runs the tests both ways.
pub fn pool_checks() -> Option<bool> {
    let choice = std::env::var("AQUIFER_TEST_POOL_CHECKS").ok().filter(|it| !it.is_empty())?;
    match choice.as_str() {
        "on" => Some(true),
        "off" => Some(false),
        _ => panic!("AQUIFER_TEST_POOL_CHECKS is {choice:?}, neither on nor off"),
    }
}

/// What [`pool_checks`] has to say of a configuration.
pub fn as_asked(config: SimConfig) -> SimConfig {
    if pool_checks() == Some(false) { config.without_pool_checks() } else { config }
}

/// A simulated device, whatever the environment says.
pub fn simulated(config: SimConfig) -> (Device, Simulator) {
    let device = Device::simulated(as_asked(config));
    assert_eq!(device.kind(), BackendKind::Simulated);
    let simulator = device.simulator().expect("a simulated device has a simulator");
    (device, simulator)
}

/// Says that a test could not run here; the checks count it as skipped, not as passed.
pub fn skipped(name: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

/// So many bytes, at the default alignment.
pub fn layout(bytes: usize) -> DeviceLayout {
    DeviceLayout::new(bytes).expect("a size that a layout can have")
}

/// Frees a block on the stream that its work was given to.
pub fn free(resource: &(impl DeviceResource + ?Sized), stream: &Stream, block: DeviceBlock) {
    // SAFETY: each block of the tests is its resource's and is freed once, and all its work was given
    // to this stream.
    unsafe { resource.deallocate(stream, block) }
}

/// Names the test that a process was started for.
const OWN_PROCESS: &str = "AQUIFER_TEST_OWN_PROCESS";

/// Runs a test in a process of its own: no other test's threads, and nothing of this test in theirs.
/// True in that process, which has to do the test's work; false where it has passed there. `module` is
/// `module_path!()`.
pub fn in_own_process(module: &str, name: &str) -> bool {
    in_own_process_with(module, name, &[])
}

/// As [`in_own_process`], with these variables in the environment.
pub fn in_own_process_with(module: &str, name: &str, variables: &[(&str, &str)]) -> bool {
    let name = match module.split_once("::") {
        Some((_, inner)) => format!("{inner}::{name}"),
        None => name.to_owned(),
    };
    if std::env::var(OWN_PROCESS).is_ok_and(|running| running == name) {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture", "--test-threads=1"])
        .env(OWN_PROCESS, &name)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
    false
}

//! What the tests share: a device of either kind, and a verdict of the simulated one at the end.

#![allow(dead_code, unreachable_pub, reason = "each test target uses a part of it")]

use aquifer::sim::{SimConfig, Simulator};
use aquifer::{BackendKind, Device};
use std::io::Write;
use std::ops::Deref;

/// A device that asserts, when it goes, that nothing on it was out of order.
#[derive(Debug)]
pub struct TestDevice {
    device: Device,
}

impl Deref for TestDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl From<Device> for TestDevice {
    fn from(device: Device) -> Self {
        Self { device }
    }
}

impl Drop for TestDevice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Some(simulator) = self.device.simulator() {
            simulator.check().expect("the simulated device saw an access out of order");
        }
    }
}

/// Whether the suite runs on a GPU: `AQUIFER_BACKEND=cuda`.
pub fn on_gpu() -> bool {
    std::env::var("AQUIFER_BACKEND").is_ok_and(|backend| backend == "cuda")
}

/// GPU 0 with `AQUIFER_BACKEND=cuda`, else a simulated device of its own for each call.
pub fn device() -> TestDevice {
    seeded(0)
}

/// As [`device`], the simulated one with this seed for its scheduler.
pub fn seeded(seed: u64) -> TestDevice {
    let device = if on_gpu() {
        Device::open(0).expect("AQUIFER_BACKEND=cuda asks for a GPU")
    } else {
        Device::simulated(SimConfig::default().seed(seed))
    };
    TestDevice { device }
}

/// A simulated device, whatever the environment says.
pub fn simulated(config: SimConfig) -> (Device, Simulator) {
    let device = Device::simulated(config);
    assert_eq!(device.kind(), BackendKind::Simulated);
    let simulator = device.simulator().expect("a simulated device has a simulator");
    (device, simulator)
}

/// Says that a test could not run here; the checks count it as skipped, not as passed.
pub fn skipped(name: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

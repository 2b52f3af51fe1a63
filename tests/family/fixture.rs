//! Runs one case over all rows, and looks after what each leaves.

use crate::support;
use crate::table::{Made, ROWS, Row};
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{CheckedDevice, Device, DeviceResource, ErrorKind, Stream};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Who changes what is current for the process is alone: the tests of one GPU share it.
static CURRENT: RwLock<()> = RwLock::new(());

/// One row, ready to be asked.
pub(crate) struct Fixture {
    pub(crate) row: &'static Row,
    pub(crate) device: Device,
    pub(crate) made: Made,
}

impl Fixture {
    pub(crate) fn resource(&self) -> &Arc<dyn DeviceResource> {
        &self.made.resource
    }

    pub(crate) fn stream(&self) -> Stream {
        self.device.new_stream().unwrap()
    }

    /// `bytes`, or what a row with less room than others can give of many such blocks at once.
    pub(crate) fn modest(&self, bytes: usize) -> usize {
        bytes.min(self.made.largest).min(self.made.room / 256)
    }
}

/// Asks every row, and then whether anything is left.
pub(crate) fn each(case: &str, body: impl Fn(&Fixture)) {
    each_owned(case, |fixture| kept(&fixture, &body));
}

/// As [`each`], for a case that changes what is current for the process.
pub(crate) fn each_alone(case: &str, body: impl Fn(&Fixture)) {
    let _alone = CURRENT.write().unwrap_or_else(PoisonError::into_inner);
    rows(case, support::seeded, |fixture| kept(&fixture, &body));
}

fn kept(fixture: &Fixture, body: &impl Fn(&Fixture)) {
    body(fixture);
    fixture.device.synchronize().unwrap();
    for (what, read) in &fixture.made.books {
        assert_eq!(read(), 0, "{what}, when all is freed");
    }
}

/// As [`each`], for cases that let go of the resource themselves.
pub(crate) fn each_owned(case: &str, body: impl Fn(Fixture)) {
    let _shared = CURRENT.read().unwrap_or_else(PoisonError::into_inner);
    rows(case, support::seeded, body);
}

/// Asks every row, on a simulated device of so many bytes, whatever the suite runs on.
pub(crate) fn each_simulated(case: &str, capacity: usize, body: impl Fn(Fixture, &Simulator)) {
    let device = |seed| {
        let config = SimConfig::default().seed(seed).capacity(capacity);
        CheckedDevice::from(support::simulated(config).0)
    };
    rows(case, device, |fixture| {
        let simulator = fixture.device.simulator().unwrap();
        body(fixture, &simulator);
    });
}

fn rows(case: &str, device: impl Fn(u64) -> CheckedDevice, body: impl Fn(Fixture)) {
    let mut failures = Vec::new();
    for (seed, row) in ROWS.iter().enumerate() {
        let asked = catch_unwind(AssertUnwindSafe(|| ask(case, &device(seed as u64), row, &body)));
        if let Err(panic) = asked {
            failures.push(format!("{}: {}", row.name, said(&*panic)));
        }
    }
    let (failed, rows) = (failures.len(), ROWS.len());
    assert!(failed == 0, "{case}, {failed} of {rows} rows:\n  {}", failures.join("\n  "));
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text")
}

fn ask(case: &str, device: &CheckedDevice, row: &'static Row, body: &impl Fn(Fixture)) {
    let made = match (row.make)(device) {
        Ok(made) => made,
        // The simulated device can do all.
        Err(error) if device.simulator().is_none() && error.kind() == ErrorKind::Unsupported => {
            return support::skipped(&format!("{case}: {}", row.name), &error.to_string());
        }
        Err(error) => panic!("it could not be made: {error}"),
    };
    body(Fixture { row, device: Device::clone(device), made });
    device.synchronize().unwrap();
    if let Some(simulator) = device.simulator() {
        nothing_is_left(device, &simulator);
    }
}

/// In a while: a scope of threads ends before what they kept for themselves is torn down, and ordinary
/// memory goes back in a later call, of whichever thread finds it.
fn nothing_is_left(device: &Device, simulator: &Simulator) {
    let left = || {
        let info = device.memory_info().unwrap();
        [
            ("bytes of device memory", simulator.live_bytes()),
            ("blocks of device memory", simulator.live_blocks()),
            ("blocks of page-locked memory", simulator.host_blocks()),
            ("blocks of ordinary memory", simulator.pageable_blocks()),
            ("bytes that are not free", info.total - info.free),
        ]
    };
    let is_left = |left: &[(&str, usize)]| left.iter().any(|(_, count)| *count != 0);
    let start = Instant::now();
    while is_left(&left()) && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
        device.new_stream().unwrap().synchronize().unwrap();
        device.synchronize().unwrap();
    }
    assert!(!is_left(&left()), "{:?} are left", left());
}

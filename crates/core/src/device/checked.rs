//! Devices for tests, which fail by what the simulated device found.

use super::Device;
use crate::error::Result;
use crate::impls::{debug_struct, variable};
use crate::sim::SimConfig;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A device for a test. When it is dropped, reports of the simulated device that were not taken fail the test. A GPU
/// makes no reports.
///
/// A test that never looks at a simulated device's reports passes whatever is wrong with its streams.
/// With this in place of a [`Device`] it does not. Declare it before all that is made of it, so that it is dropped
/// last. In a struct, declare it as the last field.
///
/// ```
/// use aquifer::{CheckedDevice, DeviceVec};
///
/// # fn main() -> aquifer::Result<()> {
/// let device = CheckedDevice::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let vec = DeviceVec::from_slice(&stream, &[1_u32, 2, 3])?;
/// assert_eq!(vec.to_vec()?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// The drop waits for the simulated device, and panics with all its reports if there are any. A thread
/// that panics already prints them and does not wait.
#[must_use = "dropped at once, it checks nothing"]
pub struct CheckedDevice {
    device: Device,
    is_checked: bool,
}

debug_struct!(CheckedDevice { device, .. });

impl CheckedDevice {
    /// The device of [`Device::detect_or_simulate`], one for the whole process. Tests that run at the same time find
    /// each other's reports. Give each test its own simulated device by [`simulated`](Self::simulated) to prevent that.
    ///
    /// # Errors
    ///
    /// The errors of [`Device::detect_or_simulate`].
    pub fn detect_or_simulate() -> Result<Self> {
        Device::detect_or_simulate().map(Self::from)
    }

    /// The device of [`Device::simulated`].
    pub fn simulated(config: SimConfig) -> Self {
        Device::simulated(config).into()
    }

    /// Waits for the device and checks it, in place of the drop.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork that did not open the device.
    /// - [`ErrorKind::Simulation`](crate::ErrorKind::Simulation) if there are reports that were not taken. The first
    ///   one is the source of the error.
    /// - The errors of [`Device::synchronize`].
    pub fn finish(mut self) -> Result<()> {
        self.is_checked = true;
        crate::driver::not_forked("checking a device")?;
        let waited = self.device.synchronize();
        // First, since a capture is no reason to miss a report.
        self.device.simulator().map_or(Ok(()), |simulator| simulator.check())?;
        waited
    }

    /// The reports of a simulated device that were not taken, if there are any. It waits for the device first if
    /// `waits`.
    fn reports(&self, waits: bool) -> Option<Reports> {
        let simulator = self.device.simulator()?;
        if waits {
            // Its error is a report, which is found below, or what the test did on purpose: a context that
            // it lost, a capture that it left open.
            let _ = self.device.synchronize();
        }
        let reports: Vec<String> =
            simulator.reports().iter().map(|report| report.to_string()).collect();
        (!reports.is_empty()).then_some(Reports(reports))
    }
}

/// The reports of a device, a line each.
struct Reports(Vec<String>);

impl fmt::Display for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the simulated device found:\n{}", self.0.join("\n"))
    }
}

impl Deref for CheckedDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl From<Device> for CheckedDevice {
    fn from(device: Device) -> Self {
        Self { device, is_checked: false }
    }
}

impl Drop for CheckedDevice {
    fn drop(&mut self) {
        if self.is_checked || crate::driver::is_forked_child() {
            return;
        }
        // A thread that panics may hold what the device's work waits for.
        let is_panicking = std::thread::panicking();
        match self.reports(!is_panicking) {
            Some(reports) if is_panicking => eprintln!("{reports}"),
            Some(reports) => panic!("{reports}"),
            None => {}
        }
    }
}

impl CheckedDevice {
    /// Runs `test` on a new simulated device for each seed. A fault that depends on the order in which streams run
    /// shows in one schedule and not in another. The first seed whose test panics, returns an error or leaves a report
    /// is printed.
    ///
    /// With `AQUIFER_SIM_SEED` in the environment only that seed is run, whatever `seeds` are.
    ///
    /// ```
    /// use aquifer::{CheckedDevice, DeviceVec, Result, sim::SimConfig};
    ///
    /// CheckedDevice::for_each_seed(SimConfig::default(), 0..20, |device| -> Result<()> {
    ///     let (one, two) = (device.new_stream()?, device.new_stream()?);
    ///     let mut vec = DeviceVec::from_slice(&one, &[1_u32; 100])?;
    ///     vec.fill(2)?;
    ///     vec.set_stream(&two)?;
    ///     assert_eq!(vec.to_vec()?, [2; 100]);
    ///     Ok(())
    /// });
    /// ```
    ///
    /// # Panics
    ///
    /// - If `test` panics, returns an error or leaves a report that it did not take.
    /// - If there are no `seeds`.
    /// - If `AQUIFER_SIM_SEED` is no number.
    #[track_caller]
    pub fn for_each_seed<E: fmt::Debug>(
        config: SimConfig,
        seeds: impl IntoIterator<Item = u64>,
        mut test: impl FnMut(&Device) -> Result<(), E>,
    ) {
        let seed = |name: &str| (name == SimConfig::SEED).then(|| variable(name)).flatten();
        // No closure, whose line the panic would name.
        let only = match seed(SimConfig::SEED).map(|_| SimConfig::from_variables(&seed)).transpose()
        {
            Ok(config) => config.map(|config| config.seed_or_default()),
            Err(error) => panic!("{error}"),
        };
        let mut seeds =
            only.into_iter().chain(seeds.into_iter().take_while(|_| only.is_none())).peekable();
        // A test that runs for no seed would pass for the wrong reason.
        assert!(
            seeds.peek().is_some(),
            "no seed was given, so that the test would not run: give one at least"
        );
        for seed in seeds {
            let mut device = CheckedDevice::simulated(config.clone().seed(seed));
            let again = format!("seed {seed} failed; {}={seed} runs it alone", SimConfig::SEED);
            // What was found besides is printed by the drop of the device.
            match catch_unwind(AssertUnwindSafe(|| test(&device))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => panic!("{again}: the test returned {error:?}"),
                Err(payload) => {
                    eprintln!("{again}");
                    resume_unwind(payload);
                }
            }
            device.is_checked = true;
            if let Some(reports) = device.reports(true) {
                panic!("{again}: {reports}");
            }
        }
    }
}

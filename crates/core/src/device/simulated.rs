//! Simulated devices, which a program names or takes in place of a missing GPU.

use super::Device;
use super::detect::{FOUND, Found, Undetected};
use crate::driver::{BackendKind, not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::impls::variable;
use crate::sim::{SimConfig, SimDriver, Simulator};
use crate::sync::Arc;
use crate::sync::trusted::Mutex;
use std::ffi::OsString;

impl Device {
    /// A new simulated device. It needs no GPU, no driver and no toolkit.
    pub fn simulated(config: SimConfig) -> Self {
        // Where the system has no room for the handler, a forked child is merely not recognised.
        let _ = crate::driver::fork::install_handler();
        Self::with_driver(SimDriver::open(config))
    }

    /// Another simulated device, in the machine of this one. Work of either may use page-locked memory of both, as in a
    /// machine with several GPUs. So freed page-locked memory waits for both. Beside a GPU it has a machine of its own.
    ///
    /// ```
    /// use aquifer::{Device, sim::SimConfig};
    ///
    /// let one = Device::simulated(SimConfig::default());
    /// let two = one.simulated_beside(SimConfig::default().ordinal(1));
    /// assert_ne!(one, two);
    /// ```
    pub fn simulated_beside(&self, config: SimConfig) -> Self {
        match self.kind() {
            BackendKind::Simulated => {
                Self::of_machine(SimDriver::open(config), Arc::clone(&self.inner.machine))
            }
            _ => Self::simulated(config),
        }
    }

    /// The device that tests, examples and programs without a GPU use. It is the one that [`detect`](Self::detect)
    /// finds, or else one simulated device for the whole process, with one [`tracing`](https://docs.rs/tracing)
    /// warning. The answer is found once. From then on, [`PinnedAlloc`](crate::PinnedAlloc) and all else that takes the
    /// detected device takes this one.
    ///
    /// `AQUIFER_BACKEND=cuda` wants the GPU and fails without it. `AQUIFER_BACKEND=sim` wants the simulated device,
    /// without a warning. [`SimConfig::from_env`] configures that one, by `AQUIFER_SIM_SEED` and others.
    ///
    /// ```
    /// use aquifer::Device;
    ///
    /// let device = Device::detect_or_simulate()?;
    /// assert_eq!(device, Device::detect_or_simulate()?);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`detect`](Self::detect). The lack of a driver, of a GPU or of the feature `cuda` is an error with
    /// `AQUIFER_BACKEND=cuda` alone. [`ErrorKind::Environment`] if a variable of the simulated device has no valid
    /// value.
    pub fn detect_or_simulate() -> Result<Self> {
        not_forked("a device")?;
        let mut found = FOUND.lock();
        if let Some(found) = &*found {
            return Ok(found.device().clone());
        }
        let missing = match Self::choose(&variable) {
            Ok(device) => {
                *found = Some(Found::Detected(device.clone()));
                return Ok(device);
            }
            Err(Undetected { error, may_simulate: true }) => error,
            Err(Undetected { error, .. }) => return Err(error),
        };
        let device = Self::simulated(SimConfig::from_variables(&variable)?);
        *found = Some(Found::Simulated(device.clone()));
        // Not under the lock: a subscriber may use the crate.
        drop(found);
        // Without the advice of the error, which this device is.
        let error = missing.message();
        crate::debug_log::event!(
            warn,
            error,
            "no GPU: using a simulated device; AQUIFER_BACKEND=sim asks for one without a warning"
        );
        Ok(device)
    }

    /// All devices that tests and examples use. These are all GPUs, in the order of their numbers. Where
    /// [`detect_or_simulate`](Self::detect_or_simulate) finds none, they are its simulated device and others like it.
    /// There are two in all, or as many as the variable `AQUIFER_SIM_DEVICES` says. They are the same ones at each
    /// call.
    ///
    /// ```
    /// use aquifer::Device;
    ///
    /// let devices = Device::detect_all_or_simulate()?;
    /// assert_eq!(devices[0], Device::detect_or_simulate()?);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`detect_or_simulate`](Self::detect_or_simulate), and [`ErrorKind::Environment`] if
    /// `AQUIFER_SIM_DEVICES` is no number above 0.
    pub fn detect_all_or_simulate() -> Result<Vec<Self>> {
        Self::detect_or_simulate()?.with_all_beside()
    }

    /// This device, the first, and the simulated ones that stand for further GPUs.
    pub(super) fn with_simulated_beside(self) -> Result<Vec<Self>> {
        static SIMULATED: Mutex<Vec<Device>> = Mutex::new(Vec::new());
        let count = simulated_count(&variable)?;
        let config = SimConfig::from_env()?;
        let mut simulated = SIMULATED.lock();
        for ordinal in simulated.len() + 1..count {
            let seed = config.seed_or_default().wrapping_add(ordinal as u64);
            simulated.push(self.simulated_beside(config.clone().ordinal(ordinal).seed(seed)));
        }
        Ok([self].into_iter().chain(simulated.iter().take(count - 1).cloned()).collect())
    }

    /// The handle on the simulation behind this device, with its reports and its failures to inject. `None` on a GPU.
    pub fn simulator(&self) -> Option<Simulator> {
        self.driver().as_any().downcast_ref().map(SimDriver::simulator)
    }
}

/// How many simulated devices stand for all GPUs.
fn simulated_count(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<usize> {
    const NAME: &str = "AQUIFER_SIM_DEVICES";
    let Some(value) = variable(NAME) else { return Ok(2) };
    let count = value.to_str().and_then(|value| value.parse().ok()).filter(|&count| count > 0);
    count.ok_or_else(|| {
        let what = format!("{NAME} is {value:?}, which is none of its values");
        Error::new(ErrorKind::Environment, what)
            .with_advice("set it to a number of devices above 0, or unset it")
    })
}

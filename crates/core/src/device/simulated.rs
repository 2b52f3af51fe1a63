//! Simulated devices, which a program names or takes in place of a missing GPU.

use super::Device;
use crate::driver::BackendKind;
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

//! A GPU, or a simulated device in its place.

use super::Device;
use super::detect::{FOUND, Found, Undetected};
use crate::driver::not_forked;
#[allow(unused_imports, reason = "for the documentation")]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::impls::variable;
use crate::sim::SimConfig;

impl Device {
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
}

//! Which device a program uses unless it names one.

use super::{Device, MISSING};
use crate::driver::{BackendKind, not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::impls::variable;
use crate::sync::LazyLock;
use crate::sync::trusted::Mutex;
use std::ffi::OsString;

/// The device of the process, once one was found.
pub(super) static FOUND: Mutex<Option<Found>> = Mutex::new(None);

/// The advice for a user who wants a GPU.
const GPU: &str = if cfg!(feature = "cuda") {
    "install the NVIDIA driver"
} else {
    "build with the feature `cuda`"
};
/// The advice where there is a driver and no GPU.
const VISIBLE_GPU: &str =
    "see that a GPU is visible here (CUDA_VISIBLE_DEVICES, a container's --gpus)";
/// The advice for a user who takes a simulated device.
const SIMULATED: &str = if cfg!(feature = "sim") {
    "call Device::detect_or_simulate, or set AQUIFER_BACKEND=sim"
} else {
    "build with the feature `sim`, and call Device::detect_or_simulate or set AQUIFER_BACKEND=sim"
};
const SIMULATED_BY_VARIABLE: &str = if cfg!(feature = "sim") {
    "set AQUIFER_BACKEND=sim"
} else {
    "build with the feature `sim`, and set AQUIFER_BACKEND=sim"
};

/// Whether the environment wants a GPU and nothing else. It is read once, since another thread may write the
/// environment by C's means.
pub(crate) fn asks_for_gpu() -> bool {
    static ASKS: LazyLock<bool> =
        LazyLock::new(|| variable("AQUIFER_BACKEND").is_some_and(|backend| backend == "cuda"));
    *ASKS
}

fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice)
}

/// How the device of the process was found.
#[derive(Debug)]
pub(super) enum Found {
    /// By the environment and the machine.
    Detected(Device),
    /// A simulated device takes the place of a GPU that is not there.
    #[cfg(feature = "sim")]
    Simulated(Device),
}

impl Found {
    pub(super) fn device(&self) -> &Device {
        match self {
            Self::Detected(device) => device,
            #[cfg(feature = "sim")]
            Self::Simulated(device) => device,
        }
    }
}

/// Why there is no device.
#[derive(Debug)]
pub(super) struct Undetected {
    pub(super) error: Error,
    /// Whether a simulated device may take its place, since the environment asks for nothing else.
    pub(super) may_simulate: bool,
}

impl From<Error> for Undetected {
    fn from(error: Error) -> Self {
        Self { error, may_simulate: false }
    }
}

impl Device {
    /// The device that a program uses unless it names one, which is GPU 0. It is never a simulated one, unless the
    /// environment asks for it. The answer is found once.
    ///
    /// `AQUIFER_BACKEND=sim` takes the simulated device, in a build with the feature `sim`. It is one for the whole
    /// process, which [`SimConfig::from_env`](crate::sim::SimConfig::from_env) configures. `AQUIFER_BACKEND=cuda` is
    /// the default.
    /// An empty variable counts as one that is not set. Tests and examples that run without a GPU, too, call
    /// [`detect_or_simulate`](Self::detect_or_simulate).
    ///
    /// ```
    /// use aquifer::{Device, ErrorKind};
    ///
    /// match Device::detect() {
    ///     Ok(device) => println!("{device}"),
    ///     // It says how to get a GPU, and how to get a simulated device.
    ///     Err(error) => assert!(matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice)),
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// - The errors of [`open`](Self::open).
    /// - [`ErrorKind::Environment`] if `AQUIFER_BACKEND` is anything else, is `sim` without the feature, or a variable
    ///   of the simulated device has no valid value.
    /// - [`ErrorKind::Forked`] in the child of a fork.
    pub fn detect() -> Result<Self> {
        not_forked("a device")?;
        let mut found = FOUND.lock();
        match &*found {
            Some(Found::Detected(device)) => return Ok(device.clone()),
            // The environment asks for one by now.
            #[cfg(feature = "sim")]
            Some(Found::Simulated(device))
                if variable("AQUIFER_BACKEND").is_some_and(|backend| backend == "sim") =>
            {
                return Ok(device.clone());
            }
            _ => {}
        }
        let device = Self::choose(&variable).map_err(|undetected| undetected.error)?;
        // A simulated device stays the one of the process.
        found.get_or_insert_with(|| Found::Detected(device.clone()));
        Ok(device)
    }

    /// All devices that a program uses unless it names them. These are all GPUs, in the order of their numbers. With
    /// `AQUIFER_BACKEND=sim` they are simulated ones, two or as many as `AQUIFER_SIM_DEVICES` says. They are the same
    /// ones at each call.
    ///
    /// # Errors
    ///
    /// The errors of [`detect`](Self::detect), and [`ErrorKind::Environment`] if `AQUIFER_SIM_DEVICES` is no number
    /// above 0.
    pub fn detect_all() -> Result<Vec<Self>> {
        Self::detect()?.with_all_beside()
    }

    /// The device of the process. It is the one that any call has found, or else the one that [`detect`](Self::detect)
    /// finds. A lack of devices is found out once, since each block of host memory asks.
    pub(crate) fn of_process() -> Result<Self> {
        not_forked("a device")?;
        let found = FOUND.lock().as_ref().map(|found| found.device().clone());
        if let Some(device) = found {
            return Ok(device);
        }
        let missing = MISSING.lock().clone();
        if let Some(error) = missing {
            return Err(error);
        }
        let detected = Self::detect();
        // What may be otherwise soon is asked again: a GPU that is full or not ready.
        if let Err(error) = &detected
            && is_missing(error)
        {
            *MISSING.lock() = Some(error.clone());
        }
        detected
    }

    /// All devices of the kind of this one, which is the first.
    pub(super) fn with_all_beside(self) -> Result<Vec<Self>> {
        match self.kind() {
            #[cfg(feature = "sim")]
            BackendKind::Simulated => self.with_simulated_beside(),
            #[cfg(not(feature = "sim"))]
            BackendKind::Simulated => Ok(vec![self]),
            _ => (0..Self::count()?).map(Self::open).collect(),
        }
    }

    /// The device that the environment and the machine choose. `variable` reads the environment.
    pub(super) fn choose(
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> std::result::Result<Self, Undetected> {
        let open = |context: &str, simulated: &str| {
            Self::open(0).map_err(|error| {
                let error = error.within(context);
                let gpu = match error.kind() {
                    ErrorKind::NoDriver => GPU,
                    ErrorKind::NoDevice => VISIBLE_GPU,
                    _ => return error,
                };
                error.with_advice(format!("{gpu}; or, for a simulated device, {simulated}"))
            })
        };
        let backend = variable("AQUIFER_BACKEND");
        match backend.as_deref().map(|value| value.to_str().ok_or(value)) {
            Some(Ok("cuda")) => {
                Ok(open("AQUIFER_BACKEND=cuda asks for a GPU", SIMULATED_BY_VARIABLE)?)
            }
            #[cfg(feature = "sim")]
            Some(Ok("sim")) => {
                Ok(Self::simulated(crate::sim::SimConfig::from_variables(variable)?))
            }
            #[cfg(not(feature = "sim"))]
            Some(Ok("sim")) => {
                let what = "AQUIFER_BACKEND is \"sim\", and this build has no simulated device";
                let error = Error::new(ErrorKind::Environment, what);
                Err(error.with_advice("build with the feature `sim`, or unset it").into())
            }
            Some(other) => {
                let other =
                    other.map_or_else(|value| format!("{value:?}"), |text| format!("{text:?}"));
                let what = format!("AQUIFER_BACKEND is {other}, which names no backend");
                let error = Error::new(ErrorKind::Environment, what);
                Err(error.with_advice("set it to `cuda` or to `sim`, or unset it").into())
            }
            None => open("GPU 0 was looked for", SIMULATED)
                .map_err(|error| Undetected { may_simulate: is_missing(&error), error }),
        }
    }
}

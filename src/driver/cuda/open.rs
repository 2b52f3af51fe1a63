//! Opening the driver: the checks that come before any call of cudarc.
//!
//! cudarc panics on a missing library or symbol, and its result type is an enum, for which a code that
//! its bindings do not know is undefined behaviour. So the crate looks for the symbols, initialises the
//! driver and counts the devices itself; these are the calls for which a new driver may have new codes.

use super::context::Restore;
use super::library::{Library, out_param};
use crate::driver::fork::install_handler;
use crate::driver::{ErrorContext, names, not_forked};
use crate::error::{DriverError, Error, ErrorKind, ensure};
use crate::sync::Arc;
use cudarc::driver::CudaContext;

/// The functions that cudarc calls to make, use and drop contexts, streams and events, and those that
/// guard the current context. Without one of them, opening fails.
const NEEDED: &[&str] = &names! {
    cuInit cuGetErrorName cuGetErrorString cuDeviceGet cuDeviceGetCount cuDeviceGetAttribute
    cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuCtxDestroy_v2 cuCtxGetCurrent
    cuCtxSetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxSynchronize cuStreamCreate
    cuStreamDestroy_v2 cuStreamSynchronize cuStreamWaitEvent cuEventCreate cuEventDestroy_v2
    cuEventRecord cuEventSynchronize
};

/// The code of an error of cudarc, whose own `Debug` and `Display` call the driver.
pub(super) fn code_of(error: cudarc::driver::DriverError) -> u32 {
    error.0 as u32
}

/// The driver library, complete and initialised.
pub(super) fn driver() -> Result<&'static Library, Error> {
    not_forked("cuInit").with_context(|| "opening the driver")?;
    install_handler()?;
    let library = Library::get().ok_or_else(|| {
        Error::new(ErrorKind::NoDriver, "no CUDA driver library was found")
            .advise("install the NVIDIA driver, or use the simulated device")
    })?;
    if let Some(missing) = NEEDED.iter().find(|symbol| !library.has(symbol)) {
        return Err(DriverError::new(missing, DriverError::MISSING_SYMBOL))
            .with_context(|| format!("the CUDA driver library has no function {missing}"));
    }
    // SAFETY: 0 is the only valid value.
    match unsafe { library.init(0) } {
        Ok(()) => Ok(library),
        Err(error) => {
            let advice = match error.kind() {
                ErrorKind::NoDriver => {
                    "this library is the toolkit's stub; take its folder off the library path"
                }
                ErrorKind::NoDevice => {
                    "see that the GPU is visible here, or use the simulated device"
                }
                _ => "see that the driver's kernel module and library are of one version",
            };
            Err(Error::driver_call("initialising the CUDA driver", error).advise(advice))
        }
    }
}

/// How many GPUs the driver shows to this process, at least one.
pub(crate) fn device_count() -> Result<usize, Error> {
    let library = driver()?;
    // SAFETY: `count` is writable for the call.
    let count = out_param(|count| unsafe { library.device_get_count(count) });
    let count = usize::try_from(count.with_context(|| "counting the GPUs")?).unwrap_or(0);
    let advice = "see that the GPU is visible here, or use the simulated device";
    ensure!(count > 0, NoDevice, advice, "the CUDA driver is there, a GPU is not");
    Ok(count)
}

/// Makes the context that is current now current again when the guard is dropped, whatever cudarc
/// binds meanwhile.
pub(crate) fn restoring() -> Result<Restore<'static>, Error> {
    Restore::new(driver()?).with_context(|| "asking which context is current")
}

/// The primary context of a GPU. The thread's current context stays what it was.
pub(super) fn primary_context(
    ordinal: usize,
) -> Result<(&'static Library, Arc<CudaContext>), Error> {
    let count = device_count()?;
    // Checked here, since cudarc casts the number to an `i32`.
    ensure!(
        ordinal < count,
        NoDevice,
        "count from 0, and look at CUDA_VISIBLE_DEVICES",
        "GPU {ordinal} was asked for, the driver shows {count}"
    );
    let library = driver()?;
    let opening = || format!("opening GPU {ordinal}");
    let _restore = Restore::new(library).with_context(opening)?;
    let context = CudaContext::new(ordinal)
        .map_err(|error| DriverError::new("cuDevicePrimaryCtxRetain", code_of(error)))
        .with_context(opening)?;
    Ok((library, context))
}

//! The opening of the driver, and the checks that come before any call of cudarc.
//!
//! cudarc panics on a missing library or symbol, and its result type is an enum, for which a code that its bindings do
//! not know is undefined behaviour. So the crate looks for the symbols, initialises the driver and counts the devices
//! itself. These are the calls for which a new driver may have new codes.

use super::context::Restore;
use super::library::{Library, out_param};
use crate::error::{DriverError, Error, ErrorKind, ensure};
use crate::fork::install_handler;
use crate::impls::Count;
use crate::sync::Arc;
use crate::{DriverResult, ErrorContext, call_not_forked, names};
use cudarc::driver::CudaContext;

const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

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
    call_not_forked("cuInit").with_context(|| "opening the CUDA driver")?;
    install_handler()?;
    let library = Library::get().ok_or_else(|| {
        Error::new(
            ErrorKind::NoDriver,
            format!("the CUDA driver library, {LIBRARY}, was not found"),
        )
        .with_advice("install the NVIDIA driver, or take a simulated device")
    })?;
    if let Some(missing) = NEEDED.iter().find(|symbol| !library.has(symbol)) {
        return Err(DriverError::new(missing, DriverError::MISSING_SYMBOL))
            .with_context(|| "opening the CUDA driver");
    }
    // SAFETY: 0 is the only valid value.
    match unsafe { library.init(0) } {
        Ok(()) => Ok(library),
        Err(error) => Err(error).with_context(|| "initialising the CUDA driver"),
    }
}

/// How many GPUs the driver shows to this process, at least one.
pub fn device_count() -> Result<usize, Error> {
    let library = driver()?;
    // SAFETY: `count` is writable for the call.
    let count = out_param(|count| unsafe { library.device_get_count(count) });
    let count = usize::try_from(count.with_context(|| "counting the GPUs")?).unwrap_or(0);
    let advice = "see that a GPU is visible here (CUDA_VISIBLE_DEVICES, a container's --gpus), or take \
                  a simulated device";
    ensure!(count > 0, NoDevice, advice, "the CUDA driver shows no GPU");
    Ok(count)
}

/// Makes the context that is current now current again when the guard is dropped, whatever cudarc
/// binds meanwhile.
pub fn restoring() -> Result<Restore<'static>, Error> {
    Restore::new(driver()?).with_context(|| "asking which context is current")
}

/// The primary context of a GPU, and whether it was there before. The thread's current context stays what it was.
pub(super) fn primary_context(
    ordinal: usize,
) -> Result<(&'static Library, Arc<CudaContext>, bool), Error> {
    let count = device_count()?;
    // Checked here, since cudarc casts the number to an `i32`.
    ensure!(
        ordinal < count,
        NoDevice,
        "count from 0, and look at CUDA_VISIBLE_DEVICES",
        "GPU {ordinal} was asked for, and the driver shows {}",
        Count(count, "GPU")
    );
    let library = driver()?;
    let opening = || format!("opening GPU {ordinal}");
    let _restore = Restore::new(library).with_context(opening)?;
    let was_active = is_primary_context_active(library, ordinal).unwrap_or(true);
    let context = CudaContext::new(ordinal)
        .map_err(|error| DriverError::new("cuDevicePrimaryCtxRetain", code_of(error)))
        .with_context(opening)?;
    Ok((library, context, was_active))
}

fn is_primary_context_active(library: &Library, ordinal: usize) -> DriverResult<bool> {
    // SAFETY: both are writable for the calls; the number is that of a device.
    let device = out_param(|device| unsafe { library.device_get(device, ordinal as i32) })?;
    let mut flags = 0;
    // SAFETY: as above.
    out_param(|active| unsafe {
        library.device_primary_ctx_get_state(device, &raw mut flags, active)
    })
    .map(|active: i32| active != 0)
}

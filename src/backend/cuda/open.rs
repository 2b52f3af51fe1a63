//! Opening the driver: what is there is looked at before cudarc is, which would panic.
//!
//! cudarc makes the contexts and streams, and its calls return an enum that has no place for a
//! number which its bindings do not know. Initialising and counting by our own means first takes
//! the failures that a new driver may have new numbers for.

use super::context::Restore;
use super::library::Library;
use crate::backend::Wanted;
use crate::backend::fork::watch;
use crate::backend::is_forked_child;
use crate::error::{DriverError, Error, ErrorKind};
use crate::sync::Arc;
use cudarc::driver::CudaContext;
use std::ffi::CStr;

/// The functions that cudarc calls when it makes, uses and drops contexts, streams and events, and
/// those that guard the current context. Without one of them nothing starts.
const NEEDED: &[&CStr] = &[
    c"cuInit",
    c"cuGetErrorName",
    c"cuGetErrorString",
    c"cuDeviceGet",
    c"cuDeviceGetCount",
    c"cuDeviceGetAttribute",
    c"cuDevicePrimaryCtxRetain",
    c"cuDevicePrimaryCtxRelease_v2",
    c"cuCtxDestroy_v2",
    c"cuCtxGetCurrent",
    c"cuCtxSetCurrent",
    c"cuCtxPushCurrent_v2",
    c"cuCtxPopCurrent_v2",
    c"cuCtxSynchronize",
    c"cuStreamCreate",
    c"cuStreamDestroy_v2",
    c"cuStreamSynchronize",
    c"cuStreamWaitEvent",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventRecord",
    c"cuEventSynchronize",
];

/// The number behind an error of cudarc. Its own `Debug` and `Display` ask the driver for a text.
pub(super) fn code_of(error: cudarc::driver::DriverError) -> u32 {
    error.0 as u32
}

/// The driver library, complete and initialised.
pub(super) fn driver() -> Result<&'static Library, Error> {
    if is_forked_child() {
        return Err(DriverError::new("cuInit", DriverError::FORKED))
            .wanted(|| "opening the driver");
    }
    watch()?;
    let library = Library::get().ok_or_else(|| {
        Error::new(ErrorKind::NoDriver, "no CUDA driver library was found")
            .advise("install the NVIDIA driver, or use the simulated device")
    })?;
    if let Some(missing) = NEEDED.iter().find(|symbol| !library.has(symbol)) {
        let name = missing.to_str().unwrap_or_default();
        return Err(DriverError::new(name, DriverError::MISSING_SYMBOL))
            .wanted(|| format!("the CUDA driver library has no function {name}"));
    }
    // SAFETY: 0 is the one value that is allowed.
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
    let mut count = 0;
    // SAFETY: `count` is writable for the call.
    unsafe { library.device_get_count(&raw mut count) }.wanted(|| "counting the GPUs")?;
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(Error::new(ErrorKind::NoDevice, "the CUDA driver is there, a GPU is not")
            .advise("see that the GPU is visible here, or use the simulated device")),
    }
}

/// The primary context of a GPU. The thread's current context stays what it was.
pub(super) fn primary_context(
    ordinal: usize,
) -> Result<(&'static Library, Arc<CudaContext>), Error> {
    let count = device_count()?;
    // cudarc casts the number to an `i32`; past the count it has no meaning anyway.
    if ordinal >= count {
        return Err(Error::new(
            ErrorKind::NoDevice,
            format!("GPU {ordinal} was asked for, the driver shows {count}"),
        )
        .advise("count from 0, and look at CUDA_VISIBLE_DEVICES"));
    }
    let library = driver()?;
    let opening = || format!("opening GPU {ordinal}");
    let _restore = Restore::enter(library).wanted(opening)?;
    let context = CudaContext::new(ordinal)
        .map_err(|error| DriverError::new("cuDevicePrimaryCtxRetain", code_of(error)))
        .wanted(opening)?;
    Ok((library, context))
}

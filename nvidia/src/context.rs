//! One primary context, by the names of both.

use crate::error::{refused, theirs};
use aquifer::{Device, ErrorKind, Result};
use cuda_core::Context;
use std::sync::Arc;

/// The device's primary context, as NVIDIA's crates name it. Streams, buffers and modules of theirs that are made of it
/// reach Aquifer's memory.
///
/// Each call retains the context once more, and gives that back with the last clone. As with all calls of theirs, the
/// context is current on the thread afterwards.
///
/// ```no_run
/// let device = aquifer::Device::detect()?;
/// let context = aquifer_nvidia::context(&device)?;
/// assert_eq!(aquifer_nvidia::device(&context)?, device);
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] on a simulated device, and the errors of the driver.
pub fn context(device: &Device) -> Result<Arc<Context>> {
    // Refuses the simulated device, in words of its own.
    device.cuda_context()?;
    let context = Context::new(device.ordinal()).map_err(|error| {
        theirs(
            format!("retaining the primary context of {device}"),
            "cuDevicePrimaryCtxRetain",
            error,
        )
    })?;
    require_same(device, &context)?;
    Ok(context)
}

/// The device whose primary context this is.
///
/// # Errors
///
/// [`ErrorKind::WrongDevice`] for a context that is no primary one, and the errors of [`Device::open`].
pub fn device(context: &Arc<Context>) -> Result<Device> {
    let device = Device::open(context.ordinal())?;
    require_same(&device, context)?;
    Ok(device)
}

/// The error of a context that is not the device's.
pub(crate) fn require_same(device: &Device, context: &Context) -> Result<()> {
    let own = device.cuda_context()?;
    if own.cu_ctx().addr() == context.cu_ctx().addr() {
        return Ok(());
    }
    Err(refused(
        ErrorKind::WrongDevice,
        format!("a context of device {} is not the primary context of {device}", context.ordinal()),
        "take the context from aquifer_nvidia::context",
    ))
}

//! Managed memory that is moved before its use.

use super::handle::Stream;
use crate::driver::{DeviceRange, ErrorContext, MemoryLocation};
use crate::error::{DriverError, Result};
use crate::impls::Count;

/// Moves a range of device memory in the order of the stream, unless it cannot move: its memory does not migrate, the
/// device does not migrate pages on demand, or the stream is in a capture, which a prefetch would invalidate. The caller
/// may be inside of another gate.
///
/// # Errors
///
/// A capture on another thread has the stream, and the errors of the driver.
///
/// # Safety
///
/// The range is a block that is live, and whose free is ordered after this on the stream.
pub unsafe fn prefetch(stream: &Stream, range: DeviceRange, to: MemoryLocation) -> Result<()> {
    let device = stream.device();
    if range.bytes == 0 || !device.properties().concurrent_managed_access {
        return Ok(());
    }
    let entered = stream.begin_nested_call()?;
    if entered.is_capturing()? {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let moved = unsafe { device.driver().prefetch(range, to, entered.raw()) };
    match moved.as_ref().map_err(DriverError::code) {
        Err(DriverError::INVALID_VALUE | DriverError::NOT_SUPPORTED) => Ok(()),
        _ => moved.with_context(|| {
            let target = match to {
                MemoryLocation::Device => device.to_string(),
                MemoryLocation::Host => "the host".to_owned(),
            };
            format!("moving {} to {target}", Count(range.bytes, "byte"))
        }),
    }
}

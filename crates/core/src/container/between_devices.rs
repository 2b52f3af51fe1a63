//! Copies from device memory to device memory, on one device or across two.

use super::host_copy::same_length;
use super::view::{DeviceSlice, DeviceSliceMut};
use crate::driver::{DeviceCopy, ErrorContext, RawCopy};
use crate::error::Result;
use crate::impls::Count;
use crate::order::CapturePolicy;

/// Overwrites `target` with `source`, in the order of the target's home stream.
pub(crate) fn copy<T: DeviceCopy>(
    source: &DeviceSlice<'_, T>,
    target: &mut DeviceSliceMut<'_, T>,
) -> Result<()> {
    same_length(target.len(), source.len())?;
    if source.is_empty() {
        return Ok(());
    }
    let home = target.home();
    let (to, from) = (home.device(), source.home().device());
    let bytes = source.size_in_bytes();
    // First, since the target's home may have to join the capture of the source's; and out of its gate
    // again, since the next step may have to wait for a capture to begin. The order stays.
    drop(source.memory_use().order_across_devices(home)?);
    let call = target.memory_use().order_on(home, CapturePolicy::Join)?;
    // Its pool may have fallen asleep outside of the gate.
    source.memory_use().require_awake()?;
    let copy = RawCopy { target: target.as_device_ptr(), source: source.as_device_ptr(), bytes };
    if to == from {
        // SAFETY: this stream is ordered for both, which stay allocated until it has passed and do not
        // overlap, one being borrowed exclusively.
        unsafe { to.driver().copy_on_device(copy, call.raw()) }
            .with_context(|| format!("copying {} on {to}", Count(bytes, "byte")))
    } else {
        to.driver().enable_peer_copies(from.driver().as_any());
        // SAFETY: as above; the source is memory of the other device.
        unsafe { to.driver().copy_from_peer(copy, from.driver(), call.raw()) }.with_context(|| {
            let to = from.name_of_other(to);
            format!("copying {} from {from} to {to}", Count(bytes, "byte"))
        })
    }
}

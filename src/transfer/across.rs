//! Copies from device memory to device memory, on one device or across two.

use super::enqueue::same_length;
use crate::backend::Wanted;
use crate::container::{DeviceSlice, DeviceSliceMut, lend, lend_across};
use crate::error::Result;
use bytemuck::Pod;

/// Overwrites `target` with `source`, in the order of the target's home stream.
pub(crate) fn copy<T: Pod>(
    source: &DeviceSlice<'_, T>,
    target: &mut DeviceSliceMut<'_, T>,
) -> Result<()> {
    same_length(target.len(), source.len())?;
    if source.is_empty() {
        return Ok(());
    }
    let home = target.home();
    let (to, from) = (home.device(), source.home().device());
    target.debts().pay(home, &target.byte_range(), true)?;
    let bytes = source.size_in_bytes();
    if to == from {
        lend(source.home(), source.debts(), home, source.byte_range(), false)?;
        // SAFETY: both are lent to or at home on this stream, stay allocated until it has passed,
        // and do not overlap, one being borrowed exclusively.
        unsafe {
            to.driver().copy_on_device(
                target.as_device_ptr(),
                source.as_device_ptr(),
                bytes,
                home.raw(),
            )
        }
        .wanted(|| format!("copying {bytes} bytes on {to}"))
    } else {
        lend_across(source.home(), source.debts(), home, source.byte_range())?;
        // SAFETY: as above; the source is memory of the other device.
        unsafe {
            to.driver().copy_from_peer(
                target.as_device_ptr(),
                from.driver(),
                source.as_device_ptr(),
                bytes,
                home.raw(),
            )
        }
        .wanted(|| format!("copying {bytes} bytes from {from} to {to}"))
    }
}

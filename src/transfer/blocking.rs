//! Copies that are complete when they return, of any slice.

use super::enqueue::{same_length, to_device, to_host};
use super::stopped::{Lent, outlives_its_call, synchronize_or_abort};
use crate::container::{DeviceSlice, DeviceSliceMut};
use crate::error::Result;
use crate::stream::graveyard;
use bytemuck::Pod;

/// Overwrites `target` with `source`, on the home stream, and waits.
pub(crate) fn upload<T: Pod>(source: &[T], target: &mut DeviceSliceMut<'_, T>) -> Result<()> {
    same_length(target.len(), source.len())?;
    if source.is_empty() {
        return Ok(());
    }
    graveyard::reap();
    let home = target.home();
    // SAFETY: `source` is borrowed until this function returns, which does not return before the
    // device has stopped reading, or reads for a dead context alone.
    unsafe { to_device(home, target, source.as_ptr())? };
    // Memory that is not page-locked was read before its call returned.
    let lent = || if outlives_its_call(home, source) { Lent::ToRead } else { Lent::No };
    synchronize_or_abort(home, lent)
}

/// Overwrites `target` with `source`, on the home stream, and waits.
pub(crate) fn download<T: Pod>(source: &DeviceSlice<'_, T>, target: &mut [T]) -> Result<()> {
    same_length(target.len(), source.len())?;
    if target.is_empty() {
        return Ok(());
    }
    graveyard::reap();
    let home = source.home();
    let lent = if outlives_its_call(home, target) { Lent::ToWrite } else { Lent::No };
    // SAFETY: `target` is borrowed exclusively until this function returns, which waits for the
    // stream, and does not return before the device has stopped writing.
    unsafe { to_host(home, source, target.as_mut_ptr())? };
    synchronize_or_abort(home, || lent)
}

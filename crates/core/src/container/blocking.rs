//! Copies that are complete when they return, of any slice.

use super::host_copy::{to_device, to_host};
use super::stopped::{HostAccess, outlives_its_call, synchronize_or_abort};
use super::view::{DeviceSlice, DeviceSliceMut};
use crate::driver::DeviceCopy;
use crate::error::Result;
use crate::stream::deferred;
use bytemuck::{AnyBitPattern, NoUninit};
use std::mem::MaybeUninit;

/// Overwrites `target` with `source`, on the home stream, and waits.
pub(crate) fn upload<T: DeviceCopy + NoUninit>(
    source: &[T],
    target: &mut DeviceSliceMut<'_, T>,
) -> Result<()> {
    deferred::collect();
    let home = target.home();
    // SAFETY: `source` is borrowed until this function returns, which does not return before the
    // device has stopped reading, or reads for a dead context alone.
    let copies = unsafe { to_device(home, target, source)? }.map(drop);
    let Some(()) = copies else { return Ok(()) };
    // Memory that is not page-locked was read before its call returned.
    synchronize_or_abort(home, || HostAccess::Read.only_if(outlives_its_call(home, source)))
}

/// Overwrites `target` with `source`, on the home stream, and waits.
pub(crate) fn download<T: DeviceCopy + AnyBitPattern>(
    source: &DeviceSlice<'_, T>,
    target: &mut [T],
) -> Result<()> {
    // SAFETY: `download_uninit` writes values alone, all of which are a `T`.
    download_uninit(source, unsafe { &mut *(std::ptr::from_mut(target) as *mut [MaybeUninit<T>]) })
}

/// Overwrites `target` with the bytes of `source`, on the home stream, and waits. On an error some may be written.
pub(crate) fn download_uninit<T: DeviceCopy>(
    source: &DeviceSlice<'_, T>,
    target: &mut [MaybeUninit<T>],
) -> Result<()> {
    deferred::collect();
    let home = source.home();
    let access = HostAccess::Write.only_if(outlives_its_call(home, target));
    // SAFETY: `target` is borrowed exclusively until this function returns, which waits for the
    // stream, and does not return before the device has stopped writing.
    let copies =
        unsafe { to_host(home, source, std::ptr::from_mut(target) as *mut [T])? }.map(drop);
    let Some(()) = copies else { return Ok(()) };
    synchronize_or_abort(home, || access)
}

//! The copies themselves, as every form of transfer enqueues them.

use crate::backend::Wanted;
use crate::container::{DeviceSlice, DeviceSliceMut, lend};
use crate::error::{Error, ErrorKind, Result};
use crate::stream::Stream;
use bytemuck::Pod;

pub(super) fn same_length(target: usize, source: usize) -> Result<()> {
    if target == source {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::LengthMismatch,
        format!("{source} elements were to be copied to {target}"),
    )
    .advise("copy between ranges of one length; of a host vector, its length counts"))
}

/// Enqueues a copy from the host on `stream`, which the target is lent to.
///
/// # Safety
///
/// `source` is valid for reads of the target's bytes, and the host does not write or free it, until
/// `stream` has passed this call.
pub(super) unsafe fn to_device<T: Pod>(
    stream: &Stream,
    target: &mut DeviceSliceMut<'_, T>,
    source: *const T,
) -> Result<()> {
    stream.refuse_capture("a copy of host memory")?;
    let bytes = target.size_in_bytes();
    lend(target.home(), target.debts(), stream, target.byte_range(), true)?;
    // SAFETY: the target is lent to the stream, and stays allocated until it has passed; the source
    // is the caller's promise.
    unsafe {
        stream.device().driver().copy_to_device(
            target.as_device_ptr(),
            source.cast(),
            bytes,
            stream.raw(),
        )
    }
    .wanted(|| format!("copying {bytes} bytes to the device on {stream}"))
}

/// Enqueues a copy to the host on `stream`, which the source is lent to.
///
/// # Safety
///
/// `target` is valid for writes of the source's bytes, and the host does not touch or free it, until
/// `stream` has passed this call.
pub(super) unsafe fn to_host<T: Pod>(
    stream: &Stream,
    source: &DeviceSlice<'_, T>,
    target: *mut T,
) -> Result<()> {
    stream.refuse_capture("a copy of host memory")?;
    let bytes = source.size_in_bytes();
    lend(source.home(), source.debts(), stream, source.byte_range(), false)?;
    // SAFETY: the source is lent to the stream, and stays allocated until it has passed; the target
    // is the caller's promise.
    unsafe {
        stream.device().driver().copy_to_host(
            target.cast(),
            source.as_device_ptr(),
            bytes,
            stream.raw(),
        )
    }
    .wanted(|| format!("copying {bytes} bytes to the host on {stream}"))
}

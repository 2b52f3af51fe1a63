//! The calls that enqueue a copy, for every form of transfer.

use super::view::{DeviceSlice, DeviceSliceMut};
use crate::driver::{DeviceCopy, ErrorContext, RawCopy};
use crate::error::{Result, ensure};
use crate::impls::Count;
use crate::order::{CapturePolicy, MemoryUse};
use crate::stream::{Patience, Stream, StreamCall};

pub(crate) fn same_length(target: usize, source: usize) -> Result<()> {
    same_number(target, source, "element")
}

/// Returns an error unless a copy has as many of `noun` on both sides.
pub(crate) fn same_number(target: usize, source: usize, noun: &'static str) -> Result<()> {
    let advice = "copy between ranges of one length; of a host vector, its length counts";
    ensure!(
        target == source,
        LengthMismatch,
        advice,
        "a source of {} was to be copied to a target of {}",
        Count(source, noun),
        Count(target, noun)
    );
    Ok(())
}

/// Checks the lengths, and orders `stream` for the device's side of a copy. `None` if there is nothing
/// to copy.
fn begin_copy<'s>(
    stream: &'s Stream,
    memory: MemoryUse<'_>,
    target: usize,
    source: usize,
) -> Result<Option<StreamCall<'s>>> {
    same_length(target, source)?;
    if source == 0 {
        return Ok(None);
    }
    // Memory that is not page-locked is staged, behind what the stream has to do.
    let patience = Patience::new();
    let call = stream.begin_blocking_call(&patience)?;
    let policy = CapturePolicy::Refuse("work on host memory");
    let call = memory.order_in(stream, call, policy, &patience)?;
    // Where the gate had to be left for the home's.
    call.mark_blocking();
    Ok(Some(call))
}

/// Enqueues a copy from the host on `stream`, which is ordered for the target first. No capture begins
/// on the stream before the caller drops the call. `None` if there is nothing to copy.
///
/// # Safety
///
/// `source` is valid for reads, and the host does not write or free it, until `stream` has passed this
/// call.
pub(crate) unsafe fn to_device<'s, T: DeviceCopy>(
    stream: &'s Stream,
    target: &mut DeviceSliceMut<'_, T>,
    source: *const [T],
) -> Result<Option<StreamCall<'s>>> {
    let (address, bytes) = (target.as_device_ptr(), target.size_in_bytes());
    let call = begin_copy(stream, target.memory_use(), target.len(), source.len())?;
    let Some(call) = call else { return Ok(None) };
    let copy = RawCopy { target: address, source: source.cast(), bytes };
    // SAFETY: the stream is ordered for the target, which stays allocated until it has passed; the
    // source is the caller's promise.
    unsafe { stream.device().driver().copy_to_device(copy, call.raw()) }
        .with_context(|| format!("copying {} to the device on {stream}", Count(bytes, "byte")))?;
    Ok(Some(call))
}

/// Enqueues a copy to the host on `stream`, as [`to_device`].
///
/// # Safety
///
/// `target` is valid for writes, and the host does not touch or free it, until `stream` has passed this
/// call.
pub(crate) unsafe fn to_host<'s, T: DeviceCopy>(
    stream: &'s Stream,
    source: &DeviceSlice<'_, T>,
    target: *mut [T],
) -> Result<Option<StreamCall<'s>>> {
    let (address, bytes) = (source.as_device_ptr(), source.size_in_bytes());
    let call = begin_copy(stream, source.memory_use(), target.len(), source.len())?;
    let Some(call) = call else { return Ok(None) };
    let copy = RawCopy { target: target.cast(), source: address, bytes };
    // SAFETY: the stream is ordered for the source, which stays allocated until it has passed; the
    // target is the caller's promise.
    unsafe { stream.device().driver().copy_to_host(copy, call.raw()) }
        .with_context(|| format!("copying {} to the host on {stream}", Count(bytes, "byte")))?;
    Ok(Some(call))
}

//! cudarc's slices, lent to this crate.

use super::cuda_slice::without_stale;
use crate::container::{BorrowedVec, DeviceSlice, DeviceSliceMut};
use crate::debug_log::event;
use crate::driver::cuda::restoring;
use crate::driver::{CallSite, DeviceCopy, ErrorContext};
use crate::error::{DriverError, Result};
use crate::stream::Stream;
use crate::sync::Arc;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, SyncOnDrop,
};
use std::mem::ManuallyDrop;

mod sealed {
    /// By element, since another crate may implement a trait of cudarc's slices for elements of its own.
    pub trait Sealed<T> {}
}
use sealed::Sealed;

/// cudarc's memory to read: a `CudaSlice`, a `CudaView` or a `CudaViewMut`.
pub trait CudaMemory<T>: DevicePtr<T> + Sealed<T> {}

/// cudarc's memory to read and write: a `CudaSlice` or a `CudaViewMut`.
pub trait CudaMemoryMut<T>: DevicePtrMut<T> + CudaMemory<T> {}

impl<T> Sealed<T> for CudaSlice<T> {}
impl<T> Sealed<T> for CudaView<'_, T> {}
impl<T> Sealed<T> for CudaViewMut<'_, T> {}
impl<T> CudaMemory<T> for CudaSlice<T> {}
impl<T> CudaMemory<T> for CudaView<'_, T> {}
impl<T> CudaMemory<T> for CudaViewMut<'_, T> {}
impl<T> CudaMemoryMut<T> for CudaSlice<T> {}
impl<T> CudaMemoryMut<T> for CudaViewMut<'_, T> {}

/// Runs `body` with a view of cudarc's memory, to read. The view has the copies, guards and launches of this crate, at home
/// on the slice's stream.
///
/// When `body` ends or unwinds, that stream comes after all use of the view, whatever was forgotten, and cudarc goes on
/// after that. The host waits where a stream cannot.
///
/// ```no_run
/// use aquifer::{DeviceVec, cudarc::driver::CudaContext, interop};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = CudaContext::new(0)?;
/// let theirs = context.new_stream()?;
/// let mut slice = theirs.clone_htod(&[1_u32, 2, 3, 4])?;
/// interop::lend_mut(&mut slice.slice_mut(1..3), |mut view| view.fill(7))?;
/// let copy = interop::lend(&slice, |view| {
///     let mut copy = DeviceVec::zeroed(view.home(), view.len())?;
///     copy.copy_from(&view)?;
///     Ok(copy)
/// })?;
/// assert_eq!(copy.to_vec()?, [1, 7, 7, 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The error of `body`, or that of the end of the loan ([`BorrowedVec::end`]). Before `body`, the errors of
/// [`Stream::from_cudarc`], those of cudarc's wait for its own use of the slice, and
/// [`ErrorKind::Capture`](crate::ErrorKind::Capture) while the slice's stream is in capture.
///
/// # Aborts
///
/// In the case of [`BorrowedVec::end`].
#[track_caller]
pub fn lend<T: DeviceCopy, R>(
    slice: &impl CudaMemory<T>,
    body: impl FnOnce(DeviceSlice<'_, T>) -> Result<R>,
) -> Result<R> {
    let stream = slice.stream().clone();
    let (home, address, _used) = begin(&stream, || slice.device_ptr(&stream))?;
    // SAFETY: cudarc's slice, borrowed until this function returns or unwinds, which drops the loan first; cudarc has
    // ordered the slice's stream after its own use.
    let lent = unsafe { BorrowedVec::new(&home, address, slice.len())? };
    let done = body(lent.as_slice());
    end(lent, done)
}

/// Like [`lend`], with a view to read and write.
///
/// # Errors
///
/// The errors of [`lend`].
///
/// # Aborts
///
/// In the case of [`lend`].
#[track_caller]
pub fn lend_mut<T: DeviceCopy, R>(
    slice: &mut impl CudaMemoryMut<T>,
    body: impl FnOnce(DeviceSliceMut<'_, T>) -> Result<R>,
) -> Result<R> {
    let (stream, length) = (slice.stream().clone(), slice.len());
    let (home, address, _used) = begin(&stream, || slice.device_ptr_mut(&stream))?;
    // SAFETY: as in `lend`, and borrowed exclusively.
    let mut lent = unsafe { BorrowedVec::new(&home, address, length)? };
    let done = body(lent.as_mut_slice());
    end(lent, done)
}

/// Has cudarc record the use on the slice's stream. The loan is over by then.
struct Used<'a> {
    home: Stream,
    sync: ManuallyDrop<SyncOnDrop<'a>>,
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let sync = unsafe { ManuallyDrop::take(&mut self.sync) };
        let call = self.home.begin_call();
        let call = call.and_then(|call| call.refuse_capture("cudarc's record").map(|()| call));
        match call.and_then(|call| Ok((restoring()?, call))) {
            Ok((_restore, _call)) => drop(sync),
            Err(error) => {
                // A capture has the stream since. Its earlier work is waited for in place of the record.
                std::mem::forget(sync);
                if let Err(failed) = self.home.synchronize_uncaptured() {
                    event!(error, %error, %failed, "cudarc does not know of a use of its slice");
                }
            }
        }
    }
}

/// The stream as this crate's, and the slice's address on it, when cudarc has made it wait for its own uses.
fn begin<'a>(
    stream: &Arc<CudaStream>,
    address: impl FnOnce() -> (u64, SyncOnDrop<'a>),
) -> Result<(Stream, u64, Used<'a>)> {
    let _site = CallSite::enter();
    // cudarc's calls make its context current and leave it so.
    let _restore = restoring()?;
    let home = Stream::from_cudarc(stream)?;
    let call = home.begin_call()?;
    call.refuse_capture("a loan of cudarc's slice")?;
    let context = stream.context();
    let ((address, used), waited) = without_stale(context, || {
        let _no_launch = home.lock_launch_or_wait();
        (address(), context.check_err())
    });
    let used = Used { home: home.clone(), sync: ManuallyDrop::new(used) };
    drop(call);
    waited
        .map_err(|error| DriverError::new("cuStreamWaitEvent", error.0 as u32))
        .with_context(|| "waiting for cudarc's own use of a slice")?;
    Ok((home, address, used))
}

#[track_caller]
fn end<T: DeviceCopy, R>(lent: BorrowedVec<'_, T>, done: Result<R>) -> Result<R> {
    let ended = lent.end();
    done.and_then(|value| ended.map(|()| value))
}

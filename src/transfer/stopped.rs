//! Proving that the device no longer writes a buffer that was borrowed.

use crate::error::Error;
use crate::stream::Stream;

/// Whether a copy into borrowed memory may outlive its call, so that only a wait ends it.
pub(super) fn outlives_its_call<T>(stream: &Stream, target: &[T]) -> bool {
    let driver = stream.device().driver();
    let bytes = target.as_ptr_range();
    // Both ends: a range may be locked in part.
    driver.is_page_locked(bytes.start.cast())
        || driver.is_page_locked(bytes.end.cast::<u8>().wrapping_sub(1))
}

/// Waits until `stream` has done all it was given. Where that fails and the device `may_write`
/// borrowed memory, returns the failure only if the device has surely stopped; else the process
/// ends, since the memory is about to be someone else's.
///
/// The one abort of the crate. It is no mere caution: on an H200 with driver 580, a kernel that
/// faults on one stream makes every later call fail while the copies of other streams go on
/// writing, 10 of 10 times, for as long as any are queued.
pub(super) fn synchronize_or_abort(stream: &Stream, may_write: bool) -> Result<(), Error> {
    let Err(error) = stream.synchronize() else { return Ok(()) };
    if !may_write || stream.device().driver().has_stopped() {
        return Err(error);
    }
    tracing::error!(%stream, %error, "aborting: the device may still write borrowed host memory");
    eprintln!("aquifer: aborting: {stream} may still write borrowed host memory: {error}");
    std::process::abort()
}

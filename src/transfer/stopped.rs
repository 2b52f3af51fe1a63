//! Proving that the device no longer writes a buffer that was borrowed.

use crate::error::Error;
use crate::stream::Stream;

/// Waits until `stream` has done all it was given. Where that fails, returns the failure only if the
/// device has surely stopped writing; else the process ends, since the borrowed memory is about to
/// be someone else's.
///
/// The one abort of the crate.
pub(super) fn synchronize_or_abort(stream: &Stream) -> Result<(), Error> {
    let Err(error) = stream.synchronize() else { return Ok(()) };
    if stream.device().driver().has_stopped() {
        return Err(error);
    }
    tracing::error!(%stream, %error, "aborting: the device may still write borrowed host memory");
    eprintln!("aquifer: aborting: {stream} may still write borrowed host memory: {error}");
    std::process::abort()
}

//! The wait after which borrowed memory is its owner's again, and the proof of it.

use crate::driver::BackendKind;
use crate::error::{Error, ErrorKind, Result};
use crate::stream::{Stream, deferred};
use std::io::Write;

/// How the device may still use borrowed host memory after the calls that were given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HostAccess {
    /// Not at all.
    None,
    /// It may read it.
    Read,
    /// It may write it.
    Write,
}

impl HostAccess {
    /// This access if `condition` holds, else none.
    pub(crate) fn only_if(self, condition: bool) -> Self {
        if condition { self } else { Self::None }
    }
}

/// Whether a copy of borrowed memory may outlive its call, so that only a wait ends it. It may if the memory is
/// page-locked at either end. (Memory that is page-locked in its middle alone would pass as pageable. This crate locks
/// a part of memory that others have by `Registered::read_only` alone, and nobody writes that.)
pub(crate) fn outlives_its_call<T>(stream: &Stream, target: &[T]) -> bool {
    let driver = stream.device().driver();
    let bytes = target.as_ptr_range();
    // Both ends: a range may be locked in part.
    !target.is_empty()
        && (driver.is_page_locked(bytes.start.cast())
            || driver.is_page_locked(bytes.end.cast::<u8>().wrapping_sub(1)))
}

/// Waits until `stream` has done all it was given. A failure is returned only if the borrowed memory may go back to its
/// owner, by the device's `access` to it, which is asked then. Otherwise the process is aborted, since the owner is
/// about to use the memory again.
///
/// No other function of this crate aborts. The abort is no mere caution. On an H200 with driver 580, a kernel that
/// faults on one stream makes every later call fail, while the copies of other streams go on writing. That was seen 10
/// of 10 times, for as long as any copies are queued.
pub(crate) fn synchronize_or_abort(
    stream: &Stream,
    access: impl FnOnce() -> HostAccess,
) -> Result<()> {
    // Not `Stream::synchronize`, which runs destructors of users: nothing may come between a failure
    // and the decision.
    let waited = stream.synchronize_uncaptured();
    if let Err(error) = &waited
        && !may_return(stream, error, access())
    {
        abort(stream, error);
    }
    deferred::collect();
    waited
}

/// Whether memory may go back to its owner though waiting for the device failed. It may if the device has surely
/// stopped, or if a GPU only reads for a dead context, whose results are lost.
pub(crate) fn may_return(stream: &Stream, error: &Error, access: HostAccess) -> bool {
    match access {
        HostAccess::None => true,
        // The device works on the parent's pages, not on this child's copies.
        _ if error.kind() == ErrorKind::Forked => true,
        // A host form would see the owner write behind its `&[T]`: there the device is asked.
        HostAccess::Read
            if error.kind() == ErrorKind::ContextLost
                && stream.device().kind() == BackendKind::Cuda =>
        {
            true
        }
        HostAccess::Read | HostAccess::Write => stream.device().driver().has_stopped(),
    }
}

/// Ends the process unless the device has stopped, after a failure to wait for its uses of memory that was lent. A GPU
/// whose context is lost uses no memory that its owner could see. All of the context's is lost with it, and managed memory is
/// not lent.
pub(super) fn abort_unless_stopped(stream: &Stream, error: &Error) {
    let is_lost =
        error.kind() == ErrorKind::ContextLost && stream.device().kind() == BackendKind::Cuda;
    if !is_lost && error.kind() != ErrorKind::Forked && !stream.device().driver().has_stopped() {
        abort(stream, error);
    }
}

fn abort(stream: &Stream, error: &Error) -> ! {
    /// Aborts also if a closed pipe or a subscriber's fault makes the report panic.
    struct Abort;
    impl Drop for Abort {
        fn drop(&mut self) {
            std::process::abort()
        }
    }
    let _armed = Abort;
    crate::debug_log::event!(error, %stream, %error, "aborting: the device may still use borrowed memory");
    let _ = writeln!(
        std::io::stderr(),
        "aquifer: aborting: {stream} may still use borrowed memory: {error}"
    );
    std::process::abort()
}

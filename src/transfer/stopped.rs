//! Proving that the device no longer uses memory that was borrowed.

use crate::backend::Wanted;
use crate::error::{Error, ErrorKind, Result};
use crate::stream::{Stream, graveyard};
use std::io::Write;

/// How the device may still use borrowed memory after the calls that lent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lent {
    /// Not at all.
    No,
    /// It may read it.
    ToRead,
    /// It may write it.
    ToWrite,
}

/// Whether a copy of borrowed memory may outlive its call, so that only a wait ends it: it is
/// page-locked at either end. (Memory that someone page-locked in its middle alone would pass as
/// pageable; nothing in this crate locks a part of what it does not own.)
pub(super) fn outlives_its_call<T>(stream: &Stream, target: &[T]) -> bool {
    let driver = stream.device().driver();
    let bytes = target.as_ptr_range();
    // Both ends: a range may be locked in part.
    driver.is_page_locked(bytes.start.cast())
        || driver.is_page_locked(bytes.end.cast::<u8>().wrapping_sub(1))
}

/// Waits until `stream` has done all it was given. Where that fails, returns the failure only if
/// what was `lent`, asked then, may go back to its owner; else the process ends, since the memory is about to be
/// someone else's.
///
/// The one abort of the crate. It is no mere caution: on an H200 with driver 580, a kernel that
/// faults on one stream makes every later call fail while the copies of other streams go on
/// writing, 10 of 10 times, for as long as any are queued.
pub(super) fn synchronize_or_abort(stream: &Stream, lent: impl FnOnce() -> Lent) -> Result<()> {
    // Not `Stream::synchronize`, which runs other people's destructors: nothing may come between a
    // failure and the decision.
    let driver = stream.device().driver();
    let waited = driver.stream_synchronize(stream.raw()).wanted(|| format!("waiting for {stream}"));
    if let Err(error) = &waited
        && !may_go_back(stream, error, lent())
    {
        abort(stream, error);
    }
    graveyard::reap();
    waited
}

/// Whether memory may go back to its owner though waiting for the device failed: the device has
/// surely stopped, or it only reads, for a context that is dead and whose results nobody will see.
pub(super) fn may_go_back(stream: &Stream, error: &Error, lent: Lent) -> bool {
    match lent {
        Lent::No => true,
        // The device works on the parent's pages, not on this child's copies.
        _ if error.kind() == ErrorKind::Forked => true,
        Lent::ToRead if error.kind() == ErrorKind::ContextLost => true,
        Lent::ToRead | Lent::ToWrite => stream.device().driver().has_stopped(),
    }
}

fn abort(stream: &Stream, error: &Error) -> ! {
    /// Even if saying why panics: a closed pipe, a subscriber's fault.
    struct Abort;
    impl Drop for Abort {
        fn drop(&mut self) {
            std::process::abort()
        }
    }
    let _armed = Abort;
    crate::debug_log::event!(error, %stream, %error, "aborting: the device may still use borrowed host memory");
    let _ = writeln!(
        std::io::stderr(),
        "aquifer: aborting: {stream} may still use borrowed host memory: {error}"
    );
    std::process::abort()
}

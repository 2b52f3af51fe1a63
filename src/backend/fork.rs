//! A process that was forked after the driver was opened cannot use it: not one call.
//!
//! The driver's own state is half copied then, and a call may hang instead of failing. So the
//! child is told by the system itself, through `pthread_atfork`, and every call looks first.

use crate::error::{DriverError, Error};
use crate::sync::OnceLock;
use crate::sync::trusted::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

/// What else happens in a child before anything does.
static FORGET: OnceLock<fn()> = OnceLock::new();

/// Whether this process is a fork of the one that opened the driver.
#[inline]
pub(crate) fn is_forked_child() -> bool {
    // Relaxed: the child starts with one thread, and the handler ran in it before anything else.
    FORKED.load(Ordering::Relaxed)
}

/// The error of `call` in the child of a fork, before it takes a lock that the parent may have held.
pub(crate) fn not_forked(call: &'static str) -> Result<(), DriverError> {
    if is_forked_child() { Err(DriverError::new(call, DriverError::FORKED)) } else { Ok(()) }
}

#[cfg(unix)]
extern "C" fn in_child() {
    // Nothing but stores is allowed here: any lock may be held by a thread that is not there. The
    // system's own are not, when it calls its handlers: where it makes the thread locals of a library
    // at the first access, it may do so here.
    FORKED.store(true, Ordering::Relaxed);
    if let Some(forget) = FORGET.get() {
        forget();
    }
}

/// Lets every child that is forked from now on begin with `forget`, on the one thread that it has: so
/// the parent's warm ways need not ask whether they are a child's. One function for the whole
/// program; it takes no lock and allocates nothing.
pub(crate) fn forget_in_child(forget: fn()) {
    let _ = FORGET.set(forget);
}

/// Asks the system to mark every child from here on. Called before the driver is.
pub(crate) fn watch() -> Result<(), Error> {
    #[cfg(unix)]
    {
        static WATCHED: OnceLock<i32> = OnceLock::new();
        let code = *WATCHED.get_or_init(|| {
            // SAFETY: `in_child` does what a handler may: it stores to memory that is there. Where it
            // is part of a library that is unloaded, the system forgets it with the library.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) }
        });
        if code != 0 {
            return Err(Error::new(
                crate::error::ErrorKind::OutOfMemory,
                "the system has no room to register a fork handler",
            )
            .advise("without it a forked child could hang in the driver"));
        }
    }
    Ok(())
}

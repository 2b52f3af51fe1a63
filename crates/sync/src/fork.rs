//! Marks a process that was forked after a device was opened, where no driver call may be made and no lock of the parent
//! taken.
//!
//! A `pthread_atfork` handler marks the child, and every call checks the mark first.

use crate::OnceLock;
use crate::trusted::{AtomicU8, Ordering};

/// Why a thread of this process may not call the driver: one word, so that a call checks all reasons by one load.
static REASONS: AtomicU8 = AtomicU8::new(0);

/// The process is a fork of the one that opened the driver.
const FORKED: u8 = 1;

/// The process has launched host functions, so that a thread may be inside of one.
const HOST_FUNCTIONS: u8 = 2;

/// Called in a child after the mark is set.
static FORGET: OnceLock<fn()> = OnceLock::new();

/// Whether this process is a fork of the one that opened the driver.
#[inline]
pub fn is_forked_child() -> bool {
    // Relaxed: the child starts with one thread, on which the handler ran before any other code.
    REASONS.load(Ordering::Relaxed) & FORKED != 0
}

/// Whether a thread of this process may be one that may not call the driver, of which a thread asks itself.
#[inline]
pub fn is_any_reason() -> bool {
    // Relaxed: as above; and a host function runs behind the call that launched it.
    REASONS.load(Ordering::Relaxed) != 0
}

/// Notes that host functions may run from here on.
pub(crate) fn note_host_functions() {
    // Relaxed: as above. Not a store, which could undo that of the handler.
    REASONS.fetch_or(HOST_FUNCTIONS, Ordering::Relaxed);
}

#[cfg(unix)]
extern "C" fn in_child() {
    // Only stores and the like are allowed here: any lock may be held by a thread that the child does not have. The
    // system's own locks are free when it calls its handlers, so it may create the thread locals of a
    // library here.
    REASONS.fetch_or(FORKED, Ordering::Relaxed);
    if let Some(forget) = FORGET.get() {
        forget();
    }
}

/// Sets the function that every later child calls first, on its only thread, so that hot paths need
/// not check for a fork. There is one such function; it takes no lock and does not allocate.
#[doc(hidden)]
pub fn forget_in_child(forget: fn()) {
    let _ = FORGET.set(forget);
}

/// Installs the handler that marks every later child. Returns whether the system had room for it.
#[must_use]
pub fn install_handler() -> bool {
    #[cfg(unix)]
    {
        static INSTALLED: OnceLock<i32> = OnceLock::new();
        let code = *INSTALLED.get_or_init(|| {
            // SAFETY: `in_child` only stores, which a handler may. If it is part of a library that is
            // unloaded, the system removes it with the library.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) }
        });
        code == 0
    }
    #[cfg(not(unix))]
    true
}

//! Marks a process that was forked after a device was opened, where no driver call may be made and no lock of the parent
//! taken.
//!
//! A `pthread_atfork` handler marks the child, and every call checks the mark first.

use crate::OnceLock;
use crate::trusted::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

/// Called in a child after the mark is set.
static FORGET: OnceLock<fn()> = OnceLock::new();

/// Whether this process is a fork of the one that opened the driver.
#[inline]
pub fn is_forked_child() -> bool {
    // Relaxed: the child starts with one thread, on which the handler ran before any other code.
    FORKED.load(Ordering::Relaxed)
}

#[cfg(unix)]
extern "C" fn in_child() {
    // Only stores are allowed here: any lock may be held by a thread that the child does not have. The
    // system's own locks are free when it calls its handlers, so it may create the thread locals of a
    // library here.
    FORKED.store(true, Ordering::Relaxed);
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

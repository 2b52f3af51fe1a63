//! Marks a process that was forked after a device was opened, where no driver call may be made.
//!
//! The driver's state is only partly copied by a fork, and a call may hang instead of failing. A
//! `pthread_atfork` handler marks the child, and every call checks the mark first.

use crate::error::{DriverError, Error, ErrorKind, FORKED_ADVICE};
use crate::sync::OnceLock;
use crate::sync::trusted::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

/// Called in a child after the mark is set.
static FORGET: OnceLock<fn()> = OnceLock::new();

/// Whether this process is a fork of the one that opened the driver.
#[inline]
pub(crate) fn is_forked_child() -> bool {
    // Relaxed: the child starts with one thread, on which the handler ran before any other code.
    FORKED.load(Ordering::Relaxed)
}

/// The error of `call`, a function of the driver's, in the child of a fork. Checked before any lock,
/// which a thread of the parent may have held at the fork.
pub(crate) fn call_not_forked(call: &'static str) -> Result<(), DriverError> {
    if is_forked_child() { Err(DriverError::new(call, DriverError::FORKED)) } else { Ok(()) }
}

/// The error of using `what`, a thing of this crate, in the child of a fork.
pub(crate) fn not_forked(what: &str) -> Result<(), Error> {
    if is_forked_child() { Err(forked(what)) } else { Ok(()) }
}

#[cold]
fn forked(what: &str) -> Error {
    let what =
        format!("{what} was to be used in the child of a fork, whose parent had opened a device");
    Error::new(ErrorKind::Forked, what).with_advice(FORKED_ADVICE)
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
pub(crate) fn forget_in_child(forget: fn()) {
    let _ = FORGET.set(forget);
}

/// Installs the handler that marks every later child. Called before the driver is opened.
pub(crate) fn install_handler() -> Result<(), Error> {
    #[cfg(unix)]
    {
        static INSTALLED: OnceLock<i32> = OnceLock::new();
        let code = *INSTALLED.get_or_init(|| {
            // SAFETY: `in_child` only stores, which a handler may. If it is part of a library that is
            // unloaded, the system removes it with the library.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) }
        });
        crate::error::ensure!(
            code == 0,
            OutOfMemory,
            "free host memory; without the handler a forked child could hang in the driver",
            "the system has no room to register a fork handler"
        );
    }
    Ok(())
}

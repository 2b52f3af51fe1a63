//! Whether this is the child of a fork, where no call may be made: a thread of the parent may hold the locks on the way.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Has a child know that it is one, from the first device on.
pub(crate) fn install_handler() {
    static INSTALLED: Once = Once::new();

    extern "C" fn in_child() {
        IS_CHILD.store(true, Ordering::Relaxed);
        crate::cache::forget_in_child();
    }

    INSTALLED.call_once(|| {
        #[cfg(unix)]
        // SAFETY: the handler stores a flag, which is safe in the child of a process with threads. Where there is no
        // room for it, a child is merely not recognised here.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        }
        #[cfg(not(unix))]
        let _ = in_child;
    });
}

#[inline]
pub(crate) fn is_child() -> bool {
    // Relaxed: a child has one thread, which has set it.
    IS_CHILD.load(Ordering::Relaxed)
}

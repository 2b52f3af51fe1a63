//! Whether the calling thread is inside of a handler's function.

use crate::sync::trusted::thread_local;
use std::cell::Cell;

thread_local! {
    /// Functions of handlers that the calling thread is inside of.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, the default handler is current on the thread that made it. So a handler whose
/// function allocates from the current handler does not call itself.
pub(super) struct Inside(());

impl Inside {
    #[inline]
    pub(super) fn enter() -> Self {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Self(())
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

#[inline]
pub(super) fn is_inside() -> bool {
    DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

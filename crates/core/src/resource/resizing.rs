//! The purpose of a change of a block's size, which its arguments do not say.

use crate::sync::trusted::thread_local;
use std::cell::Cell;

/// The purpose of [`resize_in_place`](crate::DeviceResource::resize_in_place), on the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The caller needs it.
    Needed,
    /// The caller goes on without it. So nothing waits for it, and no callback is asked.
    Wish,
    /// It takes back what the same thread has just added, which no work and no graph uses.
    Undo,
}

thread_local! {
    static PURPOSE: Cell<Purpose> = const { Cell::new(Purpose::Needed) };
}

impl Purpose {
    #[doc(hidden)]
    pub fn current() -> Self {
        PURPOSE.get()
    }

    /// Sets the purpose of calls on this thread while `call` runs.
    #[doc(hidden)]
    pub fn of<R>(self, call: impl FnOnce() -> R) -> R {
        struct Restore(Purpose);
        impl Drop for Restore {
            fn drop(&mut self) {
                PURPOSE.set(self.0);
            }
        }
        let _restore = Restore(PURPOSE.replace(self));
        call()
    }
}

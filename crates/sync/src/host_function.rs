//! Marks a thread that is inside of a host function, which a stream runs after its work. There the driver may not be
//! called, and no lock may be taken that another thread has over a driver call. Such a call may wait for the stream, and
//! the stream for the function.
//!
//! The mark is the thread's. So the warm path of a pool does not check it: the thread of a driver has no magazines, since
//! the slow path makes none there.

use crate::fork::{is_any_reason, note_host_functions};
use crate::trusted::thread_local;
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The guard of a host function that runs on this thread.
#[must_use]
#[derive(Debug)]
pub struct Inside {
    /// Whether the thread was inside of one before.
    before: bool,
    thread: PhantomData<*const ()>,
}

/// Marks the thread until the guard is dropped.
pub fn enter() -> Inside {
    note_host_functions();
    Inside { before: INSIDE.replace(true), thread: PhantomData }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.before);
    }
}

/// Whether the calling thread is inside of a host function.
#[inline]
pub fn is_inside() -> bool {
    is_any_reason() && INSIDE.get()
}

/// Whether the calling thread may not call the driver, since it is inside of a host function, or in the child of a fork.
/// One load, in a process that has neither.
#[inline]
pub fn may_not_call() -> bool {
    is_any_reason() && may_not_call_now()
}

#[cold]
fn may_not_call_now() -> bool {
    INSIDE.get() || crate::fork::is_forked_child()
}

#[cfg(test)]
mod tests {
    use super::{enter, is_inside, may_not_call};

    #[test]
    fn the_mark_is_the_threads_own_and_nests() {
        assert!(!is_inside() && !may_not_call());
        let outer = enter();
        let inner = enter();
        assert!(std::thread::spawn(|| !is_inside() && !may_not_call()).join().unwrap());
        drop(inner);
        assert!(is_inside() && may_not_call());
        drop(outer);
        assert!(!is_inside() && !may_not_call());
    }
}

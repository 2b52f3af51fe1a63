//! The end of a device's default pool. Programs on a GPU never see it, since the process keeps that pool.

use crate::sync::trusted::thread_local;
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as ending the default pool of a simulated device, until it is dropped. The pool waits for
/// all work that used its memory. The outcome of that wait is the pools' alone, as with
/// [`event_query_for_pool`](crate::RegionCalls::event_query_for_pool). It would otherwise order work of the user's that
/// nothing orders on a GPU.
#[must_use = "dropped at once, it does nothing"]
#[derive(Debug)]
pub struct DefaultPoolEnd {
    before: bool,
    /// Keeps the guard on its thread.
    stays: PhantomData<*const ()>,
}

impl DefaultPoolEnd {
    /// Marks the calling thread from now on.
    pub fn enter() -> Self {
        Self { before: IS_HERE.replace(true), stays: PhantomData }
    }

    /// Whether the calling thread ends a default pool.
    pub fn is_here() -> bool {
        IS_HERE.get()
    }
}

impl Drop for DefaultPoolEnd {
    fn drop(&mut self) {
        IS_HERE.set(self.before);
    }
}

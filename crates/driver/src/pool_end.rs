//! The end of a device's default pool, which programs on a GPU never see: the process keeps that pool.

use crate::sync::trusted::thread_local;
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread ends the default pool of a simulated device until this is dropped. The pool waits for all
/// work that used its memory. As with a question of a pool
/// ([`event_query_for_pool`](crate::RegionCalls::event_query_for_pool)), what that tells is the
/// pools' alone: it would order work of the user's that nothing orders on a GPU.
#[must_use = "dropped at once, it does nothing"]
#[derive(Debug)]
pub struct DefaultPoolEnd {
    before: bool,
    /// It is the thread's.
    stays: PhantomData<*const ()>,
}

impl DefaultPoolEnd {
    /// From now on.
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

//! Which context is current on the calling thread, and that it is the caller's again afterwards.

use super::library::{Handle, Library};
use crate::backend::DriverResult;
use std::marker::PhantomData;

/// Keeps a guard on the thread whose stack it changed.
type OnThisThread = PhantomData<*const ()>;

/// Makes a context current until it is dropped.
///
/// Costs one cheap call where the context is current already. cudarc's `bind_to_thread` is no
/// substitute: it returns an old error before it binds, and never restores.
#[derive(Debug)]
pub(super) struct Current<'a> {
    library: &'a Library,
    pushed: bool,
    thread: OnThisThread,
}

impl<'a> Current<'a> {
    #[inline]
    pub(super) fn enter(library: &'a Library, context: Handle) -> DriverResult<Self> {
        if current(library)? == context {
            return Ok(Self { library, pushed: false, thread: PhantomData });
        }
        // SAFETY: the caller's driver holds a reference on the context, so it lives.
        unsafe { library.ctx_push_current(context) }?;
        Ok(Self { library, pushed: true, thread: PhantomData })
    }
}

impl Drop for Current<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = 0;
            // An error here means that the driver is gone, and its stack with it.
            // SAFETY: `enter` pushed on this very thread, which the guard cannot leave.
            let _ = unsafe { self.library.ctx_pop_current(&raw mut popped) };
        }
    }
}

/// Puts the context that was current back when it is dropped.
///
/// For calls that set the current context, or destroy it: there a pushed entry is popped twice.
#[derive(Debug)]
pub(super) struct Restore<'a> {
    library: &'a Library,
    before: Handle,
    thread: OnThisThread,
}

impl<'a> Restore<'a> {
    pub(super) fn enter(library: &'a Library) -> DriverResult<Self> {
        Ok(Self { library, before: current(library)?, thread: PhantomData })
    }
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        if current(self.library).is_ok_and(|now| now != self.before) {
            // Null takes the entry off the stack that the call in between put on an empty one.
            // SAFETY: the context was current before, so its owner keeps it alive.
            let _ = unsafe { self.library.ctx_set_current(self.before) };
        }
    }
}

/// The calling thread's current context, 0 where there is none.
#[inline]
pub(super) fn current(library: &Library) -> DriverResult<Handle> {
    let mut context = 0;
    // SAFETY: `context` is writable for the call.
    unsafe { library.ctx_get_current(&raw mut context) }?;
    Ok(context)
}

/// Lets the calling thread make calls that a capture elsewhere would refuse, until it is dropped.
///
/// While another thread captures in global mode, the driver refuses allocations, frees and event
/// queries of every thread, and the capture is lost with them. None of these calls of ours depends
/// on the captured stream.
#[derive(Debug)]
pub(super) struct Relaxed<'a> {
    library: &'a Library,
    before: Option<u32>,
    thread: OnThisThread,
}

impl<'a> Relaxed<'a> {
    pub(super) fn enter(library: &'a Library) -> Self {
        const RELAXED: u32 = 2;
        let mut mode = RELAXED;
        // A driver without this function has no global mode either, so there is nothing to do.
        // SAFETY: `mode` is read and written for the call.
        let exchanged = unsafe { library.thread_exchange_capture_mode(&raw mut mode) };
        Self { library, before: exchanged.is_ok().then_some(mode), thread: PhantomData }
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: `mode` is what the driver gave in `enter`, on this very thread.
            let _ = unsafe { self.library.thread_exchange_capture_mode(&raw mut mode) };
        }
    }
}

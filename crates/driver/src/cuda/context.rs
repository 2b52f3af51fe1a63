//! Guards that change the calling thread's current context or capture mode, and restore it. Calls under a guard are
//! made through it.

use super::library::{Handle, Library, out_param};
use crate::DriverResult;
use crate::sync::Arc;
use crate::sync::trusted::thread_local;
use cudarc::driver::CudaContext;
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;

/// Keeps a guard on its thread, whose context stack it changes.
type OnThisThread = PhantomData<*const ()>;

/// Makes a context current until the guard is dropped.
///
/// A guard costs one cheap driver call if the context is current already, and none inside of another guard of that
/// context. cudarc's `bind_to_thread` cannot be used for this, since it returns an old error before it binds, and does
/// not restore.
pub(super) struct Current<'a> {
    library: &'a Library,
    pushed: bool,
    outer: Handle,
    thread: OnThisThread,
}

thread_local! {
    /// The context of the thread's innermost guard, or 0 without one.
    static GUARDED: Cell<Handle> = const { Cell::new(0) };
}

impl<'a> Current<'a> {
    #[inline]
    pub(super) fn new(library: &'a Library, context: Handle) -> DriverResult<Self> {
        let outer = GUARDED.get();
        let pushed = outer != context && current(library)? != context;
        if pushed {
            // SAFETY: the caller's driver holds a reference on the context, so it lives.
            unsafe { library.ctx_push_current(context) }?;
        }
        GUARDED.set(context);
        Ok(Self { library, pushed, outer, thread: PhantomData })
    }
}

impl Deref for Current<'_> {
    type Target = Library;

    #[inline]
    fn deref(&self) -> &Library {
        self.library
    }
}

impl Drop for Current<'_> {
    #[inline]
    fn drop(&mut self) {
        GUARDED.set(self.outer);
        if self.pushed {
            let mut popped = 0;
            // An error here means that the driver is gone, and its stack with it.
            // SAFETY: `new` pushed on this thread, which the guard cannot leave.
            let _ = unsafe { self.library.ctx_pop_current(&raw mut popped) };
        }
    }
}

/// Makes the former context current again when it is dropped.
///
/// For calls that set or destroy the current context, where a [`Current`] would pop twice.
pub struct Restore<'a> {
    library: &'a Library,
    before: Handle,
    thread: OnThisThread,
}

impl<'a> Restore<'a> {
    pub(super) fn new(library: &'a Library) -> DriverResult<Self> {
        Ok(Self { library, before: current(library)?, thread: PhantomData })
    }
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        if current(self.library).is_ok_and(|now| now != self.before) {
            // Null removes the entry that the call in between pushed on an empty stack.
            // SAFETY: the context was current before, so its owner keeps it alive.
            let _ = unsafe { self.library.ctx_set_current(self.before) };
        }
    }
}

/// The calling thread's current context, or 0 if there is none.
#[inline]
pub(super) fn current(library: &Library) -> DriverResult<Handle> {
    // SAFETY: `context` is writable for the call.
    out_param(|context| unsafe { library.ctx_get_current(context) })
}

thread_local! {
    /// Whether the thread was seen with a context of its program current.
    static HAS_CONTEXT: Cell<bool> = const { Cell::new(false) };
}

/// Whether the thread has some context current. The thread is asked until it has one. If its program takes the last one
/// away, this still says so.
#[inline]
pub(super) fn has_context(library: &Library) -> DriverResult<bool> {
    if !HAS_CONTEXT.get() {
        HAS_CONTEXT.set(current(library)? != 0);
    }
    Ok(HAS_CONTEXT.get())
}

/// Puts the calling thread in relaxed capture mode until the guard is dropped.
///
/// While another thread captures in global mode, the driver refuses allocations, frees and event
/// queries of every thread that is not in this mode, and invalidates the capture. It does the same with stream-ordered
/// frees (ml-explore/mlx, pull request 2850), on whatever stream. The crate's calls of this kind do not depend on the
/// captured stream.
pub(super) struct Relaxed<L: Deref<Target = Library>> {
    library: L,
    before: Option<u32>,
    thread: OnThisThread,
}

impl<L: Deref<Target = Library>> Relaxed<L> {
    pub(super) fn new(library: L) -> Self {
        const RELAXED: u32 = 2;
        let mut mode = RELAXED;
        // A driver without this function has no global mode either.
        // SAFETY: `mode` is read and written for the call.
        let exchanged = unsafe { library.thread_exchange_capture_mode(&raw mut mode) };
        let before = exchanged.ok().map(|()| mode).filter(|before| *before != RELAXED);
        Self { library, before, thread: PhantomData }
    }
}

impl<L: Deref<Target = Library>> Deref for Relaxed<L> {
    type Target = Library;

    #[inline]
    fn deref(&self) -> &Library {
        &self.library
    }
}

impl<L: Deref<Target = Library>> Drop for Relaxed<L> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: `mode` is the one that the driver returned in `new`, on this thread.
            let _ = unsafe { self.library.thread_exchange_capture_mode(&raw mut mode) };
        }
    }
}

/// Keeps a context alive, and does not change the current context when it is dropped.
///
/// cudarc's own drop makes the context current to release it, and does not restore.
pub(super) struct RetainedContext {
    library: &'static Library,
    context: ManuallyDrop<Arc<CudaContext>>,
}

impl RetainedContext {
    pub(super) fn new(library: &'static Library, context: Arc<CudaContext>) -> Self {
        Self { library, context: ManuallyDrop::new(context) }
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

impl Drop for RetainedContext {
    fn drop(&mut self) {
        // In a forked child, or after the driver was unloaded at the end of the process, no call is
        // allowed and nothing is left to release: the reference is leaked.
        if let Ok(_restore) = Restore::new(self.library) {
            // SAFETY: the field is not used after this, and dropped here alone.
            unsafe { ManuallyDrop::drop(&mut self.context) };
        }
    }
}

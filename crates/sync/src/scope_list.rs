//! What is current for one thread during a call, or for one task during its polls.
//!
//! Each thread has a list of frames, the innermost scope's first. Plain calls leave their scopes in the
//! order of a stack. Coroutines, which safe code can switch between inside of a scope, leave theirs in
//! any order, on any thread, or never. So the scope and the list each own a reference to the frame.
//!
//! | frame | in the list | `ended` | references |
//! |---|---|---|---|
//! | entered | yes | no | scope, list |
//! | left on its thread | no | yes | scope, until it is dropped |
//! | left on another thread | until its thread leaves another scope | yes | list |
//! | never left, or its thread ended first | yes | any | list, for good |
//!
//! - INV-1: only its own thread reads or writes a list: `innermost` and the `outer` of its frames.
//! - INV-2: a list owns one reference to each of its frames, until `take_ended` returns it.
//! - INV-3: only frames of scopes that have not ended are current.
//!
//! A list has no destructor, so it outlives thread locals that have one, and without a scope a look at
//! it is one load. For the same reason nothing frees the list of a thread that ends.

use super::{Arc, LocalKey};
// loom models neither `Arc` nor, therefore, writes up to the drop of its last reference.
use super::trusted::{AtomicBool, Ordering};
use std::cell::Cell;
use std::pin::Pin;
use std::ptr::null;
use std::task::{Context, Poll};

/// An entered scope, in the list of the thread that entered it.
struct Frame<T> {
    value: Arc<T>,
    /// The next frame of the list.
    outer: Cell<*const Self>,
    ended: AtomicBool,
}

// SAFETY: all fields but `outer` may be shared where `T` may; INV-1 keeps `outer` to one thread.
unsafe impl<T: Send + Sync> Send for Frame<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Frame<T> {}

impl<T> Frame<T> {
    // Relaxed: the flag publishes nothing else. A program that leaves a scope elsewhere and tells the
    // scope's thread so orders the flag by that.
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

/// The scopes that the calling thread is in. Each use has a thread local of its own.
pub struct ScopeList<T: 'static> {
    /// The first frame of the calling thread's list, or null.
    innermost: Cell<*const Frame<T>>,
}

pub type ScopeKey<T> = LocalKey<ScopeList<T>>;

const _: () = assert!(!std::mem::needs_drop::<ScopeList<Arc<()>>>());

impl<T: Send + Sync> ScopeList<T> {
    pub const fn new() -> Self {
        Self { innermost: Cell::new(null()) }
    }

    /// The value of the calling thread's innermost scope that `wanted` takes.
    #[inline]
    pub fn innermost(key: &'static ScopeKey<T>, wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let frame = key.try_with(|list| list.innermost.get()).ok()?;
        if frame.is_null() { None } else { Self::find(frame, wanted) }
    }

    #[cold]
    fn find(mut frame: *const Frame<T>, wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        // SAFETY: the list owns its frames (INV-2), and nothing here takes one out.
        while let Some(scope) = unsafe { frame.as_ref() } {
            if !scope.has_ended() && wanted(&scope.value) {
                return Some(scope.value.clone());
            }
            frame = scope.outer.get();
        }
        None
    }

    /// Runs `body` in a scope of `value` on the calling thread.
    pub fn run<R>(key: &'static ScopeKey<T>, value: &Arc<T>, body: impl FnOnce() -> R) -> R {
        let _scope = EnteredScope::enter(key, value.clone());
        body()
    }

    pub fn is_empty(&self) -> bool {
        self.innermost.get().is_null()
    }
}

impl<T: Send + Sync> Default for ScopeList<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// An entered scope. Its drop leaves it, on whatever thread, also when the body unwinds.
pub struct EnteredScope<T: Send + Sync + 'static> {
    key: &'static ScopeKey<T>,
    frame: Arc<Frame<T>>,
}

impl<T: Send + Sync> EnteredScope<T> {
    // Neither this nor `leave` is inlined: the compiler would keep the address of a thread local over
    // the body, in which a coroutine may move to another thread.
    #[inline(never)]
    pub fn enter(key: &'static ScopeKey<T>, value: Arc<T>) -> Self {
        let frame =
            Arc::new(Frame { value, outer: Cell::new(null()), ended: AtomicBool::new(false) });
        let listed = frame.clone();
        // On systems without plain thread locals, an ending thread may have dropped this one: then the
        // body runs without the scope.
        let _ = key.try_with(|list| {
            frame.outer.set(list.innermost.get());
            list.innermost.set(Arc::into_raw(listed));
        });
        Self { key, frame }
    }

    #[inline(never)]
    fn leave(&self) {
        self.frame.ended.store(true, Ordering::Relaxed);
        // Dropped one at a time, outside of the list: the drop of a value may enter scopes.
        while let Some(ended) = take_ended(self.key) {
            drop(ended);
        }
    }
}

impl<T: Send + Sync> Drop for EnteredScope<T> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A future that is polled in a scope of its value, on whatever thread. It is in no scope while it waits, nor as it is
/// dropped.
#[must_use = "a future does nothing unless it is polled"]
pub struct PolledInScope<T: Send + Sync + 'static, F> {
    key: &'static ScopeKey<T>,
    value: Arc<T>,
    future: F,
}

impl<T: Send + Sync, F> PolledInScope<T, F> {
    pub fn new(key: &'static ScopeKey<T>, value: Arc<T>, future: F) -> Self {
        Self { key, value, future }
    }
}

// No `async fn`, whose future would have the size of two of `F`.
impl<T: Send + Sync, F: Future> Future for PolledInScope<T, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let (key, value) = (self.key, self.value.clone());
        // SAFETY: structural pinning: nothing moves the future, and the type has no `Drop` and no `Unpin` of its own.
        let future = unsafe { self.map_unchecked_mut(|this| &mut this.future) };
        ScopeList::run(key, &value, || future.poll(context))
    }
}

/// Takes the first frame whose scope has ended out of the calling thread's list.
fn take_ended<T: Send + Sync>(key: &'static ScopeKey<T>) -> Option<Arc<Frame<T>>> {
    let first_ended = |list: &ScopeList<T>| {
        let mut link = &list.innermost;
        // SAFETY: the list owns its frames (INV-2), and only this thread takes one out (INV-1).
        while let Some(frame) = unsafe { link.get().as_ref() } {
            if frame.has_ended() {
                let listed = link.replace(frame.outer.get());
                // SAFETY: from `Arc::into_raw` in `enter`; the list has given up its reference.
                return Some(unsafe { Arc::from_raw(listed) });
            }
            link = &frame.outer;
        }
        None
    };
    key.try_with(first_ended).ok().flatten()
}

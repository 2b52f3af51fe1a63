//! Drops that wait for the device.
//!
//! Memory whose owner is gone while the device may still use it is deferred, with the event behind that use, so that no
//! thread blocks. Later calls of the crate, on any stream, drop the memory that the device has passed. The queues are
//! the process's, since a deferred buffer holds its stream. A queue inside of that stream would keep both alive for
//! good.
//!
//! What is dropped inside of a host function, where the driver may not be called, is deferred without an event.
//!
//! # State table
//!
//! | state of a drop | held by | becomes |
//! | --- | --- | --- |
//! | queued | the queue, counted | asked, when a `collect` takes it out |
//! | asked | the thread in `collect`, counted | queued (`NotYet`), ready (`Yes`) or lost (`Never`) |
//! | ready | the caller of `collect` | dropped, outside of the lock |
//! | lost | the caller of `collect` | leaked: the device may still write the memory |
//!
//! - `INV-1`. One thread at a time asks about a drop, and exactly one gets it.
//! - `INV-2`. The `count` is raised under the lock under which the drop is queued, so it never falls below 0.
//! - `INV-3`. The lock is held over no question and no drop, since both may defer more.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use crate::debug_log::{emit_deferred, event};
use crate::driver::NoCallSite;
use crate::error::{ErrorKind, Result, catch_panic};
use crate::event::Event;
use crate::sync::trusted::{self, thread_local};
use crate::sync::{Arc, AtomicUsize, LazyLock, Mutex, Ordering, assert_unlocked};
use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};

/// The most drops that one call asks about, so that a long queue costs each caller little.
const MAX_QUERIES: usize = 16;

/// A queue of things of type `D` that wait for the device.
#[derive(Debug)]
pub struct DeferredQueue<D> {
    queue: Mutex<VecDeque<D>>,
    count: AtomicUsize,
}

/// Whether the device is past a deferred thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The device is past all that used it.
    Yes,
    /// Not yet, or the device cannot be asked now.
    NotYet,
    /// The device will never say.
    Never,
}

impl<D> Default for DeferredQueue<D> {
    fn default() -> Self {
        Self { queue: Mutex::new(VecDeque::new()), count: AtomicUsize::new(0) }
    }
}

impl<D> DeferredQueue<D> {
    /// Whether nothing is deferred, without a lock.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of things that are queued or asked about, as of some moment during the call, without a lock.
    pub fn len(&self) -> usize {
        // Relaxed: a hint; the lock orders the queue itself.
        self.count.load(Ordering::Relaxed)
    }

    /// Puts one into the queue.
    pub fn defer(&self, deferred: D) {
        let mut queue = self.queue.lock();
        queue.push_back(deferred);
        // INV-2: under the lock.
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes out some of those that the device has passed, for the caller to drop.
    pub fn collect(&self, passed: impl Fn(&D) -> Passed) -> Collected<D> {
        let mut collected = Collected { ready: Vec::new(), lost: Vec::new() };
        // No more questions than entries: one that is put back is not asked again in the same call.
        for _ in 0..self.len().min(MAX_QUERIES) {
            let Some(deferred) = self.queue.lock().pop_front() else { break };
            match passed(&deferred) {
                Passed::Yes => collected.ready.push(deferred),
                Passed::NotYet => self.queue.lock().push_back(deferred),
                Passed::Never => collected.lost.push(deferred),
            }
        }
        self.count.fetch_sub(collected.ready.len() + collected.lost.len(), Ordering::Relaxed);
        collected
    }
}

/// The result of [`DeferredQueue::collect`].
#[derive(Debug)]
pub struct Collected<D> {
    /// The things to be dropped.
    pub ready: Vec<D>,
    /// The things to be leaked.
    pub lost: Vec<D>,
}

/// The event or the condition that a drop waits for, beside a later call of the crate.
enum Until {
    Event(Arc<Event>),
    /// A question whether the value that it owns may be dropped now, together with the question.
    Ready(Box<dyn Fn() -> bool + Send>),
}

struct DeferredDrop {
    until: Option<Until>,
    /// Owns the value that it drops, and is leaked unless it is called. So a panic on the way frees nothing that the
    /// device may still use.
    drop: ManuallyDrop<Box<dyn FnOnce() + Send>>,
}

impl DeferredDrop {
    fn new(until: Option<Until>, drop: impl FnOnce() + Send + 'static) -> Self {
        Self { until, drop: ManuallyDrop::new(Box::new(drop)) }
    }

    fn passed(&self) -> Passed {
        let passed = match &self.until {
            None => Ok(true),
            Some(Until::Ready(is_ready)) => Ok(is_ready()),
            Some(Until::Event(event)) => event.is_complete(),
        };
        match passed {
            Ok(true) => Passed::Yes,
            Err(error) if matches!(error.kind(), ErrorKind::ContextLost | ErrorKind::Forked) => {
                Passed::Never
            }
            Ok(false) | Err(_) => Passed::NotYet,
        }
    }
}

static BUFFERS: LazyLock<DeferredQueue<DeferredDrop>> = LazyLock::new(DeferredQueue::default);

/// Blocks alone, whose drops run no code but the crate's. A pool collects these, through its upstream, while it holds
/// locks.
static BLOCKS: LazyLock<DeferredQueue<DeferredDrop>> = LazyLock::new(DeferredQueue::default);

/// Calls `drop` when the device has passed `event`, or without an event when the crate next collects.
pub(crate) fn defer(event: Option<Arc<Event>>, drop: impl FnOnce() + Send + 'static) {
    BUFFERS.defer(DeferredDrop::new(event.map(Until::Event), drop));
}

/// Calls `drop` when the crate next collects, on a thread that may call the driver. It is for drops inside of a host
/// function.
pub fn defer_to_program(drop: impl FnOnce() + Send + 'static) {
    defer(None, drop);
}

/// Drops `value` when the crate collects and `is_ready` is true of it, which calls no code but the crate's.
pub(crate) fn defer_until<T: Send + 'static>(value: T, is_ready: fn(&T) -> bool) {
    let until = Until::Ready(Box::new(move || is_ready(&value)));
    BUFFERS.defer(DeferredDrop::new(Some(until), || ()));
}

/// Like [`defer`], for calls of a driver that free a block, and nothing else.
pub(crate) fn defer_block(event: Option<Arc<Event>>, free: impl FnOnce() + Send + 'static) {
    BLOCKS.defer(DeferredDrop::new(event.map(Until::Event), free));
}

/// Whether buffers wait for the device to be dropped.
pub(crate) fn has_deferred_buffers() -> bool {
    !BUFFERS.is_empty()
}

/// Drops some of the values that the devices have passed, without waiting. Returns their number. Drops no buffers while
/// the thread holds them.
pub(crate) fn collect() -> usize {
    let blocks = collect_from(&BLOCKS);
    if HELD.get() > 0 || BUFFERS.is_empty() {
        return blocks;
    }
    assert_unlocked("the drop of a user's buffer");
    blocks + collect_from(&BUFFERS)
}

thread_local! {
    /// Whether the thread is inside of [`collect_all`].
    static COLLECTING: Cell<bool> = const { Cell::new(false) };
    /// The number of guards of [`hold_buffers`] that are alive.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// A guard during whose life the thread drops no user's buffer.
#[must_use]
#[allow(missing_debug_implementations, reason = "for the crates above alone")]
pub struct HoldBuffers(PhantomData<*const ()>);

/// Holds buffers during a call of code that is not the crate's, under a lock that the drop of a user's buffer may ask
/// for. That code may wait for a stream, which would drop buffers.
pub fn hold_buffers() -> HoldBuffers {
    HELD.set(HELD.get() + 1);
    HoldBuffers(PhantomData)
}

/// Whether the thread is in such a call.
pub(crate) fn holds_buffers() -> bool {
    HELD.get() > 0
}

impl Drop for HoldBuffers {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

/// Like [`collect`], until every drop was asked about once. The caller has no lock that a drop of a user's may ask for.
/// A call inside of such a drop does nothing, so that calls do not nest for each drop. The outer call does the rest.
pub(crate) fn collect_all() -> usize {
    if COLLECTING.try_with(|collecting| collecting.replace(true)).unwrap_or(true) {
        return 0;
    }
    let rounds = BLOCKS.len().max(BUFFERS.len()).div_ceil(MAX_QUERIES);
    // It unwinds for no drop: their panics end in `collect_from`.
    let collected = (0..rounds).map(|_| collect()).sum();
    call_after_waits();
    let _ = COLLECTING.try_with(|collecting| collecting.set(false));
    collected
}

/// A thing that has something to do when the program has waited for the device.
pub(crate) trait AfterWait: Send + Sync {
    /// Whether it will never have anything to do again.
    fn is_gone(&self) -> bool;

    fn after_wait(&self);
}

static AFTER_WAITS: trusted::Mutex<Vec<Arc<dyn AfterWait>>> = trusted::Mutex::new(Vec::new());
/// The number of these, without a lock.
static AFTER_WAIT_COUNT: trusted::AtomicUsize = trusted::AtomicUsize::new(0);

/// Calls `one` each time the program has waited for a stream or a device, or trims, until it is gone.
pub(crate) fn after_waits(one: Arc<dyn AfterWait>) {
    let mut all = AFTER_WAITS.lock();
    let gone: Vec<_> = all.extract_if(.., |other| other.is_gone()).collect();
    all.push(one);
    AFTER_WAIT_COUNT.store(all.len(), trusted::Ordering::Relaxed);
    drop(all);
    drop(gone);
}

/// Calls them, but not while the thread holds buffers, since it may have a pool's locks then.
fn call_after_waits() {
    let is_empty = AFTER_WAIT_COUNT.load(trusted::Ordering::Relaxed) == 0;
    if is_empty || holds_buffers() || crate::driver::may_not_call() {
        return;
    }
    let _site = NoCallSite::enter();
    let all = AFTER_WAITS.lock().clone();
    for one in &all {
        if catch_panic(|| one.after_wait()).is_none() {
            emit_deferred(|| event!(error, "what follows a wait for the device panicked"));
        }
    }
}

/// Asks for memory a second time if there was none, and drops were waiting that may have given some back. Cancelled
/// transfers, say, leave such drops. There is no third time, since a drop that a capture refuses waits again, and
/// counts. The caller holds no lock that a drop of a user's may ask for, as for [`collect_all`].
pub fn or_collect<R>(mut allocate: impl FnMut() -> Result<R>) -> Result<R> {
    match allocate() {
        Err(error) if error.kind() == ErrorKind::OutOfMemory && collect_all() > 0 => allocate(),
        result => result,
    }
}

/// Like [`collect`], for blocks alone.
pub fn collect_blocks() {
    collect_from(&BLOCKS);
}

fn collect_from(queue: &DeferredQueue<DeferredDrop>) -> usize {
    if queue.is_empty() || crate::driver::may_not_call() {
        return 0;
    }
    // These drops are not the work of the call that runs them.
    let _site = NoCallSite::enter();
    let collected = queue.collect(DeferredDrop::passed);
    // The caller may be a pool with its locks held: no subscriber runs here.
    for lost in collected.lost {
        let device = match &lost.until {
            Some(Until::Event(event)) => Some(event.device().to_string()),
            _ => None,
        };
        emit_deferred(move || {
            event!(
                error,
                device,
                "leaked what waited for the device, which can no longer say whether it is done"
            );
        });
    }
    let dropped = collected.ready.len();
    for DeferredDrop { until, drop } in collected.ready {
        let drop = ManuallyDrop::into_inner(drop);
        let both = || {
            drop();
            mem::drop(until);
        };
        if catch_panic(both).is_none() {
            emit_deferred(|| {
                event!(error, "what waited for the device panicked when it was dropped")
            });
        }
    }
    dropped
}

//! What a pool has of one stream: its heap, its epochs, its remote frees, its magazines.

use super::addresses::Addresses;
use super::block::{SHARED, SlotId, UNIT_SHIFT};
use super::epochs::StreamEpochs;
use super::magazine::Magazine;
use super::recent_owners::RecentOwners;
use super::remote_frees::{Freed, RemoteFrees};
use super::upstream::{Counted, Upstream};
use crate::debug_log::{DeferEvents, POOL, defer_events_under_lock, emit_deferred, event};
use crate::heap::{Heap, Node, NotLive};
use crate::sync::trusted;
use crate::sync::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering};
use std::ops::{Deref, DerefMut};

/// A stream's part of a pool. Slot 0 is no stream's: it has the heap of complete memory that all
/// streams share.
pub(super) struct Slot<U: Upstream> {
    pub(super) id: SlotId,
    pub(super) epochs: StreamEpochs<U>,
    pub(super) magazines: Mutex<Vec<Arc<Magazine>>>,
    remote_frees: RemoteFrees,
    heap: Mutex<Heap>,
    /// Where its memory may be mapped.
    pub(super) addresses: Mutex<Addresses>,
    /// Whether the heap was ever given memory.
    populated: trusted::AtomicBool,
    /// Whether the shared heap may have something, which spares its lock.
    shared_heap_may_have_free: trusted::AtomicBool,
    pub(super) recent_owners: RecentOwners,
    /// The graph that the stream records. See the state table at [`recording_graph`](Self::recording_graph).
    captured: AtomicUsize,
}

/// A locked heap. The events of its remote frees are emitted after the lock: fields drop in this
/// order.
pub(super) struct HeapGuard<'a> {
    heap: MutexGuard<'a, Heap>,
    _deferred: Option<DeferEvents>,
}

impl Deref for HeapGuard<'_> {
    type Target = Heap;

    fn deref(&self) -> &Heap {
        &self.heap
    }
}

impl DerefMut for HeapGuard<'_> {
    fn deref_mut(&mut self) -> &mut Heap {
        &mut self.heap
    }
}

impl<U: Upstream> Slot<U> {
    pub(super) fn new(id: SlotId, stream: Option<U::Stream>) -> Self {
        Self {
            id,
            epochs: StreamEpochs::new(stream),
            magazines: Mutex::new(Vec::new()),
            remote_frees: RemoteFrees::new(),
            heap: Mutex::new(Heap::new(UNIT_SHIFT, id)),
            addresses: Mutex::default(),
            populated: trusted::AtomicBool::new(false),
            shared_heap_may_have_free: trusted::AtomicBool::new(false),
            recent_owners: RecentOwners::default(),
            captured: AtomicUsize::new(0),
        }
    }

    /// The heap, with its remote frees.
    #[inline]
    pub(super) fn heap(&self) -> HeapGuard<'_> {
        let mut heap = self.heap.lock();
        let deferred = (!self.remote_frees.is_empty()).then(defer_events_under_lock);
        if deferred.is_some() {
            self.remote_frees.drain(|freed| self.free_remote(&mut heap, freed));
        }
        HeapGuard { heap, _deferred: deferred }
    }

    fn free_remote(&self, heap: &mut Heap, freed: Freed) {
        let Freed { node, mut freed_by, mut stamp } = freed;
        // What this stream is ordered after is its own: the order is behind whatever its next event
        // covers.
        if freed_by != self.id && stamp <= self.epochs.ordered_after(freed_by) {
            (freed_by, stamp) = (self.id, self.epochs.current());
        }
        report(heap.free(node, freed_by, stamp).map(drop));
    }

    /// A block of the stream's own free memory, aligned to a unit: its node and its address. Gives up
    /// sooner than [`Heap::allocate`]: where another thread has the heap, too.
    #[inline(always)]
    pub(super) fn allocate_own(&self, units: u32) -> Option<(Node, u64)> {
        if !self.remote_frees.is_empty() {
            return None;
        }
        self.heap.try_lock()?.allocate_own(units)
    }

    /// Frees a block of this heap by its own stream. Where another thread has the heap the free is a
    /// remote one: a free waits for no lock. An error is for [`report`].
    #[inline(always)]
    pub(super) fn free(&self, freed: Freed) -> Result<(), NotLive> {
        let Freed { node, freed_by, stamp } = freed;
        match self.heap.try_lock() {
            Some(mut heap) => heap.free(node, freed_by, stamp).map(drop),
            None => self.push_remote(freed),
        }
    }

    /// Frees a block of this heap by another stream. An error is for [`report`].
    #[inline]
    pub(super) fn push_remote(&self, freed: Freed) -> Result<(), NotLive> {
        if self.remote_frees.push(freed) { Ok(()) } else { Err(NotLive(freed.node)) }
    }

    /// Gives back the host memory that a slot without device memory can do without.
    pub(super) fn release_bookkeeping(&self, upstream: &Counted<U>) {
        let heap = self.heap();
        if heap.stats().total_bytes == 0 {
            // SAFETY: a heap without memory has no blocks, and its lock is held.
            unsafe { self.remote_frees.clear() };
        }
        drop(heap);
        self.epochs.release_completed(upstream);
    }

    /// Notes that the heap was given memory, whose lock the caller has. Returns whether it is the first.
    pub(super) fn mark_populated(&self) -> bool {
        let before = self.populated.load(trusted::Ordering::Relaxed);
        self.populated.store(true, trusted::Ordering::Relaxed);
        !before
    }

    /// Whether a look into the shared heap may be worth it. Later steps of a miss look anyway.
    pub(super) fn shared_heap_may_have_free(&self) -> bool {
        self.shared_heap_may_have_free.load(trusted::Ordering::Relaxed)
    }

    pub(super) fn set_shared_heap_may_have_free(&self, maybe: bool) {
        self.shared_heap_may_have_free.store(maybe, trusted::Ordering::Relaxed);
    }

    pub(super) fn is_shared_heap(&self) -> bool {
        self.id == SHARED
    }

    /// The graph that the stream records in a declared capture, or 0.
    ///
    /// | word | allocations on the stream | frees on it | its magazines | written by |
    /// | --- | --- | --- | --- | --- |
    /// | 0 | from the heaps | to the heaps | open | `end_capture` |
    /// | a graph | from complete memory, for the graph | noted, and done when the graph is gone | shut | `begin_capture` |
    ///
    /// Both writers have the pool's `reclaim_lock`. The word keeps no thread from giving the stream
    /// work: the stream's gate does (INV-POOL-8).
    pub(super) fn recording_graph(&self) -> usize {
        self.captured.load(Ordering::Acquire)
    }

    /// Begins a capture, or ends it with 0. The caller has the pool's `reclaim_lock`.
    pub(super) fn set_recording_graph(&self, graph: usize) {
        self.captured.store(graph, Ordering::Release);
    }
}

/// Emits the error of a node that was freed and is no live block's. The caller is inside of no
/// magazine, and holds locks under a [`defer_events`](crate::debug_log::defer_events) alone.
#[inline]
pub(super) fn report(freed: Result<(), NotLive>) {
    if let Err(NotLive(node)) = freed {
        emit_deferred(move || {
            event!(error, target: POOL, node, "a block was freed twice, or is not of this pool: ignored");
        });
    }
}

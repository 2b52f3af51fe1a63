//! What a pool keeps of one stream: its heap, its time, its inbox, its magazines.

use super::epochs::Epochs;
use super::inbox::{Freed, Inbox};
use super::magazine::Magazine;
use super::upstream::Upstream;
use crate::heap::{COMPLETE, Heap, NotLive, Tag, Taken};
use crate::sync::trusted;
use crate::sync::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering, yield_now};

/// log2 of the bytes of a unit.
pub(super) const UNIT_SHIFT: u32 = 8;

/// A stream's part of a pool. Slot 0 is the bank: no stream's, with complete memory alone.
///
/// A heap's lock is held over arithmetic alone; the lock of the epochs is the only one held over
/// driver calls. No thread holds two heaps, nor a heap inside the lock of epochs.
pub(super) struct Slot<U: Upstream> {
    pub(super) tag: Tag,
    pub(super) epochs: Epochs<U>,
    pub(super) magazines: Mutex<Vec<Arc<Magazine>>>,
    inbox: Inbox,
    heap: Mutex<Heap>,
    /// Whether the bank may have something: spares its lock.
    filled: trusted::AtomicBool,
    /// Whether the heap was ever given memory.
    home: trusted::AtomicBool,
    /// The number of the graph while the stream is in a declared capture, above the count of threads
    /// that may make the stream wait. One word, so that each side sees the other's change or comes
    /// after it.
    captured: AtomicUsize,
}

/// Bits of the count of threads.
const BUSY_BITS: u32 = 16;
const BUSY: usize = (1 << BUSY_BITS) - 1;

/// While it lives, no capture that is declared begins on the stream.
pub(super) struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        // Release: the capture that waited for this comes after what was given to the stream.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl<U: Upstream> Slot<U> {
    pub(super) fn new(tag: Tag, stream: Option<U::Stream>) -> Self {
        Self {
            tag,
            epochs: Epochs::new(stream),
            magazines: Mutex::new(Vec::new()),
            inbox: Inbox::new(),
            heap: Mutex::new(Heap::new(UNIT_SHIFT)),
            filled: trusted::AtomicBool::new(false),
            home: trusted::AtomicBool::new(false),
            captured: AtomicUsize::new(0),
        }
    }

    /// The heap, with what waited in the inbox.
    pub(super) fn heap(&self) -> MutexGuard<'_, Heap> {
        let mut heap = self.heap.lock();
        self.take_in(&mut heap);
        heap
    }

    #[inline]
    fn take_in(&self, heap: &mut Heap) {
        if !self.inbox.is_empty() {
            self.inbox.drain(|freed| self.put(heap, freed));
        }
    }

    fn put(&self, heap: &mut Heap, freed: Freed) {
        let Freed { node, tag, mut stamp } = freed;
        // What this stream is ordered after is its own: the order is behind whatever its next event
        // covers.
        let tag = if tag != self.tag && stamp <= self.epochs.ordered_after(tag) {
            stamp = self.epochs.open();
            self.tag
        } else {
            tag
        };
        if let Err(NotLive) = heap.free(node, tag, stamp) {
            report_not_live(node);
        }
    }

    /// A block of the stream's own free memory.
    #[inline]
    pub(super) fn allocate(&self, units: u32, align: u64) -> Option<Taken> {
        self.heap().allocate(self.tag, units, align, usize::MAX)
    }

    /// Takes a block of this heap back that the stream freed. Where another thread is at the heap,
    /// the block goes to the inbox: a free waits for nobody.
    #[inline]
    pub(super) fn free(&self, freed: Freed) {
        match self.heap.try_lock() {
            Some(mut heap) => {
                let live = heap.free(freed.node, freed.tag, freed.stamp);
                if let Err(NotLive) = live {
                    drop(heap);
                    report_not_live(freed.node);
                }
            }
            None => self.send_home(freed),
        }
    }

    /// Takes a block of this heap back that another stream freed.
    #[inline]
    pub(super) fn send_home(&self, freed: Freed) {
        if !self.inbox.push(freed) {
            report_not_live(freed.node);
        }
    }

    /// Whether a look into the bank may be worth it. What is missed is found by the rungs that look
    /// everywhere.
    pub(super) fn may_have_free(&self) -> bool {
        self.filled.load(trusted::Ordering::Relaxed)
    }

    pub(super) fn set_filled(&self, filled: bool) {
        self.filled.store(filled, trusted::Ordering::Relaxed);
    }

    /// Notes that the heap has been given memory, whose lock the caller holds. Whether it is the
    /// first.
    pub(super) fn becomes_home(&self) -> bool {
        let before = self.home.load(trusted::Ordering::Relaxed);
        self.home.store(true, trusted::Ordering::Relaxed);
        !before
    }

    pub(super) fn is_bank(&self) -> bool {
        self.tag == COMPLETE
    }

    /// The graph whose capture this stream is in, or 0.
    pub(super) fn captured(&self) -> usize {
        self.captured.load(Ordering::Acquire) >> BUSY_BITS
    }

    /// Begins a capture, or ends it with 0. Under the reclaimers' lock.
    pub(super) fn set_captured(&self, graph: usize) {
        let old = self.captured.load(Ordering::Relaxed) >> BUSY_BITS;
        self.captured.fetch_xor((old ^ graph) << BUSY_BITS, Ordering::AcqRel);
    }

    /// Leave to make the stream wait for others, unless it is in a declared capture.
    pub(super) fn busy(&self) -> Option<Busy<'_>> {
        let before = self.captured.fetch_add(1, Ordering::Acquire);
        let busy = Busy(&self.captured);
        (before >> BUSY_BITS == 0).then_some(busy)
    }

    /// Waits for those who had leave before the capture was declared.
    pub(super) fn wait_for_busy(&self) {
        while self.captured.load(Ordering::Acquire) & BUSY != 0 {
            yield_now();
        }
    }
}

pub(super) fn report_not_live(node: u32) {
    crate::debug_log::event!(
        error,
        node,
        "a block was freed twice, or is not of this pool: ignored"
    );
}

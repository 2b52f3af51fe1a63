//! Remote frees: blocks that were freed on another stream than their heap's own, or while another
//! thread had the heap.
//!
//! A stack whose links lie beside the heap's nodes, so a free takes no lock, and allocates nothing where the
//! links are there: three stores and one exchange.
//!
//! # State table
//!
//! | `head` | list | push | drain, under the heap's lock |
//! | --- | --- | --- | --- |
//! | `END` | empty | `head = node` | nothing |
//! | a node | the node, and its links up to `END` | `link.next = head`, `head = node` | `head = END`, then each node |
//!
//! A link belongs to the thread that frees the node's block until the push (release), and to the
//! drain after that (acquire). Where no block of the heap is live and `head` is `END`, no thread has a link,
//! and all of them go away.

use super::append_array::AppendArray;
use super::block::SlotId;
use crate::heap::Node;
use crate::sync::{AtomicUsize, Ordering};

/// The end of the list. No node has this number.
const END: usize = u32::MAX as usize;

/// A free on its way to the heap that owns the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    pub node: Node,
    /// The slot of the stream that freed it.
    pub freed_by: SlotId,
    /// The epoch of the free, on the clock of that stream.
    pub stamp: usize,
}

#[derive(Debug)]
pub struct RemoteFrees {
    head: AtomicUsize,
    links: AppendArray<Link>,
}

#[derive(Debug)]
struct Link {
    next: AtomicUsize,
    freed_by: AtomicUsize,
    stamp: AtomicUsize,
}

impl Default for Link {
    fn default() -> Self {
        let [next, freed_by, stamp] = [END, 0, 0].map(AtomicUsize::new);
        Self { next, freed_by, stamp }
    }
}

impl RemoteFrees {
    pub fn new() -> Self {
        Self { head: AtomicUsize::new(END), links: AppendArray::new() }
    }

    /// Whether the list is empty, as of some moment.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Relaxed: the next look finds what this one misses, and the drain acquires.
        self.head.load(Ordering::Relaxed) == END
    }

    /// Adds a free. `false` if the number cannot be a node's. A live block is pushed once.
    #[inline]
    pub fn push(&self, freed: Freed) -> bool {
        let node = freed.node as usize;
        let Some(link) = self.links.get_or_make(node).filter(|_| node != END) else { return false };
        link.freed_by.store(freed.freed_by as usize, Ordering::Relaxed);
        link.stamp.store(freed.stamp, Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link.next.store(head, Ordering::Relaxed);
            // Release: the drain sees the link, and the block's work was given to its stream
            // before.
            match self.head.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(other) => head = other,
            }
        }
        true
    }

    /// Gives the memory of the links back, unless one is listed: that is a block which was freed twice.
    ///
    /// # Safety
    ///
    /// No block of the heap is live, and the caller holds the heap's lock: nobody pushes or drains.
    pub unsafe fn clear(&self) {
        if self.is_empty() {
            // SAFETY: the caller's promise.
            unsafe { self.links.clear() }
        }
    }

    /// Takes everything out. The caller holds the heap's lock, so a node comes out once before its
    /// block is handed out again.
    pub fn drain(&self, mut each: impl FnMut(Freed)) {
        let mut next = self.head.swap(END, Ordering::Acquire);
        while next != END {
            let Some(link) = self.links.get(next) else { return };
            let node = next as Node;
            let freed_by = link.freed_by.load(Ordering::Relaxed) as SlotId;
            let stamp = link.stamp.load(Ordering::Relaxed);
            // Before the block is free, and can be pushed again.
            next = link.next.load(Ordering::Relaxed);
            // A block that was freed twice makes the list a ring. It ends here, after the heap was
            // asked a second time.
            link.next.store(END, Ordering::Relaxed);
            each(Freed { node, freed_by, stamp });
        }
    }
}

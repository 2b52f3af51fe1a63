//! Blocks on their way home: freed by another thread, or on another stream, than the heap's own.
//!
//! A stack whose links lie beside the heap's nodes, so a free allocates nothing and takes no lock:
//! two stores and one exchange.

use super::chunks::Chunks;
use crate::heap::{Node, Tag};
use crate::sync::{AtomicUsize, Ordering};

/// The end of the list. No node has this number.
const END: usize = u32::MAX as usize;

/// What a freed block carries home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    pub node: Node,
    pub tag: Tag,
    pub stamp: usize,
}

#[derive(Debug)]
pub struct Inbox {
    head: AtomicUsize,
    links: Chunks<Link>,
}

/// Written by whoever frees the node's block, which is his alone until he has pushed it.
#[derive(Debug, Default)]
struct Link {
    next: AtomicUsize,
    tag: AtomicUsize,
    stamp: AtomicUsize,
}

impl Inbox {
    pub fn new() -> Self {
        Self { head: AtomicUsize::new(END), links: Chunks::new() }
    }

    /// Whether nothing waits, as of some moment.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Relaxed: what is missed here is found by the next look; taking it acquires.
        self.head.load(Ordering::Relaxed) == END
    }

    /// Sends a block home. Of one live block, one push: `false` if the number cannot be a node's.
    pub fn push(&self, freed: Freed) -> bool {
        let node = freed.node as usize;
        let Some(link) = self.links.get_or_make(node).filter(|_| node != END) else { return false };
        link.tag.store(freed.tag as usize, Ordering::Relaxed);
        #[cfg(not(aquifer_fault = "stamp_after_push"))]
        link.stamp.store(freed.stamp, Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link.next.store(head, Ordering::Relaxed);
            // Release: whoever takes the list sees the link, and that the block's work was given
            // to its stream.
            let order = if cfg!(aquifer_fault = "inbox_relaxed") {
                Ordering::Relaxed
            } else {
                Ordering::Release
            };
            match self.head.compare_exchange_weak(head, node, order, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => head = other,
            }
        }
        #[cfg(aquifer_fault = "stamp_after_push")]
        link.stamp.store(freed.stamp, Ordering::Relaxed);
        true
    }

    /// Takes everything out. The caller holds the heap's lock: a node comes home once before it is
    /// handed out again.
    pub fn drain(&self, mut each: impl FnMut(Freed)) {
        #[cfg(not(aquifer_fault = "drain_in_two_steps"))]
        let mut next = self.head.swap(END, Ordering::Acquire);
        #[cfg(aquifer_fault = "drain_in_two_steps")]
        let mut next = self.head.load(Ordering::Acquire);
        #[cfg(aquifer_fault = "drain_in_two_steps")]
        self.head.store(END, Ordering::Relaxed);
        while next != END {
            let Some(link) = self.links.get(next) else { return };
            let node = next as Node;
            let tag = link.tag.load(Ordering::Relaxed) as Tag;
            let stamp = link.stamp.load(Ordering::Relaxed);
            // Before the block is free, and can be pushed again.
            next = link.next.load(Ordering::Relaxed);
            // A block that was freed twice stands in the list twice, and closes it to a ring: it ends
            // here, after the heap was asked a second time.
            link.next.store(END, Ordering::Relaxed);
            each(Freed { node, tag, stamp });
        }
    }
}

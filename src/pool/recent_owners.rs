//! The heaps that a stream took blocks from last.
//!
//! What the stream frees there is its own: its next miss looks there before it scans. Hints alone: one that
//! is wrong costs a look.

use super::block::{SHARED, SlotId};
use crate::sync::trusted::{AtomicUsize, Ordering::Relaxed};

const CAPACITY: usize = 16;

#[derive(Debug, Default)]
pub(super) struct RecentOwners {
    owners: [AtomicUsize; CAPACITY],
    next: AtomicUsize,
}

impl RecentOwners {
    pub(super) fn insert(&self, owner: SlotId) {
        if !self.iter().any(|known| known == owner) {
            let place = self.next.fetch_add(1, Relaxed) % CAPACITY;
            self.owners[place].store(owner.into(), Relaxed);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SlotId> + '_ {
        let owners = self.owners.iter().map(|owner| owner.load(Relaxed) as SlotId);
        owners.filter(|owner| *owner != SHARED)
    }
}

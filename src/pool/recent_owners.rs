//! The heaps that a stream took blocks from last.
//!
//! What the stream frees there is its own: its next miss looks there before it scans. Hints alone: one that
//! is wrong costs a look.

use super::block::{SHARED, SlotId};
use crate::sync::trusted::{AtomicU8, AtomicU16, Ordering::Relaxed};

const CAPACITY: usize = 16;

#[derive(Debug, Default)]
pub(super) struct RecentOwners {
    owners: [AtomicU16; CAPACITY],
    next: AtomicU8,
}

impl RecentOwners {
    pub(super) fn insert(&self, owner: SlotId) {
        if !self.iter().any(|known| known == owner) {
            let place = self.next.fetch_add(1, Relaxed) as usize % CAPACITY;
            self.owners[place].store(owner, Relaxed);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SlotId> + '_ {
        let owners = self.owners.iter().map(|owner| owner.load(Relaxed));
        owners.filter(|owner| *owner != SHARED)
    }
}

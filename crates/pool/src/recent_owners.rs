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
    /// Where the last look found some.
    found: AtomicU8,
}

impl RecentOwners {
    pub(super) fn insert(&self, owner: SlotId) {
        if self.owners.iter().all(|known| known.load(Relaxed) != owner) {
            let place = self.next.fetch_add(1, Relaxed) as usize % CAPACITY;
            self.owners[place].store(owner, Relaxed);
        }
    }

    /// What `find` returns for the first of them for which it returns some. The next look begins there.
    pub(super) fn find_map<T>(&self, mut find: impl FnMut(SlotId) -> Option<T>) -> Option<T> {
        let begin = self.found.load(Relaxed) as usize;
        (begin..begin + CAPACITY).find_map(|at| {
            let owner = self.owners[at % CAPACITY].load(Relaxed);
            let found = if owner == SHARED { None } else { find(owner) };
            if found.is_some() && at != begin {
                self.found.store((at % CAPACITY) as u8, Relaxed);
            }
            found
        })
    }
}

//! What a stream is ordered after, in constant memory.

use super::block::SlotId;
use crate::sync::{AtomicUsize, MODELLED, Ordering};
use std::array;

/// Sources that a stream remembers; powers of two. Slots are given out one after the other, so a pool of as
/// many streams forgets none.
const ENTRIES: usize = if MODELLED { 2 } else { 32 };

/// The slot in the upper bits of an entry, the epoch below.
const SLOT_SHIFT: u32 = usize::BITS - SlotId::BITS;
const EPOCH: usize = (1 << SLOT_SHIFT) - 1;

/// The last epochs of other streams that one stream is ordered after.
///
/// Each source has one entry, by its number, which it shares: the wait that was made last stays. What is
/// forgotten makes for a false wait, never a race.
pub(super) struct Ordered([AtomicUsize; ENTRIES]);

impl Ordered {
    pub(super) fn new() -> Self {
        Self(array::from_fn(|_| AtomicUsize::new(0)))
    }

    fn entry(&self, source: SlotId) -> &AtomicUsize {
        &self.0[usize::from(source) % ENTRIES]
    }

    /// The last epoch of `source` that is remembered, or 0.
    #[inline]
    pub(super) fn epoch_of(&self, source: SlotId) -> usize {
        // Acquire: the wait that was published is enqueued before whatever the caller gives.
        let word = self.entry(source).load(Ordering::Acquire);
        if slot_of(word) == source { word & EPOCH } else { 0 }
    }

    /// Publishes a wait that was made for this epoch of `source`, or a later one.
    pub(super) fn raise(&self, source: SlotId, epoch: usize) {
        let entry = self.entry(source);
        let new = usize::from(source) << SLOT_SHIFT | epoch & EPOCH;
        // loom loses races of a write that its own thread's load comes before.
        let mut known = if MODELLED { 0 } else { entry.load(Ordering::Relaxed) };
        while slot_of(known) != source || known & EPOCH < epoch {
            match entry.compare_exchange(known, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => known = other,
            }
        }
    }

    /// All that is remembered.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SlotId, usize)> + '_ {
        let words = self.0.iter().map(|entry| entry.load(Ordering::Acquire));
        words.filter(|word| *word != 0).map(|word| (slot_of(word), word & EPOCH))
    }
}

fn slot_of(word: usize) -> SlotId {
    (word >> SLOT_SHIFT) as SlotId
}

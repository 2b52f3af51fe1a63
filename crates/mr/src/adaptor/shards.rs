//! A table by address in shards, with a lock each.

use crate::sync::CachePadded;
use crate::sync::trusted::{Mutex, MutexGuard};
use std::array;

const COUNT: usize = 16;

/// Tables among which the addresses are divided, so that threads seldom meet at one lock.
#[derive(Default)]
pub(super) struct Shards<S> {
    shards: [CachePadded<Mutex<S>>; COUNT],
}

impl<S> Shards<S> {
    /// The table that an address belongs to.
    pub(super) fn of(&self, address: u64) -> MutexGuard<'_, S> {
        // Blocks start at multiples of 256 and often of much more: a product mixes the upper bits
        // in, and its own upper ones are the best mixed.
        let mixed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.shards[(mixed >> 60) as usize % COUNT].lock()
    }

    /// All tables at one moment. They are locked in one order, and no thread that holds one asks for another.
    pub(super) fn all(&self) -> [MutexGuard<'_, S>; COUNT] {
        array::from_fn(|index| self.shards[index].lock())
    }
}

#[cfg(test)]
mod tests;

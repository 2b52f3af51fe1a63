//! Whole blocks of upstream that go back before the pool grows: so a size that grows by little each time leaves no block
//! behind for each growth.
//!
//! A block that is all free and too small for what is asked serves nobody but smaller requests. Where the pool would
//! have more than [`BOUND`] times what was live at its peak, such blocks go back first, the smallest first, and what is asked
//! then gets room to grow in ([`with_room`]). To give memory back waits for all kernels of a GPU, so it is done
//! where the device has nothing to do, or will have in a moment; where it has not, the pool grows without.

use super::block::{SHARED, SlotId};
use super::core::Pool;
use super::request::Request;
use super::slot::Slot;
use super::upstream::Upstream;
use super::upstream_blocks::UpstreamBlock;
use crate::sync::ReentrantMutexGuard;
use crate::sync::trusted::Ordering;
use std::time::Duration;

/// What a pool may have, over what was live: numerator and denominator.
const BOUND: (usize, usize) = (3, 2);

/// What a pool may have beside that, however little is live.
const SLACK: usize = 16 << 20;

/// The part by which a pool grows before it looks again where it found nothing to give back: to look takes time, and a
/// pool that a kernel keeps busy looks 32 times while it grows by a factor of 2.7.
const GROWTH_BETWEEN_DIVISOR: usize = 32;

/// How long it is asked whether the device has nothing to do: growth takes the host as long.
const IDLE_PATIENCE: Duration = Duration::from_millis(2);

/// What to ask upstream for, where `replaced` went back. A size that follows one a little smaller gets half of it more:
/// sizes that grow by 1% find room in that 40 times. Others get none, since a pool with a maximum may need all of it.
pub(super) fn with_room<B>(bytes: usize, replaced: &[UpstreamBlock<B>]) -> usize {
    let is_little_smaller = |block: &UpstreamBlock<B>| {
        let before = block.bytes as usize;
        before < bytes && before >= bytes / 2
    };
    match replaced.iter().any(is_little_smaller) {
        true => bytes.saturating_add(bytes / 2),
        false => bytes,
    }
}

/// Blocks that were taken out of the pool, to be given back without a lock but this one.
pub(super) struct Surplus<'a, U: Upstream> {
    pub(super) blocks: Vec<UpstreamBlock<U::Block>>,
    /// The most to ask upstream for then, so that the pool stays within its bound.
    pub(super) room: usize,
    /// A thread that finds no room meanwhile waits for it.
    _trim: ReentrantMutexGuard<'a, ()>,
}

impl<U: Upstream> Pool<U> {
    /// Takes whole free blocks out, as far as growth by `least` bytes would pass the bound. `live` bytes are in use, and
    /// the pool may grow to `limit`. The caller has asked `lock_growth`.
    pub(super) fn take_surplus(
        &self,
        request: &Request<'_, U>,
        live: usize,
        least: usize,
        limit: usize,
    ) -> Option<Surplus<'_, U>> {
        let peak = live.saturating_add(least).max(self.peak_live.load(Ordering::Relaxed));
        self.peak_live.store(peak, Ordering::Relaxed);
        let bound = (peak / BOUND.1).saturating_mul(BOUND.0).saturating_add(SLACK);
        let reserved = self.reserved_bytes();
        let least_to_ask = bound.max(self.next_surplus.load(Ordering::Relaxed));
        // What no growth serves takes no block from others.
        let is_possible = request.padded_bytes(self.settings.alignment)? <= limit;
        let is_over = reserved.saturating_add(least) > least_to_ask;
        if !is_possible || !is_over || request.graph_upto.is_some() {
            return None;
        }
        // Not waited for, since who has it may wait for growth.
        let trim = self.trim_lock.try_lock()?;
        let blocks = self.extract_if_idle(bound.saturating_sub(least));
        let next = if blocks.is_empty() { reserved + reserved / GROWTH_BETWEEN_DIVISOR } else { 0 };
        self.next_surplus.store(next, Ordering::Relaxed);
        let returned: usize = blocks.iter().map(|block| block.bytes as usize).sum();
        let room = bound.saturating_sub(self.reserved_bytes().saturating_sub(returned));
        (!blocks.is_empty()).then_some(Surplus { blocks, room, _trim: trim })
    }

    /// Takes whole free blocks out, until no more than `target` bytes would be reserved without them. None where the
    /// device is busy.
    fn extract_if_idle(&self, target: usize) -> Vec<UpstreamBlock<U::Block>> {
        let free = self.whole_free_blocks();
        if free.is_empty() {
            return Vec::new();
        }
        // Closed first, so that a device which is idle then is past all of them.
        self.close_and_poll_all();
        match self.upstream.is_idle(IDLE_PATIENCE) {
            true => self.extract_complete(&free, target),
            false => Vec::new(),
        }
    }

    /// Blocks of upstream of which nothing is in use, the smallest first.
    fn whole_free_blocks(&self) -> Vec<WholeBlock> {
        let all = self.upstream_blocks.lock().largest_first();
        let mut free = Vec::new();
        let mut look = |slot: &Slot<U>| {
            let (owner, heap) = (slot.id, slot.heap());
            let is_free = |&(number, address, bytes): &(u32, u64, u64)| {
                heap.free_block(number, address, bytes, |_, _| true).is_some()
            };
            let found = all.iter().copied().filter(is_free);
            free.extend(found.map(|(number, address, bytes)| WholeBlock {
                owner,
                number,
                address,
                bytes,
            }));
        };
        self.each_populated(&mut look);
        self.slot(SHARED).map(look);
        free.sort_by_key(|block| block.bytes);
        free
    }

    /// Takes out those that the device is past, until no more than `target` bytes would be reserved without them.
    fn extract_complete(&self, free: &[WholeBlock], target: usize) -> Vec<UpstreamBlock<U::Block>> {
        self.close_and_poll_all();
        let is_complete = |tag, stamp| stamp <= self.completed_stamp(tag);
        let mut left = self.reserved_bytes();
        let mut extracted = Vec::new();
        for WholeBlock { owner, number, address, bytes } in free {
            if left <= target {
                break;
            }
            let Some(slot) = self.slot(*owner) else { continue };
            // Its bytes stay reserved until upstream has it (INV-POOL-6).
            let mut heap = slot.heap();
            let taken = heap.extract_free_block(*number, *address, *bytes, is_complete);
            drop(heap);
            if taken {
                // A block that came by a growth since is not in it.
                left = left.saturating_sub(*bytes as usize);
                extracted.extend(self.upstream_blocks.lock().remove_reserved(*number, *address));
            }
        }
        extracted
    }
}

/// A block of upstream in the heap of a slot.
struct WholeBlock {
    owner: SlotId,
    number: u32,
    address: u64,
    bytes: u64,
}

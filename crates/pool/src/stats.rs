//! What a pool holds, counted when it is asked.

use super::block::UNIT_SHIFT;
use super::core::Pool;
use super::upstream::Upstream;
use crate::sync::trusted::Ordering;

/// What a pool holds and what it did. From `PoolResource::statistics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Bytes taken from upstream.
    pub reserved: usize,
    /// The most bytes that were reserved at once.
    pub peak_reserved: usize,
    /// Bytes in blocks that users or graphs hold.
    pub live: usize,
    /// Blocks that users or graphs hold.
    pub live_blocks: usize,
    /// Bytes that are free: `reserved - live`.
    pub free: usize,
    /// Of the free bytes, those that threads keep ready in their magazines.
    pub cached: usize,
    /// Of the bytes in use, those that were freed and wait for a `Graph` to go.
    pub held: usize,
    /// Of the reserved bytes, those that the device has back while the pool sleeps.
    pub asleep: usize,
    /// Bytes of the largest free block outside of magazines.
    pub largest_free: usize,
    /// Blocks of upstream; pieces, where the pool maps its memory, as in `growths` and `returns`.
    pub upstream_blocks: usize,
    /// Streams that have memory of their own here.
    pub streams: usize,
    /// Allocations that the stream's own free memory did not serve.
    pub misses: usize,
    /// Blocks that were taken from another stream's free memory.
    pub steals: usize,
    /// Events recorded.
    pub records: usize,
    /// Times that a stream was made to wait for another.
    pub waits: usize,
    /// Blocks taken from upstream.
    pub growths: usize,
    /// Blocks given back to upstream.
    pub returns: usize,
}

impl<U: Upstream> Pool<U> {
    /// Sums over all slots. Exact while no other thread uses the pool.
    pub fn stats(&self) -> PoolStatistics {
        let counters = self.counters();
        let mut stats = PoolStatistics {
            held: self.graphs.lock().pending_free_bytes(),
            misses: counters.misses.load(Ordering::Relaxed),
            steals: counters.steals.load(Ordering::Relaxed),
            records: counters.records.load(Ordering::Relaxed),
            waits: counters.waits.load(Ordering::Relaxed),
            growths: counters.growths.load(Ordering::Relaxed),
            returns: counters.returns.load(Ordering::Relaxed),
            ..PoolStatistics::default()
        };
        let mut cached_blocks = 0;
        self.with_all_revoked(|_, classes| {
            let (blocks, units) = classes.totals();
            stats.cached += (units << UNIT_SHIFT) as usize;
            cached_blocks += blocks;
        });
        for slot in self.all_slots() {
            {
                let heap = slot.heap();
                let of_heap = heap.stats();
                stats.live += of_heap.live_bytes as usize;
                stats.live_blocks += of_heap.live_blocks;
                stats.largest_free = stats.largest_free.max(heap.largest_free() as usize);
            }
            stats.streams += usize::from(slot.epochs.lock().stream.is_some());
        }
        // Blocks in magazines are not free in their heaps.
        stats.live = stats.live.saturating_sub(stats.cached);
        stats.live_blocks = stats.live_blocks.saturating_sub(cached_blocks);
        let upstream_blocks = self.upstream_blocks.lock();
        stats.reserved = upstream_blocks.held();
        stats.peak_reserved = upstream_blocks.peak();
        stats.free = stats.reserved.saturating_sub(stats.live);
        stats.upstream_blocks = upstream_blocks.len();
        stats
    }
}

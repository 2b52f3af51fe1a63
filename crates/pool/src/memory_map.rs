//! Where a pool's memory lies, and what of it is free, for people who look at it.

use super::core::Pool;
use super::upstream::Upstream;

/// A stretch of a pool's memory: what one user holds, or free memory between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolBlock {
    /// Its address on the device.
    pub address: u64,
    /// Its size. A user's block is rounded up to the pool's alignment.
    pub bytes: usize,
    /// Whether it is free, for one stream or another.
    pub is_free: bool,
}

/// A pool's memory, from `PoolResource::memory_map`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolMap {
    /// The blocks of upstream, by address: their addresses and sizes.
    pub upstream_blocks: Vec<(u64, usize)>,
    /// What lies in them, by address.
    pub blocks: Vec<PoolBlock>,
}

impl<U: Upstream> Pool<U> {
    /// The pool's memory. The blocks of threads' caches go back to the heaps for it.
    pub fn memory_map(&self) -> PoolMap {
        self.flush_all();
        let mut map = PoolMap::default();
        for slot in self.all_slots() {
            let heap = slot.heap();
            map.blocks.extend(heap.blocks().map(|(address, bytes, is_free)| PoolBlock {
                address,
                bytes: bytes as usize,
                is_free,
            }));
        }
        map.blocks.sort_unstable_by_key(|block| block.address);
        let upstream = self.upstream_blocks.lock().smallest_first();
        map.upstream_blocks =
            upstream.into_iter().map(|(_, address, bytes)| (address, bytes as usize)).collect();
        map.upstream_blocks.sort_unstable();
        map
    }
}

//! The numbers that a pool of page-locked memory tells.

/// The numbers of a [`PinnedPool`](crate::pinned::PinnedPool). Sizes in bytes, blocks at their rounded sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedPoolStatistics {
    /// Taken from upstream now.
    pub reserved: usize,
    /// The most that was ever reserved at once.
    pub peak_reserved: usize,
    /// In blocks that users hold. What a block gave up when it was shrunk in place counts until the
    /// block is freed.
    pub live: usize,
    /// Ready in the caches of threads.
    pub cached: usize,
    /// Freed, and waiting for the device.
    pub waiting: usize,
    /// The largest free block of the heap: in no thread's cache, and waiting for nothing.
    pub largest_free: usize,
    /// Slabs taken from upstream now.
    pub slabs: usize,
    /// Slabs ever taken from upstream.
    pub growths: usize,
    /// Slabs given back to upstream.
    pub returns: usize,
    /// Fences recorded.
    pub fences: usize,
}

//! The numbers that a pool of page-locked memory tells.

/// The numbers of a [`PinnedPool`](crate::pinned::PinnedPool). Sizes are in bytes, and blocks count by their rounded
/// sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedPoolStatistics {
    /// Bytes taken from upstream now.
    pub reserved: usize,
    /// The most bytes that were ever reserved at once.
    pub peak_reserved: usize,
    /// Bytes in blocks that users hold. The part that a block gave up when it was shrunk in place counts until the
    /// block is freed.
    pub live: usize,
    /// Bytes that are ready in the caches of threads.
    pub cached: usize,
    /// Bytes that were freed and wait for the device.
    pub waiting: usize,
    /// The largest free block of the heap, which is in no thread's cache and waits for nothing.
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

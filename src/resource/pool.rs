//! The pool, as a resource over another one.

use super::{CudaResource, DeviceBlock, DeviceResource};
use crate::device::Device;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::stream::Stream;
use crate::sync::Arc;

/// What a pool does when the calling stream's own free memory does not serve. From
/// [`PoolOptions::miss_policy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissPolicy {
    rungs: Vec<Rung>,
}

/// One thing that a pool tries on a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rung {
    /// Memory that other streams freed and the host has seen complete.
    Complete,
    /// Memory that other streams freed at points that the calling stream is already ordered after.
    Ordered,
    /// More memory from upstream, while the pool is under its soft limit.
    Grow,
    /// Memory of one other stream: the calling stream is made to wait for it, the host is not.
    Wait,
    /// More memory from upstream, up to the maximum size.
    GrowToMaximum,
    /// All free memory of the pool is gathered in one place, waiting for all streams that freed it.
    Gather,
    /// Free blocks of upstream are given back, and upstream is asked for one that fits. The host
    /// waits for the streams that used them.
    Trim,
}

/// How a pool is built. From [`PoolResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolOptions<U> {
    upstream: U,
    initial_size: usize,
    maximum_size: Option<usize>,
    soft_limit: Option<usize>,
    growth_step: Option<usize>,
    alignment: usize,
    miss_policy: MissPolicy,
    magazine_entries: usize,
    magazine_bytes: usize,
}

/// What a pool holds and what it has done. From [`PoolResource::statistics`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Bytes taken from upstream now.
    pub reserved: usize,
    /// The most that was ever reserved at once.
    pub peak_reserved: usize,
    /// Bytes in blocks that users hold.
    pub live: usize,
    /// Blocks that users hold.
    pub live_blocks: usize,
    /// Free bytes: `reserved - live`.
    pub free: usize,
    /// Of the free bytes, those in magazines.
    pub cached: usize,
    /// The largest free block.
    pub largest_free: usize,
    /// Blocks of upstream.
    pub upstream_blocks: usize,
    /// Allocations that found nothing free of their own stream.
    pub misses: usize,
    /// Blocks taken from memory that another stream freed.
    pub steals: usize,
    /// Events recorded.
    pub records: usize,
    /// Waits of one stream for another.
    pub waits: usize,
    /// Upstream allocations.
    pub growths: usize,
    /// Upstream frees.
    pub returns: usize,
}

/// A stream-ordered pool over another resource.
#[derive(Clone, Debug)]
pub struct PoolResource<U = CudaResource> {
    inner: Arc<PoolOptions<U>>,
}
impl Default for MissPolicy {
    fn default() -> Self {
        use Rung::*;
        Self { rungs: vec![Complete, Ordered, Grow, Wait, GrowToMaximum, Gather, Trim] }
    }
}
impl MissPolicy {
    /// The rungs in this order.
    pub fn new(rungs: impl IntoIterator<Item = Rung>) -> Self {
        Self { rungs: rungs.into_iter().collect() }
    }
    /// As RMM does: other streams are made to wait before the pool grows.
    pub fn rmm() -> Self {
        use Rung::*;
        Self { rungs: vec![Wait, Gather, Grow, GrowToMaximum, Trim] }
    }
    /// The rungs.
    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }
}
impl<U: DeviceResource> PoolOptions<U> {
    /// Bytes to take from upstream at once.
    pub fn initial_size(mut self, bytes: usize) -> Self {
        self.initial_size = bytes;
        self
    }
    /// Bytes
    pub fn maximum_size(mut self, bytes: usize) -> Self {
        self.maximum_size = Some(bytes);
        self
    }
    /// Bytes
    pub fn soft_limit(mut self, bytes: usize) -> Self {
        self.soft_limit = Some(bytes);
        self
    }
    /// Bytes
    pub fn growth_step(mut self, bytes: usize) -> Self {
        self.growth_step = Some(bytes);
        self
    }
    /// Bytes; what every block is aligned to. 256 unless said otherwise.
    pub fn alignment(mut self, bytes: usize) -> Self {
        self.alignment = bytes;
        self
    }
    /// What
    pub fn miss_policy(mut self, policy: MissPolicy) -> Self {
        self.miss_policy = policy;
        self
    }
    /// Blocks of one size that a magazine keeps. 0: no magazines.
    pub fn magazine_entries(mut self, entries: usize) -> Self {
        self.magazine_entries = entries;
        self
    }
    /// Bytes that one magazine keeps at most.
    pub fn magazine_bytes(mut self, bytes: usize) -> Self {
        self.magazine_bytes = bytes;
        self
    }
    /// The pool
    pub fn build(self) -> Result<PoolResource<U>> {
        Ok(PoolResource { inner: Arc::new(self) })
    }
}
impl<U: DeviceResource> PoolResource<U> {
    /// A pool
    pub fn new(upstream: U) -> Result<Self> {
        Self::builder(upstream).build()
    }
    /// The options
    pub fn builder(upstream: U) -> PoolOptions<U> {
        PoolOptions {
            upstream,
            initial_size: 0,
            maximum_size: None,
            soft_limit: None,
            growth_step: None,
            alignment: 256,
            miss_policy: MissPolicy::default(),
            magazine_entries: 8,
            magazine_bytes: 32 << 20,
        }
    }
    /// Upstream
    pub fn upstream(&self) -> &U {
        &self.inner.upstream
    }
    /// Gives free upstream blocks back, until `keep` bytes are reserved; returns how many bytes went back. The host waits for the streams that used them.
    pub fn trim(&self, keep: usize) -> Result<usize> {
        let _ = keep;
        Ok(0)
    }
    /// What
    pub fn statistics(&self) -> PoolStatistics {
        PoolStatistics::default()
    }
}

// SAFETY: a passage, for now.
unsafe impl<U: DeviceResource> DeviceResource for PoolResource<U> {
    fn device(&self) -> &Device {
        self.inner.upstream.device()
    }
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.inner.upstream.allocate(stream, layout)
    }
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: passed on.
        unsafe { self.inner.upstream.deallocate(stream, block) }
    }
}

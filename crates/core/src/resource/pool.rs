//! The pool, as a resource over another one.

use super::block::DeviceBlock;
use super::cuda::CudaResource;
use super::device_resource::DeviceResource;
use super::impls::{debug_struct, handle};
use crate::driver::may_not_call;
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::pool::Block;
use crate::stream::Stream;

mod allocate;
mod build;
mod callback;
mod capture;
mod driver;
mod failure;
mod graph_pool;
mod handle;
mod handles;
mod limits;
mod memory_hooks;
mod options;
mod resize;
#[cfg(feature = "nvtx")]
mod sanitizer;
mod siblings;
mod sleep;
mod sleeping;
mod trim;

pub use crate::pool::{PoolBlock, PoolMap, PoolStatistics};
pub use graph_pool::GraphPool;
use handle::PoolHandle;
pub use options::PoolOwner;
pub use options::{Handles, MissPolicy, PoolOptions};
pub(crate) use sleep::Contents;
pub use sleep::SleepReport;

/// A stream-ordered pool over another resource, like RMM's `pool_memory_resource`, without a driver call once it is
/// warm.
///
/// It is a handle, whose clones are the same pool. Use it from any thread, on any stream of its device. A stream reuses
/// its own freed memory without a check. Another stream takes it when the device is past it, or is made to wait for it.
/// The [`MissPolicy`] says which comes first, and when the pool grows instead.
///
/// The pool takes memory from upstream in large blocks. Over [`VirtualResource`](crate::mr::VirtualResource), or with
/// [`Handles::On`], it takes [handles](Handles), which move to where they are wanted. It cuts exact sizes from either,
/// rounded up to 256 bytes. It never holds more than its maximum size, and can always use all of it. Before an
/// out-of-memory error it gathers the memory that all streams and threads have freed, and returns blocks of upstream to
/// get larger ones. If the device has no memory left, its other pools give back their free memory, at first without a
/// wait. They are those of this type, of `FixedSizeResource` and of
/// `BinningResource`. Then the user's [callback](PoolOptions::failure_callback) may free
/// some. Then the host waits for the streams that hold pending memory, until that is enough
/// ([`MissStep::Trim`](crate::mr::MissStep::Trim)). An error names the memory that there is, and what would have
/// helped.
///
/// Handles may be dropped before the vectors that live in the pool, which ends with the last of both. Blocks that were
/// [allocated](DeviceResource::allocate) by hand and not deallocated by then are leaked. The blocks of upstream that
/// they are part of leak with them, and the log gets an error.
///
/// One pool serves up to 65,534 streams at a time, and any number one after the other. Its work for a stream, and on a
/// miss, does not grow with their number. It grows with the number of the streams that grew the pool, of those that
/// have free memory there, and of those that a stream was made to wait for. [`trim`](Self::trim),
/// [`statistics`](Self::statistics), a request that is about to fail and the pool's end look at every stream. A stream
/// of which the pool has the last handle ends when new streams come, and a later one takes over its memory. Among 64
/// streams the next new one does so. Among more, it takes a 64th as many new streams as there are. A stream costs the
/// host some 10 KiB, and as much again for each further thread that uses it.
///
/// Its largest block has 2^40 bytes less its alignment. A larger request is for its upstream.
///
/// Over another pool, give this one a [growth step](PoolOptions::growth_step). By default it takes 2 MiB at least, or
/// the requested size from 1 MiB on.
///
/// On Linux, threads' magazines rely on the system call `membarrier`. If a filter of system calls forbids it, a pool is
/// somewhat slower. A filter that is set after the first pool was made has to allow it, since the process is aborted
/// otherwise.
///
/// The simulated device follows the blocks of pools. It reports a use of a block after its free, an access past its
/// end, and a read of a block that was allocated again and not written since. Blocks have exactly the requested bytes
/// there. [`SimConfig::without_pool_checks`](crate::sim::SimConfig::without_pool_checks) turns it off.
///
/// To make and drop vectors while a stream records a graph, declare the capture with [`Stream::capture`]. On a stream
/// in another capture the pool serves the memory that the stream freed before, and any other request is
/// [`ErrorKind::Capture`](crate::ErrorKind::Capture).
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, PoolResource};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let pool = PoolResource::builder(CudaResource::new(&device))
///     .initial_size(16 << 20)
///     .maximum_size(64 << 20)
///     .build()?;
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, pool.clone())?;
/// assert_eq!(pool.statistics().live, 4096);
/// drop(vec);
/// assert_eq!(pool.statistics().live, 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct PoolResource<U: DeviceResource + 'static = CudaResource> {
    pool: PoolHandle<U>,
}

handle!([U: DeviceResource + 'static] PoolResource<U> { pool });

debug_struct!([U: DeviceResource + 'static] PoolResource<U> { upstream(), statistics() });

impl<U: DeviceResource + 'static> PoolResource<U> {
    /// The resource that the pool takes its memory from.
    pub fn upstream(&self) -> &U {
        &self.pool.upstream().resource
    }

    /// The bytes that the pool has of upstream, free ones included. The name is RMM's. It takes one lock, while
    /// [`statistics`](Self::statistics) asks every stream's memory.
    pub fn pool_size(&self) -> usize {
        if may_not_call() {
            return 0;
        }
        self.pool.reserved_bytes()
    }

    /// The pool's counts of memory and of calls. Exact while no other thread uses it. Zero inside of a
    /// [host function](Stream::launch_host_fn).
    pub fn statistics(&self) -> PoolStatistics {
        if may_not_call() {
            return PoolStatistics::default();
        }
        let mut statistics = self.pool.stats();
        statistics.asleep = self.pool.upstream().sleep.bytes();
        statistics
    }

    /// The places of the pool's memory, and the free parts of it, for tools that draw it. Each thread's cached blocks
    /// become free memory of their streams. Exact while no other thread uses the pool.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, PoolResource};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let pool = PoolResource::new(CudaResource::new(&device))?;
    /// let vec = DeviceVec::<u8>::zeroed_in(&device.new_stream()?, 1000, pool.clone())?;
    /// let map = pool.memory_map();
    /// let held: usize = map.blocks.iter().filter(|block| !block.is_free).map(|it| it.bytes).sum();
    /// assert_eq!(held, 1024);
    /// assert_eq!(map.upstream_blocks.len(), 1);
    /// # drop(vec);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn memory_map(&self) -> PoolMap {
        if may_not_call() {
            return PoolMap::default();
        }
        self.pool.memory_map()
    }

    /// A block from the calling thread's magazines, without a lock.
    #[inline(always)]
    #[doc(hidden)]
    pub fn allocate_cached(
        &self,
        stream: &Stream,
        bytes: usize,
        alignment: usize,
    ) -> Option<DeviceBlock> {
        self.pool.allocate_cached(stream.id(), bytes, alignment as u64).map(device_block)
    }

    /// Like [`allocate_cached`](Self::allocate_cached), for a size in [units](Self::units).
    #[inline(always)]
    #[doc(hidden)]
    pub fn allocate_cached_units(
        &self,
        stream: &Stream,
        units: u32,
        alignment: usize,
    ) -> Option<DeviceBlock> {
        self.pool.allocate_cached_units(stream.id(), units, alignment as u64).map(device_block)
    }

    /// The units of a size, rounded up. `None` if it is larger than a heap.
    #[doc(hidden)]
    pub fn units(&self, bytes: usize) -> Option<u32> {
        self.pool.aligned_units(bytes)
    }

    /// The address of the pool, for the identity of resources made of it.
    #[doc(hidden)]
    pub fn state(&self) -> *const () {
        self.pool.address().cast()
    }
}

/// The request to a pool whose failure is explained.
#[derive(Clone, Copy)]
pub(super) enum Asked<'a> {
    Allocation(DeviceLayout),
    /// A request on a stream that was found in a capture on another thread.
    AllocationElsewhere(DeviceLayout, &'a Stream),
    Initial(usize),
    Trim,
    Capture,
}

impl Asked<'_> {
    fn bytes(self) -> usize {
        match self {
            Self::Allocation(layout) | Self::AllocationElsewhere(layout, _) => layout.bytes(),
            Self::Initial(bytes) => bytes,
            Self::Trim | Self::Capture => 0,
        }
    }
}

/// The pool's block as a resource's.
#[inline(always)]
fn device_block(block: Block) -> DeviceBlock {
    DeviceBlock::new(block.address, block.bytes, block.token)
}

const _: () = assert!(DEFAULT_ALIGNMENT == 256);

//! The pool, as a resource over another one.

use super::block::DeviceBlock;
use super::cuda::CudaResource;
use super::device_resource::DeviceResource;
use super::identity::ResourceId;
use super::impls::{debug_struct, forward, handle};
use crate::debug_log::{POOL, defer_events, deferred_event};
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{is_forked_child, not_forked};
use crate::error::{ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::pool::magazine::Magazine;
use crate::pool::{Block, Failure, MappedMemory, Pool, ThreadMagazine, Upstream};
use crate::stream::{Patience, Stream, deferred};
use std::ptr::NonNull;

mod callback;
mod capture;
mod driver;
mod failure;
mod handle;
mod handles;
mod limits;
mod memory_hooks;
mod options;
mod resize;
#[cfg(feature = "nvtx")]
mod sanitizer;
mod siblings;

pub use crate::pool::{PoolBlock, PoolMap, PoolStatistics};
use driver::PoolDriver;
use handle::PoolHandle;
use memory_hooks::MemoryHooks;
pub use options::PoolOwner;
pub use options::{Handles, MissPolicy, PoolOptions};

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
/// wait. They are those of this type, of [`FixedSizeResource`](crate::mr::FixedSizeResource) and of
/// [`BinningResource`](crate::mr::BinningResource). Then the user's [callback](PoolOptions::failure_callback) may free
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
    /// A pool with default options. It starts empty, grows as it needs to, and has no maximum size but the upstream's.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn new(upstream: U) -> Result<Self> {
        Self::builder(upstream).build()
    }

    /// The options.
    pub fn builder(upstream: U) -> PoolOptions<U> {
        PoolOptions::new(upstream)
    }

    /// The resource that the pool takes its memory from.
    pub fn upstream(&self) -> &U {
        &self.pool.upstream().resource
    }

    /// Gives free memory back to upstream at once, as far as the device is past it, until no more than `keep` bytes are
    /// reserved. Waits for no work of the device. Returns how many bytes went back.
    ///
    /// Whole blocks of upstream go back, so that less than `keep` may be left. If the pool maps its memory, pieces do.
    /// The free of a block may wait for all kernels of the device. So blocks go back if the device has nothing to do,
    /// or will have nothing within 2 ms. Pieces go back whatever the device does.
    /// [`wait_and_trim`](Self::wait_and_trim) gives back memory that the device still uses, too.
    ///
    /// The host's own memory for the returned memory goes, too. The calling thread's caches, some 9 KiB for each
    /// stream, go at once. Those of another thread go when that thread uses the pool again, or ends.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, PoolResource, mr::VirtualResource};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let stream = device.new_stream()?;
    /// let pool = PoolResource::new(VirtualResource::new(&device)?)?;
    /// drop(DeviceVec::<u8>::zeroed_in(&stream, 4 << 20, pool.clone())?);
    /// stream.synchronize()?;
    /// assert_eq!(pool.trim(0)?, 4 << 20);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    #[track_caller]
    pub fn trim(&self, keep: usize) -> Result<usize> {
        let _site = CallSite::enter();
        self.before_trim()?;
        let given = self.pool.trim(keep);
        if given > 0 {
            self.pool.upstream().wait_for_returns();
        }
        Ok(given)
    }

    /// Waits for the streams that freed memory, and gives free memory back to upstream, until no more than `keep` bytes
    /// are reserved. Waits for no stream that has nothing pending here. Returns how many bytes went back. Otherwise it
    /// is like [`trim`](Self::trim).
    ///
    /// # Errors
    ///
    /// - The errors of the driver, if nothing could be given back for them.
    /// - [`ErrorKind::Capture`](crate::ErrorKind::Capture) if a stream of the pool is in capture.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    #[track_caller]
    pub fn wait_and_trim(&self, keep: usize) -> Result<usize> {
        let _site = CallSite::enter();
        self.before_trim()?;
        let given =
            self.pool.wait_and_trim(keep).map_err(|failure| self.explain(failure, Asked::Trim))?;
        if given > 0 {
            self.pool.upstream().wait_for_returns();
        }
        Ok(given)
    }

    fn before_trim(&self) -> Result<()> {
        not_forked("a pool")?;
        deferred::collect_all();
        self.pool.free_deferred_graphs();
        Ok(())
    }

    /// The bytes that the pool has of upstream, free ones included. The name is RMM's. It takes one lock, while
    /// [`statistics`](Self::statistics) asks every stream's memory.
    pub fn pool_size(&self) -> usize {
        if is_forked_child() {
            return 0;
        }
        self.pool.reserved_bytes()
    }

    /// The pool's counts of memory and of calls. Exact while no other thread uses it.
    pub fn statistics(&self) -> PoolStatistics {
        if is_forked_child() {
            return PoolStatistics::default();
        }
        self.pool.stats()
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
        if is_forked_child() {
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

    /// The rest of [`allocate`](DeviceResource::allocate), with the thread's magazine of the stream if its
    /// table has it.
    #[inline(never)]
    fn allocate_past(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
        magazine: Option<NonNull<Magazine>>,
    ) -> Result<DeviceBlock> {
        let (bytes, alignment) = (layout.bytes(), layout.alignment() as u64);
        // A forked child's table has no magazine, nor has any thread's one of a pool that is followed.
        if let Some(magazine) = magazine {
            // SAFETY: of this thread, this pool and this stream, and it lives: the table names it.
            let own = unsafe { self.pool.allocate_own(magazine, stream.id(), bytes, alignment) };
            if let Some(block) = own {
                return Ok(device_block(block));
            }
        }
        self.allocate_cold(stream, layout)
    }

    /// The rest of [`deallocate`](DeviceResource::deallocate), with the thread's magazine likewise.
    ///
    /// # Safety
    ///
    /// The conditions of [`DeviceResource::deallocate`].
    #[inline(never)]
    unsafe fn deallocate_past(
        &self,
        stream: &Stream,
        block: Block,
        magazine: Option<NonNull<Magazine>>,
    ) {
        // SAFETY: the caller's promise; the magazine is of this thread, pool and stream, and the table names it.
        unsafe {
            if !magazine.is_some_and(|it| self.pool.deallocate_own(it, &block)) {
                self.deallocate_cold(stream, block);
            }
        }
    }

    /// Does [`allocate`](DeviceResource::allocate), after [`allocate_cached`](Self::allocate_cached).
    #[inline(never)]
    #[doc(hidden)]
    pub fn allocate_cold(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        not_forked("a pool")?;
        if layout.bytes() == 0 {
            self.device().require(stream.device(), "the stream")?;
            return Ok(DeviceBlock::empty(layout));
        }
        let (bytes, alignment) = (layout.bytes(), layout.alignment() as u64);
        let patience = Patience::new();
        let block = loop {
            let failure = match self.pool.allocate(stream, stream.id(), bytes, alignment) {
                Ok(block) => break block,
                Err(failure) => failure,
            };
            let asked = match failure {
                Failure::Captured => match stream.is_capturing_here(&patience) {
                    Ok(false) => continue,
                    Ok(true) => Asked::Allocation(layout),
                    Err(error) if error.kind() == ErrorKind::Capture => {
                        Asked::AllocationElsewhere(layout, stream)
                    }
                    Err(error) => return Err(error),
                },
                _ => Asked::Allocation(layout),
            };
            return Err(self.explain(failure, asked));
        };
        let Some(hooks) = &self.pool.upstream().hooks else { return Ok(device_block(block)) };
        hooks.region_register(stream, block.address, bytes);
        Ok(DeviceBlock::new(block.address, bytes, block.token))
    }

    /// # Safety
    ///
    /// The conditions of [`DeviceResource::deallocate`].
    #[inline(never)]
    unsafe fn deallocate_cold(&self, stream: &Stream, mut block: Block) {
        if block.bytes > 0 && !is_forked_child() {
            // Before the pool has it: from then on another thread may get the same address.
            let mut _deferred = None;
            if let Some(hooks) = &self.pool.upstream().hooks {
                // A subscriber that hears of a wrong free finds the pool as the free leaves it.
                _deferred = Some(defer_events());
                let is_kept = self.pool.is_kept_for_graph(stream.id(), &block);
                hooks.region_unregister(stream, block.address, block.bytes, is_kept);
                block.bytes = self.pool.round_up(block.bytes);
            }
            // SAFETY: the caller's promise.
            unsafe { self.pool.deallocate(stream, stream.id(), block) }
        }
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

// SAFETY: the heaps hand out disjoint parts of live blocks of upstream, and memory changes streams
// only as `pool` says: complete, or behind an event that was waited for.
unsafe impl<U: DeviceResource + 'static> DeviceResource for PoolResource<U> {
    forward!(device);

    fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        self.pool.upstream().enable_peer_access(peer)
    }

    fn has_peer_access(&self, peer: &Device) -> bool {
        self.pool.upstream().has_peer_access(peer)
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_state::<Self, _>(self.pool.address())
    }

    #[inline(always)]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let (bytes, alignment) = (layout.bytes(), layout.alignment() as u64);
        let warm = |block| Ok(device_block(block));
        let past = |magazine| self.allocate_past(stream, layout, magazine);
        // SAFETY: `allocate_past` uses the magazine first.
        unsafe { self.pool.allocate_cached_or(stream.id(), bytes, alignment, warm, past) }
    }

    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        self.allocate_with_room(stream, layout)
    }

    #[track_caller]
    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        let _site = CallSite::enter();
        // SAFETY: the caller's promise.
        unsafe { self.resize(stream, block, bytes) }
    }

    fn thread_magazine(&self, stream: &Stream) -> Option<ThreadMagazine> {
        self.pool.thread_magazine(stream.id())
    }

    #[inline(always)]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let (address, bytes, token) = (block.address(), block.bytes(), block.token());
        let block = Block { address, bytes, token };
        // SAFETY: the caller's promise.
        unsafe {
            self.pool.deallocate_to_cache(stream.id(), block, |block, magazine| {
                self.deallocate_past(stream, block, magazine);
            });
        }
    }
}

impl<U: DeviceResource + 'static> PoolOptions<U> {
    /// Builds the pool.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for an option that makes no sense, or not
    ///   with another.
    /// - [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if upstream has not the initial size.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn build(self) -> Result<PoolResource<U>> {
        not_forked("a pool")?;
        let mut settings = self.check()?;
        let initial = self.initial_size;
        let maximum = settings.limits.has_maximum().then(|| settings.limits.maximum());
        let hooks = MemoryHooks::find(self.upstream.device());
        let memory = self.mapped_memory(hooks.as_ref().is_some_and(MemoryHooks::has_tool))?;
        let driver = PoolDriver::new(self.upstream, self.alignment, self.owner, memory, hooks);
        let granule = driver.mapped().map_or(0, MappedMemory::granularity) as usize;
        ensure!(
            maximum.is_none_or(|maximum| maximum >= granule),
            InvalidArgument,
            "make the maximum size larger, or have the pool take blocks, by Handles::Off",
            "a pool's maximum size, {}, is less than the least that it maps, {}",
            Count(maximum.unwrap_or(0), "byte"),
            Count(granule, "byte")
        );
        if let Some(maximum) = maximum.filter(|_| granule > 0) {
            settings.limits.set_maximum(maximum & !(granule - 1));
        }
        if let Some(hooks) = &driver.hooks {
            settings.listed = true;
            if hooks.has_tool() {
                settings.entries = 0;
            }
        }
        // One that cannot grow again keeps all.
        let grows = settings.steps.iter().any(|step| step.asks_upstream());
        let keep = if grows { initial } else { usize::MAX };
        let pool = PoolResource { pool: PoolHandle::new(Pool::new(driver, settings), keep) };
        let (number, device) = (pool.pool.id(), pool.device().ordinal());
        if let Some(hooks) = &pool.pool.upstream().hooks {
            hooks.set_pool(number);
        }
        if let Some(callback) = self.failure_callback {
            pool.set_callback(callback);
        }
        if pool.release_threshold().is_some() {
            pool.pool.release_after_waits();
        }
        let handles = pool.maps_handles();
        deferred_event!(
            debug, target: POOL, pool = number, device, initial, maximum, handles, "pool made"
        );
        if initial > 0 {
            let prepared = pool.pool.prepare(initial);
            prepared.map_err(|failure| pool.explain(failure, Asked::Initial(initial)))?;
        }
        Ok(pool)
    }
}

const _: () = assert!(DEFAULT_ALIGNMENT == 256);

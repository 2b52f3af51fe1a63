//! The pool of page-locked memory, as an allocator and as a resource.

use super::address_map::{self, SlabOwner};
use super::allocator::{HostAllocator, catch_panic_and_error, implement_allocators};
use super::batch::{Batch, FreedBlock};
use super::pinned_resource::{PinnedResource, allocate_device_block, host_pointer, token};
use super::pool_core::PoolCore;
use super::pool_options::{NO_MAXIMUM, PinnedPoolOptions, require_maximum};
use super::pool_statistics::PinnedPoolStatistics;
use super::siblings::{self, Sibling};
use super::thread_cache::{self, PoolKey};
use crate::device::Device;
use crate::driver::{is_forked_child, is_in_host_function, may_not_call, not_forked};
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::impls::{equal_by_identity, forward};
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible, ResourceId};
use crate::stream::{Stream, collect_all_after, deferred};
use crate::sync::{Arc, Weak};
use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;

/// A pool of page-locked host memory. It splits and joins large slabs of a [`PinnedResource`]. So a `Vec` costs
/// nanoseconds, while the driver takes a millisecond for each three megabytes. It is a handle, whose clones are the
/// same pool.
///
/// It is an allocator for the host's collections and a [`DeviceResource`] whose memory both sides reach. Sizes are
/// rounded up to the next 64 bytes, not to powers of two.
///
/// **A freed block waits for the device.** It is allocated again when a fence has *passed* that was recorded after the
/// free on every context that Aquifer opened or was given. The order of streams is not enough, since it does not stop
/// the CPU. So a `Vec` may be dropped while another library still copies from it. Frees make no driver call. About one
/// allocation in 64 records a fence, which covers all frees before it. No fence is recorded while a stream may be in
/// capture, which it would invalidate, so blocks wait for the capture's end. The bytes that wait are
/// [bounded](PinnedPoolOptions::quarantine_bytes). [`unfenced`](PinnedPoolOptions::unfenced) is for programs that do
/// not need the wait.
///
/// **No allocation waits for the device**, unless the pool was [told to](PinnedPoolOptions::wait_for_device). If a
/// fence does not pass, since a stream is busy for long, the pool looks for users of freed memory. Aquifer's own
/// transfers and scopes keep theirs until they are done with it. The other users are the default stream, streams whose
/// handle was given away, streams of other libraries, and kernels that got a
/// [`MappedAlloc::device_address`](crate::MappedAlloc). Without the last two the block is free when the first two have
/// passed, however busy other streams are. Otherwise the pool grows to its bounds. If the machine has no more, other
/// pools of page-locked memory unpin their free memory. Then the [callback](PinnedPoolOptions::failure_callback) of the
/// user is asked, and after it the pool refuses with an error that names the busy streams.
///
/// Blocks stay valid when the last handle goes. Each slab goes back to the driver with its last block, in a later call
/// that allocates or trims page-locked memory, since the device may still use it before. The largest block has 256 GiB
/// less 64 bytes. A [`PinnedResource`] gives larger ones.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{Device, pinned::{PinnedPool, PinnedResource}};
///
/// let pool = PinnedPool::new(PinnedResource::new(&Device::detect_or_simulate()?)?)?;
/// for batch in 0..1000 {
///     let mut vec: Vec<f32, PinnedPool> = Vec::with_capacity_in(10_000, pool.clone());
///     vec.resize(10_000, batch as f32);
/// }
/// assert!(pool.statistics().reserved < 64 << 20);
/// pool.trim()?; // all of it goes back to the driver
/// assert_eq!(pool.statistics().reserved, 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct PinnedPool {
    handle: Arc<PoolHandle>,
}

/// The handle that all clones share. Its drop closes the pool.
struct PoolHandle(Arc<PoolCore>);

impl Drop for PoolHandle {
    fn drop(&mut self) {
        if is_in_host_function() {
            let core = self.0.clone();
            return deferred::defer(None, move || core.close());
        }
        // Containers drop their allocator, which may not unwind.
        let _ = catch_panic_and_error(|| {
            self.0.close();
            Ok(())
        });
    }
}

impl Sibling for PoolHandle {
    fn device(&self) -> &Device {
        &self.0.source().device
    }

    fn number(&self) -> u64 {
        self.0.key.id.number()
    }

    fn reserved_and_free(&self) -> (usize, usize) {
        let now = self.0.statistics();
        (now.reserved, now.reserved.saturating_sub(now.live))
    }

    fn give_back(&self, waits: bool) -> usize {
        self.0.give_back(waits)
    }
}

impl PinnedPool {
    /// A pool over `upstream` that takes memory when it is first asked for some.
    ///
    /// # Errors
    ///
    /// The errors of [`PinnedPoolOptions::build`].
    pub fn new(upstream: PinnedResource) -> Result<Self> {
        Self::builder(upstream).build()
    }

    /// The options, as [`new`](Self::new) sets them.
    pub fn builder(upstream: PinnedResource) -> PinnedPoolOptions {
        PinnedPoolOptions::new(upstream)
    }

    pub(super) fn key(&self) -> PoolKey {
        self.core().key
    }

    fn core(&self) -> &PoolCore {
        &self.handle.0
    }

    /// The resource that its slabs come from.
    pub fn upstream(&self) -> &PinnedResource {
        &self.core().options.upstream
    }

    /// The numbers of the pool now. Exact while no other thread uses it.
    pub fn statistics(&self) -> PinnedPoolStatistics {
        if may_not_call() {
            return PinnedPoolStatistics::default();
        }
        self.core().statistics()
    }

    /// Waits until the device is past all its work, and unpins every slab of which nothing is in use.
    /// Returns how many bytes went back.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Capture`](crate::ErrorKind::Capture) while freed blocks wait and a stream is in capture, which
    ///   waiting would invalidate.
    /// - [`ErrorKind::ContextLost`](crate::ErrorKind::ContextLost) while freed blocks wait for a device that is lost.
    ///   They are leaked then, and count as live.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn trim(&self) -> Result<usize> {
        self.trim_to(0)
    }

    /// Like [`trim`](Self::trim), as long as the pool keeps `keep` bytes.
    ///
    /// # Errors
    ///
    /// As [`trim`](Self::trim).
    pub fn trim_to(&self, keep: usize) -> Result<usize> {
        collect_all_after(&self.core().source().device);
        self.core().trim(keep)
    }

    /// The most bytes that the pool takes from upstream. `None` is for no limit.
    pub fn maximum_size(&self) -> Option<usize> {
        Some(self.core().maximum_size()).filter(|bytes| *bytes < NO_MAXIMUM)
    }

    /// Changes the [maximum](PinnedPoolOptions::maximum_size). A pool that has more keeps it, and takes no more.
    ///
    /// ```
    /// use aquifer::{Device, ErrorKind, pinned::{PinnedPool, PinnedResource}};
    ///
    /// let pool = PinnedPool::new(PinnedResource::new(&Device::detect_or_simulate()?)?)?;
    /// pool.set_maximum_size(Some(64 << 20))?;
    /// assert_eq!(pool.maximum_size(), Some(64 << 20));
    /// assert_eq!(pool.set_maximum_size(Some(1)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for 0 and for no whole pages, and
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn set_maximum_size(&self, bytes: Option<usize>) -> Result<()> {
        not_forked("page-locked memory")?;
        let bytes = bytes.unwrap_or(NO_MAXIMUM);
        require_maximum(bytes)?;
        self.core().set_maximum_size(bytes);
        Ok(())
    }

    /// Bytes that the pool keeps when more is free, those in use included. `None` if it keeps all until it is trimmed.
    pub fn release_threshold(&self) -> Option<usize> {
        Some(self.core().release_threshold()).filter(|bytes| *bytes < usize::MAX)
    }

    /// Changes the [release threshold](PinnedPoolOptions::release_threshold). `None` is for no threshold.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn set_release_threshold(&self, bytes: Option<usize>) -> Result<()> {
        not_forked("page-locked memory")?;
        self.core().set_release_threshold(bytes.unwrap_or(usize::MAX));
        self.core().release();
        Ok(())
    }
}

impl PinnedPoolOptions {
    /// Builds the pool.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if an option cannot be kept. Such are a
    ///   maximum of 0 or of no whole pages, an initial size above it, a growth step of 0, and more than 8 entries.
    /// - [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is no room for the initial size.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn build(self) -> Result<PinnedPool> {
        let initial_size = self.validate()?;
        // From here on a failure closes the pool.
        let pool = PinnedPool { handle: Arc::new(PoolHandle(PoolCore::new(self))) };
        let weak: Weak<PoolHandle> = Arc::downgrade(&pool.handle);
        siblings::register(weak);
        pool.core().reserve_initial(initial_size)?;
        Ok(pool)
    }
}

// SAFETY: live blocks of the heap are disjoint and as large as asked; a slab stays while a block of it
// is live.
unsafe impl HostAllocator for PinnedPool {
    #[inline(always)]
    fn allocate_fast(&self, layout: Layout) -> Option<NonNull<[u8]>> {
        thread_cache::allocate(self.key(), layout)
    }

    fn allocate_slow(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        self.core().allocate_slow(layout)
    }

    #[inline(always)]
    unsafe fn free_fast(&self, pointer: NonNull<u8>, layout: Layout) -> bool {
        let block = FreedBlock::new(pointer.addr().get(), layout.size());
        let Some(block) = block else { return true };
        if is_forked_child() {
            return true;
        }
        // SAFETY: a live block of this pool, which the caller gives up; an unfenced pool's user
        // vouches for the device.
        unsafe { thread_cache::free(self.key(), block, |batch| quarantine(self.core(), batch)) }
    }

    unsafe fn free_slow(&self, pointer: NonNull<u8>, layout: Layout) {
        if is_in_host_function() {
            // SAFETY: the caller's promise; it is deferred there, and found to be this pool's.
            return unsafe { address_map::free(pointer, layout) };
        }
        if let Some(block) = FreedBlock::new(pointer.addr().get(), layout.size()) {
            // SAFETY: the caller's promise.
            unsafe { self.core().free_slow(block, self.key().fenced) }
            self.core().release();
        }
    }
}

/// Puts a full batch into quarantine, which the fast path does once in many frees.
#[cold]
#[inline(never)]
fn quarantine(core: &PoolCore, batch: Batch) {
    let _ = catch_panic_and_error(|| {
        core.quarantine(batch);
        core.release();
        Ok(())
    });
}

implement_allocators!([] PinnedPool);

// Two are equal if they are one pool.
equal_by_identity!(PinnedPool);

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PinnedPool").field(&self.core().options).finish_non_exhaustive()
    }
}

// SAFETY: live blocks of the heap are disjoint; a freed one waits for a fence of every context, which
// is later than any stream's order, in an unfenced pool too. Slabs outlive their blocks. The token is
// the host's address.
unsafe impl DeviceResource for PinnedPool {
    forward!(device);

    fn identity(&self) -> ResourceId {
        ResourceId::of_state::<Self, _>(Arc::as_ptr(&self.handle))
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        allocate_device_block(self, self.upstream(), stream, layout)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if is_in_host_function() {
            let (pool, stream) = (self.clone(), stream.clone());
            // SAFETY: the caller's promise, which a later moment keeps as well.
            return deferred::defer(None, move || unsafe { pool.deallocate(&stream, block) });
        }
        if let Some(block) = FreedBlock::new(block.token() as usize, block.bytes()) {
            // SAFETY: the caller gives the block up; the fence comes after all work given so far.
            unsafe { self.core().free_slow(block, true) };
        }
    }
}

// SAFETY: a freed block waits for a fence of every context; its host address, the token, is all of it.
unsafe impl HostAccessible for PinnedPool {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        host_pointer(block)
    }

    unsafe fn block_at(&self, pointer: NonNull<u8>, layout: DeviceLayout) -> DeviceBlock {
        DeviceBlock::new(token(pointer), layout.bytes(), token(pointer))
    }
}

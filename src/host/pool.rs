//! The pool of page-locked memory, as an allocator and as a resource.

use super::allocator::implement_allocators;
use super::blocks;
use super::lane::{self, Block, Put, pointer_to, units_of};
use super::mapped::{address_of, host_layout};
use super::pinned::PinnedResource;
use super::pool_options::{PinnedPoolOptions, PinnedPoolStatistics};
use super::slabs::{Core, Settings};
use crate::backend::is_forked_child;
use crate::device::Device;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible, HostComplete, ResourceId};
use crate::stream::Stream;
use crate::sync::Arc;
use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;

/// A pool of page-locked host memory: large slabs of a [`PinnedResource`], split and joined, so that
/// a `Vec` costs nanoseconds where the driver takes a millisecond for each three megabytes. A
/// handle: clones are the same pool.
///
/// It is an allocator for the host's collections and a [`DeviceResource`] whose memory both sides
/// reach. Sizes are kept to the next 64 bytes; nothing is rounded to powers of two.
///
/// **A freed block waits for the device.** It is handed out again when a fence, recorded after the
/// free on every context that Aquifer opened or was given, has *passed*: the order of streams is not
/// enough, since it does not stop the CPU. So a `Vec` may be dropped while another library still
/// copies from it. Frees make no driver call; about one allocation in 64 records a fence for all the
/// frees before it. No fence is recorded while a stream may be in capture, which it would
/// invalidate: blocks wait for the capture's end. What waits is [bounded](PinnedPoolOptions::quarantine_bytes).
/// [`unfenced`](PinnedPoolOptions::unfenced) is for programs that do not need the wait.
///
/// Blocks stay valid when the last handle goes; each slab goes back with its last block.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{Device, PinnedPool, PinnedResource};
///
/// let pool = PinnedPool::new(PinnedResource::new(&Device::detect()?)?)?;
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
    handle: Arc<Handle>,
}

/// What all clones share. Its drop closes the pool.
struct Handle {
    core: Arc<Core>,
    upstream: PinnedResource,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Containers drop their allocator, which may not unwind.
        let _ = super::allocator::shielded(|| {
            self.core.close();
            Ok(())
        });
    }
}

impl PinnedPool {
    /// A pool over `upstream` that takes memory when it is first asked for some.
    ///
    /// # Errors
    ///
    /// As [`PinnedPoolOptions::build`].
    pub fn new(upstream: PinnedResource) -> Result<Self> {
        Self::builder(upstream).build()
    }

    /// The options, as [`new`](Self::new) sets them.
    pub fn builder(upstream: PinnedResource) -> PinnedPoolOptions {
        PinnedPoolOptions::new(upstream)
    }

    pub(super) fn open(
        upstream: PinnedResource,
        settings: Settings,
        initial_size: usize,
    ) -> Result<Self> {
        let core = Core::new(upstream.source().clone(), settings);
        // From here on a failure closes the pool.
        let pool = Self { handle: Arc::new(Handle { core, upstream }) };
        pool.core().start(initial_size)?;
        Ok(pool)
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    /// Where its slabs come from.
    pub fn upstream(&self) -> &PinnedResource {
        &self.handle.upstream
    }

    /// What the pool holds and has done. Exact while no other thread uses it.
    pub fn statistics(&self) -> PinnedPoolStatistics {
        if is_forked_child() {
            return PinnedPoolStatistics::default();
        }
        PinnedPoolStatistics::of(self.core())
    }

    /// Waits until the device is past all its work, and unpins every slab of which nothing is in use.
    /// Returns how many bytes went back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`](crate::ErrorKind::Capture) while freed blocks wait and a stream is in
    /// capture, which waiting would invalidate; [`ErrorKind::Forked`](crate::ErrorKind::Forked) in
    /// the child of a fork.
    pub fn trim(&self) -> Result<usize> {
        self.core().trim()
    }

    pub(super) fn obtain(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        if layout.size() == 0 {
            return Ok(NonNull::slice_from_raw_parts(layout.dangling_ptr(), 0));
        }
        self.core().obtain(layout)
    }

    #[inline(always)]
    fn warm(&self, layout: Layout) -> Option<NonNull<[u8]>> {
        lane::take(self.core().key(), layout)
    }

    /// # Safety
    ///
    /// As `Allocator::deallocate`; done if it says so.
    #[inline(always)]
    unsafe fn warm_back(&self, pointer: NonNull<u8>, layout: Layout) -> bool {
        let Some(units) = units_of(layout.size()) else { return true };
        if is_forked_child() {
            return true;
        }
        let block = Block { address: pointer.addr().get(), units };
        // SAFETY: a live block of this pool, which the caller gives up; an unfenced pool's user
        // vouches for the device.
        match unsafe { lane::put(self.core().key(), block) } {
            Put::Done => true,
            Put::Full(batch) => {
                queue(self.core(), batch);
                true
            }
            Put::NotHere => false,
        }
    }

    /// # Safety
    ///
    /// As `Allocator::deallocate`.
    unsafe fn give_back(&self, pointer: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { give_back(self.core(), pointer, layout, self.core().key().fenced) }
    }

    /// # Safety
    ///
    /// As `Allocator::grow` and `Allocator::shrink`.
    unsafe fn resize(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>> {
        let obtain = |layout| self.obtain(layout);
        // SAFETY: the caller's promise.
        unsafe { super::allocator::resize(obtain, pointer, old, new) }
    }
}

/// The part of a free that is not worth its place in every free.
#[cold]
#[inline(never)]
pub(super) fn queue(core: &Core, batch: Box<lane::Batch>) {
    let _ = super::allocator::shielded(|| {
        core.queue(batch);
        Ok(())
    });
}

/// # Safety
///
/// The block is live, of this pool, and given up; where `fenced` is false no device work may use it
/// any more.
pub(super) unsafe fn give_back(core: &Core, pointer: NonNull<u8>, layout: Layout, fenced: bool) {
    if let Some(units) = units_of(layout.size()) {
        let block = Block { address: pointer.addr().get(), units };
        // SAFETY: the caller's promise.
        unsafe { core.give_back(block, fenced) }
    }
}

implement_allocators!([] PinnedPool);

/// Two are equal if they are one pool.
impl PartialEq for PinnedPool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }
}

impl Eq for PinnedPool {}

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedPool")
            .field("upstream", self.upstream())
            .field("settings", &self.core().settings)
            .finish_non_exhaustive()
    }
}

// SAFETY: live blocks of the heap are disjoint; a freed one waits for a fence of every context, which
// is later than any stream's order, in an unfenced pool too. Slabs outlive their blocks. The token is
// the host's address.
unsafe impl DeviceResource for PinnedPool {
    fn device(&self) -> &Device {
        self.upstream().device()
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_state::<Self, _>(Arc::as_ptr(&self.handle))
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.device().require(stream.device(), "the stream")?;
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        self.upstream().require_mapped()?;
        let host_layout = host_layout(layout)?;
        let block = match self.warm(host_layout) {
            Some(block) => block,
            None => self.obtain(host_layout)?,
        };
        let pointer = block.cast::<u8>();
        match address_of(pointer) {
            Ok(address) => {
                let token = pointer.addr().get() as u64;
                Ok(DeviceBlock::new(address, layout.bytes(), token))
            }
            Err(error) => {
                // SAFETY: allocated above, and given to nobody.
                unsafe { give_back(self.core(), pointer, host_layout, true) };
                Err(error)
            }
        }
    }

    unsafe fn deallocate(&self, _stream: &Stream, block: DeviceBlock) {
        if let Some(pointer) = pointer_to(block.token() as usize).filter(|_| !block.is_empty()) {
            let layout = Layout::from_size_align(block.bytes(), 1).unwrap_or(Layout::new::<u8>());
            // SAFETY: the caller gives the block up; the fence comes after all work given so far.
            unsafe { give_back(self.core(), pointer, layout, true) };
        }
    }
}

// SAFETY: the token is the host's address of the block, valid until it is deallocated.
unsafe impl HostAccessible for PinnedPool {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        super::pinned::host_pointer(block)
    }
}

// SAFETY: blocks that are deallocated as a resource wait for a fence of every context, and a block's
// host address is all that `deallocate` needs.
unsafe impl HostComplete for PinnedPool {
    unsafe fn block_at(&self, pointer: NonNull<u8>, layout: DeviceLayout) -> DeviceBlock {
        let token = pointer.addr().get() as u64;
        DeviceBlock::new(token, layout.bytes(), token)
    }
}

/// Frees a block of any pool, or of any source, by the process's map.
///
/// # Safety
///
/// As `Allocator::deallocate` for a block of any allocator of this room, of a nonzero size.
pub(super) unsafe fn give_back_by_map(pointer: NonNull<u8>, layout: Layout) {
    // SAFETY: the caller's promise.
    if let Some(slab) = unsafe { blocks::release(pointer) } {
        blocks::remember(pointer.addr().get(), &slab);
        // SAFETY: as above; the slab is its pool's, and keeps it.
        unsafe { give_back(&slab.core, pointer, layout, slab.core.key().fenced) }
    }
}

/// Frees a block of a slab that this thread remembers.
///
/// # Safety
///
/// As [`give_back_by_map`], for any size; done if it says so.
#[inline(always)]
pub(super) unsafe fn warm_back_by_map(pointer: NonNull<u8>, layout: Layout) -> bool {
    let Some(units) = units_of(layout.size()) else { return layout.size() == 0 };
    if is_forked_child() {
        return true;
    }
    let address = pointer.addr().get();
    let Some(key) = blocks::seen(address) else { return false };
    // SAFETY: the slab around the live block is this pool's, and the caller gives the block up.
    match unsafe { lane::put(key, Block { address, units }) } {
        Put::Done => true,
        Put::Full(batch) => {
            queue_by_map(address, batch);
            true
        }
        Put::NotHere => false,
    }
}

/// A full batch goes to the pool of a block that is in it.
#[cold]
#[inline(never)]
fn queue_by_map(address: usize, batch: Box<lane::Batch>) {
    let _ = super::allocator::shielded(|| {
        if let Some(blocks::Entry { owner: blocks::Owner::Slab(slab), .. }) = blocks::find(address)
        {
            slab.core.queue(batch);
        }
        Ok(())
    });
}

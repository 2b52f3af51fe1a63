//! A pool as a resource: allocation and free.

use super::{Asked, PoolResource, device_block};
use crate::debug_log::defer_events;
use crate::device::Device;
use crate::driver::{CallSite, is_forked_child, is_in_host_function, not_forked};
use crate::error::{ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::pool::magazine::Magazine;
use crate::pool::{Block, Failure, ThreadMagazine};
use crate::resource::block::DeviceBlock;
use crate::resource::device_resource::DeviceResource;
use crate::resource::identity::ResourceId;
use crate::resource::impls::forward;
use crate::stream::{Patience, Stream, deferred};
use std::ptr::NonNull;

impl<U: DeviceResource + 'static> PoolResource<U> {
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
            if matches!(failure, Failure::Asleep) {
                let woken = self.pool.upstream().sleep.waker().map(|waker| waker());
                // It, or another thread, has woken it by now.
                if !self.is_asleep() {
                    continue;
                }
                if let Some(Err(error)) = woken {
                    return Err(error);
                }
            }
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
        if is_in_host_function() {
            let (pool, stream) = (self.clone(), stream.clone());
            // SAFETY: the caller's promise, which a later moment keeps as well.
            return deferred::defer(None, move || unsafe { pool.deallocate_cold(&stream, block) });
        }
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

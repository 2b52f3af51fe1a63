//! The process-wide map from addresses to page-locked memory. It has the slabs of pools, and the blocks that came from
//! the driver one by one. It also has memory of other allocators that was page-locked where it lies, which is found for
//! its address on the device alone.
//!
//! `deallocate` finds the owner of a block here, never through the current resource, so any allocator
//! handle on any thread frees any block. A thread remembers the slabs that it last freed into, so its
//! fast path does not come here.
//!
//! | word | what it guards or says | who writes it |
//! | --- | --- | --- |
//! | `RANGES` | the map | threads that allocate from the driver, free to it, or add or remove a slab; never held over a driver call |
//! | `SLABS_REMOVED` | how many slabs have left the map | the thread that removed one, after that |
//! | `RECENT`, `RECENT_BY_PART`, `NEXT` | the slabs that a thread remembers | that thread |

use super::batch::{Batch, FreedBlock, exposed_pointer};
use super::ordinary;
use super::source::{HostMemory, HostSource};
use super::thread_cache::PoolKey;
use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::driver::{is_forked_child, is_in_host_function, not_forked};
use crate::error::{Error, ErrorKind, Result};
use crate::stream::deferred;
use crate::sync::trusted::{AtomicU64, Ordering, RwLock, thread_local};
use crate::sync::{Arc, LazyLock, OnceLock};
use std::alloc::Layout;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;

/// The ranges by [`Range::base`].
static RANGES: LazyLock<RwLock<BTreeMap<usize, Arc<Range>>>> = LazyLock::new(RwLock::default);

/// The number of slabs that have left the map. A thread that frees a block of a new slab at an old slab's address got
/// the block after the old slab was removed, so it sees that this has changed.
static SLABS_REMOVED: AtomicU64 = AtomicU64::new(0);

/// One allocation of the driver.
#[derive(Debug)]
pub(super) struct Range {
    /// Its address was exposed when it came into the map.
    pub(super) base: usize,
    pub(super) bytes: usize,
    source: Arc<HostSource>,
    /// The pool of a slab, which the slab keeps alive. Any other range is one block.
    pub(super) pool: Option<Arc<dyn SlabOwner>>,
    /// Whether another allocator owns the memory. It is found for its address on the device alone, and never freed
    /// here.
    is_registered: bool,
    /// The device's address of `base`, once it was asked for.
    device_address: OnceLock<u64>,
}

/// A pool, as the blocks of its slabs need it.
pub(super) trait SlabOwner: fmt::Debug + Send + Sync {
    fn key(&self) -> PoolKey;

    /// The size of a block that is live.
    fn block_units(&self, address: usize) -> Option<u32>;

    /// Frees a block that the calling thread's cache did not take, or that was not offered to it.
    ///
    /// # Safety
    ///
    /// The block is live, of this pool, and given up. If `fenced` is false, no device work may use it any more.
    unsafe fn free_slow(&self, block: FreedBlock, fenced: bool);

    /// Takes a batch of freed blocks that no fence covers.
    fn quarantine(&self, batch: Batch);

    /// Unpins free memory above the release threshold, if the devices have nothing to do. Called behind a free, with no
    /// lock held.
    fn release(&self);
}

/// Allocates from the driver, and puts the range in.
pub(super) fn allocate(
    source: &Arc<HostSource>,
    layout: Layout,
    pool: Option<Arc<dyn SlabOwner>>,
) -> Result<HostMemory> {
    let memory = source.allocate(layout)?;
    let (base, bytes, source) =
        (memory.base.expose_provenance().get(), memory.bytes, source.clone());
    let device_address = OnceLock::new();
    let range = Range { base, bytes, source, pool, is_registered: false, device_address };
    RANGES.write().insert(base, Arc::new(range));
    Ok(memory)
}

/// Puts memory in that was page-locked where it lay.
pub(super) fn add_registered(source: &Arc<HostSource>, pointer: NonNull<u8>, bytes: usize) {
    let base = pointer.expose_provenance().get();
    let (source, device_address) = (source.clone(), OnceLock::new());
    let range = Range { base, bytes, source, pool: None, is_registered: true, device_address };
    RANGES.write().insert(base, Arc::new(range));
}

/// Takes such memory off the map, before it is unlocked. The caller is no child of a fork.
pub(super) fn remove_registered(pointer: NonNull<u8>) {
    let removed = RANGES.write().remove(&pointer.addr().get());
    // Not under the lock.
    drop(removed);
}

/// The range that holds `address`. None is found in the child of a fork.
pub(super) fn find(address: usize) -> Option<Arc<Range>> {
    // The child may have inherited the lock in a locked state; its copy of the memory goes with it.
    if is_forked_child() {
        return None;
    }
    let ranges = RANGES.read();
    let (base, range) = ranges.range(..=address).next_back()?;
    (address - base < range.bytes).then(|| range.clone())
}

/// Frees the block that holds `pointer` to its owner. No driver call, no context.
///
/// # Safety
///
/// The conditions of `Allocator::deallocate` for a block of any allocator of this module, of a nonzero size.
pub(super) unsafe fn free(pointer: NonNull<u8>, layout: Layout) {
    // As in `find`.
    if is_forked_child() {
        return;
    }
    let address = pointer.addr().get();
    if is_in_host_function() {
        return deferred::defer(None, move || {
            let Some(pointer) = exposed_pointer(address) else { return };
            // SAFETY: the caller's promise, which a later moment keeps as well.
            unsafe { free(pointer, layout) };
        });
    }
    let Some(range) = find(address).filter(|range| !range.is_registered) else {
        // SAFETY: the caller's promise.
        if unsafe { ordinary::free(pointer) } {
            return;
        }
        return deferred_event!(
            error,
            address = format_args!("{address:#x}"),
            "a pointer was freed that is no page-locked block of this process: ignored"
        );
    };
    let Some(pool) = &range.pool else {
        // The block is live, so no other thread removes it.
        RANGES.write().remove(&range.base);
        if let Some(base) = exposed_pointer(range.base) {
            range.source.quarantine(base, range.bytes);
        }
        return;
    };
    remember_slab(address, &range, pool.key());
    if let Some(block) = FreedBlock::new(address, layout.size()) {
        // SAFETY: the caller's promise, and the block lies in a slab of this pool.
        unsafe { pool.free_slow(block, pool.key().fenced) }
        pool.release();
    }
}

/// Takes a slab off the map, of which nothing is live.
pub(super) fn remove_slab(base: usize) {
    let removed = RANGES.write().remove(&base);
    // Relaxed: a thread that could find an old slab at a new one's address learnt of the new one
    // later than this, through whatever handed it the block.
    SLABS_REMOVED.fetch_add(1, Ordering::Relaxed);
    // Not under the lock: it may be the last handle of the pool.
    drop(removed);
}

/// The device's address of a byte in a mapped block, and the range of it.
pub(super) fn device_address_and_range(pointer: NonNull<u8>) -> Result<(u64, Arc<Range>)> {
    not_forked("page-locked memory")?;
    let address = pointer.addr().get();
    let range = find(address).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{pointer:p} is not in page-locked memory of this crate"),
        )
        .with_advice(
            "use memory of MappedAlloc or of a mapped PinnedResource, or a Registered buffer",
        )
    })?;
    let base = match range.device_address.get() {
        Some(base) => *base,
        // Two threads that ask at once get one answer.
        None => {
            let base = exposed_pointer(range.base).unwrap_or(pointer);
            let base = range.source.device_address(base)?;
            *range.device_address.get_or_init(|| base)
        }
    };
    Ok((base + (address - range.base) as u64, range))
}

/// The device's address of mapped memory, and the device whose address it is.
pub(crate) fn device_address(pointer: NonNull<u8>) -> Result<(u64, Device)> {
    device_address_and_range(pointer).map(|(address, range)| (address, range.source.device.clone()))
}

/// Slabs that a thread remembers.
const RECENT_MAX: usize = 8;

/// Parts of the address space, of 1 MiB each, for which a thread remembers which of its slabs it last
/// freed into.
const REGIONS: usize = 256;
const PART: u32 = 20;

/// A slab that a thread has freed into.
#[derive(Clone, Copy)]
struct RecentSlab {
    base: usize,
    bytes: usize,
    key: PoolKey,
    /// The value of [`SLABS_REMOVED`] at that time. The slab may be gone once that has changed.
    removed: u64,
}

const NO_SLAB: RecentSlab = RecentSlab { base: 0, bytes: 0, key: PoolKey::NONE, removed: 0 };

thread_local! {
    static RECENT: [Cell<RecentSlab>; RECENT_MAX] = const { [const { Cell::new(NO_SLAB) }; RECENT_MAX] };
    static RECENT_BY_PART: [Cell<u8>; REGIONS] = const { [const { Cell::new(0) }; REGIONS] };
    /// The place in `RECENT` that is overwritten next.
    static NEXT: Cell<u8> = const { Cell::new(0) };
}

#[inline(always)]
fn still_contains(slab: &RecentSlab, address: usize) -> bool {
    address.wrapping_sub(slab.base) < slab.bytes
        && slab.removed == SLABS_REMOVED.load(Ordering::Relaxed)
}

/// The pool of a live block, if the calling thread remembers its slab.
#[inline(always)]
pub(super) fn remembered_pool_of(address: usize) -> Option<PoolKey> {
    let place = RECENT_BY_PART.with(|places| places[(address >> PART) % REGIONS].get());
    let slab = RECENT.with(|slabs| slabs[place as usize % RECENT_MAX].get());
    if still_contains(&slab, address) { Some(slab.key) } else { search_recent(address) }
}

#[cold]
fn search_recent(address: usize) -> Option<PoolKey> {
    let place =
        RECENT.with(|slabs| slabs.iter().position(|slab| still_contains(&slab.get(), address)))?;
    RECENT_BY_PART.with(|places| places[(address >> PART) % REGIONS].set(place as u8));
    RECENT.with(|slabs| Some(slabs[place].get().key))
}

/// Remembers the slab of a live block for [`remembered_pool_of`].
fn remember_slab(address: usize, range: &Range, key: PoolKey) {
    let removed = SLABS_REMOVED.load(Ordering::Relaxed);
    let slab = RecentSlab { base: range.base, bytes: range.bytes, key, removed };
    let place = NEXT.with(|next| next.replace(next.get().wrapping_add(1)));
    RECENT.with(|slabs| slabs[place as usize % RECENT_MAX].set(slab));
    RECENT_BY_PART.with(|places| places[(address >> PART) % REGIONS].set(place % RECENT_MAX as u8));
}

#[cfg(test)]
mod tests;

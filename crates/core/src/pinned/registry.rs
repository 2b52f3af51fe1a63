//! The current resource of page-locked memory, and each thread's look at it.

use super::current::CurrentPinned;
use super::pinned_resource::PinnedResource;
use super::pool::PinnedPool;
use super::thread_cache::{self, PoolKey};
use crate::device::Device;
use crate::driver::not_forked;
use crate::error::Result;
use crate::resource::{CurrentResource, DeviceResource};
use crate::sync::trusted::{AtomicU64, Ordering, thread_local};
use crate::sync::{Arc, LazyLock};
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;

static PINNED: LazyLock<CurrentResource<CurrentPinned>> = LazyLock::new(CurrentResource::new);

/// Grows with each change of the current resource. Never 0.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// The name in errors in the child of a fork.
const CURRENT: &str = "the current pinned resource";

#[inline(always)]
fn generation() -> u64 {
    // Relaxed: a thread that was told of a change sees it; to others it comes at some time.
    GENERATION.load(Ordering::Relaxed)
}

/// The resource from which [`PinnedAlloc`](crate::PinnedAlloc) takes new blocks. It is the resource that was
/// [set](set_current_pinned_resource), or else a [`PinnedPool`](crate::pinned::PinnedPool). That is over page-locked
/// memory of the [detected device](crate::Device::detect), portable, and mapped where the device can.
///
/// # Errors
///
/// The errors of [`Device::detect`](crate::Device::detect).
pub fn current_pinned_resource() -> Result<CurrentPinned> {
    not_forked(CURRENT)?;
    current()
}

/// Like [`current_pinned_resource`], for a caller that is in no child of a fork.
fn current() -> Result<CurrentPinned> {
    let default = || {
        let pool = PinnedPool::new(PinnedResource::of_process(&Device::of_process()?)?)?;
        Ok(Arc::new(CurrentPinned::Pool(pool)))
    };
    PINNED.get(true, default).map(|current| (*current).clone())
}

fn replace(resource: Option<CurrentPinned>) -> Option<CurrentPinned> {
    not_forked(CURRENT).ok()?;
    let before = PINNED.replace(resource.map(Arc::new));
    // After the change: a thread that read the old generation looks again.
    GENERATION.fetch_add(1, Ordering::Relaxed);
    before.map(|before| (*before).clone())
}

/// Makes a [`PinnedPool`](crate::pinned::PinnedPool) or a [`PinnedResource`](crate::pinned::PinnedResource) the one
/// that [`PinnedAlloc`](crate::PinnedAlloc) takes new blocks from, and returns the resource that was set before, if
/// any. Live blocks go back to where they came from.
pub fn set_current_pinned_resource(resource: impl Into<CurrentPinned>) -> Option<CurrentPinned> {
    replace(Some(resource.into()))
}

/// Makes the default current again for page-locked memory, and returns the resource that was set, if any.
pub fn reset_current_pinned_resource() -> Option<CurrentPinned> {
    replace(None)
}

/// The pool that was current when the calling thread last loaded it. It has the pool's key and not a handle, so that a
/// thread that sleeps keeps no pool from closing.
#[derive(Clone, Copy)]
struct LoadedPool {
    generation: u64,
    key: PoolKey,
    mapped: bool,
}

thread_local! {
    static LOADED: Cell<LoadedPool> = const {
        Cell::new(LoadedPool { generation: 0, key: PoolKey::NONE, mapped: false })
    };
}

/// A block that the calling thread has ready of the current pool.
#[inline(always)]
pub(super) fn allocate_fast(layout: Layout, mapped: bool) -> Option<NonNull<[u8]>> {
    let loaded = LOADED.with(Cell::get);
    if loaded.generation != generation() || (mapped && !loaded.mapped) {
        return None;
    }
    thread_cache::allocate(loaded.key, layout)
}

/// The current pinned resource. If it is a pool, [`allocate_fast`] uses it from now on. The caller is in no child of a
/// fork.
pub(super) fn load() -> Result<CurrentPinned> {
    // Read first: a resource that replaces the one below has a later generation.
    let generation = generation();
    let current = current()?;
    if let CurrentPinned::Pool(pool) = &current {
        let upstream = pool.upstream();
        let mapped = upstream.is_mapped() && upstream.device().properties().map_host_memory;
        LOADED.with(|loaded| loaded.set(LoadedPool { generation, key: pool.key(), mapped }));
    }
    Ok(current)
}

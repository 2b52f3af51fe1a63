//! The trait of this module's host allocators, and the allocator traits of std and `allocator_api2`
//! over it.

use super::address_map::{self, remembered_pool_of};
use super::batch::{Batch, FreedBlock, exposed_pointer, units_of};
use super::thread_cache;
use crate::debug_log::deferred_event;
use crate::driver::is_forked_child;
use crate::error::{Error, Result, catch_panic};
use crate::stream::deferred;
use crate::sync::trusted::thread_local;
use std::alloc::Layout;
use std::cell::RefCell;
use std::ptr::NonNull;

thread_local! {
    static LAST_ALLOC_ERROR: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// The reason why the last allocation on this thread failed, since the allocator traits' `AllocError` has no room for
/// it. `None` if none failed yet. It stays until another one fails, so look at it when one has just failed. A length
/// that overflows is refused by the collection itself, which asks no allocator, and leaves it as it was.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{ErrorKind, PinnedAlloc, pinned::last_error};
///
/// let mut vec: Vec<u8, PinnedAlloc> = Vec::new_in(PinnedAlloc);
/// assert!(vec.try_reserve(isize::MAX as usize - 4096).is_err());
/// let reason = last_error().unwrap();
/// assert!(matches!(reason.kind(), ErrorKind::OutOfMemory | ErrorKind::InvalidArgument));
/// ```
pub fn last_error() -> Option<Error> {
    // A thread that is ending has no last error.
    LAST_ALLOC_ERROR.try_with(|last| last.borrow().clone()).ok().flatten()
}

/// Runs `body`. Returns its result, with the error that it kept for [`last_error`], if any.
pub fn last_error_of<R>(body: impl FnOnce() -> R) -> (R, Option<Error>) {
    let take = || LAST_ALLOC_ERROR.try_with(|last| last.borrow_mut().take()).ok().flatten();
    let before = take();
    let done = body();
    let new = last_error();
    if let (None, Some(before)) = (&new, before) {
        let _ = LAST_ALLOC_ERROR.try_with(|last| *last.borrow_mut() = Some(before));
    }
    (done, new)
}

/// Keeps an error for [`last_error`].
pub fn log_and_set_last_error(error: Error) {
    // Logged, since the caller sees an `AllocError` without a reason, or an abort.
    let text = error.to_string();
    deferred_event!(warn, error = %text, "a host allocation failed");
    let _ = LAST_ALLOC_ERROR.try_with(|last| *last.borrow_mut() = Some(error));
}

/// Runs the slow path of an allocator, keeps its error, and stops a panic. An allocator that unwinds is undefined
/// behaviour, and the slow path may run code of other crates, such as subscribers of
/// [`tracing`](https://docs.rs/tracing) and destructors of registered memory.
pub fn catch_panic_and_error<T>(body: impl FnOnce() -> Result<T>) -> Option<T> {
    // The error is kept inside: that may call a subscriber, too.
    catch_panic(|| body().map_err(log_and_set_last_error).ok()).flatten()
}

/// A host allocator, as the allocator traits of [`implement_allocators!`] need it. Its defaults serve
/// any block of the address map, whichever allocator it came from.
///
/// The fast functions run unshielded. They take no lock and run no code of others, or they do nothing and leave the
/// call to the slow one.
///
/// # Safety
///
/// A block stays valid until it is freed here, through whichever handle, since clones are interchangeable. Sizes and
/// alignments are met or refused.
pub unsafe trait HostAllocator {
    /// A block that the calling thread has ready.
    #[inline(always)]
    fn allocate_fast(&self, _layout: Layout) -> Option<NonNull<[u8]>> {
        None
    }

    /// A block of `layout`, whose size is not 0.
    fn allocate_slow(&self, layout: Layout) -> Result<NonNull<[u8]>>;

    /// A zeroed block of `layout`, whose size is not 0.
    fn allocate_zeroed_slow(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        let block = match self.allocate_fast(layout) {
            Some(block) => block,
            None => self.allocate_slow(layout)?,
        };
        // SAFETY: a new block of this length.
        unsafe { block.cast::<u8>().write_bytes(0, block.len()) };
        Ok(block)
    }

    /// Frees a block into the calling thread's cache. `false` says that nothing was done.
    ///
    /// # Safety
    ///
    /// The conditions of `Allocator::deallocate`.
    #[inline(always)]
    unsafe fn free_fast(&self, pointer: NonNull<u8>, layout: Layout) -> bool {
        let address = pointer.addr().get();
        let Some(block) = FreedBlock::new(address, layout.size()) else {
            return layout.size() == 0;
        };
        if is_forked_child() {
            return true;
        }
        let Some(key) = remembered_pool_of(address) else { return false };
        // SAFETY: the slab around the live block is this pool's, and the caller gives the block up.
        unsafe { thread_cache::free(key, block, |batch| quarantine_at(address, batch)) }
    }

    /// Frees a block of nonzero size.
    ///
    /// # Safety
    ///
    /// The conditions of `Allocator::deallocate`.
    unsafe fn free_slow(&self, pointer: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { address_map::free(pointer, layout) }
    }

    /// A block of any size, by the slow path.
    fn allocate_slow_or_empty(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        match layout.size() {
            0 => Ok(NonNull::slice_from_raw_parts(layout.dangling_ptr(), 0)),
            _ => deferred::or_collect(|| self.allocate_slow(layout)),
        }
    }

    /// A zeroed block of any size.
    fn allocate_zeroed_or_empty(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        match layout.size() {
            0 => Ok(NonNull::slice_from_raw_parts(layout.dangling_ptr(), 0)),
            _ => deferred::or_collect(|| self.allocate_zeroed_slow(layout)),
        }
    }

    /// Frees a block of any size, by the slow path.
    ///
    /// # Safety
    ///
    /// The conditions of `Allocator::deallocate`.
    unsafe fn free_slow_or_empty(&self, pointer: NonNull<u8>, layout: Layout) {
        if layout.size() != 0 {
            // SAFETY: the caller's promise.
            unsafe { self.free_slow(pointer, layout) }
        }
    }

    /// Grows or shrinks a block, in place if it has the room and the alignment, or else into a new one. An error leaves
    /// the old block as it was.
    ///
    /// # Safety
    ///
    /// The conditions of `Allocator::grow` and `Allocator::shrink`.
    unsafe fn resize(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>> {
        let here = old.size() != 0 && new.size() != 0;
        let here = here && pointer.addr().get().is_multiple_of(new.align());
        if here && let Some(pointer) = fits_in_place(pointer.addr().get(), old.size(), new.size()) {
            return Ok(NonNull::slice_from_raw_parts(pointer, new.size()));
        }
        let target = match self.allocate_slow_or_empty(new) {
            // The move was to save memory, and there is none to move to.
            Err(_) if here && new.size() <= old.size() => {
                return Ok(NonNull::slice_from_raw_parts(pointer, new.size()));
            }
            answer => answer?,
        };
        let bytes = old.size().min(new.size());
        // SAFETY: the old block holds `old.size()` bytes by the caller's promise, the new one
        // `new.size()`, and two live blocks do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(pointer.as_ptr(), target.as_ptr().cast(), bytes) };
        // SAFETY: the block's contents have moved, and the caller gives it up on success.
        unsafe { self.free_slow_or_empty(pointer, old) };
        Ok(target)
    }
}

/// Puts a full batch into the quarantine of the pool that has the block at `address`.
#[cold]
#[inline(never)]
fn quarantine_at(address: usize, batch: Batch) {
    let _ = catch_panic_and_error(|| {
        if let Some(range) = address_map::find(address)
            && let Some(pool) = &range.pool
        {
            pool.quarantine(batch);
            pool.release();
        }
        Ok(())
    });
}

/// The block at `address`, if it need not move to hold `size` bytes in place of `old`. A pool's block has room to the
/// end of its last unit. A block of the driver's own has room to the end of its page. Either may be given up in part. A
/// pool's block that would keep more than an eighth of itself idle is to move.
fn fits_in_place(address: usize, old: usize, size: usize) -> Option<NonNull<u8>> {
    let Some(range) = address_map::find(address) else {
        // Ordinary memory; or the child of a fork, which has nothing to move to.
        return if size <= old { exposed_pointer(address) } else { None };
    };
    let stays = match &range.pool {
        None => size <= old || size <= range.bytes - (address - range.base),
        Some(pool) => {
            let (held, units) = (pool.block_units(address)?, units_of(size)?);
            units <= held && held - units <= held / 8
        }
    };
    // From the exposed address: the caller's pointer may reach no further than the old size.
    stays.then(|| exposed_pointer(address)).flatten()
}

/// Implements an allocator trait, of the module `$api`, for a [`HostAllocator`].
#[macro_export]
#[doc(hidden)]
macro_rules! implement_allocator {
    ($api:path, [$($generics:tt)*] $type:ty) => {
        const _: () = {
            use std::alloc::Layout;
            use std::ptr::NonNull;
            use $api as api;
            use $crate::inside::allocator::{self as core, HostAllocator};

            #[cold]
            fn or_alloc_error<T>(
                body: impl FnOnce() -> $crate::error::Result<T>,
            ) -> Result<T, api::AllocError> {
                core::catch_panic_and_error(body).ok_or(api::AllocError)
            }

            // SAFETY: the contract of `HostAllocator`, and nothing unwinds.
            unsafe impl<$($generics)*> api::Allocator for $type {
                #[inline]
                fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, api::AllocError> {
                    match self.allocate_fast(layout) {
                        Some(block) => Ok(block),
                        None => or_alloc_error(|| self.allocate_slow_or_empty(layout)),
                    }
                }

                fn allocate_zeroed(
                    &self,
                    layout: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    or_alloc_error(|| self.allocate_zeroed_or_empty(layout))
                }

                #[inline]
                unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
                    // SAFETY: the caller's promise.
                    if !unsafe { self.free_fast(pointer, layout) } {
                        // SAFETY: as above, and nothing was done yet.
                        let _ = or_alloc_error(|| Ok(unsafe { self.free_slow_or_empty(pointer, layout) }));
                    }
                }

                unsafe fn grow(
                    &self,
                    pointer: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: the caller's promise.
                    or_alloc_error(|| unsafe { self.resize(pointer, old, new) })
                }

                unsafe fn grow_zeroed(
                    &self,
                    pointer: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: the caller's promise.
                    let block = unsafe { api::Allocator::grow(self, pointer, old, new) }?;
                    let added = block.len().saturating_sub(old.size());
                    // SAFETY: the block is ours and holds `new.size()` bytes, which is no less than
                    // the old size by the caller's promise.
                    unsafe { block.as_ptr().cast::<u8>().add(old.size()).write_bytes(0, added) };
                    Ok(block)
                }

                unsafe fn shrink(
                    &self,
                    pointer: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: the caller's promise.
                    or_alloc_error(|| unsafe { self.resize(pointer, old, new) })
                }
            }
        };
    };
}

/// Implements every allocator trait that this build knows for a [`HostAllocator`].
#[cfg(not(aquifer_std_allocator))]
#[macro_export]
#[doc(hidden)]
macro_rules! implement_allocators {
    ([$($generics:tt)*] $type:ty) => {
        $crate::implement_allocator!(allocator_api2::alloc, [$($generics)*] $type);
    };
}
/// Implements every allocator trait that this build knows, those of std among them.
// Two macros, since a `cfg` inside of one is that of the crate that expands it.
#[cfg(aquifer_std_allocator)]
#[macro_export]
#[doc(hidden)]
macro_rules! implement_allocators {
    ([$($generics:tt)*] $type:ty) => {
        $crate::implement_allocator!(allocator_api2::alloc, [$($generics)*] $type);
        $crate::implement_allocator!(std::alloc, [$($generics)*] $type);
    };
}

pub use crate::implement_allocators;

#[cfg(test)]
mod tests;

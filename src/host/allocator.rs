//! The core of the host allocators, without a trait, and the traits over it.

use super::blocks::{self, Owner};
use super::lane::{pointer_to, units_of};
use super::pool::give_back_by_map;
use crate::error::{Error, Result};
use crate::sync::trusted::thread_local;
use std::alloc::Layout;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

thread_local! {
    static LAST_ERROR: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Why the last allocation on this thread failed: the allocator traits' `AllocError` has no room
/// for a reason. `None` if none failed yet.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{ErrorKind, PinnedAlloc, last_error};
///
/// let mut vec: Vec<u8, PinnedAlloc> = Vec::new_in(PinnedAlloc);
/// assert!(vec.try_reserve(isize::MAX as usize - 4096).is_err());
/// let reason = last_error().unwrap();
/// assert!(matches!(reason.kind(), ErrorKind::OutOfMemory | ErrorKind::InvalidArgument));
/// ```
pub fn last_error() -> Option<Error> {
    // A thread that is ending has no last error.
    LAST_ERROR.try_with(|last| last.borrow().clone()).ok().flatten()
}

/// Keeps an error for [`last_error`], and gives the traits' error for it.
pub(crate) fn remember(error: Error) {
    // The caller sees an `AllocError` without a reason, or an abort.
    crate::debug_log::event!(warn, %error, "a host allocation failed");
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = Some(error));
}

/// Runs what an allocator does, keeps its error, and stops a panic: an allocator that unwinds is
/// undefined behaviour, and a subscriber of [`tracing`] or the owner of registered memory that is
/// dropped on the way are anyone's code.
pub(crate) fn shielded<T>(body: impl FnOnce() -> Result<T>) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(|| match body() {
        Ok(done) => Some(done),
        Err(error) => {
            remember(error);
            None
        }
    }));
    done.unwrap_or_else(|panic| {
        // Dropping what was thrown may throw again.
        std::mem::forget(panic);
        None
    })
}

/// # Safety
///
/// As `Allocator::deallocate` for a block of any allocator of this room.
pub(super) unsafe fn deallocate(pointer: NonNull<u8>, layout: Layout) {
    if layout.size() != 0 {
        // SAFETY: a block of nonzero size came from a source or a pool; the caller vouches for the
        // rest.
        unsafe { give_back_by_map(pointer, layout) }
    }
}

/// Where a block begins if it need not move for `size` bytes: a pool's block has room to the end of
/// its last line, a block of the driver's own to the end of its page, and either may be given up in
/// part. A pool's block that would keep more than an eighth of itself idle moves while it can.
fn stays(address: usize, old: usize, size: usize) -> Option<NonNull<u8>> {
    let Some(found) = blocks::find(address) else {
        // The child of a fork: it has nothing to move to.
        return if size <= old { pointer_to(address) } else { None };
    };
    let stays = match found.owner {
        Owner::Source(_) => size <= old || size <= found.bytes - (address - found.base),
        Owner::Slab(slab) => {
            let (held, units) = (slab.core.holds(address)?, units_of(size)?);
            units <= held && held - units <= held / 8
        }
    };
    // From the exposed address: the caller's pointer may reach no further than the old size.
    stays.then(|| pointer_to(address)).flatten()
}

/// Grows or shrinks a block: in place if it has the room and the alignment, else into a new one
/// from `allocate`. An error leaves the old block as it was.
///
/// # Safety
///
/// As `Allocator::grow` and `Allocator::shrink` for a block of any allocator of this room.
pub(super) unsafe fn resize(
    allocate: impl FnOnce(Layout) -> Result<NonNull<[u8]>>,
    pointer: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Result<NonNull<[u8]>> {
    let here = old.size() != 0 && new.size() != 0;
    let here = here && pointer.addr().get().is_multiple_of(new.align());
    if here && let Some(pointer) = stays(pointer.addr().get(), old.size(), new.size()) {
        return Ok(NonNull::slice_from_raw_parts(pointer, new.size()));
    }
    let target = match allocate(new) {
        // It would have saved memory, and there is none to save it with.
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
    unsafe { deallocate(pointer, old) };
    Ok(target)
}

/// Zeroes a block from `start` to its end.
///
/// # Safety
///
/// The block is valid for writes.
pub(crate) unsafe fn zero_from(block: NonNull<[u8]>, start: usize) {
    let rest = block.len().saturating_sub(start);
    // SAFETY: `start + rest` is the block's length, or `rest` is zero.
    unsafe { block.as_ptr().cast::<u8>().add(block.len() - rest).write_bytes(0, rest) };
}

/// Implements an allocator trait, of the module `$api`, over a type's inherent core:
/// `obtain(&self, Layout) -> Result<NonNull<[u8]>>`, and
/// `unsafe resize(&self, NonNull<u8>, Layout, Layout) -> Result<NonNull<[u8]>>` and
/// `unsafe give_back(&self, NonNull<u8>, Layout)`, which take what `obtain` returned. Before them
/// come `warm(&self, Layout) -> Option<NonNull<[u8]>>` and
/// `unsafe warm_back(&self, NonNull<u8>, Layout) -> bool`, which run unshielded: they do it without
/// a lock, an error or anyone else's code, or leave it to the others.
macro_rules! implement_allocator {
    ($api:path, [$($generics:tt)*] $type:ty) => {
        const _: () = {
            use std::alloc::Layout;
            use std::ptr::NonNull;
            use $api as api;
            use $crate::host::allocator as core;

            #[cold]
            fn known<T>(
                body: impl FnOnce() -> $crate::error::Result<T>,
            ) -> Result<T, api::AllocError> {
                core::shielded(body).ok_or(api::AllocError)
            }

            // SAFETY: blocks come from sources that keep them until they are released here, through
            // whichever handle; clones are interchangeable; nothing unwinds; sizes and alignments
            // are met or refused.
            unsafe impl<$($generics)*> api::Allocator for $type {
                #[inline]
                fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, api::AllocError> {
                    match self.warm(layout) {
                        Some(block) => Ok(block),
                        None => known(|| self.obtain(layout)),
                    }
                }

                fn allocate_zeroed(
                    &self,
                    layout: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    let block = api::Allocator::allocate(self, layout)?;
                    // SAFETY: the block is new and ours.
                    unsafe { core::zero_from(block, 0) };
                    Ok(block)
                }

                #[inline]
                unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
                    // SAFETY: the caller's promise.
                    if !unsafe { self.warm_back(pointer, layout) } {
                        // SAFETY: as above, and nothing was done yet.
                        let _ = known(|| Ok(unsafe { self.give_back(pointer, layout) }));
                    }
                }

                unsafe fn grow(
                    &self,
                    pointer: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: the caller's promise.
                    known(|| unsafe { self.resize(pointer, old, new) })
                }

                unsafe fn grow_zeroed(
                    &self,
                    pointer: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: the caller's promise.
                    let block = known(|| unsafe { self.resize(pointer, old, new) })?;
                    // SAFETY: the block is ours; past the old size nothing was promised to stay.
                    unsafe { core::zero_from(block, old.size()) };
                    Ok(block)
                }

                unsafe fn shrink(
                    &self,
                    pointer: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: the caller's promise.
                    known(|| unsafe { self.resize(pointer, old, new) })
                }
            }
        };
    };
}

/// Implements every allocator trait that this build knows, over a type's inherent core.
macro_rules! implement_allocators {
    ([$($generics:tt)*] $type:ty) => {
        $crate::host::implement_allocator!(allocator_api2::alloc, [$($generics)*] $type);
        #[cfg(aquifer_std_allocator)]
        $crate::host::implement_allocator!(std::alloc, [$($generics)*] $type);
    };
}

/// As [`implement_allocators`], for a type of this room, whose blocks are in the process-wide map:
/// its `obtain` and its `warm` are the whole of its core.
macro_rules! implement_by_map {
    ($type:ty) => {
        impl $type {
            /// # Safety
            ///
            /// As `Allocator::deallocate`; done if it says so.
            #[inline(always)]
            unsafe fn warm_back(&self, pointer: NonNull<u8>, layout: Layout) -> bool {
                // SAFETY: the caller's promise.
                unsafe { $crate::host::pool::warm_back_by_map(pointer, layout) }
            }

            /// # Safety
            ///
            /// As `Allocator::deallocate`.
            unsafe fn give_back(&self, pointer: NonNull<u8>, layout: Layout) {
                // SAFETY: the caller's promise.
                unsafe { $crate::host::allocator::deallocate(pointer, layout) }
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
                unsafe { $crate::host::allocator::resize(obtain, pointer, old, new) }
            }
        }

        $crate::host::implement_allocators!([] $type);
    };
}

pub(super) use implement_by_map;
pub(crate) use {implement_allocator, implement_allocators};

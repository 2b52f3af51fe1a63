//! An allocator for large blocks, and the heap for small ones.

use allocator_api2::alloc::{AllocError, Allocator, Global};
use std::alloc::Layout;
use std::ptr::NonNull;

/// Blocks of `from` bytes and more are `large`'s, the others are the heap's. A program such as NumPy makes
/// millions of small ones.
pub(super) struct BySize<A> {
    pub(super) from: usize,
    pub(super) large: A,
}

impl<A> BySize<A> {
    fn is_large(&self, layout: Layout) -> bool {
        layout.size() >= self.from
    }
}

impl<A: Allocator> BySize<A> {
    /// Moves a block into the other allocator.
    ///
    /// # Safety
    ///
    /// The conditions of `Allocator::grow` and `Allocator::shrink` hold.
    unsafe fn change(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        let moved = self.allocate(new)?;
        let kept = old.size().min(new.size());
        // SAFETY: both hold as much, and two live blocks do not overlap.
        unsafe { moved.cast().copy_from_nonoverlapping(block, kept) };
        // SAFETY: the caller gives it up on success.
        unsafe { self.deallocate(block, old) };
        Ok(moved)
    }
}

// SAFETY: each block is one of an allocator that keeps the contract, to which the size leads back: a
// layout that fits a block has just its size, since neither returns more than was asked.
unsafe impl<A: Allocator> Allocator for BySize<A> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let block = match self.is_large(layout) {
            true => self.large.allocate(layout)?,
            false => Global.allocate(layout)?,
        };
        Ok(NonNull::slice_from_raw_parts(block.cast(), layout.size()))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let block = match self.is_large(layout) {
            true => self.large.allocate_zeroed(layout)?,
            false => Global.allocate_zeroed(layout)?,
        };
        Ok(NonNull::slice_from_raw_parts(block.cast(), layout.size()))
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        match self.is_large(layout) {
            // SAFETY: the caller's promise, of the allocator that the block is of.
            true => unsafe { self.large.deallocate(block, layout) },
            // SAFETY: as above.
            false => unsafe { Global.deallocate(block, layout) },
        }
    }

    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        let block = match (self.is_large(old), self.is_large(new)) {
            // SAFETY: the caller's promise, of the allocator that the block is of.
            (true, true) => unsafe { self.large.grow(block, old, new) }?,
            // SAFETY: as above.
            (false, false) => unsafe { Global.grow(block, old, new) }?,
            // SAFETY: the caller's promise.
            _ => unsafe { self.change(block, old, new) }?,
        };
        Ok(NonNull::slice_from_raw_parts(block.cast(), new.size()))
    }

    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        let block = match (self.is_large(old), self.is_large(new)) {
            // SAFETY: the caller's promise, of the allocator that the block is of.
            (true, true) => unsafe { self.large.shrink(block, old, new) }?,
            // SAFETY: as above.
            (false, false) => unsafe { Global.shrink(block, old, new) }?,
            // SAFETY: the caller's promise.
            _ => unsafe { self.change(block, old, new) }?,
        };
        Ok(NonNull::slice_from_raw_parts(block.cast(), new.size()))
    }
}

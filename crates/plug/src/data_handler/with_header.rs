//! The functions of a handler over an allocator, which wants the layout of each block that it frees.

use super::functions::{HandlerFunctions, MALLOC_ALIGNMENT, call_free, product};
use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::inside::allocator::last_error_of;
use allocator_api2::alloc::{AllocError, Allocator};
use std::alloc::Layout;
use std::ptr::NonNull;

/// Blocks of so many bytes and more are aligned to [`LARGE_ALIGNMENT`].
const LARGE: usize = 1024;

/// A cache line, and the widest vector register.
const LARGE_ALIGNMENT: usize = 64;

/// The header before a block.
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    /// The block's own size.
    bytes: usize,
    /// The offset from the start of the allocator's block to the user's, and the alignment of
    /// both. It is a power of two.
    offset: usize,
}

const _: () = assert!(size_of::<Header>() <= MALLOC_ALIGNMENT);

impl Header {
    /// The header of a new block of `bytes` bytes.
    fn new(bytes: usize, alignment: usize) -> Self {
        let offset = if bytes >= LARGE { alignment.max(LARGE_ALIGNMENT) } else { alignment };
        Self { bytes, offset }
    }

    /// # Safety
    ///
    /// `block` came from a [`WithHeader`].
    unsafe fn of(block: NonNull<u8>) -> Self {
        // SAFETY: it lies in the allocator's block, before the user's.
        let header = unsafe { block.sub(size_of::<Self>()) };
        // SAFETY: `place` wrote it. The address is aligned, since the block's is to two words.
        unsafe { header.cast().read() }
    }

    /// The layout of the allocator's block.
    fn layout(self) -> Result<Layout> {
        let whole = self.bytes.checked_add(self.offset);
        let layout = whole.and_then(|whole| Layout::from_size_align(whole, self.offset).ok());
        layout.ok_or_else(|| {
            let what = format!("no address space holds {}", Count(self.bytes, "byte"));
            Error::new(ErrorKind::InvalidArgument, what).with_advice("ask for less")
        })
    }

    /// Writes the header into the allocator's block, and returns the user's.
    ///
    /// # Safety
    ///
    /// `start` has at least the size of [`layout`](Self::layout) and its alignment, and is the caller's.
    unsafe fn place(self, start: NonNull<u8>) -> NonNull<u8> {
        // SAFETY: the offset is within the layout.
        let block = unsafe { start.add(self.offset) };
        // SAFETY: the offset is a header's size at least.
        let header = unsafe { block.sub(size_of::<Self>()) };
        // SAFETY: inside the caller's block, and aligned, since the user's is to two words.
        unsafe { header.cast().write(self) };
        block
    }
}

/// The allocator, with a [`Header`] before each block.
pub(super) struct WithHeader<A> {
    allocator: A,
    /// The alignment of every block, which is a power of two, [`MALLOC_ALIGNMENT`] at least.
    alignment: usize,
}

impl<A: Allocator> WithHeader<A> {
    pub(super) fn new(allocator: A) -> Self {
        Self::with_alignment(allocator, MALLOC_ALIGNMENT)
    }

    pub(super) fn with_alignment(allocator: A, alignment: usize) -> Self {
        Self { allocator, alignment }
    }

    fn allocate(
        &self,
        bytes: usize,
        allocate: impl FnOnce(&A, Layout) -> Result<NonNull<[u8]>, AllocError>,
    ) -> Result<NonNull<u8>> {
        let header = Header::new(bytes, self.alignment);
        let layout = header.layout()?;
        let start = or_reason(layout, || allocate(&self.allocator, layout))?;
        // SAFETY: the allocator returned a block of this layout.
        Ok(unsafe { header.place(start) })
    }
}

/// The allocator's block, or the reason why there is none. An allocator of this crate has kept its error.
fn or_reason(
    layout: Layout,
    allocate: impl FnOnce() -> Result<NonNull<[u8]>, AllocError>,
) -> Result<NonNull<u8>> {
    let (allocated, error) = last_error_of(allocate);
    allocated.map(NonNull::cast).map_err(|AllocError| {
        error.unwrap_or_else(|| {
            let bytes = Count(layout.size(), "byte");
            let what = format!("the allocator has no block of {bytes} for it");
            Error::new(ErrorKind::OutOfMemory, what).with_advice("ask for less, or free memory")
        })
    })
}

// SAFETY: each block is one of the allocator's, which keeps the contract, further on by the header. The
// layout that a block goes back with is the header's. A realloc that fails writes nothing, and a panic of the
// allocator comes before the header is written.
unsafe impl<A: Allocator + Send + Sync + 'static> HandlerFunctions for WithHeader<A> {
    fn malloc(&self, bytes: usize) -> Result<NonNull<u8>> {
        self.allocate(bytes, A::allocate)
    }

    fn calloc(&self, count: usize, bytes: usize) -> Result<NonNull<u8>> {
        self.allocate(product(count, bytes)?, A::allocate_zeroed)
    }

    unsafe fn realloc(&self, block: NonNull<u8>, bytes: usize) -> Result<NonNull<u8>> {
        // SAFETY: the caller's block.
        let old = unsafe { Header::of(block) };
        let new = Header::new(bytes, self.alignment);
        if old.offset != new.offset {
            let moved = self.malloc(bytes)?;
            let kept = old.bytes.min(bytes);
            // SAFETY: both hold as much, and two live blocks do not overlap.
            unsafe { moved.copy_from_nonoverlapping(block, kept) };
            // A panic of the allocator would be a failure here, after which the caller has the old block still.
            // SAFETY: the caller gives it up on success.
            call_free("of an allocator", || unsafe { self.free(block, old.bytes) });
            return Ok(moved);
        }
        let (old_layout, new_layout) = (old.layout()?, new.layout()?);
        // SAFETY: `place` added as much.
        let start = unsafe { block.sub(old.offset) };
        let start = or_reason(new_layout, || {
            if bytes >= old.bytes {
                // SAFETY: the allocator's block, by its layout, which is no larger than the new one.
                unsafe { self.allocator.grow(start, old_layout, new_layout) }
            } else {
                // SAFETY: as above, and no smaller.
                unsafe { self.allocator.shrink(start, old_layout, new_layout) }
            }
        })?;
        // SAFETY: the allocator returned a block of this layout.
        Ok(unsafe { new.place(start) })
    }

    unsafe fn free(&self, block: NonNull<u8>, _bytes: usize) {
        // SAFETY: the caller's block.
        let header = unsafe { Header::of(block) };
        // The block exists, so its layout does.
        let Ok(layout) = header.layout() else { return };
        // SAFETY: `place` added as much.
        let start = unsafe { block.sub(header.offset) };
        // SAFETY: the allocator's block, by its layout, which the caller gives up.
        unsafe { self.allocator.deallocate(start, layout) };
    }
}

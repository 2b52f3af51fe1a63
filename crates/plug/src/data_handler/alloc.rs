//! The allocator that carries a handler.

use super::current::current_data_handler;
use super::handler::DataHandler;
use crate::error::Result;
use crate::impls::debug_struct;
use crate::inside::allocator::{HostAllocator, implement_allocators};
use crate::inside::deferred;
use std::alloc::Layout;
use std::ptr::NonNull;

/// Host memory of a [`DataHandler`], as an allocator: `Vec::new_in(DataAlloc::current())`.
///
/// Each container carries the handler that it was made with, which serves it and frees
/// it. That holds on whatever thread, whatever is current then, and even after the
/// program has dropped its own handle. A clone carries the same one.
/// A failure is an `AllocError`, whose reason is in [`last_error`](crate::pinned::last_error).
///
/// Containers ask the handler for nothing where they have no bytes. `grow` and `shrink` are its `realloc`, and
/// zeroed memory is its `calloc`. An alignment above the handler's (16 bytes for most, on 64-bit systems) takes so
/// many bytes more, and a block that is resized there moves.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::nep49::{DataAlloc, DataHandler, set_data_handler};
///
/// set_data_handler(Some(DataHandler::aligned(64)?));
/// let mut vec: Vec<u32, _> = Vec::new_in(DataAlloc::current());
/// set_data_handler(None);
/// vec.extend(0..100);
/// let allocator = vec.allocator();
/// assert_eq!((allocator.handler_name(), allocator.handler_version()), ("aquifer_aligned_64", 1));
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct DataAlloc {
    handler: DataHandler,
}

impl DataAlloc {
    /// An allocator with the [current handler](crate::nep49::current_data_handler).
    pub fn current() -> Self {
        Self::new(current_data_handler())
    }

    /// An allocator with `handler`.
    pub fn new(handler: DataHandler) -> Self {
        Self { handler }
    }

    /// The handler that it carries.
    pub fn handler(&self) -> &DataHandler {
        &self.handler
    }

    /// The name of its handler, as of NEP 49's `get_handler_name(arr)`.
    pub fn handler_name(&self) -> &str {
        self.handler.name()
    }

    /// The version of its handler, as of NEP 49's `get_handler_version(arr)`.
    pub fn handler_version(&self) -> u8 {
        self.handler.version()
    }

    /// The extra bytes of a block whose alignment is above the handler's. They are room for the
    /// alignment, and in it for the handler's own address of the block.
    fn padding(&self, layout: Layout) -> Option<usize> {
        (layout.align() > self.handler.shared().alignment).then_some(layout.align())
    }

    fn obtain(
        &self,
        layout: Layout,
        allocate: impl FnOnce(usize) -> Result<NonNull<u8>>,
    ) -> Result<NonNull<[u8]>> {
        let bytes = layout.size();
        let block = match self.padding(layout) {
            None => allocate(bytes)?,
            // No overflow: a layout has half of the address space at most.
            // SAFETY: a new block of the bytes and the padding.
            Some(padding) => unsafe { align_inside(allocate(bytes + padding)?, layout.align()) },
        };
        Ok(NonNull::slice_from_raw_parts(block, bytes))
    }
}

/// The first multiple of `align` behind `start`, with `start` noted before it.
///
/// # Safety
///
/// `start` is aligned to two words, `align` is a larger power of two, and the block is the caller's, with
/// `align` bytes to spare.
unsafe fn align_inside(start: NonNull<u8>, align: usize) -> NonNull<u8> {
    let offset = align - start.addr().get() % align;
    // SAFETY: from two words to `align` bytes.
    let block = unsafe { start.add(offset) };
    // SAFETY: the note lies behind the start.
    let note = unsafe { block.cast::<NonNull<u8>>().sub(1) };
    // SAFETY: inside the caller's block, and aligned as the block's own address is.
    unsafe { note.write(start) };
    block
}

/// The start of a block of [`align_inside`].
///
/// # Safety
///
/// `block` came from there, and is live.
unsafe fn noted_start(block: NonNull<u8>) -> NonNull<u8> {
    // SAFETY: the note lies before the block.
    let note = unsafe { block.cast::<NonNull<u8>>().sub(1) };
    // SAFETY: written by `align_inside`, and outside of what the user has.
    unsafe { note.read() }
}

/// The allocator with the [current handler](crate::nep49::current_data_handler).
impl Default for DataAlloc {
    fn default() -> Self {
        Self::current()
    }
}

impl From<DataHandler> for DataAlloc {
    fn from(handler: DataHandler) -> Self {
        Self::new(handler)
    }
}

debug_struct!(DataAlloc { handler });

// SAFETY: each block is one of the handler's functions, whose contract is as of C's `malloc`, or lies inside of
// one where the alignment is larger. A clone has the same handler, which lives as long as any of them.
unsafe impl HostAllocator for DataAlloc {
    fn allocate_slow(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        self.obtain(layout, |bytes| self.handler.shared().malloc(bytes))
    }

    fn allocate_zeroed_slow(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        // As NumPy asks.
        self.obtain(layout, |bytes| self.handler.shared().calloc(bytes, 1))
    }

    unsafe fn free_fast(&self, _pointer: NonNull<u8>, layout: Layout) -> bool {
        layout.size() == 0
    }

    unsafe fn free_slow(&self, pointer: NonNull<u8>, layout: Layout) {
        let (start, bytes) = match self.padding(layout) {
            None => (pointer, layout.size()),
            // SAFETY: allocated with this alignment, by the caller's promise.
            Some(padding) => (unsafe { noted_start(pointer) }, layout.size() + padding),
        };
        // SAFETY: the handler's block, which the caller gives up.
        unsafe { self.handler.shared().free(start, bytes) };
    }

    unsafe fn resize(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>> {
        let has_bytes = old.size() != 0 && new.size() != 0;
        if has_bytes && self.padding(old).is_none() && self.padding(new).is_none() {
            // SAFETY: the handler's block; the caller uses what is returned in its place.
            let block = deferred::or_collect(|| unsafe {
                self.handler.shared().realloc(pointer, new.size())
            })?;
            return Ok(NonNull::slice_from_raw_parts(block, new.size()));
        }
        let moved = self.allocate_slow_or_empty(new)?;
        let kept = old.size().min(new.size());
        // SAFETY: both hold as much, and two live blocks do not overlap.
        unsafe { moved.cast().copy_from_nonoverlapping(pointer, kept) };
        // SAFETY: the caller gives it up on success.
        unsafe { self.free_slow_or_empty(pointer, old) };
        Ok(moved)
    }
}

implement_allocators!([] DataAlloc);

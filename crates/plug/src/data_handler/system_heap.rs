//! The system's heap, which finds its blocks by itself, without a header.

use super::functions::{HandlerFunctions, product};
use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use std::ffi::c_void;
use std::ptr::NonNull;

/// C's `malloc`, `calloc`, `realloc` and `free`.
pub(super) struct SystemHeap;

fn or_full(block: *mut c_void, bytes: usize) -> Result<NonNull<u8>> {
    NonNull::new(block.cast()).ok_or_else(|| {
        let what =
            format!("{} were asked of the system's heap, which has no room", Count(bytes, "byte"));
        Error::new(ErrorKind::OutOfMemory, what).with_advice("ask for less, or free memory")
    })
}

// SAFETY: C's own functions keep the contract, and are thread-safe. What C leaves open, a size of 0, is never
// asked of them.
unsafe impl HandlerFunctions for SystemHeap {
    fn malloc(&self, bytes: usize) -> Result<NonNull<u8>> {
        // SAFETY: may be called with any size.
        or_full(unsafe { libc::malloc(bytes.max(1)) }, bytes)
    }

    fn calloc(&self, count: usize, bytes: usize) -> Result<NonNull<u8>> {
        let bytes = product(count, bytes)?;
        // SAFETY: may be called with any size.
        or_full(unsafe { libc::calloc(bytes.max(1), 1) }, bytes)
    }

    unsafe fn realloc(&self, block: NonNull<u8>, bytes: usize) -> Result<NonNull<u8>> {
        // SAFETY: a live block of this heap, by the caller's promise.
        or_full(unsafe { libc::realloc(block.as_ptr().cast(), bytes.max(1)) }, bytes)
    }

    unsafe fn free(&self, block: NonNull<u8>, _bytes: usize) {
        // SAFETY: a live block of this heap that the caller gives up.
        unsafe { libc::free(block.as_ptr().cast()) }
    }
}

//! Data handlers, after NEP 49.

mod containers;
mod current;
mod failures;
mod placed;
mod sample;
mod tables;

use allocator_api2::alloc::{AllocError, Allocator, Global};
use aquifer::{
    Error, ErrorKind,
    nep49::{DataHandler, HandlerFunctions},
};
use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// The calls of a handler, and its live blocks.
#[derive(Debug, Default)]
struct Calls {
    malloc: AtomicUsize,
    calloc: AtomicUsize,
    realloc: AtomicUsize,
    free: AtomicUsize,
    live: AtomicUsize,
    dropped: AtomicUsize,
    /// The size that each `free` was given.
    freed: Mutex<Vec<usize>>,
}

impl Calls {
    fn counts(&self) -> [usize; 4] {
        [&self.malloc, &self.calloc, &self.realloc, &self.free].map(|count| count.load(SeqCst))
    }

    fn live(&self) -> usize {
        self.live.load(SeqCst)
    }

    fn dropped(&self) -> usize {
        self.dropped.load(SeqCst)
    }
}

/// The system's heap, which counts.
struct Counted {
    calls: Arc<Calls>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.calls.dropped.fetch_add(1, SeqCst);
    }
}

fn or_full(block: *mut c_void) -> aquifer::Result<NonNull<u8>> {
    NonNull::new(block.cast()).ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "the heap is full"))
}

// SAFETY: C's own functions.
unsafe impl HandlerFunctions for Counted {
    fn malloc(&self, bytes: usize) -> aquifer::Result<NonNull<u8>> {
        self.calls.malloc.fetch_add(1, SeqCst);
        // SAFETY: may be called with any size.
        let block = or_full(unsafe { libc::malloc(bytes.max(1)) })?;
        self.calls.live.fetch_add(1, SeqCst);
        Ok(block)
    }

    fn calloc(&self, count: usize, bytes: usize) -> aquifer::Result<NonNull<u8>> {
        self.calls.calloc.fetch_add(1, SeqCst);
        let all = count.checked_mul(bytes);
        let all = all.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "it overflows"))?;
        // SAFETY: may be called with any size.
        let block = or_full(unsafe { libc::calloc(all.max(1), 1) })?;
        self.calls.live.fetch_add(1, SeqCst);
        Ok(block)
    }

    unsafe fn realloc(&self, block: NonNull<u8>, bytes: usize) -> aquifer::Result<NonNull<u8>> {
        self.calls.realloc.fetch_add(1, SeqCst);
        // SAFETY: the caller's block.
        or_full(unsafe { libc::realloc(block.as_ptr().cast(), bytes.max(1)) })
    }

    unsafe fn free(&self, block: NonNull<u8>, bytes: usize) {
        self.calls.free.fetch_add(1, SeqCst);
        self.calls.live.fetch_sub(1, SeqCst);
        self.calls.freed.lock().unwrap().push(bytes);
        // SAFETY: the caller's block.
        unsafe { libc::free(block.as_ptr().cast()) }
    }
}

/// A handler of functions that count.
fn counted(name: &str) -> (DataHandler, Arc<Calls>) {
    let calls = Arc::<Calls>::default();
    let functions = Counted { calls: calls.clone() };
    (DataHandler::from_functions(name, functions).unwrap(), calls)
}

/// An allocator whose blocks have just the layout that they go back with, or the test fails.
struct Strict {
    blocks: Arc<Mutex<Vec<(usize, Layout)>>>,
}

// SAFETY: the heap's blocks.
unsafe impl Allocator for Strict {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let block = Global.allocate(layout)?;
        self.blocks.lock().unwrap().push((block.cast::<u8>().addr().get(), layout));
        Ok(block)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        let entry = (block.addr().get(), layout);
        let mut blocks = self.blocks.lock().unwrap();
        let at = blocks.iter().position(|live| *live == entry);
        assert!(at.is_some(), "{entry:x?} is none of {blocks:x?}");
        blocks.swap_remove(at.unwrap());
        // SAFETY: the caller's block.
        unsafe { Global.deallocate(block, layout) }
    }
}

/// A handler's functions as a C program calls them.
struct C<'a>(&'a DataHandler);

impl C<'_> {
    fn malloc(&self, size: usize) -> *mut u8 {
        let table = self.0.as_raw().allocator;
        // SAFETY: the handle lives.
        unsafe { table.malloc.unwrap()(table.ctx, size) }.cast()
    }

    fn calloc(&self, nelem: usize, elsize: usize) -> *mut u8 {
        let table = self.0.as_raw().allocator;
        // SAFETY: the handle lives.
        unsafe { table.calloc.unwrap()(table.ctx, nelem, elsize) }.cast()
    }

    fn realloc(&self, block: *mut u8, size: usize) -> *mut u8 {
        let table = self.0.as_raw().allocator;
        // SAFETY: the handle lives, and the block is the test's.
        unsafe { table.realloc.unwrap()(table.ctx, block.cast(), size) }.cast()
    }

    fn free(&self, block: *mut u8, size: usize) {
        let table = self.0.as_raw().allocator;
        // SAFETY: the handle lives, and the block is the test's, which it frees once.
        unsafe { table.free.unwrap()(table.ctx, block.cast(), size) }
    }
}

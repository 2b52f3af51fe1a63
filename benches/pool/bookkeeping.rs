//! Host memory of a pool's own: bytes for each live block and for each stream, and what a trim leaves.
//!
//! The program's allocator counts. On the simulated device its bookkeeping is in the figures, too.

use crate::rows::{MIB, POOL, number};
use crate::subject::{Bench, must};
use aquifer::{DeviceBlock, DeviceLayout, DeviceResource, Stream};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The system's allocator, which counts what is taken while it is told to.
pub(crate) struct Counting {
    is_on: AtomicBool,
    taken: AtomicUsize,
}

impl Counting {
    pub(crate) const fn new() -> Self {
        Self { is_on: AtomicBool::new(false), taken: AtomicUsize::new(0) }
    }

    #[inline]
    fn add(&self, bytes: usize) {
        // No other group's threads are to share a counter.
        if self.is_on.load(Relaxed) {
            self.taken.fetch_add(bytes, Relaxed);
        }
    }

    /// Bytes that were taken and not given back; what was taken before may make it negative.
    fn taken(&self) -> f64 {
        self.taken.load(Relaxed) as isize as f64
    }
}

// SAFETY: forwards each call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: our caller vouches for it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: our caller vouches for it.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.add(layout.size().wrapping_neg());
        // SAFETY: our caller vouches for it.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add(size.wrapping_sub(layout.size()));
        // SAFETY: our caller vouches for it.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// 1,024 streams, then a million blocks on them in turn; all are freed, each on another stream than its
/// own, so that the heaps have blocks of many; then a trim.
pub(crate) fn bookkeeping(bench: &Bench) {
    let streams: Vec<Stream> = (0..bench.count(1024, 32)).map(|_| bench.stream()).collect();
    let count = bench.count(1_000_000, 2000) as usize;
    let mut blocks: Vec<DeviceBlock> = Vec::with_capacity(count);
    let layout = must(DeviceLayout::new(256));
    let pool = bench.pool_of(0);
    let counting = &crate::ALLOCATOR;
    counting.is_on.store(true, Relaxed);
    let empty = counting.taken();
    for stream in &streams {
        let block = must(pool.allocate(stream, layout));
        // SAFETY: of this pool, given back once, and used by no work.
        unsafe { pool.deallocate(stream, block) };
    }
    let each_stream = (counting.taken() - empty) / streams.len() as f64;
    number(POOL, "bookkeeping bytes a stream", each_stream);
    let before = counting.taken();
    let on = |number: usize| &streams[number % streams.len()];
    blocks.extend((0..count).map(|number| must(pool.allocate(on(number), layout))));
    number(POOL, "bookkeeping bytes a block", (counting.taken() - before) / count as f64);
    for (at, block) in blocks.drain(..).enumerate() {
        // SAFETY: of this pool, given back once, and used by no work.
        unsafe { pool.deallocate(on(at * 7 + at / streams.len()), block) };
    }
    number(
        POOL,
        "bookkeeping MiB, a million blocks freed elsewhere",
        (counting.taken() - empty) / MIB as f64,
    );
    bench.synchronize();
    must(pool.wait_and_trim(0));
    number(POOL, "bookkeeping MiB after trim", (counting.taken() - empty) / MIB as f64);
    counting.is_on.store(false, Relaxed);
}

//! The contract of `Allocator`, as Rust 1.100 words it, asked of one allocator.

#![allow(dead_code, reason = "each test target uses a part of it")]

use crate::threads::run_threads;
use allocator_api2::alloc::{AllocError, Allocator};
use std::alloc::Layout;
use std::ptr::NonNull;

pub(crate) const SIZES: [usize; 7] = [0, 1, 7, 4095, 4096, 4097, 1 << 20];
pub(crate) const ALIGNMENTS: [usize; 6] = [1, 8, 4096, 8192, 65536, 1 << 21];

pub(crate) fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// A live block, and what was written to it.
#[derive(Debug)]
pub(crate) struct Block {
    pointer: NonNull<u8>,
    layout: Layout,
    seed: u8,
}

// SAFETY: the block is this value's alone.
unsafe impl Send for Block {}

fn byte(seed: u8, at: usize) -> u8 {
    seed.wrapping_add((at as u8).wrapping_mul(31)).wrapping_add((at >> 8) as u8)
}

impl Block {
    /// Takes over what an allocator returned, checks its shape, and fills it.
    pub(crate) fn new(block: NonNull<[u8]>, layout: Layout, seed: u8) -> Self {
        assert!(block.len() >= layout.size(), "{} bytes for {layout:?}", block.len());
        let pointer = block.cast::<u8>();
        let address = pointer.addr().get();
        assert!(address.is_multiple_of(layout.align()), "{address:#x} for {layout:?}");
        assert!(address.checked_add(block.len()).is_some());
        let mut this = Self { pointer, layout, seed };
        this.fill(seed);
        this
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: a live block of this many bytes, written when it was taken over.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.layout.size()) }
    }

    pub(crate) fn range(&self) -> (usize, usize) {
        let start = self.pointer.addr().get();
        (start, start + self.layout.size())
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    fn fill(&mut self, seed: u8) {
        self.seed = seed;
        for at in 0..self.layout.size() {
            // SAFETY: inside a live block that is ours.
            unsafe { self.pointer.add(at).write(byte(seed, at)) };
        }
    }

    pub(crate) fn check(&self) {
        self.check_prefix(self.layout.size());
    }

    fn check_prefix(&self, length: usize) {
        let wrong = self.bytes()[..length].iter().enumerate();
        let wrong = wrong.map(|(at, found)| (at, *found, byte(self.seed, at)));
        let wrong = wrong.filter(|(_, found, wanted)| found != wanted).take(4).collect::<Vec<_>>();
        assert!(wrong.is_empty(), "{:?}: (at, found, wanted) {wrong:?}", self.layout);
    }

    /// Gives the block back after a last look.
    pub(crate) fn free(self, allocator: &impl Allocator) {
        self.check();
        // SAFETY: a live block of an equivalent allocator, with a layout that fits it.
        unsafe { allocator.deallocate(self.pointer, self.layout) };
    }

    /// Grows or shrinks. The block must be whole after an error, and its prefix after a success.
    pub(crate) fn resize(
        &mut self,
        allocator: &impl Allocator,
        to: Layout,
        zeroed: bool,
    ) -> Result<(), AllocError> {
        let (from, old) = (self.pointer, self.layout);
        // SAFETY: a live block of an equivalent allocator, with a layout that fits it.
        let resized = unsafe {
            match () {
                () if to.size() < old.size() => allocator.shrink(from, old, to),
                // Equal sizes may be asked of either.
                () if to.size() == old.size() && !zeroed => allocator.shrink(from, old, to),
                () if zeroed => allocator.grow_zeroed(from, old, to),
                () => allocator.grow(from, old, to),
            }
        };
        let Ok(resized) = resized else {
            self.check();
            return Err(AllocError);
        };
        assert!(resized.len() >= to.size());
        assert!(resized.cast::<u8>().addr().get().is_multiple_of(to.align()), "{old:?} to {to:?}");
        (self.pointer, self.layout) = (resized.cast(), to);
        if to.size() < old.size() {
            self.check();
        } else if zeroed {
            // SAFETY: what `grow_zeroed` returned, whole.
            let all = unsafe { resized.as_ref() };
            assert!(all[old.size()..].iter().all(|byte| *byte == 0), "{old:?} to {to:?}");
            self.check_prefix(old.size());
        } else {
            // SAFETY: the tail is ours and may never have been written.
            unsafe { self.pointer.add(old.size()).write_bytes(0, to.size() - old.size()) };
            self.check_prefix(old.size());
        }
        self.fill(self.seed.wrapping_add(1));
        Ok(())
    }
}

pub(crate) fn allocate(allocator: &impl Allocator, layout: Layout, seed: u8) -> Block {
    Block::new(allocator.allocate(layout).unwrap(), layout, seed)
}

/// Asks everything. `make` makes handles on one and the same memory.
pub(crate) fn check<A: Allocator + Clone + Send + Sync + 'static>(make: impl Fn() -> A) {
    meets_every_size_and_alignment(&make());
    zeroes_what_it_says(&make());
    resizes_between_all_alignments(&make());
    takes_any_size_that_fits(&make());
    blocks_go_back_through_any_handle(&make);
    refuses_what_no_address_space_holds(&make());
}

pub(crate) fn meets_every_size_and_alignment(allocator: &impl Allocator) {
    let mut live = Vec::new();
    for align in ALIGNMENTS {
        for (at, size) in SIZES.into_iter().enumerate() {
            live.push(allocate(allocator, layout(size, align), (at * align) as u8));
        }
    }
    no_overlap(&live);
    live.iter().for_each(Block::check);
    // Last in, first out, and every other one first.
    while live.len() > 1 {
        live.remove(live.len() / 2).free(allocator);
        live.iter().for_each(|block| block.check_prefix(block.layout.size().min(64)));
    }
    live.pop().unwrap().free(allocator);
}

pub(crate) fn no_overlap(live: &[Block]) {
    let mut ranges = live.iter().map(Block::range).collect::<Vec<_>>();
    ranges.retain(|(start, end)| start != end);
    ranges.sort_unstable();
    for two in ranges.windows(2) {
        assert!(two[0].1 <= two[1].0, "{two:x?}");
    }
}

pub(crate) fn zeroes_what_it_says(allocator: &impl Allocator) {
    for size in SIZES {
        for align in [1, 8192] {
            let asked = layout(size, align);
            let block = allocator.allocate_zeroed(asked).unwrap();
            // SAFETY: all of the block is zeroed, or so it says.
            assert!(unsafe { block.as_ref() }.iter().all(|byte| *byte == 0));
            Block::new(block, asked, 3).free(allocator);
        }
    }
}

pub(crate) fn resizes_between_all_alignments(allocator: &impl Allocator) {
    let sizes = [0, 7, 4096, 5_000];
    for (from, to) in ALIGNMENTS.into_iter().flat_map(|a| ALIGNMENTS.map(|b| (a, b))) {
        for (old, new) in sizes.into_iter().flat_map(|a| sizes.map(|b| (a, b))) {
            for zeroed in [false, true] {
                let mut block = allocate(allocator, layout(old, from), 9);
                block.resize(allocator, layout(new, to), zeroed).unwrap();
                block.check();
                block.free(allocator);
            }
        }
    }
}

pub(crate) fn takes_any_size_that_fits(allocator: &impl Allocator) {
    for (size, align) in [(1, 1), (4095, 8), (4097, 8192), (10_000, 4096)] {
        let asked = layout(size, align);
        let length = allocator.allocate(asked).map(|block| {
            let length = block.len();
            Block::new(block, asked, 1).free(allocator);
            length
        });
        for said in [size, size + (length.unwrap() - size) / 2, length.unwrap()] {
            let block = allocator.allocate(asked).unwrap();
            // A longer layout of the same block fits as long as it is within what was returned.
            Block::new(block, layout(said.min(block.len()), align), 2).free(allocator);
            let mut block = Block::new(allocator.allocate(asked).unwrap(), asked, 4);
            // A block that was shrunk is given back by its new size.
            block.resize(allocator, layout(size.div_ceil(2), align), false).unwrap();
            block.resize(allocator, layout(size, align), true).unwrap();
            block.free(allocator);
        }
    }
}

pub(crate) fn blocks_go_back_through_any_handle<A: Allocator + Clone + Send + Sync + 'static>(
    make: &impl Fn() -> A,
) {
    let handle = make();
    let other = handle.clone();
    let asked = layout(5000, 64);
    let through_clone = allocate(&handle, asked, 1);
    let through_thread = allocate(&handle, asked, 2);
    let through_survivor = allocate(&handle, asked, 3);
    let grown_elsewhere = allocate(&handle, asked, 4);
    through_clone.free(&other);
    drop(handle);
    run_threads(|threads| {
        threads.spawn(|| through_thread.free(&other));
        threads.spawn(|| {
            let mut block = grown_elsewhere;
            block.resize(&other, layout(50_000, 4096), true).unwrap();
            block.free(&other);
        });
    });
    // The last handle on a thread that ends, the block on one that goes on.
    let last = other.clone();
    drop(other);
    let block = std::thread::spawn(move || {
        through_survivor.check();
        let block = allocate(&last, layout(100, 8), 5);
        through_survivor.free(&last);
        (block, last)
    });
    let (block, last) = block.join().unwrap();
    block.free(&last);
    concurrently(&last);
}

/// Blocks made on one thread and freed on another, many at once.
fn concurrently<A: Allocator + Sync>(allocator: &A) {
    let (give, take) = std::sync::mpsc::channel::<Block>();
    run_threads(|threads| {
        for seed in 0..3_u8 {
            let give = give.clone();
            threads.spawn(move || {
                for round in 0..20_usize {
                    let asked = layout(1 + round * 700, 1 << (round % 14));
                    give.send(allocate(allocator, asked, seed)).unwrap();
                }
            });
        }
        drop(give);
        threads.spawn(move || take.into_iter().for_each(|block| block.free(allocator)));
    });
}

pub(crate) fn refuses_what_no_address_space_holds(allocator: &impl Allocator) {
    let most = isize::MAX as usize;
    // The largest layouts that there are. Rounded up to pages, or with the room in which a larger
    // alignment is found, each is too large; at exactly a page it is the driver who would say so.
    let too_large = [1, 8, 512, 8192, 65536, 1 << 21];
    let too_large = too_large.map(|align| layout(most - (align - 1), align));
    let mut block = allocate(allocator, layout(100, 8), 7);
    for asked in too_large {
        assert!(allocator.allocate(asked).is_err(), "{asked:?}");
        assert!(allocator.allocate_zeroed(asked).is_err(), "{asked:?}");
        assert!(block.resize(allocator, asked, false).is_err(), "{asked:?}");
        assert!(block.resize(allocator, asked, true).is_err(), "{asked:?}");
    }
    block.resize(allocator, layout(200, 16), true).unwrap();
    block.free(allocator);
}

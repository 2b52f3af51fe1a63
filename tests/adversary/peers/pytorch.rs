//! PyTorch's caching allocator, without expandable segments: small blocks and large ones apart, for each stream apart.
//!
//! | a block of | is a multiple of | comes from a segment of | leaves a rest that is more than |
//! | --- | --- | --- | --- |
//! | 1 MiB or less | 512 bytes | 2 MiB | nothing |
//! | less than 10 MiB | 512 bytes | 20 MiB | 1 MiB |
//! | more | 512 bytes | its own bytes, a multiple of 2 MiB | 1 MiB |
//!
//! A block stays with the stream that it was allocated on. One that is freed on another stream is free when the device
//! is past that one's uses. Segments go back when the cache is emptied, if they are free as a whole.

use super::free_ranges::{FreeRanges, Range};
use super::{Rules, Use};
use crate::program::STREAMS;

const MIB: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct PyTorch {
    /// By stream, small blocks and large ones.
    free: [[FreeRanges; 2]; STREAMS],
    pending: Vec<(Block, Use)>,
    /// With their streams and pools.
    segments: Vec<(Range, usize, usize)>,
    next: usize,
    reserved: usize,
}

#[derive(Clone, Copy)]
pub(crate) struct Block {
    range: Range,
    home: usize,
    pool: usize,
}

impl PyTorch {
    fn put(&mut self, Block { range, home, pool }: Block) {
        self.free[home][pool].add(range);
    }
}

impl Rules for PyTorch {
    type Block = Block;

    fn allocate(&mut self, stream: usize, bytes: usize) -> Block {
        let bytes = bytes.next_multiple_of(512);
        let (pool, rest) = if bytes <= MIB { (0, 0) } else { (1, MIB) };
        let found = self.free[stream][pool].take(bytes, rest);
        let range = found.unwrap_or_else(|| {
            let segment = match bytes {
                ..=MIB => 2 * MIB,
                _ if bytes < 10 * MIB => 20 * MIB,
                _ => bytes.next_multiple_of(2 * MIB),
            };
            let whole = Range { address: self.next, bytes: segment };
            // No two are adjacent.
            self.next += segment + MIB;
            self.reserved += segment;
            self.segments.push((whole, stream, pool));
            let (wanted, left) =
                if segment - bytes <= rest { (segment, 0) } else { (bytes, segment - bytes) };
            if left > 0 {
                self.free[stream][pool].add(Range { address: whole.address + bytes, bytes: left });
            }
            Range { address: whole.address, bytes: wanted }
        });
        Block { range, home: stream, pool }
    }

    fn free(&mut self, block: Block, last: Use) {
        match block.home == last.stream {
            true => self.put(block),
            false => self.pending.push((block, last)),
        }
    }

    fn poll(&mut self, is_past: &dyn Fn(Use) -> bool) {
        let over: Vec<_> = self.pending.extract_if(.., |(_, last)| is_past(*last)).collect();
        over.into_iter().for_each(|(block, _)| self.put(block));
    }

    fn trim(&mut self) {
        for (segment, stream, pool) in std::mem::take(&mut self.segments) {
            match self.free[stream][pool].take_whole(segment) {
                true => self.reserved -= segment.bytes,
                false => self.segments.push((segment, stream, pool)),
            }
        }
    }

    fn reserved(&self) -> usize {
        self.reserved
    }
}

#[test]
fn segments_are_of_three_sizes() {
    let mut rules = PyTorch::default();
    let here = |mark| Use { stream: 0, mark };
    let small = rules.allocate(0, 1);
    assert_eq!((small.range.bytes, rules.reserved), (512, 2 * MIB));
    let medium = rules.allocate(0, 3 * MIB);
    assert_eq!((medium.range.bytes, rules.reserved), (3 * MIB, 22 * MIB));
    let large = rules.allocate(0, 19 * MIB + 1);
    // What is left is no more than 1 MiB, so the block has it.
    assert_eq!((large.range.bytes, rules.reserved), (20 * MIB, 42 * MIB));
    rules.free(large, here(1));
    // 17 MiB are left beside the one of 3.
    let nine = rules.allocate(0, 9 * MIB);
    assert_eq!((nine.range.address, rules.reserved), (medium.range.address + 3 * MIB, 42 * MIB));
    let twelve = rules.allocate(0, 12 * MIB);
    assert_eq!((twelve.range.address, rules.reserved), (large.range.address, 42 * MIB));
    rules.allocate(1, 1);
    assert_eq!(rules.reserved, 44 * MIB);
    [twelve, small].into_iter().for_each(|block| rules.free(block, here(2)));
    rules.trim();
    assert_eq!(rules.reserved, 22 * MIB, "a segment of 2 and one of 20 MiB were free");
}

#[test]
fn a_block_that_another_stream_used_waits_for_it() {
    let mut rules = PyTorch::default();
    let block = rules.allocate(0, 30 * MIB);
    rules.free(block, Use { stream: 1, mark: 1 });
    rules.poll(&|_| false);
    let other = rules.allocate(0, 30 * MIB);
    assert_eq!(rules.reserved, 60 * MIB);
    rules.poll(&|_| true);
    rules.free(other, Use { stream: 0, mark: 2 });
    rules.trim();
    assert_eq!(rules.reserved, 0);
}

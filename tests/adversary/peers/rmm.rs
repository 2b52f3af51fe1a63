//! RMM's pool without an initial size: a list of free blocks for each stream, which has what was freed there.
//!
//! A stream takes the best fit of its own list; else of another one's, to which the rest goes back; else it has the lists
//! of the others, one after the other, until one of them serves. Then the pool grows: by what is asked, or by as much as it
//! has. Streams wait for each other on the device, so no event decides. Nothing goes back.

use super::free_ranges::{FreeRanges, Range};
use super::{Rules, Use};
use crate::program::STREAMS;

#[derive(Default)]
pub(crate) struct Rmm {
    free: [FreeRanges; STREAMS],
    next: usize,
    reserved: usize,
}

impl Rmm {
    fn take_of_others(&mut self, stream: usize, bytes: usize) -> Option<Range> {
        let others = || (0..STREAMS).filter(|&it| it != stream);
        for other in others() {
            if let Some(found) = self.free[other].take(bytes, 0) {
                return Some(found);
            }
        }
        for other in others() {
            let all = self.free[other].drain();
            all.into_iter().for_each(|range| self.free[stream].add(range));
            if let Some(found) = self.free[stream].take(bytes, 0) {
                return Some(found);
            }
        }
        None
    }
}

impl Rules for Rmm {
    type Block = Range;

    fn allocate(&mut self, stream: usize, bytes: usize) -> Range {
        let bytes = bytes.next_multiple_of(256);
        let found = self.free[stream].take(bytes, 0).or_else(|| self.take_of_others(stream, bytes));
        found.unwrap_or_else(|| {
            let grown = bytes.max(self.reserved);
            let address = self.next;
            self.next += grown + 256;
            self.reserved += grown;
            if grown > bytes {
                self.free[stream].add(Range { address: address + bytes, bytes: grown - bytes });
            }
            Range { address, bytes }
        })
    }

    fn free(&mut self, block: Range, last: Use) {
        self.free[last.stream].add(block);
    }

    fn poll(&mut self, _: &dyn Fn(Use) -> bool) {}

    fn trim(&mut self) {}

    fn reserved(&self) -> usize {
        self.reserved
    }
}

#[test]
fn the_pool_doubles_and_streams_take_from_each_other() {
    let mut rules = Rmm::default();
    let on = |stream| Use { stream, mark: 1 };
    let first = rules.allocate(0, 1000);
    assert_eq!((first.bytes, rules.reserved), (1024, 1024));
    let second = rules.allocate(0, 256);
    assert_eq!(rules.reserved, 2048);
    rules.free(first, on(0));
    // The best fit of the other stream: the 768 bytes of the second growth.
    let third = rules.allocate(1, 512);
    assert_eq!((third.address, rules.reserved), (second.address + 256, 2048));
    rules.free(second, on(2));
    rules.free(third, on(1));
    // One in three lists, 1,024 bytes: what the stream has, with what the others have.
    let all = rules.allocate(2, 1024);
    assert_eq!((all.address, rules.reserved), (first.address, 2048));
    let merged = rules.allocate(2, 1024);
    assert_eq!((merged.address, rules.reserved), (second.address, 2048));
    rules.allocate(2, 256);
    assert_eq!(rules.reserved, 4096);
}

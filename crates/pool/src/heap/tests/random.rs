//! Random calls, each checked against the model.

use super::model::{Model, Unit};
use super::structure::walk;
use crate::heap::{COMPLETE, FreeBlock, Heap, Node, NotLive, Piece, Tag};
use proptest::prelude::*;

const RANGES: usize = 3;
const RANGE_UNITS: usize = 160;

#[derive(Clone, Debug)]
enum Step {
    Add { at: usize, units: usize, tag: Tag, stamp: usize },
    Allocate { tag: Tag, units: u32, align: u32, upto: usize },
    Free { which: usize, tag: Tag, stamp: usize },
    Misuse { node: Node },
    Retag { from: Tag, upto: usize, to: Tag, stamp: usize },
    Cut { tag: Tag, least: u32, most: u32, upto: usize },
    CutAll { tag: Tag, upto: usize, again: bool },
    CutExactly { which: usize },
    CutWrongly { at: usize, units: usize, range: u32 },
    CutPart { which: usize, least: u32, skip: usize, units: usize },
    AddAllocated { at: usize, units: usize },
    Extend { which: usize, units: u32, tag: Tag, upto: usize },
    Shrink { which: usize, units: u32, tag: Tag, stamp: usize },
}

/// Few tags, small and large.
fn tag() -> impl Strategy<Value = Tag> {
    prop_oneof![4 => Just(COMPLETE), 2 => Just(1), 2 => Just(2), 1 => Just(4000)]
}

fn step() -> impl Strategy<Value = Step> {
    let upto = || prop_oneof![2 => Just(usize::MAX), 1 => 0..40usize];
    let stamp = || prop_oneof![15 => 0..40usize, 1 => Just(usize::MAX)];
    let at = || 0..RANGES * RANGE_UNITS;
    prop_oneof![
        3 => (at(), 1..RANGE_UNITS, tag(), stamp())
            .prop_map(|(at, units, tag, stamp)| Step::Add { at, units, tag, stamp }),
        12 => (tag(), 1..40u32, 0..14u32, upto())
            .prop_map(|(tag, units, align, upto)| Step::Allocate { tag, units, align, upto }),
        10 => (any::<usize>(), tag(), stamp())
            .prop_map(|(which, tag, stamp)| Step::Free { which, tag, stamp }),
        2 => prop_oneof![0..200u32, any::<u32>()].prop_map(|node| Step::Misuse { node }),
        2 => (tag(), upto(), tag(), stamp())
            .prop_map(|(from, upto, to, stamp)| Step::Retag { from, upto, to, stamp }),
        2 => (tag(), 0..60u32, 0..60u32, upto())
            .prop_map(|(tag, least, most, upto)| Step::Cut { tag, least, most, upto }),
        1 => (tag(), upto(), any::<bool>())
            .prop_map(|(tag, upto, again)| Step::CutAll { tag, upto, again }),
        1 => any::<usize>().prop_map(|which| Step::CutExactly { which }),
        1 => (at(), 0..60usize, 0..RANGES as u32)
            .prop_map(|(at, units, range)| Step::CutWrongly { at, units, range }),
        2 => (any::<usize>(), 0..20u32, any::<usize>(), any::<usize>())
            .prop_map(|(which, least, skip, units)| Step::CutPart { which, least, skip, units }),
        1 => (at(), 1..RANGE_UNITS).prop_map(|(at, units)| Step::AddAllocated { at, units }),
        4 => (any::<usize>(), 0..40u32, tag(), upto())
            .prop_map(|(which, units, tag, upto)| Step::Extend { which, units, tag, upto }),
        3 => (any::<usize>(), 0..40u32, tag(), stamp())
            .prop_map(|(which, units, tag, stamp)| Step::Shrink { which, units, tag, stamp }),
    ]
}

struct Pair {
    heap: Heap,
    model: Model,
    /// Node, first unit and count of what is live.
    live: Vec<(Node, usize, usize)>,
    made: usize,
}

impl Pair {
    fn new(shift: u32, own: Tag, base: u64) -> Self {
        let model = Model::new(shift, base, RANGES, RANGE_UNITS);
        Self { heap: Heap::new(shift, own), model, live: Vec::new(), made: 0 }
    }

    fn add(&mut self, start: usize, units: usize, tag: Tag, stamp: usize) {
        let piece = Piece {
            upstream_block: self.model.range(start),
            address: self.model.address(start),
            bytes: (units as u64) << self.model.shift,
            stamp,
        };
        self.heap.add(tag, piece);
        self.model.set(start, units, Unit::Free(tag, stamp));
    }

    /// What was cut was free with this tag; the model loses it. Returns its first unit and count.
    fn lose(&mut self, tag: Tag, piece: Piece) -> (usize, usize) {
        let start = self.model.unit(piece.address);
        let count = (piece.bytes >> self.model.shift) as usize;
        assert_eq!(piece.upstream_block, self.model.range(start));
        for unit in start..start + count {
            assert_eq!(self.model.at(unit), Unit::Free(tag, piece.stamp));
        }
        self.model.set(start, count, Unit::Away);
        (start, count)
    }

    fn allocate(&mut self, tag: Tag, units: u32, align: u64, upto: usize) {
        let fits = self.model.free(tag, upto);
        let count = units as usize;
        let bound = self.heap.largest_bound(tag);
        let taken = self.heap.allocate(tag, units, align, upto).or_else(|| {
            // Few enough blocks are here that none is missed but for an alignment.
            let pad = (align >> self.model.shift).saturating_sub(1) as usize;
            let missed = fits.iter().find(|fit| fit.1 >= count + pad);
            assert!(missed.is_none() || upto != usize::MAX, "{missed:?} serves {units} {align}");
            self.heap.allocate_exhaustive(tag, units, align, upto)
        });
        let Some(taken) = taken else {
            let aligned = |unit: &usize| self.model.address(*unit).is_multiple_of(align);
            let room = |fit: &&(usize, usize)| (fit.0..fit.0 + fit.1).find(aligned);
            let serves =
                |fit: &&(usize, usize)| room(fit).is_some_and(|unit| unit + count <= fit.0 + fit.1);
            assert_eq!(fits.iter().find(serves), None, "is missed");
            return;
        };
        assert!(units <= bound, "more than the upper bound was served");
        assert_eq!(taken.address % align, 0);
        assert_eq!(self.heap.live(taken.node), Ok((taken.address, units)));
        let start = self.model.unit(taken.address);
        for unit in start..start + count {
            assert_eq!(self.model.at(unit), Unit::Free(tag, taken.stamp));
            assert_eq!(self.model.range(unit), self.model.range(start));
        }
        assert!(taken.stamp <= upto);
        assert!(self.live.iter().all(|live| live.0 != taken.node), "one node for two");
        self.made += 1;
        self.model.set(start, count, Unit::Live(self.made));
        self.live.push((taken.node, start, count));
    }

    fn free(&mut self, which: usize, tag: Tag, stamp: usize) {
        let (node, start, count) = self.live.swap_remove(which);
        assert_eq!(self.heap.free(node, tag, stamp), Ok(count as u32));
        self.model.set(start, count, Unit::Free(tag, stamp));
        // Free in a bin, or merged away: the token is no good either way.
        assert_eq!(self.heap.free(node, tag, stamp), Err(NotLive(node)));
        assert_eq!(self.heap.live(node), Err(NotLive(node)));
    }

    fn retag(&mut self, from: Tag, upto: usize, to: Tag, stamp: usize) {
        let runs = self.model.free(from, upto);
        for &(start, count) in &runs {
            self.model.set(start, count, Unit::Free(to, stamp));
        }
        assert_eq!(self.heap.retag(from, upto, to, stamp), runs.len());
    }

    fn cut(&mut self, tag: Tag, least: u32, most: u32, upto: usize) {
        let sizes = self.model.free(tag, upto).into_iter().map(|run| run.1 as u32);
        let largest = sizes.max();
        match self.heap.extract(tag, least, most, upto) {
            None => assert!(largest.is_none() || most == 0),
            Some(piece) => {
                let count = self.lose(tag, piece).1 as u32;
                assert!(count <= most);
                assert!(count >= least.min(most).min(largest.unwrap()));
                assert!(piece.stamp <= upto);
            }
        }
    }

    /// The first units of a free block that was seen are allocated.
    fn allocate_from(&mut self, block: FreeBlock, units: usize) {
        let all = (block.bytes >> self.model.shift) as u32;
        let later = FreeBlock { stamp: block.stamp.wrapping_add(1), ..block };
        assert_eq!(self.heap.allocate_from(later, 1), None);
        assert_eq!(self.heap.allocate_from(block, all + 1), None);
        assert_eq!(self.heap.allocate_from(block, 0), None);
        let start = self.model.unit(block.address);
        let is_last =
            |unit: usize| unit == self.model.range_end(start) || self.model.at(unit) == Unit::Away;
        let number = is_last(start + all as usize).then(|| self.model.range(start));
        assert_eq!(self.heap.number_below(block.end()), number);
        let taken = self.heap.allocate_from(block, units as u32).unwrap();
        assert_eq!((taken.address, taken.stamp), (block.address, block.stamp));
        self.made += 1;
        self.model.set(start, units, Unit::Live(self.made));
        self.live.push((taken.node, start, units));
    }

    /// How many units from `at` on are in no heap, in its range and at most so many.
    fn away(&self, at: usize, most: usize) -> usize {
        let end = self.model.range_end(at).min(at + most);
        (at..end).take_while(|unit| self.model.at(*unit) == Unit::Away).count()
    }

    fn add_allocated(&mut self, start: usize, count: usize) {
        let piece = Piece {
            upstream_block: self.model.range(start),
            address: self.model.address(start),
            bytes: (count as u64) << self.model.shift,
            stamp: 0,
        };
        let taken = self.heap.add_allocated(piece).unwrap();
        assert_eq!(taken.address, piece.address);
        assert_eq!(self.heap.add_allocated(piece), None, "it is there");
        self.made += 1;
        self.model.set(start, count, Unit::Live(self.made));
        self.live.push((taken.node, start, count));
    }

    /// A live block takes free memory above it of one tag up to a stamp, or of another tag.
    fn extend(&mut self, which: usize, units: u32, not: Tag, upto: usize) {
        let (node, start, count) = self.live[which];
        let is_ready = |tag: Tag, stamp: usize| tag != not && stamp <= upto;
        let (end, range_end) = (start + count, self.model.range_end(start));
        let ready = |unit: &usize| matches!(self.model.at(*unit), Unit::Free(tag, stamp) if is_ready(tag, stamp));
        let free = (end..range_end).take_while(ready).count();
        let beyond = end + free;
        let is_open = beyond == range_end || self.model.at(beyond) == Unit::Away;
        let above = self.heap.above(node, is_ready).unwrap();
        // Not by the model, which may end there.
        let (first, shift) = (self.model.address(start), self.model.shift);
        let address = |unit: usize| first + (((unit - start) as u64) << shift);
        assert_eq!((above.start, above.end), (address(end), address(beyond)));
        assert_eq!(above.open, is_open.then(|| self.model.range(start)));
        assert_eq!(self.heap.extend(node, u32::MAX, is_ready), Ok(false));
        let extended = units as usize <= free;
        assert_eq!(self.heap.extend(node, units, is_ready), Ok(extended));
        if extended {
            let live = self.model.at(start);
            self.live[which].2 += units as usize;
            self.model.set(start, count + units as usize, live);
        }
        let (_, start, count) = self.live[which];
        let (end, range) = (start + count, self.model.range(start));
        let is_last = end == self.model.range_end(start) || self.model.at(end) == Unit::Away;
        assert_eq!(self.heap.is_live_below(address(end), range), is_last);
        assert!(!self.heap.is_live_below(address(end), RANGES as u32));
    }

    fn shrink(&mut self, which: usize, units: u32, tag: Tag, stamp: usize) {
        let (node, start, count) = self.live[which];
        let units = units as usize;
        let shrunk = self.heap.shrink(node, units as u32, tag, stamp);
        assert_eq!(shrunk, Ok((1..=count).contains(&units)));
        if (1..count).contains(&units) {
            self.live[which].2 = units;
            self.model.set(start + units, count - units, Unit::Free(tag, stamp));
        }
    }

    /// A part of one of the free blocks from some size on is cut out.
    fn cut_part(&mut self, which: usize, least: u32, skip: usize, units: usize) {
        let shift = self.model.shift;
        let mut blocks: Vec<FreeBlock> =
            self.heap.free_blocks_from(u64::from(least) << shift).collect();
        blocks.sort_by_key(|block| block.address);
        let runs = self.model.runs().into_iter().filter_map(|(start, count)| {
            let Unit::Free(tag, stamp) = self.model.at(start) else { return None };
            let (address, bytes) = (self.model.address(start), (count as u64) << shift);
            (count >= least as usize).then_some((tag, address, bytes, stamp))
        });
        let seen: Vec<_> =
            blocks.iter().map(|it| (it.tag, it.address, it.bytes, it.stamp)).collect();
        assert_eq!(seen, runs.collect::<Vec<_>>());
        if blocks.is_empty() {
            return;
        }
        let block = blocks[which % blocks.len()];
        let count = (block.bytes >> shift) as usize;
        let skip = skip % count;
        let units = 1 + units % (count - skip);
        let (address, bytes) = (block.address + ((skip as u64) << shift), (units as u64) << shift);
        if skip.is_multiple_of(3) {
            return self.allocate_from(block, units);
        }
        // What is not as it was seen is left alone, as is what goes past its ends.
        let live = FreeBlock { node: self.live.first().map_or(u32::MAX, |live| live.0), ..block };
        assert_eq!(self.heap.extract_range(live, address, bytes), None);
        let later = FreeBlock { stamp: block.stamp.wrapping_add(1), ..block };
        assert_eq!(self.heap.extract_range(later, address, bytes), None);
        assert_eq!(self.heap.extract_range(block, address, block.end() - address + 256), None);
        assert_eq!(self.heap.extract_range(block, address, 0), None);
        let piece = self.heap.extract_range(block, address, bytes).unwrap();
        assert_eq!((piece.address, piece.bytes, piece.stamp), (address, bytes, block.stamp));
        let (start, _) = self.lose(block.tag, piece);
        let beside = (skip as u64) << shift;
        let above = ((count - skip - units) as u64) << shift;
        let range = (address, address + bytes);
        let number = self.model.range(start);
        assert_eq!(self.heap.free_beside(block.tag, number, range), (beside, above));
        // The neighbours' numbers may be those of memory that is free beside it.
        let of_none = RANGES as u32;
        assert_eq!(self.heap.free_beside(block.tag, of_none, range), (0, 0));
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Add { at, units, tag, stamp } => {
                let units = self.away(at, units);
                if units != 0 {
                    self.add(at, units, tag, stamp);
                }
            }
            Step::AddAllocated { at, units } => {
                let units = self.away(at, units);
                if units != 0 {
                    self.add_allocated(at, units);
                }
            }
            Step::Extend { which, units, tag, upto } => {
                if !self.live.is_empty() {
                    self.extend(which % self.live.len(), units, tag, upto);
                }
            }
            Step::Shrink { which, units, tag, stamp } => {
                if !self.live.is_empty() {
                    self.shrink(which % self.live.len(), units, tag, stamp);
                }
            }
            Step::Allocate { tag, units, align, upto } => {
                self.allocate(tag, units, 1 << align, upto);
            }
            Step::Free { which, tag, stamp } => {
                if !self.live.is_empty() {
                    self.free(which % self.live.len(), tag, stamp);
                }
            }
            Step::Misuse { node } => {
                if self.live.iter().all(|live| live.0 != node) {
                    assert_eq!(self.heap.free(node, COMPLETE, 1), Err(NotLive(node)));
                    assert_eq!(self.heap.live(node), Err(NotLive(node)));
                    assert_eq!(self.heap.extend(node, 1, |_, _| true), Err(NotLive(node)));
                    assert_eq!(self.heap.shrink(node, 1, COMPLETE, 1), Err(NotLive(node)));
                }
            }
            Step::Retag { from, upto, to, stamp } => {
                self.retag(from, upto, to, stamp);
            }
            Step::Cut { tag, least, most, upto } => self.cut(tag, least, most, upto),
            Step::CutPart { which, least, skip, units } => {
                self.cut_part(which, least, skip, units);
            }
            Step::CutAll { tag, upto, again } => {
                let mut pieces = Vec::new();
                self.heap.extract_all(tag, upto, &mut pieces);
                assert_eq!(pieces.len(), self.model.free(tag, upto).len());
                for piece in pieces {
                    let (start, count) = self.lose(tag, piece);
                    if again {
                        self.add(start, count, tag, piece.stamp);
                    }
                }
            }
            Step::CutExactly { which } => {
                let mut runs = self.model.runs();
                runs.retain(|run| matches!(self.model.at(run.0), Unit::Free(..)));
                if runs.is_empty() {
                    return;
                }
                let (start, count) = runs[which % runs.len()];
                let (address, range) = (self.model.address(start), self.model.range(start));
                let bytes = (count as u64) << self.model.shift;
                assert!(!self.heap.extract_complete_block(range + 1, address, bytes));
                let complete = matches!(self.model.at(start), Unit::Free(COMPLETE, _));
                assert_eq!(self.heap.extract_complete_block(range, address, bytes), complete);
                if complete {
                    self.model.set(start, count, Unit::Away);
                }
            }
            Step::CutWrongly { at, units, range } => {
                let runs = self.model.free(COMPLETE, usize::MAX);
                if range != self.model.range(at) || !runs.contains(&(at, units)) {
                    let bytes = (units as u64) << self.model.shift;
                    assert!(!self.heap.extract_complete_block(
                        range,
                        self.model.address(at),
                        bytes
                    ));
                }
            }
        }
    }

    fn check(&self) {
        assert_eq!(walk(&self.heap), self.model.walk());
    }

    /// Everything comes back and is of one tag: each stretch is one block.
    fn finish(&mut self) {
        while !self.live.is_empty() {
            self.free(0, COMPLETE, 3);
        }
        for tag in [1, 2, 4000] {
            self.retag(tag, usize::MAX, COMPLETE, 0);
        }
        self.check();
        let stretches = self.heap.spans.all().count();
        let account = self.heap.stats();
        assert_eq!((self.heap.free_blocks(), account.live_blocks), (stretches, 0));
        // And when what is away comes, each range is.
        let (mut unit, mut all) = (0, 0);
        while unit < self.model.len() {
            let away = |unit: &usize| self.model.at(*unit) == Unit::Away;
            let count = (unit..self.model.range_end(unit)).take_while(away).count();
            if count != 0 {
                self.add(unit, count, COMPLETE, 0);
            }
            all += count;
            unit += count.max(1);
        }
        self.check();
        assert_eq!(self.heap.free_blocks(), RANGES, "{all} units came back");
        for range in 0..RANGES {
            let address = self.model.address(range * RANGE_UNITS);
            let bytes = (RANGE_UNITS as u64) << self.model.shift;
            assert!(self.heap.extract_complete_block(range as u32, address, bytes));
        }
        assert_eq!(self.heap.stats(), Default::default());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_call_does_what_the_model_does(
        pinned in any::<bool>(),
        own in tag(),
        steps in prop::collection::vec(step(), 1..250),
    ) {
        // The base is odd in units, so that alignments are the address's and not the range's.
        let mut pair = if pinned { Pair::new(6, own, 0x7f00_0040) } else { Pair::new(8, own, 0x7f00_0300) };
        for step in &steps {
            pair.apply(step);
            pair.check();
        }
        pair.finish();
    }
}

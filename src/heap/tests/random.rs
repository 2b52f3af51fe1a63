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
                let end = self.model.range_end(at).min(at + units);
                let away = |unit: &usize| self.model.at(*unit) == Unit::Away;
                let units = (at..end).take_while(away).count();
                if units != 0 {
                    self.add(at, units, tag, stamp);
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

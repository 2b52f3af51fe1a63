//! The parts of a block as pools tell them. Some are handed out, and some may not be touched.
//!
//! A pool takes a range as its *heap*, and cuts *regions* from it. A pool over a pool takes a region of the lower one
//! as its heap. When it gives that back, the lower pool's region is as it was.

use crate::check::{AccessStamp, OpName};
use std::collections::BTreeMap;

/// A range in a block, from the first byte to the one after the last.
pub(crate) type Range = (u64, u64);

/// A region that a pool has handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) range: Range,
    /// The allocation.
    pub(crate) by: OpName,
    /// The access that each use comes after. `None` for a region of a capture. Its uses are launches, which come after
    /// what the stream was given before the capture.
    pub(crate) order: Option<AccessStamp>,
}

/// The state of a part of a block in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartState {
    /// Never handed out.
    Reserved,
    Allocated(Region),
    /// Freed by `by`. With `kept_for_graph`, launches of graphs may still use it.
    Freed {
        by: OpName,
        kept_for_graph: bool,
    },
}

impl PartState {
    fn is_of_graphs(&self) -> bool {
        match self {
            Self::Allocated(region) => region.order.is_none(),
            Self::Freed { kept_for_graph, .. } => *kept_for_graph,
            Self::Reserved => false,
        }
    }
}

/// What accesses a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessBy<'a> {
    /// An operation of a stream.
    Stream,
    /// A launch of a graph, in memory that was this region when it was captured.
    Launch(Option<&'a Region>),
}

#[derive(Clone, Copy, Debug)]
struct Part {
    end: u64,
    pool: u64,
    state: PartState,
}

#[derive(Debug)]
struct Heap {
    end: u64,
    /// The parts that were in its range before.
    below: Vec<(u64, Part)>,
}

/// Why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartError {
    /// The access begins in memory that this operation freed.
    Freed(OpName),
    /// The access begins in the region of this range that `by` allocated, and goes on past its end.
    Outside { by: OpName, range: Range },
    /// The access begins in memory that a pool has, or goes on to such memory.
    Unmapped,
}

/// The result of the free of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreedPart {
    /// The region, which is free now.
    Region,
    /// Memory that this operation freed before.
    Freed(OpName),
    /// No region of this pool.
    Unknown,
}

/// The parts of one block that pools have. Any other part is the block's alone.
///
/// INV-1: parts are disjoint.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// By their start.
    parts: BTreeMap<u64, Part>,
    /// By their start and their pool.
    heaps: BTreeMap<(u64, u64), Heap>,
}

impl Parts {
    fn at(&self, offset: u64) -> Option<&Part> {
        let (_, part) = self.parts.range(..=offset).next_back()?;
        (offset < part.end).then_some(part)
    }

    /// Makes a part begin at `at`, if one goes across it.
    fn split(&mut self, at: u64) {
        if let Some((_, part)) = self.parts.range_mut(..at).next_back()
            && at < part.end
        {
            let tail = *part;
            part.end = at;
            self.parts.insert(at, tail);
        }
    }

    /// Takes out the parts of a range.
    fn take(&mut self, (start, end): Range) -> Vec<(u64, Part)> {
        self.split(start);
        self.split(end);
        self.parts.extract_if(start..end, |_, _| true).collect()
    }

    fn set(&mut self, pool: u64, range: Range, state: PartState) {
        self.take(range);
        self.parts.insert(range.0, Part { end: range.1, pool, state });
    }

    /// Makes a range the pool's, so that no access may touch it.
    pub(crate) fn add_heap(&mut self, pool: u64, range: Range) {
        let below = self.take(range);
        self.heaps.insert((range.0, pool), Heap { end: range.1, below });
        self.set(pool, range, PartState::Reserved);
    }

    /// Takes a range from the pool, and restores what it was before.
    pub(crate) fn remove_heap(&mut self, pool: u64, range: Range) {
        let key = (range.0, pool);
        if self.heaps.get(&key).is_some_and(|heap| heap.end == range.1)
            && let Some(heap) = self.heaps.remove(&key)
        {
            self.take(range);
            self.parts.extend(heap.below);
        }
    }

    /// Hands out a region, whatever it was before.
    pub(crate) fn allocate(&mut self, pool: u64, region: Region) {
        self.set(pool, region.range, PartState::Allocated(region));
    }

    /// Gives a region back to its pool. Memory that is no region of that pool stays as it is.
    pub(crate) fn free(
        &mut self,
        pool: u64,
        range: Range,
        by: OpName,
        kept_for_graph: bool,
    ) -> FreedPart {
        match self.at(range.0) {
            Some(Part { pool: own, state, .. }) if *own == pool => match *state {
                PartState::Allocated(region) if region.range == range => {
                    self.set(pool, range, PartState::Freed { by, kept_for_graph });
                    FreedPart::Region
                }
                PartState::Freed { by, .. } => FreedPart::Freed(by),
                _ => FreedPart::Unknown,
            },
            _ => FreedPart::Unknown,
        }
    }

    /// Moves the end of a region, into memory that nobody has, or down, where `by` frees the rest. Returns whether it
    /// did.
    pub(crate) fn resize(&mut self, pool: u64, range: Range, end: u64, by: OpName) -> bool {
        let state = self.at(range.0).filter(|part| part.pool == pool).map(|part| part.state);
        let Some(PartState::Allocated(region)) = state.filter(|_| end > range.0) else {
            return false;
        };
        if region.range != range {
            return false;
        }
        if end < range.1 {
            self.set(pool, (end, range.1), PartState::Freed { by, kept_for_graph: false });
        }
        let range = (range.0, end);
        self.set(pool, range, PartState::Allocated(Region { range, ..region }));
        true
    }

    /// The region that holds a byte, if it is handed out.
    pub(crate) fn region(&self, offset: u64) -> Option<&Region> {
        match &self.at(offset)?.state {
            PartState::Allocated(region) => Some(region),
            _ => None,
        }
    }

    /// Whether all of a range is memory that captures have allocated, or that is kept for graphs.
    fn is_of_graphs(&self, (start, end): Range) -> bool {
        let mut at = start;
        while at < end {
            match self.at(at) {
                Some(Part { end, state, .. }) if state.is_of_graphs() => at = *end,
                _ => return false,
            }
        }
        true
    }

    /// The region that a range lies in.
    pub(crate) fn region_of(&self, (start, end): Range) -> Option<Region> {
        self.region(start).copied().filter(|region| end <= region.range.1)
    }

    /// Whether an access may touch a range. All of it has to be one region's, or no pool's. Launches of graphs may touch
    /// memory that pools keep for graphs, too. Where they had it from captures, it may be other captures' by now. It may
    /// not be another vector's.
    pub(crate) fn check(&self, (start, end): Range, by: AccessBy<'_>) -> Result<(), PartError> {
        let own = match by {
            AccessBy::Launch(own) => own,
            AccessBy::Stream => None,
        };
        if own.is_some_and(|own| own.order.is_none()) && self.is_of_graphs((start, end)) {
            return Ok(());
        }
        if let (Some(own), Some(now)) = (own, self.region(start))
            && (own.by, own.order) != (now.by, now.order)
        {
            return Err(PartError::Freed(now.by));
        }
        let Some(first) = self.at(start) else {
            let next = self.parts.range(start..end).next();
            return if next.is_none() { Ok(()) } else { Err(PartError::Unmapped) };
        };
        match first.state {
            PartState::Allocated(region) => {
                let is_same = |part: &Part| part.state == first.state;
                // Pools above may have given parts of it back, which then have its state again.
                if end <= region.range.1 && self.parts.range(start..end).all(|part| is_same(part.1))
                {
                    return Ok(());
                }
                Err(PartError::Outside { by: region.by, range: region.range })
            }
            PartState::Freed { kept_for_graph: true, .. }
                if by != AccessBy::Stream && end <= first.end =>
            {
                Ok(())
            }
            PartState::Freed { by, .. } => Err(PartError::Freed(by)),
            PartState::Reserved => Err(PartError::Unmapped),
        }
    }
}

#[cfg(test)]
mod tests;

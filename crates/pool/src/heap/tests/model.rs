//! The naive model: what each unit is, and nothing else.

use super::structure::{Free, Live};
use crate::heap::Tag;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Not in the heap.
    Away,
    Free(Tag, usize),
    /// The number of the allocation.
    Live(usize),
}

/// Ranges that lie side by side without a gap.
pub(super) struct Model {
    pub(super) shift: u32,
    base: u64,
    /// How many units each range has.
    range_units: usize,
    units: Vec<Unit>,
}

impl Model {
    pub(super) fn new(shift: u32, base: u64, ranges: usize, range_units: usize) -> Self {
        Self { shift, base, range_units, units: vec![Unit::Away; ranges * range_units] }
    }

    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    pub(super) fn range(&self, unit: usize) -> u32 {
        (unit / self.range_units) as u32
    }

    pub(super) fn range_end(&self, unit: usize) -> usize {
        (unit / self.range_units + 1) * self.range_units
    }

    pub(super) fn address(&self, unit: usize) -> u64 {
        self.base + ((unit as u64) << self.shift)
    }

    pub(super) fn unit(&self, address: u64) -> usize {
        ((address - self.base) >> self.shift) as usize
    }

    pub(super) fn at(&self, unit: usize) -> Unit {
        self.units[unit]
    }

    /// Sets units; free ones merge with those around them, and the latest stamp stands.
    pub(super) fn set(&mut self, start: usize, count: usize, to: Unit) {
        self.units[start..start + count].fill(to);
        for (start, count) in self.runs() {
            if let Unit::Free(tag, _) = self.units[start] {
                let run = &mut self.units[start..start + count];
                let latest = run.iter().map(|unit| stamp_of(*unit)).max().unwrap_or(0);
                run.fill(Unit::Free(tag, latest));
            }
        }
    }

    /// Blocks, by their first unit and count: what is one allocation, or free with one tag.
    pub(super) fn runs(&self) -> Vec<(usize, usize)> {
        let same = |a: Unit, b: Unit| match (a, b) {
            (Unit::Free(a, _), Unit::Free(b, _)) => a == b,
            (a, b) => a == b,
        };
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for unit in 0..self.units.len() {
            match runs.last_mut() {
                Some((start, count))
                    if same(self.units[*start], self.units[unit])
                        && self.range(*start) == self.range(unit) =>
                {
                    *count += 1;
                }
                _ => runs.push((unit, 1)),
            }
        }
        runs
    }

    /// The free blocks with a tag and a stamp up to this.
    pub(super) fn free(&self, of: Tag, upto: usize) -> Vec<(usize, usize)> {
        let mut runs = self.runs();
        runs.retain(
            |run| matches!(self.at(run.0), Unit::Free(tag, stamp) if tag == of && stamp <= upto),
        );
        runs
    }

    /// All that `walk` says of a heap.
    pub(super) fn walk(&self) -> (Vec<Free>, Vec<Live>) {
        let (mut free, mut live) = (Vec::new(), Vec::new());
        for (start, count) in self.runs() {
            let block = (self.range(start), self.address(start), (count as u64) << self.shift);
            match self.units[start] {
                Unit::Away => {}
                Unit::Live(_) => live.push(block),
                Unit::Free(tag, stamp) => free.push((block.0, block.1, block.2, tag, stamp)),
            }
        }
        (free, live)
    }
}

fn stamp_of(unit: Unit) -> usize {
    match unit {
        Unit::Free(_, stamp) => stamp,
        _ => 0,
    }
}

//! The shadow of a block: for every byte who wrote it last, who read it since, whether it was
//! ever written.

use super::clock::Stamp;
use super::report::{OpName, Violation};
use crate::backend::Access;
use std::collections::BTreeMap;

/// Blocks with more segments than this are swept for what has become equal.
const SWEEP: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    written: Option<Stamp>,
    /// The last read of each stream since the write.
    reads: Vec<Stamp>,
    initialized: bool,
}

impl State {
    /// Forgets what the host has seen complete: everything enqueued from now on comes after it.
    fn forget(&mut self, complete: &impl Fn(&Stamp) -> bool) {
        if self.written.as_ref().is_some_and(complete) {
            self.written = None;
        }
        self.reads.retain(|read| !complete(read));
    }
}

#[derive(Clone, Debug)]
struct Segment {
    end: u64,
    state: State,
}

/// What an access collides with, and where in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) violation: Violation,
    pub(super) other: Option<OpName>,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// What comes before an access.
pub(super) struct Past<O, C> {
    /// Whether a former access is ordered before this one.
    pub(super) ordered: O,
    /// Whether the host has seen a former access complete.
    pub(super) complete: C,
}

/// Disjoint segments that cover the block, keyed by their start.
#[derive(Debug)]
pub(super) struct Shadow {
    segments: BTreeMap<u64, Segment>,
    sweep_at: usize,
}

impl Shadow {
    pub(super) fn new(bytes: u64, initialized: bool) -> Self {
        let state = State { written: None, reads: Vec::new(), initialized };
        Self { segments: BTreeMap::from([(0, Segment { end: bytes, state })]), sweep_at: SWEEP }
    }

    #[cfg(test)]
    pub(super) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Makes a segment begin at `at`.
    fn split(&mut self, at: u64) {
        let Some((&start, segment)) = self.segments.range_mut(..=at).next_back() else { return };
        if start < at && at < segment.end {
            let tail = segment.clone();
            segment.end = at;
            self.segments.insert(at, tail);
        }
    }

    /// Joins equal neighbours from the one before `from` to the one that begins at `to`.
    fn merge(&mut self, from: u64, to: u64) {
        let mut start = match self.segments.range(..from).next_back() {
            Some((&before, _)) => before,
            None => from,
        };
        while let Some(segment) = self.segments.get(&start) {
            let middle = segment.end;
            if middle > to {
                return;
            }
            match self.segments.get(&middle) {
                Some(next) if next.state == segment.state => {
                    let end = next.end;
                    self.segments.remove(&middle);
                    if let Some(segment) = self.segments.get_mut(&start) {
                        segment.end = end;
                    }
                }
                Some(_) => start = middle,
                None => return,
            }
        }
    }

    /// Checks an access of `start..end` and remembers it. The findings are the first of each kind.
    pub(super) fn touch<O: Fn(&Stamp) -> bool, C: Fn(&Stamp) -> bool>(
        &mut self,
        (start, end): (u64, u64),
        access: Access,
        stamp: Stamp,
        past: &Past<O, C>,
        findings: &mut Vec<Finding>,
    ) {
        let Past { ordered, complete } = past;
        if start >= end {
            return;
        }
        self.split(start);
        self.split(end);
        let (reads, writes) = (access != Access::Write, access != Access::Read);
        for (&from, segment) in self.segments.range_mut(start..end) {
            let to = segment.end;
            let state = &mut segment.state;
            let mut found = |violation, other| {
                let finding = Finding { violation, other, start: from, end: to };
                match findings.iter_mut().find(|former| former.violation == violation) {
                    // One finding for neighbours that collide with the same operation.
                    Some(former) if former.end == from && former.other == other => former.end = to,
                    Some(_) => {}
                    None => findings.push(finding),
                }
            };
            let written = state.written.iter().find(|written| !ordered(written));
            let read = state.reads.iter().find(|read| writes && !ordered(read));
            if let Some(other) = written.or(read) {
                found(Violation::UnorderedAccess, Some(other.name));
            }
            if reads && !state.initialized {
                found(Violation::UninitializedRead, None);
            }
            state.forget(complete);
            if writes {
                state.reads.clear();
                state.written = Some(stamp);
                state.initialized = true;
            } else {
                state.reads.retain(|read| read.stream != stamp.stream);
                state.reads.push(stamp);
            }
        }
        self.merge(start, end);
        if self.segments.len() >= self.sweep_at {
            self.sweep(complete);
        }
    }

    fn sweep(&mut self, complete: &impl Fn(&Stamp) -> bool) {
        let mut end = 0;
        for segment in self.segments.values_mut() {
            segment.state.forget(complete);
            end = segment.end;
        }
        self.merge(0, end);
        // Twice what is left, so that the sweeps of a fragmented block stay linear in all.
        self.sweep_at = SWEEP.max(self.segments.len() * 2);
    }

    /// The first access that `ordered` does not cover.
    pub(super) fn unordered(&self, ordered: &impl Fn(&Stamp) -> bool) -> Option<Finding> {
        self.segments.iter().find_map(|(&start, segment)| {
            let mut all = segment.state.written.iter().chain(&segment.state.reads);
            let other = all.find(|stamp| !ordered(stamp))?.name;
            Some(Finding {
                violation: Violation::FreeWhileInUse,
                other: Some(other),
                start,
                end: segment.end,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(stream: u64, tick: u64) -> Stamp {
        Stamp { stream, tick, name: OpName::on("cuTest", stream) }
    }

    fn touch(shadow: &mut Shadow, range: (u64, u64), access: Access, by: Stamp) -> Vec<Violation> {
        let mut findings = Vec::new();
        let past = Past {
            ordered: |former: &Stamp| former.stream == by.stream,
            complete: |_: &Stamp| false,
        };
        shadow.touch(range, access, by, &past, &mut findings);
        findings.iter().map(|finding| finding.violation).collect()
    }

    #[test]
    fn segments_split_and_merge() {
        let mut shadow = Shadow::new(1000, false);
        assert!(touch(&mut shadow, (100, 200), Access::Write, stamp(1, 1)).is_empty());
        assert_eq!(shadow.segments(), 3);
        assert!(touch(&mut shadow, (200, 300), Access::Write, stamp(1, 1)).is_empty());
        assert_eq!(shadow.segments(), 3);
        assert!(touch(&mut shadow, (0, 1000), Access::Write, stamp(1, 2)).is_empty());
        assert_eq!(shadow.segments(), 1);
    }

    #[test]
    fn bytes_are_told_apart() {
        let mut shadow = Shadow::new(1000, false);
        touch(&mut shadow, (100, 200), Access::Write, stamp(1, 1));
        assert_eq!(touch(&mut shadow, (99, 100), Access::Write, stamp(2, 1)), []);
        assert_eq!(
            touch(&mut shadow, (199, 200), Access::Read, stamp(2, 2)),
            [Violation::UnorderedAccess]
        );
        assert_eq!(
            touch(&mut shadow, (200, 201), Access::Read, stamp(2, 3)),
            [Violation::UninitializedRead]
        );
    }

    #[test]
    fn complete_accesses_do_not_pile_up() {
        let mut shadow = Shadow::new(1 << 30, false);
        for tick in 0..100_000_u64 {
            let at = tick * 256;
            let mut findings = Vec::new();
            let by = stamp(1, tick);
            let past = Past {
                ordered: |_: &Stamp| true,
                complete: |former: &Stamp| former.tick + 10 < tick,
            };
            shadow.touch((at, at + 256), Access::Write, by, &past, &mut findings);
        }
        assert!(shadow.segments() < 300, "{}", shadow.segments());
    }
}

//! Shadow memory. It has the last write of each byte of a block, the reads since, and whether the byte
//! was ever written. A copy of unwritten bytes is no write of them.

use super::clock::AccessStamp;
use super::report::{OpName, Violation};
use aquifer_driver::Access;
use std::collections::BTreeMap;

/// With fewer segments than this, a block is never swept for neighbours that have become equal.
const SWEEP: usize = 64;

/// Says whether a former access is ordered before another one, or complete.
type Judge<'a> = &'a dyn Fn(&AccessStamp) -> bool;

/// Gets a range of a block whose bytes have one state, and that state. For rows, the range is the first one's.
type Visit<'a> = &'a mut dyn FnMut((u64, u64), &mut ByteState);

/// Whether a byte has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Written,
    /// The byte was not written since the allocation.
    Unwritten,
    /// This copy wrote it last, from a byte without a value.
    CopiedUnwritten(OpName),
}

/// Bytes without a value, in `count` rows a `stride` apart. The first one has its start and end in the range that was
/// asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnwrittenRows {
    start: u64,
    end: u64,
    stride: u64,
    count: u64,
}

/// The accesses of a byte that later ones are checked against.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ByteState {
    written: Option<AccessStamp>,
    /// The last read of each stream since the write.
    reads: Vec<AccessStamp>,
    content: Content,
}

impl ByteState {
    /// Removes the accesses that the host has seen complete, since all later operations come after
    /// them.
    fn remove_complete(&mut self, complete: Judge<'_>) {
        if self.written.as_ref().is_some_and(complete) {
            self.written = None;
        }
        self.reads.retain(|read| !complete(read));
    }
}

/// Adjacent bytes with one state, or adjacent rows with the same parts. Without rows, a fill of one
/// word in each row of a matrix would leave two segments a row.
#[derive(Clone, Debug)]
struct Segment {
    end: u64,
    /// The length of a row. Rows begin at its multiples. A length of 1 means that all bytes have one
    /// state.
    stride: u64,
    /// The parts of a row, each with its end in the row and its state. The last part ends with the row.
    row: Vec<(u64, ByteState)>,
}

impl Segment {
    fn new(end: u64, state: ByteState) -> Self {
        Self { end, stride: 1, row: vec![(1, state)] }
    }

    /// Makes a part begin at `at` in each row.
    fn cut(&mut self, at: u64) {
        let index = self.row.partition_point(|part| part.0 < at);
        if at > 0
            && let Some((end, state)) = self.row.get(index).cloned()
            && end > at
        {
            self.row.insert(index, (at, state));
        }
    }

    /// Visits the parts from `low` to `high` of each row. The segment begins at `start`.
    fn visit(&mut self, start: u64, (low, high): (u64, u64), visit: Visit<'_>) {
        let (even, mut from) = (self.stride == 1, 0);
        for (to, state) in &mut self.row {
            if low <= from && *to <= high {
                let end = if even { self.end } else { start + *to };
                visit((start + from, end), state);
            }
            from = *to;
        }
        self.join();
    }

    /// Joins adjacent parts of equal state.
    fn join(&mut self) {
        self.row.dedup_by(|next, part| {
            let equal = next.1 == part.1;
            if equal {
                part.0 = next.0;
            }
            equal
        });
        if let [(end, _)] = &mut self.row[..] {
            (*end, self.stride) = (1, 1);
        }
    }
}

/// A violation, the operation on its other side, and its range in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) violation: Violation,
    pub(crate) other: Option<OpName>,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// One access under check, and the order of former accesses before it.
pub(crate) struct AccessCheck<'a> {
    pub(crate) access: Access,
    /// The access is a side of a copy that carries bytes without a value to its target, where they have none either.
    pub(crate) carries: bool,
    pub(crate) stamp: AccessStamp,
    /// Whether a former access is ordered before this one.
    pub(crate) ordered: Judge<'a>,
    /// Whether the host has seen a former access complete.
    pub(crate) complete: Judge<'a>,
    /// The first finding of each kind of violation.
    pub(crate) findings: Vec<Finding>,
}

impl AccessCheck<'_> {
    /// Checks an access of bytes that have one state, and records it in that state.
    fn check(&mut self, (from, to): (u64, u64), state: &mut ByteState) {
        let (reads, writes) = (self.access != Access::Write, self.access != Access::Read);
        let written = state.written.iter().find(|written| !(self.ordered)(written));
        let read = state.reads.iter().find(|read| writes && !(self.ordered)(read));
        if let Some(other) = written.or(read) {
            self.add_finding(Violation::UnorderedAccess, Some(other.name), (from, to));
        }
        let reads_values = reads && !self.carries;
        match state.content {
            Content::Unwritten if reads_values => {
                self.add_finding(Violation::UninitializedRead, None, (from, to));
            }
            Content::CopiedUnwritten(by) if reads_values => {
                self.add_finding(Violation::UninitializedRead, Some(by), (from, to));
            }
            _ => {}
        }
        state.remove_complete(self.complete);
        if writes {
            state.reads.clear();
            state.written = Some(self.stamp);
            state.content = Content::Written;
        } else {
            state.reads.retain(|read| read.stream != self.stamp.stream);
            state.reads.push(self.stamp);
        }
    }

    fn add_finding(
        &mut self,
        violation: Violation,
        other: Option<OpName>,
        (start, end): (u64, u64),
    ) {
        match self.findings.iter_mut().find(|former| former.violation == violation) {
            // Adjacent ranges that conflict with one operation are one finding.
            Some(former) if former.end == start && former.other == other => former.end = end,
            Some(_) => {}
            None => self.findings.push(Finding { violation, other, start, end }),
        }
    }
}

/// The shadow of one block. Its segments are disjoint, cover the block and are keyed by their start.
///
/// INV-1: each segment begins where the one before it ends. A segment begins and ends at a multiple of
/// its stride.
#[derive(Debug)]
pub(crate) struct ShadowMemory {
    segments: BTreeMap<u64, Segment>,
    sweep_at: usize,
}

impl ShadowMemory {
    pub(crate) fn new(bytes: u64, is_written: bool) -> Self {
        let content = if is_written { Content::Written } else { Content::Unwritten };
        let state = ByteState { written: None, reads: Vec::new(), content };
        Self { segments: BTreeMap::from([(0, Segment::new(bytes, state))]), sweep_at: SWEEP }
    }

    /// Makes a segment begin at `at`.
    fn split(&mut self, at: u64) {
        let Some((&start, segment)) = self.segments.range_mut(..=at).next_back() else { return };
        if start >= at || at >= segment.end {
            return;
        }
        let (first, stride) = (at - at % segment.stride, segment.stride);
        if first == at {
            let tail = segment.clone();
            segment.end = at;
            self.segments.insert(at, tail);
            return;
        }
        // INV-1: the row that is cut becomes segments of its own.
        self.split(first);
        self.split(first + stride);
        let Some(cut) = self.segments.remove(&first) else { return };
        let mut from = first;
        for (to, state) in cut.row {
            self.segments.insert(from, Segment::new(first + to, state));
            from = first + to;
        }
        self.split(at);
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
                Some(next) if next.row == segment.row => {
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

    /// Checks an access to `count` ranges a `stride` apart, the first of which is given, and records it.
    pub(crate) fn access_rows(
        &mut self,
        range: (u64, u64),
        stride: u64,
        count: u64,
        check: &mut AccessCheck<'_>,
    ) {
        self.visit_rows(range, stride, count, &mut |range, state| check.check(range, state));
        if self.segments.len() >= self.sweep_at {
            self.sweep(check.complete);
        }
    }

    /// Visits the bytes of a range.
    fn visit(&mut self, (start, end): (u64, u64), visit: Visit<'_>) {
        if start >= end {
            return;
        }
        self.split(start);
        self.split(end);
        for (&from, segment) in self.segments.range_mut(start..end) {
            segment.visit(from, (0, segment.stride), visit);
        }
        self.merge(start, end);
    }

    /// Visits `count` ranges a `stride` apart. Rows of one segment are visited together.
    fn visit_rows(&mut self, (start, end): (u64, u64), stride: u64, count: u64, visit: Visit<'_>) {
        let (stride, width) = (stride.max(1), end - start);
        let within = (start % stride, start % stride + width);
        let last = start + count.saturating_sub(1) * stride;
        let mut at = start;
        while at <= last {
            let (row, most) = (at - within.0, last - within.0 + stride);
            let whole = self.segments.range(..=row).next_back().map_or(0, |(_, segment)| {
                let fits = within.1 <= stride && [1, stride].contains(&segment.stride);
                if fits { segment.end.min(most) / stride * stride } else { 0 }
            });
            if whole <= row + stride {
                self.visit((at, at + width), visit);
                at += stride;
                continue;
            }
            self.split(row);
            self.split(whole);
            if let Some(segment) = self.segments.get_mut(&row) {
                if segment.stride == 1 {
                    segment.stride = stride;
                    segment.row.iter_mut().for_each(|part| part.0 = stride);
                }
                segment.cut(within.0);
                segment.cut(within.1);
                segment.visit(row, within, visit);
            }
            at = whole + within.0;
        }
        self.merge(start - within.0, at);
    }

    /// The bytes of a range that have no value.
    pub(crate) fn unwritten_in(&mut self, (start, end): (u64, u64)) -> Vec<UnwrittenRows> {
        self.split(start);
        self.split(end);
        let mut found = Vec::new();
        for (&from, segment) in self.segments.range(start..end) {
            let (even, mut low) = (segment.stride == 1, 0);
            for (high, state) in &segment.row {
                if state.content != Content::Written {
                    let (first, bytes) = (from - start, segment.end - from);
                    found.push(if even {
                        UnwrittenRows { start: first, end: first + bytes, stride: bytes, count: 1 }
                    } else {
                        let (stride, count) = (segment.stride, bytes / segment.stride);
                        UnwrittenRows { start: first + low, end: first + high, stride, count }
                    });
                }
                low = *high;
            }
        }
        self.merge(start, end);
        found
    }

    /// Has rows count as never written, from `offset` on, since the copy `by` wrote them from such
    /// rows.
    pub(crate) fn copy_unwritten(&mut self, offset: u64, rows: UnwrittenRows, by: OpName) {
        let UnwrittenRows { start, end, stride, count } = rows;
        let (start, end) = (offset + start, offset + end);
        // A row of the source may go on in the next row of the target: its parts in each are rows by themselves.
        let boundary = end.min(start - start % stride + stride);
        for part in [(start, boundary), (boundary, end)] {
            if part.0 < part.1 {
                self.visit_rows(part, stride, count, &mut |_, state| {
                    state.content = Content::CopiedUnwritten(by);
                });
            }
        }
    }

    /// The segments of a range, moved so that it begins at `to`.
    fn moved(&mut self, (start, end): (u64, u64), to: u64) -> BTreeMap<u64, Segment> {
        self.split(start);
        self.split(end);
        let place = |at: u64| at - start + to;
        let mut moved = BTreeMap::new();
        for (&from, segment) in self.segments.range(start..end) {
            let stride = segment.stride;
            if place(from).is_multiple_of(stride) {
                moved.insert(place(from), Segment { end: place(segment.end), ..segment.clone() });
                continue;
            }
            // INV-1: rows that begin elsewhere become segments of their own.
            for row in (from..segment.end).step_by(stride as usize) {
                let mut low = row;
                for (high, state) in &segment.row {
                    let high = row + high;
                    moved.insert(place(low), Segment::new(place(high), state.clone()));
                    low = high;
                }
            }
        }
        self.merge(start, end);
        moved
    }

    /// The shadow of a range, by itself.
    pub(crate) fn copy_of(&mut self, range: (u64, u64)) -> Self {
        Self { segments: self.moved(range, 0), sweep_at: SWEEP }
    }

    /// Another one of the same state.
    pub(crate) fn all_of(&self) -> Self {
        Self { segments: self.segments.clone(), sweep_at: SWEEP }
    }

    /// Gives a range the state that `other` has of as many bytes.
    pub(crate) fn replace(&mut self, (start, end): (u64, u64), other: &mut Self) {
        self.split(start);
        self.split(end);
        self.segments.retain(|&from, _| from < start || from >= end);
        self.segments.append(&mut other.moved((0, end - start), start));
        self.merge(start, end);
    }

    fn sweep(&mut self, complete: Judge<'_>) {
        let mut end = 0;
        for segment in self.segments.values_mut() {
            segment.row.iter_mut().for_each(|(_, state)| state.remove_complete(complete));
            segment.join();
            end = segment.end;
        }
        self.merge(0, end);
        // Doubling keeps the total cost of all sweeps of a fragmented block linear.
        self.sweep_at = SWEEP.max(self.segments.len() * 2);
    }

    /// Removes the accesses to a range that are complete.
    pub(crate) fn forget_accesses(&mut self, (start, end): (u64, u64), complete: Judge<'_>) {
        self.split(start);
        self.split(end);
        for segment in self.segments.range_mut(start..end).map(|(_, segment)| segment) {
            segment.row.iter_mut().for_each(|(_, state)| state.remove_complete(complete));
            segment.join();
        }
        self.merge(start, end);
    }

    /// Has a range count as never written, since its bytes were another owner's. The accesses stay, and the next ones
    /// come after them.
    pub(crate) fn forget_writes(&mut self, range: (u64, u64)) {
        self.set_content(range, Content::Unwritten);
    }

    /// Has a range count as written, since another process may write it.
    pub(crate) fn note_writes(&mut self, range: (u64, u64)) {
        self.set_content(range, Content::Written);
    }

    fn set_content(&mut self, (start, end): (u64, u64), content: Content) {
        self.split(start);
        self.split(end);
        for segment in self.segments.range_mut(start..end).map(|(_, segment)| segment) {
            segment.row.iter_mut().for_each(|(_, state)| state.content = content);
            segment.join();
        }
        self.merge(start, end);
    }

    /// Has the next accesses to a range come after `stamp`, as if it had written there. If former ones are not
    /// `ordered` before that, the next ones come after those instead.
    pub(crate) fn order_after(
        &mut self,
        range: (u64, u64),
        stamp: AccessStamp,
        ordered: Judge<'_>,
    ) {
        self.visit(range, &mut |_, state| {
            if state.written.iter().chain(&state.reads).all(ordered) {
                state.reads.clear();
                state.written = Some(stamp);
            }
        });
    }

    /// The first access that is not ordered before the one that asks.
    pub(crate) fn unordered(&self, ordered: Judge<'_>) -> Option<Finding> {
        Self::unordered_among(self.segments.iter(), ordered)
    }

    /// The first such access to a range.
    pub(crate) fn unordered_in(
        &mut self,
        (start, end): (u64, u64),
        ordered: Judge<'_>,
    ) -> Option<Finding> {
        self.split(start);
        self.split(end);
        let found = Self::unordered_among(self.segments.range(start..end), ordered);
        self.merge(start, end);
        found
    }

    fn unordered_among<'a>(
        mut segments: impl Iterator<Item = (&'a u64, &'a Segment)>,
        ordered: Judge<'_>,
    ) -> Option<Finding> {
        segments.find_map(|(&start, segment)| {
            let states = segment.row.iter().map(|(_, state)| state);
            let mut all = states.flat_map(|state| state.written.iter().chain(&state.reads));
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
mod tests;

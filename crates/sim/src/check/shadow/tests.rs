//! Segments split, merge and repeat as rows, and the shadow knows each byte.

use super::*;
use crate::state::Random;

fn stamp(stream: u64, tick: u64) -> AccessStamp {
    AccessStamp { stream, tick, name: OpName::on("cuTest", stream) }
}

impl ShadowMemory {
    fn access(&mut self, range: (u64, u64), check: &mut AccessCheck<'_>) {
        self.access_rows(range, range.1 - range.0, 1, check);
    }
}

fn access(
    shadow: &mut ShadowMemory,
    range: (u64, u64),
    access: Access,
    by: AccessStamp,
) -> Vec<Violation> {
    let mut check = AccessCheck {
        access,
        carries: false,
        stamp: by,
        ordered: &|former: &AccessStamp| former.stream == by.stream,
        complete: &|_: &AccessStamp| false,
        findings: Vec::new(),
    };
    shadow.access(range, &mut check);
    check.findings.iter().map(|finding| finding.violation).collect()
}

#[test]
fn segments_split_and_merge() {
    let mut shadow = ShadowMemory::new(1000, false);
    assert!(access(&mut shadow, (100, 200), Access::Write, stamp(1, 1)).is_empty());
    assert_eq!(shadow.segments.len(), 3);
    assert!(access(&mut shadow, (200, 300), Access::Write, stamp(1, 1)).is_empty());
    assert_eq!(shadow.segments.len(), 3);
    assert!(access(&mut shadow, (0, 1000), Access::Write, stamp(1, 2)).is_empty());
    assert_eq!(shadow.segments.len(), 1);
}

#[test]
fn each_byte_has_its_own_state() {
    let mut shadow = ShadowMemory::new(1000, false);
    access(&mut shadow, (100, 200), Access::Write, stamp(1, 1));
    assert_eq!(access(&mut shadow, (99, 100), Access::Write, stamp(2, 1)), []);
    assert_eq!(
        access(&mut shadow, (199, 200), Access::Read, stamp(2, 2)),
        [Violation::UnorderedAccess]
    );
    assert_eq!(
        access(&mut shadow, (200, 201), Access::Read, stamp(2, 3)),
        [Violation::UninitializedRead]
    );
}

#[test]
fn complete_accesses_do_not_pile_up() {
    let mut shadow = ShadowMemory::new(1 << 30, false);
    for tick in 0..100_000_u64 {
        let at = tick * 256;
        let mut check = AccessCheck {
            access: Access::Write,
            carries: false,
            stamp: stamp(1, tick),
            ordered: &|_: &AccessStamp| true,
            complete: &|former: &AccessStamp| former.tick + 10 < tick,
            findings: Vec::new(),
        };
        shadow.access((at, at + 256), &mut check);
    }
    assert!(shadow.segments.len() < 300, "{}", shadow.segments.len());
}

/// The state of each byte.
fn bytes(shadow: &ShadowMemory) -> Vec<ByteState> {
    let mut bytes = Vec::new();
    for (&start, segment) in &shadow.segments {
        assert_eq!(start, bytes.len() as u64, "segments cover the block");
        assert!(segment.row.is_sorted_by_key(|part| part.0));
        assert_eq!(segment.row.last().unwrap().0, segment.stride);
        assert!(start % segment.stride == 0 && segment.end % segment.stride == 0);
        for at in start..segment.end {
            let part = segment.row.iter().find(|part| at % segment.stride < part.0);
            bytes.push(part.unwrap().1.clone());
        }
    }
    bytes
}

#[test]
fn rows_are_what_their_ranges_are() {
    const BYTES: u64 = 300;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut below = |limit: u64| random.below(limit as usize) as u64;
        let shadow = || ShadowMemory::new(BYTES, seed % 2 == 0);
        let (mut at_once, mut one_by_one) = (shadow(), shadow());
        for tick in 1..40_u64 {
            let (stride, stream) = ([4, 6, 8, 8, 12][below(5) as usize], 1 + below(2));
            let (width, start) = (1 + below(stride), below(100));
            let count = 1 + below((BYTES - start - width) / stride);
            let access = [Access::Read, Access::Write, Access::ReadWrite][below(3) as usize];
            let done = tick.saturating_sub(1 + below(10));
            let complete = |former: &AccessStamp| former.tick <= done;
            // As of each operation: or a sweep between two rows would change what the next one finds.
            let ordered = |former: &AccessStamp| former.stream == stream || complete(former);
            let check = || AccessCheck {
                access,
                carries: false,
                stamp: stamp(stream, tick),
                ordered: &ordered,
                complete: &complete,
                findings: Vec::new(),
            };
            let (mut one, mut other) = (check(), check());
            at_once.access_rows((start, start + width), stride, count, &mut one);
            for row in 0..count {
                let at = start + row * stride;
                one_by_one.access((at, at + width), &mut other);
            }
            let firsts = |findings: &[Finding]| -> Vec<_> {
                let first = |one: &Finding| (one.violation, one.other, one.start);
                let mut firsts: Vec<_> = findings.iter().map(first).collect();
                firsts.sort_by_key(|first| first.2);
                firsts
            };
            assert_eq!(firsts(&one.findings), firsts(&other.findings), "{seed} {tick}");
            // One shadow may have removed accesses that the host has seen, the other not yet.
            for shadow in [&mut at_once, &mut one_by_one] {
                shadow.sweep(&check().complete);
            }
            assert_eq!(bytes(&at_once), bytes(&one_by_one), "{seed} {tick}");
        }
    }
}

#[test]
fn rows_cost_what_a_range_costs() {
    const ROWS: u64 = 1 << 40;
    let mut shadow = ShadowMemory::new(8 * ROWS, false);
    let check = |tick, access| AccessCheck {
        access,
        carries: false,
        stamp: stamp(1, tick),
        ordered: &|_: &AccessStamp| true,
        complete: &|_: &AccessStamp| false,
        findings: Vec::new(),
    };
    shadow.access_rows((0, 4), 8, ROWS, &mut check(1, Access::Write));
    let mut read = check(2, Access::Read);
    shadow.access((804, 808), &mut read);
    assert_eq!(read.findings[0].violation, Violation::UninitializedRead);
    shadow.access_rows((4, 8), 8, ROWS, &mut check(3, Access::Write));
    let mut read = check(4, Access::Read);
    shadow.access((0, 8 * ROWS), &mut read);
    assert_eq!(read.findings, []);
    assert!(shadow.segments.len() < 10, "{}", shadow.segments.len());
}

/// Copies a range of one shadow to another.
fn copy(
    source: &mut ShadowMemory,
    from: (u64, u64),
    target: &mut ShadowMemory,
    to: u64,
    tick: u64,
) {
    let check = |access| AccessCheck {
        access,
        carries: true,
        stamp: stamp(1, tick),
        ordered: &|_: &AccessStamp| true,
        complete: &|_: &AccessStamp| true,
        findings: Vec::new(),
    };
    let (mut read, mut write) = (check(Access::Read), check(Access::Write));
    let unwritten = source.unwritten_in(from);
    source.access(from, &mut read);
    target.access((to, to + from.1 - from.0), &mut write);
    for rows in unwritten {
        target.copy_unwritten(to, rows, stamp(1, tick).name);
    }
    assert_eq!((read.findings, write.findings), (vec![], vec![]));
}

#[test]
fn a_copy_is_written_where_its_source_is() {
    const BYTES: u64 = 300;
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let mut below = |limit: u64| random.below(limit as usize) as u64;
        let mut shadows = [ShadowMemory::new(BYTES, false), ShadowMemory::new(BYTES, false)];
        let mut is_written = [[false; BYTES as usize]; 2];
        for tick in 1..40 {
            let (this, other) = if below(2) == 0 { (0, 1) } else { (1, 0) };
            if below(2) == 0 {
                let (stride, start) = ([4, 6, 8, 12][below(4) as usize], below(100));
                let width = 1 + below(stride);
                let count = 1 + below((BYTES - start - width) / stride);
                let mut check = AccessCheck {
                    access: Access::Write,
                    carries: false,
                    stamp: stamp(1, tick),
                    ordered: &|_: &AccessStamp| true,
                    complete: &|_: &AccessStamp| true,
                    findings: Vec::new(),
                };
                shadows[this].access_rows((start, start + width), stride, count, &mut check);
                for row in 0..count {
                    let at = (start + row * stride) as usize;
                    is_written[this][at..at + width as usize].fill(true);
                }
            } else {
                let (from, to) = (below(BYTES), below(BYTES));
                let bytes = 1 + below(BYTES - from.max(to));
                let [first, second] = &mut shadows;
                let (source, target) = if this == 0 { (first, second) } else { (second, first) };
                copy(source, (from, from + bytes), target, to, tick);
                let source = is_written[this];
                let source = &source[from as usize..(from + bytes) as usize];
                is_written[other][to as usize..(to + bytes) as usize].copy_from_slice(source);
            }
            for (shadow, is_written) in shadows.iter().zip(&is_written) {
                let found = bytes(shadow).into_iter().map(|it| it.content == Content::Written);
                assert!(found.eq(is_written.iter().copied()), "{seed} {tick}");
            }
        }
    }
}

#[test]
fn a_copy_of_rows_costs_what_a_range_costs() {
    const ROWS: u64 = 1 << 16;
    // By the last two, a row of the source goes on in the next row of the target.
    for to in [0, 8, 3, 2] {
        let (mut source, mut target) =
            (ShadowMemory::new(8 * ROWS, false), ShadowMemory::new(9 * ROWS, false));
        let mut write = AccessCheck {
            access: Access::Write,
            carries: false,
            stamp: stamp(1, 1),
            ordered: &|_: &AccessStamp| true,
            complete: &|_: &AccessStamp| true,
            findings: Vec::new(),
        };
        source.access_rows((0, 4), 8, ROWS, &mut write);
        copy(&mut source, (0, 8 * ROWS), &mut target, to, 2);
        let mut read = |range| access(&mut target, range, Access::Read, stamp(1, 3));
        assert_eq!(read((to + 800, to + 804)), []);
        assert_eq!(read((to + 804, to + 805)), [Violation::UninitializedRead]);
        assert!(target.segments.len() < 20, "{}", target.segments.len());
    }
}

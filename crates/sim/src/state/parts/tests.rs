//! Parts against a model of bytes.

use super::*;
use crate::state::Random;

const BYTES: u64 = 64;

fn name(number: u64) -> OpName {
    OpName::on("test", number)
}

fn region(range: Range, number: u64) -> Region {
    Region { range, by: name(number), order: None }
}

/// The state of a byte in the uppermost pool that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    Reserved,
    /// Of the allocation with this number.
    Allocated(u64),
    Freed(u64),
}

/// A pool whose heap is all of the block, and one over each of some of its regions.
#[test]
fn parts_are_what_a_model_of_bytes_says() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut parts = Parts::default();
        let mut model = [Byte::Reserved; BYTES as usize];
        // Of the lower pool, number 1; with the upper pool in it, if there is one.
        let mut live: Vec<(Range, u64, Option<u64>)> = Vec::new();
        parts.add_heap(1, (0, BYTES));
        for step in 1..200_u64 {
            let start = random.below(BYTES as usize) as u64;
            let range = (start, (start + 1 + random.below(12) as u64).min(BYTES));
            let bytes = range.0 as usize..range.1 as usize;
            let is_free = !live.iter().any(|(other, ..)| other.0 < range.1 && range.0 < other.1);
            let choice = (!live.is_empty()).then(|| random.below(live.len()));
            match (random.below(4), choice) {
                (0 | 1, _) if is_free => {
                    parts.allocate(1, region(range, step));
                    model[bytes].fill(Byte::Allocated(step));
                    live.push((range, step, None));
                }
                (2, Some(index)) => {
                    let (range, number, upper) = live.swap_remove(index);
                    if let Some(pool) = upper {
                        let is_other = parts.free(1, range, name(step), false);
                        assert_eq!(is_other, FreedPart::Unknown, "another pool has it");
                        parts.remove_heap(pool, range);
                    }
                    let freed = parts.free(1, range, name(step), false);
                    assert_eq!(freed, FreedPart::Region, "allocation {number}");
                    let again = parts.free(1, range, name(0), false);
                    assert_eq!(again, FreedPart::Freed(name(step)));
                    model[range.0 as usize..range.1 as usize].fill(Byte::Freed(step));
                }
                (3, Some(index)) if live[index].2.is_none() => {
                    let range = live[index].0;
                    live[index].2 = Some(step);
                    parts.add_heap(step, range);
                    model[range.0 as usize..range.1 as usize].fill(Byte::Reserved);
                    if range.1 - range.0 > 2 {
                        parts.allocate(step, region((range.0, range.0 + 2), step));
                        let bytes = range.0 as usize..range.0 as usize + 2;
                        model[bytes].fill(Byte::Allocated(step));
                    }
                }
                _ => {}
            }
            compare(&parts, &model, &mut random);
        }
    }
}

fn compare(parts: &Parts, model: &[Byte], random: &mut Random) {
    for _ in 0..16 {
        let start = random.below(BYTES as usize) as u64;
        let range = (start, start + 1 + random.below(6) as u64);
        let bytes = &model[start as usize..(range.1.min(BYTES)) as usize];
        let is_inside = range.1 <= BYTES && bytes.iter().all(|byte| *byte == bytes[0]);
        match (parts.check(range, AccessBy::Stream), bytes[0]) {
            (Ok(()), Byte::Allocated(_)) => assert!(is_inside, "{range:?} of {model:?}"),
            (Err(PartError::Outside { by, .. }), Byte::Allocated(number)) => {
                assert!(!is_inside, "{range:?} of {model:?}");
                assert_eq!(by, name(number));
            }
            (Err(PartError::Freed(by)), Byte::Freed(number)) => assert_eq!(by, name(number)),
            (Err(PartError::Unmapped), Byte::Reserved) => {}
            (found, byte) => panic!("{found:?} for {byte:?}, {range:?} of {model:?}"),
        }
        let expected = match bytes[0] {
            Byte::Allocated(by) => Some(name(by)),
            _ => None,
        };
        assert_eq!(parts.region(start).map(|region| region.by), expected);
    }
}

#[test]
fn memory_of_no_pool_is_accessible_and_ends_where_a_pool_begins() {
    let mut parts = Parts::default();
    parts.add_heap(1, (16, 32));
    assert_eq!(parts.check((0, 16), AccessBy::Stream), Ok(()));
    assert_eq!(parts.check((32, 64), AccessBy::Stream), Ok(()));
    assert_eq!(parts.check((15, 17), AccessBy::Stream), Err(PartError::Unmapped));
    assert_eq!(parts.check((31, 33), AccessBy::Stream), Err(PartError::Unmapped));
    parts.remove_heap(2, (16, 32));
    assert_eq!(
        parts.check((16, 17), AccessBy::Stream),
        Err(PartError::Unmapped),
        "that is no heap of pool 2"
    );
    parts.remove_heap(1, (16, 32));
    assert_eq!(parts.check((0, 64), AccessBy::Stream), Ok(()));
}

#[test]
fn a_region_is_whole_again_when_a_pool_gives_a_part_of_it_back() {
    let mut parts = Parts::default();
    parts.add_heap(1, (0, 64));
    parts.allocate(1, region((8, 40), 1));
    let outside = Err(PartError::Outside { by: name(1), range: (8, 40) });
    parts.add_heap(2, (16, 24));
    assert_eq!(parts.check((8, 16), AccessBy::Stream), Ok(()));
    assert_eq!(parts.check((8, 17), AccessBy::Stream), outside);
    assert_eq!(parts.check((24, 40), AccessBy::Stream), Ok(()));
    parts.remove_heap(2, (16, 24));
    assert_eq!(parts.check((8, 40), AccessBy::Stream), Ok(()));
    assert_eq!(parts.check((8, 41), AccessBy::Stream), outside);
}

#[test]
fn launches_alone_touch_what_is_kept_for_graphs() {
    let mut parts = Parts::default();
    parts.add_heap(1, (0, 64));
    parts.allocate(1, region((0, 16), 1));
    parts.free(1, (0, 16), name(2), true);
    assert_eq!(parts.check((0, 16), AccessBy::Launch(None)), Ok(()));
    assert_eq!(parts.check((4, 8), AccessBy::Launch(None)), Ok(()));
    assert_eq!(parts.check((0, 17), AccessBy::Launch(None)), Err(PartError::Freed(name(2))));
    assert_eq!(parts.check((0, 16), AccessBy::Stream), Err(PartError::Freed(name(2))));
    parts.allocate(1, region((0, 16), 3));
    parts.free(1, (0, 16), name(4), false);
    assert_eq!(parts.check((0, 16), AccessBy::Launch(None)), Err(PartError::Freed(name(4))));
}

#[test]
fn launches_touch_what_was_theirs_and_memory_of_other_captures_where_they_had_it_of_one() {
    let mut parts = Parts::default();
    parts.add_heap(1, (0, 64));
    parts.allocate(1, region((0, 32), 1));
    let captured = parts.region_of((8, 32));
    assert_eq!(captured, Some(region((0, 32), 1)));
    assert_eq!((parts.region_of((8, 33)), parts.region_of((32, 40))), (None, None));
    let launch = AccessBy::Launch(captured.as_ref());
    parts.free(1, (0, 32), name(2), true);
    assert_eq!(parts.region_of((8, 32)), None, "freed");
    // Another capture has it in other parts: one is in use, and one is freed.
    parts.allocate(1, region((0, 8), 3));
    parts.allocate(1, region((8, 24), 4));
    parts.free(1, (8, 24), name(5), true);
    assert_eq!(parts.check((0, 32), launch), Ok(()));
    let outside = Err(PartError::Outside { by: name(3), range: (0, 8) });
    assert_eq!(parts.check((0, 32), AccessBy::Launch(None)), outside);
    assert_eq!(parts.check((0, 32), AccessBy::Stream), outside);
    assert_eq!(parts.check((0, 33), launch), Err(PartError::Freed(name(3))), "past all of it");
    // An ordinary vector lies there by now.
    let order = |tick| Some(AccessStamp { stream: 1, tick, name: name(6) });
    let vector = Region { range: (24, 32), by: name(6), order: order(1) };
    parts.allocate(1, vector);
    assert_eq!(parts.check((24, 32), launch), Err(PartError::Freed(name(6))));
    // And another one, where a graph had that.
    let captured = parts.region_of((24, 32));
    let launch = AccessBy::Launch(captured.as_ref());
    assert_eq!(parts.check((24, 32), launch), Ok(()));
    assert!(parts.resize(1, (24, 32), 40, name(7)));
    assert_eq!(parts.check((24, 32), launch), Ok(()), "it has grown");
    parts.allocate(1, Region { order: order(2), ..vector });
    assert_eq!(parts.check((24, 32), launch), Err(PartError::Freed(name(6))));
    parts.free(1, (24, 32), name(8), false);
    assert_eq!(parts.check((24, 32), launch), Err(PartError::Freed(name(8))));
}

//! What the ways of an allocation and of a free cost in locks. Reentrant ones, of growth and of trims, are not counted.

use super::{BYTES, Fixture, Stream};
use crate::miss_step::MissStep::{self, *};
use crate::sync::locks_taken;
use crate::sync::trusted::Ordering;

const STEPS: [MissStep; 7] = [Complete, Ordered, Grow, Wait, GrowToMaximum, Gather, Trim];

/// What the call returns, and the locks that it takes.
fn locks<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let before = locks_taken();
    let result = call();
    (result, locks_taken() - before)
}

/// A stream whose thread has a magazine with a class for [`BYTES`], and memory beside that.
fn used(fixture: &mut Fixture) -> Stream {
    let stream = fixture.stream();
    for _ in 0..3 {
        let block = fixture.take(&stream, BYTES);
        fixture.give(&stream, block);
    }
    stream
}

#[test]
fn a_warm_way_takes_no_lock_and_that_of_the_own_heap_takes_one() {
    let mut fixture = Fixture::new(&STEPS);
    // The last one's growth has emptied the caches of the first.
    let [other, own] = [(); 2].map(|()| used(&mut fixture));
    let pair = locks(|| fixture.give(&own, fixture.take(&own, BYTES)));
    assert_eq!(pair.1, 0, "warm");
    let (block, taken) = locks(|| fixture.take(&own, 2 * BYTES));
    assert_eq!((taken, locks(|| fixture.give(&own, block)).1), (1, 1), "by the magazine");
    let (block, taken) = locks(|| fixture.take_past(&own, 3 * BYTES));
    assert_eq!((taken, locks(|| fixture.give_past(&own, block)).1), (1, 1), "without a try before");
    for free in [Fixture::give, Fixture::give_past] {
        let block = fixture.take(&own, 2 * BYTES);
        assert_eq!(locks(|| free(&fixture, &other, block)).1, 0, "of another stream's heap");
    }
}

#[test]
fn a_miss_takes_few_locks() {
    let mut fixture = Fixture::new(&STEPS);
    let [own, other] = [(); 2].map(|()| used(&mut fixture));
    let large = fixture.take(&own, 64 << 20);
    fixture.give(&own, large);
    fixture.pool.upstream.is_done.store(true, Ordering::Relaxed);
    // What the other stream freed is there, as soon as the device is asked.
    let (block, taken) = locks(|| fixture.take(&other, 64 << 20));
    assert_eq!(taken, 13, "another stream's memory");
    let (grown, taken) = locks(|| fixture.take(&other, 256 << 20));
    assert_eq!(taken, 32, "growth");
    // The stream's own heap has it, freed by another one.
    fixture.give(&own, grown);
    let (grown, taken) = locks(|| fixture.take(&other, 256 << 20));
    assert_eq!(taken, 6, "memory that comes back to its heap");
    assert_eq!(fixture.pool.stats().misses, 6);
    fixture.give(&other, block);
    fixture.give(&other, grown);
}

/// The sizes that a thread keeps: 1 MiB at most, so one block of that.
const MIB: usize = 1 << 20;

#[test]
fn a_request_that_misses_is_one_miss_of_its_size() {
    for take in [Fixture::take, Fixture::take_past] {
        let mut fixture = Fixture::new(&[Grow]);
        let stream = fixture.stream();
        let held = fixture.take(&stream, 3 * MIB);
        let [first, second] = [(); 2].map(|()| {
            let block = take(&fixture, &stream, MIB);
            let cached = fixture.pool.stats().cached;
            assert_eq!(cached, 0, "nothing was freed");
            block
        });
        fixture.give(&stream, second);
        assert_eq!(fixture.pool.stats().cached, MIB, "the second miss in a row");
        fixture.give(&stream, first);
        assert_eq!(fixture.pool.stats().cached, MIB, "which keeps one");
        // What the stream's own heap serves counts as well.
        for cached in [MIB, MIB / 2] {
            let block = take(&fixture, &stream, MIB / 2);
            fixture.give(&stream, block);
            assert_eq!(fixture.pool.stats().cached, cached);
        }
        fixture.give(&stream, held);
    }
}

#[test]
fn a_block_that_is_freed_twice_is_handed_out_once() {
    for free in [Fixture::give, Fixture::give_past] {
        let mut fixture = Fixture::new(&STEPS);
        let [other, own] = [(); 2].map(|()| used(&mut fixture));
        let cached = fixture.take(&own, BYTES);
        fixture.give(&own, cached);
        let held = fixture.take(&own, 2 * BYTES);
        fixture.give(&own, held);
        for (stream, block) in [(&own, cached), (&own, held)] {
            free(&fixture, stream, block);
        }
        let blocks = [BYTES, BYTES, 2 * BYTES, 2 * BYTES].map(|bytes| fixture.take(&own, bytes));
        for (place, block) in blocks.iter().enumerate() {
            assert!(blocks[..place].iter().all(|it| it.address != block.address));
        }
        blocks.into_iter().for_each(|block| fixture.give(&other, block));
    }
}

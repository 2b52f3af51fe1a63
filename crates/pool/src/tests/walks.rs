//! What the ways of an allocation and of a free cost in locks. Reentrant ones, of growth and of trims, are not counted.

use super::{BYTES, Fixture, STEPS};
use crate::sync::locks_taken;
use crate::sync::trusted::Ordering;

/// What the call returns, and the locks that it takes.
fn locks<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let before = locks_taken();
    let result = call();
    (result, locks_taken() - before)
}

#[test]
fn a_warm_way_takes_no_lock_and_that_of_the_own_heap_takes_one() {
    let mut fixture = Fixture::new(&STEPS);
    // The last one's growth has emptied the caches of the first.
    let [other, own] = [(); 2].map(|()| fixture.used());
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
    let [own, other] = [(); 2].map(|()| fixture.used());
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

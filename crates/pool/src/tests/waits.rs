//! Waits of streams and of the host for memory that others freed.

use super::{BYTES, Fixture};
use crate::miss_step::MissStep::*;
use crate::ready::{Stamps, note_stamp};
use crate::sync::trusted::Ordering;

const MIB: usize = 1 << 20;

#[test]
fn what_several_streams_freed_in_one_heap_is_one_piece_behind_waits_for_them() {
    for is_own in [true, false] {
        let mut fixture = Fixture::new(&[Gather]);
        fixture.pool.prepare(3 * MIB).unwrap();
        let [own, asking] = [(); 2].map(|()| fixture.stream());
        let blocks = [(); 3].map(|()| fixture.take(&own, MIB));
        let others = [(); 3].map(|()| fixture.stream());
        others.iter().zip(blocks).for_each(|(other, block)| fixture.give(other, block));
        let asking = if is_own { &own } else { &asking };
        let all = fixture.take(asking, 3 * MIB);
        assert_eq!(fixture.pool.stats().waits, 3);
        fixture.give(asking, all);
    }
}

#[test]
fn a_wait_that_fails_keeps_none_from_what_other_streams_freed() {
    for refused in 0..3 {
        let mut fixture = Fixture::new(&[Gather]);
        fixture.pool.prepare(3 * MIB).unwrap();
        let own = fixture.stream();
        let blocks = [(); 3].map(|()| fixture.take(&own, MIB));
        let others = [(); 3].map(|()| fixture.stream());
        others.iter().zip(blocks).for_each(|(other, block)| fixture.give(other, block));
        fixture.pool.upstream.refused.store(others[refused].id, Ordering::Relaxed);
        let served = fixture.pool.allocate(&own, own.id, 2 * MIB, 256);
        // Of three in a row, those beside the middle one are no piece.
        assert_eq!(served.is_ok(), refused != 1);
        assert_eq!(fixture.pool.stats().waits, 2);
        served.into_iter().for_each(|block| fixture.give(&own, block));
        fixture.pool.upstream.refused.store(0, Ordering::Relaxed);
    }
}

#[test]
fn a_trim_for_another_pool_empties_caches() {
    let mut fixture = Fixture::new(&[Grow]);
    let own = fixture.stream();
    (0..4).for_each(|_| fixture.use_once(&own));
    assert_eq!(fixture.pool.stats().cached, BYTES);
    fixture.pool.upstream.is_done.store(true, Ordering::Relaxed);
    fixture.pool.wait_and_trim_until(0, &mut || false);
    assert_eq!((fixture.pool.stats().cached, fixture.pool.stats().reserved), (0, 0));
}

#[test]
fn what_another_stream_freed_into_the_own_heap_serves_behind_a_wait() {
    let mut fixture = Fixture::new(&[Wait]);
    fixture.pool.prepare(17 * MIB).unwrap();
    let [own, other] = [(); 2].map(|()| fixture.stream());
    // So little is free that not all of it is waited for.
    let held = fixture.take(&own, 16 * MIB);
    let block = fixture.take(&own, MIB);
    fixture.give(&other, block);
    let block = fixture.take(&own, MIB);
    assert_eq!(fixture.pool.stats().waits, 1);
    [held, block].into_iter().for_each(|block| fixture.give(&own, block));
}

#[test]
fn what_the_stream_is_ordered_after_by_now_serves_without_a_wait() {
    let mut fixture = Fixture::new(&[Ordered, Wait]);
    fixture.pool.prepare(2 * MIB).unwrap();
    let [own, other] = [(); 2].map(|()| fixture.stream());
    let blocks = [(); 2].map(|()| fixture.take(&own, MIB));
    blocks.into_iter().for_each(|block| fixture.give(&other, block));
    // In the heap they are the other one's, before the order is made.
    let slots = [1, 2].map(|slot| fixture.pool.slot(slot).unwrap());
    assert_eq!(slots[0].heap().tags().collect::<Vec<_>>(), [2]);
    fixture.pool.make_wait(slots[0], &own, 2, slots[1].epochs.current()).unwrap();
    let block = fixture.take(&own, 2 * MIB);
    assert_eq!(fixture.pool.stats().waits, 1);
    fixture.give(&own, block);
}

#[test]
fn of_a_streams_stamps_the_latest_stands() {
    let mut latest = Stamps::new();
    for (tag, stamp) in [(3, 5), (3, 7), (4, 1), (3, 6)] {
        note_stamp(&mut latest, tag, stamp);
    }
    assert_eq!(latest, [(3, 7), (4, 1)].into());
}

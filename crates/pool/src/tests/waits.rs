//! Waits of streams and of the host for memory that others freed.

use super::{BYTES, Fixture};
use crate::miss_step::MissStep::*;
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

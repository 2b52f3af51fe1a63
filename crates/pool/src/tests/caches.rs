//! What threads keep in their caches, and what of that goes to the heaps before a pool grows.

use super::{BYTES, Fixture, STEPS, Stream};
use crate::miss_step::MissStep::{self, *};
use crate::settings::Settings;
use crate::sync::trusted::{Ordering, channel};

const MIB: usize = 1 << 20;

impl Fixture {
    /// A stream for which the thread keeps a block of [`BYTES`], until another one's growth flushes its caches.
    pub(super) fn used(&mut self) -> Stream {
        let stream = self.stream();
        for _ in 0..3 {
            let block = self.take(&stream, BYTES);
            self.give(&stream, block);
        }
        stream
    }

    /// Has the calling thread keep so many blocks of a size, which the stream's heap has as one piece.
    fn keep(&self, stream: &Stream, count: usize, bytes: usize) {
        // Two misses in a row, each of which takes a part of the piece.
        let blocks: Vec<_> = (0..count).map(|_| self.take(stream, bytes)).collect();
        blocks.into_iter().for_each(|block| self.give(stream, block));
    }

    fn cached(&self) -> usize {
        self.pool.stats().cached
    }

    fn growths(&self) -> usize {
        self.pool.counters().growths.load(Ordering::Relaxed)
    }

    /// Has the stream's heap have so many free bytes in one piece.
    fn bring(&self, stream: &Stream, bytes: usize) {
        let block = self.take(stream, bytes);
        self.give(stream, block);
    }
}

/// Runs `then` while another thread has 12 MiB in its magazine of the first of two streams, of whose heap they are all.
fn beside_a_thread_with_caches(steps: &[MissStep], then: impl FnOnce(&Fixture, &Stream, &Stream)) {
    let mut fixture = Fixture::with(256, 12 * MIB, steps);
    let [stream, other] = [(); 2].map(|()| fixture.stream());
    fixture.bring(&stream, 12 * MIB);
    let (ready, is_ready) = channel::bounded(0);
    let (go, goes) = channel::bounded::<()>(0);
    std::thread::scope(|scope| {
        let (fixture, stream, other) = (&fixture, &stream, &other);
        scope.spawn(move || {
            // Registers the stream on this thread; its class comes with the second miss.
            fixture.keep(stream, 8, 3 * MIB / 2);
            fixture.keep(stream, 8, 3 * MIB / 2);
            ready.send(()).unwrap();
            let _ = goes.recv();
        });
        is_ready.recv().unwrap();
        let kept = fixture.cached();
        // Dropped if this panics, too.
        let go = go;
        assert_eq!(kept, 12 * MIB);
        then(fixture, stream, other);
        drop(go);
    });
}

/// The largest request for which the caches of all threads are flushed: 8 KiB less for each of two magazines.
const MOST: usize = 12 * MIB - (16 << 10);

#[test]
fn before_growth_much_that_other_threads_keep_goes_to_the_heaps() {
    beside_a_thread_with_caches(&[Grow], |fixture, stream, _| {
        let growths = fixture.growths();
        let block = fixture.take(stream, MOST);
        assert_eq!((fixture.cached(), fixture.growths()), (0, growths), "it serves");
        fixture.give(stream, block);
    });
}

#[test]
fn what_caches_held_may_be_waited_for_in_place_of_growth() {
    beside_a_thread_with_caches(&[Grow, Wait], |fixture, _, other| {
        let growths = fixture.growths();
        let block = fixture.take(other, 11 * MIB);
        assert_eq!((fixture.pool.stats().waits, fixture.growths()), (1, growths));
        fixture.give(other, block);
    });
}

#[test]
fn a_wait_for_what_is_free_comes_before_caches_are_flushed_for_growth() {
    // Not before growth to the maximum.
    for (step, waits) in [(Grow, 1), (GrowToMaximum, 0)] {
        beside_a_thread_with_caches(&[step, Wait], |fixture, stream, other| {
            fixture.bring(stream, 16 * MIB);
            let growths = fixture.growths();
            let block = fixture.take(other, 11 * MIB);
            assert_eq!(
                (fixture.pool.stats().waits, fixture.growths()),
                (waits, growths + 1 - waits)
            );
            assert_eq!(fixture.cached(), waits * 12 * MIB);
            fixture.give(other, block);
        });
    }
}

#[test]
fn before_growth_little_that_other_threads_keep_stays() {
    beside_a_thread_with_caches(&[Grow], |fixture, stream, _| {
        let growths = fixture.growths();
        let block = fixture.take(stream, MOST + 256);
        assert_eq!((fixture.cached(), fixture.growths()), (12 * MIB, growths + 1));
        // As often as there is much.
        let second = fixture.take(stream, MOST);
        assert_eq!((fixture.cached(), fixture.growths()), (0, growths + 1));
        [block, second].into_iter().for_each(|block| fixture.give(stream, block));
    });
}

#[test]
fn before_growth_the_thread_gives_up_what_it_keeps_once_in_a_few_misses() {
    let mut fixture = Fixture::new(&[Grow]);
    let [kept, grown] = [(); 2].map(|()| fixture.stream());
    let grow = || {
        let block = fixture.take(&grown, 64 * MIB);
        // Not free, so that the next one grows, too.
        (block, fixture.cached())
    };
    let mut held = Vec::new();
    fixture.bring(&kept, 4 * MIB);
    let kept = |bytes| {
        fixture.keep(&kept, 3, bytes);
        assert_eq!(fixture.cached(), 3 * bytes);
        3 * bytes
    };
    kept(BYTES);
    let (block, cached) = grow();
    held.push(block);
    assert_eq!(cached, 0, "the first time");
    // Then two magazines, and four misses for each.
    let kept = kept(2 * BYTES);
    for misses in 1..=8 {
        let (block, cached) = grow();
        held.push(block);
        assert_eq!(cached, if misses < 8 { kept } else { 0 }, "{misses}");
    }
    held.into_iter().for_each(|block| fixture.give(&grown, block));
}

#[test]
fn a_pool_that_is_in_no_table_has_caches_all_the_same() {
    let settings = Fixture::settings(256, MIB, &[Grow]);
    let mut fixture = Fixture::of(Settings { listed: true, ..settings });
    let stream = fixture.stream();
    (0..3).for_each(|_| fixture.use_once(&stream));
    assert_eq!(fixture.cached(), BYTES);
    let block = fixture.take(&stream, BYTES);
    assert_eq!(fixture.cached(), 0);
    fixture.give(&stream, block);
    assert_eq!(fixture.cached(), BYTES);
}

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
        let [other, own] = [(); 2].map(|()| fixture.used());
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

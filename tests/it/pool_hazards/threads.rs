//! Memory that a thread keeps for itself: it is still the pool's.

use super::fixture::{Fixture, SEEDS, UNIT, holds, policies, try_vec, vec, whole};
use aquifer::{DeviceVec, ErrorKind, Stream};
use std::cell::RefCell;
use std::sync::mpsc;

/// RMM's seventh: a thread ends, and its blocks go to the others while its stream still runs.
#[test]
fn blocks_of_a_thread_that_ended_are_taken_in_order() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let pool = fixture.pool(8 * UNIT);
        let mut streams: Vec<Stream> = Vec::new();
        for round in 0..6_u8 {
            let stream = fixture.stream();
            std::thread::scope(|scope| {
                let work = || {
                    let vecs: Vec<_> =
                        (0..8).map(|n| (vec(&pool, &stream, UNIT, round + n), round + n)).collect();
                    // Nothing waits: the fills are pending when the thread ends.
                    drop(vecs);
                };
                scope.spawn(work).join().unwrap();
            });
            streams.push(stream);
        }
        holds(&vec(&pool, &fixture.stream(), 8 * UNIT, 77), 77);
        drop((streams, pool));
        fixture.all_is_back();
    }
}

/// Small blocks stay with the thread that freed them. When it is gone another thread gets the
/// maximum, to the byte.
#[test]
fn the_maximum_is_there_when_the_threads_are_gone() {
    for policy in policies() {
        let fixture = Fixture::new(1);
        let pool = fixture.options(8 * UNIT).miss_policy(policy).build().unwrap();
        std::thread::scope(|scope| {
            for tag in 0..3_u8 {
                let (pool, stream) = (&pool, fixture.stream());
                scope.spawn(move || {
                    for bytes in [100, 1000, 5000, 30_000] {
                        let vecs: Vec<_> =
                            (0..4).map(|_| try_vec(pool, &stream, bytes, tag)).collect();
                        vecs.iter().flatten().for_each(|vec| holds(vec, tag));
                    }
                });
            }
        });
        holds(&vec(&pool, &fixture.stream(), 8 * UNIT, 9), 9);
        assert_eq!(pool.statistics().peak_reserved, 8 * UNIT);
        drop(pool);
        fixture.all_is_back();
    }
}

/// The same where the threads live on and do nothing: what they keep has to be fetched from them.
#[test]
fn the_maximum_is_there_while_other_threads_idle() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let pool = fixture.pool(8 * UNIT);
        let (ready, wait) = mpsc::channel();
        std::thread::scope(|scope| {
            let (mut idle, mut threads) = (Vec::new(), Vec::new());
            for tag in 0..3_u8 {
                let (pool, stream, ready) = (&pool, fixture.stream(), ready.clone());
                let (go_on, parked) = mpsc::channel::<()>();
                idle.push(go_on);
                threads.push(scope.spawn(move || {
                    for bytes in [300, 4000, 30_000] {
                        let vecs: Vec<_> =
                            (0..4).map(|_| try_vec(pool, &stream, bytes, tag)).collect();
                        drop(vecs);
                    }
                    ready.send(()).unwrap();
                    let _ = parked.recv();
                    // And it goes on with what is left.
                    holds(&vec(pool, &stream, 300, tag), tag);
                }));
            }
            (0..3).for_each(|_| wait.recv().unwrap());
            let stream = fixture.stream();
            let all = vec(&pool, &stream, 8 * UNIT, 9);
            holds(&all, 9);
            assert_eq!(pool.statistics().reserved, 8 * UNIT);
            drop(all);
            assert_eq!(pool.wait_and_trim(0).unwrap(), 8 * UNIT);
            drop(idle);
            // A scope does not wait for what its threads' destructors give back; a join does.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        drop(pool);
        fixture.all_is_back();
    }
}

/// A vector that goes to another thread and is dropped there, over and over: the owner finds its
/// memory again, in its own order.
#[test]
fn what_other_threads_free_comes_home() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let pool = fixture.pool(4 * UNIT);
        let (send, receive) = mpsc::sync_channel::<DeviceVec<u8>>(2);
        std::thread::scope(|scope| {
            scope.spawn(move || receive.into_iter().for_each(drop));
            let stream = fixture.stream();
            for round in 0..200_u8 {
                // Of four units three can be on their way.
                let made = loop {
                    match try_vec(&pool, &stream, UNIT, round) {
                        Ok(made) => break made,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}"),
                    }
                    std::thread::yield_now();
                };
                send.send(made).unwrap();
            }
            drop(send);
        });
        let found = pool.statistics();
        assert_eq!((found.live, found.live_blocks), (0, 0), "{found:?}");
        assert!(found.peak_reserved <= 4 * UNIT, "{found:?}");
        holds(&vec(&pool, &fixture.stream(), 4 * UNIT, 9), 9);
        drop(pool);
        fixture.all_is_back();
    }
}

thread_local! {
    static LATE: RefCell<Vec<DeviceVec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A vector that is dropped when the thread's own memory is torn down, before the pool's part of it
/// or after.
#[test]
fn frees_of_a_thread_that_is_being_torn_down_are_not_lost() {
    for early in [true, false] {
        let fixture = Fixture::new(2);
        let pool = fixture.pool(4 * UNIT);
        let stream = fixture.stream();
        std::thread::scope(|scope| {
            let work = || {
                if early {
                    LATE.with(|_| ());
                }
                // Warms the thread's own part up.
                drop(vec(&pool, &stream, UNIT, 1));
                let two = [vec(&pool, &stream, UNIT, 2), vec(&pool, &stream, 1000, 3)];
                LATE.with(|late| late.borrow_mut().extend(two));
            };
            scope.spawn(work).join().unwrap();
        });
        assert_eq!(pool.statistics().live_blocks, 0);
        holds(&vec(&pool, &fixture.stream(), 4 * UNIT, 9), 9);
        drop(pool);
        fixture.all_is_back();
    }
}

/// RMM's eighth: threads bring streams that the pool has never seen while others run out of memory
/// and look through everybody's blocks.
#[test]
fn new_streams_and_searches_through_all_of_them_do_not_collide() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        let pool = fixture.pool(6 * UNIT);
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let (fixture, pool) = (&fixture, &pool);
                scope.spawn(move || {
                    for round in 0..60_u8 {
                        let (stream, tag) = (fixture.stream(), thread * 60 + round);
                        let bytes = [500, UNIT, 3 * UNIT, 5 * UNIT][usize::from(round) % 4];
                        match try_vec(pool, &stream, bytes, tag) {
                            Ok(vec) if round % 3 == 0 => holds(&vec, tag),
                            Ok(_) => {}
                            Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory),
                        }
                    }
                });
            }
        });
        let found = pool.statistics();
        assert_eq!((found.live, found.live_blocks), (0, 0), "{found:?}");
        holds(&vec(&pool, &fixture.stream(), 6 * UNIT, 9), 9);
        drop(pool);
        fixture.all_is_back();
    }
}

/// Sixteen threads and streams at once, each with its own pattern, at sizes that magazines keep.
#[test]
fn threads_that_share_a_pool_never_share_a_block() {
    let fixture = Fixture::new(3);
    let pool = fixture.pool(64 * UNIT);
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let (pool, stream) = (&pool, fixture.stream());
            scope.spawn(move || {
                for round in 0..20 {
                    let vecs: Vec<_> = (0..6)
                        .map(|n| (vec(pool, &stream, 256 << ((n + round) % 6), thread), thread))
                        .collect();
                    whole(&vecs);
                }
            });
        }
    });
    drop(pool);
    fixture.all_is_back();
}

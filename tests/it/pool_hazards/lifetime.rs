//! Pools that go before what lives in them.

use super::fixture::{Fixture, SEEDS, UNIT, Upstream, holds, vec};
use aquifer::{DeviceVec, PoolResource};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Every handle on the pool is gone; its vectors are used on, freed on other threads, and the last
/// takes the pool with it.
#[test]
fn vectors_outlive_the_last_handle() {
    for seed in SEEDS {
        let fixture = Fixture::new(seed);
        for upstream in [
            fixture.plain(),
            fixture.stream_ordered(),
            Arc::new(fixture.pool(64 * UNIT)) as Upstream,
        ] {
            let pool = PoolResource::builder(upstream).growth_step(2 * UNIT).build().unwrap();
            let [a, b] = fixture.streams();
            let mut vecs: Vec<_> = (0..6)
                .map(|tag| vec(&pool, if tag % 2 == 0 { &a } else { &b }, UNIT, tag))
                .collect();
            drop(pool);
            vecs[0].fill(40).unwrap();
            vecs[3].set_stream(&a).unwrap();
            holds(&vecs[0], 40);
            // A vector makes another one in the pool that it keeps alive.
            vecs.push(vecs[5].try_clone().unwrap());
            holds(&vecs[6], 5);
            let others = vecs.split_off(4);
            drop((a, b));
            std::thread::scope(|scope| scope.spawn(|| drop(others)).join().unwrap());
            drop(vecs);
        }
        fixture.all_is_back();
    }
}

/// Clones are one pool.
#[test]
fn clones_share_their_memory() {
    let fixture = Fixture::new(0);
    let pool = fixture.pool(2 * UNIT);
    let clone = pool.clone();
    let stream = fixture.stream();
    let held = vec(&pool, &stream, UNIT, 1);
    let other = vec(&clone, &stream, UNIT, 2);
    assert!(super::fixture::try_vec(&pool, &stream, UNIT, 3).is_err());
    assert_eq!(pool.statistics(), clone.statistics());
    drop((pool, held));
    holds(&other, 2);
    holds(&vec(&clone, &stream, UNIT, 3), 3);
    drop((clone, other));
    fixture.all_is_back();
}

/// Many pools one after the other on one thread: what it keeps for a pool that is gone is never
/// taken for another's.
#[test]
fn a_threads_memory_of_one_pool_is_not_anothers() {
    let fixture = Fixture::new(0);
    let stream = fixture.stream();
    for round in 0..100_u8 {
        let pools = [fixture.pool(4 * UNIT), fixture.pool(4 * UNIT)];
        let held: Vec<_> = pools.iter().map(|pool| vec(pool, &stream, UNIT, round)).collect();
        assert!(!super::fixture::overlap(&held[0], &held[1]));
        drop(held);
        for pool in &pools {
            holds(&vec(pool, &stream, UNIT, round), round);
            assert_eq!(pool.statistics().reserved, UNIT);
        }
    }
    fixture.all_is_back();
}

/// What a process may still hold when it ends.
static HELD: Mutex<Vec<(DeviceVec<u8>, super::fixture::Pool)>> = Mutex::new(Vec::new());

thread_local! {
    static OF_THREAD: std::cell::RefCell<Vec<DeviceVec<u8>>> = const {
        std::cell::RefCell::new(Vec::new())
    };
}

const CHILD: &str = "AQUIFER_TEST_EXITS";
const NAME: &str = "pool_hazards::lifetime::a_process_ends_with_a_pool_in_use";

/// A process ends while statics and threads hold pools and vectors: it ends, with its own code.
#[test]
fn a_process_ends_with_a_pool_in_use() {
    if std::env::var_os(CHILD).is_some() {
        let fixture = Fixture::new(0);
        let pool = fixture.pool(8 * UNIT);
        let held = vec(&pool, &fixture.stream(), UNIT, 1);
        HELD.lock().unwrap().push((held, pool.clone()));
        OF_THREAD.with(|own| own.borrow_mut().push(vec(&pool, &fixture.stream(), 500, 2)));
        let (ready, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let own = vec(&pool, &fixture.stream(), 500, 3);
            ready.send(()).unwrap();
            // For good: the process ends around it.
            std::thread::park();
            drop(own);
        });
        wait.recv().unwrap();
        std::process::exit(42);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(42), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

/// A pool that ends while a stream of its own records a graph that it was not told of: the graph is not
/// lost to a wait that the pool makes, and nothing is freed in it.
#[test]
fn a_pool_that_ends_does_not_disturb_a_capture() {
    for upstream in [Fixture::plain, Fixture::stream_ordered] {
        for both in [false, true] {
            let fixture = Fixture::new(0);
            let pool = aquifer::PoolResource::builder(upstream(&fixture)).build().unwrap();
            let [first, second] = fixture.streams();
            drop(vec(&pool, &first, UNIT, 1));
            if both {
                drop(vec(&pool, &second, UNIT, 2));
            }
            fixture.simulator.start_capture(&first).unwrap();
            drop(pool);
            assert!(fixture.simulator.stop_capture(&first), "the capture is lost ({both})");
            fixture.clean();
        }
    }
}

/// A pool that ends and cannot order its memory leaks it, and counts its hold on the streams out all
/// the same: another pool would take one that its user holds for one that is gone.
#[test]
fn a_pool_that_cannot_give_back_lets_go_of_its_streams() {
    let fixture = Fixture::new(0);
    let [ends, stays] = [0, 1].map(|_| PoolResource::new(fixture.plain()).unwrap());
    let [other, stream] = fixture.streams();
    drop(vec(&ends, &other, UNIT, 1));
    drop((vec(&ends, &stream, UNIT, 2), vec(&stays, &stream, UNIT, 3)));
    fixture.simulator.start_capture(&stream).unwrap();
    drop(ends);
    fixture.simulator.stop_capture(&stream);
    drop(vec(&stays, &fixture.stream(), UNIT, 4));
    assert_eq!(stays.statistics().streams, 2, "a stream with a user was given up");
    fixture.clean();
}

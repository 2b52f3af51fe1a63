//! Captures beside a sleep and a wake.

use super::{asleep, assert_numbers, keeps, numbers, pool};
use crate::support;
use crate::support::foreign::Foreign;
use aquifer::mr::{Keep, SleepOptions};
use aquifer::sim::SimConfig;
use aquifer::{DeviceVec, ErrorKind};

#[test]
fn a_wake_in_a_capture_and_beside_it_does_not_disturb_it() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [stream, beside, known] = [(); 3].map(|()| device.new_stream().unwrap());
    let other = pool(&device);
    let source = numbers(&stream, &other, 1000, 7);
    let mut target = DeviceVec::<u32>::zeroed_in(&stream, 1000, other.clone()).unwrap();
    let mut all = keeps();
    all.push(("nothing", || Keep::Nothing));
    for (name, keep) in all {
        let pool = pool(&device);
        let vec = numbers(&beside, &pool, 1_000_000, 4);
        // The pool of the capture is another one.
        // SAFETY: this test has no other pointers.
        unsafe { asleep(&pool, keep()) };
        let (graph, ()) = stream
            .capture(&other, |_| {
                target.copy_from(&source)?;
                pool.wake().map(drop)
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        // By an allocation, of a stream that the capture does not have.
        let options = SleepOptions::new(keep()).wakes_on_allocation(true);
        // SAFETY: as above.
        unsafe { pool.sleep(options) }.unwrap();
        let (again, by_allocation) = stream
            .capture(&other, |_| {
                target.copy_from(&source)?;
                DeviceVec::<u8>::zeroed_in(&beside, 9, pool.clone())
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!pool.is_asleep() && by_allocation.get(0).unwrap() == 0);
        // Another library's, on a stream that the crate knows.
        // SAFETY: as above.
        unsafe { asleep(&pool, keep()) };
        simulator.start_capture(&known).unwrap();
        pool.wake().unwrap();
        assert!(simulator.stop_capture(&known), "{name}");
        for graph in [graph, again] {
            target.fill(0).unwrap();
            // SAFETY: both vectors live, and nothing else uses them.
            unsafe { graph.launch(&stream) }.unwrap();
            assert_numbers(&target, 7);
        }
        if name != "nothing" {
            assert_numbers(&vec, 4);
        }
    }
    simulator.check().unwrap();
}

/// An allocation of the captured stream from a pool that sleeps, to which the capture was not declared.
#[test]
fn an_allocation_in_a_capture_of_another_pool_wakes_it_and_leaves_the_capture_whole() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let (pool, other) = (pool(&device), pool(&device));
    let vec = numbers(&stream, &pool, 1_000_000, 4);
    let options = SleepOptions::new(Keep::PageLocked).wakes_on_allocation(true);
    // SAFETY: this test has no other pointers.
    unsafe { pool.sleep(options) }.unwrap();
    let (graph, mut allocated) = stream
        .capture(&other, |stream| DeviceVec::<u32>::zeroed_in(stream, 9, pool.clone()))
        .unwrap();
    assert!(!pool.is_asleep());
    assert_numbers(&vec, 4);
    allocated.fill(5).unwrap();
    // SAFETY: the vector lives, and nothing else uses it.
    unsafe { graph.launch(&stream) }.unwrap();
    assert_eq!(allocated.to_vec().unwrap(), [0; 9]);
    drop((graph, allocated));
    simulator.check().unwrap();
}

#[test]
fn a_sleep_beside_a_capture_that_was_not_declared_is_refused() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [stream, known] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = pool(&device);
    let vec = numbers(&stream, &pool, 1_000_000, 4);
    simulator.start_capture(&known).unwrap();
    for keep in keeps() {
        // SAFETY: this test has no other pointers.
        let error = unsafe { pool.sleep(keep.1()) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capture, "{error}");
        assert!(!pool.is_asleep());
        assert_numbers(&vec, 4);
    }
    assert!(simulator.stop_capture(&known), "it is not disturbed");
    // SAFETY: as above.
    unsafe { asleep(&pool, Keep::PageLocked) };
    pool.wake().unwrap();
    assert_numbers(&vec, 4);
    simulator.check().unwrap();
}

/// Nobody can ask a stream that only its library knows, and the driver's call for all work costs its capture. The
/// documentation says so.
#[test]
fn a_capture_of_a_stream_that_nobody_named_is_lost_and_the_sleep_refused() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let vec = numbers(&stream, &pool, 1_000_000, 4);
    let foreign = Foreign::new(&device).unwrap();
    for round in 0..2 {
        let theirs = foreign.stream().unwrap();
        simulator.start_capture(&theirs).unwrap();
        drop(theirs);
        let refused = match round {
            // SAFETY: this test has no other pointers.
            0 => unsafe { pool.sleep(Keep::PageLocked) }.map(drop),
            _ => device.synchronize(),
        };
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capture, "{error}");
        assert!(!pool.is_asleep());
        assert_numbers(&vec, 4);
        let theirs = foreign.stream().unwrap();
        assert!(!simulator.stop_capture(&theirs), "the driver has invalidated it");
        drop(theirs);
    }
    // SAFETY: as above.
    unsafe { asleep(&pool, Keep::PageLocked) };
    pool.wake().unwrap();
    assert_numbers(&vec, 4);
    foreign.destroy().unwrap();
}

/// A vector from before the capture, which is dropped in it: the launches alone read it.
#[test]
fn contents_that_only_a_graph_keeps_come_back() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let mut target = numbers(&stream, &pool, 300_000, 0);
    let source = numbers(&stream, &pool, 300_000, 7);
    let (graph, ()) = stream
        .capture(&pool, |_| {
            target.copy_from(&source)?;
            drop(source);
            Ok(())
        })
        .unwrap();
    for (name, keep) in keeps() {
        assert!(pool.statistics().held >= 1_200_000, "{name}");
        // SAFETY: no graph runs or is launched while it sleeps.
        unsafe { asleep(&pool, keep()) };
        let woken = pool.wake().unwrap();
        assert!(woken.copied >= 2_400_000, "{name}: {woken:?}");
        target.fill(0).unwrap();
        // SAFETY: the target lives, and nothing else uses it.
        unsafe { graph.launch(&stream) }.unwrap();
        assert_numbers(&target, 7);
    }
    drop(graph);
    assert_eq!(pool.statistics().held, 0);
}

//! Pools that sleep: beside a second device, and with page-locked memory of a pool.

use crate::two::Two;
use crate::{alone, kernels, support};
use aquifer::mr::{Keep, VirtualResource};
use aquifer::pinned::{
    PinnedPool, PinnedResource, reset_current_pinned_resource, set_current_pinned_resource,
};
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{Device, DeviceResource, DeviceVec, ErrorKind, LaunchConfig, PoolResource, Stream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const WORDS: usize = 3 << 18; // of two handles

type Pool = PoolResource<VirtualResource>;

fn words(stream: &Stream, pool: &Pool, value: u32) -> DeviceVec<u32> {
    let mut vec = DeviceVec::zeroed_in(stream, WORDS, pool.clone()).unwrap();
    vec.fill(value).unwrap();
    vec
}

fn vec_of(stream: &Stream, pool: &Pool, words: usize) -> DeviceVec<u32> {
    let mut vec = DeviceVec::zeroed_in(stream, words, pool.clone()).unwrap();
    vec.fill(4).unwrap();
    vec
}

fn asleep(pool: &Pool) {
    // SAFETY: the tests have no other pointers.
    unsafe { pool.sleep(Keep::PageLocked) }.unwrap();
}

/// A kernel of the other device reads it.
fn assert_reached(there: &Stream, vec: &DeviceVec<u32>, value: u32) {
    let mut copy = DeviceVec::<u32>::zeroed(there, WORDS).unwrap();
    kernels::copy(there, vec, &mut copy).unwrap();
    assert!(copy.to_vec().unwrap().iter().all(|word| *word == value));
}

/// Two devices, the second of which reaches memory of the first if it is let in.
fn peers(name: &str) -> Option<Two> {
    let both = Two::open(name)?;
    if !both.two.can_access_peer(&both.one).unwrap() {
        support::skipped(name, "the two GPUs do not reach each other's memory");
        return None;
    }
    Some(both)
}

#[test]
fn a_sleep_waits_for_the_other_device_which_reaches_the_memory_again() {
    let _alone = alone();
    let name = "a_sleep_waits_for_the_other_device_which_reaches_the_memory_again";
    let Some(both) = peers(name) else { return };
    let [here, there] = both.streams();
    let pool = PoolResource::new(VirtualResource::new(&both.one).unwrap()).unwrap();
    pool.enable_peer_access(&both.two).unwrap();
    let mut vec = words(&here, &pool, 4);
    let mut copy = DeviceVec::<u32>::zeroed(&there, WORDS).unwrap();
    let mut value = 4;
    for by_pointer in [false, true, false] {
        there.synchronize().unwrap();
        both.simulators.iter().skip(1).for_each(|it| it.stall(&there).unwrap());
        // Work of the other device is pending: it writes, and it reads. Or it is a kernel that has a pointer, for all
        // that the crate knows.
        if by_pointer {
            let launch = there.launch(&kernels::SPIN).scalar(1_000_000_u64).unwrap();
            // SAFETY: it touches nothing.
            unsafe { launch.launch(LaunchConfig::for_elements(1)).unwrap() };
        } else {
            value += 1;
            kernels::add_one(&there, &mut vec).unwrap();
            kernels::copy(&there, &vec, &mut copy).unwrap();
        }
        let sleeps = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                asleep(&pool);
                sleeps.store(true, SeqCst);
            });
            if let [_, second] = &*both.simulators {
                std::thread::sleep(Duration::from_millis(100));
                let early = sleeps.load(SeqCst);
                second.resume(&there).unwrap();
                assert!(!early, "work of the other device was under way");
            }
            thread.join().unwrap();
        });
        let refused = [
            vec.on(&there).map(drop).unwrap_err(),
            vec.to_device(&there).map(drop).unwrap_err(),
            kernels::copy(&there, &vec, &mut copy).unwrap_err(),
            kernels::add_one(&there, &mut vec).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::Asleep, "{error}");
        }
        pool.wake().unwrap();
        assert!(copy.to_vec().unwrap().iter().all(|word| *word == value));
        assert_reached(&there, &vec, value);
        both.check("a wake");
    }
    // What is mapped from now on, too.
    assert_reached(&there, &words(&here, &pool, 9), 9);
    drop((vec, copy, pool, here, there));
    both.end();
}

#[test]
fn a_device_that_is_let_in_while_the_pool_sleeps_reaches_what_wakes() {
    let _alone = alone();
    let name = "a_device_that_is_let_in_while_the_pool_sleeps_reaches_what_wakes";
    let Some(both) = peers(name) else { return };
    let [here, there] = both.streams();
    let pool = PoolResource::new(VirtualResource::new(&both.one).unwrap()).unwrap();
    let vec = words(&here, &pool, 4);
    asleep(&pool);
    assert_eq!(vec.on(&there).map(drop).unwrap_err().kind(), ErrorKind::WrongDevice);
    pool.enable_peer_access(&both.two).unwrap();
    assert!(pool.has_peer_access(&both.two));
    assert_eq!(vec.on(&there).map(drop).unwrap_err().kind(), ErrorKind::Asleep);
    pool.wake().unwrap();
    assert_reached(&there, &vec, 4);
    drop((vec, pool, here, there));
    both.end();
}

/// The first call of a wake is for the own device, and the second for the other one.
#[test]
fn a_wake_that_cannot_let_the_other_device_in_does_it_the_next_time() {
    let _alone = alone();
    // And whether it can be unmapped then.
    for (nth, stays) in [(1, false), (1, true), (2, false), (2, true)] {
        let both = Two::simulated(5);
        let [here, there] = both.streams();
        let pool = PoolResource::new(VirtualResource::new(&both.one).unwrap()).unwrap();
        pool.enable_peer_access(&both.two).unwrap();
        let vec = words(&here, &pool, 4);
        asleep(&pool);
        both.simulators[0].fail_call("cuMemSetAccess", nth, 999).unwrap();
        if stays {
            both.simulators[0].fail_call("cuMemUnmap", 1, 999).unwrap();
        }
        let error = pool.wake().unwrap_err();
        assert!(pool.is_asleep(), "{error}");
        assert_eq!(error.to_string().contains("stay mapped"), stays, "{error}");
        pool.wake().unwrap();
        assert_reached(&there, &vec, 4);
        drop((vec, pool, here, there));
        both.end();
    }
}

/// A pool of page-locked memory that is current in this process, until it is dropped.
struct Current(PinnedPool);

impl Current {
    fn new(device: &Device) -> Self {
        // Large blocks are registered, where this process makes the pages.
        let pinned = PinnedResource::builder(device).touch_threads(2).build().unwrap();
        let pool = PinnedPool::new(pinned).unwrap();
        set_current_pinned_resource(pool.clone());
        Self(pool)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        reset_current_pinned_resource();
    }
}

fn made(simulator: &Simulator) -> u64 {
    simulator.call_count("cuMemHostAlloc") + simulator.call_count("cuMemHostRegister")
}

#[test]
fn a_later_sleep_uses_the_page_locked_memory_of_the_first() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = Current::new(&device);
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
    let vecs = [20 << 18, 300].map(|words| vec_of(&stream, &pool, words));
    let mut before = made(&simulator);
    for round in 0..5 {
        asleep(&pool);
        let now = made(&simulator);
        assert_eq!((round, now > before), (round, round == 0));
        pool.wake().unwrap();
        assert_eq!(made(&simulator), now);
        vecs.iter().for_each(|vec| assert!(vec.to_vec().unwrap().iter().all(|it| *it == 4)));
        before = made(&simulator);
    }
    let statistics = pinned.0.statistics();
    assert!(statistics.reserved >= 20 << 20, "{statistics:?}");
    device.synchronize().unwrap();
    pinned.0.trim().unwrap();
    assert_eq!((pinned.0.statistics().reserved, simulator.host_blocks()), (0, 0));
    drop((vecs, pool));
    simulator.check().unwrap();
}

/// The driver's own page-locked memory serves then, or the sleep is refused.
#[test]
fn a_registration_that_fails_costs_a_sleep_nothing() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = Current::new(&device);
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
    let vec = vec_of(&stream, &pool, 20 << 18);
    simulator.fail_call("cuMemHostRegister", 1, 2).unwrap();
    asleep(&pool);
    pool.wake().unwrap();
    assert!(
        simulator.call_count("cuMemHostRegister") > 0 && simulator.call_count("cuMemHostAlloc") > 0
    );
    assert!(vec.to_vec().unwrap().iter().all(|word| *word == 4));
    device.synchronize().unwrap();
    pinned.0.trim().unwrap();
    assert_eq!(pinned.0.statistics().reserved, 0, "{:?}", pinned.0.statistics());
    // The pool asks again when it has given back what it can.
    for nth in 1..99 {
        simulator.fail_call("cuMemHostRegister", nth, 2).unwrap();
        simulator.fail_call("cuMemHostAlloc", nth, 2).unwrap();
    }
    // SAFETY: this test has no other pointers.
    let error = unsafe { pool.sleep(Keep::PageLocked) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(!pool.is_asleep());
    assert!(vec.to_vec().unwrap().iter().all(|word| *word == 4));
}

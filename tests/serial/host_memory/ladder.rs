//! What a pool of page-locked memory tries before it refuses: other pools, the user's callback, a wait that was chosen.

use super::{alone, support};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    Device, Error, ErrorKind,
    mr::Failure,
    pinned::{PinnedPool, PinnedPoolOptions, PinnedResource, last_error},
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const PAGE: usize = 4096;

type Pinned = AllocVec<u8, PinnedPool>;
type Spare = Arc<Mutex<Vec<Pinned>>>;

fn options(device: &Device) -> PinnedPoolOptions {
    PinnedPool::builder(PinnedResource::new(device).unwrap()).growth_step(PAGE)
}

fn machine() -> (Device, Simulator) {
    support::simulated(SimConfig::default())
}

fn try_vec(pool: &PinnedPool, pages: usize) -> Result<Pinned, Error> {
    let mut vec = AllocVec::new_in(pool.clone());
    match vec.try_reserve_exact(pages * PAGE) {
        Ok(()) => Ok(vec),
        Err(_) => Err(last_error().unwrap()),
    }
}

/// A pool that counts the calls of its callback, which pops one vector of those to spare.
fn pool_with_spare(options: PinnedPoolOptions) -> (PinnedPool, Spare, Arc<AtomicUsize>) {
    let (spare, calls) = (Spare::default(), Arc::new(AtomicUsize::new(0)));
    let (spilled, counted) = (spare.clone(), calls.clone());
    let pool = options.failure_callback(move |_: &Failure<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let popped = spilled.lock().unwrap().pop();
        popped.is_some()
    });
    (pool.build().unwrap(), spare, calls)
}

fn count(calls: &AtomicUsize) -> usize {
    calls.load(Ordering::Relaxed)
}

/// The driver has no more, twice: one growth is tried before caches are flushed.
fn have_no_more(simulator: &Simulator) {
    for nth in [1, 2] {
        simulator.fail_call("cuMemHostAlloc", nth, 2).unwrap();
    }
}

#[test]
fn other_pools_unpin_what_they_have_free() {
    let _alone = alone();
    let (device, simulator) = machine();
    let [first, second] = [(); 2].map(|()| options(&device).build().unwrap());
    let held = try_vec(&first, 1).unwrap();
    drop(try_vec(&first, 4).unwrap());
    let (pool, _, calls) = pool_with_spare(options(&device));
    have_no_more(&simulator);
    let served = try_vec(&pool, 4).unwrap();
    assert_eq!(count(&calls), 0, "other pools come first");
    // What is in use stays.
    assert_eq!(first.statistics().reserved, PAGE);
    drop((served, held));
    // A maximum takes nothing from others.
    let small = options(&device).maximum_size(2 * PAGE).build().unwrap();
    drop(try_vec(&second, 4).unwrap());
    assert_eq!(try_vec(&small, 4).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(second.statistics().reserved, 4 * PAGE);
    simulator.check().unwrap();
}

/// To unpin waits for all kernels: not for another pool, unless that was chosen.
#[test]
fn other_pools_keep_what_they_have_beside_a_kernel() {
    let _alone = alone();
    let (device, simulator) = machine();
    let stream = device.new_stream().unwrap();
    let first = options(&device).build().unwrap();
    drop(try_vec(&first, 4).unwrap());
    let pool = options(&device).build().unwrap();
    simulator.stall(&stream).unwrap();
    let mut vec = aquifer::DeviceVec::<u8>::zeroed(&stream, 4).unwrap();
    vec.fill(1).unwrap();
    have_no_more(&simulator);
    let (asked, kept) = (try_vec(&pool, 4), first.statistics().reserved);
    simulator.resume(&stream).unwrap();
    drop(vec);
    let error = asked.unwrap_err();
    assert_eq!((error.kind(), kept), (ErrorKind::OutOfMemory, 4 * PAGE));
    let text = error.to_string();
    for part in [
        "allocating 16384 bytes of page-locked memory from a pool",
        "it has 0 bytes, 0 bytes of them in use and 0 bytes pending",
        "other page-locked pools have 16384 bytes, 16384 bytes of them free",
        "its upstream: ",
    ] {
        assert!(text.contains(part), "{text}\nhas no `{part}`");
    }
    simulator.check().unwrap();
}

#[test]
fn a_callback_frees_what_a_request_lacks() {
    let _alone = alone();
    let (device, simulator) = machine();
    let (pool, spare, calls) = pool_with_spare(options(&device).maximum_size(8 * PAGE));
    let held = try_vec(&pool, 8).unwrap();
    assert_eq!(try_vec(&pool, 8).unwrap_err().kind(), ErrorKind::OutOfMemory);
    spare.lock().unwrap().push(held);
    drop(try_vec(&pool, 8).unwrap());
    assert_eq!(count(&calls), 2);
    // One page at a time.
    spare.lock().unwrap().extend((0..8).map(|_| try_vec(&pool, 1).unwrap()));
    drop(try_vec(&pool, 8).unwrap());
    assert!(spare.lock().unwrap().is_empty());
    simulator.check().unwrap();
}

#[test]
fn a_callback_that_gives_nothing_is_asked_once() {
    let _alone = alone();
    let (device, simulator) = machine();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (counted, noted) = (calls.clone(), seen.clone());
    let pool = options(&device).maximum_size(8 * PAGE).failure_callback(move |failure| {
        counted.fetch_add(1, Ordering::Relaxed);
        noted.lock().unwrap().push((failure.layout().bytes(), failure.error().to_string()));
        true
    });
    let pool = pool.build().unwrap();
    let error = try_vec(&pool, 9).unwrap_err();
    assert_eq!(count(&calls), 1);
    assert_eq!(*seen.lock().unwrap(), [(9 * PAGE, error.to_string())]);

    let pool = options(&device).maximum_size(8 * PAGE);
    let pool = pool.failure_callback(|_| panic!("a callback")).build().unwrap();
    let held = try_vec(&pool, 5).unwrap();
    assert_eq!(try_vec(&pool, 5).unwrap_err().kind(), ErrorKind::OutOfMemory);
    drop(held);
    try_vec(&pool, 8).unwrap();
    simulator.check().unwrap();
}

#[test]
fn a_callback_uses_its_pool() {
    let _alone = alone();
    let (device, simulator) = machine();
    let place = Arc::new(OnceLock::<PinnedPool>::new());
    let (spare, calls) = (Spare::default(), Arc::new(AtomicUsize::new(0)));
    let (of_callback, spilled, counted) = (place.clone(), spare.clone(), calls.clone());
    let pool = options(&device).maximum_size(8 * PAGE).failure_callback(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let pool = of_callback.get().unwrap();
        assert!(try_vec(pool, 8).is_err());
        let on_thread = pool.clone();
        std::thread::spawn(move || {
            drop(try_vec(&on_thread, 1).unwrap());
            on_thread.trim().unwrap();
        })
        .join()
        .unwrap();
        spilled.lock().unwrap().pop().is_some()
    });
    let pool = pool.build().unwrap();
    place.set(pool.clone()).unwrap();
    let held = try_vec(&pool, 6).unwrap();
    spare.lock().unwrap().push(held);
    try_vec(&pool, 8).unwrap();
    assert_eq!(count(&calls), 1);
    simulator.check().unwrap();
}

/// The wait that was chosen comes after the callback.
#[test]
fn a_callback_comes_before_a_wait() {
    let _alone = alone();
    let (device, simulator) = machine();
    let stream = device.new_stream().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, resumed, stalled) = (calls.clone(), simulator.clone(), stream.clone());
    let pool = options(&device).maximum_size(8 * PAGE).wait_for_device(true);
    let pool = pool.failure_callback(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        resumed.resume(&stalled).unwrap();
        false
    });
    let pool = pool.build().unwrap();
    // Another library may use what is freed, on a stream that is late.
    let _ = simulator.create_foreign_stream().unwrap();
    simulator.stall(&stream).unwrap();
    let mut vec = aquifer::DeviceVec::<u8>::zeroed(&stream, 4).unwrap();
    vec.fill(1).unwrap();
    drop(try_vec(&pool, 8).unwrap());
    drop(try_vec(&pool, 8).unwrap());
    assert_eq!(count(&calls), 1);
    simulator.check().unwrap();
}

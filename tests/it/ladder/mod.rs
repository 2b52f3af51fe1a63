//! What a request tries before it is refused, step by step: what needs no wait, other pools, the user's callback, the streams
//! that hold what is pending. Each program needs one step.

use crate::log::Log;
use crate::support;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, ErrorKind, PoolResource, Result, Stream,
    mr::{Failure, MissPolicy, MissStep, PoolOptions, VirtualResource},
};
use std::panic::panic_any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;
use tracing::Level;

mod waits;

const MIB: usize = 1 << 20;

type Upstream = Arc<dyn DeviceResource>;
type AnyPool = PoolResource<Upstream>;
type Spare = Arc<Mutex<Vec<DeviceVec<u8>>>>;

fn small_device() -> (Device, Simulator) {
    support::simulated(SimConfig::default().capacity(100 << 20))
}

fn upstreams(device: &Device) -> [Upstream; 2] {
    [VirtualResource::new(device).unwrap().into_shared(), CudaResource::new(device).into_shared()]
}

fn vec(pool: &AnyPool, stream: &Stream, mib: usize) -> Result<DeviceVec<u8>> {
    DeviceVec::zeroed_in(stream, mib * MIB, pool.clone())
}

/// Steps of which none makes a stream wait for another.
fn host_waits() -> MissPolicy {
    use MissStep::*;
    MissPolicy::new([Complete, Grow, GrowToMaximum, Trim])
}

/// A pool that counts the calls of its callback, which pops one vector of those to spare.
fn pool_with_spare(options: PoolOptions<Upstream>) -> (AnyPool, Spare, Arc<AtomicUsize>) {
    let (spare, calls) = (Spare::default(), Arc::new(AtomicUsize::new(0)));
    let (spilled, counted) = (spare.clone(), calls.clone());
    let options = options.failure_callback(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let popped = spilled.lock().unwrap().pop();
        popped.is_some()
    });
    (options.build().unwrap(), spare, calls)
}

fn count(calls: &AtomicUsize) -> usize {
    calls.load(Ordering::Relaxed)
}

/// Runs a request on a thread of its own: one that waits for what never ends fails the test.
fn in_time<R: Send + 'static>(request: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, waits) = mpsc::channel();
    std::thread::spawn(move || done.send(request()));
    waits.recv_timeout(Duration::from_secs(20)).expect("the request waits for a stream in vain")
}

#[test]
fn a_callback_frees_what_a_request_lacks() {
    let (device, simulator) = small_device();
    let stream = device.new_stream().unwrap();
    for upstream in upstreams(&device) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (spare, noted) = (Spare::default(), seen.clone());
        let spilled = spare.clone();
        let options = PoolResource::builder(upstream);
        let pool = options.failure_callback(move |failure: &Failure<'_>| {
            let of_memory = failure.error().kind() == ErrorKind::OutOfMemory;
            let entry = (failure.layout().bytes(), failure.attempt(), of_memory);
            noted.lock().unwrap().push(entry);
            spilled.lock().unwrap().pop().is_some()
        });
        let pool = pool.build().unwrap();
        let held = vec(&pool, &stream, 60).unwrap();
        // Without something to spare it is asked once.
        assert_eq!(vec(&pool, &stream, 50).unwrap_err().kind(), ErrorKind::OutOfMemory);
        spare.lock().unwrap().push(held);
        vec(&pool, &stream, 50).unwrap();
        assert_eq!(*seen.lock().unwrap(), [(50 * MIB, 1, true); 2]);
        drop(pool);
    }
    assert_eq!(simulator.live_bytes(), 0);
    simulator.check().unwrap();
}

/// A maximum is a reason, too, and a callback may raise it.
#[test]
fn a_callback_raises_a_maximum() {
    let (device, _) = small_device();
    let stream = device.new_stream().unwrap();
    for upstream in upstreams(&device) {
        let place = Arc::new(OnceLock::<AnyPool>::new());
        let of_callback = place.clone();
        let options = PoolResource::builder(upstream).maximum_size(8 * MIB);
        let pool = options
            .failure_callback(move |failure| {
                let pool = of_callback.get().unwrap();
                let larger = pool.maximum_size().unwrap() + 4 * MIB;
                failure.attempt() < 10 && pool.set_maximum_size(Some(larger)).is_ok()
            })
            .build()
            .unwrap();
        place.set(pool.clone()).unwrap();
        vec(&pool, &stream, 30).unwrap();
        assert_eq!(pool.maximum_size(), Some(32 * MIB));
    }
}

/// What other pools give without a wait comes before the callback.
#[test]
fn other_pools_come_before_the_callback() {
    let (device, _) = small_device();
    let stream = device.new_stream().unwrap();
    for upstream in upstreams(&device) {
        let other = PoolResource::new(upstream.clone()).unwrap();
        let (pool, _, calls) = pool_with_spare(PoolResource::builder(upstream));
        drop(vec(&other, &stream, 60).unwrap());
        stream.synchronize().unwrap();
        vec(&pool, &stream, 60).unwrap();
        assert_eq!(count(&calls), 0);
    }
}

/// The callback comes before a wait of the host, and without one before a refusal.
#[test]
fn the_callback_comes_before_a_wait() {
    let (device, simulator) = small_device();
    let [busy, other] = [(); 2].map(|()| device.new_stream().unwrap());
    for upstream in upstreams(&device) {
        for (policy, is_served) in [
            (host_waits(), true),
            (MissPolicy::new([MissStep::Complete, MissStep::GrowToMaximum]), false),
        ] {
            let calls = Arc::new(AtomicUsize::new(0));
            let (counted, resumed) = (calls.clone(), simulator.clone());
            let stalled = busy.clone();
            let options = PoolResource::builder(upstream.clone()).miss_policy(policy);
            let pool = options.failure_callback(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                // A wait of the host before this would not end.
                resumed.resume(&stalled).unwrap();
                false
            });
            let pool = pool.build().unwrap();
            let held = vec(&pool, &busy, 60).unwrap();
            busy.synchronize().unwrap();
            simulator.stall(&busy).unwrap();
            drop(held);
            let asking = other.clone();
            let asked = pool.clone();
            let result = in_time(move || vec(&asked, &asking, 60).map(drop));
            assert_eq!((result.is_ok(), count(&calls)), (is_served, 1));
            busy.synchronize().unwrap();
            pool.wait_and_trim(0).unwrap();
        }
    }
    simulator.check().unwrap();
}

/// What the callback frees on another stream, and into its caches, serves without growth.
#[test]
fn what_is_freed_anywhere_serves() {
    let (device, simulator) = small_device();
    let [own, other] = [(); 2].map(|()| device.new_stream().unwrap());
    for upstream in upstreams(&device) {
        for policy in [MissPolicy::default(), host_waits()] {
            let options = PoolResource::builder(upstream.clone()).maximum_size(8 * MIB);
            let (pool, spare, calls) = pool_with_spare(options.miss_policy(policy));
            for stream in [&own, &other] {
                device.synchronize().unwrap();
                // More than once, so that it has a place in a cache.
                for _ in 0..3 {
                    drop(vec(&pool, stream, 8).unwrap());
                }
                let held = vec(&pool, stream, 8).unwrap();
                spare.lock().unwrap().push(held);
                vec(&pool, &own, 8).unwrap();
            }
            assert!(count(&calls) >= 2);
        }
    }
    simulator.check().unwrap();
}

/// After the callback the caches of all threads are empty, also by a policy that gathers nothing.
#[test]
fn what_another_thread_keeps_serves() {
    let (device, simulator) = small_device();
    let stream = device.new_stream().unwrap();
    for upstream in upstreams(&device) {
        let policy = MissPolicy::new([MissStep::Complete, MissStep::GrowToMaximum]);
        let options = PoolResource::builder(upstream).maximum_size(4 * MIB).miss_policy(policy);
        let pool = options.failure_callback(|_| true).build().unwrap();
        let (to_end, end) = mpsc::channel::<()>();
        let (is_cached, cached) = mpsc::channel();
        let (on_worker, of_worker) = (stream.clone(), pool.clone());
        let worker = std::thread::spawn(move || {
            // A size that comes back has a place in the thread's caches.
            (0..4).for_each(|_| drop(vec(&of_worker, &on_worker, 4).unwrap()));
            is_cached.send(()).unwrap();
            let _ = end.recv();
        });
        cached.recv().unwrap();
        vec(&pool, &stream, 3).unwrap();
        drop(to_end);
        worker.join().unwrap();
    }
    simulator.check().unwrap();
}

/// One vector at a time, for a request that needs eight of them in one piece.
#[test]
fn a_callback_is_asked_again_while_it_frees() {
    let (device, simulator) = small_device();
    let stream = device.new_stream().unwrap();
    let upstream = VirtualResource::new(&device).unwrap().into_shared();
    let (pool, spare, calls) =
        pool_with_spare(PoolResource::builder(upstream).maximum_size(64 * MIB));
    let held: Vec<_> = (0..16).map(|_| vec(&pool, &stream, 4).unwrap()).collect();
    // Every second one, so that no two are beside each other.
    let (even, odd): (Vec<_>, Vec<_>) = held.into_iter().enumerate().partition(|it| it.0 % 2 == 0);
    spare.lock().unwrap().extend(even.into_iter().map(|it| it.1));
    vec(&pool, &stream, 32).unwrap();
    assert_eq!(count(&calls), 8);
    drop(odd);
    simulator.check().unwrap();
}

/// One that says it has freed something, and has not, is asked once. One that never has enough is asked 64 times.
#[test]
fn a_callback_is_asked_so_many_times() {
    let (device, _) = small_device();
    let stream = device.new_stream().unwrap();
    for upstream in upstreams(&device) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let pool = PoolResource::builder(upstream.clone()).failure_callback(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            true
        });
        let pool = pool.build().unwrap();
        assert_eq!(vec(&pool, &stream, 101).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(count(&calls), 1);

        let (pool, spare, calls) = pool_with_spare(PoolResource::builder(upstream));
        let small = || DeviceVec::<u8>::zeroed_in(&stream, MIB / 4, pool.clone()).unwrap();
        spare.lock().unwrap().extend((0..100).map(|_| small()));
        assert_eq!(vec(&pool, &stream, 101).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!((count(&calls), spare.lock().unwrap().len()), (64, 36));
    }
}

/// A callback that uses its own pool: what it asks for asks no callback, and what it trims is given back.
#[test]
fn a_callback_uses_its_pool() {
    let (device, simulator) = small_device();
    let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
    for upstream in upstreams(&device) {
        let calls = Arc::new(AtomicUsize::new(0));
        let place = Arc::new(OnceLock::<AnyPool>::new());
        let spare = Spare::default();
        let (counted, of_callback, spilled) = (calls.clone(), place.clone(), spare.clone());
        let streams = [stream.clone(), other.clone()];
        let pool = PoolResource::builder(upstream).failure_callback(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            let pool = of_callback.get().unwrap();
            for stream in &streams {
                assert_eq!(vec(pool, stream, 90).unwrap_err().kind(), ErrorKind::OutOfMemory);
            }
            let small = vec(pool, &streams[0], 1).unwrap();
            let waits = pool.clone();
            let stream = streams[1].clone();
            // Another thread needs the pool meanwhile.
            let on_thread = std::thread::spawn(move || {
                waits.trim(0).unwrap();
                drop(vec(&waits, &stream, 1).unwrap());
                waits.wait_and_trim(0).unwrap();
            });
            on_thread.join().unwrap();
            drop(small);
            spilled.lock().unwrap().pop().is_some()
        });
        let pool = pool.build().unwrap();
        let _ = place.set(pool.clone());
        let held = vec(&pool, &stream, 60).unwrap();
        spare.lock().unwrap().push(held);
        let asking = stream.clone();
        in_time(move || vec(&pool, &asking, 60).map(drop)).unwrap();
        assert_eq!(count(&calls), 1);
    }
    simulator.check().unwrap();
}

/// Two pools, each of whose callbacks allocates from the other: neither runs inside of itself.
#[test]
fn callbacks_of_two_pools_nest_once() {
    let (device, _) = small_device();
    let stream = device.new_stream().unwrap();
    let places = [(); 2].map(|()| Arc::new(OnceLock::<AnyPool>::new()));
    let calls = Arc::new(AtomicUsize::new(0));
    let make = |other: &Arc<OnceLock<AnyPool>>| {
        let (other, counted, stream) = (other.clone(), calls.clone(), stream.clone());
        let upstream = VirtualResource::new(&device).unwrap().into_shared();
        let pool = PoolResource::builder(upstream).failure_callback(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            vec(other.get().unwrap(), &stream, 101).is_ok()
        });
        pool.build().unwrap()
    };
    let pools = [make(&places[1]), make(&places[0])];
    for (place, pool) in places.iter().zip(&pools) {
        let _ = place.set(pool.clone());
    }
    assert!(vec(&pools[0], &stream, 101).is_err());
    assert_eq!(count(&calls), 2);
}

#[test]
fn a_callback_that_panics_loses_nothing() {
    let (device, simulator) = small_device();
    let stream = device.new_stream().unwrap();
    for upstream in upstreams(&device) {
        let options = PoolResource::builder(upstream);
        let pool = options.failure_callback(|_| panic_any("a callback")).build().unwrap();
        let held = vec(&pool, &stream, 60).unwrap();
        let (error, log) = Log::of(|| vec(&pool, &stream, 60).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(log.count(Level::ERROR, "the callback of a failed allocation panicked"), 1);
        drop(held);
        let asked = pool.clone();
        let asking = stream.clone();
        in_time(move || vec(&asked, &asking, 90).map(drop)).unwrap();
        pool.wait_and_trim(0).unwrap();
        assert_eq!(pool.statistics().reserved, 0);
    }
    simulator.check().unwrap();
}

/// A pool below another one asks nobody: the pool above may have its locks.
#[test]
fn the_outermost_pool_asks() {
    let (device, simulator) = small_device();
    let stream = device.new_stream().unwrap();
    let upstream = CudaResource::new(&device).into_shared();
    let (below, _, unasked) = pool_with_spare(PoolResource::builder(upstream));
    let options = PoolResource::builder(below.into_shared()).growth_step(2 * MIB);
    let (above, spare, asked) = pool_with_spare(options);
    let held = vec(&above, &stream, 60).unwrap();
    spare.lock().unwrap().push(held);
    vec(&above, &stream, 60).unwrap();
    assert_eq!((count(&asked), count(&unasked)), (1, 0));
    simulator.check().unwrap();
}

/// Threads that ask at one time, of one pool and for each other's spare memory.
#[test]
fn threads_ask_one_callback() {
    let (device, simulator) = small_device();
    for upstream in upstreams(&device) {
        let (pool, spare, calls) =
            pool_with_spare(PoolResource::builder(upstream).maximum_size(64 * MIB));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (pool, spare, device) = (&pool, &spare, &device);
                scope.spawn(move || {
                    let stream = device.new_stream().unwrap();
                    for round in 0..40 {
                        match vec(pool, &stream, 5 + round % 7) {
                            Ok(held) => spare.lock().unwrap().push(held),
                            // The other thread had the last one in hand.
                            Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory),
                        }
                    }
                });
            }
        });
        assert!(count(&calls) > 0);
        spare.lock().unwrap().clear();
        device.synchronize().unwrap();
        pool.wait_and_trim(0).unwrap();
        assert_eq!(pool.statistics().reserved, 0);
    }
    simulator.check().unwrap();
}

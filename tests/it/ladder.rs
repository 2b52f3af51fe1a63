//! What a request tries before it is refused, rung by rung: what needs no wait, other pools, the user's callback, the streams
//! that hold what is pending. Each program needs one rung.

use crate::log::Log;
use crate::support;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    AsyncResource, CudaResource, Device, DeviceResource, DeviceVec, Error, ErrorKind, Failure,
    MissPolicy, MissStep, PoolOptions, PoolResource, Result, Stream, VirtualResource,
};
use std::panic::panic_any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;
use tracing::Level;

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

/// Free memory of one stream that is pending and late, beside a stream that never comes to an end.
struct Beside {
    pool: AnyPool,
    stuck: Stream,
    /// It is late, but comes to an end.
    late: Stream,
    asking: Stream,
    simulator: Simulator,
}

impl Beside {
    /// The stuck stream has a lower slot or a higher one, and has `pending` MiB that are pending. The other one was given the
    /// rest.
    fn new(upstream: Upstream, policy: MissPolicy, stuck_first: bool, pending: usize) -> Self {
        let device = upstream.device().clone();
        let simulator = device.simulator().unwrap();
        let [stuck, late, asking] = [(); 3].map(|()| device.new_stream().unwrap());
        let pool = PoolResource::builder(upstream).miss_policy(policy).build().unwrap();
        let streams = if stuck_first { [&stuck, &late] } else { [&late, &stuck] };
        streams.iter().for_each(|stream| drop(vec(&pool, stream, 2).unwrap()));
        device.synchronize().unwrap();
        pool.trim(0).unwrap();
        let part = (pending > 0).then(|| vec(&pool, &stuck, pending).unwrap());
        let rest = vec(&pool, &late, 60).unwrap();
        device.synchronize().unwrap();
        [&stuck, &late].iter().for_each(|stream| simulator.stall(stream).unwrap());
        drop((rest, part));
        Self { pool, stuck, late, asking, simulator }
    }

    fn ask(&self, mib: usize) -> Result<()> {
        self.ask_of(&self.pool, mib)
    }

    /// The late stream goes on a moment after the request has begun.
    fn ask_of(&self, pool: &AnyPool, mib: usize) -> Result<()> {
        let (simulator, late) = (self.simulator.clone(), self.late.clone());
        let resume = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            simulator.resume(&late).unwrap();
        });
        let (pool, asking) = (pool.clone(), self.asking.clone());
        let result = in_time(move || vec(&pool, &asking, mib).map(drop));
        resume.join().unwrap();
        result
    }

    fn end(self) {
        self.simulator.resume(&self.stuck).unwrap();
        self.pool.device().synchronize().unwrap();
        self.pool.wait_and_trim(0).unwrap();
        assert_eq!(self.pool.statistics().reserved, 0);
        self.simulator.check().unwrap();
    }
}

impl Drop for Beside {
    /// The end of a pool waits for its streams.
    fn drop(&mut self) {
        let streams = [&self.stuck, &self.late];
        streams.iter().for_each(|stream| self.simulator.resume(stream).unwrap());
    }
}

#[test]
fn a_stuck_stream_that_holds_nothing_is_not_waited_for() {
    for stuck_first in [true, false] {
        for policy in [MissPolicy::default(), host_waits()] {
            let (device, _) = small_device();
            for upstream in upstreams(&device) {
                let beside = Beside::new(upstream, policy.clone(), stuck_first, 0);
                beside.ask(50).unwrap();
                // Nothing of the sort is there, and nobody waits for it.
                assert_eq!(beside.ask(101).unwrap_err().kind(), ErrorKind::OutOfMemory);
                beside.pool.wait_and_trim(0).unwrap();
                beside.end();
            }
        }
    }
}

#[test]
fn a_request_waits_until_the_device_is_past_enough() {
    for stuck_first in [true, false] {
        let (device, _) = small_device();
        let driver_pool = AsyncResource::new(&device).unwrap().into_shared();
        for upstream in upstreams(&device).into_iter().chain([driver_pool]) {
            let beside = Beside::new(upstream, host_waits(), stuck_first, 10);
            beside.ask(60).unwrap();
            beside.end();
        }
    }
}

/// Each of two streams is late, and both are waited for: of the pool itself, and of another one.
#[test]
fn what_is_late_is_waited_for() {
    for is_other in [false, true] {
        let (device, simulator) = small_device();
        for upstream in upstreams(&device) {
            let late = [(); 2].map(|()| device.new_stream().unwrap());
            let asking = device.new_stream().unwrap();
            let builder = || PoolResource::builder(upstream.clone()).miss_policy(host_waits());
            let (first, second) = (builder().build().unwrap(), builder().build().unwrap());
            let held = [30, 50].map(|mib| vec(&first, &late[mib / 50], mib).unwrap());
            device.synchronize().unwrap();
            for stream in &late {
                simulator.stall(stream).unwrap();
            }
            drop(held);
            let (resumed, streams) = (simulator.clone(), late.clone());
            let resume = std::thread::spawn(move || {
                for stream in &streams {
                    std::thread::sleep(Duration::from_millis(30));
                    resumed.resume(stream).unwrap();
                }
            });
            let pool = if is_other { second } else { first };
            in_time(move || vec(&pool, &asking, 90).map(drop)).unwrap();
            resume.join().unwrap();
        }
        simulator.check().unwrap();
    }
}

/// What in pieces and in the order of streams cannot serve makes no stream wait for another, and no host for all.
#[test]
fn blocks_are_replaced_as_soon_as_the_device_is_past_them() {
    let (device, _) = small_device();
    let upstream = AsyncResource::new(&device).unwrap().into_shared();
    for stuck_first in [true, false] {
        let beside = Beside::new(upstream.clone(), MissPolicy::default(), stuck_first, 10);
        let before = beside.pool.statistics().waits;
        beside.ask(80).unwrap();
        assert_eq!(beside.pool.statistics().waits, before);
        beside.end();
    }
}

/// Another pool is waited for until it has given enough.
#[test]
fn another_pool_is_waited_for_until_it_is_enough() {
    for stuck_first in [true, false] {
        let (device, _) = small_device();
        let upstream: Upstream = VirtualResource::new(&device).unwrap().into_shared();
        let beside = Beside::new(upstream.clone(), host_waits(), stuck_first, 10);
        let own = PoolResource::new(upstream).unwrap();
        beside.ask_of(&own, 80).unwrap();
        drop(own);
        beside.end();
    }
}

/// What another thread keeps ready counts, too, where no stream waits for another: caches are flushed before it is said that
/// no wait helps.
#[test]
fn what_another_thread_keeps_is_free_where_nobody_waits() {
    let (device, simulator) = small_device();
    let [theirs, asking] = [(); 2].map(|()| device.new_stream().unwrap());
    for upstream in upstreams(&device) {
        let options = PoolResource::builder(upstream).miss_policy(host_waits());
        let pool = options.maximum_size(8 * MIB).build().unwrap();
        let (kept, ends) = (mpsc::channel::<()>(), mpsc::channel::<()>());
        std::thread::scope(|scope| {
            let (pool, theirs) = (&pool, &theirs);
            let (done, end) = (kept.0, ends.1);
            scope.spawn(move || {
                // Twice: a size is kept from its second miss on.
                for _ in 0..2 {
                    let vecs = [(); 6].map(|()| vec(pool, theirs, 1).unwrap());
                    drop(vecs);
                }
                theirs.synchronize().unwrap();
                done.send(()).unwrap();
                // The thread keeps them until it ends.
                let _ = end.recv();
            });
            kept.1.recv().unwrap();
            assert!(pool.statistics().cached >= 4 * MIB, "{:?}", pool.statistics());
            let served = vec(pool, &asking, 7).map(drop);
            drop(ends.0);
            served.unwrap();
        });
    }
    simulator.check().unwrap();
}

/// Its shares are gone when it has answered.
fn ask_and_drop((pool, stream): (AnyPool, Stream), mib: usize) -> Result<()> {
    vec(&pool, &stream, mib).map(drop)
}

/// Where no wait can help, none is made: for what is more than a pool may have free, and for a pool that keeps all it has.
#[test]
fn what_cannot_help_is_not_waited_for() {
    let (device, simulator) = small_device();
    let [stuck, asking] = [(); 2].map(|()| device.new_stream().unwrap());
    for upstream in upstreams(&device) {
        let builder = || PoolResource::builder(upstream.clone()).miss_policy(host_waits());
        let full = builder().maximum_size(64 * MIB).build().unwrap();
        let held = vec(&full, &asking, 40).unwrap();
        let pending = vec(&full, &stuck, 10).unwrap();
        device.synchronize().unwrap();
        simulator.stall(&stuck).unwrap();
        drop(pending);
        let (pool, stream) = (full.clone(), asking.clone());
        let refused = in_time(move || ask_and_drop((pool, stream), 30)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        simulator.resume(&stuck).unwrap();
        drop(held);
        drop(full);
        device.synchronize().unwrap();
        let keeps = builder().initial_size(60 * MIB).build().unwrap();
        let pending = vec(&keeps, &stuck, 50).unwrap();
        device.synchronize().unwrap();
        simulator.stall(&stuck).unwrap();
        drop(pending);
        let (own, stream) = (builder().build().unwrap(), asking.clone());
        let refused = in_time(move || ask_and_drop((own, stream), 80)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        simulator.resume(&stuck).unwrap();
        device.synchronize().unwrap();
    }
    simulator.check().unwrap();
}

/// A refusal that names all of it.
#[test]
fn a_refusal_tells_what_there_is() {
    let (device, _) = small_device();
    let [stream, busy] = [(); 2].map(|()| device.new_stream().unwrap());
    let upstream: Upstream = VirtualResource::new(&device).unwrap().into_shared();
    let other = PoolResource::new(upstream.clone()).unwrap();
    let of_other = vec(&other, &stream, 10).unwrap();
    let policy = MissPolicy::new([MissStep::Complete, MissStep::GrowToMaximum]);
    let options = PoolResource::builder(upstream).miss_policy(policy).maximum_size(64 * MIB);
    let pool = options.build().unwrap();
    let (held, pending) = (vec(&pool, &stream, 20).unwrap(), vec(&pool, &busy, 30).unwrap());
    let simulator = device.simulator().unwrap();
    busy.synchronize().unwrap();
    simulator.stall(&busy).unwrap();
    drop(pending);
    let (error, log): (Error, _) = Log::of(|| vec(&pool, &stream, 30).unwrap_err());
    let text = error.to_string();
    let bytes = |mib: usize| format!("{} bytes", mib * MIB);
    for part in [
        format!("allocating {} from a pool", bytes(30)),
        format!("whose maximum is {}", bytes(64)),
        format!(
            "it has {}, {} of them in use and {} pending, and its largest free block has {}",
            bytes(50),
            bytes(20),
            bytes(30),
            bytes(30)
        ),
        format!("other pools of the device have {}, 0 bytes of them free", bytes(10)),
        format!("the device has {} free of its {}", bytes(40), bytes(100)),
        "MissStep::".into(),
    ] {
        assert!(text.contains(&part), "{text}\nhas no `{part}`");
    }
    assert_eq!(log.count(Level::WARN, "out of memory"), 1, "{:?}", log.lines());
    simulator.resume(&busy).unwrap();
    drop((held, of_other));
}

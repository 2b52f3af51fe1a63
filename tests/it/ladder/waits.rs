//! The waits of the host, and what is refused without one.

use super::{AnyPool, MIB, Upstream, host_waits, in_time, small_device, upstreams, vec};
use crate::log::Log;
use aquifer::sim::Simulator;
use aquifer::{
    CudaResource, DeviceResource, Error, ErrorKind, PoolResource, Result, Stream,
    mr::{AsyncResource, MissPolicy, MissStep, VirtualResource},
};
use std::sync::mpsc;
use std::time::Duration;
use tracing::Level;

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

/// A pool gives back what is more than it keeps. Then it is not waited for any more, whatever of the rest is pending.
#[test]
fn a_pool_that_has_given_all_it_may_is_not_waited_for() {
    let (device, simulator) = small_device();
    let [stuck, late, asking] = [(); 3].map(|()| device.new_stream().unwrap());
    let upstream: Upstream = VirtualResource::new(&device).unwrap().into_shared();
    let builder = || PoolResource::builder(upstream.clone()).miss_policy(host_waits());
    let keeps = builder().initial_size(20 * MIB).build().unwrap();
    let kept = vec(&keeps, &stuck, 10).unwrap();
    let more = vec(&keeps, &late, 40).unwrap();
    device.synchronize().unwrap();
    [&stuck, &late].iter().for_each(|stream| simulator.stall(stream).unwrap());
    drop((kept, more));
    let (resumed, stream) = (simulator.clone(), late.clone());
    let resume = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        resumed.resume(&stream).unwrap();
    });
    let (own, stream) = (builder().build().unwrap(), asking.clone());
    let refused = in_time(move || ask_and_drop((own, stream), 95)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    resume.join().unwrap();
    simulator.resume(&stuck).unwrap();
    device.synchronize().unwrap();
    simulator.check().unwrap();
}

/// Where the policy has no stream wait for another, none does, and the host waits.
#[test]
fn a_policy_without_waits_makes_none_where_memory_moves() {
    let (device, _) = small_device();
    let upstream: Upstream = VirtualResource::new(&device).unwrap().into_shared();
    let beside = Beside::new(upstream, host_waits(), true, 0);
    let before = beside.pool.statistics().waits;
    beside.ask(60).unwrap();
    assert_eq!(beside.pool.statistics().waits, before);
    beside.end();
}

/// What another thread frees while a request waits serves it: on the request's stream, in that thread's cache, and on a stream
/// that is behind.
#[test]
fn what_comes_while_the_host_waits_serves() {
    for is_behind in [false, true] {
        let (device, simulator) = small_device();
        let [late, behind, asking] = [(); 3].map(|()| device.new_stream().unwrap());
        let upstream: Upstream = CudaResource::new(&device).into_shared();
        let options = PoolResource::builder(upstream).miss_policy(host_waits());
        let options = options.growth_step(32 * MIB).maximum_size(64 * MIB);
        let pool = options.magazine_bytes(64 * MIB).build().unwrap();
        // One block of upstream in three pieces, of which two are free and pending.
        let pieces = [16, 1, 15].map(|mib| vec(&pool, &late, mib).unwrap());
        let theirs = if is_behind { behind.clone() } else { asking.clone() };
        let (made, is_made) = mpsc::channel();
        let (asked, is_asked) = mpsc::channel::<()>();
        let (ends, is_over) = mpsc::channel::<()>();
        let other = {
            let (pool, simulator, late) = (pool.clone(), simulator.clone(), late.clone());
            std::thread::spawn(move || {
                // A size is kept from its second miss on.
                (0..3).for_each(|_| drop(vec(&pool, &theirs, 32).unwrap()));
                let whole = vec(&pool, &theirs, 32).unwrap();
                made.send(()).unwrap();
                is_asked.recv().unwrap();
                std::thread::sleep(Duration::from_millis(30));
                drop(whole);
                std::thread::sleep(Duration::from_millis(30));
                simulator.resume(&late).unwrap();
                // The thread keeps what it has until it ends.
                let _ = is_over.recv();
            })
        };
        is_made.recv().unwrap();
        device.synchronize().unwrap();
        simulator.stall(&late).unwrap();
        let [first, held, last] = pieces;
        drop((first, last));
        if is_behind {
            simulator.stall(&behind).unwrap();
        }
        asked.send(()).unwrap();
        let (shared, stream) = (pool.clone(), asking.clone());
        let served = in_time(move || ask_and_drop((shared, stream), 30));
        drop(ends);
        other.join().unwrap();
        // First, since the end of a pool waits for its streams.
        simulator.resume(&behind).unwrap();
        served.unwrap();
        device.synchronize().unwrap();
        drop(held);
        simulator.check().unwrap();
    }
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

//! Captures beside other threads: a capture has its streams to itself, no copy of host memory becomes
//! a node of its graph, and no order is lost when it ends.

use crate::kernels::idle_entry;
use crate::{kernels, support};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{Report, SimConfig, Violation};
use aquifer::{
    CudaResource, Device, DeviceVec, Error, ErrorKind, HostArgs, Kernel, LaunchConfig,
    PoolResource, Result, Stream, pinned::PinnedResource,
};
use kernels::{SPIN, add_one, kind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const WORDS: usize = 64;
const ROUNDS: u32 = 300;

type Pool = PoolResource<CudaResource>;
type Pinned = AllocVec<u32, PinnedResource>;

fn pool_on(device: &Device) -> Pool {
    PoolResource::new(CudaResource::new(device)).unwrap()
}

fn streams<const N: usize>(device: &Device) -> [Stream; N] {
    [(); N].map(|()| device.new_stream().unwrap())
}

fn try_words(stream: &Stream, pool: &Pool, value: u32) -> Result<DeviceVec<u32>> {
    let mut vec = DeviceVec::zeroed_in(stream, WORDS, Arc::new(pool.clone()))?;
    vec.fill(value)?;
    Ok(vec)
}

fn words(stream: &Stream, pool: &Pool, value: u32) -> DeviceVec<u32> {
    try_words(stream, pool, value).unwrap()
}

fn pinned(device: &Device, value: u32) -> Pinned {
    let mut vec = AllocVec::new_in(PinnedResource::new(device).unwrap());
    vec.resize(WORDS, value);
    vec
}

fn nothing(_: &Stream) -> Result<()> {
    Ok(())
}

/// Runs `others` again and again on a second thread while `body` runs on this one.
fn beside(others: impl Fn() + Sync, body: impl FnOnce()) {
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|threads| {
        let running = threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                others();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        while rounds.load(Ordering::Relaxed) == 0 && !running.is_finished() {
            std::thread::yield_now();
        }
        let body = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        stop.store(true, Ordering::Relaxed);
        body.unwrap_or_else(|thrown| std::panic::resume_unwind(thrown));
    });
}

/// As often as a capture on another thread is in the way.
fn until_it_may<T>(mut attempt: impl FnMut() -> Result<T>) -> T {
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::Capture => std::thread::yield_now(),
            done => return done.unwrap(),
        }
    }
}

#[test]
fn a_copy_of_host_memory_joins_no_capture_by_way_of_the_vectors_home() {
    let device = support::device();
    let [home, other] = streams(&device);
    let pool = pool_on(&device);
    let mut vec = words(&home, &pool, 7);
    let (mut down, up) = (pinned(&device, 1), pinned(&device, 2));
    let (graph, transfers) = home
        .capture(&pool, |_| {
            assert_eq!(kind(other.scope(|s| s.download(&vec, &mut down))), ErrorKind::Capture);
            assert_eq!(kind(other.scope(|s| s.upload(&up, &mut vec))), ErrorKind::Capture);
            let (host, back) = *other.download(vec, down).unwrap_err().buffers.unwrap();
            let (up, back) = *other.upload(up, back).unwrap_err().buffers.unwrap();
            assert!(!other.is_capturing()?, "it was not taken in");
            Ok((host, up, back))
        })
        .unwrap();
    let (down, up, vec) = transfers;
    // SAFETY: nothing was recorded.
    unsafe { graph.launch(&home).unwrap() };
    home.synchronize().unwrap();
    assert_eq!((&down[..], &up[..]), (&[1; WORDS][..], &[2; WORDS][..]), "no node has them");
    assert_eq!(vec.to_vec().unwrap(), [7; WORDS]);
}

#[test]
fn copies_to_the_host_beside_captures_are_whole() {
    let device = support::device();
    let [home] = streams(&device);
    let pool = pool_on(&device);
    let mut vec = words(&home, &pool, 0);
    beside(
        || {
            // A copy may be in the way, which waits for the device.
            if let Err(error) = home.capture(&pool, nothing) {
                assert_eq!(error.kind(), ErrorKind::Capture, "{error}");
            }
        },
        || {
            for round in 0..ROUNDS {
                let mut host = pinned(&device, u32::MAX);
                until_it_may(|| vec.fill(round));
                until_it_may(|| vec.copy_to_slice(&mut host));
                assert_eq!(host[..], [round; WORDS], "{round}");
                let transfer = until_it_may(|| {
                    let vec = try_words(&home, &pool, round)?;
                    home.download(vec, pinned(&device, u32::MAX)).map_err(Error::from)
                });
                let (host, _) = transfer.wait().unwrap();
                assert_eq!(host[..], [round; WORDS], "{round}");
            }
        },
    );
}

/// The capture that a wait finds in its way may end before the wait has looked for what it was after.
#[test]
fn a_wait_for_a_capture_that_ends_is_a_wait() {
    let device = support::device();
    let [home] = streams(&device);
    let pool = pool_on(&device);
    let mut vec = words(&home, &pool, 0);
    let mut host = pinned(&device, u32::MAX);
    beside(
        || {
            let _ = home.capture(&pool, nothing);
        },
        || {
            for round in 0..10 * ROUNDS {
                until_it_may(|| vec.fill(round));
                until_it_may(|| vec.copy_to_slice(&mut host));
                assert_eq!(host[..], [round; WORDS], "{round}");
            }
        },
    );
}

#[test]
fn copies_between_homes_beside_captures_come_after_what_they_copy() {
    let device = support::device();
    let [first, second, third] = streams(&device);
    let pool = pool_on(&device);
    let (mut a, mut b) = (words(&first, &pool, 0), words(&second, &pool, 0));
    beside(
        || {
            let _ = first.capture(&pool, |first| {
                second.wait_for(first)?;
                first.wait_for(&second)
            });
        },
        || {
            for round in 0..ROUNDS {
                until_it_may(|| b.fill(round));
                until_it_may(|| a.copy_from(&b));
                let seen = until_it_may(|| a.to_vec());
                assert_eq!(seen, [round; WORDS], "{round}");
                // The same by way of a vector that moves.
                until_it_may(|| b.fill(round + 7));
                until_it_may(|| b.set_stream(&first));
                until_it_may(|| add_one(&third, &mut b));
                let seen = until_it_may(|| b.to_vec());
                assert_eq!(seen, [round + 8; WORDS], "{round}");
                until_it_may(|| b.set_stream(&second));
            }
        },
    );
}

#[test]
fn home_waits_for_what_a_stream_was_given_before_its_capture() {
    for seed in 0..20 {
        let device = support::seeded(seed);
        let [home, elsewhere, joined] = streams(&device);
        let pool = pool_on(&device);
        let mut vec = words(&home, &pool, 1);
        let mut more = words(&home, &pool, 1);
        add_one(&elsewhere, &mut vec).unwrap();
        add_one(&joined, &mut more).unwrap();
        elsewhere
            .capture(&pool, |elsewhere| {
                joined.wait_for(elsewhere)?;
                std::thread::scope(|threads| {
                    // On another thread, which may not name the two.
                    let others = threads.spawn(|| {
                        vec.fill(5).unwrap();
                        assert_eq!(vec.to_vec().unwrap(), [5; WORDS]);
                        more.copy_from(&vec).unwrap();
                        assert_eq!(more.to_vec().unwrap(), [5; WORDS]);
                        drop((vec, more));
                        assert_eq!(pool.statistics().live, 0, "freed at once");
                    });
                    others.join().unwrap();
                });
                elsewhere.wait_for(&joined)
            })
            .unwrap();
    }
}

#[test]
fn the_streams_of_a_capture_are_its_threads_alone() {
    let device = support::device();
    let [home, joined, other] = streams(&device);
    let pool = pool_on(&device);
    let mut vec = words(&home, &pool, 1);
    let dropped = words(&joined, &pool, 1);
    let outside = other.record().unwrap();
    let (graph, ()) = home
        .capture(&pool, |home| {
            joined.wait_for(home)?;
            let inside = home.record()?;
            std::thread::scope(|threads| {
                let others = threads.spawn(|| {
                    for refused in [
                        home.record().map(drop),
                        home.wait(&outside),
                        home.synchronize(),
                        joined.record().map(drop),
                        joined.wait_for(&other),
                        other.wait_for(&joined),
                        other.wait(&inside),
                        inside.is_complete().map(drop),
                        inside.synchronize(),
                        vec.fill(3),
                        vec.to_vec().map(drop),
                        vec.set_stream(&other),
                        add_one(&joined, &mut vec),
                        add_one(&other, &mut vec),
                        vec.reserve(1000),
                        home.capture(&pool, nothing).map(drop),
                        joined.capture(&pool, nothing).map(drop),
                        device.synchronize(),
                    ] {
                        assert_eq!(kind(refused), ErrorKind::Capture);
                    }
                    assert!(home.is_capturing().unwrap() && joined.is_capturing().unwrap());
                    assert!(!other.is_capturing().unwrap());
                    drop((dropped, inside));
                    // What is nobody's capture goes on.
                    other.capture(&pool, nothing).unwrap();
                    assert_eq!(words(&other, &pool, 4).to_vec().unwrap(), [4; WORDS]);
                });
                others.join().unwrap();
            });
            home.wait_for(&joined)
        })
        .unwrap();
    // SAFETY: nothing was recorded.
    unsafe { graph.launch(&joined).unwrap() };
    drop(graph);
    vec.fill(3).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [3; WORDS]);
    add_one(&joined, &mut vec).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [4; WORDS]);
    drop(vec);
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn a_capture_begins_when_the_calls_of_others_have_returned() {
    let device = support::device();
    let [home] = streams(&device);
    let pool = pool_on(&device);
    // Two threads that capture one stream take turns by themselves or are told; four that use it are
    // never seen by the simulated device in a capture.
    std::thread::scope(|threads| {
        for worker in 0..6 {
            let (home, pool, device) = (&home, &pool, &device);
            threads.spawn(move || {
                for round in 0..50 {
                    if worker < 2 {
                        match home.capture(pool, |home| words_in(home, pool)) {
                            Ok((graph, ())) => drop(graph),
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Capture, "{error}"),
                        }
                        continue;
                    }
                    let [own] = streams(device);
                    let mut vec = words(&own, pool, round);
                    until_it_may(|| add_one(home, &mut vec));
                    assert_eq!(until_it_may(|| vec.to_vec()), [round + 1; WORDS]);
                }
            });
        }
    });
}

fn words_in(stream: &Stream, pool: &Pool) -> Result<()> {
    let mut vec = DeviceVec::<u32>::zeroed_in(stream, WORDS, Arc::new(pool.clone()))?;
    add_one(stream, &mut vec)
}

/// A host form runs in a call that waits, and may hang on the very thread that captures.
#[test]
fn a_capture_waits_for_no_call_that_waits_for_the_device() {
    static REACHED: AtomicUsize = AtomicUsize::new(0);
    static FORM: Kernel =
        Kernel::new("waits", idle_entry!("waits"), |_: &LaunchConfig, _: HostArgs<'_>| {
            REACHED.store(1, Ordering::SeqCst);
            while REACHED.load(Ordering::SeqCst) != 2 {
                std::thread::yield_now();
            }
            Ok(())
        });
    let (device, _) = support::simulated(SimConfig::default());
    let [stream] = streams(&device);
    let pool = pool_on(&device);
    // SAFETY: the form touches nothing.
    unsafe { stream.launch(&FORM).launch(LaunchConfig::for_elements(1)).unwrap() };
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| stream.synchronize());
        while REACHED.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let refused = stream.capture(&pool, nothing);
        REACHED.store(2, Ordering::SeqCst);
        assert_eq!(kind(refused), ErrorKind::Capture);
        waits.join().unwrap().unwrap();
    });
    stream.capture(&pool, nothing).unwrap();
}

#[test]
fn order_that_cannot_be_restored_costs_the_streams_of_its_capture_alone() {
    for (calls, usable) in [
        // The host waits where the streams cannot.
        (&["cuStreamWaitEvent"][..], true),
        (&["cuStreamWaitEvent", "cuStreamSynchronize"][..], false),
    ] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let [home, joined, other] = streams(&device);
        let pool = pool_on(&device);
        let vec = words(&joined, &pool, 1);
        let captured = home.capture(&pool, |home| {
            joined.wait_for(home)?;
            home.wait_for(&joined)?;
            calls.iter().try_for_each(|call| simulator.fail_call(call, 1, 999))
        });
        assert_eq!(captured.is_ok(), usable);
        drop(captured);
        // Neither the next capture nor the next vector knows of it.
        let (graph, ()) = other.capture(&pool, |other| words_in(other, &pool)).unwrap();
        drop(graph);
        assert_eq!(words(&other, &pool, 4).to_vec().unwrap(), [4; WORDS]);
        let used = vec.to_vec();
        match usable {
            true => assert_eq!(used.unwrap(), [1; WORDS]),
            false => assert_eq!(kind(used), ErrorKind::Capture),
        }
    }
}

/// The driver loses a wait that it is given while another thread is in its launch of a graph.
#[test]
fn a_wait_holds_beside_launches_of_a_graph_on_the_stream() {
    let device = support::device();
    let [home, other] = streams(&device);
    let pool = pool_on(&device);
    let mut counted = words(&home, &pool, 0);
    let (graph, ()) = home.capture(&pool, |home| add_one(home, &mut counted)).unwrap();
    let launches = || {
        for _ in 0..16 {
            // SAFETY: `counted` is used by the launches alone, and outlives them.
            unsafe { graph.launch(&home).unwrap() };
        }
        home.synchronize().unwrap();
    };
    beside(launches, || {
        for round in 1..=ROUNDS {
            // SAFETY: the kernel touches no memory.
            let spun = unsafe {
                other
                    .launch(&SPIN)
                    .scalar(30_000_u64)
                    .unwrap()
                    .launch(LaunchConfig::for_elements(1))
            };
            spun.unwrap();
            let (from, mut to) = (words(&other, &pool, round), words(&other, &pool, 0));
            kernels::copy(&home, &from, &mut to).unwrap();
            assert_eq!(to.to_vec().unwrap(), [round; WORDS], "in round {round}");
        }
    });
    assert_eq!(device.simulator().map_or(0, |simulator| simulator.reports().len()), 0);
}

#[test]
fn two_threads_on_one_capture_are_a_race_on_the_simulated_device() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [stream, other] = streams(&device);
    let pool = pool_on(&device);
    let mut vec = words(&stream, &pool, 1);
    // One that nobody declared, so that nobody keeps the other thread out.
    simulator.start_capture(&stream).unwrap();
    vec.fill(2).unwrap();
    let event = stream.record().unwrap();
    let lines = std::thread::scope(|threads| {
        let race = threads.spawn(|| {
            let first = line!() + 1;
            vec.fill(3).unwrap();
            let _ = other.wait(&event);
            [first, first + 1]
        });
        race.join().unwrap()
    });
    let reports = simulator.take_reports();
    for line in lines {
        let is_there = |report: &Report| report.operation_location().unwrap().line() == line;
        assert!(reports.iter().any(is_there), "{line} in {reports:?}");
    }
    let races = reports.iter().filter(|report| report.kind() == Violation::CaptureRace).count();
    assert!(races >= 2, "{reports:?}");
    assert_eq!(races, reports.len());
    simulator.stop_capture(&stream);
}

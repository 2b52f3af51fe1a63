//! Calls of threads that meet a capture on another thread: a short one is waited for, and threads that try again and
//! again get their turns.

use crate::kernels::idle_entry;
use crate::support;
use aquifer::{
    CudaResource, Device, DeviceVec, ErrorKind, Kernel, LaunchConfig, PoolResource, Result, Stream,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// What each of two threads is to have made in a second on a GPU.
const MADE: usize = 100;

/// On the simulated device they may share a core with other tests, and have longer.
const TIME_SIMULATED: Duration = Duration::from_secs(20);

type Pool = PoolResource<CudaResource>;

/// What a thread tries again and again.
type Body = fn(&Fixture, &mut [DeviceVec<u32>; 2]) -> Result<()>;

#[derive(Default, Debug)]
struct Tries {
    made: usize,
    longest: Duration,
    refusals: BTreeMap<String, usize>,
}

/// Two streams, which two threads meet on.
struct Fixture {
    pool: Pool,
    home: Stream,
    other: Stream,
    stop: AtomicBool,
}

impl Fixture {
    fn new(device: &Device) -> Self {
        let pool = PoolResource::new(CudaResource::new(device)).unwrap();
        let [home, other] = [(); 2].map(|()| device.new_stream().unwrap());
        Self { pool, home, other, stop: AtomicBool::new(false) }
    }

    fn vector(&self, stream: &Stream) -> Result<DeviceVec<u32>> {
        DeviceVec::zeroed_in(stream, 1000, Arc::new(self.pool.clone()))
    }

    fn retry(&self, body: Body, mut vectors: [DeviceVec<u32>; 2], made: &AtomicUsize) -> Tries {
        let mut tries = Tries::default();
        while !self.stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            match body(self, &mut vectors) {
                Ok(()) => {
                    tries.made += 1;
                    made.store(tries.made, Ordering::Relaxed);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Capture, "{error}");
                    *tries.refusals.entry(error.to_string()).or_default() += 1;
                }
            }
            tries.longest = tries.longest.max(begun.elapsed());
        }
        tries
    }
}

/// Runs both for a time, each on a thread of its own.
fn both_get_their_turns(one: Body, other: Body) {
    let device = support::device();
    let fixture = Fixture::new(&device);
    let made = [const { AtomicUsize::new(0) }; 2];
    let all_made = || made.iter().all(|made| made.load(Ordering::Relaxed) >= MADE);
    let tries = std::thread::scope(|threads| {
        let fixture = &fixture;
        let start = |body, made| {
            let vectors = [&fixture.home, &fixture.other];
            let vectors = vectors.map(|stream| fixture.vector(stream).unwrap());
            move || fixture.retry(body, vectors, made)
        };
        let [of_one, of_other] = &made;
        let running = [start(one, of_one), start(other, of_other)].map(|body| threads.spawn(body));
        std::thread::sleep(Duration::from_secs(1));
        let end = Instant::now() + TIME_SIMULATED;
        while device.simulator().is_some() && !all_made() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        fixture.stop.store(true, Ordering::Relaxed);
        running.map(|thread| thread.join().unwrap())
    });
    assert!(all_made(), "{tries:#?}");
}

fn captures_both(fixture: &Fixture, _: &mut [DeviceVec<u32>; 2]) -> Result<()> {
    let Fixture { pool, home, other, .. } = fixture;
    let captured = home.capture(pool, |home| {
        other.wait_for(home)?;
        home.wait_for(other)
    });
    captured.map(drop)
}

fn captures_with_a_wait_for_the_other(
    fixture: &Fixture,
    _: &mut [DeviceVec<u32>; 2],
) -> Result<()> {
    let Fixture { pool, home, other, .. } = fixture;
    home.capture(pool, |home| home.wait_for(other)).map(drop)
}

fn captures_the_other_first(fixture: &Fixture, _: &mut [DeviceVec<u32>; 2]) -> Result<()> {
    let Fixture { pool, home, other, .. } = fixture;
    let captured = other.capture(pool, |other| {
        home.wait_for(other)?;
        other.wait_for(home)
    });
    captured.map(drop)
}

fn copies_between_homes(_: &Fixture, [here, there]: &mut [DeviceVec<u32>; 2]) -> Result<()> {
    there.copy_from(&*here)?;
    here.copy_from(&*there)
}

fn copies_to_the_host(_: &Fixture, [_, there]: &mut [DeviceVec<u32>; 2]) -> Result<()> {
    there.to_vec().map(drop)
}

fn waits_for_the_stream(fixture: &Fixture, _: &mut [DeviceVec<u32>; 2]) -> Result<()> {
    fixture.other.record()?;
    fixture.other.synchronize()
}

fn waits_for_the_device(fixture: &Fixture, _: &mut [DeviceVec<u32>; 2]) -> Result<()> {
    fixture.other.device().synchronize()
}

fn allocates(fixture: &Fixture, _: &mut [DeviceVec<u32>; 2]) -> Result<()> {
    fixture.vector(&fixture.other).map(drop)
}

fn moves_home(fixture: &Fixture, [here, there]: &mut [DeviceVec<u32>; 2]) -> Result<()> {
    here.set_stream(&fixture.other)?;
    there.set_stream(&fixture.home)?;
    std::mem::swap(here, there);
    Ok(())
}

/// Calls that meet a short capture of both streams.
const CALLS: [(&str, Body); 9] = [
    ("record", |fixture, _| fixture.other.record().map(drop)),
    ("wait", |fixture, _| fixture.other.wait_for(&fixture.home)),
    ("synchronize", |fixture, _| fixture.other.synchronize()),
    ("fill", |_, [here, _]| here.fill(7)),
    ("read", copies_to_the_host),
    ("copy", copies_between_homes),
    ("guard", |fixture, [here, _]| here.on_mut(&fixture.other).map(drop)),
    ("allocate", allocates),
    ("move", moves_home),
];

/// Rounds in which a call meets a capture. In a machine that is busy with others a short one may take long.
const MEETINGS: usize = 20;

#[test]
fn calls_wait_for_a_short_capture_on_another_thread() {
    let device = support::device();
    for (name, call) in CALLS {
        let fixture = Fixture::new(&device);
        let Fixture { pool, home, other, .. } = &fixture;
        let mut vectors = [home, other].map(|stream| fixture.vector(stream).unwrap());
        let (begun, over) = (Barrier::new(2), AtomicBool::new(false));
        let made = std::thread::scope(|threads| {
            threads.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let captured = home.capture(pool, |home| {
                        other.wait_for(home)?;
                        begun.wait();
                        std::thread::sleep(Duration::from_micros(300));
                        home.wait_for(other)
                    });
                    captured.unwrap();
                    begun.wait();
                }
            });
            let mut made = 0;
            for meeting in 1.. {
                begun.wait();
                let called = call(&fixture, &mut vectors);
                made += usize::from(called.is_ok());
                // Where other tests keep the cores, a short capture is at times a long one.
                let is_last = made > MEETINGS / 10 || meeting == 20 * MEETINGS;
                over.store(is_last, Ordering::Relaxed);
                begun.wait();
                called.unwrap_or_else(|error| assert_eq!(error.kind(), ErrorKind::Capture));
                if is_last {
                    break;
                }
            }
            made
        });
        assert!(made > MEETINGS / 10, "{name}: {made} calls were made");
    }
}

#[test]
fn calls_that_meet_a_long_capture_are_refused_after_a_moment() {
    let device = support::device();
    for (name, call) in CALLS {
        let fixture = Fixture::new(&device);
        let Fixture { pool, home, other, .. } = &fixture;
        let mut vectors = [home, other].map(|stream| fixture.vector(stream).unwrap());
        // No block is ready for the allocation.
        pool.wait_and_trim(0).unwrap();
        let (begun, called) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let captured = home.capture(pool, |home| {
                    other.wait_for(home)?;
                    begun.wait();
                    called.wait();
                    home.wait_for(other)
                });
                captured.unwrap();
            });
            begun.wait();
            let since = Instant::now();
            let refused = call(&fixture, &mut vectors).map_err(|error| error.to_string());
            let waited = since.elapsed();
            called.wait();
            let said = refused.unwrap_err();
            assert!(said.contains("in a capture on another thread"), "{name}: {said}");
            println!("{name} was refused after {waited:?}");
            assert!(waited < Duration::from_secs(2), "{name}: {waited:?}");
        });
    }
}

#[test]
fn a_capture_waits_for_a_short_wait_of_another_thread_and_not_for_a_long_one() {
    static SLOW: AtomicBool = AtomicBool::new(false);
    let device = support::device();
    if device.simulator().is_none() {
        let name = "a_capture_waits_for_a_short_wait_of_another_thread_and_not_for_a_long_one";
        return support::skipped(name, "a host form decides how long the wait is");
    }
    let form = Kernel::new("wait", idle_entry!("wait"), |_, _| {
        std::thread::sleep(Duration::from_millis(3));
        while SLOW.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        Ok(())
    });
    let Fixture { pool, home, .. } = Fixture::new(&device);
    // A capture that is tried while another thread waits for the stream.
    let meet = |slow: bool| {
        SLOW.store(slow, Ordering::Relaxed);
        // SAFETY: the kernel touches nothing.
        unsafe { home.launch(&form).launch(LaunchConfig::for_elements(1)) }.unwrap();
        let begun = Barrier::new(2);
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| {
                begun.wait();
                home.synchronize()
            });
            begun.wait();
            std::thread::sleep(Duration::from_millis(1));
            let captured = home.capture(&pool, |_| Ok(()));
            SLOW.store(false, Ordering::Relaxed);
            // Where the capture came first, nothing is shown.
            let waited = waiting.join().unwrap();
            waited.is_ok().then_some(captured.map(drop))
        })
    };
    let made = (0..MEETINGS).filter(|_| matches!(meet(false), Some(Ok(())))).count();
    assert!(made > MEETINGS / 10, "{made} of {MEETINGS} captures were made");
    let refused = (0..MEETINGS).find_map(|_| meet(true)?.err()).unwrap();
    assert!(refused.to_string().contains("a thread waits for it"), "{refused}");
}

#[test]
fn a_thread_that_captures_and_one_that_copies_between_the_streams() {
    both_get_their_turns(captures_both, copies_between_homes);
}

#[test]
fn a_thread_that_captures_with_a_wait_from_outside_and_one_that_copies() {
    both_get_their_turns(captures_with_a_wait_for_the_other, copies_between_homes);
}

#[test]
fn a_thread_that_captures_and_one_that_copies_to_the_host() {
    both_get_their_turns(captures_both, copies_to_the_host);
}

#[test]
fn a_thread_that_captures_and_one_that_waits_for_the_stream() {
    both_get_their_turns(captures_both, waits_for_the_stream);
}

#[test]
fn a_thread_that_captures_and_one_that_waits_for_the_device() {
    both_get_their_turns(captures_both, waits_for_the_device);
}

#[test]
fn a_thread_that_captures_and_one_that_allocates() {
    both_get_their_turns(captures_both, allocates);
}

#[test]
fn a_thread_that_captures_and_one_that_moves_vectors() {
    both_get_their_turns(captures_both, moves_home);
}

#[test]
fn two_threads_that_capture_the_streams_in_different_orders() {
    both_get_their_turns(captures_both, captures_the_other_first);
}

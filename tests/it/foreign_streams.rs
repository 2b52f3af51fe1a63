//! Streams of other libraries, which their owners destroy.

use crate::support;
use crate::support::foreign::Foreign;
use aquifer::{CudaResource, Device, DeviceVec, ErrorKind, PoolResource, Stream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn one_handle_is_one_stream_while_it_lives() {
    let device = support::device();
    let foreign = Foreign::new(&device).unwrap();
    let (first, second) = (foreign.stream().unwrap(), foreign.stream().unwrap());
    assert_eq!((&first, first.id()), (&second, second.id()));
    assert_eq!(first.handle(), foreign.handle);
    // SAFETY: the default stream, and a stream that Aquifer keeps.
    unsafe {
        for handle in [0, 1] {
            assert_eq!(Stream::from_handle(&device, handle).unwrap(), device.default_stream());
        }
        let own = device.new_stream().unwrap();
        assert_eq!(Stream::from_handle(&device, own.handle()).unwrap(), own);
        let handle = own.handle();
        own.detach().unwrap();
        assert_eq!(own.handle(), handle, "nothing stands for it");
        assert_eq!(Stream::from_handle(&device, handle).unwrap(), own, "it stays");
        for handle in [0, 1] {
            assert!(device.default_stream().is_behind(handle).unwrap());
        }
        let refused = Stream::from_handle(&device, 2).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        if device.simulator().is_some() {
            let unknown = Stream::from_handle(&device, 0xdead).unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::Driver);
            assert!(unknown.to_string().contains("0xdead"), "{unknown}");
        }
    }
    drop((first, second));
    foreign.destroy().unwrap();
}

#[test]
fn what_remembers_a_detached_stream_goes_on_after_all_that_it_was_given() {
    let device = support::device();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let foreign = Foreign::new(&device).unwrap();
    let theirs = foreign.stream().unwrap();
    let mut kept = DeviceVec::<u32>::zeroed_in(&theirs, 1000, pool.clone()).unwrap();
    let mut freed = DeviceVec::<u32>::zeroed_in(&theirs, 1000, pool.clone()).unwrap();
    for value in 0..100 {
        freed.fill(value).unwrap();
        kept.fill(value).unwrap();
    }
    drop(freed);
    let number = theirs.id();
    theirs.detach().unwrap();
    let handle = theirs.handle();
    theirs.detach().unwrap();
    assert_eq!(theirs.handle(), handle, "one stream stands for it");
    foreign.destroy().unwrap();
    assert_eq!(theirs.id(), number, "it is the same stream here");
    // The pool asks the stream that is gone for its last work.
    let other = device.new_stream().unwrap();
    let taken = DeviceVec::<u32>::zeroed_in(&other, 1000, pool.clone()).unwrap();
    assert_eq!(taken.to_vec().unwrap(), [0; 1000]);
    assert_eq!(kept.to_vec().unwrap(), [99; 1000]);
    kept.fill(7).unwrap();
    other.wait_for(&theirs).unwrap();
    theirs.synchronize().unwrap();
    drop((kept, theirs));
    pool.wait_and_trim(0).unwrap();
    assert_eq!(pool.statistics().live, 1000 * 4 + 96, "the other stream's vector");
}

#[test]
fn a_handle_that_comes_back_is_another_stream() {
    let device = support::device();
    if device.simulator().is_some() {
        return support::skipped(
            "a_handle_that_comes_back_is_another_stream",
            "a simulated device uses no handle again",
        );
    }
    let mut came_back = 0;
    for _ in 0..50 {
        let first = Foreign::new(&device).unwrap();
        let (theirs, handle) = (first.stream().unwrap(), first.handle);
        // The owner tells nothing of it. Nothing here names the stream before its handle is another one's.
        first.destroy().unwrap();
        let second = Foreign::new(&device).unwrap();
        if second.handle != handle {
            // Nothing can be asked of the first one now. Its drop names it in no call.
            drop(theirs);
            let others = second.stream().unwrap();
            others.detach().unwrap();
            second.destroy().unwrap();
            continue;
        }
        came_back += 1;
        let others = second.stream().unwrap();
        assert_ne!(others, theirs, "another stream has its identity");
        assert_ne!(theirs.handle(), handle, "a stream of the crate's own stands for it");
        theirs.synchronize().unwrap();
        others.wait_for(&theirs).unwrap();
        others.detach().unwrap();
        second.destroy().unwrap();
    }
    assert!(came_back > 0, "no handle came back, so nothing was shown");
    device.synchronize().unwrap();
}

#[test]
fn a_stream_that_could_not_be_detached_is_as_it_was() {
    let (device, simulator) = support::simulated(aquifer::sim::SimConfig::default());
    let foreign = Foreign::new(&device).unwrap();
    let theirs = foreign.stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&theirs, 10).unwrap();
    simulator.fail_call("cuStreamWaitEvent", 1, 999).unwrap();
    let destroyed = simulator.call_count("cuStreamDestroy");
    assert_eq!(theirs.detach().unwrap_err().kind(), ErrorKind::Driver);
    assert_eq!(simulator.call_count("cuStreamDestroy"), destroyed + 1, "the one in its place");
    assert_eq!(theirs.handle(), foreign.handle);
    vec.fill(1).unwrap();
    theirs.detach().unwrap();
    foreign.destroy().unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1; 10]);
    drop(vec);
    simulator.check().unwrap();
}

/// On a simulated device, which has a test choose when a handle comes back.
#[test]
fn what_stands_for_a_stream_whose_handle_came_back_comes_after_all_work() {
    let (device, simulator) = support::simulated(aquifer::sim::SimConfig::default());
    let foreign = Foreign::new(&device).unwrap();
    let (theirs, handle) = (foreign.stream().unwrap(), foreign.handle);
    let mut vec = DeviceVec::<u32>::zeroed(&theirs, 100).unwrap();
    vec.fill(7).unwrap();
    assert!(simulator.reuse_foreign_handle(handle).is_err(), "the stream lives");
    // Its owner has given it work, and told nothing of its end.
    foreign.destroy().unwrap();
    simulator.reuse_foreign_handle(handle).unwrap();
    let second = Foreign { device: device.clone(), handle };
    let others = second.stream().unwrap();
    assert_ne!(others, theirs, "another stream has its identity");
    assert_ne!(theirs.handle(), handle, "a stream of the crate's own stands for it");
    assert_eq!(vec.to_vec().unwrap(), [7; 100]);
    vec.on_mut(&others).unwrap();
    drop(vec);
    others.detach().unwrap();
    second.destroy().unwrap();
    assert!(simulator.reuse_foreign_handle(0xdead).is_err());
    simulator.check().unwrap();
}

#[test]
fn a_stream_in_capture_is_neither_asked_nor_detached() {
    let device = support::device();
    let Some(simulator) = device.simulator() else {
        let name = "a_stream_in_capture_is_neither_asked_nor_detached";
        return support::skipped(name, "it begins a capture by the simulator");
    };
    let foreign = Foreign::new(&device).unwrap();
    let theirs = foreign.stream().unwrap();
    simulator.start_capture(&theirs).unwrap();
    assert_eq!(foreign.stream().unwrap(), theirs);
    assert_eq!(theirs.detach().unwrap_err().kind(), ErrorKind::Capture);
    assert!(simulator.stop_capture(&theirs), "the capture is undisturbed");
    let new = Foreign::new(&device).unwrap();
    // SAFETY: it is destroyed after it was detached.
    let first = unsafe { Stream::from_handle(&device, new.handle) }.unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let declared = theirs.capture(&pool, |theirs| {
        assert_eq!(foreign.stream().unwrap(), *theirs);
        assert_eq!(theirs.detach().unwrap_err().kind(), ErrorKind::Capture);
        Ok(())
    });
    drop(declared.unwrap());
    theirs.detach().unwrap();
    first.detach().unwrap();
    foreign.destroy().unwrap();
    new.destroy().unwrap();
}

#[test]
fn streams_are_detached_beside_threads_that_take_their_memory() {
    for seed in 0..10 {
        let device = support::seeded(seed);
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    let stream = device.new_stream().unwrap();
                    for _ in 0..60 {
                        let pool = pool.clone();
                        let vec = DeviceVec::<u8>::zeroed_in(&stream, 1 << 16, pool).unwrap();
                        assert_eq!(vec.get(77).unwrap(), 0);
                    }
                });
            }
            threads.spawn(|| {
                for round in 0..30 {
                    let foreign = Foreign::new(&device).unwrap();
                    let theirs = foreign.stream().unwrap();
                    let mut vec =
                        DeviceVec::<u8>::zeroed_in(&theirs, 1 << 16, pool.clone()).unwrap();
                    vec.fill(round).unwrap();
                    if round % 2 == 0 {
                        drop(vec);
                        theirs.detach().unwrap();
                    } else {
                        theirs.detach().unwrap();
                        drop(vec);
                    }
                    foreign.destroy().unwrap();
                }
            });
        });
        device.synchronize().unwrap();
    }
}

#[test]
fn a_stream_is_detached_while_a_thread_waits_for_it() {
    let device = support::device();
    let foreign = Foreign::new(&device).unwrap();
    let theirs = foreign.stream().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for _ in 0..100 {
                theirs.synchronize().unwrap();
            }
        });
        theirs.detach().unwrap();
    });
    foreign.destroy().unwrap();
}

#[test]
fn the_handle_of_what_stands_for_a_detached_stream_is_the_same_stream() {
    let device = support::device();
    let foreign = Foreign::new(&device).unwrap();
    let theirs = foreign.stream().unwrap();
    theirs.detach().unwrap();
    foreign.destroy().unwrap();
    let handle = theirs.handle();
    // SAFETY: a stream that Aquifer keeps.
    let again = unsafe { Stream::from_handle(&device, handle) }.unwrap();
    assert_eq!(again, theirs);
    // SAFETY: as above.
    assert!(unsafe { theirs.is_behind(handle) }.unwrap());
    drop(theirs);
    again.synchronize().unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { Stream::from_handle(&device, handle) }.unwrap(), again);
}

#[test]
fn a_stream_is_detached_beside_threads_that_use_it_and_detach_it() {
    for round in 0..100 {
        let device = support::device();
        let foreign = Foreign::new(&device).unwrap();
        let theirs = foreign.stream().unwrap();
        let plain = CudaResource::new(&device);
        let mut used = DeviceVec::<u32>::zeroed_in(&theirs, 10, plain.clone()).unwrap();
        let dropped: Vec<_> =
            (0..10).map(|_| DeviceVec::<u32>::zeroed_in(&theirs, 10, plain.clone())).collect();
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    start.wait();
                    theirs.detach().unwrap();
                });
            }
            threads.spawn(|| {
                start.wait();
                (0..20).for_each(|_| used.fill(round).unwrap());
            });
            threads.spawn(|| {
                start.wait();
                drop(dropped);
            });
        });
        foreign.destroy().unwrap();
        assert_eq!(used.to_vec().unwrap(), [round; 10]);
        if let Some(simulator) = device.simulator() {
            assert_eq!(simulator.live_blocks(), 1);
        }
    }
}

struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_stream_that_joins_captures_is_detached_and_destroyed() {
    let device = support::device();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let home = device.new_stream().unwrap();
    let rounds = if support::on_gpu() { 50_000 } else { 600 };
    let current = Mutex::new(None::<Stream>);
    let (joining, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for round in 0..rounds {
                let foreign = Foreign::new(&device).unwrap();
                let theirs = foreign.stream().unwrap();
                *current.lock().unwrap() = Some(theirs.clone());
                while joining.load(Ordering::Acquire) != theirs.id() {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    std::hint::spin_loop();
                }
                // At another moment of the join in each round.
                (0..round % 200 * 10).for_each(|_| std::hint::spin_loop());
                loop {
                    match theirs.detach() {
                        Ok(()) => break foreign.destroy().unwrap(),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Capture, "{error}"),
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        // Also when this thread panics.
        let _done = Sets(&done);
        while !done.load(Ordering::Relaxed) {
            let Some(theirs) = current.lock().unwrap().clone() else { continue };
            let captured = home.capture(&pool, |home| {
                let mut vec = DeviceVec::<u32>::zeroed_in(home, 100, pool.clone())?;
                joining.store(theirs.id(), Ordering::Release);
                vec.on_mut(&theirs).map(drop)?;
                home.wait_for(&theirs)
            });
            captured.unwrap();
            // What the host has seen is forgotten: the clocks stay short.
            home.synchronize().unwrap();
        }
    });
    device.synchronize().unwrap();
}

#[test]
fn a_wait_for_all_work_names_a_stream_that_was_destroyed_before_it_was_detached() {
    // On a GPU the driver would be asked by a handle that is no stream's.
    let device = Device::simulated(aquifer::sim::SimConfig::default());
    let foreign = Foreign::new(&device).unwrap();
    let stream = foreign.stream().unwrap();
    foreign.destroy().unwrap();
    let error = device.synchronize().unwrap_err();
    assert!(error.to_string().contains("a stream may be in capture: asking"), "{error}");
    assert!(error.advice().unwrap().contains("Stream::detach"), "{error}");
    drop(stream);
    assert!(!device.simulator().unwrap().take_reports().is_empty());
    device.synchronize().unwrap();
}

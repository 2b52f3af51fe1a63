//! Vectors used on the default streams of threads, and uses that cannot be waited for.

#![allow(clippy::forget_non_drop, reason = "that a guard is forgotten has to change nothing")]

use crate::{kernels, log, support};
use aquifer::sim::SimConfig;
use aquifer::{Device, DeviceResource, DeviceVec, ErrorKind, mr::AsyncResource};
use kernels::{add_one, copy, kind};
use log::Log;
use std::sync::Arc;
use tracing::Level;

/// Memory that goes back to the device with each block.
fn ordered(device: &Device) -> Arc<dyn DeviceResource> {
    Arc::new(AsyncResource::new(device).unwrap())
}

#[test]
fn a_guard_on_the_threads_own_stream_is_waited_for_by_one_event_of_that_stream() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let home = device.new_stream().unwrap();
    let mine = device.per_thread_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
    std::mem::forget(vec.on(&mine).unwrap());
    let guard = vec.on_mut(&mine).unwrap();
    assert_eq!(guard.stream().device(), &device);
    std::mem::forget(guard);
    let records = simulator.call_count("cuEventRecord");
    vec.fill(2).unwrap();
    // Two pending uses, to read and to write, each with its event.
    assert_eq!(simulator.call_count("cuEventRecord") - records, 2);
    assert_eq!(simulator.call_count("cuCtxRecordEvent"), 0);
    vec.fill(3).unwrap();
    assert_eq!(simulator.call_count("cuEventRecord") - records, 2, "waited for once");
    assert_eq!(vec.to_vec().unwrap(), [3; 8]);
    simulator.check().unwrap();
}

#[test]
fn guards_of_threads_that_have_ended_are_waited_for_through_the_context() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let home = device.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mine = device.per_thread_stream().unwrap();
                std::mem::forget(vec.on(&mine).unwrap());
                mine.synchronize().unwrap();
            });
        }
    });
    assert_eq!(simulator.call_count("cuCtxRecordEvent"), 0, "readers owe nothing to each other");
    vec.fill(2).unwrap();
    assert_eq!(simulator.call_count("cuCtxRecordEvent"), 3, "no other thread can record on them");
    vec.fill(3).unwrap();
    assert_eq!(simulator.call_count("cuCtxRecordEvent"), 3, "waited for once");
    drop(vec);
    home.synchronize().unwrap();
    assert_eq!(simulator.live_blocks(), 0);
}

#[test]
fn where_no_event_covers_a_context_the_host_waits() {
    let (device, simulator) = support::simulated(SimConfig::default().without_context_events());
    let home = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::mem::forget(vec.on(&device.per_thread_stream().unwrap()).unwrap());
        });
    });
    assert_eq!(simulator.call_count("cuCtxSynchronize"), 0);
    drop(vec);
    assert_eq!(simulator.call_count("cuCtxSynchronize"), 1);
    home.synchronize().unwrap();
    assert_eq!(simulator.live_blocks(), 0);
}

#[test]
fn while_a_stream_is_in_capture_a_context_cannot_be_waited_for() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (home, captured) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::mem::forget(vec.on(&device.per_thread_stream().unwrap()).unwrap());
        });
    });
    simulator.start_capture(&captured).unwrap();
    assert_eq!(kind(vec.fill(2)), ErrorKind::Capture);
    assert!(simulator.stop_capture(&captured), "not disturbed");
    vec.fill(2).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [2; 8]);
}

/// Fills a vector on a GPU through the driver itself, on the calling thread's default stream.
#[cfg(feature = "cuda")]
fn fill_on_this_threads_stream(device: &Device, vec: &mut DeviceVec<u32>, value: u32) {
    use aquifer::cudarc::driver::sys;
    let mine = device.per_thread_stream().unwrap();
    device.cuda_context().unwrap().bind_to_thread().unwrap();
    let guard = vec.on_mut(&mine).unwrap();
    // SAFETY: the guard lends the memory to this thread's stream, CUDA's handle 2.
    unsafe {
        sys::cuMemsetD32Async(guard.as_device_ptr(), value, guard.len(), 2 as sys::CUstream)
            .result()
            .unwrap();
    }
    std::mem::forget(guard);
}

#[test]
#[cfg(feature = "cuda")]
fn work_on_the_streams_of_several_threads_stays_in_order_on_a_gpu() {
    if !support::on_gpu() {
        support::skipped("work_on_the_streams_of_several_threads", "no GPU");
        return;
    }
    let device = support::device();
    let home = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&home, 4_000_000).unwrap();
    for round in 0..8 {
        fill_on_this_threads_stream(&device, &mut vec, round);
        add_one(&home, &mut vec).unwrap();
        assert_eq!(vec.get(3_999_999).unwrap(), round + 1);
        std::thread::scope(|scope| {
            // Joined and synchronised: a thread that ends with work on its own stream may stop for good inside
            // of the driver.
            let other = scope.spawn(|| {
                fill_on_this_threads_stream(&device, &mut vec, round + 100);
                device.per_thread_stream().unwrap().synchronize().unwrap();
            });
            other.join().unwrap();
        });
        add_one(&home, &mut vec).unwrap();
        assert_eq!(vec.get(3_999_999).unwrap(), round + 101);
    }
}

#[test]
fn a_use_that_cannot_be_waited_for_fails_the_next_one_and_stays_pending() {
    for call in ["cuEventRecord", "cuStreamWaitEvent"] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut vec = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
        add_one(&other, &mut vec).unwrap();
        for use_it in [
            |vec: &mut DeviceVec<u32>| vec.fill(9),
            |vec: &mut DeviceVec<u32>| vec.to_vec().map(drop),
            |vec: &mut DeviceVec<u32>| vec.reserve(1000),
            |vec: &mut DeviceVec<u32>| vec.try_clone().map(drop),
            |vec: &mut DeviceVec<u32>| vec.set(0, 1),
            |vec: &mut DeviceVec<u32>| vec.set_stream(&vec.device().new_stream().unwrap()),
        ] {
            simulator.fail_call(call, 1, 999).unwrap();
            let error = use_it(&mut vec).unwrap_err();
            assert_eq!(error.driver().map(|driver| (driver.call(), driver.code())), {
                Some((call, 999))
            });
        }
        simulator.fail_call(call, 1, 999).unwrap();
        let refused = vec.into_raw_parts().unwrap_err();
        let (error, vec) = (refused.error, refused.value);
        assert_eq!(error.kind(), ErrorKind::Driver);
        assert_eq!(vec.stream(), &home, "the vector comes back as it was");
        assert_eq!(vec.to_vec().unwrap(), [2; 8]);
        simulator.check().unwrap();
    }
}

#[test]
fn a_guard_that_cannot_be_had_leaves_the_vector_usable() {
    for call in ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut vec = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
        simulator.fail_call(call, 1, 999).unwrap();
        assert_eq!(kind(vec.on_mut(&other)), ErrorKind::Driver, "{call}");
        vec.fill(2).unwrap();
        add_one(&other, &mut vec).unwrap();
        assert_eq!(vec.to_vec().unwrap(), [3; 8]);
        drop(vec);
        home.synchronize().unwrap();
        assert_eq!(simulator.live_blocks(), 0);
        simulator.check().unwrap();
    }
}

#[test]
fn a_use_that_cannot_be_waited_for_at_the_drop_leaks_the_block_and_says_so() {
    for call in ["cuEventRecord", "cuStreamWaitEvent"] {
        for nth in [1, 2] {
            let (device, simulator) = support::simulated(SimConfig::default());
            let home = device.new_stream().unwrap();
            let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let vec = DeviceVec::from_slice_in(&home, &[1_u32; 8], ordered(&device)).unwrap();
            let mut one = DeviceVec::<u32>::zeroed_in(&a, 8, ordered(&device)).unwrap();
            let mut two = DeviceVec::<u32>::zeroed_in(&b, 8, ordered(&device)).unwrap();
            copy(&a, &vec, &mut one).unwrap();
            copy(&b, &vec, &mut two).unwrap();
            let frees = simulator.call_count("cuMemFreeAsync");
            simulator.fail_call(call, nth, 999).unwrap();
            let ((), log) = Log::of(|| drop(vec));
            assert_eq!(log.count(Level::ERROR, "leaked"), 1, "{:?}", log.lines());
            assert_eq!(log.count(Level::ERROR, "bytes=32"), 1, "{:?}", log.lines());
            assert_eq!(log.lines().len(), 1);
            assert_eq!(simulator.call_count("cuMemFreeAsync"), frees, "never published");
            assert_eq!(one.to_vec().unwrap(), two.to_vec().unwrap());
            drop((one, two));
            device.synchronize().unwrap();
            assert_eq!((simulator.live_blocks(), simulator.live_bytes()), (1, 32));
            simulator.check().unwrap();
        }
    }
}

#[test]
fn a_block_that_cannot_be_freed_is_leaked_and_said_so() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let home = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice_in(&home, &[1_u32; 8], ordered(&device)).unwrap();
    simulator.fail_call("cuMemFreeAsync", 1, 999).unwrap();
    let ((), log) = Log::of(|| drop(vec));
    assert_eq!(log.count(Level::ERROR, "leaked"), 1, "{:?}", log.lines());
    assert_eq!(simulator.live_blocks(), 1);
}

#[test]
fn a_vector_dropped_after_its_own_device_was_lost_is_quiet() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
    add_one(&other, &mut vec).unwrap();
    simulator.lose_context();
    let ((), log) = Log::of(|| drop((vec, home, other, device)));
    assert!(log.lines().is_empty(), "nothing is lost there: {:?}", log.lines());
}

#[test]
fn a_leak_on_a_device_that_lives_is_told_even_if_the_borrowers_device_was_lost() {
    let (one, alive) = support::simulated(SimConfig::default());
    let (two, lost) = support::simulated(SimConfig::default());
    let (a, b) = (one.new_stream().unwrap(), two.new_stream().unwrap());
    let source = DeviceVec::from_slice_in(&a, &[1_u32; 8], ordered(&one)).unwrap();
    let mut target = DeviceVec::<u32>::zeroed(&b, 8).unwrap();
    target.copy_from(&source).unwrap();
    lost.lose_context();
    let ((), log) = Log::of(|| drop(source));
    assert_eq!(alive.live_blocks(), 1, "never published");
    assert_eq!(log.count(Level::ERROR, "leaked"), 1, "{:?}", log.lines());
    a.synchronize().unwrap();
    drop(target);
}

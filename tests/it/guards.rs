//! Vectors used away from home: what waits for what, whatever becomes of guards, streams and
//! threads.

#![allow(
    clippy::forget_non_drop,
    clippy::drop_non_drop,
    reason = "that a guard is forgotten has to change nothing"
)]

use crate::{kernels, support};
use aquifer::sim::{SimConfig, Simulator, Violation};
use aquifer::{DeviceBlock, DeviceVec, ErrorKind, Stream, mr::AsyncResource};
use kernels::{add_one, copy, kind};
use std::sync::Arc;

/// The calls that order streams, counted.
fn event_calls(simulator: &Simulator) -> u64 {
    ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventQuery", "cuCtxRecordEvent"]
        .iter()
        .map(|call| simulator.call_count(call))
        .sum()
}

/// `vec`'s memory at home on `stream`, behind the vector's back: what a program does that gets the
/// order wrong. To be given to [`gone`].
fn behind_its_back(vec: &DeviceVec<u32>, stream: &Stream) -> DeviceVec<u32> {
    let block = DeviceBlock::new(vec.as_device_ptr(), vec.size_in_bytes(), 0);
    let resource = vec.resource().clone();
    // SAFETY: not kept, on purpose: the simulated device has to notice.
    unsafe { DeviceVec::from_raw_parts(stream.clone(), block, vec.len(), resource).unwrap() }
}

/// Lets go of an alias without freeing what it never owned.
fn gone(alias: DeviceVec<u32>) {
    let _ = alias.into_raw_parts().unwrap();
}

/// A simulated device with two streams and a vector at home on the first, complete.
fn fixture() -> (Simulator, [Stream; 2], DeviceVec<u32>) {
    let (device, simulator) = support::simulated(SimConfig::default());
    let streams = [device.new_stream().unwrap(), device.new_stream().unwrap()];
    // Not from a pool: the device itself is to see the free.
    let plain = Arc::new(AsyncResource::new(&device).unwrap());
    let vec = DeviceVec::from_slice_in(&streams[0], &[1; 8], plain).unwrap();
    (simulator, streams, vec)
}

/// The kinds of what the simulated device saw.
fn kinds(simulator: &Simulator) -> Vec<Violation> {
    simulator.take_reports().iter().map(|report| report.kind()).collect()
}

#[test]
fn a_write_at_home_comes_after_readers_on_two_streams() {
    let device = support::device();
    let [home, a, b] = [(); 3].map(|()| device.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &vec![1_u32; 50_000]).unwrap();
    let mut seen_by_a = DeviceVec::<u32>::zeroed(&a, 50_000).unwrap();
    let mut seen_by_b = DeviceVec::<u32>::zeroed(&b, 50_000).unwrap();
    copy(&a, &vec, &mut seen_by_a).unwrap();
    copy(&b, &vec, &mut seen_by_b).unwrap();
    vec.fill(9).unwrap();
    assert!(seen_by_a.to_vec().unwrap().iter().all(|&value| value == 1));
    assert!(seen_by_b.to_vec().unwrap().iter().all(|&value| value == 1));
    assert_eq!(vec.to_vec().unwrap(), vec![9; 50_000]);
}

#[test]
fn the_simulator_sees_a_write_that_does_not_wait_for_a_reader() {
    let (simulator, [_home, other], mut vec) = fixture();
    let mut target = DeviceVec::<u32>::zeroed(&other, 8).unwrap();
    let alias = behind_its_back(&vec, &other);
    copy(&other, &alias, &mut target).unwrap();
    gone(alias);
    vec.fill(9).unwrap();
    assert_eq!(kinds(&simulator), [Violation::UnorderedAccess]);
}

#[test]
fn a_reader_elsewhere_comes_after_a_writer_on_a_third_stream() {
    let device = support::device();
    let [home, a, b] = [(); 3].map(|()| device.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &vec![1_u32; 50_000]).unwrap();
    let mut target = DeviceVec::<u32>::zeroed(&b, 50_000).unwrap();
    for round in 0..20 {
        add_one(&a, &mut vec).unwrap();
        copy(&b, &vec, &mut target).unwrap();
        assert_eq!(target.get(49_999).unwrap(), round + 2);
    }
    assert_eq!(vec.to_vec().unwrap(), vec![21; 50_000]);
}

#[test]
fn the_simulator_sees_a_reader_that_does_not_wait_for_a_writer() {
    let (simulator, [_home, other], vec) = fixture();
    let mut alias = behind_its_back(&vec, &other);
    add_one(&other, &mut alias).unwrap();
    gone(alias);
    assert_eq!(kind(vec.to_vec()), ErrorKind::Simulation);
    assert_eq!(kinds(&simulator), [Violation::UnorderedAccess]);
}

#[test]
fn work_inside_guards_that_are_forgotten_stays_in_order() {
    let device = support::device();
    let [home, a, b] = [(); 3].map(|()| device.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &vec![1_u32; 50_000]).unwrap();
    let mut seen = DeviceVec::<u32>::zeroed(&b, 50_000).unwrap();

    let guard = vec.on_mut(&a).unwrap();
    let (address, length) = (guard.as_device_ptr(), guard.len());
    assert_eq!(guard.stream(), &a);
    std::mem::forget(guard);
    assert_eq!((address, length), (vec.as_device_ptr(), 50_000));
    // The work that the guard allowed, through its address.
    let mut inside = behind_its_back(&vec, &a);
    add_one(&a, &mut inside).unwrap();
    gone(inside);

    let guard = vec.on(&b).unwrap();
    assert_eq!((guard.as_device_ptr(), guard.len(), guard.is_empty()), (address, 50_000, false));
    std::mem::forget(guard);
    let inside = behind_its_back(&vec, &b);
    copy(&b, &inside, &mut seen).unwrap();
    gone(inside);

    vec.fill(7).unwrap();
    assert!(seen.to_vec().unwrap().iter().all(|&value| value == 2), "after a, before the fill");
    assert_eq!(vec.get(0).unwrap(), 7);
}

#[test]
fn a_vector_is_freed_after_all_its_pending_uses_elsewhere() {
    for seed in 0..16 {
        let device = support::seeded(seed);
        let home = device.new_stream().unwrap();
        let mut seen = Vec::new();
        let vec = DeviceVec::from_slice(&home, &[3_u32; 100]).unwrap();
        for _ in 0..3 {
            let stream = device.new_stream().unwrap();
            let mut target = DeviceVec::<u32>::zeroed(&stream, 100).unwrap();
            copy(&stream, &vec, &mut target).unwrap();
            seen.push(target);
        }
        drop(vec);
        // The block is free again in home's order.
        let again = DeviceVec::<u32>::zeroed(&home, 100).unwrap();
        for target in seen {
            assert_eq!(target.to_vec().unwrap(), [3; 100]);
        }
        assert_eq!(again.to_vec().unwrap(), [0; 100]);
    }
}

#[test]
fn the_simulator_sees_a_free_that_does_not_wait() {
    for write in [false, true] {
        let (simulator, [_home, other], vec) = fixture();
        let mut target = DeviceVec::<u32>::zeroed(&other, 8).unwrap();
        let mut alias = behind_its_back(&vec, &other);
        if write {
            add_one(&other, &mut alias).unwrap();
        } else {
            copy(&other, &alias, &mut target).unwrap();
        }
        gone(alias);
        drop(vec);
        assert_eq!(kinds(&simulator), [Violation::FreeWhileInUse], "write: {write}");
    }
}

#[test]
fn a_move_of_home_waits_for_every_pending_use() {
    let device = support::device();
    let [home, a, b] = [(); 3].map(|()| device.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; 100]).unwrap();
    let (mut head, mut tail) = vec.split_at_mut(50).unwrap();
    add_one(&a, &mut head).unwrap();
    add_one(&b, &mut tail).unwrap();
    let new_home = device.new_stream().unwrap();
    vec.set_stream(&new_home).unwrap();
    add_one(&new_home, &mut vec).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [3; 100]);
}

#[test]
fn growth_reads_the_elements_after_a_writer_elsewhere() {
    let device = support::device();
    let [home, a] = [(); 2].map(|()| device.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; 100]).unwrap();
    add_one(&a, &mut vec).unwrap();
    vec.reserve(1000).unwrap();
    add_one(&a, &mut vec).unwrap();
    vec.push(7).unwrap();
    add_one(&a, &mut vec.slice_mut(..100).unwrap()).unwrap();
    vec.shrink_to_fit().unwrap();
    let mut wanted = vec![4; 100];
    wanted.push(7);
    assert_eq!(vec.to_vec().unwrap(), wanted);
}

#[test]
fn the_default_stream_is_a_home_and_a_foreign_stream_as_any_other() {
    let device = support::device();
    let legacy = device.default_stream();
    assert_eq!(legacy, device.default_stream(), "one for the whole device");
    let other = device.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&legacy, &[1_u32; 100]).unwrap();
    add_one(&other, &mut vec).unwrap();
    add_one(&legacy, &mut vec).unwrap();
    vec.set_stream(&other).unwrap();
    add_one(&legacy, &mut vec).unwrap();
    std::mem::forget(vec.on(&legacy).unwrap());
    vec.fill(5).unwrap();
    add_one(&legacy, &mut vec).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [6; 100]);
}

#[test]
fn the_foreign_stream_lives_as_long_as_the_pending_use() {
    let device = support::device();
    let home = device.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; 100]).unwrap();
    for _ in 0..3 {
        let foreign = device.new_stream().unwrap();
        add_one(&foreign, &mut vec).unwrap();
        drop(foreign);
        // A new stream may get the same handle from the driver; the pending use is not its.
        let next = device.new_stream().unwrap();
        add_one(&next, &mut vec).unwrap();
    }
    assert_eq!(vec.to_vec().unwrap(), [7; 100]);
    let foreign = device.new_stream().unwrap();
    add_one(&foreign, &mut vec).unwrap();
    drop((foreign, vec));
    home.synchronize().unwrap();
}

#[test]
fn a_foreign_stream_goes_when_its_use_was_waited_for() {
    let (simulator, [home, other], mut vec) = fixture();
    add_one(&other, &mut vec).unwrap();
    drop(other);
    assert_eq!(simulator.call_count("cuStreamDestroy"), 0, "the pending use holds it");
    vec.fill(1).unwrap();
    assert_eq!(simulator.call_count("cuStreamDestroy"), 1);
    drop((home, vec));
    assert_eq!(simulator.call_count("cuStreamDestroy"), 2);
    simulator.check().unwrap();
}

#[test]
fn the_home_stream_lives_as_long_as_its_vector() {
    let device = support::device();
    let home = device.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; 100]).unwrap();
    let id = home.id();
    drop(home);
    vec.fill(2).unwrap();
    let other = device.new_stream().unwrap();
    add_one(&other, &mut vec).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [3; 100]);
    assert_eq!(vec.stream().id(), id);
}

#[test]
fn parts_that_do_not_meet_do_not_wait_for_each_other() {
    let (simulator, [_home, a], mut vec) = fixture();
    let b = a.device().new_stream().unwrap();
    let (mut head, mut tail) = vec.split_at_mut(4).unwrap();
    let before = simulator.call_count("cuStreamWaitEvent");
    add_one(&a, &mut head).unwrap();
    add_one(&b, &mut tail).unwrap();
    let waits = simulator.call_count("cuStreamWaitEvent") - before;
    assert_eq!(waits, 2, "each waits for home, and for nothing else");
    head.fill(5).unwrap();
    let waits = simulator.call_count("cuStreamWaitEvent") - before;
    assert_eq!(waits, 3, "home waits for the head's writer alone");
    tail.fill(5).unwrap();
    let waits = simulator.call_count("cuStreamWaitEvent") - before;
    assert_eq!(waits, 4);
    assert_eq!(vec.to_vec().unwrap(), [5; 8]);
    simulator.check().unwrap();
}

#[test]
fn two_readers_do_not_wait_for_each_other_nor_does_home_to_read() {
    let (simulator, [_home, a], vec) = fixture();
    let b = a.device().new_stream().unwrap();
    let before = simulator.call_count("cuStreamWaitEvent");
    let (mut one, mut two) =
        (DeviceVec::<u32>::zeroed(&a, 8).unwrap(), DeviceVec::<u32>::zeroed(&b, 8).unwrap());
    copy(&a, &vec, &mut one).unwrap();
    copy(&b, &vec, &mut two).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1; 8]);
    assert_eq!(simulator.call_count("cuStreamWaitEvent") - before, 2);
    simulator.check().unwrap();
}

#[test]
fn a_vector_that_stays_home_makes_no_event_call() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let before = event_calls(&simulator);
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 100).unwrap();
    vec.fill(1).unwrap();
    vec.resize(1000, 2).unwrap();
    vec.push(3).unwrap();
    vec.copy_from_slice(&[4; 1001]).unwrap();
    vec.set_stream(&stream).unwrap();
    add_one(&stream, &mut vec).unwrap();
    let (mut head, tail) = vec.split_at_mut(500).unwrap();
    head.copy_from(&tail.as_slice().slice(..500).unwrap()).unwrap();
    drop(vec.on(&stream).unwrap());
    std::mem::forget(vec.on_mut(&stream).unwrap());
    let clone = vec.try_clone().unwrap();
    copy(&stream, &clone, &mut vec).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [5; 1001]);
    vec.shrink_to_fit().unwrap();
    let (home, block, length, resource) = vec.cast::<[u8; 4]>().unwrap().into_raw_parts().unwrap();
    // SAFETY: the parts of a vector, put together once.
    drop(unsafe { DeviceVec::<u32>::from_raw_parts(home, block, length, resource).unwrap() });
    drop(clone);
    stream.synchronize().unwrap();
    assert_eq!(event_calls(&simulator), before);
    assert_eq!(simulator.live_blocks(), 0);
}

#[test]
fn a_guard_on_the_home_stream_waits_and_leaves_nothing_pending() {
    let (simulator, [home, other], mut vec) = fixture();
    add_one(&other, &mut vec).unwrap();
    let waits = simulator.call_count("cuStreamWaitEvent");
    let guard = vec.on_mut(&home).unwrap();
    assert_eq!(simulator.call_count("cuStreamWaitEvent"), waits + 1, "for the writer elsewhere");
    drop(guard);
    vec.fill(1).unwrap();
    assert_eq!(simulator.call_count("cuStreamWaitEvent"), waits + 1);
    simulator.check().unwrap();
}

#[test]
fn a_stream_of_another_device_is_refused_and_its_use_not_pending() {
    let device = support::device();
    let (elsewhere, _) = support::simulated(SimConfig::default());
    let foreign = elsewhere.new_stream().unwrap();
    let theirs = elsewhere.per_thread_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&device.new_stream().unwrap(), &[1_u32, 2]).unwrap();
    assert_eq!(kind(vec.on(&foreign)), ErrorKind::WrongDevice);
    assert_eq!(kind(vec.on_mut(&foreign)), ErrorKind::WrongDevice);
    assert_eq!(kind(vec.on(&theirs)), ErrorKind::WrongDevice);
    assert_eq!(kind(vec.slice(..0).unwrap().on(&foreign)), ErrorKind::WrongDevice, "if empty too");
    assert_eq!(kind(add_one(&foreign, &mut vec)), ErrorKind::WrongDevice);
    vec.fill(3).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [3, 3]);
}

#[test]
fn a_copy_across_devices_is_pending_as_any_other_use() {
    let (one, simulator) = support::simulated(SimConfig::default());
    let (two, _) = support::simulated(SimConfig::default());
    let (a, b) = (one.new_stream().unwrap(), two.new_stream().unwrap());
    let mut source = DeviceVec::from_slice(&a, &[1_u32; 100]).unwrap();
    let mut target = DeviceVec::<u32>::zeroed(&b, 100).unwrap();
    target.copy_from(&source).unwrap();
    source.fill(2).unwrap();
    assert_eq!(target.to_vec().unwrap(), [1; 100]);
    target.copy_from(&source).unwrap();
    drop(source);
    assert_eq!(target.to_vec().unwrap(), [2; 100]);
    a.synchronize().unwrap();
    simulator.check().unwrap();
    two.simulator().unwrap().check().unwrap();
    assert_eq!(simulator.live_blocks(), 0);
}

#[test]
fn a_copy_between_a_gpu_and_the_simulated_device_is_refused_and_not_pending() {
    if !support::on_gpu() {
        support::skipped("a_copy_between_a_gpu_and_the_simulated_device", "no GPU");
        return;
    }
    let device = support::device();
    let (simulated, _) = support::simulated(SimConfig::default());
    let mut here = DeviceVec::from_slice(&device.new_stream().unwrap(), &[1_u32; 4]).unwrap();
    let mut there = DeviceVec::<u32>::zeroed(&simulated.new_stream().unwrap(), 4).unwrap();
    assert_eq!(kind(there.copy_from(&here)), ErrorKind::WrongDevice);
    assert_eq!(kind(here.copy_from(&there)), ErrorKind::WrongDevice);
    here.fill(2).unwrap();
    there.fill(2).unwrap();
    assert_eq!(here.to_vec().unwrap(), there.to_vec().unwrap());
}

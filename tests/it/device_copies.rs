//! Copies between vectors, on one device and across two, and the pending uses of a vector on other streams
//! while a part of it is used at home.

#![allow(clippy::forget_non_drop, reason = "a guard without a drop may get one")]

use crate::{kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{Device, DeviceVec, ErrorKind, LaunchConfig};
use kernels::ADD_ONE;

#[test]
fn a_copy_between_two_streams_is_in_order_with_both() {
    for seed in 0..20 {
        let device = support::seeded(seed);
        let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut source = DeviceVec::zeroed(&a, 4000).unwrap();
        let mut target = DeviceVec::zeroed(&b, 4000).unwrap();
        for round in 1..6_u32 {
            source.fill(round).unwrap();
            target.copy_from(&source).unwrap();
            source.fill(0).unwrap();
            target.slice_mut(..10).unwrap().fill(99).unwrap();
            assert_eq!(target.get(9).unwrap(), 99);
            assert_eq!(target.slice(10..).unwrap().to_vec().unwrap(), [round; 3990], "{seed}");
        }
        target.copy_from(&source).unwrap();
        drop(source);
        assert_eq!(target.to_vec().unwrap(), [0; 4000]);
    }
}

#[test]
fn parts_of_one_vector_are_copied_to_each_other() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&stream, &[1_u8, 2, 3, 4, 5, 6]).unwrap();
    let (head, mut tail) = vec.split_at_mut(3).unwrap();
    tail.copy_from(&head).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3, 1, 2, 3]);
    let (head, mut tail) = vec.split_at_mut(2).unwrap();
    assert_eq!(tail.copy_from(&head).unwrap_err().kind(), ErrorKind::LengthMismatch);
    let (head, mut none) = vec.split_at_mut(6).unwrap();
    none.copy_from(&head.as_slice().slice(6..).unwrap()).unwrap();
}

#[test]
fn a_copy_across_devices_is_in_order_with_both() {
    for seed in 0..20 {
        let (one, simulator) = support::simulated(SimConfig::default().seed(seed));
        let (two, second) = support::simulated(SimConfig::default().seed(seed + 100).ordinal(1));
        let (a, b) = (one.new_stream().unwrap(), two.new_stream().unwrap());
        let mut source = DeviceVec::zeroed(&a, 1000).unwrap();
        let mut target = DeviceVec::<u32>::zeroed(&b, 1000).unwrap();
        for round in 1..5_u32 {
            source.fill(round).unwrap();
            target.copy_from(&source).unwrap();
            source.fill(0).unwrap();
            assert_eq!(target.to_vec().unwrap(), [round; 1000], "seed {seed}");
            // And back, through a third stream of the first device.
            let third = one.new_stream().unwrap();
            let mut back = DeviceVec::<u32>::zeroed(&third, 1000).unwrap();
            back.copy_from(&target).unwrap();
            target.fill(0).unwrap();
            assert_eq!(back.to_vec().unwrap(), [round; 1000], "seed {seed}");
        }
        target.copy_from(&source).unwrap();
        drop(source);
        a.synchronize().unwrap();
        assert_eq!(target.to_vec().unwrap(), [0; 1000]);
        drop(target);
        assert_eq!((simulator.live_bytes(), second.live_bytes()), (0, 0));
        simulator.check().unwrap();
        second.check().unwrap();
    }
}

#[test]
fn a_copy_between_two_gpus_is_in_order_with_both() {
    let name = "a_copy_between_two_gpus_is_in_order_with_both";
    if !support::on_gpu() || Device::count().unwrap() < 2 {
        return support::skipped(name, "it needs two GPUs");
    }
    let (one, two) = (Device::open(0).unwrap(), Device::open(1).unwrap());
    let (a, b) = (one.new_stream().unwrap(), two.new_stream().unwrap());
    let n = 4 << 20;
    let mut source = DeviceVec::<u32>::zeroed(&a, n).unwrap();
    let mut target = DeviceVec::<u32>::zeroed(&b, n).unwrap();
    for round in 0..50_u32 {
        source.fill(round).unwrap();
        for _ in 0..3 {
            let launch = a.launch(&ADD_ONE).in_out(&mut source).unwrap();
            let launch = launch.scalar(n as u32).unwrap();
            // SAFETY: it touches the elements that it is given.
            unsafe { launch.launch(LaunchConfig::for_elements(n)).unwrap() };
        }
        // Nothing waits on the host: the copy has to come after the kernels, and the fill after it.
        target.copy_from(&source).unwrap();
        source.fill(0).unwrap();
        let copied = target.to_vec().unwrap();
        assert!(copied.iter().all(|&value| value == round + 3), "round {round}");
        target.fill(round + 100).unwrap();
        source.copy_from(&target).unwrap();
        target.fill(0).unwrap();
        let back = source.to_vec().unwrap();
        assert!(back.iter().all(|&value| value == round + 100), "round {round}, and back");
    }
    assert_eq!(source.on(&b).unwrap_err().kind(), ErrorKind::WrongDevice);
    // Each drop in its own device's order, whichever is current.
    target.copy_from(&source).unwrap();
    drop(source);
    assert_eq!(target.get(n - 1).unwrap(), 149);
}

#[test]
fn a_copy_between_a_gpu_and_a_simulated_device_is_refused_and_changes_nothing() {
    let name = "a_copy_between_a_gpu_and_a_simulated_device_is_refused_and_changes_nothing";
    if !support::on_gpu() {
        // tests/driver_calls/ has the same against the stand-in driver.
        return support::skipped(name, "it needs a GPU");
    }
    let gpu = support::device();
    let (simulated, simulator) = support::simulated(SimConfig::default());
    let (a, b) = (gpu.new_stream().unwrap(), simulated.new_stream().unwrap());
    let mut one = DeviceVec::from_slice(&a, &[1_u32; 10]).unwrap();
    let mut two = DeviceVec::from_slice(&b, &[2_u32; 10]).unwrap();
    assert_eq!(one.copy_from(&two).unwrap_err().kind(), ErrorKind::WrongDevice);
    assert_eq!(two.copy_from(&one).unwrap_err().kind(), ErrorKind::WrongDevice);
    one.fill(3).unwrap();
    two.fill(4).unwrap();
    assert_eq!((one.get(9).unwrap(), two.get(9).unwrap()), (3, 4));
    drop(two);
    assert_eq!(simulator.live_bytes(), 0);
}

/// A launch that was prepared keeps what it borrowed, and may still run, when home is used
/// elsewhere in the vector: its pending use is not waited for before.
#[test]
fn a_part_used_at_home_does_not_pay_for_the_parts_that_are_still_lent() {
    for seed in 0..10 {
        let device = support::seeded(seed);
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut vec = DeviceVec::<u32>::zeroed(&home, 3000).unwrap();
        let (mut head, mut rest) = vec.split_at_mut(1000).unwrap();
        let (mut middle, mut tail) = rest.split_at_mut(1000).unwrap();
        let one = other.launch(&ADD_ONE).in_out(&mut head).unwrap().scalar(1000_u32).unwrap();
        let two = other.launch(&ADD_ONE).in_out(&mut tail).unwrap().scalar(1000_u32).unwrap();
        middle.fill(10).unwrap();
        // SAFETY: it touches the 1000 elements that it is given.
        unsafe {
            one.launch(LaunchConfig::for_elements(1000)).unwrap();
            two.launch(LaunchConfig::for_elements(1000)).unwrap();
        }
        let expected = [[1_u32; 1000], [10; 1000], [1; 1000]].concat();
        assert_eq!(vec.to_vec().unwrap(), expected, "seed {seed}");
    }
}

/// As above, with a lent part that ended before: its range must not pay for a neighbour's.
#[test]
fn what_was_lent_before_does_not_pay_for_what_is_lent_now() {
    let device = support::device();
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::<u32>::zeroed(&home, 2000).unwrap();
    std::mem::forget(vec.on_mut(&other).unwrap());
    let (mut head, mut tail) = vec.split_at_mut(1000).unwrap();
    let launch = other.launch(&ADD_ONE).in_out(&mut tail).unwrap().scalar(1000_u32).unwrap();
    head.fill(10).unwrap();
    // SAFETY: it touches the 1000 elements that it is given.
    unsafe { launch.launch(LaunchConfig::for_elements(1000)).unwrap() };
    vec.set_stream(&device.new_stream().unwrap()).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [[10_u32; 1000], [1; 1000]].concat());
}

//! Growing, shrinking and filling a `DeviceVec`; what it does where there is no room.

use crate::{kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, ErrorKind, PoolResource,
    mr::{AsyncResource, current_device_resource},
};
use bytemuck::Pod;
use kernels::kind;
use std::fmt::Debug;
use std::sync::Arc;

#[test]
fn pushes_cost_a_logarithmic_number_of_allocations() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let ordered: Arc<dyn DeviceResource> = Arc::new(AsyncResource::new(&device).unwrap());
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    for (resource, pooled) in [(ordered, 0), (Arc::new(pool.clone()), 1)] {
        let waits = device.simulator().map(|simulator| simulator.call_count("cuStreamSynchronize"));
        let mut vec = DeviceVec::<u32>::new_in(&stream, resource).unwrap();
        let mut capacities = vec![vec.capacity()];
        for value in 0..1000 {
            vec.push(value).unwrap();
            if Some(&vec.capacity()) != capacities.last() {
                capacities.push(vec.capacity());
            }
        }
        assert_eq!(vec.to_vec().unwrap(), (0..1000).collect::<Vec<_>>());
        assert!(capacities.windows(2).skip(1).all(|pair| pair[1] >= 2 * pair[0]), "{capacities:?}");
        assert!(capacities.len() <= 12, "{capacities:?}");
        if let (Some(simulator), Some(waits)) = (device.simulator(), waits) {
            assert_eq!(simulator.call_count("cuStreamSynchronize"), waits + 1, "`to_vec` alone");
            assert!(simulator.call_count("cuMemAllocFromPoolAsync") <= 11);
            assert!(simulator.call_count("cuMemAlloc") <= 1, "the pool's");
            assert_eq!(simulator.live_blocks(), 1, "the smaller blocks are freed");
        }
        assert_eq!(pool.statistics().live_blocks, pooled, "the smaller blocks are freed");
    }
}

#[test]
fn room_is_made_at_least_as_asked_and_given_up_when_told() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let ordered = Arc::new(AsyncResource::new(&device).unwrap());
    let mut vec = DeviceVec::from_slice_in(&stream, &[1_u16, 2, 3], ordered).unwrap();
    vec.reserve(1).unwrap();
    assert_eq!(vec.capacity(), 6, "twice what there was");
    vec.reserve(3).unwrap();
    assert_eq!(vec.capacity(), 6, "there is room");
    vec.reserve_exact(4).unwrap();
    assert_eq!(vec.capacity(), 7, "as asked");
    vec.reserve_exact(4).unwrap();
    assert_eq!(vec.capacity(), 7, "there is room");
    vec.shrink_to_fit().unwrap();
    assert_eq!(vec.capacity(), 3);
    let address = vec.as_device_ptr();
    vec.shrink_to_fit().unwrap();
    assert_eq!(vec.as_device_ptr(), address, "nothing to give up");
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
    vec.clear();
    vec.shrink_to_fit().unwrap();
    assert_eq!(vec.capacity(), 0);
    stream.synchronize().unwrap();
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.live_bytes(), 0);
    }
}

#[test]
fn room_comes_in_blocks_of_the_pool_and_is_given_up_only_for_a_smaller_one() {
    let device = support::unfollowed();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let mut vec =
        DeviceVec::from_slice_in(&stream, &[1_u16, 2, 3], Arc::new(pool.clone())).unwrap();
    assert_eq!(vec.capacity(), 128, "256 bytes");
    let address = vec.as_device_ptr();
    vec.reserve(125).unwrap();
    vec.shrink_to_fit().unwrap();
    assert_eq!((vec.as_device_ptr(), vec.capacity()), (address, 128), "there is no smaller block");
    assert_eq!(pool.statistics().live_blocks, 1);
    vec.reserve(126).unwrap();
    assert_eq!(vec.capacity(), 256, "twice what there was");
    vec.reserve_exact(300).unwrap();
    assert_eq!((vec.capacity(), pool.statistics().live), (384, 768), "as asked, in whole blocks");
    vec.shrink_to_fit().unwrap();
    assert_eq!((vec.capacity(), pool.statistics().live), (128, 256));
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
    vec.clear();
    vec.shrink_to_fit().unwrap();
    assert_eq!((vec.capacity(), pool.statistics().live_blocks), (0, 0));
}

#[test]
fn lengths_change_as_those_of_a_vec() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::new(&stream).unwrap();
    let mut model = Vec::new();
    vec.extend_from_slice(&[1, 2, 3]).unwrap();
    model.extend_from_slice(&[1, 2, 3]);
    vec.resize(6, 7).unwrap();
    model.resize(6, 7);
    vec.truncate(100);
    model.truncate(100);
    vec.resize(4, 9).unwrap();
    model.resize(4, 9);
    vec.extend_from_slice(&[8, 8]).unwrap();
    model.extend_from_slice(&[8, 8]);
    vec.truncate(5);
    model.truncate(5);
    vec.push(11).unwrap();
    model.push(11);
    assert_eq!(vec.to_vec().unwrap(), model);
    let capacity = vec.capacity();
    vec.clear();
    assert!(vec.is_empty());
    assert_eq!(vec.capacity(), capacity, "the room stays");
    vec.resize(2, 5).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [5, 5], "and nothing of what was there");
}

#[test]
fn sizes_that_overflow_are_errors_and_change_nothing() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for length in [usize::MAX, usize::MAX / 8 + 1, isize::MAX as usize / 8 + 1] {
        assert_eq!(kind(DeviceVec::<u64>::with_capacity(&stream, length)), {
            ErrorKind::InvalidArgument
        });
        assert_eq!(kind(DeviceVec::<u64>::zeroed(&stream, length)), ErrorKind::InvalidArgument);
        // SAFETY: never made.
        let uninit = unsafe { DeviceVec::<u64>::uninit(&stream, length) };
        assert_eq!(kind(uninit), ErrorKind::InvalidArgument);
    }
    let mut vec = DeviceVec::from_slice(&stream, &[1_u64, 2]).unwrap();
    let capacity = vec.capacity();
    for more in [usize::MAX, usize::MAX - 1, usize::MAX / 8, isize::MAX as usize / 8] {
        assert_eq!(kind(vec.reserve(more)), ErrorKind::InvalidArgument, "{more}");
        assert_eq!(kind(vec.reserve_exact(more)), ErrorKind::InvalidArgument, "{more}");
        assert_eq!(kind(vec.resize(more, 0)), ErrorKind::InvalidArgument, "{more}");
    }
    assert_eq!((vec.len(), vec.capacity()), (2, capacity));
    assert_eq!(vec.to_vec().unwrap(), [1, 2]);
}

#[test]
fn out_of_memory_leaves_the_vector_as_it_was() {
    let plain = |device: &Device| Arc::new(CudaResource::new(device)) as Arc<dyn DeviceResource>;
    let default = |device: &Device| current_device_resource(device).unwrap();
    type Make<'a> = &'a dyn Fn(&Device) -> Arc<dyn DeviceResource>;
    // What was there: of the device, and of the pool and the device below it.
    let cases: [(Make<'_>, usize, &[&str]); 2] = [
        (&plain, 4000, &["6000 bytes free of its 10000 bytes"]),
        (&default, 4096, &["4096 bytes of them in use", "bytes free of its 10000 bytes"]),
    ];
    for (make, capacity, there) in cases {
        let config = SimConfig::default().capacity(10_000).without_pool_checks();
        let (device, simulator) = support::simulated(config);
        let stream = device.new_stream().unwrap();
        let resource = make(&device);
        let mut vec = DeviceVec::from_slice_in(&stream, &[7_u8; 4000], resource.clone()).unwrap();
        let address = vec.as_device_ptr();
        for refused in [
            vec.reserve(4000),
            vec.reserve_exact(4000),
            vec.resize(8000, 1),
            vec.extend_from_slice(&[1; 4000]),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            let text = error.to_string();
            assert!(text.contains("8000 bytes"), "what was asked: {text}");
            assert!(there.iter().all(|there| text.contains(there)), "what was there: {text}");
        }
        let clones = vec.try_clone().and_then(|clone| clone.try_clone());
        assert_eq!(kind(clones), ErrorKind::OutOfMemory);
        assert_eq!((vec.len(), vec.capacity(), vec.as_device_ptr()), (4000, capacity, address));
        assert_eq!(vec.to_vec().unwrap(), [7; 4000]);
        let too_long = DeviceVec::<u8>::zeroed_in(&stream, 10_001, resource);
        assert_eq!(kind(too_long), ErrorKind::OutOfMemory);
        simulator.check().unwrap();
    }
}

#[test]
fn where_twice_the_room_is_not_there_just_enough_is_taken() {
    let (device, _) = support::simulated(SimConfig::default().capacity(10_000));
    let stream = device.new_stream().unwrap();
    let plain = Arc::new(CudaResource::new(&device));
    let mut vec = DeviceVec::from_slice_in(&stream, &[7_u8; 4000], plain).unwrap();
    vec.push(8).unwrap();
    assert_eq!((vec.len(), vec.capacity()), (4001, 4001));
    assert_eq!(vec.get(4000).unwrap(), 8);
}

#[test]
fn a_driver_call_that_fails_leaves_the_length_as_it_was() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let ordered = Arc::new(AsyncResource::new(&device).unwrap());
    let mut vec = DeviceVec::from_slice_in(&stream, &[1_u32, 2], ordered).unwrap();
    simulator.fail_call("cuMemcpyDtoDAsync", 1, 999).unwrap();
    assert_eq!(kind(vec.push(3)), ErrorKind::Driver, "not tried again: there was room");
    simulator.fail_call("cuMemsetAsync", 1, 999).unwrap();
    assert_eq!(kind(vec.push(3)), ErrorKind::Driver);
    simulator.fail_call("cuMemcpyDtoDAsync", 1, 999).unwrap();
    simulator.fail_call("cuMemcpyDtoDAsync", 2, 999).unwrap();
    vec.shrink_to_fit().unwrap_err();
    vec.shrink_to_fit().unwrap_err();
    simulator.fail_call("cuMemcpyHtoDAsync", 1, 999).unwrap();
    let error = vec.extend_from_slice(&[3, 4]).unwrap_err();
    assert_eq!(error.driver().map(|driver| driver.code()), Some(999));
    assert_eq!(vec.to_vec().unwrap(), [1, 2]);
    vec.push(3).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
    drop(vec);
    stream.synchronize().unwrap();
    assert_eq!(simulator.live_blocks(), 0, "the new blocks of failed moves are freed");
}

#[test]
fn a_shrink_without_memory_leaves_the_vector_as_it_was() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let plain = Arc::new(CudaResource::new(&device));
    let mut vec = DeviceVec::from_slice_in(&stream, &[1_u8, 2], plain).unwrap();
    vec.reserve_exact(100).unwrap();
    let before = (vec.as_device_ptr(), vec.len(), vec.capacity());
    simulator.fail_call("cuMemAlloc", 1, 2).unwrap();
    assert_eq!(kind(vec.shrink_to_fit()), ErrorKind::OutOfMemory);
    assert_eq!((vec.as_device_ptr(), vec.len(), vec.capacity()), before);
    vec.shrink_to_fit().unwrap();
    assert_ne!(vec.as_device_ptr(), before.0, "it moves");
    assert_eq!((vec.capacity(), vec.to_vec().unwrap()), (2, vec![1, 2]));
    let address = vec.as_device_ptr();
    vec.shrink_to_fit().unwrap();
    assert_eq!(vec.as_device_ptr(), address, "a full one stays");
    drop(vec);
    assert_eq!(simulator.live_blocks(), 0);
    simulator.check().unwrap();
}

/// Fills whole vectors, parts of them and tails with `values`.
fn fills<T: Pod + PartialEq + Debug>(values: [T; 3]) {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let [a, b, c] = values;
    let mut vec = DeviceVec::<T>::zeroed(&stream, 9).unwrap();
    let mut model = vec![T::zeroed(); 9];
    vec.fill(a).unwrap();
    model.fill(a);
    vec.slice_mut(1..4).unwrap().fill(b).unwrap();
    model[1..4].fill(b);
    vec.slice_mut(5..6).unwrap().fill(c).unwrap();
    model[5..6].fill(c);
    vec.resize(13, b).unwrap();
    model.resize(13, b);
    vec.push(c).unwrap();
    model.push(c);
    assert_eq!(vec.to_vec().unwrap(), model, "{}", std::any::type_name::<T>());
}

#[test]
fn elements_of_every_size_are_filled_exactly() {
    fills::<u8>([1, 2, 255]);
    fills::<i16>([1, -2, 0x0101]);
    fills::<[u8; 3]>([[1, 2, 3], [9; 3], [0; 3]]);
    fills::<f32>([1.5, -0.0, 3e7]);
    fills::<[u8; 4]>([[1, 2, 3, 4], [1, 2, 1, 2], [5; 4]]);
    fills::<[u8; 5]>([[1, 2, 3, 4, 5], [7; 5], [0, 0, 0, 0, 1]]);
    fills::<[u16; 3]>([[1, 2, 3], [4; 3], [0, 0, 1]]);
    fills::<f64>([1.1, 0.0, f64::MIN]);
    fills::<u64>([1, u64::MAX, 0x0000_0001_0000_0001]);
    fills::<[u32; 3]>([[1, 2, 3], [7; 3], [1, 0, 0]]);
    fills::<u128>([1, u128::MAX, 1 << 100]);
    fills::<[f64; 3]>([[1.1, 2.2, 3.3], [4.4; 3], [0.0; 3]]);
    fills::<[u8; 24]>([[1; 24], std::array::from_fn(|index| index as u8), [0; 24]]);
    fills::<[u16; 12]>([[1; 12], std::array::from_fn(|index| index as u16), [0; 12]]);
}

#[test]
fn a_long_vector_of_wide_elements_is_filled() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    // The simulated device looks at each element of a strided fill.
    let length = if support::on_gpu() { 3_000_001 } else { 5001 };
    let mut vec = DeviceVec::<f64>::zeroed(&stream, length).unwrap();
    vec.fill(1.1).unwrap();
    assert!(vec.to_vec().unwrap().into_iter().all(|value| value == 1.1));
}

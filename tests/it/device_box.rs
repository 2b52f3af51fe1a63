//! A slice on the device that keeps its length: `DeviceBox<[T]>`.

use crate::{kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, DeviceResource, DeviceVec, ErrorKind, container::DeviceBox, error::Refused,
};
use kernels::{add_one, kind};
use std::sync::Arc;

#[test]
fn a_full_vector_is_boxed_and_unboxed_in_place() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let plain: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
    let mut vec = DeviceVec::from_slice_in(&stream, &[1_u16, 2, 3], plain.clone()).unwrap();
    let address = vec.as_device_ptr();
    let boxed = vec.into_boxed_slice().unwrap();
    assert_eq!((boxed.as_device_ptr(), boxed.len(), boxed.size_in_bytes()), (address, 3, 6));
    assert!(boxed.resource() == &plain && !boxed.is_empty());
    assert_eq!((boxed.stream(), boxed.device()), (&stream, &*device));
    vec = boxed.into_vec();
    assert_eq!((vec.as_device_ptr(), vec.capacity()), (address, 3));
    // With room to spare it moves, and the room is gone.
    vec.reserve_exact(1000).unwrap();
    let address = vec.as_device_ptr();
    let boxed = vec.into_boxed_slice().unwrap();
    assert_ne!(boxed.as_device_ptr(), address);
    assert_eq!(boxed.to_vec().unwrap(), [1, 2, 3]);
    assert_eq!(DeviceVec::from(boxed).capacity(), 3);
}

#[test]
fn every_constructor_gives_what_its_name_says() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let plain = || Arc::new(CudaResource::new(&device)) as Arc<dyn DeviceResource>;
    for boxed in [
        DeviceBox::<[u32]>::zeroed(&stream, 5).unwrap(),
        DeviceBox::<[u32]>::zeroed_in(&stream, 5, plain()).unwrap(),
        DeviceBox::from_slice(&stream, &[0; 5]).unwrap(),
        DeviceBox::from_slice_in(&stream, &[0; 5], plain()).unwrap(),
    ] {
        assert_eq!(boxed.to_vec().unwrap(), [0; 5]);
    }
    let none = DeviceBox::<[u32]>::zeroed(&stream, 0).unwrap();
    assert!(none.is_empty() && none.to_vec().unwrap().is_empty());
}

#[test]
fn a_boxed_slice_is_used_on_other_streams_in_order() {
    for seed in 0..10 {
        let device = support::seeded(seed);
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut boxed = DeviceBox::from_slice(&home, &[1_u32; 2000]).unwrap();
        add_one(&home, &mut boxed).unwrap();
        add_one(&other, &mut boxed).unwrap();
        assert_eq!(boxed.on(&other).unwrap().len(), 2000);
        assert_eq!(boxed.on_mut(&other).unwrap().len(), 2000);
        boxed.as_mut_slice().slice_mut(..1).unwrap().fill(7).unwrap();
        boxed.set_stream(&other).unwrap();
        let copy = DeviceVec::from(boxed).try_clone().unwrap();
        assert_eq!(copy.to_vec().unwrap()[..3], [7, 3, 3], "seed {seed}");
    }
}

#[test]
fn what_cannot_shrink_comes_back() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let plain = Arc::new(CudaResource::new(&device));
    assert_eq!(kind(DeviceBox::<[()]>::zeroed(&stream, 1)), ErrorKind::InvalidArgument);
    let mut vec = DeviceVec::from_slice_in(&stream, &[1_u8, 2], plain).unwrap();
    vec.reserve_exact(100).unwrap();
    simulator.fail_call("cuMemAlloc", 1, 2).unwrap();
    let Refused { error, value } = vec.into_boxed_slice().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let boxed = value.into_boxed_slice().unwrap();
    assert!(format!("{boxed:?}").starts_with("DeviceBox { element: u8, length: 2"));
    assert_eq!(boxed.to_vec().unwrap(), [1, 2]);
    drop(boxed);
    assert_eq!(simulator.live_blocks(), 0);
    simulator.check().unwrap();
}

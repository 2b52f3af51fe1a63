//! Every container where things go badly: streams in capture, handles that go first, other threads.

use crate::{kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBuffer, DeviceLayout, DeviceResource, DeviceScalar, DeviceVec,
    ErrorKind, PoolResource, Result, Stream,
    mr::{ManagedResource, OnStream, PolymorphicAllocator},
    stream::StreamPool,
};
use kernels::kind;
use std::sync::Arc;

type Resource = Arc<dyn DeviceResource>;

fn resources(device: &Device) -> [Resource; 3] {
    [
        Arc::new(CudaResource::new(device)),
        Arc::new(ManagedResource::new(device).unwrap()),
        Arc::new(PoolResource::new(CudaResource::new(device)).unwrap()),
    ]
}

/// One of each container.
struct All {
    vec: DeviceVec<u32>,
    buffer: DeviceBuffer,
    scalar: DeviceScalar<u32>,
}

impl All {
    fn new(stream: &Stream, resource: &Resource) -> Self {
        Self {
            vec: DeviceVec::from_slice_in(stream, &[1, 1], resource.clone()).unwrap(),
            buffer: DeviceBuffer::from_slice_in(stream, &[1, 0, 0, 0], resource.clone()).unwrap(),
            scalar: DeviceScalar::new_in(stream, 1, resource.clone()).unwrap(),
        }
    }

    fn move_to(&mut self, stream: &Stream) -> [Result<()>; 3] {
        [
            self.vec.set_stream(stream),
            self.buffer.set_stream(stream),
            self.scalar.set_stream(stream),
        ]
    }

    /// Adds one to each element, on `stream`.
    fn add_one(&mut self, stream: &Stream) {
        kernels::add_one(stream, &mut self.vec).unwrap();
        kernels::add_one(stream, &mut self.buffer.view_mut::<u32>().unwrap()).unwrap();
        kernels::add_one(stream, &mut self.scalar).unwrap();
    }

    fn are(&self, wanted: u32) {
        assert_eq!(self.vec.to_vec().unwrap(), [wanted; 2]);
        assert_eq!(self.buffer.view::<u32>().unwrap().to_vec().unwrap(), [wanted]);
        assert_eq!(self.scalar.value().unwrap(), wanted);
    }
}

#[test]
fn nothing_moves_to_a_stream_in_capture_nor_harms_the_capture() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (home, captured) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    for resource in resources(&device) {
        let mut all = All::new(&home, &resource);
        simulator.start_capture(&captured).unwrap();
        for moved in all.move_to(&captured) {
            assert_eq!(kind(moved), ErrorKind::Capture);
        }
        assert!(simulator.stop_capture(&captured), "the graph is lost");
        assert_eq!(all.vec.stream(), &home);
        for moved in all.move_to(&captured) {
            moved.unwrap();
        }
        all.add_one(&home);
        all.are(2);
    }
    simulator.check().unwrap();
}

#[test]
fn a_read_or_a_drop_in_a_capture_does_not_harm_it() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let home = device.new_stream().unwrap();
    for resource in resources(&device) {
        let all = All::new(&home, &resource);
        home.synchronize().unwrap();
        simulator.start_capture(&home).unwrap();
        assert_eq!(kind(all.scalar.value()), ErrorKind::Capture);
        assert_eq!(kind(all.buffer.to_vec()), ErrorKind::Capture);
        assert_eq!(kind(all.vec.to_vec()), ErrorKind::Capture);
        drop(all);
        assert!(simulator.stop_capture(&home), "the graph is lost to {resource:?}");
    }
    simulator.check().unwrap();
}

#[test]
fn a_collection_that_is_dropped_in_a_capture_does_not_harm_it() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let home = device.new_stream().unwrap();
    let managed = ManagedResource::new(&device).unwrap().allocator().unwrap();
    let on_stream = OnStream::new(managed, &home).unwrap();
    let mut vec = allocator_api2::vec::Vec::new_in(on_stream);
    vec.extend(0..100_u32);
    simulator.start_capture(&home).unwrap();
    drop(vec);
    assert!(simulator.stop_capture(&home), "the graph is lost");
    simulator.check().unwrap();
}

#[test]
fn containers_outlive_all_handles_and_are_freed_in_order_by_another_thread() {
    for seed in 0..20 {
        let (device, simulator) = support::simulated(SimConfig::default().seed(seed));
        let mut held = Vec::new();
        {
            let pool = StreamPool::with_size(&device, 2).unwrap();
            for resource in resources(&device) {
                let mut all = All::new(pool.get(0), &resource);
                all.add_one(pool.get(1));
                for moved in all.move_to(pool.get(1)) {
                    moved.unwrap();
                }
                all.add_one(pool.get(0));
                held.push(all);
            }
        }
        drop(device);
        let again: Vec<_> = std::thread::spawn(move || {
            let resources: Vec<_> = held.iter().map(|all| all.vec.resource().clone()).collect();
            drop(held);
            // The same memory, on a stream that knows nothing of the last use.
            let other = resources[0].device().new_stream().unwrap();
            resources.iter().map(|resource| All::new(&other, resource)).collect()
        })
        .join()
        .unwrap();
        again.iter().for_each(|all| all.are(1));
        drop(again);
        simulator.check().unwrap();
        assert_eq!(simulator.live_bytes(), 0);
    }
}

#[test]
fn sizes_and_types_that_cannot_be_are_errors() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(1 << 20));
    let stream = device.new_stream().unwrap();
    let plain: Resource = Arc::new(CudaResource::new(&device));
    type Nothing = [u64; 0];
    assert_eq!(
        kind(DeviceScalar::<Nothing>::zeroed_in(&stream, plain.clone())),
        ErrorKind::InvalidArgument
    );
    for length in [0, 1, usize::MAX] {
        let vec = DeviceVec::<Nothing>::zeroed_in(&stream, length, plain.clone());
        assert_eq!(kind(vec), ErrorKind::InvalidArgument);
    }
    let words = PolymorphicAllocator::<u64>::new_in(plain.clone());
    for count in [usize::MAX, usize::MAX / 8 + 1, isize::MAX as usize / 8 + 1] {
        assert_eq!(kind(words.allocate(count, &stream)), ErrorKind::InvalidArgument, "{count}");
        let vec = DeviceVec::<u64>::zeroed_in(&stream, count, plain.clone());
        assert_eq!(kind(vec), ErrorKind::InvalidArgument, "{count}");
    }
    // No bytes, and more alignment than any memory has: until there are bytes.
    let wide = DeviceLayout::with_alignment(0, 1 << 40).unwrap();
    let mut buffer = DeviceBuffer::with_layout_in(&stream, wide, plain).unwrap();
    assert_eq!(kind(buffer.resize_zeroed(1)), ErrorKind::OutOfMemory);
    assert_eq!(kind(buffer.view::<Nothing>()), ErrorKind::InvalidArgument);
    assert_eq!(kind(buffer.view_mut::<Nothing>()), ErrorKind::InvalidArgument);
    assert!(buffer.view::<u64>().unwrap().is_empty());
    assert!(buffer.try_clone().unwrap().as_device_ptr().is_multiple_of(1 << 40));
    let buffer = buffer.into_vec::<Nothing>().unwrap_err().value;
    assert_eq!((buffer.len(), buffer.capacity(), buffer.alignment()), (0, 0, 1 << 40));
    assert_eq!(simulator.call_count("cuMemAlloc"), 1);
    simulator.check().unwrap();
}

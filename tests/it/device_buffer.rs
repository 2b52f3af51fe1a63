//! Bytes on the device: `DeviceBuffer`.
//!
//! What RMM's `device_buffer_tests` ask, over the same kinds of memory and a pool, but for what Rust
//! leaves no room for: a null source, a buffer that was moved from or is moved onto itself, a
//! negative or signed size. Where RMM refuses an alignment over 256 bytes, it is given here.

use crate::{kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBuffer, DeviceLayout, DeviceResource, DeviceVec, ErrorKind,
    PoolResource, Stream,
    error::Refused,
    mr::{ManagedResource, current_device_resource},
};
use bytemuck::{Pod, Zeroable};
use kernels::{add_one, kind};
use std::sync::Arc;

/// Plain memory, managed memory and a pool, each with a stream on the device.
fn resources(device: &Device) -> Vec<(Arc<dyn DeviceResource>, Stream)> {
    let pool = PoolResource::new(CudaResource::new(device)).unwrap();
    let all: [Arc<dyn DeviceResource>; 3] = [
        Arc::new(CudaResource::new(device)),
        Arc::new(ManagedResource::new(device).unwrap()),
        Arc::new(pool),
    ];
    all.into_iter().map(|resource| (resource, device.new_stream().unwrap())).collect()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256) as u8).collect()
}

#[test]
fn every_constructor_gives_what_its_name_says() {
    let device = support::device();
    for (resource, stream) in resources(&device) {
        let layout = DeviceLayout::with_alignment(1000, 64).unwrap();
        for zeroes in [
            DeviceBuffer::zeroed(&stream, 1000).unwrap(),
            DeviceBuffer::zeroed_in(&stream, 1000, resource.clone()).unwrap(),
            DeviceBuffer::with_layout(&stream, layout).unwrap(),
            DeviceBuffer::with_layout_in(&stream, layout, resource.clone()).unwrap(),
        ] {
            assert_eq!(zeroes.to_vec().unwrap(), [0; 1000]);
            assert_eq!((zeroes.len(), zeroes.is_empty()), (1000, false));
            assert!(zeroes.capacity() >= 1000);
            assert_eq!((zeroes.stream(), zeroes.device()), (&stream, &*device));
        }
        for copy in [
            DeviceBuffer::from_slice(&stream, &bytes(1000)).unwrap(),
            DeviceBuffer::from_slice_in(&stream, &bytes(1000), resource.clone()).unwrap(),
        ] {
            assert_eq!(copy.to_vec().unwrap(), bytes(1000));
            let mut host = vec![0; 1000];
            copy.copy_to_slice(&mut host).unwrap();
            assert_eq!(host, bytes(1000));
        }
        // SAFETY: written below before they are read.
        for mut unwritten in unsafe {
            [
                DeviceBuffer::uninit(&stream, 5).unwrap(),
                DeviceBuffer::uninit_in(&stream, 5, resource.clone()).unwrap(),
                DeviceBuffer::uninit_with_layout_in(
                    &stream,
                    DeviceLayout::new(5).unwrap(),
                    resource.clone(),
                )
                .unwrap(),
            ]
        } {
            unwritten.copy_from_slice(&[1, 2, 3, 4, 5]).unwrap();
            assert_eq!(unwritten.to_vec().unwrap(), [1, 2, 3, 4, 5]);
        }
        let named = DeviceBuffer::zeroed_in(&stream, 8, resource.clone()).unwrap();
        assert!(named.resource() == &resource);
        let current = DeviceBuffer::zeroed(&stream, 8).unwrap();
        assert!(current.resource() == &current_device_resource(&device).unwrap());
    }
}

#[test]
fn an_empty_buffer_takes_no_memory_and_may_become_a_full_one() {
    let device = support::device();
    for (resource, stream) in resources(&device) {
        let before = device.simulator().map(|simulator| simulator.live_blocks());
        let make = || DeviceBuffer::new_in(&stream, resource.clone()).unwrap();
        let mut empties = [make(), make(), make(), make()];
        for empty in &empties {
            assert_eq!((empty.len(), empty.capacity(), empty.is_empty()), (0, 0, true));
            assert_eq!(empty.to_vec().unwrap(), [0; 0]);
            assert_eq!(empty.try_clone().unwrap().capacity(), 0);
        }
        let after = device.simulator().map(|simulator| simulator.live_blocks());
        assert_eq!(before, after);
        let [resized, reserved, shrunk, copied] = &mut empties;
        resized.resize_zeroed(100).unwrap();
        assert_eq!(resized.to_vec().unwrap(), [0; 100]);
        reserved.reserve(100).unwrap();
        assert!(reserved.is_empty() && reserved.capacity() >= 100);
        shrunk.shrink_to_fit().unwrap();
        assert_eq!(shrunk.capacity(), 0);
        copied.copy_from_slice(&[]).unwrap();
        copied.copy_from(&DeviceVec::<u64>::new(&stream).unwrap()).unwrap();
    }
}

#[test]
fn a_smaller_buffer_keeps_its_memory_until_it_is_told_to_shrink() {
    let device = support::device();
    for (resource, stream) in resources(&device) {
        let mut buffer =
            DeviceBuffer::from_slice_in(&stream, &bytes(100_000), resource.clone()).unwrap();
        let (address, capacity) = (buffer.as_device_ptr(), buffer.capacity());
        buffer.resize_zeroed(50_000).unwrap();
        assert_eq!((buffer.as_device_ptr(), buffer.capacity()), (address, capacity));
        assert_eq!(buffer.len(), 50_000);
        // Back up in the same memory: what was cut off does not show again.
        buffer.resize_zeroed(50_010).unwrap();
        assert_eq!((buffer.as_device_ptr(), buffer.capacity()), (address, capacity));
        assert_eq!(buffer.to_vec().unwrap(), [bytes(50_000), vec![0; 10]].concat());
        buffer.resize_zeroed(50_000).unwrap();
        buffer.shrink_to_fit().unwrap();
        assert_ne!(buffer.as_device_ptr(), address);
        assert!((50_000..60_000).contains(&buffer.capacity()), "{}", buffer.capacity());
        assert_eq!(buffer.to_vec().unwrap(), bytes(50_000));
        let address = buffer.as_device_ptr();
        buffer.shrink_to_fit().unwrap();
        assert_eq!(buffer.as_device_ptr(), address, "there is nothing more to give up");
        buffer.resize_zeroed(0).unwrap();
        buffer.shrink_to_fit().unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (0, 0));
    }
}

#[test]
fn a_larger_buffer_has_exactly_the_room_that_was_asked() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let plain = Arc::new(CudaResource::new(&device));
    let mut buffer = DeviceBuffer::from_slice_in(&stream, &bytes(1000), plain).unwrap();
    assert_eq!(buffer.capacity(), 1000);
    let address = buffer.as_device_ptr();
    buffer.resize_zeroed(1001).unwrap();
    assert_ne!(buffer.as_device_ptr(), address);
    assert_eq!((buffer.len(), buffer.capacity()), (1001, 1001));
    buffer.reserve(500).unwrap();
    assert_eq!((buffer.len(), buffer.capacity()), (1001, 1501));
    let address = buffer.as_device_ptr();
    buffer.reserve(500).unwrap();
    buffer.reserve(0).unwrap();
    // SAFETY: written below before they are read.
    unsafe { buffer.resize_uninit(1501).unwrap() };
    assert_eq!((buffer.as_device_ptr(), buffer.capacity()), (address, 1501));
    buffer.as_mut_slice().slice_mut(1001..).unwrap().fill(9).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [bytes(1000), vec![0], vec![9; 500]].concat());
    // SAFETY: nothing is added.
    unsafe { buffer.resize_uninit(3).unwrap() };
    assert_eq!((buffer.to_vec().unwrap(), buffer.capacity()), (bytes(3), 1501));
}

#[test]
fn what_is_added_and_not_written_is_seen_by_the_simulated_device() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let plain = Arc::new(CudaResource::new(&device));
    let mut buffer = DeviceBuffer::from_slice_in(&stream, &bytes(10), plain).unwrap();
    // SAFETY: read too early, on purpose: any bytes are bytes.
    unsafe { buffer.resize_uninit(20).unwrap() };
    assert_eq!(buffer.as_slice().slice(..10).unwrap().to_vec().unwrap(), bytes(10));
    simulator.check().unwrap();
    let _ = buffer.to_vec();
    assert!(!simulator.take_reports().is_empty());
}

#[test]
fn a_copy_has_the_room_that_it_needs_and_lives_where_it_is_told() {
    for seed in 0..5 {
        let device = support::seeded(seed);
        for (resource, stream) in resources(&device) {
            let mut original =
                DeviceBuffer::from_slice_in(&stream, &bytes(5000), resource.clone()).unwrap();
            original.resize_zeroed(3000).unwrap();
            let other = device.new_stream().unwrap();
            let plain: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
            let clone = original.try_clone().unwrap();
            let here = DeviceBuffer::copy_of(&other, &original).unwrap();
            let there = DeviceBuffer::copy_of_in(&other, &original, plain.clone()).unwrap();
            // In order with the copies, which run on another stream.
            original.as_mut_slice().fill(0).unwrap();
            assert!(clone.resource() == &resource && there.resource() == &plain);
            assert_eq!((clone.stream(), here.stream()), (&stream, &other));
            assert!(clone.capacity() < 5000 && there.capacity() == 3000);
            for copy in [clone, here, there] {
                assert_ne!(copy.as_device_ptr(), original.as_device_ptr());
                assert_eq!(copy.to_vec().unwrap(), bytes(3000), "seed {seed}");
            }
            assert_eq!(original.to_vec().unwrap(), [0; 3000]);
        }
    }
}

#[test]
fn typed_memory_is_copied_by_its_bytes() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice(&stream, &[1.5_f32, -2.5, 3.5]).unwrap();
    let all = bytemuck::cast_slice::<f32, u8>(&[1.5, -2.5, 3.5]);
    let mut buffer = DeviceBuffer::copy_of(&stream, &vec.slice(1..).unwrap()).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), all[4..]);
    buffer.copy_from(&vec.slice(..2).unwrap()).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), all[..8]);
    assert_eq!(kind(buffer.copy_from(&vec)), ErrorKind::LengthMismatch);
    assert_eq!(kind(buffer.copy_from_slice(&[1])), ErrorKind::LengthMismatch);
    assert_eq!(kind(buffer.copy_to_slice(&mut [1])), ErrorKind::LengthMismatch);
}

#[test]
fn a_buffer_that_replaces_another_frees_it() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let plain = || Arc::new(CudaResource::new(&device));
    let mut one = DeviceBuffer::from_slice_in(&stream, &[1, 2], plain()).unwrap();
    assert_eq!(one.as_slice().len(), 2);
    let two = DeviceBuffer::from_slice_in(&stream, &[3, 4, 5], plain()).unwrap();
    let address = two.as_device_ptr();
    one = two;
    assert_eq!((one.as_device_ptr(), simulator.live_bytes()), (address, 3));
    assert_eq!(one.to_vec().unwrap(), [3, 4, 5]);
    drop(one);
    assert_eq!(simulator.live_blocks(), 0);
    simulator.check().unwrap();
}

#[test]
fn an_alignment_is_kept_by_all_that_takes_the_buffers_place() {
    let device = support::device();
    for (resource, stream) in resources(&device) {
        for alignment in [1, 64, 128, 256, 512, 4096, 1 << 16] {
            let aligned = |buffer: &DeviceBuffer, what: &str| {
                assert_eq!(buffer.alignment(), alignment, "{what}");
                assert_eq!(buffer.as_device_ptr() % alignment as u64, 0, "{what} {alignment}");
            };
            let layout = |bytes| DeviceLayout::with_alignment(bytes, alignment).unwrap();
            // Something in between, so that it does not come to lie well by chance.
            let mut between = Vec::new();
            let mut odd = || between.push(DeviceBuffer::zeroed_in(&stream, 300, resource.clone()));
            let mut empty =
                DeviceBuffer::with_layout_in(&stream, layout(0), resource.clone()).unwrap();
            aligned(&empty, "empty");
            odd();
            empty.resize_zeroed(100).unwrap();
            aligned(&empty, "no longer empty");
            odd();
            let mut buffer =
                DeviceBuffer::with_layout_in(&stream, layout(100), resource.clone()).unwrap();
            aligned(&buffer, "new");
            buffer.copy_from_slice(&bytes(100)).unwrap();
            odd();
            buffer.resize_zeroed(5000).unwrap();
            aligned(&buffer, "resized");
            odd();
            buffer.reserve(5000).unwrap();
            aligned(&buffer, "reserved");
            odd();
            buffer.resize_zeroed(100).unwrap();
            buffer.shrink_to_fit().unwrap();
            aligned(&buffer, "shrunk");
            odd();
            let clone = buffer.try_clone().unwrap();
            aligned(&clone, "cloned");
            let moved = buffer;
            aligned(&moved, "moved");
            assert_eq!(moved.to_vec().unwrap(), bytes(100));
            let mut vec = moved.into_vec::<u8>().unwrap();
            odd();
            vec.reserve(10_000).unwrap();
            assert_eq!(vec.as_device_ptr() % alignment as u64, 0, "a vector {alignment}");
            aligned(&DeviceBuffer::from(vec), "a buffer again");
            assert_eq!(clone.to_vec().unwrap(), bytes(100));
        }
    }
    for impossible in [0, 3, 257] {
        let layout = DeviceLayout::with_alignment(10, impossible);
        assert_eq!(kind(layout), ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_vector_and_a_buffer_become_each_other_in_place() {
    let device = support::device();
    for (resource, stream) in resources(&device) {
        let mut vec = DeviceVec::from_slice_in(&stream, &[1_u32, 2, 3], resource.clone()).unwrap();
        vec.reserve_exact(1000).unwrap();
        let (address, room) = (vec.as_device_ptr(), vec.capacity() * 4);
        let buffer = DeviceBuffer::from(vec);
        assert_eq!((buffer.as_device_ptr(), buffer.len()), (address, 12));
        assert!((room..room + 4).contains(&buffer.capacity()));
        assert_eq!(buffer.alignment(), 256);
        assert!(buffer.resource() == &resource);
        assert_eq!(buffer.view::<u16>().unwrap().len(), 6);
        let Refused { error, value: buffer } = buffer.into_vec::<u64>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LengthMismatch);
        let Refused { error, value: buffer } = buffer.into_vec::<()>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let vec = buffer.into_vec::<f32>().unwrap();
        assert_eq!((vec.as_device_ptr(), vec.len()), (address, 3));
        assert_eq!(vec.cast::<u32>().unwrap().to_vec().unwrap(), [1, 2, 3]);
        let empty = DeviceBuffer::from(DeviceVec::<u64>::new(&stream).unwrap());
        assert_eq!(empty.into_vec::<u8>().unwrap().to_vec().unwrap(), [0; 0]);
    }
}

#[test]
fn memory_that_lies_badly_is_refused_and_comes_back() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C, align(512))]
    struct Wide([u8; 512]);
    // SAFETY: 512 bytes aligned to 512 have no padding, and any bytes are a value.
    unsafe impl Zeroable for Wide {}
    // SAFETY: as above.
    unsafe impl Pod for Wide {}

    let device = support::device();
    let stream = device.new_stream().unwrap();
    let plain = CudaResource::new(&device);
    let layout = DeviceLayout::with_alignment(1024, 512).unwrap();
    let well = DeviceBuffer::with_layout(&stream, layout).unwrap();
    assert_eq!(well.view::<Wide>().unwrap().len(), 2);
    let vec = well.into_vec::<Wide>().unwrap();
    assert_eq!(DeviceBuffer::from(vec).alignment(), 512);

    // A block whose address is a multiple of 8 and of no more.
    let block = plain.allocate(&stream, layout).unwrap();
    let (token, whole) = (block.token(), block.address());
    let block = aquifer::DeviceBlock::new(whole + 8, 512, token);
    // SAFETY: the last bytes of a block of this resource, found again by its token.
    let vec =
        unsafe { DeviceVec::<u64>::from_raw_parts(stream.clone(), block, 64, plain).unwrap() };
    let mut buffer = DeviceBuffer::from(vec);
    assert_eq!(buffer.alignment(), 8, "as it is found");
    assert_eq!(kind(buffer.view::<Wide>()), ErrorKind::InvalidArgument);
    assert_eq!(kind(buffer.view_mut::<Wide>()), ErrorKind::InvalidArgument);
    let Refused { error, value: mut buffer } = buffer.into_vec::<Wide>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    buffer.as_mut_slice().fill(5).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [5; 512]);
}

#[test]
fn a_buffer_is_used_on_other_streams_in_order() {
    for seed in 0..10 {
        let device = support::seeded(seed);
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut buffer = DeviceBuffer::zeroed(&home, 4000).unwrap();
        add_one(&other, &mut buffer.view_mut::<u32>().unwrap()).unwrap();
        add_one(&home, &mut buffer.view_mut::<u32>().unwrap()).unwrap();
        assert_eq!(buffer.on(&other).unwrap().len(), 4000);
        assert_eq!(buffer.on_mut(&other).unwrap().len(), 4000);
        add_one(&other, &mut buffer.view_mut::<u32>().unwrap()).unwrap();
        buffer.resize_zeroed(4004).unwrap();
        buffer.set_stream(&other).unwrap();
        assert_eq!(buffer.stream(), &other);
        drop(home);
        add_one(&other, &mut buffer.view_mut::<u32>().unwrap()).unwrap();
        let words = buffer.view::<u32>().unwrap().to_vec().unwrap();
        assert_eq!(words, [[4_u32; 1000].as_slice(), &[1]].concat(), "seed {seed}");
        let (host, _vec) = other
            .download(buffer.into_vec::<u8>().unwrap(), vec![0; 4004])
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(host[..4], [4, 0, 0, 0]);
    }
}

#[test]
fn what_cannot_be_is_an_error_and_changes_nothing() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(1 << 20));
    let (elsewhere, _) = support::simulated(SimConfig::default().ordinal(1));
    let stream = device.new_stream().unwrap();
    let plain: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
    let foreign = Arc::new(CudaResource::new(&elsewhere));
    assert_eq!(kind(DeviceBuffer::new_in(&stream, foreign.clone())), ErrorKind::WrongDevice);
    assert_eq!(kind(DeviceBuffer::zeroed_in(&stream, 8, foreign)), ErrorKind::WrongDevice);
    let most = DeviceBuffer::zeroed_in(&stream, usize::MAX, plain.clone());
    assert_eq!(kind(most), ErrorKind::InvalidArgument);
    let mut buffer = DeviceBuffer::from_slice_in(&stream, &bytes(100), plain.clone()).unwrap();
    assert_eq!(kind(buffer.resize_zeroed(usize::MAX)), ErrorKind::InvalidArgument);
    assert_eq!(kind(buffer.reserve(usize::MAX)), ErrorKind::InvalidArgument);
    assert_eq!(kind(buffer.resize_zeroed(2 << 20)), ErrorKind::OutOfMemory);
    assert_eq!(kind(buffer.reserve(2 << 20)), ErrorKind::OutOfMemory);
    let other = elsewhere.new_stream().unwrap();
    assert_eq!(kind(buffer.set_stream(&other)), ErrorKind::WrongDevice);
    // A copy that fails leaks nothing, nor does a fill that fails make the buffer longer.
    for (call, what) in [("cuMemcpyHtoDAsync", "from_slice"), ("cuMemsetAsync", "resize")] {
        let before = simulator.live_blocks();
        simulator.fail_call(call, 1, 999).unwrap();
        match what {
            "from_slice" => {
                let copy = DeviceBuffer::from_slice_in(&stream, &bytes(100), plain.clone());
                assert_eq!(kind(copy), ErrorKind::Driver);
            }
            _ => assert_eq!(kind(buffer.resize_zeroed(200)), ErrorKind::Driver),
        }
        assert_eq!(simulator.live_blocks(), before, "{what}");
    }
    assert_eq!((buffer.len(), buffer.stream()), (100, &stream));
    assert_eq!(buffer.to_vec().unwrap(), bytes(100));
    assert!(format!("{buffer:?}").starts_with("DeviceBuffer { element: u8, length: 100"));
    drop(buffer);
    assert_eq!(simulator.live_blocks(), 0);
    simulator.check().unwrap();
}

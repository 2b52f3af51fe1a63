//! What a `DeviceVec` is made by, what its views reach, and what it copies.

use crate::{kernels, support};
use aquifer::allocator_api2::alloc::{AllocError, Allocator};
use aquifer::sim::Report;
use aquifer::sim::{SimConfig, Violation};
use aquifer::{
    CudaResource, DeviceBlock, DeviceResource, DeviceVec, ErrorKind, PinnedAlloc,
    mr::current_device_resource,
};
use bytemuck::Pod;
use kernels::{add_one, kind};
use std::alloc::Layout;
use std::ops::Bound;
use std::ptr::NonNull;
use std::sync::Arc;

#[test]
fn every_constructor_gives_what_its_name_says() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let resource = || Arc::new(CudaResource::new(&device)) as Arc<dyn DeviceResource>;

    for vec in [
        DeviceVec::<u16>::new(&stream).unwrap(),
        DeviceVec::<u16>::new_in(&stream, resource()).unwrap(),
    ] {
        assert_eq!((vec.len(), vec.capacity(), vec.size_in_bytes()), (0, 0, 0));
        assert!(vec.is_empty());
    }
    for vec in [
        DeviceVec::<u16>::with_capacity(&stream, 10).unwrap(),
        DeviceVec::<u16>::with_capacity_in(&stream, 10, resource()).unwrap(),
    ] {
        assert!(vec.is_empty() && vec.capacity() >= 10);
    }
    for vec in [
        DeviceVec::<u16>::zeroed(&stream, 10).unwrap(),
        DeviceVec::<u16>::zeroed_in(&stream, 10, resource()).unwrap(),
    ] {
        assert_eq!(vec.to_vec().unwrap(), [0; 10]);
        assert_eq!(vec.size_in_bytes(), 20);
    }
    for vec in [
        DeviceVec::from_slice(&stream, &[1_u16, 2, 3]).unwrap(),
        DeviceVec::from_slice_in(&stream, &[1_u16, 2, 3], resource()).unwrap(),
        DeviceVec::from_vec(&stream, vec![1_u16, 2, 3]).unwrap(),
    ] {
        assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
        assert_eq!(vec.stream(), &stream);
        assert_eq!(vec.device(), &*device);
        assert_eq!(vec.as_device_ptr() % 256, 0);
    }
    // SAFETY: written below before they are read.
    for mut vec in unsafe {
        [
            DeviceVec::<u16>::uninit(&stream, 2).unwrap(),
            DeviceVec::<u16>::uninit_in(&stream, 2, resource()).unwrap(),
        ]
    } {
        assert_eq!(vec.len(), 2);
        vec.copy_from_slice(&[7, 8]).unwrap();
        assert_eq!(vec.to_vec().unwrap(), [7, 8]);
    }
}

#[test]
fn a_resource_of_another_device_is_refused() {
    let (one, _) = support::simulated(SimConfig::default());
    let (two, _) = support::simulated(SimConfig::default());
    let stream = one.new_stream().unwrap();
    let elsewhere = Arc::new(CudaResource::new(&two));
    let refused = DeviceVec::<u8>::new_in(&stream, elsewhere.clone());
    assert_eq!(kind(refused), ErrorKind::WrongDevice);
    assert_eq!(kind(DeviceVec::zeroed_in(&stream, 4, elsewhere) as Result<DeviceVec<u8>, _>), {
        ErrorKind::WrongDevice
    });
}

#[test]
fn elements_without_a_size_are_refused() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    assert_eq!(kind(DeviceVec::<()>::new(&stream)), ErrorKind::InvalidArgument);
    assert_eq!(kind(DeviceVec::<[u32; 0]>::zeroed(&stream, 3)), ErrorKind::InvalidArgument);
    let vec = DeviceVec::<u8>::zeroed(&stream, 3).unwrap();
    let refused = vec.cast::<()>().unwrap_err();
    let (error, vec) = (refused.error, refused.value);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(vec.len(), 3, "the vector comes back");
}

#[test]
fn an_empty_vector_takes_no_memory_and_every_method_works_on_it() {
    let device = support::device();
    let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::<u32>::from_slice(&stream, &[]).unwrap();
    vec.fill(1).unwrap();
    vec.copy_from_slice(&[]).unwrap();
    vec.extend_from_slice(&[]).unwrap();
    vec.resize(0, 9).unwrap();
    vec.truncate(0);
    vec.clear();
    vec.shrink_to_fit().unwrap();
    vec.reserve(0).unwrap();
    vec.reserve_exact(0).unwrap();
    assert!(vec.slice(..).unwrap().is_empty());
    let (head, tail) = vec.split_at_mut(0).unwrap();
    assert!(head.is_empty() && tail.is_empty());
    assert!(vec.on(&other).unwrap().is_empty());
    assert!(vec.on_mut(&other).unwrap().is_empty());
    add_one(&other, &mut vec).unwrap();
    let clone = vec.try_clone().unwrap();
    vec.copy_from(&clone).unwrap();
    vec.set_stream(&other).unwrap();
    let vec = vec.cast::<u64>().unwrap();
    assert_eq!(vec.to_vec().unwrap(), []);
    assert!(vec.to_vec_in(PinnedAlloc).unwrap().is_empty());
    let (home, block, length, resource) = vec.into_raw_parts().unwrap();
    assert!(block.is_empty());
    // SAFETY: the parts of a vector, put together once.
    let vec = unsafe { DeviceVec::<u64>::from_raw_parts(home, block, length, resource).unwrap() };
    assert_eq!(vec.capacity(), 0);
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.live_blocks(), 0);
        assert_eq!(simulator.call_count("cuMemAlloc"), 0);
    }
}

#[test]
fn elements_are_read_and_written_one_at_a_time_inside_the_bounds() {
    let device = support::device();
    let mut vec = DeviceVec::from_slice(&device.new_stream().unwrap(), &[1_u64, 2, 3]).unwrap();
    assert_eq!((vec.get(0).unwrap(), vec.get(2).unwrap()), (1, 3));
    vec.set(2, 30).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 30]);
    for index in [3, usize::MAX] {
        let error = vec.get(index).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfBounds);
        assert!(error.to_string().contains(&index.to_string()), "{error}");
        assert!(error.to_string().contains("3 elements"), "{error}");
        assert_eq!(kind(vec.set(index, 0)), ErrorKind::OutOfBounds);
    }
    vec.truncate(1);
    assert_eq!(kind(vec.get(1)), ErrorKind::OutOfBounds, "room is not elements");
}

#[test]
fn views_lie_inside_their_parent_or_are_errors() {
    let device = support::device();
    let data: Vec<u32> = (0..10).collect();
    let mut vec = DeviceVec::from_slice(&device.new_stream().unwrap(), &data).unwrap();
    assert_eq!(vec.slice(..).unwrap().to_vec().unwrap(), data);
    assert_eq!(vec.slice(2..=4).unwrap().to_vec().unwrap(), [2, 3, 4]);
    assert_eq!(vec.slice(10..).unwrap().len(), 0);
    let inner = vec.slice(3..8).unwrap().slice(1..3).unwrap();
    assert_eq!(inner.to_vec().unwrap(), [4, 5]);
    assert_eq!(inner.as_device_ptr(), vec.as_device_ptr() + 16);
    assert_eq!(inner.size_in_bytes(), 8);

    #[allow(clippy::reversed_empty_ranges, reason = "what must be refused")]
    for wrong in [
        (Bound::Included(0), Bound::Excluded(11)),
        (Bound::Included(11), Bound::Unbounded),
        (Bound::Included(7), Bound::Excluded(6)),
        (Bound::Unbounded, Bound::Included(10)),
        (Bound::Unbounded, Bound::Included(usize::MAX)),
        (Bound::Excluded(usize::MAX), Bound::Unbounded),
    ] {
        assert_eq!(kind(vec.slice(wrong)), ErrorKind::OutOfBounds, "{wrong:?}");
        assert_eq!(kind(vec.slice_mut(wrong)), ErrorKind::OutOfBounds, "{wrong:?}");
    }
    let mut view = vec.slice_mut(2..5).unwrap();
    assert_eq!(kind(view.as_slice().slice(2..4)), ErrorKind::OutOfBounds, "of the view");
    assert_eq!(kind(view.slice_mut(..4)), ErrorKind::OutOfBounds, "of the view");
}

#[test]
fn mutable_views_write_their_own_range_alone() {
    let device = support::device();
    let mut vec = DeviceVec::<u8>::zeroed(&device.new_stream().unwrap(), 8).unwrap();
    vec.slice_mut(1..3).unwrap().fill(1).unwrap();
    let mut view = vec.slice_mut(4..).unwrap();
    view.reborrow().slice_mut(2..).unwrap().copy_from_slice(&[7, 8]).unwrap();
    view.fill_first(5);
    assert_eq!(vec.to_vec().unwrap(), [0, 1, 1, 0, 5, 0, 7, 8]);
}

/// Fills the first element of a view, which stays usable.
trait FillFirst {
    fn fill_first(&mut self, value: u8);
}

impl FillFirst for aquifer::DeviceSliceMut<'_, u8> {
    fn fill_first(&mut self, value: u8) {
        self.reborrow().slice_mut(..1).unwrap().fill(value).unwrap();
    }
}

#[test]
fn two_halves_are_used_at_once_and_copied_into_each_other() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&stream, &[1_u32, 2, 3, 4, 5]).unwrap();
    let (mut head, mut tail) = vec.split_at_mut(2).unwrap();
    assert_eq!((head.len(), tail.len()), (2, 3));
    let (first, mut rest) = tail.split_at_mut(1).unwrap();
    head.copy_from(&rest).unwrap();
    rest.slice_mut_last().copy_from(&first).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [4, 5, 3, 4, 3]);
    assert_eq!(kind(vec.split_at_mut(6)), ErrorKind::OutOfBounds);
    let (mut all, none) = vec.split_at_mut(5).unwrap();
    assert_eq!((all.len(), none.len()), (5, 0));
    assert_eq!(kind(all.split_at_mut(usize::MAX)), ErrorKind::OutOfBounds);
}

/// The last element of a view.
trait Last {
    fn slice_mut_last(&mut self) -> aquifer::DeviceSliceMut<'_, u32>;
}

impl Last for aquifer::DeviceSliceMut<'_, u32> {
    fn slice_mut_last(&mut self) -> aquifer::DeviceSliceMut<'_, u32> {
        let last = self.len() - 1;
        self.reborrow().into_slice_mut(last..).unwrap()
    }
}

#[test]
fn copies_of_unequal_lengths_are_refused_and_change_nothing() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&stream, &[1_u32, 2, 3]).unwrap();
    let source = DeviceVec::from_slice(&stream, &[9_u32; 4]).unwrap();
    let mut host = [0; 2];
    for refused in [
        vec.copy_from_slice(&[9, 9]),
        vec.copy_from_slice(&[]),
        vec.copy_to_slice(&mut host),
        vec.copy_from(&source),
        vec.slice_mut(1..).unwrap().copy_from(&source.slice(..1).unwrap()),
        // SAFETY: the source outlives the vector's last use below.
        unsafe { vec.copy_from_slice_async(&[9; 4]) },
        // SAFETY: the target outlives the vector's last use below.
        unsafe { vec.copy_to_slice_async(&mut host) },
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LengthMismatch);
    }
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
    assert_eq!(host, [0; 2]);
    vec.copy_from(&source.slice(..3).unwrap()).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [9, 9, 9]);
}

#[test]
fn copies_without_waiting_are_complete_after_the_home_stream() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 3).unwrap();
    let (source, mut target) = ([1, 2, 3], [0; 3]);
    // SAFETY: both arrays outlive the synchronisation, and nobody touches them before it.
    unsafe {
        vec.copy_from_slice_async(&source).unwrap();
        add_one(&stream, &mut vec).unwrap();
        vec.copy_to_slice_async(&mut target).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(target, [2, 3, 4]);
}

#[test]
fn a_clone_is_another_vector_with_the_same_elements() {
    let device = support::unfollowed();
    let stream = device.new_stream().unwrap();
    let plain = Arc::new(CudaResource::new(&device));
    // The default hands out multiples of 256 bytes.
    for (resource, room) in
        [(plain as Arc<dyn DeviceResource>, 3), (current_device_resource(&device).unwrap(), 64)]
    {
        let mut vec = DeviceVec::with_capacity_in(&stream, 100, resource).unwrap();
        vec.extend_from_slice(&[1_u32, 2, 3]).unwrap();
        let clone = vec.try_clone().unwrap();
        vec.fill(0).unwrap();
        assert_eq!(clone.to_vec().unwrap(), [1, 2, 3]);
        assert_eq!(clone.capacity(), room, "room for its elements alone");
        assert_eq!(clone.stream(), &stream);
        assert!(Arc::ptr_eq(clone.resource(), vec.resource()));
    }
}

#[test]
fn a_cast_keeps_the_bytes_and_frees_what_was_allocated() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let plain = Arc::new(CudaResource::new(&device));
    let mut bytes = DeviceVec::from_slice_in(&stream, &[1_u8, 0, 2, 0, 3], plain).unwrap();
    let refused = bytes.cast::<u16>().unwrap_err();
    let (error, back) = (refused.error, refused.value);
    assert_eq!(error.kind(), ErrorKind::LengthMismatch);
    assert!(error.to_string().contains('5'), "{error}");
    bytes = back;
    bytes.truncate(4);
    let mut words = bytes.cast::<u16>().unwrap();
    assert_eq!(words.to_vec().unwrap(), [1, 2]);
    assert_eq!(words.capacity(), 2, "the odd byte is room for nothing");
    words.push(3).unwrap();
    let bytes = words.cast::<[u8; 3]>().unwrap();
    assert_eq!(bytes.to_vec().unwrap(), [[1, 0, 2], [0, 3, 0]]);
    drop(bytes);
    stream.synchronize().unwrap();
    if let Some(simulator) = device.simulator() {
        assert_eq!((simulator.live_bytes(), simulator.live_blocks()), (0, 0));
    }
}

/// A block of `vec`'s memory that begins `skip` bytes into it, at home on its stream.
fn alias<T: Pod>(vec: &DeviceVec<u8>, skip: u64, length: usize) -> Result<(), ErrorKind> {
    let (stream, resource) = (vec.stream().clone(), vec.resource().clone());
    let block = DeviceBlock::new(vec.as_device_ptr() + skip, vec.len() - skip as usize, 0);
    // SAFETY: nothing uses the alias; it is taken apart again, so `vec` alone frees the memory.
    match unsafe { DeviceVec::<T>::from_raw_parts(stream, block, length, resource) } {
        Ok(alias) => {
            let _ = alias.into_raw_parts().unwrap();
            Ok(())
        }
        Err(error) => Err(error.kind()),
    }
}

#[test]
fn parts_make_the_vector_again_and_parts_that_do_not_fit_are_refused() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice(&stream, &[1_u32, 2, 3]).unwrap();
    let address = vec.as_device_ptr();
    let (home, block, length, resource) = vec.into_raw_parts().unwrap();
    assert_eq!((&home, block.address(), length), (&stream, address, 3));
    // SAFETY: the parts of a vector, put together once.
    let vec = unsafe { DeviceVec::<u32>::from_raw_parts(home, block, length, resource).unwrap() };
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);

    let bytes = DeviceVec::<u8>::zeroed(&stream, 16).unwrap();
    assert_eq!(alias::<u32>(&bytes, 0, 4), Ok(()));
    assert_eq!(alias::<u32>(&bytes, 0, 5), Err(ErrorKind::InvalidArgument), "too short");
    assert_eq!(alias::<u32>(&bytes, 0, usize::MAX), Err(ErrorKind::InvalidArgument), "wraps");
    assert_eq!(alias::<u32>(&bytes, 2, 2), Err(ErrorKind::InvalidArgument), "misaligned");
    assert_eq!(alias::<[u8; 4]>(&bytes, 2, 2), Ok(()));
    assert_eq!(alias::<()>(&bytes, 0, 4), Err(ErrorKind::InvalidArgument), "no size");
}

#[test]
fn an_alignment_that_the_memory_lacks_refuses_a_cast() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let whole = DeviceVec::<u8>::zeroed(&stream, 17).unwrap();
    let block = DeviceBlock::new(whole.as_device_ptr() + 1, 16, 0);
    let resource = whole.resource().clone();
    // SAFETY: `whole` is not used while this lives, and frees the memory alone.
    let odd = unsafe { DeviceVec::<u8>::from_raw_parts(stream, block, 16, resource).unwrap() };
    let refused = odd.cast::<u32>().unwrap_err();
    let (error, odd) = (refused.error, refused.value);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("an alignment of 4 bytes"), "{error}");
    assert_eq!(odd.to_vec().unwrap(), [0; 16]);
    let _ = odd.into_raw_parts().unwrap();
}

/// An allocator without any room.
struct Full;

// SAFETY: it never hands anything out.
unsafe impl Allocator for Full {
    fn allocate(&self, _layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        Err(AllocError)
    }

    unsafe fn deallocate(&self, _pointer: NonNull<u8>, _layout: Layout) {}
}

#[test]
fn elements_come_back_in_memory_of_any_allocator() {
    let device = support::device();
    let vec = DeviceVec::from_slice(&device.new_stream().unwrap(), &[1.5_f32, 2.5]).unwrap();
    assert_eq!(vec.to_vec_in(PinnedAlloc).unwrap().as_slice(), [1.5, 2.5]);
    assert_eq!(vec.slice(1..).unwrap().to_vec_in(PinnedAlloc).unwrap().as_slice(), [2.5]);
    let error = vec.to_vec_in(Full).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("8 bytes"), "{error}");
}

#[test]
fn debug_shows_where_it_lives_and_not_what_it_holds() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::from_slice(&stream, &[123_456_789_u32, 2]).unwrap();
    let address = format!("{:#x}", vec.as_device_ptr());
    for shown in [format!("{vec:?}"), format!("{:?}", vec.as_slice()), format!("{:#?}", &vec)] {
        for wanted in [&address, "u32", "length: 2", &stream.to_string()] {
            assert!(shown.contains(wanted), "{shown} without {wanted}");
        }
        assert!(!shown.contains("123456789"), "{shown}");
    }
    let shown = format!("{vec:?}");
    assert!(shown.contains("resource: PoolResource"), "{shown}");
    assert!(shown.contains("element: u32") && shown.len() < 200, "{shown}");
}

#[test]
fn a_vector_moves_to_another_home_and_its_work_stays_in_order() {
    let device = support::device();
    let (one, two) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::<u32>::zeroed(&one, 1000).unwrap();
    for home in [&two, &one, &two, &two] {
        add_one(home, &mut vec).unwrap();
        vec.set_stream(home).unwrap();
        add_one(home, &mut vec).unwrap();
        assert_eq!(vec.stream(), home);
    }
    assert_eq!(vec.to_vec().unwrap(), [8; 1000]);
    let (elsewhere, _) = support::simulated(SimConfig::default());
    let foreign = elsewhere.new_stream().unwrap();
    assert_eq!(kind(vec.set_stream(&foreign)), ErrorKind::WrongDevice);
    assert_eq!(vec.stream(), &two, "the home is what it was");
}

/// To copy or to move what was never written is no fault: to read it is.
#[test]
fn a_copy_of_what_nobody_wrote_is_reported_where_it_is_read() {
    for config in [SimConfig::default(), SimConfig::default().without_pool_checks()] {
        let (device, simulator) = support::simulated(config);
        let stream = device.new_stream().unwrap();
        // SAFETY: wrong on purpose: all but three elements are read before they are written.
        let mut vec = unsafe { DeviceVec::<u32>::uninit(&stream, 300).unwrap() };
        vec.slice_mut(..3).unwrap().fill(1).unwrap();
        let mut copy = vec.try_clone().unwrap();
        copy.resize(1000, 2).unwrap();
        vec.reserve_exact(5000).unwrap();
        vec.shrink_to_fit().unwrap();
        stream.synchronize().unwrap();
        simulator.check().unwrap();

        for vec in [&mut vec, &mut copy] {
            assert_eq!(vec.slice(..3).unwrap().to_vec().unwrap(), [1; 3]);
            let (error, line) = (vec.get(3).unwrap_err(), line!());
            let report = Report::of(&error).unwrap();
            assert_eq!(report.kind(), Violation::UninitializedRead);
            assert!(report.operation().starts_with("cuMemcpyDtoHAsync"), "{report}");
            assert_eq!(report.operation_location().unwrap().line(), line);
            assert!(report.conflicts_with().unwrap().starts_with("cuMemcpyDtoDAsync"), "{report}");
            assert_eq!(simulator.take_reports().len(), 1);
            vec.set(3, 1).unwrap();
            assert_eq!(vec.slice(..4).unwrap().to_vec().unwrap(), [1; 4]);
            simulator.check().unwrap();
        }
        assert_eq!(copy.slice(300..).unwrap().to_vec().unwrap(), [2; 700]);
        simulator.check().unwrap();
    }
}

#[test]
fn a_read_of_what_nobody_wrote_is_reported() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    // SAFETY: the simulated device only; what is read is thrown away.
    let mut vec = unsafe { DeviceVec::<u32>::uninit(&stream, 4).unwrap() };
    vec.slice_mut(..3).unwrap().fill(1).unwrap();
    assert_eq!(vec.slice(..3).unwrap().to_vec().unwrap(), [1; 3]);
    let error = vec.get(3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Simulation);
    let shown = format!("{error:?}");
    assert!(shown.contains("reads bytes that were never written"), "`unwrap` says why: {shown}");
    assert_eq!(kind(simulator.check()), ErrorKind::Simulation);
    let reports = simulator.take_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].kind(), Violation::UninitializedRead);
    assert_eq!(reports[0].range(), (vec.as_device_ptr() + 12, 4));
    assert!(vec.to_vec().is_err(), "still unwritten");
    let _ = simulator.take_reports();
    vec.set(3, 4).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 1, 1, 4]);
}

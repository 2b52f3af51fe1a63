//! Vectors as buffers of theirs and back, and the order of the streams.

mod support;

use aquifer::allocator_api2::vec::Vec as AllocVec;
use aquifer::pinned::{PinnedPool, PinnedResource, set_current_pinned_resource};
use aquifer::{CudaResource, DeviceVec, ErrorKind, PinnedAlloc, PoolResource};
use aquifer_nvidia::{
    adopt, borrow_mut, download, from_stream, into_buffer, into_vec, into_vec_after, upload,
    upload_new,
};
use cuda_async::device_operation::DeviceOp;
use cuda_core::{DeviceBuffer, DriverError, sys};
use std::error::Error as _;
use std::future::{Future, IntoFuture};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use support::{delay_theirs, gpu, write_slowly, write_slowly_theirs};

const N: usize = 1 << 12;
const NOT_READY: u32 = sys::cudaError_enum_CUDA_ERROR_NOT_READY;

/// The driver's code behind an error.
fn code(error: &aquifer::Error) -> u32 {
    error.source().and_then(|source| source.downcast_ref::<DriverError>()).unwrap().0
}

/// A host that waits for a slow kernel takes longer.
const SHORT: Duration = Duration::from_millis(30);

#[test]
fn their_stream_comes_after_home() {
    let Some((device, context, _alone)) = gpu("their_stream_comes_after_home") else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; N]).unwrap();
    write_slowly(&home, &mut vec, 7);
    let began = Instant::now();
    let buffer = into_buffer(vec, &theirs).unwrap();
    assert!(began.elapsed() < SHORT, "the host waited: {:?}", began.elapsed());
    assert_eq!(buffer.to_host_vec(&theirs).unwrap(), [7; N]);
}

#[test]
fn their_stream_comes_after_uses_elsewhere() {
    let Some((device, context, _alone)) = gpu("their_stream_comes_after_uses_elsewhere") else {
        return;
    };
    let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let theirs = context.new_stream().unwrap();
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; N]).unwrap();
    write_slowly(&other, &mut vec, 7);
    let buffer = into_buffer(vec, &theirs).unwrap();
    assert_eq!(buffer.to_host_vec(&theirs).unwrap(), [7; N]);
}

#[test]
fn another_stream_is_refused_until_home_is_done() {
    let test = "another_stream_is_refused_until_home_is_done";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let home = device.new_stream().unwrap();
    let (theirs, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; N]).unwrap();
    write_slowly(&home, &mut vec, 7);
    let buffer = into_buffer(vec, &theirs).unwrap();
    assert_eq!(buffer.to_host_vec(&other).unwrap_err().0, NOT_READY);
    theirs.synchronize().unwrap();
    assert_eq!(buffer.to_host_vec(&other).unwrap(), [7; N]);
}

#[test]
fn home_comes_after_their_stream() {
    let Some((device, context, _alone)) = gpu("home_comes_after_their_stream") else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let vec = DeviceVec::from_slice(&home, &[1_u32; N]).unwrap();
    let mut buffer = into_buffer(vec, &theirs).unwrap();
    delay_theirs(&theirs);
    buffer.zero_async(&theirs).unwrap();
    let began = Instant::now();
    let vec = into_vec_after(buffer, &theirs).unwrap();
    assert!(began.elapsed() < SHORT, "the host waited: {:?}", began.elapsed());
    assert_eq!(vec.stream(), &home);
    assert_eq!(vec.to_vec().unwrap(), [0; N]);
}

#[test]
fn home_comes_after_all_that_the_context_was_given() {
    let test = "home_comes_after_all_that_the_context_was_given";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let vec = DeviceVec::from_slice(&home, &[1_u32; N]).unwrap();
    let buffer = into_buffer(vec, &theirs).unwrap();
    // SAFETY: the buffer has N elements, and its memory is in the buffer or the vector until the test ends.
    unsafe { write_slowly_theirs(&theirs, buffer.cu_deviceptr(), N as u32, 9) };
    let began = Instant::now();
    let vec = into_vec(buffer).unwrap();
    assert!(began.elapsed() < SHORT, "the host waited: {:?}", began.elapsed());
    assert_eq!(vec.to_vec().unwrap(), [9; N]);
}

#[test]
fn the_wrong_stream_is_refused_and_the_buffer_comes_back() {
    let test = "the_wrong_stream_is_refused_and_the_buffer_comes_back";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let home = device.new_stream().unwrap();
    let (theirs, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let vec = DeviceVec::from_slice(&home, &[1_u32; N]).unwrap();
    let mut buffer = into_buffer(vec, &theirs).unwrap();
    delay_theirs(&theirs);
    buffer.zero_async(&theirs).unwrap();
    let refused = into_vec_after(buffer, &other).unwrap_err();
    assert_eq!((refused.error.kind(), code(&refused.error)), (ErrorKind::Driver, NOT_READY));
    let vec = into_vec(refused.value).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [0; N]);
}

#[test]
fn a_vector_keeps_address_capacity_and_home() {
    let Some((device, context, _alone)) = gpu("a_vector_keeps_address_capacity_and_home") else {
        return;
    };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let mut vec = DeviceVec::<u32>::with_capacity(&home, 2 * N).unwrap();
    vec.resize(N, 5).unwrap();
    let before = (vec.as_device_ptr(), vec.capacity(), vec.len());
    let buffer = into_buffer(vec, &theirs).unwrap();
    assert_eq!((buffer.cu_deviceptr(), buffer.len()), (before.0, N));
    let mut vec = into_vec_after(buffer, &theirs).unwrap();
    assert_eq!((vec.as_device_ptr(), vec.capacity(), vec.len()), before);
    vec.push(6).unwrap();
    assert_eq!(vec.get(N).unwrap(), 6);
}

#[test]
fn a_dropped_buffer_frees_its_memory_when_the_work_is_complete() {
    let test = "a_dropped_buffer_frees_its_memory_when_the_work_is_complete";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let vec = DeviceVec::<u32>::zeroed_in(&home, N, pool.clone()).unwrap();
    let mut buffer = into_buffer(vec, &theirs).unwrap();
    delay_theirs(&theirs);
    buffer.zero_async(&theirs).unwrap();
    drop(buffer);
    assert_ne!(pool.statistics().live, 0, "the memory went before the work");
    theirs.synchronize().unwrap();
    let began = Instant::now();
    while pool.statistics().live != 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "the memory never came back");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_stream_in_capture_is_refused() {
    let Some((device, context, _alone)) = gpu("a_stream_in_capture_is_refused") else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let vec = DeviceVec::from_slice(&home, &[1_u32; N]).unwrap();
    // SAFETY: the capture is ended below, and its graph is never launched.
    unsafe { theirs.begin_capture(2) }.unwrap();
    let refused = into_buffer(vec, &theirs).err().unwrap();
    assert_eq!(refused.error.kind(), ErrorKind::Capture);
    // SAFETY: it was begun above. The empty graph is leaked.
    unsafe { theirs.end_capture() }.unwrap();
    let buffer = into_buffer(refused.value, &theirs).unwrap();
    // SAFETY: as above.
    unsafe { theirs.begin_capture(2) }.unwrap();
    let refused = into_vec_after(buffer, &theirs).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Capture);
    // SAFETY: as above.
    unsafe { theirs.end_capture() }.unwrap();
    assert_eq!(into_vec_after(refused.value, &theirs).unwrap().to_vec().unwrap(), [1; N]);
}

#[test]
fn a_home_in_capture_is_refused() {
    let Some((device, context, _alone)) = gpu("a_home_in_capture_is_refused") else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let vec = DeviceVec::from_slice(&home, &[1_u32; N]).unwrap();
    let mut vec = Some(vec);
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let _graph = home
        .capture(&pool, |_| {
            let refused = into_buffer(vec.take().unwrap(), &theirs).err().unwrap();
            assert_eq!(refused.error.kind(), ErrorKind::Capture);
            vec = Some(refused.value);
            Ok(())
        })
        .unwrap();
    assert_eq!(vec.unwrap().to_vec().unwrap(), [1; N]);
}

#[test]
fn memory_of_theirs_becomes_a_vector_in_order() {
    let Some((device, context, _alone)) = gpu("memory_of_theirs_becomes_a_vector_in_order") else {
        return;
    };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let mut buffer = DeviceBuffer::from_host(&theirs, &[1_u32; N]).unwrap();
    delay_theirs(&theirs);
    buffer.zero_async(&theirs).unwrap();
    let address = buffer.cu_deviceptr();
    let began = Instant::now();
    let mut vec = adopt(buffer, &home).unwrap();
    assert!(began.elapsed() < SHORT, "the host waited: {:?}", began.elapsed());
    assert_eq!(vec.as_device_ptr(), address);
    assert_eq!(vec.to_vec().unwrap(), [0; N]);
    vec.push(3).unwrap();
    assert_ne!(vec.as_device_ptr(), address);
    assert_eq!((vec.get(0).unwrap(), vec.get(N).unwrap()), (0, 3));
}

#[test]
fn adopted_memory_is_freed_after_its_homes_work() {
    let test = "adopted_memory_is_freed_after_its_homes_work";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    // SAFETY: it is written before it is read.
    let buffer = unsafe { DeviceBuffer::<u32>::uninitialized_async(&theirs, N) }.unwrap();
    let mut vec = adopt(buffer, &home).unwrap();
    let address = vec.as_device_ptr();
    write_slowly(&home, &mut vec, 4);
    let began = Instant::now();
    drop(vec);
    assert!(began.elapsed() < SHORT, "the host waited: {:?}", began.elapsed());
    // Their worker looks each millisecond.
    std::thread::sleep(Duration::from_millis(10));
    // SAFETY: it is never read.
    let other = unsafe { DeviceBuffer::<u32>::uninitialized_async(&theirs, N) }.unwrap();
    assert_ne!(other.cu_deviceptr(), address, "memory that a kernel still writes to was free");
    device.synchronize().unwrap();
}

#[test]
fn adopted_memory_that_is_dropped_in_a_capture_goes_after_it() {
    let test = "adopted_memory_that_is_dropped_in_a_capture_goes_after_it";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    // SAFETY: it is never read.
    let allocate = || unsafe { DeviceBuffer::<u32>::uninitialized_async(&theirs, N) }.unwrap();
    let vec = adopt(allocate(), &home).unwrap();
    let address = vec.as_device_ptr();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let graph = home.capture(&pool, |_| {
        drop(vec);
        Ok(())
    });
    graph.unwrap();
    // The next free takes it along.
    drop(adopt(allocate(), &home).unwrap());
    let began = Instant::now();
    while allocate().cu_deviceptr() != address {
        assert!(began.elapsed() < Duration::from_secs(10), "the memory never came back");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_graph_of_theirs_keeps_its_buffer() {
    let Some((device, context, _alone)) = gpu("a_graph_of_theirs_keeps_its_buffer") else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let vec = DeviceVec::from_slice(&home, &[1_u32; N]).unwrap();
    let buffer = into_buffer(vec, &theirs).unwrap();
    let graph = support::launch_slow(&context, &buffer, 6).graph_on(theirs.clone()).unwrap();
    let refused = into_vec(buffer).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidArgument);
    graph.launch().sync_on(&theirs).unwrap();
    drop(graph);
    let vec = into_vec_after(refused.value, &theirs).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [6; N]);
}

#[test]
fn a_future_that_is_dropped_while_it_runs_is_waited_for() {
    let test = "a_future_that_is_dropped_while_it_runs_is_waited_for";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    for forget in [false, true] {
        let vec = DeviceVec::from_slice(&home, &[1_u32; N]).unwrap();
        let buffer = into_buffer(vec, &theirs).unwrap();
        home.synchronize().unwrap();
        // On a stream of their policy, which the program does not know.
        let mut future = Box::pin(support::launch_slow(&context, &buffer, 6).into_future());
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        if forget {
            std::mem::forget(future)
        } else {
            drop(future)
        }
        let refused = into_vec_after(buffer, &theirs).unwrap_err();
        assert_eq!(code(&refused.error), NOT_READY);
        let vec = into_vec(refused.value).unwrap();
        assert_eq!(vec.to_vec().unwrap(), [6; N]);
    }
}

#[test]
fn a_buffer_with_another_view_is_not_adopted() {
    let Some((device, context, _alone)) = gpu("a_buffer_with_another_view_is_not_adopted") else {
        return;
    };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let buffer = DeviceBuffer::from_host(&theirs, &[1_u32; N]).unwrap();
    let view = buffer.storage().clone();
    let refused = adopt(buffer, &home).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidArgument);
    drop(view);
    assert_eq!(adopt(refused.value, &home).unwrap().to_vec().unwrap(), [1; N]);
}

#[test]
fn a_borrowed_buffer_is_ordered_also_when_forgotten() {
    let test = "a_borrowed_buffer_is_ordered_also_when_forgotten";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; N]).unwrap();
    write_slowly(&home, &mut vec, 2);
    // SAFETY: it is used on that stream, and no view of it is kept.
    let mut buffer = unsafe { borrow_mut(&mut vec, &theirs) }.unwrap();
    assert_eq!(buffer.to_host_vec(&theirs).unwrap(), [2; N]);
    delay_theirs(&theirs);
    buffer.zero_async(&theirs).unwrap();
    std::mem::forget(buffer);
    assert_eq!(vec.to_vec().unwrap(), [0; N]);
}

#[test]
fn streams_and_contexts_are_the_same_by_both_names() {
    let test = "streams_and_contexts_are_the_same_by_both_names";
    let Some((device, context, _alone)) = gpu(test) else { return };
    assert_eq!(aquifer_nvidia::device(&context).unwrap(), device);
    let ours = device.new_stream().unwrap();
    let theirs = aquifer_nvidia::stream(&ours, &context).unwrap();
    assert_eq!(theirs.cu_stream() as u64, ours.handle());
    assert_eq!(from_stream(&theirs).unwrap(), ours);
    let theirs = context.new_stream().unwrap();
    let ours = from_stream(&theirs).unwrap();
    assert_eq!(from_stream(&theirs).unwrap(), ours);
    assert_eq!(ours.handle(), theirs.cu_stream() as u64);
    assert_eq!(from_stream(&context.default_stream()).unwrap(), device.default_stream());
    // What a vector at home on it does is in the stream's order.
    delay_theirs(&theirs);
    let vec = DeviceVec::from_slice(&ours, &[1_u32; N]).unwrap();
    let mut buffer = into_buffer(vec, &theirs).unwrap();
    buffer.zero_async(&theirs).unwrap();
    assert_eq!(into_vec_after(buffer, &theirs).unwrap().to_vec().unwrap(), [0; N]);
}

#[test]
fn many_threads_order_their_streams_at_once() {
    let test = "many_threads_order_their_streams_at_once";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let rounds = |thread: u32| {
        let (home, theirs) = (device.new_stream().unwrap(), context.new_stream().unwrap());
        let mut source = DeviceVec::<u32>::zeroed(&home, N).unwrap();
        let mut target = DeviceVec::<u32>::zeroed(&home, N).unwrap();
        for round in 0..200 {
            let value = thread * 1000 + round;
            source.fill(value).unwrap();
            let from = into_buffer(source, &theirs).unwrap();
            let mut to = into_buffer(target, &theirs).unwrap();
            to.copy_from_device_async(&from, &theirs).unwrap();
            source = into_vec_after(from, &theirs).unwrap();
            target =
                if round % 16 == 0 { into_vec(to) } else { into_vec_after(to, &theirs) }.unwrap();
            source.fill(0).unwrap(); // after the copy
            assert_eq!(target.to_vec().unwrap(), [value; N]);
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || rounds(thread));
        }
    });
}

fn pinned(value: u32) -> AllocVec<u32, PinnedAlloc> {
    let mut host = AllocVec::new_in(PinnedAlloc);
    host.resize(N, value);
    host
}

#[test]
fn page_locked_vectors_are_copied_both_ways_without_a_wait() {
    let test = "page_locked_vectors_are_copied_both_ways_without_a_wait";
    let Some((_device, context, _alone)) = gpu(test) else { return };
    let theirs = context.new_stream().unwrap();
    let (host, buffer) = upload_new(pinned(1), &theirs).unwrap().wait().unwrap();
    assert_eq!(host.as_slice(), [1; N]);
    let (mut host, buffer) = download(buffer, pinned(9), &theirs).unwrap().wait().unwrap();
    assert_eq!(host.as_slice(), [1; N]);
    host.fill(2);
    delay_theirs(&theirs);
    let began = Instant::now();
    let transfer = upload(host, buffer, &theirs).unwrap();
    assert!(!transfer.is_complete().unwrap());
    assert!(began.elapsed() < SHORT, "the host waited: {:?}", began.elapsed());
    let (host, buffer) = transfer.wait().unwrap();
    assert!(theirs.query().unwrap(), "it did not wait");
    assert_eq!(buffer.to_host_vec(&theirs).unwrap(), [2; N]);
    let mut shorter = host;
    shorter.truncate(3);
    let refused = upload(shorter, buffer, &theirs).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::LengthMismatch);
    assert_eq!((refused.value.0.len(), refused.value.1.len()), (3, N));
}

#[test]
fn a_transfer_may_be_dropped_while_the_copy_waits() {
    let test = "a_transfer_may_be_dropped_while_the_copy_waits";
    let Some((device, context, _alone)) = gpu(test) else { return };
    let pool = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
    set_current_pinned_resource(pool.clone());
    let theirs = context.new_stream().unwrap();
    let (_, buffer) = upload_new(pinned(0), &theirs).unwrap().wait().unwrap();
    delay_theirs(&theirs);
    let buffer = upload(pinned(3), buffer, &theirs).unwrap().into_buffer().unwrap();
    // Memory that went too early would be handed out again, and written to before it is read.
    let others: Vec<_> = (0..16).map(|_| pinned(8)).collect();
    assert_eq!(buffer.to_host_vec(&theirs).unwrap(), [3; N]);
    drop(others);
    delay_theirs(&theirs);
    drop(upload(pinned(4), buffer, &theirs).unwrap());
    assert_ne!(pool.statistics().live, 0, "the vector went before the copy");
    theirs.synchronize().unwrap();
    let began = Instant::now();
    while pool.statistics().live != 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "the vector never went");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::mem::forget(upload_new(pinned(5), &theirs).unwrap());
    theirs.synchronize().unwrap();
    assert_ne!(pool.statistics().live, 0);
}

//! Orders that no C program sees without a GPU: the simulated device reports what none allows.

use crate::stack::{self, Stack, device};
use crate::{memory, open_streams, route};
use aquifer_rs::{CudaResource, DeviceBlock, DeviceVec, DeviceVecParts, Stream};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

const BYTES: usize = 1 << 20;

/// A capture on the one device would be another test's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// Writes a block by a kernel.
fn write(address: u64, stream: &Stream) {
    let resource = Arc::new(CudaResource::new(stream.device()));
    let block = DeviceBlock::new(address, BYTES, address);
    let parts = DeviceVecParts { stream: stream.clone(), block, length: BYTES, resource };
    // SAFETY: a block of this test; its resource gets nothing back.
    let mut vec = unsafe { DeviceVec::<u8>::from_raw_parts(parts) }.unwrap();
    vec.fill(1).unwrap();
    vec.into_raw_parts().map_err(|refused| refused.error).unwrap();
}

#[test]
fn memory_of_a_graph_that_is_freed_after_it_is_ordered_before_its_next_user() {
    let _alone = alone();
    let device = device(0).unwrap();
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let [one, two] = [&first, &second].map(|stream| open_streams::open(stream.clone()));
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    for (used_elsewhere, key) in [(false, (1, 1)), (true, (2, 2))] {
        let of_stack = stack::get(stack).unwrap();
        of_stack.begin_capture(key).unwrap();
        let address = memory::allocate(stack, BYTES, 0, one).unwrap();
        of_stack.end_capture(key).unwrap();
        of_stack.release_capture(key).unwrap();
        // The block outlives the graphs, as a tensor does that a graph has written.
        write(address, &first);
        if used_elsewhere {
            let other = device.new_stream().unwrap();
            other.wait_for(&first).unwrap();
            write(address, &other);
            memory::record_stream(address, &other).unwrap();
        }
        memory::deallocate(address, 0, Some(one)).unwrap();
        let again = memory::allocate(stack, BYTES, 0, two).unwrap();
        write(again, &second);
        memory::deallocate(again, 0, Some(two)).unwrap();
        device.synchronize().unwrap();
        assert_eq!(of_stack.resources.pool_statistics().unwrap().live, 0, "{key:?}");
    }
}

#[test]
fn memory_of_a_graph_that_is_freed_before_it_is_gone_is_ordered_before_its_next_user() {
    let _alone = alone();
    let device = device(0).unwrap();
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let [one, two] = [&first, &second].map(|stream| open_streams::open(stream.clone()));
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    of_stack.begin_capture((1, 1)).unwrap();
    let address = memory::allocate(stack, BYTES, 0, one).unwrap();
    of_stack.end_capture((1, 1)).unwrap();
    write(address, &first);
    memory::deallocate(address, 0, Some(one)).unwrap();
    write(memory::allocate(stack, BYTES, 0, two).unwrap(), &second);
    of_stack.release_capture((1, 1)).unwrap();
    write(memory::allocate(stack, BYTES, 0, two).unwrap(), &second);
    device.synchronize().unwrap();
}

#[test]
fn memory_of_a_graph_waits_for_the_end_of_another_capture() {
    let _alone = alone();
    let device = device(0).unwrap();
    let simulator = device.simulator().unwrap();
    let stream = device.new_stream().unwrap();
    let number = open_streams::open(stream.clone());
    let foreign = simulator.create_foreign_stream().unwrap();
    // SAFETY: it is never destroyed.
    let captured = unsafe { Stream::from_handle(&device, foreign) }.unwrap();
    let closed = open_streams::open(captured.clone());
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    let live = || of_stack.resources.pool_statistics().unwrap().live;
    of_stack.begin_capture((1, 1)).unwrap();
    let address = memory::allocate(stack, BYTES, 0, number).unwrap();
    of_stack.end_capture((1, 1)).unwrap();
    of_stack.release_capture((1, 1)).unwrap();
    simulator.start_capture(&captured).unwrap();
    memory::deallocate(address, 0, Some(number)).unwrap();
    assert!(live() > 0);
    memory::close_stream(closed).unwrap_err();
    assert!(simulator.stop_capture(&captured), "the capture is whole");
    route::end_routes();
    assert_eq!(live(), 0);
    memory::close_stream(closed).unwrap();
    device.synchronize().unwrap();
}

#[test]
fn a_block_that_was_used_on_a_stream_in_capture_is_freed_after_the_capture() {
    let _alone = alone();
    let device = device(0).unwrap();
    let simulator = device.simulator().unwrap();
    let stream = device.new_stream().unwrap();
    let number = open_streams::open(stream.clone());
    let foreign = simulator.create_foreign_stream().unwrap();
    // SAFETY: it is never destroyed.
    let captured = unsafe { Stream::from_handle(&device, foreign) }.unwrap();
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let live = || stack::get(stack).unwrap().resources.pool_statistics().unwrap().live;
    let [address, other] = [(); 2].map(|()| memory::allocate(stack, BYTES, 0, number).unwrap());
    captured.wait_for(&stream).unwrap();
    write(address, &captured);
    memory::record_stream(address, &captured).unwrap();
    simulator.start_capture(&captured).unwrap();
    memory::deallocate(address, 0, Some(number)).unwrap();
    memory::deallocate(address, 0, Some(number)).expect_err("freed before");
    assert_eq!(live(), 2 * BYTES);
    assert!(!stream.is_capturing().unwrap(), "it has not joined the capture");
    assert!(simulator.stop_capture(&captured), "the capture is whole");
    memory::deallocate(other, 0, Some(number)).unwrap();
    assert_eq!(live(), 0);
    write(memory::allocate(stack, BYTES, 0, number).unwrap(), &stream);
    device.synchronize().unwrap();
}

#[test]
fn memory_of_a_released_stack_waits_for_the_end_of_a_capture() {
    let _alone = alone();
    let device = device(0).unwrap();
    let simulator = device.simulator().unwrap();
    let stream = device.new_stream().unwrap();
    let number = open_streams::open(stream.clone());
    let foreign = simulator.create_foreign_stream().unwrap();
    // SAFETY: it is never destroyed.
    let captured = unsafe { Stream::from_handle(&device, foreign) }.unwrap();
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let captured_number = open_streams::open(captured.clone());
    let address = memory::allocate(stack, BYTES, 0, number).unwrap();
    let of_captured = memory::allocate(stack, BYTES, 0, captured_number).unwrap();
    // As a thread that sleeps keeps it.
    let kept = stack::get(stack).unwrap().resources.clone();
    let reserved = || kept.pool_statistics().unwrap().reserved;
    stack::release(stack).unwrap().unwrap().close();
    // What it was given by then is to be waited for.
    memory::deallocate(of_captured, 0, Some(captured_number)).unwrap();
    simulator.start_capture(&captured).unwrap();
    memory::deallocate(address, 0, Some(number)).unwrap();
    assert!(reserved() > 0);
    assert!(simulator.stop_capture(&captured), "the capture is whole");
    route::end_routes();
    assert_eq!(reserved(), 0);
    device.synchronize().unwrap();
}

//! Orders that no C program sees without a GPU: the simulated device reports what none allows.

use crate::cache::Thread;
use crate::scope::Scope;
use crate::stack::{self, Stack, device};
use crate::status::aquifer_status;
use crate::{handles, memory, open_streams, page_map, route};
use aquifer_rs::sim::SimConfig;
use aquifer_rs::{CudaResource, Device, DeviceBlock, DeviceVec, Stream};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

mod captures;

const BYTES: usize = 1 << 20;

/// A capture on the one device would be another test's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    crate::stack::simulate();
    ALONE.lock()
}

/// Writes a block by a kernel.
fn write(address: u64, stream: &Stream) {
    let (stream, resource) = (stream.clone(), CudaResource::new(stream.device()));
    let block = DeviceBlock::new(address, BYTES, address);
    // SAFETY: a block of this test; its resource gets nothing back.
    let vec = unsafe { DeviceVec::<u8>::from_raw_parts(stream, block, BYTES, resource) };
    let mut vec = vec.unwrap();
    vec.fill(1).unwrap();
    drop(vec.into_raw_parts().map_err(|refused| refused.error).unwrap());
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
        of_stack.begin_capture(key, Scope::AllStreams).unwrap();
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
    of_stack.begin_capture((1, 1), Scope::AllStreams).unwrap();
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
    of_stack.begin_capture((1, 1), Scope::AllStreams).unwrap();
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

#[test]
fn a_use_that_is_noted_while_its_block_is_freed_does_not_revive_it() {
    const ROUNDS: usize = 20_000;
    let _alone = alone();
    let device = device(0).unwrap();
    let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let number = open_streams::open(stream);
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    let addresses: Vec<_> =
        (0..ROUNDS).map(|_| memory::allocate(stack, 256, 0, number).unwrap()).collect();
    let together = Barrier::new(2);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for address in &addresses {
                together.wait();
                // Too late, it finds no block.
                let _ = memory::record_stream(*address, &other);
            }
        });
        for address in &addresses {
            together.wait();
            memory::deallocate(*address, 0, Some(number)).unwrap();
        }
    });
    let again = addresses.iter().filter(|it| memory::deallocate(**it, 0, Some(number)).is_ok());
    assert_eq!(again.count(), 0, "blocks were freed twice");
    stack::release(stack).unwrap().unwrap().close();
    assert!(route::get(stack).is_none(), "the route goes with its last block");
    assert_eq!(of_stack.resources.pool_statistics().unwrap().reserved, 0);
}

/// Releases stacks, each with a block at a place of its own, and frees the blocks: how long the quickest takes.
fn end_of_a_stack(device: &Device, number: u32) -> Duration {
    let ends = (0..20).map(|_| {
        let stack = Stack::create(Some("pool(cuda)"), device).unwrap();
        let block = memory::allocate(stack, BYTES, 0, number).unwrap();
        let begun = Instant::now();
        stack::release(stack).unwrap().unwrap().close();
        memory::deallocate(block, 0, Some(number)).unwrap();
        let end = begun.elapsed();
        assert!(route::get(stack).is_none(), "the route goes with its last block");
        end
    });
    ends.min().unwrap()
}

#[test]
fn the_end_of_a_stack_takes_no_longer_where_much_memory_was_used() {
    let _alone = alone();
    let device = device(0).unwrap();
    let number = open_streams::open(device.new_stream().unwrap());
    let first = end_of_a_stack(&device, number);
    let stack = Stack::create(Some("cuda"), &device).unwrap();
    // The device hands out no address twice, so they have as many leaves of the page map.
    for _ in 0..100 {
        let block = memory::allocate(stack, 16 << 20, 0, number).unwrap();
        memory::deallocate(block, 0, Some(number)).unwrap();
    }
    let last = end_of_a_stack(&device, number);
    assert!(last < 4 * first + Duration::from_millis(2), "{first:?}, then {last:?}");
    stack::release(stack).unwrap().unwrap().close();
}

#[test]
fn a_stack_whose_blocks_threads_free_goes_with_the_last() {
    let _alone = alone();
    // The other one has no magazines.
    for device in [device(0).unwrap(), unfollowed()] {
        let warm = threads_free_the_blocks_of_a_stack(&device);
        assert!(warm >= 150, "{warm} calls of 300 were warm");
    }
}

/// A device whose pools have magazines.
fn unfollowed() -> Device {
    Device::simulated(SimConfig::default().without_pool_checks())
}

/// How many calls went the short way.
fn threads_free_the_blocks_of_a_stack(device: &Device) -> usize {
    let warm_calls = AtomicUsize::new(0);
    let number = open_streams::open(device.new_stream().unwrap());
    let stack = Stack::create(Some("pool(cuda)"), device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    // Warm on each thread, and freed by the other one.
    let allocate = || -> Vec<u64> {
        (0..100)
            .map(|_| {
                let handles = (handles::stack_handle(stack), handles::stream_handle(number));
                let warm = memory::allocate_fast(handles.0, 4096, handles.1);
                warm_calls.fetch_add(usize::from(warm.is_some()), Ordering::Relaxed);
                warm.unwrap_or_else(|| memory::allocate(stack, 4096, 0, number)).unwrap()
            })
            .collect()
    };
    let free = |address: u64| match memory::deallocate_fast(address, 0, std::ptr::null_mut()) {
        Some(status) => {
            warm_calls.fetch_add(1, Ordering::Relaxed);
            assert_eq!(status, aquifer_status::AQUIFER_OK);
        }
        None => memory::deallocate(address, 0, Some(number)).unwrap(),
    };
    let own = allocate();
    let (others, left) = std::thread::scope(|threads| {
        threads
            .spawn(|| {
                own.iter().skip(50).for_each(|address| free(*address));
                let mut others = allocate();
                (others.split_off(50), others)
            })
            .join()
            .unwrap()
    });
    others.into_iter().for_each(free);
    stack::release(stack).unwrap().unwrap().close();
    assert!(route::get(stack).is_some(), "blocks are in use");
    own.into_iter().take(50).for_each(free);
    assert!(route::get(stack).is_some(), "blocks are in use");
    left.into_iter().for_each(free);
    assert!(route::get(stack).is_none(), "the route goes with its last block");
    assert_eq!(of_stack.resources.pool_statistics().unwrap().reserved, 0);
    warm_calls.into_inner()
}

#[test]
fn a_warm_free_that_meets_the_end_of_its_stack_takes_the_route_with_it() {
    let _alone = alone();
    let device = unfollowed();
    let number = open_streams::open(device.new_stream().unwrap());
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let together = Barrier::new(2);
    std::thread::scope(|threads| {
        let thread = threads.spawn(|| {
            let first = memory::allocate(stack, 4096, 0, number).unwrap();
            memory::deallocate(first, 0, Some(number)).unwrap();
            let block = memory::allocate(stack, 4096, 0, number).unwrap();
            let names = (handles::stack_handle(stack), handles::stream_handle(number));
            // SAFETY: of this call, and the thread remembers nothing before its use. So far has a warm free come.
            let recent = unsafe { Thread::own().recent(handles::numbers(names.0, names.1)) };
            together.wait();
            together.wait();
            assert!(page_map::entry(block).unwrap().take());
            memory::end_route_of(recent.expect("it is warm").count_free());
        });
        together.wait();
        stack::release(stack).unwrap().unwrap().close();
        assert!(route::get(stack).is_some(), "a block is in use");
        together.wait();
        // With what it remembers.
        thread.join().unwrap();
    });
    assert!(route::get(stack).is_none(), "the route goes with its last block");
}

#[test]
fn a_warm_call_goes_the_short_way_and_a_wrong_one_does_not() {
    let _alone = alone();
    let device = device(0).unwrap();
    let number = open_streams::open(device.new_stream().unwrap());
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let first = memory::allocate(stack, 1000, 0, number).unwrap();
    memory::deallocate(first, 0, Some(number)).unwrap();
    let (handle, on) = (handles::stack_handle(stack), handles::stream_handle(number));
    for (bytes, stream) in [(1000, on), (0, on), (1000, std::ptr::null_mut())] {
        let block = memory::allocate_fast(handle, 1000, on).expect("it is warm").unwrap();
        let freed = memory::deallocate_fast(block, bytes, stream).expect("it is warm");
        assert_eq!(freed, aquifer_status::AQUIFER_OK);
        assert!(memory::deallocate_fast(block, bytes, stream).is_none(), "it was freed");
    }
    assert!(memory::allocate_fast(handle, 0, on).is_none(), "there are no bytes");
    // Counted, and counted off again: the route goes all the same.
    memory::allocate_fast(handle, 1 << 50, on).expect("it is warm").unwrap_err();
    let block = memory::allocate_fast(handle, 1000, on).unwrap().unwrap();
    assert!(memory::deallocate_fast(block, 999, on).is_none(), "it is of other bytes");
    let other = device.new_stream().unwrap();
    memory::record_stream(block, &other).unwrap();
    assert!(memory::deallocate_fast(block, 1000, on).is_none(), "it was used elsewhere");
    memory::deallocate(block, 1000, Some(number)).unwrap();
    stack::release(stack).unwrap().unwrap().close();
    assert!(memory::allocate_fast(handle, 1000, on).is_none(), "the stack is released");
    assert!(route::get(stack).is_none(), "the route goes with its last block");
}

#[test]
fn a_block_goes_back_though_its_stream_is_closed() {
    let _alone = alone();
    let device = device(0).unwrap();
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    for _ in 0..3 {
        let stream = device.new_stream().unwrap();
        let number = open_streams::open(stream.clone());
        let block = memory::allocate(stack, BYTES, 0, number).unwrap();
        write(block, &stream);
        memory::close_stream(number).unwrap();
        memory::close_stream(number).expect_err("it is closed");
        memory::deallocate(block, 0, Some(number)).expect_err("it is closed");
        memory::deallocate(block, 0, None).unwrap();
        memory::deallocate(block, 0, None).expect_err("it was freed");
    }
    let number = open_streams::open(device.new_stream().unwrap());
    let again = memory::allocate(stack, BYTES, 0, number).unwrap();
    write(again, &open_streams::get(number).unwrap());
    device.synchronize().unwrap();
    stack::release(stack).unwrap().unwrap().close();
    assert!(route::get(stack).is_some(), "a block is in use");
    memory::deallocate(again, 0, None).unwrap();
    assert!(route::get(stack).is_none(), "the route goes with its last block");
    assert_eq!(of_stack.resources.pool_statistics().unwrap().live, 0);
}

#[test]
fn a_stack_that_is_released_beside_allocations_keeps_nothing() {
    let _alone = alone();
    for device in [device(0).unwrap(), unfollowed()] {
        let number = open_streams::open(device.new_stream().unwrap());
        for round in 0..150 {
            let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
            let of_stack = stack::get(stack).unwrap();
            let together = Barrier::new(2);
            std::thread::scope(|threads| {
                let uses = threads.spawn(|| {
                    let (handle, on) =
                        (handles::stack_handle(stack), handles::stream_handle(number));
                    together.wait();
                    loop {
                        let warm = memory::allocate_fast(handle, 4096, on);
                        let cold = || memory::allocate(stack, 4096, 0, number);
                        let Ok(block) = warm.unwrap_or_else(cold) else { break };
                        let warm = memory::deallocate_fast(block, 0, on);
                        if warm.is_none() {
                            memory::deallocate(block, 0, Some(number)).expect("a block of a route");
                        }
                    }
                });
                together.wait();
                (0..round * 20).for_each(|_| std::hint::spin_loop());
                stack::release(stack).unwrap().unwrap().close();
                uses.join().unwrap();
            });
            assert!(route::get(stack).is_none(), "the route goes with its last block");
            assert_eq!(of_stack.resources.pool_statistics().unwrap().reserved, 0);
        }
    }
}

/// `cuIpcGetMemHandle` shares what hosts allocate, unless a text says otherwise: a graph's memory, too.
#[test]
fn a_pool_over_plain_memory_takes_blocks_unless_its_text_says_otherwise() {
    let _alone = alone();
    let device = device(0).unwrap();
    let stream = device.new_stream().unwrap();
    let opened = open_streams::open(stream.clone());
    let is_shared = |address| {
        let bytes = BYTES;
        let block = aquifer_rs::DeviceBlock::new(address, bytes, 0);
        aquifer_rs::ipc::IpcHandle::of_block(&stream, &block).is_ok()
    };
    for (text, text_of_stack, shares) in [
        (None, "pool(cuda, handles=off)", true),
        (Some("pool"), "pool(cuda, handles=off)", true),
        (
            Some("pool(cuda, handles=off) | statistics"),
            "pool(cuda, handles=off) | statistics",
            true,
        ),
        (Some("cuda"), "cuda", true),
        (Some("pool(cuda, handles=auto)"), "pool(cuda, handles=auto)", true),
        (Some("pool(cuda, handles=on)"), "pool(cuda, handles=on)", false),
        (Some("pool(virtual)"), "pool(virtual)", false),
    ] {
        let number = Stack::create(text, &device).unwrap();
        let stack = stack::get(number).unwrap();
        assert_eq!(stack.resources.text().unwrap().to_string(), text_of_stack);
        let address = memory::allocate(number, BYTES, 0, opened).unwrap();
        assert_eq!(is_shared(address), shares, "{text:?}");
        memory::deallocate(address, 0, Some(opened)).unwrap();
        stack.begin_capture((9, 9), Scope::AllStreams).unwrap();
        let address = memory::allocate(number, BYTES, 0, opened).unwrap();
        stack.end_capture((9, 9)).unwrap();
        assert_eq!(is_shared(address), shares, "{text:?}, in a capture");
        memory::deallocate(address, 0, Some(opened)).unwrap();
        stack.release_capture((9, 9)).unwrap();
    }
}

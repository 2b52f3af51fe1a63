//! What was ordered inside of a declared capture, relied on after it.

use crate::{kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Error, ErrorKind,
    PoolResource, Result, Stream,
    mr::{AsyncResource, ManagedResource},
};
use kernels::{add_one, kind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WORDS: usize = 1 << 16;

type Pool = PoolResource<CudaResource>;

fn pool_on(device: &Device) -> Pool {
    PoolResource::new(CudaResource::new(device)).unwrap()
}

fn words(stream: &Stream, pool: &Pool) -> Result<DeviceVec<u32>> {
    let mut words = DeviceVec::zeroed_in(stream, WORDS, Arc::new(pool.clone()))?;
    words.fill(1)?;
    Ok(words)
}

/// Work that a guard for `stream` allows, by its address.
fn work_at(address: u64, vec: &DeviceVec<u32>, stream: &Stream) {
    let block = DeviceBlock::new(address, vec.size_in_bytes(), 0);
    let resource = vec.resource().clone();
    // SAFETY: not kept: its parts are forgotten below.
    let inside = unsafe { DeviceVec::from_raw_parts(stream.clone(), block, vec.len(), resource) };
    let mut inside = inside.unwrap();
    add_one(stream, &mut inside).unwrap();
    std::mem::forget(inside);
}

#[test]
fn a_guard_that_leaves_the_capture_comes_after_homes_work() {
    for fails in [false, true] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let [home, other] = [(); 2].map(|()| device.new_stream().unwrap());
        let pool = pool_on(&device);
        let mut vec = words(&home, &pool).unwrap();
        let mut address = 0;
        let captured = home.capture(&pool, |home| {
            let guard = vec.on_mut(&other)?;
            home.wait_for(&other)?;
            address = guard.as_device_ptr();
            let _ = guard; // it has no destructor: its pending use stands for it
            if fails { Err(Error::new(ErrorKind::InvalidArgument, "given up")) } else { Ok(()) }
        });
        assert_eq!(captured.is_err(), fails);
        work_at(address, &vec, &other);
        assert_eq!(vec.to_vec().unwrap(), vec![2; WORDS]);
        simulator.check().unwrap();
    }
}

#[test]
fn a_use_that_was_waited_for_in_the_graph_is_waited_for_after_it() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [home, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = pool_on(&device);
    let mut vec = words(&home, &pool).unwrap();
    add_one(&other, &mut vec).unwrap();
    let (graph, ()) = home
        .capture(&pool, |home| {
            other.wait_for(home)?;
            vec.fill(9)
        })
        .unwrap();
    vec.fill(7).unwrap();
    assert_eq!(vec.to_vec().unwrap(), vec![7; WORDS]);
    drop(graph);
    simulator.check().unwrap();
}

#[test]
fn memory_that_was_freed_in_a_capture_waits_for_use_before_it() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [home, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = pool_on(&device);
    let mut vec = words(&home, &pool).unwrap();
    let address = vec.as_device_ptr();
    add_one(&other, &mut vec).unwrap();
    let (graph, ()) = home
        .capture(&pool, |home| {
            other.wait_for(home)?;
            drop(vec);
            Ok(())
        })
        .unwrap();
    drop(graph);
    let again = words(&home, &pool).unwrap();
    assert_eq!(again.as_device_ptr(), address, "the block that was lent");
    assert_eq!(again.to_vec().unwrap(), vec![1; WORDS]);
    simulator.check().unwrap();
}

#[test]
fn a_threads_own_stream_is_lent_nothing_in_a_capture() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let home = device.new_stream().unwrap();
    let mine = device.per_thread_stream().unwrap();
    let pool = pool_on(&device);
    let mut vec = words(&home, &pool).unwrap();
    home.capture(&pool, |_| {
        assert_eq!(kind(vec.on_mut(&mine)), ErrorKind::Capture);
        Ok(())
    })
    .unwrap();
    vec.on_mut(&mine).unwrap();
    simulator.check().unwrap();
}

/// What was freed in a capture goes back from whatever thread looks for it, while the stream is
/// perhaps in its next capture already.
#[test]
fn a_block_that_was_freed_in_one_capture_spoils_no_later_one() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let plain: &dyn DeviceResource = &CudaResource::new(&device);
    spoils_none(&device, plain);
    spoils_none(&device, &AsyncResource::new(&device).unwrap());
    spoils_none(&device, &ManagedResource::new(&device).unwrap());
    simulator.check().unwrap();
}

fn spoils_none(device: &Device, plain: &dyn DeviceResource) {
    let [stream, other, third] = [(); 3].map(|()| device.new_stream().unwrap());
    let pool = pool_on(device);
    let layout = DeviceLayout::new(1 << 10).unwrap();
    let take = |stream: &Stream| plain.allocate(stream, layout).unwrap();
    // SAFETY: each block is the resource's, is freed once, and no work uses it.
    let free = |stream: &Stream, block: DeviceBlock| unsafe { plain.deallocate(stream, block) };
    let before = device.memory_info().unwrap().free;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                free(&third, take(&third));
            }
        });
        let captures = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..200 {
                let blocks = [(); 8].map(|()| take(&other));
                other.synchronize().unwrap();
                let captured = stream.capture(&pool, |stream| {
                    blocks.into_iter().for_each(|block| free(stream, block));
                    std::thread::yield_now();
                    Ok(())
                });
                captured.unwrap();
            }
        }));
        done.store(true, Ordering::Relaxed);
        captures.unwrap();
    });
    drop(pool);
    stream.synchronize().unwrap();
    // Each block may take two looks, of which each call has a few; and the thread of another test may
    // have one in hand, since what waits for its end lies in one list for the process.
    let start = Instant::now();
    loop {
        free(&third, take(&third));
        third.synchronize().unwrap();
        let back = device.memory_info().unwrap().free == before;
        if back || start.elapsed() > Duration::from_secs(30) {
            break;
        }
    }
    assert_eq!(device.memory_info().unwrap().free, before, "all of {plain:?} went back");
}

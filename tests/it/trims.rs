//! What pools give back: at once, behind a wait, and above a release threshold.

use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBuffer, DeviceLayout, DeviceResource, DeviceVec, ErrorKind,
    PoolResource, Stream,
    mr::{AsyncResource, Handles, VirtualResource},
};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn mapped(device: &Device) -> PoolResource<VirtualResource> {
    PoolResource::new(VirtualResource::new(device).unwrap()).unwrap()
}

fn blocks(device: &Device) -> PoolResource {
    PoolResource::builder(CudaResource::new(device)).handles(Handles::Off).build().unwrap()
}

fn vec<U: DeviceResource>(pool: &PoolResource<U>, stream: &Stream, mib: usize) -> DeviceVec<u8> {
    DeviceVec::zeroed_in(stream, mib * MIB, pool.clone()).unwrap()
}

fn reserved<U: DeviceResource>(pool: &PoolResource<U>) -> usize {
    pool.statistics().reserved
}

/// Has the program wait until a pool has given memory back. A wait asks the device for as long as an event takes on an idle
/// one; on a busy machine a later wait finds it passed.
fn wait_until<U: DeviceResource>(pool: &PoolResource<U>, upto: usize, wait: impl Fn()) {
    let start = Instant::now();
    wait();
    while reserved(pool) > upto {
        let left = reserved(pool);
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{left} bytes stay reserved, more than {upto}"
        );
        wait();
    }
}

/// What one stream freed and is done with goes back, whatever another one does. The rest follows it.
#[test]
fn mapped_memory_goes_back_beside_work_that_is_pending() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [done, busy] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = mapped(&device);
    let (first, second) = (vec(&pool, &done, 64), vec(&pool, &busy, 32));
    done.synchronize().unwrap();
    simulator.stall(&busy).unwrap();
    drop((first, second));
    assert_eq!(pool.trim(0).unwrap(), 64 * MIB);
    assert_eq!((pool.trim(0).unwrap(), reserved(&pool)), (0, 32 * MIB));
    simulator.resume(&busy).unwrap();
    assert_eq!((pool.wait_and_trim(0).unwrap(), reserved(&pool)), (32 * MIB, 0));
    assert_eq!(simulator.live_bytes(), 0);
    simulator.check().unwrap();
}

/// To free a block waits for the device. So as few go as do.
#[test]
fn a_trim_frees_the_largest_blocks_first() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = blocks(&device);
    let all = [2, 4, 6, 64].map(|mib| vec(&pool, &stream, mib));
    let (keep, before) = (reserved(&pool) - 64 * MIB, pool.statistics().returns);
    drop(all);
    pool.wait_and_trim(keep).unwrap();
    assert_eq!(pool.statistics().returns - before, 1);
    assert!(reserved(&pool) <= keep && reserved(&pool) >= 12 * MIB);
}

/// To free a block waits for every kernel. So it is left until there is none.
#[test]
fn blocks_stay_while_the_device_works() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [done, busy] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = blocks(&device);
    let (first, second) = (vec(&pool, &done, 64), vec(&pool, &busy, 32));
    done.synchronize().unwrap();
    simulator.stall(&busy).unwrap();
    drop((first, second));
    let before = reserved(&pool);
    assert_eq!((pool.trim(0).unwrap(), reserved(&pool)), (0, before));
    simulator.resume(&busy).unwrap();
    busy.synchronize().unwrap();
    assert_eq!((pool.trim(0).unwrap(), reserved(&pool)), (before, 0));
    simulator.check().unwrap();
}

#[test]
fn a_trim_keeps_what_it_is_asked_to_keep() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = mapped(&device);
    let held: Vec<_> = (0..8).map(|_| vec(&pool, &stream, 4)).collect();
    let total = reserved(&pool);
    stream.synchronize().unwrap();
    assert_eq!(pool.trim(0).unwrap(), 0, "all is in use");
    drop(held);
    assert_eq!(pool.trim(total).unwrap(), 0);
    let given = pool.trim(total / 2).unwrap();
    assert!(given >= total / 2 && given < total, "{given} of {total}");
    assert_eq!(reserved(&pool), total - given);
    assert_eq!(pool.trim(0).unwrap(), total - given);
}

/// A capture loses nothing by a trim, and what its stream freed before stays for its graph.
#[test]
fn a_trim_leaves_a_capture_alone() {
    let device = support::device();
    let [captured, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = mapped(&device);
    drop((vec(&pool, &captured, 8), vec(&pool, &other, 16)));
    other.synchronize().unwrap();
    captured.synchronize().unwrap();
    let (graph, given) = captured
        .capture(&pool, |stream| {
            let given = pool.trim(0)?;
            let mut vec = DeviceVec::<u8>::zeroed_in(stream, MIB, pool.clone())?;
            vec.fill(3)?;
            Ok(given)
        })
        .unwrap();
    assert!(given >= 16 * MIB, "{given}");
    let (_, refused) = captured
        .capture(&pool, |_| {
            pool.wait_and_trim(0)?;
            Ok(pool.wait_and_trim(0).map_err(|error| error.kind()))
        })
        .unwrap();
    assert_eq!(refused, Err(ErrorKind::Capture));
    drop(graph);
    captured.synchronize().unwrap();
    pool.wait_and_trim(0).unwrap();
    assert_eq!(reserved(&pool), 0);
}

/// Above the threshold memory goes back when the program has waited, and only what the device is past.
#[test]
fn a_release_threshold_is_kept_by_waits() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [done, busy] = [(); 2].map(|()| device.new_stream().unwrap());
    let upstream = VirtualResource::new(&device).unwrap();
    let pool = PoolResource::builder(upstream).release_threshold(16 * MIB).build().unwrap();
    assert_eq!(pool.release_threshold(), Some(16 * MIB));
    let (kept, first, second) =
        (vec(&pool, &done, 2), vec(&pool, &done, 64), vec(&pool, &busy, 32));
    done.synchronize().unwrap();
    assert!(reserved(&pool) >= 98 * MIB, "all is in use");
    simulator.stall(&busy).unwrap();
    drop((first, second));
    assert!(reserved(&pool) >= 98 * MIB, "nobody has waited");
    wait_until(&pool, 36 * MIB, || done.synchronize().unwrap());
    assert!(reserved(&pool) >= 34 * MIB, "{}", reserved(&pool));
    simulator.resume(&busy).unwrap();
    wait_until(&pool, 16 * MIB, || device.synchronize().unwrap());
    assert!(reserved(&pool) >= 2 * MIB, "{}", reserved(&pool));
    pool.set_release_threshold(None).unwrap();
    assert_eq!(pool.release_threshold(), None);
    drop((kept, vec(&pool, &done, 64)));
    device.synchronize().unwrap();
    assert!(reserved(&pool) >= 64 * MIB);
    pool.set_release_threshold(Some(0)).unwrap();
    wait_until(&pool, 0, || device.synchronize().unwrap());
    simulator.check().unwrap();
}

#[test]
fn blocks_go_back_above_a_threshold_where_the_device_is_idle() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [done, busy] = [(); 2].map(|()| device.new_stream().unwrap());
    let options = PoolResource::builder(CudaResource::new(&device)).handles(Handles::Off);
    let pool = options.release_threshold(0).build().unwrap();
    // Before it has work: what asks the device meanwhile may run that.
    simulator.stall(&busy).unwrap();
    let other = vec(&pool, &busy, 1);
    drop(vec(&pool, &done, 64));
    drop(other);
    let before = reserved(&pool);
    done.synchronize().unwrap();
    assert_eq!(reserved(&pool), before);
    simulator.resume(&busy).unwrap();
    wait_until(&pool, 0, || device.synchronize().unwrap());
    simulator.check().unwrap();
}

/// What follows a wait keeps no pool alive, and is no trouble to one that goes meanwhile.
#[test]
fn a_threshold_outlives_no_pool() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    for _ in 0..3 {
        let upstream = VirtualResource::new(&device).unwrap();
        let pool = PoolResource::builder(upstream).release_threshold(0).build().unwrap();
        let held = vec(&pool, &stream, 8);
        drop(pool);
        stream.synchronize().unwrap();
        drop(held);
        stream.synchronize().unwrap();
        assert_eq!(simulator.live_bytes(), 0);
    }
    std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| {
            scope.spawn(|| {
                for _ in 0..20 {
                    let pool = mapped(&device);
                    pool.set_release_threshold(Some(0)).unwrap();
                    let stream = device.new_stream().unwrap();
                    drop(vec(&pool, &stream, 2));
                    drop(pool);
                    stream.synchronize().unwrap();
                }
            })
        });
        // The scope alone waits for no thread locals, which keep the pool.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    device.synchronize().unwrap();
    assert_eq!(simulator.live_bytes(), 0);
    simulator.check().unwrap();
}

#[test]
fn a_threshold_below_the_initial_size_is_refused() {
    let device = support::device();
    let options = PoolResource::builder(CudaResource::new(&device)).initial_size(2 * MIB);
    let error = options.clone().release_threshold(MIB).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("release threshold, 1048576 bytes"), "{error}");
    options.release_threshold(2 * MIB).build().unwrap();
}

/// The driver counts memory as free when the program has waited for its stream, and a trim waits for those that are done.
#[test]
fn a_trim_of_a_driver_pool_tells_what_went_back() {
    let device = support::device();
    if !device.properties().memory_pools {
        return;
    }
    let stream = device.new_stream().unwrap();
    let pool = std::sync::Arc::new(AsyncResource::new(&device).unwrap());
    drop(DeviceVec::<u8>::zeroed_in(&stream, 64 * MIB, pool.clone()).unwrap());
    let event = stream.record().unwrap();
    while !event.is_complete().unwrap() {
        std::hint::spin_loop();
    }
    let before = pool.statistics().unwrap().reserved_bytes;
    assert_eq!(pool.trim(0).unwrap() as u64, before as u64);
    assert_eq!(pool.statistics().unwrap().reserved_bytes, 0);
    if device.simulator().is_none() {
        assert!(before >= 64 << 20, "{before}");
    }
}

/// A kernel that comes behind the free is no reason to hold the memory, since an event came before it. Where nothing is mapped, and
/// for small blocks, a free calls no driver.
#[test]
fn a_large_free_is_known_before_what_comes_behind_it() {
    // Checks of the pool's memory take the slow way.
    for config in [SimConfig::default(), SimConfig::default().without_pool_checks()] {
        a_large_free_is_known(config);
    }
}

fn a_large_free_is_known(config: SimConfig) {
    let (device, simulator) = support::simulated(config);
    let stream = device.new_stream().unwrap();
    let records = || simulator.call_count("cuEventRecord");
    let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
    let blocks = PoolResource::builder(CudaResource::new(&device)).handles(Handles::Off);
    let blocks = blocks.build().unwrap();
    for (mib, expected) in [(31, 0), (32, 1), (500, 1)] {
        let before = records();
        drop(DeviceBuffer::zeroed_in(&stream, mib * MIB, blocks.clone()).unwrap());
        assert_eq!(records(), before, "{mib}");
        let buffer = DeviceBuffer::zeroed_in(&stream, mib * MIB, pool.clone()).unwrap();
        let before = records();
        drop(buffer);
        assert_eq!(records(), before + expected, "{mib}");
        // Without a container it goes another way.
        let block = pool.allocate(&stream, DeviceLayout::new(mib * MIB).unwrap()).unwrap();
        let before = records();
        // SAFETY: the block is the pool's, and no work uses it.
        unsafe { pool.deallocate(&stream, block) };
        assert_eq!(records(), before + expected, "{mib}");
    }
    blocks.wait_and_trim(0).unwrap();
    stream.synchronize().unwrap();
    simulator.stall(&stream).unwrap();
    assert!(pool.pool_size() >= 500 * MIB);
    pool.trim(0).unwrap();
    assert_eq!(pool.pool_size(), 0);
    simulator.resume(&stream).unwrap();
    simulator.check().unwrap();
}

/// A handle in which two streams have freed a part each goes back when both are done.
#[test]
fn a_handle_of_two_streams_goes_back() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = mapped(&device);
    let half = DeviceLayout::new(MIB).unwrap();
    let [one, two] = [(); 2].map(|()| pool.allocate(&first, half).unwrap());
    assert_eq!(pool.pool_size(), 2 * MIB, "one handle");
    second.wait_for(&first).unwrap();
    // SAFETY: the blocks are the pool's, no work uses them, and the second stream is behind the first.
    unsafe {
        pool.deallocate(&first, one);
        pool.deallocate(&second, two);
    }
    device.synchronize().unwrap();
    pool.trim(0).unwrap();
    assert_eq!(pool.pool_size(), 0);
    simulator.check().unwrap();
}

//! Pools whose memory is mapped: what is free serves in other sizes, on other streams, and without a wait for the device.

use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    Device, DeviceResource, DeviceVec, ErrorKind, PoolResource, Result, Stream,
    mr::{MissPolicy, MissStep, PoolOptions, PoolStatistics, VirtualResource},
};

const MIB: usize = 1 << 20;

type Pool = PoolResource<VirtualResource>;

fn options(device: &Device) -> PoolOptions<VirtualResource> {
    PoolResource::builder(VirtualResource::new(device).unwrap())
}

fn pool(device: &Device) -> Pool {
    options(device).build().unwrap()
}

fn bytes(stream: &Stream, pool: &Pool, count: usize, value: u8) -> Result<DeviceVec<u8>> {
    let mut vec = DeviceVec::zeroed_in(stream, count, pool.clone())?;
    vec.fill(value)?;
    Ok(vec)
}

/// The vector has this value everywhere, as far as three places tell.
#[track_caller]
fn assert_bytes(vec: &DeviceVec<u8>, value: u8) {
    let all = vec.to_vec().unwrap();
    assert_eq!([all[0], all[all.len() / 2], all[all.len() - 1]], [value; 3]);
}

#[track_caller]
fn assert_clean(device: &Device) {
    if let Some(simulator) = device.simulator() {
        simulator.check().unwrap();
    }
}

/// Each buffer is a little longer than the last one, which goes when its bytes were copied.
fn grow(pool: &Pool, streams: &[Stream], steps: usize) -> PoolStatistics {
    let step = 256 << 10;
    let mut last: Vec<_> =
        streams.iter().map(|stream| bytes(stream, pool, step, 1).unwrap()).collect();
    for count in 2..=steps {
        for (stream, last) in streams.iter().zip(&mut last) {
            let mut next = bytes(stream, pool, count * step, 2).unwrap();
            next.slice_mut(..last.len()).unwrap().copy_from(&last.slice(..).unwrap()).unwrap();
            *last = next;
        }
    }
    for last in &last {
        let all = last.to_vec().unwrap();
        assert_eq!((all[0], all[step - 1], all[step], all[all.len() - 1]), (1, 1, 2, 2));
    }
    pool.statistics()
}

#[test]
fn a_buffer_that_grows_by_little_takes_little() {
    let device = support::device();
    for buffers in [1, 4] {
        let streams: Vec<_> = (0..buffers).map(|_| device.new_stream().unwrap()).collect();
        let pool = pool(&device);
        let steps = 80;
        let reserved = grow(&pool, &streams, steps).peak_reserved;
        // The last buffer of each, and of one the next to last.
        let live = ((buffers + 1) * steps - 1) * (256 << 10);
        let ratio = reserved as f64 / live as f64;
        println!("{buffers} buffers: {reserved} of {live}, {ratio:.3}");
        assert!(ratio < 1.5, "{ratio}");
    }
    assert_clean(&device);
}

#[test]
fn what_one_stream_freed_serves_another_in_another_size() {
    let device = support::device();
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = options(&device).maximum_size(64 * MIB).build().unwrap();
    let small: Vec<_> =
        (0..16).map(|value| bytes(&first, &pool, 4 * MIB, value).unwrap()).collect();
    assert_eq!(pool.statistics().reserved, 64 * MIB);
    // Every other one, so that no two lie beside each other.
    let (kept, freed): (Vec<_>, Vec<_>) =
        small.into_iter().partition(|vec| vec.to_vec().unwrap()[0] % 2 == 0);
    drop(freed);
    let large = bytes(&second, &pool, 32 * MIB, 77).unwrap();
    assert_bytes(&large, 77);
    kept.iter().zip([0, 2, 4]).for_each(|(vec, value)| assert_bytes(vec, value));
    assert_eq!(pool.statistics().reserved, 64 * MIB);
    let error = bytes(&second, &pool, MIB, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    drop(kept);
    assert_bytes(&bytes(&second, &pool, 32 * MIB, 5).unwrap(), 5);
    assert_clean(&device);
}

#[test]
fn a_trim_gives_all_back_that_is_free() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let kept = bytes(&stream, &pool, 3 * MIB, 9).unwrap();
    drop(bytes(&stream, &pool, 100 * MIB, 1).unwrap());
    assert!(pool.wait_and_trim(0).unwrap() >= 98 * MIB);
    assert!(pool.statistics().reserved <= 6 * MIB, "{}", pool.statistics().reserved);
    assert_bytes(&kept, 9);
    drop(bytes(&stream, &pool, 50 * MIB, 1).unwrap());
    assert_bytes(&kept, 9);
    drop(kept);
    pool.wait_and_trim(0).unwrap();
    assert_eq!(pool.statistics().reserved, 0);
    assert_clean(&device);
}

#[test]
fn a_pool_that_ends_leaves_nothing() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = options(&device).initial_size(8 * MIB).build().unwrap();
    assert_eq!(pool.statistics().reserved, 8 * MIB);
    let vecs = [(&first, 3), (&second, 20), (&first, 40)]
        .map(|(stream, mib)| bytes(stream, &pool, mib * MIB, 1).unwrap());
    drop(pool);
    drop(vecs);
    first.synchronize().unwrap();
    second.synchronize().unwrap();
    assert_eq!((simulator.live_bytes(), simulator.live_blocks()), (0, 0));
    assert_eq!(
        simulator.call_count("cuMemAddressReserve"),
        simulator.call_count("cuMemAddressFree")
    );
    simulator.check().unwrap();
}

/// A call that fails costs the request at most: nothing is lost, and the next one is served.
#[test]
fn a_call_that_fails_loses_nothing() {
    for call in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"] {
        for nth in 1..4 {
            let (device, simulator) = support::simulated(SimConfig::default().granularity(4096));
            let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
            let pool = options(&device).maximum_size(64 << 10).build().unwrap();
            let (kept, freed): (Vec<_>, Vec<_>) = (0..16)
                .map(|value| bytes(&first, &pool, 4 << 10, value).unwrap())
                .partition(|vec| vec.to_vec().unwrap()[0] % 2 == 0);
            drop(freed);
            simulator.fail_call(call, nth, 999).unwrap();
            let first_try = bytes(&second, &pool, 32 << 10, 50);
            let reserved = pool.statistics().reserved;
            assert!(reserved <= 64 << 10, "{call}: {reserved}");
            drop(first_try);
            let again = bytes(&second, &pool, 32 << 10, 51).unwrap();
            assert_bytes(&again, 51);
            kept.iter().zip([0, 2, 4, 6]).for_each(|(vec, value)| assert_bytes(vec, value));
            drop((again, kept));
            pool.wait_and_trim(0).unwrap();
            drop(pool);
            assert_eq!(simulator.live_bytes(), 0, "{call} {nth}");
            simulator.check().unwrap();
        }
    }
}

/// Memory that can be neither used nor unmapped again keeps its addresses, and its bytes count, until it can be.
#[test]
fn two_calls_that_fail_cost_one_place() {
    const MAXIMUM: usize = 32 << 10;
    for nth in [1, 2, 5, 8] {
        for unmaps in [1, 30] {
            let (device, simulator) = support::simulated(SimConfig::default().granularity(4096));
            let stream = device.new_stream().unwrap();
            let pool = options(&device).maximum_size(MAXIMUM).build().unwrap();
            let assert_few = || {
                let info = device.memory_info().unwrap();
                let taken = info.total - info.free;
                assert!(taken <= MAXIMUM, "{taken}");
            };
            simulator.fail_call("cuMemSetAccess", nth, 999).unwrap();
            for unmap in 1..=unmaps {
                simulator.fail_call("cuMemUnmap", unmap, 999).unwrap();
            }
            let error = bytes(&stream, &pool, MAXIMUM, 1).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Driver, "{error}");
            assert_few();
            // Where it stays mapped, what is left serves less.
            let part = bytes(&stream, &pool, MAXIMUM / 4, 2).unwrap();
            assert_bytes(&part, 2);
            drop(part);
            let mut refused = 0;
            let all = loop {
                match bytes(&stream, &pool, MAXIMUM, 3) {
                    Ok(all) => break all,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}"),
                }
                assert_few();
                refused += 1;
                assert!(refused < unmaps, "{nth}");
            };
            assert_bytes(&all, 3);
            assert_few();
            drop((all, pool));
            assert_eq!((simulator.live_bytes(), simulator.live_blocks()), (0, 0), "{nth} {unmaps}");
            simulator.check().unwrap();
        }
    }
}

/// The same behind a block that grows where it is, and at the end of a pool that is not asked again.
#[test]
fn two_calls_that_fail_leave_a_block_and_an_end_whole() {
    for nth in 1..4 {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let pool = pool(&device);
        let mut vec = bytes(&stream, &pool, 3 * MIB, 1).unwrap();
        vec.resize(8 * MIB, 2).unwrap();
        simulator.fail_call("cuMemSetAccess", nth, 999).unwrap();
        simulator.fail_call("cuMemUnmap", 1, 999).unwrap();
        if vec.resize(40 * MIB, 3).is_err() {
            assert_eq!(vec.len(), 8 * MIB);
            assert_eq!((vec.get(0).unwrap(), vec.get(8 * MIB - 1).unwrap()), (1, 2));
        }
        if nth % 2 == 0 {
            vec.resize(60 * MIB, 4).unwrap();
            assert_eq!((vec.get(0).unwrap(), vec.get(60 * MIB - 1).unwrap()), (1, 4));
        }
        drop((vec, pool));
        assert_eq!((simulator.live_bytes(), simulator.live_blocks()), (0, 0), "{nth}");
        simulator.check().unwrap();
    }
}

/// A driver that is not ready is asked again a few times.
#[test]
fn a_driver_that_is_not_ready_is_asked_again() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    for nth in [1, 2, 3] {
        simulator.fail_call("cuMemSetAccess", nth, 600).unwrap();
    }
    let vec = bytes(&stream, &pool, 2 * MIB, 1).unwrap();
    assert_eq!(simulator.call_count("cuMemSetAccess"), 4);
    for nth in 1..=20 {
        simulator.fail_call("cuMemSetAccess", nth, 600).unwrap();
    }
    let error = bytes(&stream, &pool, 2 * MIB, 1).unwrap_err();
    assert_eq!(error.driver().unwrap().code(), 600, "{error}");
    assert_bytes(&vec, 1);
}

/// Work of another stream is in the way of neither growth nor a trim, and memory that it uses is not unmapped.
#[test]
fn memory_moves_beside_work_that_is_pending() {
    let device = support::device();
    let [busy, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = options(&device).maximum_size(32 * MIB).build().unwrap();
    let vecs: Vec<_> = (0..8).map(|value| bytes(&busy, &pool, 4 * MIB, value).unwrap()).collect();
    if let Some(simulator) = device.simulator() {
        simulator.stall(&busy).unwrap();
    }
    let kept: Vec<_> =
        vecs.into_iter().enumerate().filter(|(at, _)| at % 2 == 0).map(|(_, vec)| vec).collect();
    // The holes are pending on the busy stream, which takes them in its own order.
    let mut large = DeviceVec::<u8>::zeroed_in(&busy, 16 * MIB, pool.clone()).unwrap();
    large.fill(9).unwrap();
    assert_eq!(pool.statistics().reserved, 32 * MIB);
    if let Some(simulator) = device.simulator() {
        simulator.resume(&busy).unwrap();
    }
    assert_bytes(&large, 9);
    kept.iter().zip([0, 2, 4, 6]).for_each(|(vec, value)| assert_bytes(vec, value));
    drop(large);
    // Another stream waits for them on the device, and the host does not.
    let taken = bytes(&other, &pool, 16 * MIB, 7).unwrap();
    assert_bytes(&taken, 7);
    drop((kept, taken));
    pool.wait_and_trim(0).unwrap();
    assert_eq!(pool.statistics().reserved, 0);
    assert_clean(&device);
}

#[test]
fn a_maximum_below_a_granule_is_refused() {
    let (device, _) = support::simulated(SimConfig::default());
    let error = options(&device).maximum_size(MIB).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("2097152 bytes"), "{error}");
}

/// A graph's memory is mapped for it, stays where it is while the graph lives, and serves others afterwards.
#[test]
fn graphs_keep_what_is_mapped_for_them() {
    let device = support::device();
    let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = options(&device).maximum_size(32 * MIB).build().unwrap();
    drop((0..4).map(|value| bytes(&other, &pool, 4 * MIB, value).unwrap()).collect::<Vec<_>>());
    other.synchronize().unwrap();
    let (graph, mut vec) = stream
        .capture(&pool, |stream| {
            let mut vec = DeviceVec::<u8>::zeroed_in(stream, 6 * MIB, pool.clone())?;
            vec.fill(3)?;
            Ok(vec)
        })
        .unwrap();
    // SAFETY: the vector lives, and nothing else uses it meanwhile.
    unsafe { graph.launch(&stream) }.unwrap();
    assert_bytes(&vec, 3);
    vec.fill(4).unwrap();
    let beside = bytes(&other, &pool, 20 * MIB, 8).unwrap();
    // SAFETY: the vector lives, and nothing else uses it meanwhile.
    unsafe { graph.launch(&stream) }.unwrap();
    assert_bytes(&vec, 3);
    assert_bytes(&beside, 8);
    drop((vec, beside, graph));
    let all = bytes(&other, &pool, 30 * MIB, 1).unwrap();
    assert_bytes(&all, 1);
    assert_clean(&device);
}

/// A request that cannot be served costs the pool nothing that it has.
#[test]
fn what_is_too_large_takes_nothing_away() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(256 << 20));
    let stream = device.new_stream().unwrap();
    for maximum in [None, Some(64 * MIB)] {
        let options = options(&device);
        let pool = match maximum {
            Some(maximum) => options.maximum_size(maximum).build().unwrap(),
            None => options.build().unwrap(),
        };
        drop(bytes(&stream, &pool, 40 * MIB, 1).unwrap());
        stream.synchronize().unwrap();
        let (reserved, created) = (pool.statistics().reserved, simulator.call_count("cuMemCreate"));
        let error = DeviceVec::<u8>::zeroed_in(&stream, 1 << 38, pool.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(pool.statistics().reserved, reserved);
        assert!(simulator.call_count("cuMemCreate") - created < 10);
    }
}

#[test]
fn alignments_and_steps_of_any_size_are_kept() {
    let (device, simulator) = support::simulated(SimConfig::default().granularity(4096));
    let stream = device.new_stream().unwrap();
    for alignment in [256, 1 << 16, 1 << 27, 1 << 30] {
        let pool = options(&device).alignment(alignment).build().unwrap();
        let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, pool.clone()).unwrap();
        assert!(vec.as_device_ptr().is_multiple_of(alignment as u64), "{alignment}");
        assert_eq!(pool.statistics().reserved, alignment.max(4096));
    }
    for step in [1, 1 << 20, 1 << 62, usize::MAX] {
        let pool = options(&device).maximum_size(8 * MIB).growth_step(step).build().unwrap();
        let vecs = [(); 3].map(|()| bytes(&stream, &pool, 2 * MIB, 3).unwrap());
        assert_bytes(&vecs[2], 3);
    }
    simulator.check().unwrap();
}

/// A policy without a step that moves memory grows while what is free is too small.
#[test]
fn a_policy_that_moves_nothing_grows() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let steps = [MissStep::Complete, MissStep::Ordered, MissStep::Grow, MissStep::Wait];
    let pool = options(&device).miss_policy(MissPolicy::new(steps)).build().unwrap();
    drop(bytes(&stream, &pool, 4 * MIB, 1).unwrap());
    assert_bytes(&bytes(&stream, &pool, 40 * MIB, 2).unwrap(), 2);
    assert_clean(&device);
}

/// What is free grows where it is: no more is mapped than the request lacks.
#[test]
fn memory_is_mapped_beside_what_is_free() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    drop(bytes(&stream, &pool, 8 * MIB, 1).unwrap());
    stream.synchronize().unwrap();
    let mapped = simulator.call_count("cuMemMap");
    drop(bytes(&stream, &pool, 12 * MIB, 1).unwrap());
    assert_eq!((mapped, simulator.call_count("cuMemMap")), (4, 6));
    assert_eq!(simulator.call_count("cuMemUnmap"), 0);
}

/// A handle that goes back while its former addresses are in use counts until these are unmapped.
#[test]
fn the_maximum_counts_what_is_still_mapped() {
    counts_what_is_still_mapped(&["cuMemMap"]);
    // The new addresses go before the old ones.
    counts_what_is_still_mapped(&["cuMemSetAccess", "cuMemUnmap"]);
}

fn counts_what_is_still_mapped(fails: &[&str]) {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let steps = [MissStep::Grow, MissStep::GrowToMaximum];
    let options = options(&device).maximum_size(32 * MIB);
    let pool = options.miss_policy(MissPolicy::new(steps)).build().unwrap();
    let vecs: Vec<_> = (0..8).map(|value| bytes(&stream, &pool, 4 * MIB, value).unwrap()).collect();
    simulator.stall(&stream).unwrap();
    let kept: Vec<_> = vecs.into_iter().step_by(2).collect();
    fails.iter().for_each(|call| simulator.fail_call(call, 1, 999).unwrap());
    let large = || DeviceVec::<u8>::zeroed_in(&stream, 16 * MIB, pool.clone());
    let first = large();
    let _ = large();
    let small = DeviceVec::<u8>::zeroed_in(&stream, 6 * MIB, pool.clone());
    let info = device.memory_info().unwrap();
    drop(small);
    // Before anything fails: a pool that ends waits for the stream.
    simulator.resume(&stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(first.unwrap_err().kind(), ErrorKind::Driver);
    assert!(info.total - info.free <= 32 << 20, "{info:?}");
    assert_eq!(large().unwrap().to_vec().unwrap()[16 * MIB - 1], 0);
    drop(kept);
    simulator.check().unwrap();
}

/// Without a step that makes streams wait, what a stream has free moves all the same, and grows nothing.
#[test]
fn a_policy_without_waits_moves_what_is_ready() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let steps = [MissStep::Complete, MissStep::Grow, MissStep::GrowToMaximum];
    let pool = options(&device).miss_policy(MissPolicy::new(steps)).build().unwrap();
    let streams = [stream];
    let steps = 60;
    let reserved = grow(&pool, &streams, steps).peak_reserved;
    let live = (2 * steps - 1) * (256 << 10);
    assert!(reserved < live + live / 4, "{reserved} of {live}");
    assert_clean(&device);
}

#[test]
fn a_maximum_is_of_whole_granules() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = options(&device).maximum_size(3 * MIB).build().unwrap();
    let error = bytes(&stream, &pool, 3 * MIB, 1).unwrap_err().to_string();
    assert!(error.contains("whose maximum is 2097152 bytes"), "{error}");
    drop(bytes(&stream, &pool, 2 * MIB, 1).unwrap());
}

#[test]
fn a_refusal_says_what_the_device_has_free() {
    let (device, _) = support::simulated(SimConfig::default().capacity(16 << 20));
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let kept = bytes(&stream, &pool, 10 * MIB, 1).unwrap();
    let error = bytes(&stream, &pool, 8 * MIB, 1).unwrap_err().to_string();
    assert!(error.contains("which has 6291456 bytes free of its 16777216"), "{error}");
    drop(kept);
}

/// Without new memory the last handle of a block may be larger than it needs.
#[test]
fn handles_that_do_not_add_up_serve_all_the_same() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let steps = [MissStep::Grow, MissStep::Gather];
    let limit = 192 * MIB;
    let pool = options(&device)
        .maximum_size(limit)
        .soft_limit(limit)
        .miss_policy(MissPolicy::new(steps))
        .build()
        .unwrap();
    // Three blocks of 64 MiB in handles of 16 MiB: two are free, and not beside each other.
    let mut vecs: Vec<_> =
        (0..3).map(|value| bytes(&stream, &pool, 64 * MIB, value).unwrap()).collect();
    let kept = vecs.swap_remove(1);
    drop(vecs);
    assert_bytes(&bytes(&stream, &pool, 100 * MIB, 7).unwrap(), 7);
    assert_bytes(&kept, 1);
    simulator.check().unwrap();
}

/// What a long buffer leaves is made longer for the next one: few handles are mapped at each step.
#[test]
fn a_long_buffer_grows_by_few_calls() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let mut last = DeviceVec::<u8>::zeroed_in(&stream, 32 * MIB, pool.clone()).unwrap();
    let before = simulator.call_count("cuMemSetAccess");
    for quarter in 129..=512 {
        last = DeviceVec::<u8>::zeroed_in(&stream, quarter * MIB / 4, pool.clone()).unwrap();
    }
    let calls = simulator.call_count("cuMemSetAccess") - before;
    println!("{calls} calls, {:?}", pool.statistics());
    assert!(calls < 384, "{calls}");
    drop(last);
}

/// Also where a step that gathers comes before growth.
#[test]
fn large_blocks_fill_their_handles_under_any_policy() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for policy in [MissPolicy::default(), MissPolicy::rmm()] {
        let pool = options(&device).miss_policy(policy).build().unwrap();
        drop(bytes(&stream, &pool, 400 * MIB, 1).unwrap());
        let held = bytes(&stream, &pool, 33 * MIB, 2).unwrap();
        let map = pool.memory_map();
        let block = map.blocks.iter().find(|block| !block.is_free).unwrap();
        let (start, end) = (block.address, block.address + block.bytes as u64);
        let touched =
            map.upstream_blocks.iter().filter(|it| it.0 < end && it.0 + it.1 as u64 > start);
        let kept: usize = touched.map(|it| it.1).sum();
        assert!(kept <= 33 * MIB * 11 / 10, "{kept}");
        assert_bytes(&held, 2);
    }
    assert_clean(&device);
}

/// Large blocks keep no more than a tenth beside themselves, also in memory that larger ones had.
#[test]
fn large_blocks_fill_their_handles() {
    let device = support::device();
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = pool(&device);
    let block = |stream: &Stream, mib: usize| pool.allocate(stream, support::layout(mib * MIB));
    let held = [(); 2].map(|()| block(&first, 512).unwrap());
    held.into_iter().for_each(|block| support::free(&pool, &first, block));
    first.synchronize().unwrap();
    let smaller: Vec<_> = (0..20).map(|_| block(&second, 36).unwrap()).collect();
    let most = (1024 + 36) * MIB;
    let reserved = pool.statistics().reserved;
    assert!(reserved <= most + most / 10 + 64 * MIB, "{reserved}");
    // Every other one, so that what two share would stay.
    let (freed, kept): (Vec<_>, Vec<_>) =
        smaller.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
    freed.into_iter().for_each(|(_, block)| support::free(&pool, &second, block));
    pool.wait_and_trim(0).unwrap();
    let (reserved, live) = (pool.statistics().reserved, kept.len() * 36 * MIB);
    assert!(reserved <= live + live / 10, "{reserved} of {live}");
    kept.into_iter().for_each(|(_, block)| support::free(&pool, &second, block));
    pool.wait_and_trim(0).unwrap();
    assert_eq!(pool.statistics().reserved, 0);
    assert_clean(&device);
}

/// Free memory that the device is past stays so where new memory comes beside it: else it would never go back.
#[test]
fn memory_of_the_wrong_size_goes_back_before_the_pool_grows() {
    let device = support::device();
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = pool(&device);
    let block = |stream: &Stream, mib: usize| pool.allocate(stream, support::layout(mib * MIB));
    let large = block(&first, 2048).unwrap();
    support::free(&pool, &first, large);
    first.synchronize().unwrap();
    let mut kept = Vec::new();
    for _ in 0..40 {
        kept.push(block(&second, 36).unwrap());
        let reserved = pool.statistics().reserved;
        assert!(reserved <= (2048 + 36) * MIB * 11 / 10 + 64 * MIB, "{reserved}");
    }
    kept.into_iter().for_each(|block| support::free(&pool, &second, block));
    assert_clean(&device);
}

/// Where nothing can be mapped, a large block lies in handles that it does not fill.
#[test]
fn a_large_block_is_not_refused_for_its_place() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = options(&device).maximum_size(256 * MIB).build().unwrap();
    let block = |mib: usize| pool.allocate(&stream, support::layout(mib * MIB));
    let large = block(256).unwrap();
    simulator.stall(&stream).unwrap();
    support::free(&pool, &stream, large);
    // No handle may move or go back: the device never gets anywhere.
    let blocks: Vec<_> = (0..7).map(|_| block(36).unwrap()).collect();
    simulator.resume(&stream).unwrap();
    assert_eq!(pool.statistics().reserved, 256 * MIB);
    blocks.into_iter().for_each(|block| support::free(&pool, &stream, block));
    simulator.check().unwrap();
}

/// Memory that moves within a stream, and what is left of it: another stream gets it behind the uses that are pending where it was.
#[test]
fn what_is_left_of_a_move_is_behind_its_former_uses() {
    let (device, simulator) = support::simulated(SimConfig::default().granularity(4096));
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = options(&device).maximum_size(16 << 10).build().unwrap();
    let mut all: Vec<_> =
        (0..4).map(|value| bytes(&first, &pool, 4 << 10, value).unwrap()).collect();
    device.synchronize().unwrap();
    simulator.stall(&first).unwrap();
    for index in [0, 2] {
        all[index].fill(9).unwrap();
    }
    let kept: Vec<_> = [3, 1].map(|index| all.swap_remove(index)).into();
    drop(all);
    // SAFETY: nothing reads it.
    let moved = unsafe { DeviceVec::<u8>::uninit_in(&first, (8 << 10) - 256, pool.clone()) };
    let moved = moved.unwrap();
    let mut rest = bytes(&second, &pool, 256, 5).unwrap();
    rest.fill(6).unwrap();
    simulator.resume(&first).unwrap();
    assert_bytes(&rest, 6);
    device.synchronize().unwrap();
    assert_bytes(&rest, 6);
    drop((moved, kept, rest));
    simulator.check().unwrap();
}

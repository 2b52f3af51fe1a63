//! Threads, magazines, handles that go first, and blocks that are not the pool's.

use super::log::Log;
use super::{KIB, MIB, allocate, builder, drain, free, support};
use aquifer::sim::SimConfig;
use aquifer::{
    DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, PoolResource,
    mr::{AsyncResource, PoolStatistics},
};
use std::sync::{Arc, mpsc};
use tracing::Level;

/// What is kept ready after so many blocks of a size that comes back were freed.
fn cached(pool: &PoolResource, blocks: usize, bytes: usize) -> usize {
    let stream = pool.device().new_stream().unwrap();
    for _ in 0..3 {
        let held: Vec<_> = (0..blocks).map(|_| allocate(pool, &stream, bytes).unwrap()).collect();
        held.into_iter().for_each(|block| free(pool, &stream, block));
    }
    pool.statistics().cached
}

#[test]
fn magazines_keep_what_they_may_and_nothing_where_they_are_off() {
    let (device, _) = support::simulated(SimConfig::default());
    let pool = |entries, bytes| {
        builder(&device).magazine_entries(entries).magazine_bytes(bytes).build().unwrap()
    };
    assert_eq!(cached(&pool(8, MIB), 20, 512), 8 * 512);
    assert_eq!(cached(&pool(3, MIB), 20, 512), 3 * 512, "so many of a size");
    assert_eq!(cached(&pool(8, 1200), 20, 512), 2 * 512, "so many bytes");
    assert_eq!(cached(&pool(8, 511), 20, 512), 0);
    assert_eq!(cached(&pool(0, MIB), 20, 512), 0, "off");
    assert_eq!(cached(&pool(8, 0), 20, 512), 0, "off, too");
}

#[test]
fn a_pool_without_magazines_serves_and_merges_all_the_same() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let options = builder(&device).magazine_entries(0).maximum_size(MIB).growth_step(MIB);
    let pool = options.build().unwrap();
    for _ in 0..4 {
        let (held, _) = drain(&pool, &stream, 4 * KIB);
        assert_eq!(held.len(), 256);
        held.into_iter().for_each(|block| free(&pool, &stream, block));
        let statistics = pool.statistics();
        assert_eq!((statistics.cached, statistics.largest_free), (0, MIB));
    }
}

#[test]
fn threads_share_a_pool_and_leave_it_whole() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = Arc::new(builder(&device).maximum_size(64 * MIB).build().unwrap());
    let shared = device.new_stream().unwrap();
    let (give, take) = mpsc::channel::<(DeviceVec<u32>, u32)>();
    let threads: Vec<_> = (0..4_u32)
        .map(|thread| {
            let (pool, shared, give) = (pool.clone(), shared.clone(), give.clone());
            std::thread::spawn(move || {
                let own = pool.device().new_stream().unwrap();
                for round in 0..100 {
                    let stream = if round % 3 == 0 { &shared } else { &own };
                    let (value, length) = (thread * 1000 + round, 1 + (round as usize * 37) % 3000);
                    let mut vec = DeviceVec::zeroed_in(stream, length, pool.clone()).unwrap();
                    vec.fill(value).unwrap();
                    if round % 2 == 0 {
                        give.send((vec, value)).unwrap();
                    } else {
                        assert!(vec.to_vec().unwrap().into_iter().all(|seen| seen == value));
                    }
                }
            })
        })
        .collect();
    drop(give);
    // Half of them are read and freed here.
    let mut seen = 0;
    for (vec, value) in take {
        assert!(vec.to_vec().unwrap().into_iter().all(|seen| seen == value));
        seen += 1;
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(seen, 200);
    let PoolStatistics { reserved, live, live_blocks, free, .. } = pool.statistics();
    assert_eq!((live, live_blocks, free), (0, 0, reserved));
    assert_eq!(pool.wait_and_trim(0).unwrap(), reserved);
    assert_eq!(simulator.live_blocks(), 0);
    simulator.check().unwrap();
}

#[test]
fn the_maximum_is_there_for_one_thread_whatever_another_keeps_ready() {
    let (device, _) = support::simulated(SimConfig::default());
    let pool = builder(&device).maximum_size(MIB).growth_step(MIB).build().unwrap();
    let (go, wait) = mpsc::channel::<()>();
    let (ready, is_ready) = mpsc::channel();
    let other = pool.clone();
    let idle = std::thread::spawn(move || {
        cached(&other, 8, 64 * KIB);
        ready.send(()).unwrap();
        let _ = wait.recv();
    });
    is_ready.recv().unwrap();
    assert_eq!(pool.statistics().cached, 512 * KIB, "the test is about this");
    let stream = device.new_stream().unwrap();
    let whole = allocate(&pool, &stream, MIB).unwrap();
    free(&pool, &stream, whole);
    drop(go);
    idle.join().unwrap();
}

#[test]
fn vectors_outlive_every_handle_on_their_pool_and_its_device() {
    for ordered in [false, true] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let resource: Arc<dyn DeviceResource> = if ordered {
            let upstream = AsyncResource::new(&device).unwrap();
            Arc::new(PoolResource::builder(upstream).build().unwrap())
        } else {
            Arc::new(builder(&device).build().unwrap())
        };
        let mut one = DeviceVec::from_slice_in(&a, &[1_u32, 2, 3], resource.clone()).unwrap();
        let mut two = DeviceVec::from_slice_in(&b, &[4_u32], resource).unwrap();
        drop((device, a, b));
        one.resize(1000, 9).unwrap();
        two.push(5).unwrap();
        assert_eq!(one.to_vec().unwrap()[..4], [1, 2, 3, 9]);
        drop(one);
        assert_eq!(two.to_vec().unwrap(), [4, 5]);
        let ((), log) = Log::of(|| drop(two));
        assert!(log.lines().is_empty(), "{:?}", log.lines());
        assert_eq!((simulator.live_blocks(), simulator.call_count("cuStreamDestroy")), (0, 2));
        simulator.check().unwrap();
    }
}

#[test]
fn what_was_not_given_back_when_the_pool_ends_is_leaked_and_said_so() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).growth_step(MIB).build().unwrap();
    let held = [(); 2].map(|()| allocate(&pool, &stream, MIB).unwrap());
    let [lost, back] = held;
    free(&pool, &stream, back);
    let ((), log) = Log::of(|| drop(pool));
    assert_eq!(log.count(Level::ERROR, "leaked"), 1, "{:?}", log.lines());
    assert_eq!(log.count(Level::ERROR, "bytes=1048576"), 1, "{:?}", log.lines());
    assert_eq!(simulator.live_bytes(), MIB, "the other one went back");
    assert_eq!(lost.bytes(), MIB);
}

#[test]
fn no_bytes_are_an_empty_block_and_cost_nothing() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).build().unwrap();
    let calls = simulator.calls();
    for alignment in [1, 256, 1 << 26] {
        let layout = DeviceLayout::with_alignment(0, alignment).unwrap();
        for _ in 0..4 {
            let block = pool.allocate(&stream, layout).unwrap();
            assert_eq!(block, DeviceBlock::empty(layout));
            free(&pool, &stream, block);
        }
    }
    assert_eq!(pool.statistics(), PoolStatistics::default());
    assert_eq!(simulator.calls(), calls);
}

#[test]
fn a_stream_of_another_device_is_refused_and_not_remembered() {
    let (device, _) = support::simulated(SimConfig::default());
    let (elsewhere, _) = support::simulated(SimConfig::default());
    let foreign = elsewhere.new_stream().unwrap();
    let pool = builder(&device).initial_size(MIB).build().unwrap();
    let before = pool.statistics();
    for bytes in [0, 256, 256, 256, MIB, 2 * MIB] {
        let error = allocate(&pool, &foreign, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongDevice, "{error}");
    }
    assert_eq!(pool.statistics(), before);
    let stream = device.new_stream().unwrap();
    free(&pool, &stream, allocate(&pool, &stream, MIB).unwrap());
}

/// Gives `pool` a block that it should not take: what it said.
fn give_wrongly(pool: &PoolResource, stream: &aquifer::Stream, block: DeviceBlock) -> Log {
    // SAFETY: none; the pool is to see that the block is not its own. Nothing uses the memory, and
    // it lies in the simulated device.
    let ((), log) = Log::of(|| unsafe { pool.deallocate(stream, block) });
    assert_eq!(log.count(Level::ERROR, "ignored"), 1, "{:?}", log.lines());
    assert_eq!(log.lines().len(), 1, "{:?}", log.lines());
    log
}

#[test]
fn a_block_of_another_pool_is_reported_and_ignored() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let (one, two) = (builder(&device).build().unwrap(), builder(&device).build().unwrap());
    for warm in [false, true] {
        if warm {
            for pool in [&one, &two] {
                let held = [(); 8].map(|()| allocate(pool, &stream, 512).unwrap());
                held.into_iter().for_each(|block| free(pool, &stream, block));
                assert!(pool.statistics().cached > 0, "blocks of this size are kept ready");
            }
        }
        let block = allocate(&one, &stream, 512).unwrap();
        let before = (one.statistics(), two.statistics());
        let twin = DeviceBlock::new(block.address(), block.bytes(), block.token());
        let log = give_wrongly(&two, &stream, twin);
        assert_eq!(log.count(Level::ERROR, "not its own"), 1, "{:?}", log.lines());
        assert_eq!(one.statistics(), before.0);
        assert_eq!(two.statistics().live, before.1.live);
        assert_eq!(two.statistics().reserved, before.1.reserved);
        free(&one, &stream, block);
        assert_eq!(one.statistics().live, 0);
    }
}

#[test]
fn a_token_that_was_made_up_is_reported_and_ignored() {
    let (device, _) = support::simulated(SimConfig::default().without_pool_checks());
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).build().unwrap();
    let block = allocate(&pool, &stream, 512).unwrap();
    let before = pool.statistics();
    let (address, bytes, token) = (block.address(), block.bytes(), block.token());
    // No such node, no such stream, the free memory beside it, no pool.
    for forged in [token ^ 0x7fff_0000, token ^ (5 << 32), token ^ (0xffff << 32), 0, u64::MAX] {
        give_wrongly(&pool, &stream, DeviceBlock::new(address, bytes, forged));
        let after = pool.statistics();
        assert_eq!((after.live, after.live_blocks, after.free), {
            (before.live, before.live_blocks, before.free)
        });
    }
    let next = allocate(&pool, &stream, 512).unwrap();
    assert_ne!(next.address(), address, "it is in use");
    free(&pool, &stream, next);
    free(&pool, &stream, block);
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn what_a_dropped_stream_came_to_own_goes_back() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = builder(&device).growth_step(4 * KIB).build().unwrap();
    let [user, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let dropped = [(); 2].map(|()| device.new_stream().unwrap());
    let blocks = dropped.each_ref().map(|stream| allocate(&pool, stream, 4 * KIB).unwrap());
    // A block of the user's own, so that the user takes no slot of the others.
    let own = allocate(&pool, &user, 4 * KIB).unwrap();
    for (stream, block) in dropped.iter().zip(blocks) {
        other.wait_for(stream).unwrap();
        free(&pool, &other, block);
    }
    other.synchronize().unwrap();
    drop(dropped);
    // Takes the slot of one of the two; the other one stays vacant.
    let next = device.new_stream().unwrap();
    let small = allocate(&pool, &next, 256).unwrap();
    // Larger than all there is: the pool looks at all heaps before it grows.
    let large = allocate(&pool, &user, MIB).unwrap();
    free(&pool, &next, small);
    free(&pool, &user, large);
    free(&pool, &user, own);
    let reserved = pool.statistics().reserved;
    assert_eq!(pool.wait_and_trim(0).unwrap(), reserved);
    assert_eq!(simulator.live_blocks(), 0);
}

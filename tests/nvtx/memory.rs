//! What a tool that watches memory is told: heaps for blocks of upstream, regions for live blocks.

use crate::tool::{KIB, Told, assert_all_is_over, beside_tool, give, on_threads, take, watched};
use crate::{MIB, support};
use aquifer::{
    CudaResource, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, PoolResource,
    container::Growth,
    mr::{ArenaResource, BinningResource, FixedSizeResource, VirtualResource},
};
use std::sync::{Arc, Barrier, Mutex};

#[test]
fn live_blocks_alone_are_regions() {
    watched("memory::live_blocks_alone_are_regions", || {
        let device = support::device();
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let pool = PoolResource::builder(CudaResource::new(&device));
        let pool = pool.growth_step(4 * MIB).initial_size(4 * MIB).build().unwrap();
        let told = Told::now();
        assert_eq!((told.heaps.len(), told.regions.len()), (1, 0));
        let (heap, (bytes, name)) = told.heaps.first_key_value().unwrap();
        assert_eq!(*bytes, 4 * MIB);
        assert!(name.starts_with("aquifer pool ") && name.ends_with(", chunk"), "{name}");
        let blocks = [take(&pool, &stream, 1000), take(&pool, &other, MIB)];
        let told = Told::now();
        for (block, stream) in blocks.iter().zip([&stream, &other]) {
            let region = &told.regions[&(block.address() as usize)];
            assert_eq!((region.0, region.1), (block.bytes(), *heap));
            let number = name.strip_suffix(", chunk").unwrap();
            assert_eq!(region.2, format!("{number}, stream {}", stream.id()));
        }
        let [small, large] = blocks;
        // Empty ones are nowhere.
        let empty = pool.allocate(&stream, DeviceLayout::new(0).unwrap()).unwrap();
        // SAFETY: it has no bytes.
        unsafe { pool.deallocate(&stream, empty) };
        assert_eq!(Told::now().ever, 2);
        // A pool ignores what is not its own.
        let stranger = PoolResource::new(CudaResource::new(&device)).unwrap();
        let twin = DeviceBlock::new(small.address(), small.bytes(), small.token());
        // SAFETY: the pool sees that the block is another's, and nothing uses it.
        unsafe { stranger.deallocate(&stream, twin) };
        give(&pool, &stream, small);
        give(&pool, &other, large);
        // Growth is a heap more, and what goes back is none.
        let large = take(&pool, &stream, 6 * MIB);
        assert_eq!(Told::now().heaps.len(), 2);
        give(&pool, &stream, large);
        pool.wait_and_trim(0).unwrap();
        assert_all_is_over();
        let last = take(&pool, &stream, 1000);
        give(&pool, &stream, last);
        drop(pool);
        assert_all_is_over();
    });
}

#[test]
fn memory_that_is_used_again_is_registered_again() {
    watched("memory::memory_that_is_used_again_is_registered_again", || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let mut at = Vec::new();
        for round in 1..=20 {
            // Often enough for a thread that keeps blocks ready to keep this one.
            let block = take(&pool, &stream, 1000);
            at.push(block.address());
            assert_eq!(Told::now().ever, round);
            give(&pool, &stream, block);
            assert_eq!(pool.statistics().cached, 0);
        }
        at.dedup();
        assert_eq!(at.len(), 1, "the same memory each time");
        drop(pool);
        assert_all_is_over();
    });
}

#[test]
fn a_free_waits_for_what_may_use_the_block() {
    watched("memory::a_free_waits_for_what_may_use_the_block", || {
        let device = support::device();
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        for round in 0..20_u32 {
            let memory = Arc::new(pool.clone());
            let vec = DeviceVec::<u32>::zeroed_in(&stream, 4 * MIB, memory.clone()).unwrap();
            let behind = stream.record().unwrap();
            drop(vec);
            assert!(behind.is_complete().unwrap());
            let mut vec = DeviceVec::<u32>::zeroed_in(&other, MIB, memory).unwrap();
            vec.fill(round).unwrap();
            assert_eq!(vec.get(MIB - 1).unwrap(), round);
        }
        drop(pool);
        assert_all_is_over();
    });
}

#[test]
fn resources_that_are_pools_are_seen() {
    watched("memory::resources_that_are_pools_are_seen", || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let plain = CudaResource::new(&device);
        let check = |resource: &dyn Fn(usize) -> DeviceBlock, free: &dyn Fn(DeviceBlock)| {
            // Each size often enough to be kept ready, if anything kept it.
            for bytes in [1000, 4 * KIB, 100 * KIB].repeat(6) {
                let [first, second] = [resource(bytes), resource(bytes)];
                free(first);
                assert!(Told::now().is_live(&second));
                free(second);
            }
            assert!(Told::now().regions.is_empty());
        };
        let fixed =
            FixedSizeResource::builder(plain.clone()).block_size(128 * KIB).build().unwrap();
        let free = |block| give(&fixed, &stream, block);
        check(&|bytes| take(&fixed, &stream, bytes), &free);
        drop(fixed);
        assert_all_is_over();
        let bins = BinningResource::builder(plain.clone()).fixed_size_bins(10, 17).build().unwrap();
        let free = |block| give(&bins, &stream, block);
        check(&|bytes| take(&bins, &stream, bytes), &free);
        drop(bins);
        assert_all_is_over();
        let arena = ArenaResource::builder(plain).arena_size(16 * MIB).build().unwrap();
        let free = |block| give(&arena, &stream, block);
        check(&|bytes| take(&arena, &stream, bytes), &free);
        drop(arena);
        assert_all_is_over();
    });
}

/// A tool takes no heap in mapped memory. So such a pool is as it is without the tool, and tells it nothing.
#[test]
fn a_pool_over_mapped_memory_is_not_followed() {
    watched("memory::a_pool_over_mapped_memory_is_not_followed", || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
        let mut vec = DeviceVec::<u8>::zeroed_in(&stream, 4 * MIB, pool.clone()).unwrap();
        vec.resize(40 * MIB, 7).unwrap();
        assert_eq!((vec.get(0).unwrap(), vec.get(40 * MIB - 1).unwrap()), (0, 7));
        assert_eq!(vec.growth(), Some(Growth::InPlace), "the pool maps handles");
        drop((vec, pool));
        stream.synchronize().unwrap();
        let told = Told::now();
        assert_eq!((told.heaps.len(), told.regions.len(), told.ever, told.refused), (0, 0, 0, 0));
        // Another pool is followed beside it.
        let plain = PoolResource::new(CudaResource::new(&device)).unwrap();
        let block = take(&plain, &stream, 1000);
        give(&plain, &stream, block);
        drop(plain);
        assert_all_is_over();
    });
}

#[test]
fn blocks_of_a_pool_over_a_pool_are_regions_of_the_lowest_heap() {
    watched("memory::blocks_of_a_pool_over_a_pool_are_regions_of_the_lowest_heap", || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let inner = PoolResource::builder(CudaResource::new(&device));
        let inner = inner.growth_step(16 * MIB).build().unwrap();
        let outer = PoolResource::builder(inner.clone()).growth_step(2 * MIB).build().unwrap();
        // Of the inner pool's first chunk, as the outer one's chunk is, which begins where it does.
        let [first, second] = [100 * KIB, 300 * KIB].map(|bytes| take(&outer, &stream, bytes));
        assert_eq!(inner.statistics().live, 2 * MIB);
        let beside = take(&inner, &stream, 4 * KIB);
        let told = Told::now();
        let regions: Vec<usize> = told.regions.keys().copied().collect();
        let mut blocks = [&first, &second, &beside].map(|block| block.address() as usize);
        blocks.sort_unstable();
        assert_eq!(regions, blocks, "no region for what is cut further");
        assert_eq!(told.heaps.len(), 1);
        give(&outer, &stream, first);
        outer.wait_and_trim(0).unwrap();
        give(&outer, &stream, second);
        assert_eq!(Told::now().regions.len(), 1);
        drop(outer);
        let told = Told::now();
        assert_eq!((told.heaps.len(), told.regions.len()), (1, 1));
        assert_eq!(inner.statistics().live, 4 * KIB);
        // What was the outer pool's chunk is the inner one's to hand out.
        let whole = take(&inner, &stream, 8 * MIB);
        give(&inner, &stream, whole);
        give(&inner, &stream, beside);
        drop(inner);
        assert_all_is_over();
    });
}

#[test]
fn threads_take_and_give() {
    watched("memory::threads_take_and_give", || {
        const THREADS: usize = 4;
        let device = support::device();
        let pool = PoolResource::builder(CudaResource::new(&device));
        let pool = pool.growth_step(MIB).build().unwrap();
        let start = Barrier::new(THREADS);
        on_threads(THREADS, |thread| {
            let stream = device.new_stream().unwrap();
            start.wait();
            let mut held = Vec::new();
            for round in 0..200 {
                let bytes = (1 + (round * 7 + thread) % 50) * 4 * KIB;
                let layout = DeviceLayout::new(bytes).unwrap();
                held.push(pool.allocate(&stream, layout).unwrap());
                if held.len() > 8 {
                    let block = held.swap_remove(round % 8);
                    // SAFETY: allocated from the pool; nothing uses it.
                    unsafe { pool.deallocate(&stream, block) };
                }
                if round % 50 == 49 {
                    pool.wait_and_trim(0).unwrap();
                }
            }
            for block in held {
                // SAFETY: as above.
                unsafe { pool.deallocate(&stream, block) };
            }
        });
        // The log was replayed, which sees two regions at one place.
        let told = Told::now();
        assert_eq!((told.regions.len(), told.ever), (0, 200 * THREADS));
        drop(pool);
        assert_all_is_over();
    });
}

#[test]
fn a_block_that_outlives_its_pool_stays_a_region() {
    watched("memory::a_block_that_outlives_its_pool_stays_a_region", || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::builder(CudaResource::new(&device));
        let pool = pool.growth_step(MIB).build().unwrap();
        let [gone, left] = [take(&pool, &stream, 4 * KIB), take(&pool, &stream, 8 * KIB)];
        // Of a chunk that is free when the pool goes.
        let large = take(&pool, &stream, 2 * MIB);
        give(&pool, &stream, large);
        let clone = pool.clone();
        drop(pool);
        // By another thread, on a stream of its own that comes after.
        let gone = Mutex::new(Some(gone));
        on_threads(1, |_| {
            let other = device.new_stream().unwrap();
            other.wait_for(&stream).unwrap();
            give(&clone, &other, gone.lock().unwrap().take().unwrap());
        });
        drop(clone);
        // The pool told that it leaked it; whoever has it still may use it.
        let told = Told::now();
        assert!(told.is_live(&left));
        assert_eq!((told.heaps.len(), told.regions.len()), (1, 1));
    });
}

/// As compute-sanitizer does with memory that it does not know.
#[test]
fn a_heap_that_the_tool_refuses_has_no_regions() {
    let name = "memory::a_heap_that_the_tool_refuses_has_no_regions";
    let set = [("STAND_IN_NVTX_MEMORY", "1"), ("STAND_IN_NVTX_NO_HEAPS", "1")];
    beside_tool(name, &set, || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let inner = PoolResource::new(CudaResource::new(&device)).unwrap();
        let outer = PoolResource::new(inner.clone()).unwrap();
        for pool in [&inner as &dyn DeviceResource, &outer] {
            let block = pool.allocate(&stream, DeviceLayout::new(1000).unwrap()).unwrap();
            // SAFETY: allocated from the pool; nothing uses it.
            unsafe { pool.deallocate(&stream, block) };
        }
        drop((outer, inner));
        let told = Told::now();
        assert!(told.refused > 0);
        assert_eq!(told, Told { refused: told.refused, ..Told::default() });
    });
}

#[test]
fn the_child_of_a_fork_tells_nothing() {
    watched("memory::the_child_of_a_fork_tells_nothing", || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let [block, held] = [take(&pool, &stream, 1000), take(&pool, &stream, 1000)];
        let before = Told::now();
        // SAFETY: the child runs what is below, and ends without destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends a child that hangs.
            unsafe { libc::alarm(20) };
            let again = pool.allocate(&stream, DeviceLayout::new(1000).unwrap());
            let refused = again.is_err_and(|error| error.kind() == ErrorKind::Forked);
            // SAFETY: allocated from the pool; nothing uses it.
            unsafe { pool.deallocate(&stream, block) };
            drop(pool);
            // SAFETY: ends the child alone.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
        assert_eq!(Told::now(), before);
        give(&pool, &stream, block);
        give(&pool, &stream, held);
        drop(pool);
        assert_all_is_over();
    });
}

#[test]
fn a_tool_that_does_not_watch_memory_leaves_pools_as_they_are() {
    beside_tool("memory::a_tool_that_does_not_watch_memory_leaves_pools_as_they_are", &[], || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        for _ in 0..20 {
            let block = pool.allocate(&stream, DeviceLayout::new(1000).unwrap()).unwrap();
            // SAFETY: allocated from the pool; nothing uses it.
            unsafe { pool.deallocate(&stream, block) };
        }
        assert_eq!(pool.statistics().cached, 1024, "the thread keeps it ready");
        drop(pool);
        assert_eq!(Told::now(), Told::default());
    });
}

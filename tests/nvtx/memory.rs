//! What a tool that watches memory is told: heaps for blocks of upstream, regions for live blocks.

use crate::{CHILD, MIB, child_with, support, tool};
use aquifer::{
    ArenaResource, BinningResource, CudaResource, DeviceBlock, DeviceLayout, DeviceResource,
    DeviceVec, ErrorKind, FixedSizeResource, PoolResource, Stream,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};

const KIB: usize = 1 << 10;

/// What a tool knows, by address.
#[derive(Debug, Default, PartialEq)]
struct Told {
    /// Bytes and name.
    heaps: BTreeMap<usize, (usize, String)>,
    /// Bytes, the heap's address and the name.
    regions: BTreeMap<usize, (usize, usize, String)>,
    /// Regions that there ever were.
    ever: usize,
}

impl Told {
    /// What the stand-in has heard so far. Fails on a call that makes no sense there.
    fn now() -> Self {
        let path = std::env::var_os("STAND_IN_NVTX_LOG").unwrap();
        let heard = std::fs::read_to_string(path).unwrap_or_default();
        let mut told = Self::default();
        for line in heard.lines() {
            let mut words = line.split(' ');
            let what = words.next().unwrap();
            let rest: Vec<&str> = words.collect();
            let number = |at: usize| match rest[at].strip_prefix("0x") {
                Some(digits) => usize::from_str_radix(digits, 16).unwrap(),
                None => rest[at].parse().unwrap(),
            };
            match what {
                "heap" => told.heap(number(0), number(1), rest[2..].join(" ")),
                "end-heap" => {
                    let (bytes, _) = told.heaps.remove(&number(0)).expect(line);
                    assert_eq!(told.within(number(0), bytes), [], "left in a heap that ends");
                }
                "region" => told.region(number(0), number(1), number(2)),
                "end-region" => drop(told.regions.remove(&number(0)).expect(line)),
                "name" => told.regions.get_mut(&number(0)).expect(line).2 = rest[1..].join(" "),
                "domain" | "push" | "pop" => {}
                _ => panic!("{line}"),
            }
        }
        told
    }

    fn heap(&mut self, address: usize, bytes: usize, name: String) {
        assert!(name.len() <= 49, "{name}");
        let mut overlapping = self.heaps.range(..address + bytes);
        assert!(!overlapping.any(|(at, heap)| at + heap.0 > address), "{address:#x} {bytes}");
        self.heaps.insert(address, (bytes, name));
    }

    fn region(&mut self, address: usize, bytes: usize, heap: usize) {
        let (size, _) = self.heaps[&heap];
        assert!(heap <= address && address + bytes <= heap + size, "{address:#x} of {heap:#x}");
        assert_eq!(self.within(address, bytes), [], "{address:#x} {bytes}");
        self.regions.insert(address, (bytes, heap, String::new()));
        self.ever += 1;
    }

    fn within(&self, address: usize, bytes: usize) -> Vec<usize> {
        let before = self.regions.range(..address + bytes);
        before.filter(|(at, region)| *at + region.0 > address).map(|(at, _)| *at).collect()
    }

    fn is_live(&self, block: &DeviceBlock) -> bool {
        let region = self.regions.get(&(block.address() as usize));
        region.is_some_and(|region| region.0 == block.bytes())
    }
}

/// Runs the test in a process of its own that a tool watches, and there `body`.
fn watched(name: &str, body: impl FnOnce()) {
    beside_tool(name, &[("STAND_IN_NVTX_MEMORY", "1")], body);
}

/// As [`watched`], by a tool that finds this in its environment.
fn beside_tool(name: &str, set: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let file = format!("aquifer-{}-{name}.log", std::process::id());
    let log: PathBuf = std::env::temp_dir().join(file);
    let _ = std::fs::remove_file(&log);
    let output = child_with(&format!("memory::{name}"), &tool(), &log, set);
    let heard = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}\n{heard}");
}

fn take(from: &impl DeviceResource, stream: &Stream, bytes: usize) -> DeviceBlock {
    let block = from.allocate(stream, DeviceLayout::new(bytes).unwrap()).unwrap();
    assert!(Told::now().is_live(&block), "{block:?} {:?}", Told::now());
    block
}

/// Gives a block back that nothing uses later, and whose region ends with it.
fn give(to: &impl DeviceResource, stream: &Stream, block: DeviceBlock) {
    let at = block.address() as usize;
    assert!(Told::now().is_live(&block));
    // SAFETY: allocated from the resource; nothing uses it.
    unsafe { to.deallocate(stream, block) };
    assert!(!Told::now().regions.contains_key(&at), "{at:#x}");
}

fn assert_all_is_over() {
    let told = Told::now();
    assert!(told.heaps.is_empty() && told.regions.is_empty() && told.ever > 0, "{told:?}");
}

#[test]
fn live_blocks_alone_are_regions() {
    watched("live_blocks_alone_are_regions", || {
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
        pool.trim(0).unwrap();
        assert_all_is_over();
        let last = take(&pool, &stream, 1000);
        give(&pool, &stream, last);
        drop(pool);
        assert_all_is_over();
    });
}

#[test]
fn memory_that_is_used_again_is_registered_again() {
    watched("memory_that_is_used_again_is_registered_again", || {
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
    watched("a_free_waits_for_what_may_use_the_block", || {
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
    watched("resources_that_are_pools_are_seen", || {
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

#[test]
fn blocks_of_a_pool_over_a_pool_are_regions_of_the_lowest_heap() {
    watched("blocks_of_a_pool_over_a_pool_are_regions_of_the_lowest_heap", || {
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
        outer.trim(0).unwrap();
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
fn what_a_graph_uses_stays_a_region_until_its_memory_is_used_again() {
    watched("what_a_graph_uses_stays_a_region_until_its_memory_is_used_again", || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::builder(CudaResource::new(&device));
        let pool = pool.growth_step(4 * MIB).maximum_size(4 * MIB).build().unwrap();
        let (outside, late) = (take(&pool, &stream, 8 * KIB), take(&pool, &stream, 16 * KIB));
        let at = [&outside, &late].map(|block| block.address() as usize);
        let (graph, (inside, outliving)) = stream
            .capture(&pool, |stream| {
                // SAFETY: allocated from the pool; nothing uses it later.
                unsafe { pool.deallocate(stream, outside) };
                let block = take(&pool, stream, 32 * KIB);
                let inside = block.address() as usize;
                // SAFETY: as above.
                unsafe { pool.deallocate(stream, block) };
                Ok((inside, take(&pool, stream, 64 * KIB)))
            })
            .unwrap();
        let is_region = |at: usize| Told::now().regions.contains_key(&at);
        assert!(is_region(at[0]) && is_region(inside), "freed, and the graph's");
        assert!(Told::now().is_live(&outliving));
        give(&pool, &stream, late);
        // SAFETY: the graph is of no work.
        unsafe { graph.launch(&stream) }.unwrap();
        let kept = outliving.address() as usize;
        // SAFETY: allocated from the pool; nothing uses it later but the graph.
        unsafe { pool.deallocate(&stream, outliving) };
        assert!(is_region(kept), "each launch may use it");
        drop(graph);
        // All of the pool, so all of the above.
        let whole = take(&pool, &stream, 4 * MIB);
        assert_eq!(Told::now().regions.len(), 1);
        give(&pool, &stream, whole);
        drop(pool);
        assert_all_is_over();
    });
}

#[test]
fn a_free_in_a_capture_that_the_pool_does_not_know_keeps_the_region() {
    watched("a_free_in_a_capture_that_the_pool_does_not_know_keeps_the_region", || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = || {
            let pool = PoolResource::builder(CudaResource::new(&device));
            pool.growth_step(4 * MIB).build().unwrap()
        };
        let (known, unknown) = (pool(), pool());
        let block = take(&unknown, &stream, 8 * KIB);
        let (at, bytes) = (block.address() as usize, block.bytes());
        let (graph, ()) = stream
            .capture(&known, |stream| {
                // SAFETY: allocated from the pool; nothing uses it later.
                unsafe { unknown.deallocate(stream, block) };
                assert_eq!(Told::now().regions[&at].0, bytes);
                let before = Told::now().ever;
                // The stream's own memory, without a wait; the region is there, and is not ended.
                let again = take(&unknown, stream, 8 * KIB);
                assert_eq!((again.address() as usize, Told::now().ever), (at, before));
                // SAFETY: as above.
                unsafe { unknown.deallocate(stream, again) };
                Ok(())
            })
            .unwrap();
        drop(graph);
        assert!(Told::now().regions.contains_key(&at));
        let again = take(&unknown, &stream, 4 * KIB);
        assert_eq!((again.address() as usize, Told::now().regions.len()), (at, 1));
        give(&unknown, &stream, again);
        // A region that is left ends with its heap.
        let block = take(&unknown, &stream, 8 * KIB);
        let (graph, ()) = stream
            .capture(&known, |stream| {
                // SAFETY: as above.
                unsafe { unknown.deallocate(stream, block) };
                Ok(())
            })
            .unwrap();
        drop(graph);
        assert_eq!(Told::now().regions.len(), 1);
        drop((known, unknown));
        assert_all_is_over();
    });
}

#[test]
fn what_a_capture_cuts_anew_ends_no_region_of_its_graph() {
    watched("what_a_capture_cuts_anew_ends_no_region_of_its_graph", || {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = || {
            let pool = PoolResource::builder(CudaResource::new(&device));
            pool.growth_step(4 * MIB).build().unwrap()
        };
        let (known, unknown) = (pool(), pool());
        let block = take(&unknown, &stream, 64 * KIB);
        let whole = block.address() as usize..block.address() as usize + block.bytes();
        let is_whole = || {
            let told = Told::now();
            let covered = |at: usize| !told.within(at, 1).is_empty();
            whole.clone().step_by(256).all(covered)
        };
        let (graph, parts) = stream
            .capture(&known, |stream| {
                // SAFETY: allocated from the pool; nothing uses it later but the graph.
                unsafe { unknown.deallocate(stream, block) };
                // Parts of the same memory, in the order of the stream.
                let layout = DeviceLayout::new(4 * KIB).unwrap();
                let parts = [(); 2].map(|()| unknown.allocate(stream, layout).unwrap());
                for part in &parts {
                    assert!(whole.contains(&(part.address() as usize)), "the stream's own memory");
                }
                Ok(parts)
            })
            .unwrap();
        assert!(is_whole(), "each launch may use all of the first block");
        drop(graph);
        // The rest, from outside: the parts are live.
        let rest = take(&unknown, &stream, 40 * KIB);
        assert!(whole.contains(&(rest.address() as usize)));
        let told = Told::now();
        for part in &parts {
            assert!(!told.within(part.address() as usize, part.bytes()).is_empty(), "{part:?}");
        }
        give(&unknown, &stream, rest);
        for part in parts {
            // SAFETY: allocated from the pool; nothing uses it.
            unsafe { unknown.deallocate(&stream, part) };
        }
        let all = take(&unknown, &stream, 4 * MIB);
        assert_eq!(Told::now().regions.len(), 1);
        give(&unknown, &stream, all);
        drop((known, unknown));
        assert_all_is_over();
    });
}

/// Threads that get parts of one old block, whose region each of them ends.
#[test]
fn parts_of_an_old_region_are_each_thread_s_own() {
    watched("parts_of_an_old_region_are_each_thread_s_own", || {
        const THREADS: usize = 8;
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let pool = || {
            let pool = PoolResource::builder(CudaResource::new(&device));
            pool.growth_step(4 * MIB).maximum_size(4 * MIB).build().unwrap()
        };
        let (known, unknown) = (pool(), pool());
        let plain = Arc::new(CudaResource::new(&device));
        let mut work = DeviceVec::<u8>::zeroed_in(&stream, 32 * MIB, plain).unwrap();
        for round in 0..10 {
            let block = take(&unknown, &stream, 4 * MIB);
            let (graph, ()) = stream
                .capture(&known, |stream| {
                    // SAFETY: allocated from the pool; nothing uses it later.
                    unsafe { unknown.deallocate(stream, block) };
                    Ok(())
                })
                .unwrap();
            drop(graph);
            assert_eq!(Told::now().regions.len(), 1, "the old block's");
            // So that all threads have seen the old region when the first one may end it.
            work.fill(round).unwrap();
            let start = Barrier::new(THREADS);
            let parts: Vec<DeviceBlock> = std::thread::scope(|scope| {
                let take = || {
                    let layout = DeviceLayout::new(64 * KIB).unwrap();
                    start.wait();
                    unknown.allocate(&stream, layout).unwrap()
                };
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let told = Told::now();
            for part in &parts {
                assert!(told.is_live(part), "{part:?} {told:?}");
            }
            parts.into_iter().for_each(|part| give(&unknown, &stream, part));
        }
        drop((known, unknown));
        assert_all_is_over();
    });
}

#[test]
fn threads_take_and_give() {
    watched("threads_take_and_give", || {
        const THREADS: usize = 4;
        let device = support::device();
        let pool = PoolResource::builder(CudaResource::new(&device));
        let pool = pool.growth_step(MIB).build().unwrap();
        let start = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pool, device, start) = (&pool, &device, &start);
                scope.spawn(move || {
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
                            pool.trim(0).unwrap();
                        }
                    }
                    for block in held {
                        // SAFETY: as above.
                        unsafe { pool.deallocate(&stream, block) };
                    }
                });
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
    watched("a_block_that_outlives_its_pool_stays_a_region", || {
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
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = device.new_stream().unwrap();
                other.wait_for(&stream).unwrap();
                give(&clone, &other, gone);
            });
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
    let name = "a_heap_that_the_tool_refuses_has_no_regions";
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
        assert_eq!(Told::now(), Told::default());
    });
}

#[test]
fn the_child_of_a_fork_tells_nothing() {
    watched("the_child_of_a_fork_tells_nothing", || {
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
    beside_tool("a_tool_that_does_not_watch_memory_leaves_pools_as_they_are", &[], || {
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

//! Regions that stay after a free, since a graph may use them, and how they end.

use crate::tool::{KIB, Told, assert_all_is_over, give, on_threads, take, watched};
use crate::{MIB, support};
use aquifer::{CudaResource, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, PoolResource};
use std::sync::{Arc, Barrier};

#[test]
fn what_a_graph_uses_stays_a_region_until_its_memory_is_used_again() {
    watched("old_regions::what_a_graph_uses_stays_a_region_until_its_memory_is_used_again", || {
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
    watched(
        "old_regions::a_free_in_a_capture_that_the_pool_does_not_know_keeps_the_region",
        || {
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
        },
    );
}

#[test]
fn what_a_capture_cuts_anew_ends_no_region_of_its_graph() {
    watched("old_regions::what_a_capture_cuts_anew_ends_no_region_of_its_graph", || {
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
    watched("old_regions::parts_of_an_old_region_are_each_thread_s_own", || {
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

/// Whether each part of the block is in some region.
fn is_covered(told: &Told, block: &DeviceBlock) -> bool {
    let start = block.address() as usize;
    (start..start + block.bytes()).step_by(4 * KIB).all(|at| !told.within(at, 1).is_empty())
}

/// Captures that the pool does not know leave old regions of all sizes behind, which threads then cut.
#[test]
fn threads_cut_what_captures_left() {
    watched("old_regions::threads_cut_what_captures_left", || {
        const THREADS: usize = 4;
        let device = support::device();
        let lower = PoolResource::builder(CudaResource::new(&device));
        let lower = lower.growth_step(4 * MIB).build().unwrap();
        let upper = PoolResource::builder(lower.clone()).growth_step(MIB).build().unwrap();
        let start = Barrier::new(THREADS);
        on_threads(THREADS, |thread| {
            let own = PoolResource::new(CudaResource::new(&device)).unwrap();
            let stream = device.new_stream().unwrap();
            let pool: &dyn DeviceResource = if thread % 2 == 0 { &lower } else { &upper };
            let take = |round: usize| {
                let bytes = (1 + (round * 11 + thread * 5) % 40) * 4 * KIB;
                // In a capture the pool has no more than what needs no wait.
                let block = pool.allocate(&stream, DeviceLayout::new(bytes).unwrap()).ok()?;
                assert!(is_covered(&Told::now(), &block), "{block:?}");
                Some(block)
            };
            let mut held = Vec::new();
            start.wait();
            for round in 0..24 {
                held.extend((0..3).filter_map(|part| take(3 * round + part)));
                let mut some = held.split_off(held.len() / 2);
                let (graph, more) = stream
                    .capture(&own, |stream| {
                        for block in some.drain(..) {
                            // SAFETY: allocated from the pool; nothing uses it.
                            unsafe { pool.deallocate(stream, block) };
                        }
                        Ok((0..2).filter_map(|part| take(7 * round + part)).collect())
                    })
                    .unwrap();
                drop(graph);
                let more: Vec<DeviceBlock> = more;
                held.extend(more);
                // Nobody ended what is in use.
                let told = Told::now();
                assert!(held.iter().all(|block| is_covered(&told, block)), "{held:?}");
                if round % 8 == 7 {
                    // Refused while another thread captures.
                    let _ = (upper.wait_and_trim(0), lower.wait_and_trim(0));
                }
            }
            for block in held {
                // SAFETY: allocated from the pool; nothing uses it.
                unsafe { pool.deallocate(&stream, block) };
            }
        });
        drop((upper, lower));
        assert_all_is_over();
    });
}

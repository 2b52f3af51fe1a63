//! A pool of page-locked memory: what it hands out, what it takes, and what goes back.

use super::{Current, alone, contract, support};
use crate::threads::run_threads;
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    Device, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, MappedAlloc, PinnedAlloc,
    mr::{HostAccessible, OnStream},
    pinned::{
        CurrentPinned, PinnedPool, PinnedPoolOptions, PinnedPoolStatistics, PinnedResource,
        current_pinned_resource, last_error,
    },
};
use contract::{Block, allocate, layout};
use proptest::prelude::*;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn options() -> (PinnedPoolOptions, Device, Simulator) {
    let (device, simulator) = support::simulated(SimConfig::default());
    (PinnedPool::builder(PinnedResource::new(&device).unwrap()), device, simulator)
}

fn pool() -> (PinnedPool, Device, Simulator) {
    let (options, device, simulator) = options();
    (options.build().unwrap(), device, simulator)
}

/// One that needs no fence, where that is all the same.
fn unfenced(options: PinnedPoolOptions) -> PinnedPool {
    // SAFETY: the tests that use it give the device nothing to do with the memory.
    unsafe { options.unfenced() }.build().unwrap()
}

/// Nothing is in use, nothing was lost, and all of it can go back.
fn whole(pool: &PinnedPool, simulator: Option<&Simulator>) {
    pool.trim().unwrap();
    let empty = pool.statistics();
    let all = [empty.reserved, empty.live, empty.cached, empty.waiting, empty.slabs];
    assert_eq!(all, [0; 5], "{empty:?}");
    assert_eq!(empty.growths, empty.returns);
    if let Some(simulator) = simulator {
        assert_eq!(simulator.host_blocks(), 0);
        simulator.check().unwrap();
    }
}

#[test]
fn a_pool_keeps_the_contract_fenced_and_not() {
    let _alone = alone();
    let device = support::device();
    let pinned = PinnedResource::new(&device).unwrap();
    for pool in [
        PinnedPool::new(pinned.clone()).unwrap(),
        unfenced(PinnedPool::builder(pinned.clone())),
        PinnedPool::builder(pinned.clone()).magazine_bytes(0).magazine_entries(0).build().unwrap(),
    ] {
        contract::check(|| pool.clone());
        whole(&pool, device.simulator().as_ref());
    }
}

#[test]
fn whatever_stands_on_a_pool_keeps_the_contract() {
    let _alone = alone();
    let device = support::device();
    let pool = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
    contract::check(|| CurrentPinned::from(pool.clone()));
    let on_stream = OnStream::new(pool.clone(), &device.new_stream().unwrap()).unwrap();
    contract::check(|| on_stream.clone());
    let current = Current::set(&pool);
    contract::check(|| MappedAlloc);
    drop((current, on_stream));
    whole(&pool, device.simulator().as_ref());
}

#[test]
fn a_warm_pool_asks_the_driver_nothing_but_a_fence_in_many_frees() {
    let _alone = alone();
    let (pool, _, simulator) = pool();
    let _current = Current::set(&pool);
    for bytes in [100, 300_000, MIB] {
        let pairs = |count: usize| {
            for _ in 0..count {
                drop(AllocVec::<u8, _>::with_capacity_in(bytes, pool.clone()));
                drop(AllocVec::<u8, _>::with_capacity_in(bytes, PinnedAlloc));
            }
        };
        pairs(1000);
        let (before, queries) = (simulator.call_count("cuCtxRecordEvent"), simulator.calls());
        pairs(3200);
        let fences = simulator.call_count("cuCtxRecordEvent") - before;
        let least = if bytes == 100 { 64 } else { 16 };
        assert!((1..=6400 / least + 1).contains(&fences), "{fences} fences for 6400 frees");
        let calls = |calls: &[(&str, u64)]| calls.iter().map(|(_, count)| *count).sum::<u64>();
        let all = calls(&simulator.calls()) - calls(&queries);
        assert!(all <= 2 * fences + 2, "{all} calls for {fences} fences");
    }
    whole(&pool, Some(&simulator));
}

#[test]
fn an_unfenced_pool_asks_the_driver_nothing() {
    let _alone = alone();
    let (options, _, simulator) = options();
    let pool = unfenced(options);
    let _current = Current::set(&pool);
    let mut first = AllocVec::<u8, _>::with_capacity_in(MIB, PinnedAlloc);
    first.push(1);
    let address = first.as_ptr().addr();
    drop(first);
    let calls = simulator.calls();
    for _ in 0..1000 {
        let vec = AllocVec::<u8, _>::with_capacity_in(MIB, PinnedAlloc);
        assert_eq!(vec.as_ptr().addr(), address, "the very block that was freed");
    }
    assert_eq!(simulator.calls(), calls);
    whole(&pool, Some(&simulator));
}

#[test]
fn sizes_are_kept_to_the_line() {
    let _alone = alone();
    let (pool, _, simulator) = pool();
    let live = |bytes: usize| {
        let block = allocate(&pool, layout(bytes, 1), 1);
        let live = pool.statistics().live;
        block.free(&pool);
        live
    };
    let sizes = [1, 64, 65, 100_000, (1 << 20) + 1, 5_000_001];
    assert_eq!(sizes.map(live), sizes.map(|bytes| bytes.next_multiple_of(64)));
    whole(&pool, Some(&simulator));
}

#[test]
fn the_maximum_is_reached_to_the_last_page_and_never_passed() {
    let _alone = alone();
    for fenced in [true, false] {
        for maximum in [PAGE, 3 * MIB + 3 * PAGE] {
            let (options, _, simulator) = options();
            let options = options.maximum_size(maximum).growth_step(MIB);
            let pool = if fenced { options.build().unwrap() } else { unfenced(options) };
            for round in 0..3 {
                let blocks = (0..maximum / PAGE)
                    .map(|n| allocate(&pool, layout(PAGE, 64), n as u8))
                    .collect::<Vec<_>>();
                let full = pool.statistics();
                assert_eq!((full.reserved, full.live), (maximum, maximum), "round {round}");
                assert!(Allocator::allocate(&pool, layout(1, 1)).is_err());
                let error = last_error().unwrap();
                assert_eq!(error.kind(), ErrorKind::OutOfMemory);
                assert!(
                    error.to_string().contains(&format!("whose maximum is {maximum} bytes")),
                    "{error}"
                );
                blocks.into_iter().for_each(|block| block.free(&pool));
                // All of it at once: what lies in slabs, magazines and quarantine makes room.
                allocate(&pool, layout(maximum, 64), 9).free(&pool);
                assert_eq!(pool.statistics().peak_reserved, maximum);
            }
            assert!(Allocator::allocate(&pool, layout(maximum + 1, 1)).is_err());
            whole(&pool, Some(&simulator));
        }
    }
}

#[test]
fn an_option_that_cannot_be_kept_is_refused() {
    let _alone = alone();
    let (options, _, simulator) = options();
    for (wrong, what) in [
        (options.clone().maximum_size(0), "to hold no more than 0 bytes"),
        (options.clone().maximum_size(PAGE + 1), "4097 bytes is no multiple of a page"),
        (options.clone().maximum_size(PAGE).initial_size(PAGE + 1), "4097 bytes is more than"),
        (options.clone().initial_size(usize::MAX), "more than an address space holds"),
        (options.clone().growth_step(0), "would never grow"),
        (options.clone().magazine_entries(9), "9 blocks of a size"),
    ] {
        let error = wrong.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(what), "{error}");
    }
    assert_eq!(simulator.host_blocks(), 0);
    simulator.fail_call("cuMemHostAlloc", 1, 2).unwrap();
    let error = options.clone().initial_size(MIB).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let pool = options.initial_size(MIB - 1).maximum_size(MIB).build().unwrap();
    assert_eq!((pool.statistics().reserved, simulator.host_blocks()), (MIB, 1));
    whole(&pool, Some(&simulator));
}

#[test]
fn sizes_that_no_pool_holds_are_refused() {
    let _alone = alone();
    let (pool, _, simulator) = pool();
    for (size, align) in [(isize::MAX as usize, 1), (1 << 45, 1), (1, 1 << 62), (1 << 38, 1)] {
        assert!(Allocator::allocate(&pool, layout(size, align)).is_err(), "{size} {align}");
        let error = last_error().unwrap();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::OutOfMemory),
            "{error}"
        );
    }
    whole(&pool, Some(&simulator));
}

#[test]
fn a_slab_that_upstream_cannot_give_is_asked_smaller() {
    let _alone = alone();
    let (options, _, simulator) = options();
    let pool = options.growth_step(64 * MIB).build().unwrap();
    simulator.fail_call("cuMemHostAlloc", 1, 2).unwrap();
    let block = allocate(&pool, layout(100_000, 1), 1);
    assert_eq!(pool.statistics().reserved, 100_000_usize.next_multiple_of(PAGE));
    block.free(&pool);
    whole(&pool, Some(&simulator));
}

#[test]
fn a_growth_step_that_no_upstream_has_is_left_out() {
    let _alone = alone();
    for step in [usize::MAX, isize::MAX as usize, 1 << 60] {
        let (options, _, simulator) = options();
        let pool = options.growth_step(step).build().unwrap();
        let block = allocate(&pool, layout(1000, 1), 1);
        assert_eq!(pool.statistics().reserved, PAGE, "{step}");
        block.free(&pool);
        whole(&pool, Some(&simulator));
    }
}

#[test]
fn whole_slabs_make_room_where_upstream_has_none() {
    let _alone = alone();
    let (options, _, simulator) = options();
    let pool = unfenced(options.growth_step(PAGE));
    let blocks = [1, 2, 3].map(|seed| allocate(&pool, layout(10 * PAGE, 64), seed));
    assert_eq!(pool.statistics().slabs, 3);
    blocks.into_iter().for_each(|block| block.free(&pool));
    // Twice: for the step, and for what was asked. Then there is room.
    for nth in [1, 2] {
        simulator.fail_call("cuMemHostAlloc", nth, 2).unwrap();
    }
    let large = allocate(&pool, layout(25 * PAGE, 64), 4);
    assert_eq!((pool.statistics().slabs, pool.statistics().returns), (1, 3));
    large.free(&pool);
    whole(&pool, Some(&simulator));
}

#[test]
fn blocks_that_were_freed_join_again() {
    let _alone = alone();
    let (options, _, simulator) = options();
    let pool = options.initial_size(8 * MIB).maximum_size(8 * MIB).build().unwrap();
    for round in 0..6_usize {
        let sizes = (0..150).map(|n| 1 + (n * 7919 + round * 104_729) % 40_000);
        let mut blocks: Vec<_> = sizes.map(|size| allocate(&pool, layout(size, 1), 3)).collect();
        while !blocks.is_empty() {
            blocks.swap_remove(round * 31 % blocks.len()).free(&pool);
        }
        allocate(&pool, layout(8 * MIB, 64), 4).free(&pool);
    }
    assert_eq!(simulator.call_count("cuMemHostAlloc"), 1);
    whole(&pool, Some(&simulator));
}

/// A block that serves is found behind many of a smaller size that stand where it does.
#[test]
fn a_block_that_serves_is_found_behind_many_that_do_not() {
    const FENCE: usize = 64;
    const SMALLER: usize = 64 * FENCE;
    const LARGER: usize = 65 * FENCE;
    let _alone = alone();
    let (options, _, simulator) = options();
    let all = 3 * LARGER + 600 * (SMALLER + FENCE) + FENCE;
    let all = all.next_multiple_of(PAGE);
    let options = options.initial_size(all).maximum_size(all).magazine_bytes(0);
    let pool = unfenced(options);
    let fence = || allocate(&pool, layout(FENCE, 1), 1);
    let mut held = vec![allocate(&pool, layout(LARGER, 1), 2)];
    let mut fences = vec![fence()];
    for _ in 0..600 {
        held.push(allocate(&pool, layout(SMALLER, 1), 3));
        fences.push(fence());
    }
    // The largest is kept apart from the others.
    let rest = allocate(&pool, layout(pool.statistics().largest_free, 1), 4);
    rest.free(&pool);
    held.into_iter().for_each(|block| block.free(&pool));
    let rest = allocate(&pool, layout(pool.statistics().largest_free, 1), 4);
    assert_eq!(pool.statistics().largest_free, LARGER);
    let found = allocate(&pool, layout(LARGER, 1), 5);
    assert_eq!(pool.statistics().largest_free, SMALLER);
    for block in fences.into_iter().chain([rest, found]) {
        block.free(&pool);
    }
    whole(&pool, Some(&simulator));
}

#[test]
fn a_block_that_is_shrunk_a_little_stays_and_one_shrunk_much_moves_if_it_can() {
    let _alone = alone();
    let (pool, _, simulator) = pool();
    let mut block = allocate(&pool, layout(64_000, 64), 1);
    let start = block.range().0;
    for size in [63_000, 57_000, 64_000, 63_999, 56_001] {
        block.resize(&pool, layout(size, 8), false).unwrap();
        assert_eq!(block.range().0, start, "{size}");
    }
    block.resize(&pool, layout(20_000, 8), false).unwrap();
    assert_ne!(block.range().0, start);
    // What was given up is as large as it is, once it is back in the heap.
    pool.trim().unwrap();
    assert_eq!(pool.statistics().live, 20_032);
    block.free(&pool);
    whole(&pool, Some(&simulator));

    let (options, _, simulator) = options();
    let pool = options.maximum_size(PAGE).build().unwrap();
    let mut block = allocate(&pool, layout(PAGE, 64), 1);
    let start = block.range().0;
    block.resize(&pool, layout(100, 8), false).unwrap();
    assert_eq!(block.range().0, start, "where there is no room to move to");
    assert!(block.resize(&pool, layout(2 * PAGE, 8), false).is_err());
    block.resize(&pool, layout(PAGE, 64), true).unwrap();
    block.free(&pool);
    whole(&pool, Some(&simulator));
}

#[test]
fn blocks_outlive_the_pool_and_its_slabs_go_back_with_the_last() {
    let _alone = alone();
    for fenced in [true, false] {
        let (options, device, simulator) = options();
        let options = options.growth_step(PAGE);
        let pool = if fenced { options.build().unwrap() } else { unfenced(options) };
        let current = Current::set(&pool);
        let mut vec: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
        vec.extend(0..100_000);
        let blocks = (0..10).map(|seed| allocate(&PinnedAlloc, layout(PAGE, 1), seed));
        let blocks = blocks.collect::<Vec<_>>();
        let cached = allocate(&PinnedAlloc, layout(PAGE, 1), 77);
        // In another thread's magazine when the pool goes.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (say, hear) = std::sync::mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            cached.free(&PinnedAlloc);
            say.send(()).unwrap();
            wait.recv().unwrap();
        });
        hear.recv().unwrap();
        drop(current);
        drop(pool);
        assert!(vec.iter().copied().eq(0..100_000));
        blocks.iter().for_each(Block::check);
        // Frees of a closed pool, on this thread and on others.
        run_threads(|threads| {
            for block in blocks {
                threads.spawn(move || block.free(&PinnedAlloc));
            }
        });
        assert!(simulator.host_blocks() >= 1);
        assert!(vec.iter().copied().eq(0..100_000));
        drop(vec);
        go.send(()).unwrap();
        sleeper.join().unwrap();
        // They wait for the device as any block that came from the driver.
        PinnedResource::new(&device).unwrap().trim().unwrap();
        assert_eq!(simulator.host_blocks(), 0);
        simulator.check().unwrap();
    }
}

#[test]
fn a_thread_that_ends_leaves_its_blocks_to_the_others() {
    let _alone = alone();
    for fenced in [true, false] {
        let (options, _, simulator) = options();
        let options = options.initial_size(MIB).maximum_size(MIB);
        let pool = if fenced { options.build().unwrap() } else { unfenced(options) };
        for _ in 0..10 {
            run_threads(|threads| {
                threads.spawn(|| allocate(&pool, layout(MIB / 2, 1), 1).free(&pool));
            });
        }
        assert_eq!(pool.statistics().cached, 0, "of threads that are gone");
        allocate(&pool, layout(MIB, 1), 2).free(&pool);
        assert_eq!(simulator.call_count("cuMemHostAlloc"), 1);
        whole(&pool, Some(&simulator));
    }
}

#[test]
fn what_idle_threads_keep_is_had_by_those_that_need_it() {
    let _alone = alone();
    for fenced in [true, false] {
        let (options, _, simulator) = options();
        let options = options.initial_size(MIB).maximum_size(MIB);
        let pool = if fenced { options.build().unwrap() } else { unfenced(options) };
        let (hold, release) = std::sync::mpsc::channel::<()>();
        let (say, hear) = std::sync::mpsc::channel();
        run_threads(|threads| {
            let pool = &pool;
            threads.spawn(move || {
                for _ in 0..3 {
                    allocate(pool, layout(MIB / 4, 1), 1).free(pool);
                }
                say.send(()).unwrap();
                release.recv().unwrap();
                allocate(pool, layout(MIB / 4, 1), 5).free(pool);
            });
            hear.recv().unwrap();
            allocate(pool, layout(MIB, 1), 2).free(pool);
            hold.send(()).unwrap();
        });
        whole(&pool, Some(&simulator));
    }
}

/// Frees with the last of its thread-local values, after its magazine is gone.
struct Late(Option<AllocVec<u8, PinnedPool>>);

#[test]
fn a_free_after_the_magazine_is_gone_finds_the_pool() {
    let _alone = alone();
    thread_local! {
        static LATE: std::cell::RefCell<Late> = const { std::cell::RefCell::new(Late(None)) };
    }
    for fenced in [true, false] {
        let (options, _, simulator) = options();
        let pool = if fenced { options.build().unwrap() } else { unfenced(options) };
        run_threads(|threads| {
            threads.spawn(|| {
                // Its destructor is registered before the magazine's, and so runs after.
                LATE.with(|late| late.borrow_mut().0 = None);
                let mut vec = AllocVec::new_in(pool.clone());
                vec.extend([7; 1000]);
                LATE.with(|late| late.borrow_mut().0 = Some(vec));
            });
        });
        whole(&pool, Some(&simulator));
    }
}

#[test]
fn a_block_of_the_pool_is_device_memory_too() {
    let _alone = alone();
    let device = support::device();
    let pool = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
    let stream = device.new_stream().unwrap();
    let one = DeviceResource::allocate(&pool, &stream, DeviceLayout::new(1000).unwrap()).unwrap();
    let two = DeviceResource::allocate(&pool, &stream, DeviceLayout::new(1000).unwrap()).unwrap();
    let apart = |a: u64, b: u64| a.abs_diff(b);
    let pointers = [&one, &two].map(|block| pool.host_pointer(block).addr().get() as u64);
    assert_eq!(apart(one.address(), two.address()), apart(pointers[0], pointers[1]));
    let vec = {
        let mut vec: AllocVec<u32, PinnedPool> = AllocVec::new_in(pool.clone());
        vec.extend(0..1000);
        vec
    };
    let base = MappedAlloc::device_address(&vec).unwrap();
    assert_eq!(MappedAlloc::device_address(&vec[10..]).unwrap(), base + 40);
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.call_count("cuMemHostGetDevicePointer"), 1, "once a slab");
    }
    // SAFETY: allocated above, used by nobody.
    unsafe {
        DeviceResource::deallocate(&pool, &stream, one);
        DeviceResource::deallocate(&pool, &stream, two);
    }
    let empty = DeviceLayout::new(0).unwrap();
    assert!(DeviceResource::allocate(&pool, &stream, empty).unwrap().is_empty());
    drop(vec);
    whole(&pool, device.simulator().as_ref());
}

#[test]
fn the_default_of_pinned_alloc_is_a_pool() {
    // What other tests leaked on purpose may be the default pool's.
    if !support::in_own_process(module_path!(), "the_default_of_pinned_alloc_is_a_pool") {
        return;
    }
    let _alone = alone();
    let default = current_pinned_resource().unwrap();
    assert!(matches!(default, CurrentPinned::Pool(_)), "{default:?}");
    assert_eq!(default, current_pinned_resource().unwrap());
    let vec: AllocVec<u8, CurrentPinned> = AllocVec::with_capacity_in(10, default.clone());
    let other: AllocVec<u8, PinnedAlloc> = AllocVec::with_capacity_in(10, PinnedAlloc);
    let CurrentPinned::Pool(pool) = &default else { unreachable!() };
    assert_eq!(pool.statistics().live, 128);
    drop((vec, other));
    assert_eq!(pool.statistics().live, 0);
    default.trim().unwrap();
    assert_eq!(pool.statistics().reserved, 0);
}

#[test]
fn two_pools_are_two_and_say_what_they_are() {
    let _alone = alone();
    let (options, device, _) = options();
    let (one, two) = (options.clone().build().unwrap(), options.build().unwrap());
    assert_eq!(one, one.clone());
    assert_ne!(one, two);
    assert_eq!(one.upstream(), &PinnedResource::new(&device).unwrap());
    assert_eq!(DeviceResource::device(&one), &device);
    let text = format!("{one:?}");
    assert!(text.contains("PinnedPool") && text.contains("growth_step: 4194304"), "{text}");
    assert_eq!(one.statistics(), PinnedPoolStatistics::default());
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { size: usize, align: u32 },
    Resize { which: usize, size: usize, align: u32 },
    Free { which: usize, thread: usize },
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = || prop_oneof![4 => 1..2_000_usize, 2 => Just(4096), 1 => 1..300_000_usize];
    let align = || prop_oneof![6 => 0..7_u32, 1 => 7..16_u32];
    let step = prop_oneof![
        6 => (size(), align()).prop_map(|(size, align)| Step::Allocate { size, align }),
        2 => (any::<usize>(), size(), align())
            .prop_map(|(which, size, align)| Step::Resize { which, size, align }),
        5 => (any::<usize>(), 0..4_usize).prop_map(|(which, thread)| Step::Free { which, thread }),
        1 => Just(Step::Trim),
    ];
    prop::collection::vec(step, 1..300)
}

/// Blocks know what was written to them: one that is handed out twice, or whose memory goes away
/// while it lives, is seen.
fn run(pool: &PinnedPool, steps: &[Step]) {
    let mut live: Vec<Block> = Vec::new();
    for (seed, step) in steps.iter().enumerate() {
        match *step {
            Step::Allocate { size, align } => {
                live.push(allocate(pool, layout(size, 1 << align), seed as u8));
            }
            Step::Resize { which, size, align } if !live.is_empty() => {
                let at = which % live.len();
                live[at].resize(pool, layout(size, 1 << align), false).unwrap();
            }
            Step::Free { which, thread } if !live.is_empty() => {
                let block = live.swap_remove(which % live.len());
                match thread {
                    0 => run_threads(|threads| threads.spawn(|| block.free(pool))),
                    1 => block.free(&PinnedAlloc),
                    _ => block.free(pool),
                }
            }
            Step::Trim => drop(pool.trim().unwrap()),
            Step::Resize { .. } | Step::Free { .. } => {}
        }
    }
    contract::no_overlap(&live);
    live.into_iter().for_each(|block| block.free(pool));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_use_of_a_pool_keeps_every_block(
        steps in steps(), fenced in any::<bool>(), cap in any::<bool>(), caches in any::<bool>(),
    ) {
        let _alone = alone();
        let (options, _, simulator) = options();
        let options = options.growth_step(PAGE).quarantine_bytes(if cap { 0 } else { 1 << 30 });
        let options = options.magazine_bytes(if caches { 1 << 20 } else { 0 });
        let pool = if fenced { options.build().unwrap() } else { unfenced(options) };
        run(&pool, &steps);
        whole(&pool, Some(&simulator));
    }
}

/// A thread remembers the slabs that it has freed into, and no slab longer than it is there.
#[test]
fn a_block_goes_to_the_pool_that_its_memory_is_of_now() {
    let _alone = alone();
    let (device, simulator) = support::simulated(aquifer::sim::SimConfig::default());
    let pinned = PinnedResource::new(&device).unwrap();
    let layout = std::alloc::Layout::from_size_align(4096, 64).unwrap();
    let first = PinnedPool::new(pinned.clone()).unwrap();
    let mut came_back = 0;
    for _ in 0..20 {
        let block = Allocator::allocate(&first, layout).unwrap();
        let address = block.cast::<u8>().addr();
        // SAFETY: a live block, which any allocator of page-locked memory frees.
        unsafe { Allocator::deallocate(&pinned, block.cast(), layout) };
        first.trim().unwrap();
        let second = PinnedPool::new(pinned.clone()).unwrap();
        let blocks: Vec<_> =
            (0..4).map(|_| Allocator::allocate(&second, layout).unwrap()).collect();
        came_back += usize::from(blocks.iter().any(|block| block.cast::<u8>().addr() == address));
        for block in blocks {
            // SAFETY: as above.
            unsafe { Allocator::deallocate(&pinned, block.cast(), layout) };
        }
        second.trim().unwrap();
        assert_eq!((second.statistics().live, second.statistics().reserved), (0, 0));
        assert_eq!((first.statistics().live, first.statistics().reserved), (0, 0));
    }
    assert!(came_back > 0, "no address came back, so nothing was shown");
    drop(first);
    assert_eq!(simulator.host_blocks(), 0);
}

#[test]
fn a_new_block_is_of_the_pool_that_is_current_now() {
    let _alone = alone();
    let (options, device, _) = options();
    let former = unfenced(options);
    let layout = std::alloc::Layout::from_size_align(4096, 64).unwrap();
    {
        let _current = Current::set(&former);
        // Twice, so that the size has a class: then one block lies ready.
        for _ in 0..3 {
            let block = Allocator::allocate(&PinnedAlloc, layout).unwrap();
            // SAFETY: a live block of the allocator.
            unsafe { Allocator::deallocate(&PinnedAlloc, block.cast(), layout) };
        }
    }
    let pool = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
    let _current = Current::set(&pool);
    let block = Allocator::allocate(&PinnedAlloc, layout).unwrap();
    assert_eq!(former.statistics().live, 0);
    assert!(pool.statistics().live >= 4096);
    // SAFETY: as above.
    unsafe { Allocator::deallocate(&PinnedAlloc, block.cast(), layout) };
}

#[test]
fn a_trim_gives_back_what_a_dropped_transfer_had() {
    let _alone = alone();
    let (device, simulator) = support::simulated(aquifer::sim::SimConfig::default());
    let pool = PinnedPool::new(PinnedResource::new(&device).unwrap()).unwrap();
    let stream = device.new_stream().unwrap();
    for _ in 0..3 {
        let mut host = AllocVec::<u8, _>::new_in(pool.clone());
        host.resize(5000, 7);
        drop(stream.upload(host, DeviceVec::zeroed(&stream, 5000).unwrap()).unwrap());
        pool.trim().unwrap();
        let now = pool.statistics();
        assert_eq!((now.live, now.reserved), (0, 0));
    }
    assert_eq!(simulator.host_blocks(), 0);
}

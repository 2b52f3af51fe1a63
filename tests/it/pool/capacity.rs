//! The maximum, alignments, sizes, and what goes back.

use super::{KIB, MIB, allocate, builder, disjoint, drain, free, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, ErrorKind, PoolResource,
    Result, Stream,
    mr::{AlignedAdaptor, MissPolicy, MissStep},
};

#[test]
fn the_maximum_is_exact() {
    for (maximum, bytes, count) in
        [(7 * 256, 256, 7), (7 * 256, 1, 7), (64 * MIB, 8 * MIB, 8), (3 * MIB, MIB, 3)]
    {
        for policy in [MissPolicy::default(), MissPolicy::rmm()] {
            let (device, simulator) = support::simulated(SimConfig::default());
            let stream = device.new_stream().unwrap();
            let options = builder(&device).maximum_size(maximum).miss_policy(policy);
            let pool = options.build().unwrap();
            for round in 0..3 {
                let (mut held, text) = drain(&pool, &stream, bytes);
                assert_eq!(held.len(), count, "round {round} of {bytes} in {maximum}");
                disjoint(&held);
                let wanted = format!("allocating {bytes} byte");
                let there = format!("it has {maximum} bytes, {maximum} bytes of them in use");
                for part in [&wanted, &there, &format!("whose maximum is {maximum} bytes: ")] {
                    assert!(text.contains(part), "{part}: {text}");
                }
                let statistics = pool.statistics();
                assert_eq!((statistics.reserved, statistics.live), (maximum, maximum));
                assert_eq!(simulator.live_bytes(), maximum);
                // One comes back, one is served.
                free(&pool, &stream, held.swap_remove(count / 2));
                held.push(allocate(&pool, &stream, bytes).unwrap());
                held.into_iter().for_each(|block| free(&pool, &stream, block));
            }
            assert_eq!(pool.statistics().peak_reserved, maximum);
            drop(pool);
            assert_eq!(simulator.live_bytes(), 0);
        }
    }
}

#[test]
fn what_was_grown_in_pieces_is_served_in_one() {
    for step in [256, MIB, 8 * MIB, 0] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut options = builder(&device).maximum_size(64 * MIB);
        if step > 0 {
            options = options.growth_step(step);
        }
        let pool = options.build().unwrap();
        let held: Vec<_> = (0..4).map(|_| allocate(&pool, &a, 8 * MIB).unwrap()).collect();
        assert!(pool.statistics().upstream_blocks > 1, "in pieces");
        held.into_iter().for_each(|block| free(&pool, &a, block));
        for (stream, bytes) in [(&a, 40 * MIB), (&b, 48 * MIB), (&a, 64 * MIB), (&b, 64 * MIB)] {
            let block = allocate(&pool, stream, bytes).unwrap_or_else(|error| {
                panic!("{bytes} with a step of {step}: {error}");
            });
            assert_eq!(block.bytes(), bytes);
            free(&pool, stream, block);
            assert!(simulator.live_bytes() <= 64 << 20);
        }
        assert_eq!(pool.statistics().peak_reserved, 64 * MIB);
    }
}

#[test]
fn blocks_are_aligned_as_the_pool_was_told_and_the_maximum_is_exact_then_too() {
    for alignment in [256, 4096, 2 * MIB] {
        let (device, _) = support::simulated(SimConfig::default().without_pool_checks());
        let stream = device.new_stream().unwrap();
        let options = builder(&device).alignment(alignment).maximum_size(5 * alignment);
        let pool = options.growth_step(1).build().unwrap();
        let (mut held, _) = drain(&pool, &stream, 1);
        assert_eq!(held.len(), 5, "{alignment}");
        assert!(held.iter().all(|block| block.bytes() == alignment));
        assert!(held.iter().all(|block| block.address().is_multiple_of(alignment as u64)));
        disjoint(&held);
        assert_eq!(pool.statistics().live, 5 * alignment);
        for block in held.drain(..) {
            free(&pool, &stream, block);
        }
        let whole = allocate(&pool, &stream, 4 * alignment + 1).unwrap();
        assert_eq!(whole.bytes(), 5 * alignment, "rounded up to it");
        free(&pool, &stream, whole);
    }
}

#[test]
fn a_block_is_aligned_as_it_was_asked() {
    let (device, _) = support::simulated(SimConfig::default().without_pool_checks());
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).build().unwrap();
    let mut held = Vec::new();
    for power in (0..=26).rev().chain(0..=26) {
        for bytes in [1, 300, 100 * KIB] {
            let layout = DeviceLayout::with_alignment(bytes, 1 << power).unwrap();
            let block = pool.allocate(&stream, layout).unwrap();
            assert!(block.address().is_multiple_of(1 << power), "{block:?} for {layout:?}");
            assert_eq!(block.bytes(), bytes.next_multiple_of(256), "no more for the alignment");
            held.push(block);
        }
    }
    disjoint(&held);
    let live = held.iter().map(|block| block.bytes()).sum();
    assert_eq!((pool.statistics().live, pool.statistics().live_blocks), (live, held.len()));
    held.into_iter().for_each(|block| free(&pool, &stream, block));
    assert_eq!(pool.statistics().live, 0);
    pool.wait_and_trim(0).unwrap();
    assert_eq!(pool.statistics().reserved, 0, "each piece is whole again");
}

/// What was freed waits for the next request of its size, whatever the alignment of either.
#[test]
fn a_block_that_comes_again_is_aligned_as_it_was_asked() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).build().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let mut held = Vec::new();
    for _ in 0..4000 {
        let layout = DeviceLayout::with_alignment(1000, 256 << random.u32(..6)).unwrap();
        let block = pool.allocate(&stream, layout).unwrap();
        assert!(block.address().is_multiple_of(layout.alignment() as u64), "{block:?}, {layout:?}");
        held.push(block);
        disjoint(&held);
        while held.len() > random.usize(..20) {
            free(&pool, &stream, held.swap_remove(random.usize(..held.len())));
        }
    }
    assert_eq!(pool.statistics().live_blocks, held.len());
    held.into_iter().for_each(|block| free(&pool, &stream, block));
    pool.wait_and_trim(0).unwrap();
    assert_eq!(pool.statistics().reserved, 0, "each piece is whole again");
}

#[test]
fn sizes_near_the_largest_are_errors_and_change_nothing() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    for alignment in [256, 2 * MIB] {
        for maximum in [Some(64 * MIB), None] {
            let mut options = builder(&device).alignment(alignment);
            if let Some(maximum) = maximum {
                options = options.maximum_size(maximum);
            }
            let pool = options.build().unwrap();
            let kept = allocate(&pool, &stream, 100).unwrap();
            let before = (pool.statistics().live, pool.statistics().reserved);
            for (bytes, align) in [
                (1_usize << 40, 256),
                ((1 << 40) - 256, 256),
                ((1 << 40) + 256, 256),
                (1 << 62, 1),
                (isize::MAX as usize, 1),
                (isize::MAX as usize - 255, 256),
                (isize::MAX as usize - 4095, 4096),
                (1, 1 << 62),
                (1, 1 << 40),
            ] {
                let layout = DeviceLayout::with_alignment(bytes, align).unwrap();
                let error = pool.allocate(&stream, layout).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{layout:?}: {error}");
                assert!(error.to_string().contains(&format!("allocating {bytes} byte")), "{error}");
                assert_eq!((pool.statistics().live, pool.statistics().reserved), before);
            }
            for bytes in [usize::MAX, usize::MAX - 255, isize::MAX as usize + 1] {
                let error = allocate(&pool, &stream, bytes).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            }
            let other = allocate(&pool, &stream, 100).unwrap();
            assert_ne!(other.address(), kept.address());
            free(&pool, &stream, other);
            free(&pool, &stream, kept);
        }
    }
}

#[test]
fn trim_gives_whole_free_blocks_back_and_stops_at_what_is_to_be_kept() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).growth_step(MIB).build().unwrap();
    let mut held: Vec<_> = (0..5).map(|_| allocate(&pool, &stream, MIB).unwrap()).collect();
    let state = || (pool.statistics().reserved, simulator.live_blocks());
    assert_eq!((pool.wait_and_trim(0).unwrap(), state()), (0, (5 * MIB, 5)), "all is in use");
    free(&pool, &stream, held.remove(4));
    free(&pool, &stream, held.remove(2));
    free(&pool, &stream, held.remove(0));
    assert_eq!(pool.wait_and_trim(usize::MAX).unwrap(), 0);
    assert_eq!(pool.wait_and_trim(5 * MIB).unwrap(), 0);
    assert_eq!((pool.wait_and_trim(4 * MIB).unwrap(), state()), (MIB, (4 * MIB, 4)));
    assert_eq!(
        (pool.wait_and_trim(0).unwrap(), state()),
        (2 * MIB, (2 * MIB, 2)),
        "as far as it goes"
    );
    let part = allocate(&pool, &stream, 256).unwrap();
    held.into_iter().for_each(|block| free(&pool, &stream, block));
    assert_eq!(
        (pool.wait_and_trim(0).unwrap(), state()),
        (2 * MIB, (MIB, 1)),
        "but for a part in use"
    );
    free(&pool, &stream, part);
    assert_eq!((pool.wait_and_trim(0).unwrap(), state()), (MIB, (0, 0)));
    assert_eq!(pool.wait_and_trim(0).unwrap(), 0, "there is nothing");
    let statistics = pool.statistics();
    assert_eq!((statistics.peak_reserved, statistics.returns), (5 * MIB, 6));
    assert_eq!(simulator.call_count("cuMemFree"), 6);
    free(&pool, &stream, allocate(&pool, &stream, 256).unwrap());
    assert_eq!(state(), (MIB, 1), "it goes on");
}

#[test]
fn trim_reaches_what_threads_keep_ready() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).growth_step(MIB).build().unwrap();
    for _ in 0..4 {
        let held: Vec<_> = (0..4).map(|_| allocate(&pool, &stream, 256 * KIB).unwrap()).collect();
        held.into_iter().for_each(|block| free(&pool, &stream, block));
    }
    assert_eq!(pool.statistics().cached, MIB, "the test is about this");
    assert_eq!(pool.wait_and_trim(0).unwrap(), MIB);
    assert_eq!(pool.statistics().cached, 0);
}

#[test]
fn trim_under_a_capture_is_an_error_and_disturbs_nothing() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = builder(&device).build().unwrap();
    free(&pool, &stream, allocate(&pool, &stream, 256).unwrap());
    simulator.start_capture(&stream).unwrap();
    assert_eq!(pool.wait_and_trim(0).unwrap_err().kind(), ErrorKind::Capture);
    assert!(simulator.stop_capture(&stream), "not disturbed");
    assert_eq!(pool.wait_and_trim(0).unwrap(), 2 * MIB);
}

/// Sizes that stand together where the pool looks for one of them, in its units.
const SMALLER: usize = 64 * 256;
const LARGER: usize = 65 * 256;

/// One block of the larger size is free, and stands behind `many` of the smaller one; what lies between
/// them is in use. No other begins at a multiple of two mebibytes.
fn behind_many(
    many: usize,
    policy: MissPolicy,
) -> (Device, [Stream; 2], PoolResource<AlignedAdaptor<CudaResource>>) {
    let (device, _) = support::simulated(SimConfig::default().capacity(64 << 20));
    let streams = [device.new_stream().unwrap(), device.new_stream().unwrap()];
    let stream = &streams[0];
    let all = LARGER + many * SMALLER + (many + 1) * 256 + 2 * LARGER;
    let upstream = AlignedAdaptor::new(CudaResource::new(&device), 2 * MIB, 0).unwrap();
    let options = PoolResource::builder(upstream).alignment(256);
    let options = options.magazine_entries(0).miss_policy(policy);
    let pool = options.growth_step(all).maximum_size(all).build().unwrap();
    let mut held = vec![pool.allocate(stream, aligned(LARGER, 2 * MIB)).unwrap()];
    // A block that is dropped stays in use.
    let fence = || _ = allocate(&pool, stream, 256).unwrap();
    fence();
    for _ in 0..many {
        held.push(allocate(&pool, stream, SMALLER).unwrap());
        fence();
    }
    // The largest is kept apart from the others.
    let rest = pool.statistics().largest_free;
    let rest = allocate(&pool, stream, rest).unwrap();
    assert_eq!(pool.statistics().free, 0);
    let address = rest.address();
    free(&pool, stream, rest);
    held.into_iter().for_each(|block| free(&pool, stream, block));
    let rest = allocate(&pool, stream, 2 * LARGER).unwrap();
    assert_eq!(rest.address(), address);
    (device, streams, pool)
}

fn aligned(bytes: usize, alignment: usize) -> DeviceLayout {
    DeviceLayout::with_alignment(bytes, alignment).unwrap()
}

/// However many stand before it, on every way to an out-of-memory error.
#[test]
fn a_block_that_serves_is_found_behind_many_that_do_not() {
    use MissStep::*;
    let policies = [
        MissPolicy::default(),
        MissPolicy::rmm(),
        MissPolicy::new([GrowToMaximum]),
        MissPolicy::new([Complete, GrowToMaximum]),
        MissPolicy::new([Wait, GrowToMaximum]),
    ];
    for (at, policy) in policies.into_iter().enumerate() {
        for layout in [aligned(LARGER, 256), aligned(SMALLER, 2 * MIB)] {
            for other in [false, true] {
                if other && at == 2 {
                    // This policy has no way to another stream's memory.
                    continue;
                }
                let (device, streams, pool) = behind_many(600, policy.clone());
                if at == 3 {
                    device.synchronize().unwrap();
                }
                let ask = || pool.allocate(&streams[usize::from(other)], layout);
                // The first question about what another stream freed may only have it asked after.
                let block = ask().or_else(|_| ask());
                let block = block.unwrap_or_else(|error| panic!("{at}, {layout:?}: {error}"));
                assert!(block.address().is_multiple_of(2 * MIB as u64));
                let refused = allocate(&pool, &streams[0], LARGER).unwrap_err();
                let largest = format!("its largest free block has {SMALLER} bytes");
                assert!(refused.to_string().contains(&largest), "{refused}");
            }
        }
    }
}

/// The pool's first memory, which begins where it is asked to, serves all of it at that alignment.
#[test]
fn memory_that_is_aligned_by_chance_is_found() {
    for captured in [false, true] {
        let (device, _) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let upstream = AlignedAdaptor::new(CudaResource::new(&device), 4096, 0).unwrap();
        let options = PoolResource::builder(upstream).initial_size(2 * MIB);
        let options = options
            .maximum_size(2 * MIB)
            .alignment(256)
            .miss_policy(MissPolicy::new([MissStep::GrowToMaximum]));
        let pool = options.build().unwrap();
        let probe = allocate(&pool, &stream, 2 * MIB).unwrap();
        let alignment = 1 << probe.address().trailing_zeros().min(30);
        assert!(alignment > 256, "the test is about this");
        free(&pool, &stream, probe);
        pool.wait_and_trim(2 * MIB).unwrap();
        let layout = aligned(2 * MIB, alignment);
        let ask = |stream: &Stream| {
            let block = pool.allocate(stream, layout)?;
            free(&pool, stream, block);
            Ok(())
        };
        match captured {
            false => ask(&stream).unwrap(),
            true => drop(stream.capture(&pool, ask).unwrap()),
        }
    }
}

/// The same for a stream that records a graph.
#[test]
fn a_capture_finds_a_block_behind_many_that_do_not_serve() {
    let (_device, streams, pool) = behind_many(600, MissPolicy::new([MissStep::GrowToMaximum]));
    let layout = aligned(LARGER, 256);
    let body = |stream: &Stream| {
        let block = pool.allocate(stream, layout)?;
        free(&pool, stream, block);
        Ok(())
    };
    streams[0].capture(&pool, body).unwrap();
}

/// An upstream that gives less than it was asked, or at another address.
#[derive(Debug)]
struct Careless {
    plain: CudaResource,
    half: bool,
}

// SAFETY: the blocks are the plain resource's and go back to it. That they are not as they were
// asked is what the test is about; the pool hands none of them out.
unsafe impl DeviceResource for Careless {
    fn device(&self) -> &Device {
        self.plain.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        if self.half {
            return self.plain.allocate(stream, DeviceLayout::new(layout.bytes() / 2)?);
        }
        let larger = DeviceLayout::with_alignment(layout.bytes() + 256, layout.alignment())?;
        let block = self.plain.allocate(stream, larger)?;
        Ok(DeviceBlock::new(block.address() + 256, layout.bytes(), block.token()))
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the token is the plain resource's own.
        unsafe { self.plain.deallocate(stream, block) }
    }
}

#[test]
fn an_upstream_that_does_not_keep_size_or_alignment_is_an_error() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    for (half, text) in [(true, "gave 1048576 bytes at"), (false, "aligned to 4096")] {
        let careless = || Careless { plain: CudaResource::new(&device), half };
        let pool = PoolResource::builder(careless()).alignment(4096).build().unwrap();
        let error = allocate(&pool, &stream, 100).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(text), "{text}: {error}");
        assert_eq!((pool.statistics().reserved, simulator.live_blocks()), (0, 0), "given back");
        let options = PoolResource::builder(careless()).alignment(4096).initial_size(2 * MIB);
        assert_eq!(options.build().unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(simulator.live_blocks(), 0);
    }
}

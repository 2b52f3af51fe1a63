//! Every host allocator keeps the contract of `Allocator`, in the stricter words of Rust 1.100.

use crate::{alone, contract, support};
use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    Device, ErrorKind, MappedAlloc, PinnedAlloc,
    mr::OnStream,
    pinned::{
        PinnedResource, last_error, reset_current_pinned_resource, set_current_pinned_resource,
    },
};
use contract::{Block, SIZES, allocate, layout};
use proptest::prelude::*;

#[test]
fn pinned_alloc_keeps_the_contract() {
    let _alone = alone();
    contract::check(|| PinnedAlloc);
}

#[test]
fn mapped_alloc_keeps_the_contract() {
    let _alone = alone();
    contract::check(|| MappedAlloc);
}

#[test]
fn a_pinned_resource_keeps_the_contract_with_every_option() {
    let _alone = alone();
    let device = support::device();
    for bits in 0..8_u8 {
        let [portable, mapped, combined] = [1, 2, 4].map(|bit| bits & bit != 0);
        let options = PinnedResource::builder(&device).portable(portable).mapped(mapped);
        let resource = options.write_combined(combined).build().unwrap();
        contract::check(|| resource.clone());
        resource.trim().unwrap();
        if let Some(simulator) = device.simulator() {
            assert_eq!(simulator.host_blocks(), 0, "{resource:?}");
        }
    }
}

#[test]
fn a_resource_on_a_stream_keeps_the_contract() {
    let _alone = alone();
    let device = support::device();
    let pinned = PinnedResource::new(&device).unwrap();
    let on_stream = OnStream::new(pinned.clone(), &device.new_stream().unwrap()).unwrap();
    contract::check(|| on_stream.clone());
    pinned.trim().unwrap();
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.host_blocks(), 0);
    }
}

/// Runs `body` with each kind of allocator on a simulated device.
fn each(config: SimConfig, body: impl Fn(&dyn Allocator, &Simulator, &PinnedResource)) {
    let (device, simulator) = support::simulated(config);
    let pinned = PinnedResource::new(&device).unwrap();
    let on_stream = OnStream::new(pinned.clone(), &device.new_stream().unwrap()).unwrap();
    let before = set_current_pinned_resource(pinned.clone());
    body(&pinned, &simulator, &pinned);
    body(&on_stream, &simulator, &pinned);
    body(&PinnedAlloc, &simulator, &pinned);
    body(&MappedAlloc, &simulator, &pinned);
    match before {
        Some(before) => drop(set_current_pinned_resource(before)),
        None => drop(reset_current_pinned_resource()),
    }
}

#[test]
fn a_failed_allocation_leaves_the_old_block_alone() {
    let _alone = alone();
    each(SimConfig::default(), |allocator, simulator, pinned| {
        let mut block = allocate(&allocator, layout(3000, 64), 5);
        pinned.trim().unwrap();
        let fail = || simulator.fail_call("cuMemHostAlloc", 1, 2).unwrap();
        for zeroed in [false, true] {
            fail();
            // A larger block, and one that wants another place: `resize` looks at the old one.
            assert!(block.resize(&allocator, layout(100_000, 64), zeroed).is_err());
            assert_eq!(last_error().unwrap().kind(), ErrorKind::OutOfMemory);
            fail();
            assert!(block.resize(&allocator, layout(100_000, 1 << 21), zeroed).is_err());
        }
        fail();
        assert!(allocator.allocate(layout(1, 1)).is_err());
        let error = last_error().unwrap();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        let driver = error.driver().unwrap();
        assert_eq!((driver.call(), driver.code()), ("cuMemHostAlloc", 2));
        assert!(error.to_string().contains("allocating 1 byte of page-locked memory"), "{error}");
        block.resize(&allocator, layout(100_000, 64), true).unwrap();
        block.free(&allocator);
        pinned.trim().unwrap();
        assert_eq!(simulator.host_blocks(), 0);
    });
}

#[test]
fn a_shrink_that_is_aligned_already_cannot_fail() {
    let _alone = alone();
    each(SimConfig::default(), |allocator, simulator, _| {
        for align in [1, 4096, 65536] {
            let mut block = allocate(&allocator, layout(50_000, align), 8);
            let calls = simulator.calls();
            for (size, smaller) in [(50_000, 1), (40_000, align), (4097, align), (1, 1)] {
                block.resize(&allocator, layout(size, smaller), false).unwrap();
            }
            assert_eq!(simulator.calls(), calls, "a shrink in place asked the driver");
            block.free(&allocator);
        }
    });
}

#[test]
fn a_shrink_for_a_larger_alignment_may_fail_and_then_leaves_the_block() {
    let _alone = alone();
    each(SimConfig::default(), |allocator, simulator, pinned| {
        // Of many blocks, at least one lies where 2 MiB would not.
        let blocks = (0..4).map(|seed| allocate(&allocator, layout(9000, 1), seed));
        let mut blocks = blocks.collect::<Vec<_>>();
        pinned.trim().unwrap();
        let big = 1 << 21;
        let odd = blocks.iter_mut().find(|block| !block.range().0.is_multiple_of(big)).unwrap();
        simulator.fail_call("cuMemHostAlloc", 1, 2).unwrap();
        assert!(odd.resize(&allocator, layout(100, big), false).is_err());
        odd.resize(&allocator, layout(100, big), false).unwrap();
        blocks.into_iter().for_each(|block| block.free(&allocator));
    });
}

#[test]
fn what_waits_is_unpinned_before_an_allocation_if_the_device_has_nothing_to_do() {
    let _alone = alone();
    each(SimConfig::default(), |allocator, simulator, pinned| {
        pinned.trim().unwrap();
        allocate(&allocator, layout(5000, 1), 1).free(&allocator);
        assert_eq!(simulator.host_blocks(), 1);
        allocate(&allocator, layout(5000, 1), 2).free(&allocator);
        assert_eq!(simulator.host_blocks(), 1, "the first block went back before the second came");
        // Nobody can tell that it has: to unpin might wait for it.
        simulator.fail_call("cuCtxRecordEvent", 1, 1).unwrap();
        simulator.fail_call("cuMemHostAlloc", 1, 2).unwrap();
        let unpinned = simulator.call_count("cuMemFreeHost");
        assert!(allocator.allocate(layout(5000, 1)).is_err());
        assert_eq!(simulator.call_count("cuMemFreeHost"), unpinned, "unpinned beside work");
        let error = last_error().unwrap();
        assert!(error.to_string().contains("call trim"), "{error}");
        pinned.trim().unwrap();
        allocate(&allocator, layout(5000, 1), 3).free(&allocator);
    });
}

#[test]
fn deallocate_makes_no_driver_call() {
    let _alone = alone();
    each(SimConfig::default(), |allocator, simulator, _| {
        let blocks = SIZES.map(|size| allocate(&allocator, layout(size, 8192), 6));
        let calls = simulator.calls();
        blocks.into_iter().for_each(|block| block.free(&allocator));
        assert_eq!(simulator.calls(), calls);
    });
}

#[test]
fn no_bytes_make_no_driver_call() {
    let _alone = alone();
    each(SimConfig::default(), |allocator, simulator, _| {
        let calls = simulator.calls();
        for align in contract::ALIGNMENTS {
            let mut block = allocate(&allocator, layout(0, align), 0);
            for next in contract::ALIGNMENTS {
                block.resize(&allocator, layout(0, next), true).unwrap();
                block.resize(&allocator, layout(0, align), false).unwrap();
            }
            block.free(&allocator);
        }
        assert_eq!(simulator.calls(), calls);
        assert_eq!(simulator.host_blocks(), 0);
    });
}

#[test]
fn a_refused_layout_says_why() {
    let _alone = alone();
    each(SimConfig::default(), |allocator, simulator, _| {
        let calls = simulator.call_count("cuMemHostAlloc");
        assert!(allocator.allocate(layout(isize::MAX as usize, 1)).is_err());
        let error = last_error().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("address space"), "{error}");
        let most = isize::MAX as usize - ((1 << 21) - 1);
        assert!(allocator.allocate(layout(most, 1 << 21)).is_err());
        assert_eq!(simulator.call_count("cuMemHostAlloc"), calls, "the driver was asked");
        let mut vec: AllocVec<u64, &dyn Allocator> = AllocVec::new_in(allocator);
        vec.push(1);
        for much in [usize::MAX, usize::MAX / 8, isize::MAX as usize / 8] {
            assert!(vec.try_reserve(much).is_err(), "{much}");
        }
        assert_eq!(vec[..], [1]);
    });
}

#[test]
fn the_last_error_is_of_this_thread() {
    let _alone = alone();
    assert!(PinnedAlloc.allocate(layout(isize::MAX as usize, 1)).is_err());
    assert!(last_error().is_some());
    std::thread::spawn(|| assert!(last_error().is_none())).join().unwrap();
}

#[test]
fn a_lost_context_fails_without_unwinding() {
    let _alone = alone();
    for from_start in [false, true] {
        let (device, simulator) = support::simulated(SimConfig::default());
        let pinned = PinnedResource::new(&device).unwrap();
        let on_stream = OnStream::new(pinned.clone(), &device.new_stream().unwrap()).unwrap();
        if from_start {
            simulator.lose_context();
            lost(&pinned, std::iter::empty());
            lost(&on_stream, std::iter::empty());
        } else {
            let make = |seed| allocate(&pinned, layout(6000, 64), seed);
            let blocks = [make(1), make(2)];
            let others = [3, 4].map(|seed| allocate(&on_stream, layout(6000, 64), seed));
            simulator.lose_context();
            lost(&pinned, blocks.into_iter());
            lost(&on_stream, others.into_iter());
        }
        // Leaked, and no capture in the way.
        let trimmed = pinned.trim().map_err(|error| error.kind());
        assert_eq!(trimmed, if from_start { Ok(()) } else { Err(ErrorKind::ContextLost) });
    }
}

fn lost(allocator: &impl Allocator, blocks: impl Iterator<Item = Block>) {
    assert!(allocator.allocate(layout(10, 1)).is_err());
    assert_eq!(last_error().unwrap().kind(), ErrorKind::ContextLost);
    for mut block in blocks {
        assert!(block.resize(allocator, layout(1 << 20, 64), true).is_err());
        block.resize(allocator, layout(100, 8), false).unwrap();
        block.free(allocator);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { size: usize, align: u32, zeroed: bool },
    Resize { which: usize, size: usize, align: u32, zeroed: bool },
    Free { which: usize, elsewhere: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = || prop_oneof![3 => 0..100_usize, 3 => 0..20_000_usize, 1 => 0..200_000_usize];
    let align = || prop_oneof![4 => 0..5_u32, 1 => 5..18_u32];
    let step = prop_oneof![
        3 => (size(), align(), any::<bool>())
            .prop_map(|(size, align, zeroed)| Step::Allocate { size, align, zeroed }),
        4 => (any::<usize>(), size(), align(), any::<bool>())
            .prop_map(|(which, size, align, zeroed)| Step::Resize { which, size, align, zeroed }),
        2 => (any::<usize>(), any::<bool>())
            .prop_map(|(which, elsewhere)| Step::Free { which, elsewhere }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Blocks know what was written to them: that is the model.
fn run(allocator: &(impl Allocator + Clone + Send), steps: &[Step]) {
    let mut live: Vec<Block> = Vec::new();
    for (seed, step) in steps.iter().enumerate() {
        match *step {
            Step::Allocate { size, align, zeroed } => {
                let asked = layout(size, 1 << align);
                if zeroed {
                    let block = allocator.allocate_zeroed(asked).unwrap();
                    // SAFETY: zeroed, or so it says.
                    assert!(unsafe { block.as_ref() }.iter().all(|byte| *byte == 0));
                    live.push(Block::new(block, asked, seed as u8));
                } else {
                    live.push(allocate(allocator, asked, seed as u8));
                }
            }
            Step::Resize { which, size, align, zeroed } if !live.is_empty() => {
                let at = which % live.len();
                live[at].resize(allocator, layout(size, 1 << align), zeroed).unwrap();
            }
            Step::Free { which, elsewhere } if !live.is_empty() => {
                let block = live.swap_remove(which % live.len());
                let clone = allocator.clone();
                if elsewhere {
                    std::thread::scope(|scope| {
                        scope.spawn(move || block.free(&clone));
                    });
                } else {
                    block.free(&clone);
                }
            }
            Step::Resize { .. } | Step::Free { .. } => {}
        }
        contract::no_overlap(&live);
    }
    live.into_iter().for_each(|block| block.free(allocator));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_on_pinned_alloc_keeps_every_block(steps in steps()) {
        let _alone = alone();
        run(&PinnedAlloc, &steps);
    }

    #[test]
    fn any_sequence_on_a_pinned_resource_keeps_every_block(steps in steps()) {
        let _alone = alone();
        let device = support::device();
        let pinned = PinnedResource::new(&device).unwrap();
        run(&pinned, &steps);
        pinned.trim().unwrap();
        assert_eq!(host_blocks(&device), 0);
    }

    #[test]
    fn any_sequence_on_a_stream_keeps_every_block(steps in steps()) {
        let _alone = alone();
        let device = support::device();
        let pinned = PinnedResource::new(&device).unwrap();
        let stream = device.new_stream().unwrap();
        run(&OnStream::new(pinned.clone(), &stream).unwrap(), &steps);
        pinned.trim().unwrap();
        assert_eq!(host_blocks(&device), 0);
    }
}

fn host_blocks(device: &Device) -> usize {
    device.simulator().map_or(0, |simulator| simulator.host_blocks())
}

//! Every device resource keeps the same contract.

use crate::{kernels, log, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, ErrorKind,
    PoolResource, Result, Stream,
    mr::{AsyncResource, HostAccessible, ManagedResource},
    pinned::PinnedResource,
};
use kernels::{add_one, kind};
use log::Log;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::free;

/// Every resource of the crate, by name.
fn all(device: &Device) -> Vec<(&'static str, Arc<dyn DeviceResource>)> {
    let erased: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(device));
    vec![
        ("CudaResource", Arc::new(CudaResource::new(device))),
        ("AsyncResource", Arc::new(AsyncResource::new(device).unwrap())),
        (
            "AsyncResource that keeps nothing",
            Arc::new(AsyncResource::with_release_threshold(device, 0).unwrap()),
        ),
        ("ManagedResource", Arc::new(ManagedResource::new(device).unwrap())),
        ("PinnedResource", Arc::new(PinnedResource::new(device).unwrap())),
        ("Arc<dyn DeviceResource>", Arc::new(erased)),
    ]
}

/// A vector over a block, to work on it; the block comes back.
fn with_vec(
    resource: &Arc<dyn DeviceResource>,
    stream: &Stream,
    block: DeviceBlock,
    body: impl FnOnce(&mut DeviceVec<u8>),
) -> DeviceBlock {
    let length = block.bytes();
    let (stream, resource) = (stream.clone(), resource.clone());
    // SAFETY: the block is live and its resource's, and all its work is on this stream.
    let mut vec = unsafe { DeviceVec::from_raw_parts(stream, block, length, resource).unwrap() };
    body(&mut vec);
    vec.into_raw_parts().unwrap().1
}

#[test]
fn sizes_and_alignments_are_met_and_blocks_are_disjoint() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for (name, resource) in all(&device) {
        assert_eq!(resource.device(), &*device, "{name}");
        for power in (0..=21).rev().step_by(if support::on_gpu() { 3 } else { 1 }) {
            let alignment = 1 << power;
            let mut blocks = Vec::new();
            for bytes in [0, 1, 255, 256, 257, 4096, 1 << 20] {
                let layout = DeviceLayout::with_alignment(bytes, alignment).unwrap();
                let block = resource.allocate(&stream, layout).unwrap();
                assert!(block.bytes() >= bytes, "{name} {layout:?} {block:?}");
                assert!(
                    block.address().is_multiple_of(alignment as u64),
                    "{name} {layout:?} {block:?}"
                );
                assert_eq!(block.is_empty(), bytes == 0, "{name}");
                blocks.push(block);
            }
            let mut ranges: Vec<_> = blocks
                .iter()
                .filter(|block| !block.is_empty())
                .map(|block| (block.address(), block.address() + block.bytes() as u64))
                .collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{name} {ranges:x?}");
            // Each is memory to its last byte.
            for (fill, block) in blocks.into_iter().enumerate() {
                let block = with_vec(&resource, &stream, block, |vec| {
                    vec.fill(fill as u8).unwrap();
                    let last = vec.len().saturating_sub(1);
                    assert!(vec.is_empty() || vec.get(last).unwrap() == fill as u8, "{name}");
                });
                free(&*resource, &stream, block);
            }
        }
    }
    stream.synchronize().unwrap();
    if let Some(simulator) = device.simulator() {
        assert_eq!((simulator.live_bytes(), simulator.live_blocks()), (0, 0));
    }
}

#[test]
fn what_no_device_holds_is_an_error() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for (name, resource) in all(&device) {
        for (bytes, alignment) in [
            (isize::MAX as usize - 4095, 1),
            (isize::MAX as usize - 4095, 4096),
            (1 << 62, 1 << 21),
            (1 << 62, 1 << 61),
            (1, 1 << 62),
        ] {
            let layout = DeviceLayout::with_alignment(bytes, alignment).unwrap();
            let error = resource.allocate(&stream, layout).unwrap_err();
            let typed = matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::InvalidArgument);
            // CUDA calls some of these sizes invalid instead.
            assert!(typed || support::on_gpu(), "{name} {layout:?}: {error}");
        }
        let layout = DeviceLayout::new(64).unwrap();
        let block = resource.allocate(&stream, layout).unwrap();
        free(&*resource, &stream, block);
    }
}

#[test]
fn addresses_that_run_out_are_an_error_too() {
    let (device, _) = support::simulated(SimConfig::default().capacity(usize::MAX));
    let stream = device.new_stream().unwrap();
    for (name, resource) in all(&device) {
        let layout = DeviceLayout::with_alignment(1 << 62, 1).unwrap();
        for _ in 0..5 {
            assert_eq!(kind(resource.allocate(&stream, layout)), ErrorKind::OutOfMemory, "{name}");
        }
    }
}

#[test]
fn out_of_memory_says_what_was_asked_and_what_was_there() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(10_000));
    let stream = device.new_stream().unwrap();
    for (name, resource) in all(&device).into_iter().filter(|(name, _)| *name != "PinnedResource") {
        let layout = DeviceLayout::new(6000).unwrap();
        let block = resource.allocate(&stream, layout).unwrap();
        let error = resource.allocate(&stream, layout).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{name}");
        let text = error.to_string();
        assert!(text.contains("6000 bytes"), "{name}: {text}");
        // Managed memory is refused before the driver is asked, which counts none where it lies at the host.
        let asked = name != "ManagedResource";
        let there =
            if asked { "4000 bytes free of its 10000 bytes" } else { "6000 bytes are managed" };
        assert!(text.contains(there), "{name}: {text}");
        let code = error.driver().map(|driver| driver.code());
        assert_eq!(code, asked.then_some(2), "{name}: {text}");
        free(&*resource, &stream, block);
        let block = resource.allocate(&stream, layout).unwrap();
        free(&*resource, &stream, block);
    }
    simulator.check().unwrap();
}

#[test]
fn more_than_the_device_has_free_is_out_of_memory() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    // Far more than there is: asked for a little more, a driver takes all there is before it refuses,
    // and other tests find none.
    let more = device.memory_info().unwrap().total * 1024;
    for (name, resource) in all(&device) {
        // Managed memory may be more than a GPU has, and page-locked memory is the host's.
        if matches!(name, "ManagedResource" | "PinnedResource") {
            continue;
        }
        let error = resource.allocate(&stream, DeviceLayout::new(more).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{name}");
        assert!(error.to_string().contains(&more.to_string()), "{name}: {error}");
    }
}

#[test]
fn a_stream_of_another_device_is_refused_even_for_no_bytes() {
    let device = support::device();
    let (elsewhere, simulator) = support::simulated(SimConfig::default());
    let foreign = elsewhere.new_stream().unwrap();
    for (name, resource) in all(&device) {
        for bytes in [0, 64] {
            let refused = resource.allocate(&foreign, DeviceLayout::new(bytes).unwrap());
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongDevice, "{name}");
            assert!(error.to_string().contains(&elsewhere.to_string()), "{name}: {error}");
        }
    }
    simulator.check().unwrap();
}

#[test]
fn no_bytes_cost_no_driver_call() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    for (name, resource) in all(&device) {
        let before = simulator.calls();
        let layout = DeviceLayout::with_alignment(0, 4096).unwrap();
        let block = resource.allocate(&stream, layout).unwrap();
        assert!(block.is_empty(), "{name}");
        assert_eq!(block, DeviceBlock::empty(layout), "{name}");
        free(&*resource, &stream, block);
        assert_eq!(simulator.calls(), before, "{name}");
    }
}

#[test]
fn resources_are_equal_if_blocks_of_the_one_can_go_back_to_the_other() {
    let device = support::device();
    let (other, _) = support::simulated(SimConfig::default());
    assert_eq!(CudaResource::new(&device), CudaResource::new(&device));
    assert_ne!(CudaResource::new(&device), CudaResource::new(&other));
    assert_eq!(ManagedResource::new(&device).unwrap(), ManagedResource::new(&device).unwrap());
    assert_ne!(ManagedResource::new(&device).unwrap(), ManagedResource::new(&other).unwrap());
    let pool = AsyncResource::new(&device).unwrap();
    assert_eq!(pool, pool);
    assert_ne!(pool, AsyncResource::new(&device).unwrap(), "a pool of its own");
    let pinned = PinnedResource::new(&device).unwrap();
    assert_eq!(pinned, pinned.clone());
    assert_ne!(pinned, PinnedResource::builder(&device).mapped(false).build().unwrap());

    let erased: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
    assert!(*erased == *erased.clone());
    let twin: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
    assert!(*erased == *twin, "what is behind takes back the other's blocks");
    let pool: Arc<dyn DeviceResource> = Arc::new(PoolResource::new(twin).unwrap());
    assert!(*erased != *pool);
}

#[test]
fn what_a_device_lacks_is_unsupported() {
    let bare =
        SimConfig::default().without_managed_memory().without_memory_pools().without_host_mapping();
    let (device, simulator) = support::simulated(bare);
    let stream = device.new_stream().unwrap();
    for error in [
        AsyncResource::new(&device).unwrap_err(),
        AsyncResource::with_release_threshold(&device, 0).unwrap_err(),
        ManagedResource::new(&device).unwrap_err(),
        PinnedResource::new(&device)
            .unwrap()
            .allocate(&stream, DeviceLayout::new(64).unwrap())
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains('('), "says what to do: {error}");
    }
    assert_eq!(simulator.call_count("cuMemPoolCreate"), 0);
}

#[test]
fn a_pool_makes_no_call_but_its_own() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = Arc::new(AsyncResource::new(&device).unwrap());
    let mut vec = DeviceVec::<u8>::with_capacity_in(&stream, 10, pool.clone()).unwrap();
    vec.reserve(100).unwrap();
    drop(vec);
    pool.trim(0).unwrap();
    drop(pool);
    let memory: Vec<_> =
        simulator.calls().into_iter().filter(|(call, _)| call.starts_with("cuMem")).collect();
    let wanted = [
        ("cuMemAllocFromPoolAsync", 2),
        ("cuMemFreeAsync", 2),
        ("cuMemPoolCreate", 1),
        ("cuMemPoolDestroy", 1),
        ("cuMemPoolGetAttribute", 2),
        ("cuMemPoolTrimTo", 1),
    ];
    assert_eq!(memory, wanted);
}

#[test]
fn the_default_pool_of_a_gpu_is_never_touched() {
    #[cfg(feature = "cuda")]
    if support::on_gpu() {
        use aquifer::cudarc::driver::sys;
        let device = support::device();
        device.cuda_context().unwrap().bind_to_thread().unwrap();
        let state = || {
            let mut pool: sys::CUmemoryPool = std::ptr::null_mut();
            // SAFETY: out-parameters of the sizes that the driver writes.
            unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, 0).result().unwrap() };
            use sys::CUmemPool_attribute_enum as Attribute;
            [
                Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
            ]
            .map(|attribute| {
                let mut value = 0_u64;
                let target = (&raw mut value).cast();
                // SAFETY: as above: both attributes are 64 bits wide.
                unsafe { sys::cuMemPoolGetAttribute(pool, attribute, target).result().unwrap() };
                value
            })
        };
        let before = state();
        let stream = device.new_stream().unwrap();
        let pool = Arc::new(AsyncResource::new(&device).unwrap());
        let mut vec = DeviceVec::<u32>::zeroed_in(&stream, 1 << 20, pool).unwrap();
        add_one(&stream, &mut vec).unwrap();
        assert_eq!(vec.get((1 << 20) - 1).unwrap(), 1);
        assert_eq!(state(), before);
        return;
    }
    support::skipped("the_default_pool_of_a_gpu_is_never_touched", "no GPU");
}

#[test]
fn blocks_of_a_pool_outlive_the_pool() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = Arc::new(AsyncResource::new(&device).unwrap());
    let mut vec = DeviceVec::from_slice_in(&stream, &[1_u32, 2], pool).unwrap();
    add_one(&stream, &mut vec).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [2, 3], "the vector keeps its resource");
}

#[test]
fn both_sides_reach_page_locked_memory() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pinned = PinnedResource::new(&device).unwrap();
    let block = DeviceResource::allocate(&pinned, &stream, DeviceLayout::new(8).unwrap()).unwrap();
    let pointer = pinned.host_pointer(&block);
    let erased: Arc<dyn DeviceResource> = Arc::new(pinned.clone());
    let block = with_vec(&erased, &stream, block, |vec| {
        vec.fill(7).unwrap();
        stream.synchronize().unwrap();
        // SAFETY: the block's eight bytes; the device is done with them.
        assert_eq!(unsafe { pointer.cast::<[u8; 8]>().read() }, [7; 8]);
    });
    free(&pinned, &stream, block);
    pinned.trim().unwrap();
}

/// Fails every `nth` allocation.
#[derive(Debug)]
struct Failing<U> {
    upstream: U,
    nth: usize,
    asked: AtomicUsize,
    live: AtomicUsize,
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for Failing<U> {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        if (self.asked.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.nth) {
            return Err(DeviceLayout::with_alignment(1, 3).unwrap_err());
        }
        let block = self.upstream.allocate(stream, layout)?;
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the block is the upstream's; our caller vouches for the rest.
        unsafe { self.upstream.deallocate(stream, block) }
    }
}

#[test]
fn a_resource_of_ones_own_may_fail_and_the_vector_stays_whole() {
    for nth in 1..6 {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let upstream = CudaResource::new(&device);
        let (asked, live) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let failing = Arc::new(Failing { upstream, nth, asked, live });
        let mut vec = DeviceVec::<u32>::new_in(&stream, failing.clone()).unwrap();
        let (mut model, mut failures) = (Vec::new(), 0);
        for value in 0..40 {
            let (length, capacity, address) = (vec.len(), vec.capacity(), vec.as_device_ptr());
            let done = match value % 5 {
                0 => vec.shrink_to_fit(),
                1 => vec.reserve_exact(length + 1),
                2 => vec.try_clone().map(|clone| vec = clone),
                3 => vec.extend_from_slice(&[value; 3]).map(|()| model.extend([value; 3])),
                _ => vec.push(value).map(|()| model.push(value)),
            };
            if done.is_err() {
                failures += 1;
                assert_eq!((vec.len(), vec.capacity()), (length, capacity), "{nth} {value}");
                assert_eq!(vec.as_device_ptr(), address, "{nth} {value}");
            }
            assert_eq!(vec.to_vec().unwrap(), model, "{nth} {value}");
        }
        assert!(failures > 0 || nth > 1, "{nth}");
        drop(vec);
        assert_eq!(failing.live.load(Ordering::Relaxed), 0, "each block came back once");
    }
}

#[test]
fn a_plain_block_whose_stream_cannot_be_waited_for_is_leaked_and_said_so() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    for resource in [
        Arc::new(CudaResource::new(&device)) as Arc<dyn DeviceResource>,
        Arc::new(ManagedResource::new(&device).unwrap()),
    ] {
        let vec = DeviceVec::<u8>::zeroed_in(&stream, 8, resource).unwrap();
        simulator.fail_call("cuStreamSynchronize", 1, 999).unwrap();
        let live = simulator.live_blocks();
        let ((), log) = Log::of(|| drop(vec));
        assert_eq!(log.count(tracing::Level::ERROR, "leaked"), 1, "{:?}", log.lines());
        assert_eq!(simulator.live_blocks(), live, "never given back");
    }
}

//! What a pool of page-locked memory holds, and when memory goes back: the maximum, the release threshold and trims.

use crate::support;
use allocator_api2::alloc::Allocator;
#[cfg(target_os = "linux")]
use aquifer::pinned::Registered;
use aquifer::pinned::{PinnedPool, PinnedPoolOptions, PinnedResource, last_error};
use aquifer::sim::SimConfig;
use aquifer::{Device, DeviceVec, ErrorKind};
use std::alloc::Layout;
use std::ptr::NonNull;

const MIB: usize = 1 << 20;

fn pool(
    device: &Device,
    with: impl Fn(PinnedPoolOptions) -> PinnedPoolOptions,
) -> aquifer::Result<PinnedPool> {
    with(PinnedPool::builder(PinnedResource::new(device)?)).build()
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 64).unwrap()
}

fn blocks<const N: usize>(pool: &PinnedPool, bytes: usize) -> [NonNull<u8>; N] {
    [(); N].map(|()| pool.allocate(layout(bytes)).unwrap().cast())
}

fn free(pool: &PinnedPool, blocks: impl IntoIterator<Item = NonNull<u8>>, bytes: usize) {
    for block in blocks {
        // SAFETY: a block of the pool, of this layout, freed once.
        unsafe { pool.deallocate(block, layout(bytes)) };
    }
}

/// To lock pages that are not there yet touches them. Past the limit that is the end of a process, and no error.
#[cfg(target_os = "linux")]
#[test]
fn a_buffer_whose_pages_the_system_does_not_have_comes_back() {
    if !support::on_gpu() {
        return support::skipped("the pages of a registered buffer", "no GPU");
    }
    let device = Device::open(0).unwrap();
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let total: usize = total.trim().trim_end_matches(" kB").parse().unwrap();
    // All of the machine's memory but a little, of which nothing is there.
    let lazy = vec![0_u8; total * 1024 - (256 << 20)];
    let refused = Registered::new(&device, lazy).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::OutOfMemory);
    assert!(refused.error.to_string().contains("not there yet"), "{}", refused.error);
    drop(refused.buffer.unwrap());
    let touched = Registered::new(&device, vec![1_u8; 64 * MIB]).unwrap();
    assert_eq!(touched.len(), 64 * MIB);
}

#[test]
fn a_free_gives_back_what_is_above_the_threshold() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = pool(&device, |options| {
        options.growth_step(4096).magazine_bytes(0).release_threshold(200 * MIB)
    })
    .unwrap();
    assert_eq!(pool.release_threshold(), Some(200 * MIB));
    let held: [_; 6] = blocks(&pool, 129 * MIB);
    assert!(pool.statistics().reserved >= 6 * 129 * MIB);
    free(&pool, held, 129 * MIB);
    assert!(pool.statistics().reserved <= 200 * MIB + 256 * MIB, "{:?}", pool.statistics());
    // A slab is larger than what is above the threshold.
    assert_eq!(pool.trim_to(usize::MAX).unwrap(), 0);
    pool.set_release_threshold(Some(0)).unwrap();
    assert_eq!(pool.statistics().reserved, 0);
    simulator.check().unwrap();
}

#[test]
fn without_a_threshold_memory_stays_until_a_trim_which_keeps_what_is_asked() {
    let (device, _) = support::simulated(SimConfig::default());
    let pool = pool(&device, |options| options.growth_step(MIB).magazine_bytes(0)).unwrap();
    assert_eq!((pool.release_threshold(), pool.maximum_size()), (None, None));
    let held: [_; 3] = blocks(&pool, MIB);
    free(&pool, held, MIB);
    let before = pool.statistics().reserved;
    assert!(before >= 3 * MIB);
    let released = pool.trim_to(MIB).unwrap();
    let after = pool.statistics().reserved;
    assert_eq!(before - after, released);
    assert!(after >= MIB && released > 0, "{after} of {before}");
    pool.trim().unwrap();
    assert_eq!(pool.statistics().reserved, 0);
}

#[test]
fn a_free_beside_work_waits_for_nothing_and_keeps_the_memory() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = pool(&device, |options| options.magazine_bytes(0).release_threshold(0)).unwrap();
    let stream = device.new_stream().unwrap();
    let held: [_; 2] = blocks(&pool, 8 * MIB);
    let mut vec = DeviceVec::<u8>::zeroed(&stream, 64).unwrap();
    stream.synchronize().unwrap();
    simulator.stall(&stream).unwrap();
    vec.fill(1).unwrap();
    let unpinned = simulator.call_count("cuMemFreeHost");
    let [first, second] = held;
    free(&pool, [first], 8 * MIB);
    assert_eq!(simulator.call_count("cuMemFreeHost"), unpinned);
    simulator.resume(&stream).unwrap();
    stream.synchronize().unwrap();
    free(&pool, [second], 8 * MIB);
    assert_eq!(pool.statistics().reserved, 0);
    simulator.check().unwrap();
}

#[test]
fn a_maximum_that_is_lowered_takes_nothing_and_gives_nothing_more() {
    let (device, _) = support::simulated(SimConfig::default());
    let pool = pool(&device, |options| options.growth_step(4096).magazine_bytes(0)).unwrap();
    let held: [_; 2] = blocks(&pool, MIB);
    let reserved = pool.statistics().reserved;
    pool.set_maximum_size(Some(MIB)).unwrap();
    assert_eq!(pool.maximum_size(), Some(MIB));
    assert_eq!(pool.statistics().reserved, reserved);
    assert!(pool.allocate(layout(8 * MIB)).is_err());
    let error = last_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    free(&pool, held, MIB);
    // What it has serves still.
    let again: [_; 1] = blocks(&pool, MIB);
    pool.set_maximum_size(None).unwrap();
    let more: [_; 1] = blocks(&pool, 8 * MIB);
    free(&pool, again, MIB);
    free(&pool, more, 8 * MIB);
    for wrong in [0, 1, 4097] {
        let error = pool.set_maximum_size(Some(wrong)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong}");
    }
}

//! A resource for each range of sizes.

use super::{Call, KIB, MIB, Recorder, allocate, disjoint, free, refused, support};
use crate::generator::rmm_trace;
use crate::workloads::Op;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, PoolResource,
    Stream,
    mr::{BinningResource, FixedSizeResource},
};
use std::sync::Arc;

#[test]
fn each_size_reaches_its_bin_and_goes_back_there() {
    // Few, with two within one power of two, and many.
    serves_by_size(&[512, 1024, 1280, 1536, 64 * KIB]);
    serves_by_size(&(1..=8).map(|n| n * 1024).collect::<Vec<_>>());
    serves_by_size(&(1..=9).map(|n| n * 1024).collect::<Vec<_>>());
    serves_by_size(&(1..=20).map(|n| n * n * 256).collect::<Vec<_>>());
}

fn serves_by_size(sizes: &[usize]) {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let bins: Vec<_> = sizes.iter().map(|_| Recorder::new(&device)).collect();
    let upstream = Recorder::new(&device);
    let mut builder = BinningResource::builder(upstream.clone());
    // In any order.
    let backwards = (0..sizes.len()).rev();
    for index in backwards.clone().filter(|n| n % 2 == 0).chain(backwards.filter(|n| n % 2 == 1)) {
        builder = builder.bin(sizes[index], bins[index].clone());
    }
    let resource = builder.build().unwrap();
    assert_eq!(resource.sizes().collect::<Vec<_>>(), sizes);

    let mut wanted = vec![(1, 0), (sizes[0] / 2, 0)];
    for (index, &size) in sizes.iter().enumerate() {
        wanted.extend([(size - 1, index), (size, index), (size + 1, index + 1)]);
    }
    wanted.extend([(2 * MIB, sizes.len())]);
    for (bytes, index) in wanted {
        for alignment in [1, 256, 512, 4096, 2 * MIB] {
            let layout = DeviceLayout::with_alignment(bytes, alignment).unwrap();
            let block = resource.allocate(&stream, layout).unwrap();
            assert!(block.address().is_multiple_of(alignment as u64));
            free(&resource, &stream, block);
            let asked = sizes.get(index).copied().unwrap_or(bytes);
            let calls = [Call::Asked { bytes: asked, alignment }, Call::Freed { bytes: asked }];
            for (number, recorder) in bins.iter().chain([&upstream]).enumerate() {
                let wanted: &[Call] = if number == index { &calls } else { &[] };
                assert_eq!(recorder.calls(), wanted, "{layout:?} at {number}");
            }
        }
    }
}

#[test]
fn no_bytes_are_an_empty_block_that_reaches_nobody() {
    let device = support::device();
    let other = support::device();
    let stream = device.new_stream().unwrap();
    let (bin, upstream) = (Recorder::new(&device), Recorder::new(&device));
    let builder = BinningResource::builder(upstream.clone());
    let resource = builder.bin(512, bin.clone()).build().unwrap();
    let block = allocate(&resource, &stream, 0).unwrap();
    assert!(block.is_empty());
    free(&resource, &stream, block);
    assert!(bin.calls().is_empty() && upstream.calls().is_empty());
    if !support::on_gpu() {
        let elsewhere = other.new_stream().unwrap();
        refused(allocate(&resource, &elsewhere, 0), ErrorKind::WrongDevice, "stream");
    }
}

#[test]
fn the_default_has_rmms_bins_and_takes_nothing_before_it_is_asked() {
    let config = SimConfig::default().capacity(4 << 30).without_pool_checks();
    let (device, simulator) = support::simulated(config);
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let resource = BinningResource::new(pool.clone()).unwrap();
    let sizes: Vec<_> = resource.sizes().collect();
    assert_eq!(sizes, [256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB]);
    assert_eq!(simulator.live_bytes(), 0);
    let mut held = Vec::new();
    for (bytes, got) in [
        (1, 256 * KIB),
        (256 * KIB, 256 * KIB),
        (256 * KIB + 1, 512 * KIB),
        (MIB, MIB),
        (3 * MIB, 4 * MIB),
        (4 * MIB, 4 * MIB),
        (4 * MIB + 1, 4 * MIB + 256),
    ] {
        let block = allocate(&resource, &stream, bytes).unwrap();
        assert_eq!(block.bytes(), got);
        held.push(block);
    }
    disjoint(&held);
    let chunks = 128 * (256 * KIB + 512 * KIB + MIB + 4 * MIB);
    assert_eq!(pool.statistics().live, chunks + 4 * MIB + 256, "a chunk of each bin in use");
    held.into_iter().for_each(|block| free(&resource, &stream, block));
    assert_eq!(pool.statistics().live, chunks);
    drop(resource);
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn a_bin_of_ones_own_stands_beside_fixed_ones_and_replaces_none() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let own = Recorder::new(&device);
    let builder = || BinningResource::builder(CudaResource::new(&device));
    let resource = builder().fixed_size_bins(18, 19).bin(MIB, own.clone()).build().unwrap();
    let block = allocate(&resource, &stream, 512 * KIB + 1).unwrap();
    free(&resource, &stream, block);
    let calls = [Call::Asked { bytes: MIB, alignment: 256 }, Call::Freed { bytes: MIB }];
    assert_eq!(own.calls(), calls);

    let twice = builder().fixed_size_bins(18, 22).bin(MIB, own.clone()).build();
    refused(twice, ErrorKind::InvalidArgument, "two bins of 1048576 bytes");
    let twice = builder().bin(512, own.clone()).bin(512, own.clone()).build();
    refused(twice, ErrorKind::InvalidArgument, "two bins of 512 bytes");
    let twice = builder().fixed_size_bins(10, 12).fixed_size_bins(12, 13).build();
    refused(twice, ErrorKind::InvalidArgument, "two bins of 4096 bytes");
    assert!(own.calls().is_empty());
}

#[test]
fn bins_that_make_no_sense_are_errors() {
    let device = support::device();
    let own = Recorder::new(&device);
    let builder = || BinningResource::builder(CudaResource::new(&device));
    for size in [0, 1, 255, 1000, usize::MAX, usize::MAX - 255] {
        let built = builder().bin(256, own.clone()).bin(size, own.clone()).build();
        refused(built, ErrorKind::InvalidArgument, &format!("a bin of {size} byte"));
    }
    for (min, max) in [(7, 9), (20, 19), (18, 40), (64, 64), (0, u32::MAX)] {
        let built = builder().fixed_size_bins(min, max).fixed_size_bins(18, 19).build();
        refused(built, ErrorKind::InvalidArgument, &format!("2^{min} to 2^{max}"));
    }
    if !support::on_gpu() {
        let other = support::device();
        let built = builder().bin(512, Recorder::new(&other)).build();
        refused(built, ErrorKind::WrongDevice, "bin");
    }
}

/// A block whose size leads elsewhere would be freed there.
#[test]
fn a_bin_whose_blocks_have_another_size_is_refused_and_gets_them_back() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for more in [1, 256, 4096] {
        let bin = Recorder::giving(&device, more);
        let builder = BinningResource::builder(CudaResource::new(&device));
        let resource = builder.bin(1024, bin.clone()).build().unwrap();
        let text = format!("gave one of {}", 1024 + more);
        refused(allocate(&resource, &stream, 100), ErrorKind::Unsupported, &text);
        let bytes = 1024 + more;
        let calls = [Call::Asked { bytes: 1024, alignment: 256 }, Call::Freed { bytes }];
        assert_eq!(bin.calls(), calls);
    }
    // Upstream may: nothing is above the largest bin.
    let upstream = Recorder::giving(&device, 4096);
    let bin = FixedSizeResource::builder(CudaResource::new(&device)).block_size(1024);
    let builder = BinningResource::builder(upstream.clone());
    let resource = builder.bin(1024, Arc::new(bin.build().unwrap())).build().unwrap();
    let block = allocate(&resource, &stream, 1025).unwrap();
    free(&resource, &stream, block);
    let bytes = 1025 + 4096;
    assert_eq!(upstream.calls()[1..], [Call::Freed { bytes }]);
}

#[test]
fn sizes_at_the_end_of_the_address_space_go_upstream_and_fail_there() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let resource = BinningResource::new(CudaResource::new(&device)).unwrap();
    for bytes in [1 << 62, usize::MAX / 2, usize::MAX / 2 - 255] {
        let layout = DeviceLayout::with_alignment(bytes, 1).unwrap();
        refused(resource.allocate(&stream, layout), ErrorKind::OutOfMemory, "bytes");
    }
    refused(allocate(&resource, &stream, usize::MAX), ErrorKind::InvalidArgument, "address space");
    let layout = DeviceLayout::with_alignment(100, 1 << 62).unwrap();
    refused(resource.allocate(&stream, layout), ErrorKind::OutOfMemory, "bytes");
}

#[test]
fn handles_are_one_resource_and_without_bins_all_goes_upstream() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let upstream = Recorder::new(&device);
    let make = || BinningResource::builder(upstream.clone()).build().unwrap();
    let (resource, other) = (make(), make());
    let clone = resource.clone();
    assert!(resource == clone && resource != other);
    let one: Arc<dyn DeviceResource> = Arc::new(resource.clone());
    let two: Arc<dyn DeviceResource> = Arc::new(clone.clone());
    assert!(*one == *two && *one != *(Arc::new(other) as Arc<dyn DeviceResource>));
    let block = allocate(&*one, &stream, 100).unwrap();
    free(&clone, &stream, block);
    let calls = [Call::Asked { bytes: 100, alignment: 256 }, Call::Freed { bytes: 100 }];
    assert_eq!(upstream.calls(), calls);
}

/// A pool of 64 MiB, and bins of 64 and 128 KiB, whose chunks have 8 and 16 MiB.
fn bins_of_64_mib(
    config: SimConfig,
    body: impl FnOnce(&[Stream; 2], &BinningResource<PoolResource>),
) {
    let (device, simulator) = support::simulated(config);
    let streams = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = PoolResource::builder(CudaResource::new(&device));
    let pool = pool.initial_size(64 * MIB).maximum_size(64 * MIB).build().unwrap();
    let bins = BinningResource::builder(pool).fixed_size_bins(16, 17).build().unwrap();
    body(&streams, &bins);
    simulator.check().unwrap();
}

fn fill(
    resource: &impl DeviceResource,
    stream: &Stream,
    bytes: usize,
    n: usize,
) -> Vec<DeviceBlock> {
    let held: Vec<_> = (0..n).map(|_| allocate(resource, stream, bytes).unwrap()).collect();
    disjoint(&held);
    held
}

#[test]
fn free_chunks_of_bins_serve_requests_that_no_bin_fits() {
    bins_of_64_mib(SimConfig::default(), |[stream, other], bins| {
        let live = || bins.upstream().statistics().live;
        for (bytes, n) in [(64 * KIB, 512), (128 * KIB, 128)] {
            fill(bins, stream, bytes, n).into_iter().for_each(|it| free(bins, stream, it));
        }
        assert_eq!(live(), 48 * MIB, "the bins keep their chunks");
        let small = allocate(bins, stream, 16 * MIB).unwrap();
        assert_eq!(live(), 64 * MIB, "as long as there is room");
        let large = allocate(bins, other, 16 * MIB).unwrap();
        assert_eq!(live(), 64 * MIB, "then the largest chunks go, and no more");
        let last = allocate(bins, stream, 32 * MIB).unwrap();
        assert_eq!(live(), 64 * MIB);
        refused(allocate(bins, stream, MIB), ErrorKind::OutOfMemory, "1048576 bytes");
        refused(allocate(bins, stream, KIB), ErrorKind::OutOfMemory, "65536 bytes");
        [small, large, last].into_iter().for_each(|it| free(bins, stream, it));
        assert_eq!(live(), 0);
    });
}

#[test]
fn free_chunks_of_a_bin_serve_another_bin_and_chunks_in_use_stay() {
    bins_of_64_mib(SimConfig::default(), |[stream, other], bins| {
        let live = || bins.upstream().statistics().live;
        // One block stays in each chunk but the first two.
        let blocks = fill(bins, stream, 128 * KIB, 512).into_iter().enumerate();
        let (held, freed): (Vec<_>, Vec<_>) = blocks.partition(|(n, _)| *n >= 256 && n % 128 == 5);
        freed.into_iter().for_each(|(_, it)| free(bins, stream, it));
        let held: Vec<_> = held.into_iter().map(|(_, it)| it).collect();
        assert_eq!(live(), 64 * MIB);
        let small = fill(bins, other, 64 * KIB, 512);
        assert_eq!(live(), 64 * MIB);
        refused(allocate(bins, other, 64 * KIB), ErrorKind::OutOfMemory, "65536 bytes");
        disjoint(&held);
        small.into_iter().for_each(|it| free(bins, other, it));
        // What stayed is still the bin's.
        let more = fill(bins, stream, 128 * KIB, 254);
        for it in held.into_iter().chain(more) {
            free(bins, stream, it);
        }
    });
}

/// The streams still work on what the bins give back.
#[test]
fn free_chunks_come_back_in_order() {
    for seed in 0..4 {
        bins_of_64_mib(SimConfig::default().seed(seed), |[one, two], bins| {
            let vec = |stream: &Stream, bytes: usize, tag: u8| {
                let mut vec = DeviceVec::with_capacity_in(stream, bytes, bins.clone()).unwrap();
                vec.resize(bytes, tag).unwrap();
                vec
            };
            let held: Vec<_> =
                (0..500).map(|n| vec([one, two][n % 2], 128 * KIB, 1 + n as u8 % 2)).collect();
            drop(held);
            let large = vec(two, 40 * MIB, 3);
            let small: Vec<_> = (0..200).map(|_| vec(one, 64 * KIB, 4)).collect();
            assert!(large.to_vec().unwrap().iter().all(|&byte| byte == 3));
            for vec in small {
                assert!(vec.to_vec().unwrap().iter().all(|&byte| byte == 4));
            }
        });
    }
}

/// A large request of a stream in capture: the memory is there when the capture is over.
#[test]
fn free_chunks_stay_with_a_stream_in_capture() {
    bins_of_64_mib(SimConfig::default(), |[stream, _], bins| {
        fill(bins, stream, 128 * KIB, 512).into_iter().for_each(|it| free(bins, stream, it));
        let (graph, ()) = stream
            .capture(bins.upstream(), |stream| {
                assert!(allocate(bins, stream, 48 * MIB).is_err());
                Ok(())
            })
            .unwrap();
        drop(graph);
        let large = allocate(bins, stream, 48 * MIB).unwrap();
        free(bins, stream, large);
    });
}

/// RMM's RANDOM_ALLOCATIONS, where 16 GiB at most are live: after the programs of small blocks the bins
/// keep three times that.
#[test]
fn rmms_random_programs_one_after_the_other_fit_in_80_gb() {
    let config = SimConfig::default().capacity(80_000_000_000);
    let device = aquifer::Device::simulated(config.without_pool_checks().without_poison());
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::builder(CudaResource::new(&device)).initial_size(40 << 30);
    let bins = BinningResource::new(pool.build().unwrap()).unwrap();
    let mut kept = 0;
    for mib in [1, 4, 4096] {
        let mut held = Vec::new();
        for &Op { slot, size } in rmm_trace(100_000, mib).unwrap().ops() {
            if size > 0 {
                assert_eq!(slot as usize, held.len());
                held.push(Some(allocate(&bins, &stream, size as usize).unwrap()));
            } else {
                free(&bins, &stream, held[slot as usize].take().unwrap());
            }
        }
        kept = kept.max(bins.upstream().statistics().live);
    }
    assert!(kept > 3 * (14 << 30), "{kept} bytes");
}

#[test]
fn a_trim_keeps_so_many_bytes_in_all_bins_and_begins_with_the_largest_blocks() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let bins = BinningResource::builder(CudaResource::new(&device)).fixed_size_bins(9, 11);
    let bins = bins.bin(4096, PoolResource::new(CudaResource::new(&device)).unwrap());
    let bins = bins.build().unwrap();
    let held = [512, 1024, 2048, 4096].map(|bytes| allocate(&bins, &stream, bytes).unwrap());
    let chunk = 128 * 512;
    let others = simulator.live_bytes() - 7 * chunk;
    assert_eq!(bins.wait_and_trim(0).unwrap(), 0, "a block of each chunk is in use");
    let [first, second, third, fourth] = held;
    for block in [second, third, fourth] {
        free(&bins, &stream, block);
    }
    assert_eq!(bins.wait_and_trim(7 * chunk).unwrap(), 0);
    assert_eq!(bins.wait_and_trim(6 * chunk).unwrap(), 4 * chunk, "whole chunks");
    assert_eq!(bins.wait_and_trim(0).unwrap(), 2 * chunk);
    assert_eq!(bins.wait_and_trim(0).unwrap(), 0);
    free(&bins, &stream, first);
    assert_eq!(bins.wait_and_trim(0).unwrap(), chunk);
    assert_eq!(simulator.live_bytes(), others, "the other bin is its maker's");
}

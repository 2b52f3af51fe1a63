//! Memory of an upstream in stream order, which another stream may still write when it is handed out.
//! On simulated devices, whose verdict at the end tells whether anything was touched too early.

use super::{KIB, support};
use crate::threads::run_threads;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, PoolResource, Stream,
    mr::{ArenaResource, AsyncResource, BinningResource, FixedSizeResource},
};
use std::sync::Arc;

type Erased = Arc<dyn DeviceResource>;

const BLOCK: usize = 64 * KIB;
const SEEDS: std::ops::Range<u64> = 0..4;

fn vec(resource: &Erased, stream: &Stream, bytes: usize, tag: u8) -> DeviceVec<u8> {
    let mut vec = DeviceVec::with_capacity_in(stream, bytes, resource.clone()).unwrap();
    vec.resize(bytes, tag).unwrap();
    vec
}

fn holds(vec: &DeviceVec<u8>, tag: u8) {
    let found = vec.to_vec().unwrap();
    assert!(!found.is_empty() && found.iter().all(|&byte| byte == tag), "not all is {tag}");
}

/// With each upstream in stream order that has memory in it which a stream still writes.
fn over_dirty_upstreams(body: impl Fn(&Device, &Simulator, &'static str, Erased)) {
    for seed in SEEDS {
        let config = SimConfig::default().seed(seed).capacity(1 << 30);
        let (device, simulator) = support::simulated(config);
        let before = device.new_stream().unwrap();
        let pool = PoolResource::builder(CudaResource::new(&device)).growth_step(64 * BLOCK);
        let upstreams: [(_, Erased); 2] = [
            ("a driver's pool", Arc::new(AsyncResource::new(&device).unwrap())),
            ("a pool", Arc::new(pool.build().unwrap())),
        ];
        for (name, upstream) in upstreams {
            drop(vec(&upstream, &before, 32 * BLOCK, 99));
            body(&device, &simulator, name, upstream);
            simulator.check().unwrap_or_else(|error| panic!("{name}, seed {seed}: {error}"));
        }
        device.synchronize().unwrap();
        simulator.check().unwrap();
        assert_eq!(simulator.live_bytes(), 0, "seed {seed}: memory was not given back");
    }
}

/// Writes one block after another on streams in turn, and reads them all.
fn in_turn(device: &Device, resource: &Erased, blocks: usize, bytes: usize) {
    let streams: [Stream; 3] = std::array::from_fn(|_| device.new_stream().unwrap());
    let vecs: Vec<_> =
        (0..blocks).map(|n| vec(resource, &streams[n % 3], bytes, n as u8)).collect();
    vecs.iter().enumerate().for_each(|(n, vec)| holds(vec, n as u8));
}

/// RMM's third race: blocks that were taken when the resource was built.
#[test]
fn preallocated_blocks_are_ordered_after_their_allocation() {
    over_dirty_upstreams(|device, _, name, upstream| {
        let builder = FixedSizeResource::builder(upstream).block_size(BLOCK);
        let fixed = builder.blocks_per_chunk(1).initial_blocks(8).build().unwrap();
        in_turn(device, &(Arc::new(fixed.clone()) as Erased), 8, BLOCK - 100);
        assert_eq!(fixed.statistics().upstream_blocks, 1, "{name}: all in the first chunk");
    });
}

/// RMM's fifth: the other blocks of a chunk that one stream grew by.
#[test]
fn the_rest_of_a_chunk_is_ordered_after_its_growth() {
    over_dirty_upstreams(|device, _, name, upstream| {
        let builder = FixedSizeResource::builder(upstream).block_size(BLOCK);
        let fixed = builder.blocks_per_chunk(8).build().unwrap();
        in_turn(device, &(Arc::new(fixed.clone()) as Erased), 8, BLOCK);
        assert_eq!(fixed.statistics().upstream_blocks, 1, "{name}: all in one chunk");
    });
}

/// Both through bins, and what goes past them.
#[test]
fn bins_and_what_goes_past_them_are_in_order() {
    over_dirty_upstreams(|device, _, _, upstream| {
        let bins = BinningResource::builder(upstream).fixed_size_bins(12, 14).build().unwrap();
        let bins: Erased = Arc::new(bins);
        for bytes in [4 * KIB, 8 * KIB, 16 * KIB, 17 * KIB] {
            in_turn(device, &bins, 9, bytes);
        }
    });
}

/// RMM's seventh is an arena's: a thread ends, and another has its memory while its stream still
/// works.
#[test]
fn memory_of_a_thread_that_ended_is_ordered_after_its_work() {
    over_dirty_upstreams(|device, _, _, upstream| {
        let arena = ArenaResource::builder(upstream).arena_size(16 * BLOCK).build().unwrap();
        let arena: Erased = Arc::new(arena);
        for round in 0..4 {
            run_threads(|threads| {
                threads.spawn(|| {
                    let stream = device.new_stream().unwrap();
                    drop((0..16).map(|_| vec(&arena, &stream, BLOCK, round)).collect::<Vec<_>>());
                });
            });
        }
        holds(&vec(&arena, &device.new_stream().unwrap(), 16 * BLOCK, 7), 7);
    });
}

//! `PoolResource`: its options, its statistics, what a miss does and what the pool promises of its
//! size. What may go wrong in the order of streams is in `pool_hazards`.

mod capacity;
mod counts;
mod growing;
mod handles;
mod lifetimes;
mod limits;
mod misses;
mod options;
mod sequences;
mod upstream_waits;

use crate::{log, support};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, PoolResource, Result, Stream,
    mr::{Handles, PoolOptions},
};
use support::free;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A pool on blocks, which most of these tests count. Those of pools on handles are in `mapped_pool`.
fn builder(device: &Device) -> PoolOptions<CudaResource> {
    PoolResource::builder(CudaResource::new(device)).handles(Handles::Off)
}

fn allocate(pool: &impl DeviceResource, stream: &Stream, bytes: usize) -> Result<DeviceBlock> {
    pool.allocate(stream, DeviceLayout::new(bytes)?)
}

/// As many blocks as there are, and the error of the next.
fn drain(pool: &impl DeviceResource, stream: &Stream, bytes: usize) -> (Vec<DeviceBlock>, String) {
    let mut blocks = Vec::new();
    loop {
        match allocate(pool, stream, bytes) {
            Ok(block) => blocks.push(block),
            Err(error) => {
                assert_eq!(error.kind(), aquifer::ErrorKind::OutOfMemory, "{error}");
                return (blocks, error.to_string());
            }
        }
    }
}

fn disjoint(blocks: &[DeviceBlock]) {
    let end = |block: &DeviceBlock| block.address() + block.bytes() as u64;
    let mut ranges: Vec<_> = blocks.iter().map(|block| (block.address(), end(block))).collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:x?}");
}

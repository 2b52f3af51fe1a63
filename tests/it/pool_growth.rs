//! What a pool reserves of an upstream that refuses.

use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{CudaResource, DeviceVec, PoolResource, mr::Handles};

const MIB: usize = 1 << 20;

#[test]
fn a_growth_that_was_refused_and_tried_smaller_counts_once() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(64 << 20));
    let stream = device.new_stream().unwrap();
    let plain = CudaResource::new(&device);
    let others = DeviceVec::<u8>::zeroed_in(&stream, 40 * MIB, plain.clone()).unwrap();
    let pool = PoolResource::builder(plain).growth_step(40 * MIB).maximum_size(64 * MIB);
    let pool = pool.handles(Handles::Off).build().unwrap();
    // 40 MiB are refused, half of it is there.
    let small = DeviceVec::<u8>::zeroed_in(&stream, MIB, pool.clone()).unwrap();
    assert_eq!(pool.statistics().reserved, 20 * MIB);
    drop(others);
    stream.synchronize().unwrap();
    // With that, the rest of the maximum fits.
    let large = DeviceVec::<u8>::zeroed_in(&stream, 44 * MIB, pool.clone()).unwrap();
    assert_eq!(pool.statistics().reserved, 64 * MIB);
    drop((small, large, pool));
    simulator.check().unwrap();
}

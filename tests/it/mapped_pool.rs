//! Pools whose memory is mapped: what is free serves in other sizes, on other streams, and without a wait for the device.

use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    Device, DeviceVec, ErrorKind, PoolOptions, PoolResource, PoolStatistics, Result, Stream,
    VirtualResource,
};

const MIB: usize = 1 << 20;

type Pool = PoolResource<VirtualResource>;

fn options(device: &Device) -> PoolOptions<VirtualResource> {
    PoolResource::builder(VirtualResource::new(device).unwrap())
}

fn pool(device: &Device) -> Pool {
    options(device).build().unwrap()
}

fn bytes(stream: &Stream, pool: &Pool, count: usize, value: u8) -> Result<DeviceVec<u8>> {
    let mut vec = DeviceVec::zeroed_in(stream, count, pool.clone())?;
    vec.fill(value)?;
    Ok(vec)
}

/// The vector has this value everywhere, as far as three places tell.
#[track_caller]
fn assert_bytes(vec: &DeviceVec<u8>, value: u8) {
    let all = vec.to_vec().unwrap();
    assert_eq!([all[0], all[all.len() / 2], all[all.len() - 1]], [value; 3]);
}

#[track_caller]
fn assert_clean(device: &Device) {
    if let Some(simulator) = device.simulator() {
        simulator.check().unwrap();
    }
}

/// Each buffer is a little longer than the last one, which goes when its bytes were copied.
fn grow(pool: &Pool, streams: &[Stream], steps: usize) -> PoolStatistics {
    let step = 256 << 10;
    let mut last: Vec<_> =
        streams.iter().map(|stream| bytes(stream, pool, step, 1).unwrap()).collect();
    for count in 2..=steps {
        for (stream, last) in streams.iter().zip(&mut last) {
            let mut next = bytes(stream, pool, count * step, 2).unwrap();
            next.slice_mut(..last.len()).unwrap().copy_from(&last.slice(..).unwrap()).unwrap();
            *last = next;
        }
    }
    for last in &last {
        let all = last.to_vec().unwrap();
        assert_eq!((all[0], all[step - 1], all[step], all[all.len() - 1]), (1, 1, 2, 2));
    }
    pool.statistics()
}

#[test]
fn a_buffer_that_grows_by_little_takes_little() {
    let device = support::device();
    for buffers in [1, 4] {
        let streams: Vec<_> = (0..buffers).map(|_| device.new_stream().unwrap()).collect();
        let pool = pool(&device);
        let steps = 80;
        let reserved = grow(&pool, &streams, steps).peak_reserved;
        // The last buffer of each, and of one the next to last.
        let live = ((buffers + 1) * steps - 1) * (256 << 10);
        let ratio = reserved as f64 / live as f64;
        println!("{buffers} buffers: {reserved} of {live}, {ratio:.3}");
        assert!(ratio < 1.5, "{ratio}");
    }
    assert_clean(&device);
}

#[test]
fn what_one_stream_freed_serves_another_in_another_size() {
    let device = support::device();
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = options(&device).maximum_size(64 * MIB).build().unwrap();
    let small: Vec<_> =
        (0..16).map(|value| bytes(&first, &pool, 4 * MIB, value).unwrap()).collect();
    assert_eq!(pool.statistics().reserved, 64 * MIB);
    // Every other one, so that no two lie beside each other.
    let (kept, freed): (Vec<_>, Vec<_>) =
        small.into_iter().partition(|vec| vec.to_vec().unwrap()[0] % 2 == 0);
    drop(freed);
    let large = bytes(&second, &pool, 32 * MIB, 77).unwrap();
    assert_bytes(&large, 77);
    kept.iter().zip([0, 2, 4]).for_each(|(vec, value)| assert_bytes(vec, value));
    assert_eq!(pool.statistics().reserved, 64 * MIB);
    let error = bytes(&second, &pool, MIB, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    drop(kept);
    assert_bytes(&bytes(&second, &pool, 32 * MIB, 5).unwrap(), 5);
    assert_clean(&device);
}

#[test]
fn a_trim_gives_all_back_that_is_free() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let kept = bytes(&stream, &pool, 3 * MIB, 9).unwrap();
    drop(bytes(&stream, &pool, 100 * MIB, 1).unwrap());
    assert!(pool.trim(0).unwrap() >= 98 * MIB);
    assert!(pool.statistics().reserved <= 6 * MIB, "{}", pool.statistics().reserved);
    assert_bytes(&kept, 9);
    drop(bytes(&stream, &pool, 50 * MIB, 1).unwrap());
    assert_bytes(&kept, 9);
    drop(kept);
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().reserved, 0);
    assert_clean(&device);
}

#[test]
fn a_pool_that_ends_leaves_nothing() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = options(&device).initial_size(8 * MIB).build().unwrap();
    assert_eq!(pool.statistics().reserved, 8 * MIB);
    let vecs = [(&first, 3), (&second, 20), (&first, 40)]
        .map(|(stream, mib)| bytes(stream, &pool, mib * MIB, 1).unwrap());
    drop(pool);
    drop(vecs);
    first.synchronize().unwrap();
    second.synchronize().unwrap();
    assert_eq!((simulator.live_bytes(), simulator.live_blocks()), (0, 0));
    assert_eq!(
        simulator.call_count("cuMemAddressReserve"),
        simulator.call_count("cuMemAddressFree")
    );
    simulator.check().unwrap();
}

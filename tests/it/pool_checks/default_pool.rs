//! The default pool of a simulated device ends with its last vector, which that of a GPU never does. What it waits
//! for then orders the memory that it gives back, and no work of the program's.

use super::fixture::{LENGTH, alias};
use super::kernels::add_one;
use aquifer::sim::{Report, SimConfig, Violation};
use aquifer::{CudaResource, Device, DeviceVec, Stream, mr::default_device_pool};

/// What makes the default pool end, or would if it had not a handle elsewhere.
type End = fn(&Stream, &Stream);

const ENDS: [End; 3] = [
    // A vector at the home of the race.
    |stream, _| drop(DeviceVec::<u32>::zeroed(stream, 64).unwrap()),
    // A pool of two streams: one is made to wait for the other.
    |stream, other| {
        let first = DeviceVec::<u32>::zeroed(stream, 64).unwrap();
        let second = DeviceVec::<u32>::zeroed(other, 64).unwrap();
        drop((first, second));
    },
    // No stream of the pool is left: the host waits for its last event.
    |stream, _| {
        let own = stream.device().new_stream().unwrap();
        own.wait_for(stream).unwrap();
        let vec = DeviceVec::<u32>::zeroed(&own, 64).unwrap();
        drop(own);
        drop(vec);
    },
];

/// The reports of a vector that two streams write, beside a default pool that ends between the two.
fn reports(seed: u64, checks: bool, is_kept: bool, is_ordered: bool, end: End) -> Vec<Report> {
    let config = SimConfig::default().seed(seed);
    let device = Device::simulated(if checks { config } else { config.without_pool_checks() });
    let simulator = device.simulator().unwrap();
    let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let kept = is_kept.then(|| default_device_pool(&device).unwrap());
    let plain = CudaResource::new(&device);
    let mut vec = DeviceVec::from_slice_in(&stream, &[7_u32; LENGTH], plain).unwrap();
    let mut raw = alias(&vec, &other, LENGTH);
    device.synchronize().unwrap();
    add_one(&stream, &mut vec).unwrap();
    end(&stream, &other);
    if is_ordered {
        other.wait_for(&stream).unwrap();
    }
    add_one(&other, &mut *raw).unwrap();
    let frees = simulator.call_count("cuMemFree");
    assert_eq!(frees, u64::from(!is_kept), "the pool gave its memory back");
    stream.wait_for(&other).unwrap();
    drop(raw);
    drop((vec, kept));
    simulator.take_reports()
}

#[test]
fn the_end_of_a_default_pool_hides_no_missing_wait() {
    for seed in 0..10 {
        for (checks, is_kept) in [(true, false), (true, true), (false, false)] {
            for (number, end) in ENDS.into_iter().enumerate() {
                if !checks && number == 1 {
                    // The question of a pool that is not followed orders what it tells.
                    continue;
                }
                let found = reports(seed, checks, is_kept, false, end);
                let kinds: Vec<_> = found.iter().map(Report::kind).collect();
                let place = format!("{number}, seed {seed}, kept: {is_kept}, checks: {checks}");
                assert_eq!(kinds, [Violation::UnorderedAccess], "{place}: {found:?}");
                let none = reports(seed, checks, is_kept, true, end);
                assert!(none.is_empty(), "{place}: {none:?}");
            }
        }
    }
}

/// All that is left of the stream is what it did.
#[test]
fn the_end_of_a_default_pool_hides_no_race_with_a_stream_that_is_gone() {
    for seed in 0..10 {
        for is_ordered in [false, true] {
            let device = Device::simulated(SimConfig::default().seed(seed));
            let simulator = device.simulator().unwrap();
            let [home, gone, other] = [(); 3].map(|()| device.new_stream().unwrap());
            let plain = CudaResource::new(&device);
            let vec = DeviceVec::from_slice_in(&home, &[7_u32; LENGTH], plain).unwrap();
            let [mut raw, mut second] = [&gone, &other].map(|stream| alias(&vec, stream, LENGTH));
            device.synchronize().unwrap();
            add_one(&gone, &mut *raw).unwrap();
            drop(raw);
            if is_ordered {
                other.wait_for(&gone).unwrap();
            }
            let last = DeviceVec::<u32>::zeroed(&gone, 64).unwrap();
            drop(gone);
            drop(last);
            assert_eq!(simulator.live_blocks(), 1, "the pool has ended");
            add_one(&other, &mut *second).unwrap();
            home.wait_for(&other).unwrap();
            drop(second);
            let found = simulator.take_reports();
            let kinds: Vec<_> = found.iter().map(Report::kind).collect();
            let wanted = if is_ordered { vec![] } else { vec![Violation::UnorderedAccess] };
            assert_eq!(kinds, wanted, "seed {seed}: {found:?}");
            device.synchronize().unwrap();
            drop(vec);
        }
    }
}

/// Uses at home, elsewhere and by streams that are gone, each with its order.
#[test]
fn the_end_of_a_default_pool_is_no_free_of_memory_in_use() {
    for seed in 0..30 {
        let device = Device::simulated(SimConfig::default().seed(seed));
        let simulator = device.simulator().unwrap();
        let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
        for round in 0..3 {
            let mut vec = DeviceVec::from_slice(&stream, &[7_u32; LENGTH]).unwrap();
            add_one(&other, &mut vec).unwrap();
            if round > 0 {
                let gone = device.new_stream().unwrap();
                add_one(&gone, &mut vec).unwrap();
            }
            let mut more = DeviceVec::<u32>::zeroed(&other, LENGTH).unwrap();
            more.copy_from(&vec).unwrap();
            if round == 1 {
                drop(vec);
                drop(more);
            } else {
                drop(more);
                drop(vec);
            }
            assert_eq!(simulator.live_blocks(), 0);
        }
        device.synchronize().unwrap();
        simulator.check().unwrap();
    }
}

/// A pool of the program's own waits on a GPU, too, when it ends.
#[test]
fn the_end_of_a_pool_of_ones_own_orders_what_it_waits_for() {
    let device = Device::simulated(SimConfig::default());
    let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = aquifer::PoolResource::new(CudaResource::new(&device)).unwrap();
    let plain = CudaResource::new(&device);
    let mut vec = DeviceVec::from_slice_in(&stream, &[7_u32; LENGTH], plain).unwrap();
    let mut raw = alias(&vec, &other, LENGTH);
    device.synchronize().unwrap();
    add_one(&stream, &mut vec).unwrap();
    drop(DeviceVec::<u32>::zeroed_in(&stream, 64, pool).unwrap());
    add_one(&other, &mut *raw).unwrap();
    device.synchronize().unwrap();
    device.simulator().unwrap().check().unwrap();
}

//! The classes of bugs, through every kind of pool.

use super::fixture::{Fixture, LENGTH, alias, each, each_on};
use super::kernels::{add_one, kind};
use aquifer::sim::{SimConfig, Violation};
use aquifer::{DeviceVec, ErrorKind, PoolResource};
use std::sync::Arc;

const BYTES: u64 = (LENGTH * size_of::<u32>()) as u64;

#[test]
fn a_use_after_the_free_on_the_same_stream() {
    each(|fixture| {
        let vec = fixture.written();
        let raw = alias(&vec, &fixture.stream, LENGTH);
        assert_eq!(raw.to_vec().unwrap(), [7; LENGTH]);
        drop(vec);
        fixture.clean();
        assert_eq!(kind(raw.to_vec()), ErrorKind::Simulation);
        let report = fixture.saw(Violation::UseAfterFree);
        let stream = fixture.stream.id();
        assert_eq!(report.operation(), format!("cuMemcpyDtoHAsync on stream {stream}"));
        assert_eq!(
            report.conflicts_with().unwrap(),
            format!("a free to a pool on stream {stream}")
        );
        assert_eq!(report.range(), (raw.as_device_ptr(), BYTES));
    });
}

#[test]
fn a_use_after_the_free_on_another_stream() {
    for is_ordered in [false, true] {
        each(|fixture| {
            let vec = fixture.written();
            let mut raw = alias(&vec, &fixture.other, LENGTH);
            drop(vec);
            if is_ordered {
                fixture.other.wait_for(&fixture.stream).unwrap();
            }
            raw.fill(1).unwrap();
            let report = fixture.saw(Violation::UseAfterFree);
            let [home, other] = [&fixture.stream, &fixture.other].map(|stream| stream.id());
            assert_eq!(report.operation(), format!("cuMemsetAsync on stream {other}"));
            assert_eq!(
                report.conflicts_with().unwrap(),
                format!("a free to a pool on stream {home}")
            );
        });
    }
}

#[test]
fn a_free_before_the_end_of_a_use_on_another_stream() {
    for waits in [false, true] {
        each(|fixture| {
            let vec = fixture.written();
            let mut raw = alias(&vec, &fixture.other, LENGTH);
            fixture.other.wait_for(&fixture.stream).unwrap();
            raw.fill(1).unwrap();
            if waits {
                fixture.stream.wait_for(&fixture.other).unwrap();
            }
            drop(vec);
            if waits {
                return fixture.clean();
            }
            let report = fixture.saw(Violation::FreeWhileInUse);
            let [home, other] = [&fixture.stream, &fixture.other].map(|stream| stream.id());
            assert_eq!(report.operation(), format!("a free to a pool on stream {home}"));
            assert_eq!(
                report.conflicts_with().unwrap(),
                format!("cuMemsetAsync on stream {other}")
            );
            assert_eq!(report.range(), (raw.as_device_ptr(), BYTES));
        });
    }
}

/// Elements of the block that a vector of so many gets.
fn room(fixture: &Fixture, length: usize) -> usize {
    (fixture.made.room)(length * size_of::<u32>()) / size_of::<u32>()
}

#[test]
fn an_overrun_by_one_element() {
    // The second one fills whole units, and its neighbours follow at once.
    for length in [LENGTH, 1024] {
        each(|fixture| {
            let new = || {
                DeviceVec::from_slice_in(&fixture.stream, &vec![7; length], fixture.resource())
                    .unwrap()
            };
            let vecs: [DeviceVec<u32>; 3] = [(); 3].map(|()| new());
            let room = room(fixture, length);
            for vec in &vecs {
                let mut whole = alias(vec, &fixture.stream, length);
                whole.to_vec().unwrap();
                whole.fill(1).unwrap();
                add_one(&fixture.stream, &mut *whole).unwrap();
                fixture.clean();
                let mut over = alias(vec, &fixture.stream, room + 1);
                for access in 0..3 {
                    let error = match access {
                        0 => kind(over.to_vec()),
                        1 => kind(over.fill(1)),
                        _ => kind(add_one(&fixture.stream, &mut *over)),
                    };
                    assert_eq!(error, ErrorKind::Simulation);
                    let report = fixture.saw(Violation::UnmappedAddress);
                    let by = format!("an allocation from a pool on stream {}", fixture.stream.id());
                    // Chunks of a fixed size were handed out to the first vector there.
                    assert_eq!(report.conflicts_with().unwrap(), by);
                    let note = format!("4 bytes past the end of a block of {} bytes", room * 4);
                    assert!(report.to_string().contains(&note), "{}: {report}", fixture.name);
                }
            }
        });
    }
}

/// The simulated device says so of itself: memory is found by its address alone.
#[test]
fn an_access_inside_of_a_live_neighbour_is_the_neighbours() {
    each(|fixture| {
        let mut vecs = [fixture.written(), fixture.written()];
        vecs.sort_by_key(|vec| vec.as_device_ptr());
        let [first, mut second] = vecs;
        let distance = (second.as_device_ptr() - first.as_device_ptr()) as usize / 4;
        let mut beyond = alias(&first, &fixture.stream, distance + LENGTH);
        beyond.slice_mut(distance..).unwrap().fill(9).unwrap();
        fixture.clean();
        assert_eq!(second.to_vec().unwrap(), [9; LENGTH], "{}", fixture.name);
        assert_eq!(kind(beyond.fill(9)), ErrorKind::Simulation);
        fixture.saw(Violation::UnmappedAddress);

        // In no order with the neighbour's own uses it is reported as one of them.
        second.fill(7).unwrap();
        let mut elsewhere = alias(&first, &fixture.other, distance + LENGTH);
        elsewhere.slice_mut(distance..).unwrap().fill(8).unwrap();
        let report = fixture.saw(Violation::UnorderedAccess);
        assert_eq!(report.range(), (second.as_device_ptr(), BYTES));
        fixture.other.synchronize().unwrap();
    });
}

#[test]
fn a_read_of_recycled_bytes_that_nothing_wrote() {
    each(|fixture| {
        let vec = fixture.written();
        let address = vec.as_device_ptr();
        drop(vec);
        let mut vec = fixture.unwritten(&fixture.stream);
        assert_eq!(vec.as_device_ptr(), address, "{}: the same memory", fixture.name);
        if fixture.made.is_host_visible {
            vec.to_vec().unwrap();
            return;
        }
        assert_eq!(kind(vec.to_vec()), ErrorKind::Simulation);
        let report = fixture.saw(Violation::UninitializedRead);
        assert_eq!(report.range(), (address, BYTES));
        let by = format!("an allocation from a pool on stream {}", fixture.stream.id());
        assert_eq!(report.conflicts_with().unwrap(), by);
        alias(&vec, &fixture.stream, LENGTH / 2).fill(1).unwrap();
        assert_eq!(kind(vec.to_vec()), ErrorKind::Simulation);
        let report = fixture.saw(Violation::UninitializedRead);
        assert_eq!(report.range(), (address + BYTES / 2, BYTES / 2));
        vec.fill(2).unwrap();
        assert_eq!(vec.to_vec().unwrap(), [2; LENGTH]);
    });
}

#[test]
fn a_read_of_bytes_that_another_stream_left() {
    each(|fixture| {
        let vecs = [(); 4].map(|()| fixture.written());
        fixture.stream.synchronize().unwrap();
        drop(vecs);
        let mut vec = fixture.unwritten(&fixture.other);
        if !fixture.made.is_host_visible {
            assert_eq!(kind(vec.to_vec()), ErrorKind::Simulation);
            fixture.saw(Violation::UninitializedRead);
        }
        vec.fill(2).unwrap();
        assert_eq!(vec.to_vec().unwrap(), [2; LENGTH]);
    });
}

#[test]
fn nothing_of_it_is_found_without_checks_of_pools() {
    each_on(SimConfig::default().without_pool_checks(), |fixture| {
        let vec = fixture.written();
        let length = (vec.capacity() + 1).max(room(fixture, LENGTH) + 1);
        let mut raw = alias(&vec, &fixture.stream, LENGTH);
        alias(&vec, &fixture.stream, length).fill(1).unwrap();
        drop(vec);
        raw.fill(1).unwrap();
        raw.to_vec().unwrap();
        fixture.unwritten(&fixture.stream).to_vec().unwrap();
        fixture.clean();
    });
}

/// What a pool does is what it does without checks, and so is what the driver is asked.
#[test]
fn a_pool_that_is_followed_makes_the_same_calls() {
    let run = |config: SimConfig| {
        let device = aquifer::Device::simulated(config);
        let streams = [(); 3].map(|()| device.new_stream().unwrap());
        let lower = PoolResource::new(aquifer::CudaResource::new(&device)).unwrap();
        let pool = PoolResource::builder(lower.clone()).growth_step(1 << 20).build().unwrap();
        let mut kept = Vec::new();
        for round in 0..200 {
            let stream = &streams[round % 3];
            let resource = Arc::new(pool.clone());
            let length = [100, 1000, 20_000][round % 7 % 3];
            kept.push(DeviceVec::<u32>::zeroed_in(stream, length, resource).unwrap());
            if round % 5 == 0 {
                kept.drain(..kept.len() / 2);
            }
            if round % 31 == 0 {
                stream.synchronize().unwrap();
            }
        }
        kept.clear();
        pool.wait_and_trim(0).unwrap();
        let simulator = device.simulator().unwrap();
        simulator.check().unwrap();
        (simulator.calls(), pool.statistics(), lower.statistics())
    };
    let config = SimConfig::default().seed(3);
    assert_eq!(run(config.clone()), run(config.without_pool_checks()));
}

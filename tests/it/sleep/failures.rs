//! What an error of a sleep or a wake leaves.

use super::{MIB, Pool, asleep, assert_numbers, keeps, numbers, pool};
use crate::support;
use aquifer::mr::{CudaResource, Keep, SleepOptions};
use aquifer::pinned::HostBuffer;
use aquifer::sim::SimConfig;
use aquifer::{DeviceVec, ErrorKind, Stream};
use std::ptr::NonNull;

#[test]
fn a_card_without_room_leaves_it_asleep_and_says_what_is_missing() {
    let config = SimConfig::default().capacity(64 << 20);
    let (device, simulator) = support::simulated(config);
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let vec = numbers(&stream, &pool, 8 << 20, 4);
    // SAFETY: this test has no other pointers.
    let bytes = unsafe { asleep(&pool, Keep::PageLocked) };
    let taken = DeviceVec::<u8>::zeroed_in(&stream, 40 * MIB, CudaResource::new(&device)).unwrap();
    for _ in 0..2 {
        let error = pool.wake().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.to_string().contains("missing"), "{error}");
        assert!(pool.is_asleep() && pool.statistics().asleep == bytes);
        assert_eq!(device.memory_info().unwrap().free, 24 << 20);
        assert_eq!(vec.get(0).unwrap_err().kind(), ErrorKind::Asleep);
    }
    drop(taken);
    stream.synchronize().unwrap();
    pool.wake().unwrap();
    assert_numbers(&vec, 4);
    simulator.check().unwrap();
}

#[test]
fn every_call_that_fails_leaves_it_as_it_was() {
    for keep in [0, 1, 2] {
        for call in [
            "cuMemcpyDtoHAsync",
            "cuMemUnmap",
            "cuMemCreate",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemcpyHtoDAsync",
            "cuMemHostAlloc",
            "cuStreamCreate",
            "cuStreamCreateWithPriority",
            "cuStreamCreateWithFlags",
        ] {
            for nth in 1..4 {
                let (device, simulator) = support::simulated(SimConfig::default());
                let stream = device.new_stream().unwrap();
                let pool = pool(&device);
                let vecs = [(900_000, 4), (2_000_000, 70), (5, 3)]
                    .map(|(count, first)| (numbers(&stream, &pool, count, first), first));
                let keep = keeps()[keep].1;
                let mut failed = simulator.fail_call(call, nth, 2).is_ok();
                // SAFETY: this test has no other pointers.
                if let Err(error) = unsafe { pool.sleep(keep()) } {
                    assert!(failed && !pool.is_asleep(), "{call}: {error}");
                    vecs.iter().for_each(|(vec, first)| assert_numbers(vec, *first));
                    // SAFETY: as above.
                    unsafe { asleep(&pool, keep()) };
                    failed = false;
                }
                if let Err(error) = pool.wake() {
                    assert!(failed && pool.is_asleep(), "{call}: {error}");
                    pool.wake().unwrap();
                }
                vecs.iter().for_each(|(vec, first)| assert_numbers(vec, *first));
                for _ in 0..4 {
                    // The failure is past by then, and not one of the pool's end.
                    // SAFETY: as above.
                    if unsafe { pool.sleep(keep()) }.is_ok() {
                        let _ = pool.wake().or_else(|_| pool.wake()).unwrap();
                    }
                }
                vecs.iter().for_each(|(vec, first)| assert_numbers(vec, *first));
                drop(vecs);
                stream.synchronize().unwrap();
                drop(pool);
                simulator.check().unwrap();
                assert_eq!((call, simulator.live_bytes()), (call, 0));
            }
        }
    }
}

#[test]
fn a_buffer_or_a_folder_that_cannot_hold_it_loses_nothing() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let vec = numbers(&stream, &pool, 1_000_000, 4);
    for (keep, kind) in [
        (Keep::Buffer(Box::new(vec![0_u8; 1000])), ErrorKind::InvalidArgument),
        (Keep::File("/proc/nowhere".into()), ErrorKind::Io),
    ] {
        // SAFETY: this test has no other pointers.
        let error = unsafe { pool.sleep(keep) }.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(!pool.is_asleep());
        assert_numbers(&vec, 4);
    }
}

/// Of one reservation with a hole, a part cannot be unmapped. What was unmapped comes back.
#[test]
fn a_sleep_that_fails_in_part_brings_all_of_it_back() {
    for nth in 1..4 {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let pool = pool(&device);
        let first = numbers(&stream, &pool, 1_000_000, 4);
        let holes: Vec<_> = (0..3)
            .map(|from| {
                let hole = numbers(&stream, &pool, 1_000_000, 9);
                (hole, numbers(&stream, &pool, 1_000_000, from))
            })
            .collect();
        let kept: Vec<_> = holes.into_iter().map(|(_, kept)| kept).collect();
        stream.synchronize().unwrap();
        pool.trim(0).unwrap();
        simulator.fail_call("cuMemUnmap", nth, 999).unwrap();
        // SAFETY: this test has no other pointers.
        let slept = unsafe { pool.sleep(Keep::PageLocked) };
        if slept.is_ok() {
            pool.wake().unwrap();
        }
        assert!(!pool.is_asleep(), "{nth}: {slept:?}");
        assert_numbers(&first, 4);
        kept.iter().zip(0..).for_each(|(vec, from)| assert_numbers(vec, from));
        let device_sees = simulator.live_bytes();
        assert_eq!(device_sees, pool.statistics().reserved as u64, "{nth}");
        drop((first, kept));
        stream.synchronize().unwrap();
        // SAFETY: as above; the failure is past by then.
        let _ = unsafe { pool.sleep(Keep::Nothing) };
        let _ = pool.wake();
        drop(pool);
        simulator.check().unwrap();
        assert_eq!((nth, simulator.live_bytes()), (nth, 0));
    }
}

/// A buffer whose address is asked for inside of a sleep, and that uses the pool then.
struct Nested(Vec<u8>, Pool, Stream);

// SAFETY: the vector's own bytes.
unsafe impl HostBuffer for Nested {
    type Item = u8;

    fn parts(&mut self) -> (NonNull<u8>, usize) {
        let Self(bytes, pool, stream) = self;
        // SAFETY: this test has no other pointers.
        let slept = unsafe { pool.sleep(Keep::Nothing) }.map(drop);
        let allocated = DeviceVec::<u8>::zeroed_in(stream, 10, pool.clone()).map(drop);
        for result in [slept, pool.wake().map(drop), allocated] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Asleep);
            assert!(error.to_string().contains("in a callback of its own sleep"), "{error}");
        }
        (NonNull::from(&mut bytes[..]).cast(), bytes.len())
    }
}

#[test]
fn a_callback_of_the_sleep_does_not_wait_for_it() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let vec = numbers(&stream, &pool, 1_000_000, 4);
    let buffer = Nested(vec![0; 16 * MIB], pool.clone(), stream.clone());
    let options = SleepOptions::new(Keep::Buffer(Box::new(buffer))).wakes_on_allocation(true);
    // SAFETY: this test has no other pointers.
    unsafe { pool.sleep(options) }.unwrap();
    pool.wake().unwrap();
    assert_numbers(&vec, 4);
}

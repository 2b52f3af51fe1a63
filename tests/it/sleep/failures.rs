//! What an error of a sleep or a wake leaves.

use super::{MIB, Pool, asleep, assert_numbers, keeps, numbers, pool};
use crate::log::Log;
use crate::support;
use aquifer::mr::{CudaResource, Keep, SleepOptions};
use aquifer::pinned::{HostBuffer, HostRead};
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{Device, DeviceVec, ErrorKind, Stream};
use std::ptr::NonNull;
use tracing::Level;

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
fn a_wake_takes_what_other_pools_have_free() {
    let (device, simulator) = support::simulated(SimConfig::default().capacity(64 << 20));
    let stream = device.new_stream().unwrap();
    let (pool, other) = (pool(&device), pool(&device));
    let vec = numbers(&stream, &pool, 8 << 20, 4);
    // SAFETY: this test has no other pointers.
    unsafe { asleep(&pool, Keep::PageLocked) };
    drop(DeviceVec::<u8>::zeroed_in(&stream, 40 * MIB, other.clone()).unwrap());
    stream.synchronize().unwrap();
    assert!(other.statistics().reserved >= 40 * MIB);
    pool.wake().unwrap();
    assert_numbers(&vec, 4);
    assert!(other.statistics().reserved < 40 * MIB);
    simulator.check().unwrap();
}

/// The driver's calls of a sleep and a wake.
const CALLS: [&str; 14] = [
    "cuMemcpyDtoHAsync",
    "cuMemUnmap",
    "cuMemCreate",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemcpyHtoDAsync",
    "cuMemHostAlloc",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuCtxRecordEvent",
];

#[test]
fn every_call_that_fails_leaves_it_as_it_was() {
    for call in CALLS {
        let mut calls = 0;
        for (keep, nth) in (0..3).flat_map(|keep| (1..4).map(move |nth| (keep, nth))) {
            let (made, log) = Log::of(|| one_call_fails(call, nth, keeps()[keep].1));
            calls += made.calls;
            // A handle that the driver does not take back is told of, as everywhere.
            let is_told =
                log.count(Level::ERROR, "leaked device memory: it could not be freed") > 0;
            assert_eq!((call, made.leaked > 0), (call, is_told));
            assert!(made.leaked == 0 || call == "cuMemRelease", "{call}: {}", made.leaked);
        }
        assert!(calls > 0, "{call} is not made");
    }
}

/// What came of the calls that were to fail.
struct Made {
    calls: u64,
    leaked: usize,
}

fn one_call_fails(call: &str, nth: u64, keep: fn() -> Keep) -> Made {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let vecs = [(600_000, 4), (700_000, 70), (5, 3)]
        .map(|(count, first)| (numbers(&stream, &pool, count, first), first));
    let assert_contents = || vecs.iter().for_each(|(vec, first)| assert_numbers(vec, *first));
    let before = simulator.call_count(call);
    simulator.fail_call(call, nth, 2).unwrap();
    // SAFETY: this test has no other pointers.
    if let Err(error) = unsafe { pool.sleep(keep()) } {
        assert!(!pool.is_asleep(), "{call}: {error}");
        assert_contents();
        // SAFETY: as above.
        unsafe { asleep(&pool, keep()) };
    }
    let bytes = pool.statistics().asleep;
    if let Err(error) = pool.wake() {
        assert!(pool.is_asleep(), "{call}: {error}");
        assert_eq!(pool.statistics().asleep, bytes, "{call}: {error}");
        pool.wake().unwrap();
    }
    let calls = simulator.call_count(call) - before;
    assert_contents();
    for _ in 0..4 {
        // The failure is past by then, and not one of the pool's end.
        // SAFETY: as above.
        if unsafe { pool.sleep(keep()) }.is_ok() {
            let _ = pool.wake().or_else(|_| pool.wake()).unwrap();
        }
    }
    assert_contents();
    drop(vecs);
    stream.synchronize().unwrap();
    drop(pool);
    simulator.check().unwrap();
    Made { calls, leaked: simulator.live_bytes() }
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

/// A pool whose one reservation has holes, so that a sleep unmaps it in some parts.
struct WithHoles {
    device: Device,
    simulator: Simulator,
    stream: Stream,
    pool: Pool,
    kept: Vec<DeviceVec<u32>>,
}

impl WithHoles {
    fn new() -> Self {
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let pool = pool(&device);
        let pairs: Vec<_> = (0..4)
            .map(|from| {
                let kept = numbers(&stream, &pool, 1 << 19, from);
                (kept, numbers(&stream, &pool, 1 << 19, 9))
            })
            .collect();
        let kept = pairs.into_iter().map(|(kept, _)| kept).collect();
        stream.synchronize().unwrap();
        pool.trim(0).unwrap();
        Self { device, simulator, stream, pool, kept }
    }

    fn assert_contents(&self) {
        self.kept.iter().zip(0..).for_each(|(vec, from)| assert_numbers(vec, from));
        assert_eq!(self.simulator.live_bytes(), self.pool.statistics().reserved);
        let info = self.device.memory_info().unwrap();
        assert_eq!(info.total - info.free, self.simulator.live_bytes());
    }

    fn fail(&self, call: &str, nths: impl IntoIterator<Item = u64>) {
        nths.into_iter().for_each(|nth| self.simulator.fail_call(call, nth, 999).unwrap());
    }

    /// Drops some vectors and the pool. Nothing of it is left.
    fn end(self) {
        let Self { simulator, stream, pool, kept, device } = self;
        drop(kept);
        stream.synchronize().unwrap();
        drop(pool);
        simulator.check().unwrap();
        assert_eq!(simulator.live_bytes(), 0);
        let info = device.memory_info().unwrap();
        assert_eq!(info.free, info.total);
    }
}

/// Of one reservation with holes, a part cannot be unmapped. What was unmapped comes back.
#[test]
fn a_sleep_that_fails_in_part_brings_all_of_it_back() {
    for nth in 1..5 {
        let holes = WithHoles::new();
        holes.fail("cuMemUnmap", [nth]);
        // SAFETY: this test has no other pointers.
        let error = unsafe { holes.pool.sleep(Keep::PageLocked) }.unwrap_err();
        assert!(!holes.pool.is_asleep(), "{nth}: {error}");
        holes.assert_contents();
        holes.end();
    }
}

/// The second failure is of the bringing back. Then it sleeps in part, and nothing is lost: it can be woken, or end.
#[test]
fn a_sleep_that_fails_twice_can_be_woken() {
    for (call, nths) in [
        ("cuMemCreate", vec![1]),
        ("cuMemCreate", vec![3]),
        ("cuMemMap", vec![2]),
        ("cuMemSetAccess", vec![1]),
        ("cuMemSetAccess", vec![3]),
        ("cuMemcpyHtoDAsync", vec![3]),
        ("cuStreamSynchronize", vec![1]),
        ("cuStreamSynchronize", vec![1, 2]),
    ] {
        for ends_asleep in [false, true] {
            let mut holes = WithHoles::new();
            holes.fail("cuMemUnmap", [2]);
            holes.fail(call, nths.clone());
            // SAFETY: this test has no other pointers.
            let error = unsafe { holes.pool.sleep(Keep::PageLocked) }.unwrap_err();
            assert!(holes.pool.is_asleep(), "{call}: {error}");
            let text = error.to_string();
            assert!(text.contains("fell asleep in part") && text.contains("call wake"), "{error}");
            assert_eq!(holes.kept[0].get(0).unwrap_err().kind(), ErrorKind::Asleep);
            let statistics = holes.pool.statistics();
            let on_device = statistics.reserved - statistics.asleep;
            assert_eq!((call, on_device), (call, holes.simulator.live_bytes()));
            if ends_asleep {
                holes.kept.truncate(2);
                holes.end();
                continue;
            }
            holes.pool.wake().unwrap();
            holes.assert_contents();
            // SAFETY: as above.
            unsafe { asleep(&holes.pool, Keep::PageLocked) };
            assert_eq!(holes.simulator.live_bytes(), 0);
            holes.pool.wake().unwrap();
            holes.assert_contents();
            holes.end();
        }
    }
}

/// A wake that fails leaves memory mapped, if that cannot be undone, or copies to it may run for all that is known. The
/// next one takes it as it is.
#[test]
fn a_wake_that_cannot_be_undone_goes_on_with_what_is_mapped() {
    let left_mapped: [(&str, &[u64], &[u64]); 6] = [
        ("cuMemSetAccess", &[1], &[1]),
        ("cuMemSetAccess", &[3], &[1, 2, 3]),
        ("cuMemMap", &[3], &[2]),
        ("cuMemcpyHtoDAsync", &[3], &[1, 3]),
        ("cuStreamSynchronize", &[1], &[3]),
        // The copies may run still: nothing is unmapped.
        ("cuStreamSynchronize", &[1, 2], &[]),
    ];
    for (call, nths, unmaps) in left_mapped {
        for (fails_again, drops, ends_asleep) in [
            (false, false, false),
            (true, false, false),
            (false, true, false),
            (false, true, true),
            (true, false, true),
        ] {
            let what = format!("{call} {nths:?} {unmaps:?}, {fails_again}, {drops}, {ends_asleep}");
            let mut holes = WithHoles::new();
            // SAFETY: this test has no other pointers.
            let bytes = unsafe { asleep(&holes.pool, Keep::PageLocked) };
            holes.fail(call, nths.iter().copied());
            holes.fail("cuMemUnmap", unmaps.iter().copied());
            let error = holes.pool.wake().unwrap_err();
            let text = error.to_string();
            assert!(text.contains("stay mapped for its next wake"), "{what}: {error}");
            assert!(text.contains("call wake when"), "{what}: {error}");
            let assert_asleep = |holes: &WithHoles| {
                assert!(holes.pool.is_asleep());
                assert_eq!(holes.kept[0].get(0).unwrap_err().kind(), ErrorKind::Asleep);
                let left = bytes - holes.pool.statistics().asleep;
                assert!(left > 0, "{what}");
                assert_eq!((&what, left), (&what, holes.simulator.live_bytes()));
            };
            assert_asleep(&holes);
            if fails_again {
                holes.fail("cuMemSetAccess", [1]);
                holes.pool.wake().unwrap_err();
                assert_asleep(&holes);
            }
            if drops {
                // One that is mapped by now, perhaps, and one that is not.
                drop((holes.kept.pop(), holes.kept.pop()));
            }
            if !ends_asleep {
                holes.pool.wake().unwrap();
                holes.assert_contents();
                // SAFETY: as above.
                unsafe { asleep(&holes.pool, Keep::PageLocked) };
                assert_eq!(holes.simulator.live_bytes(), 0);
                holes.pool.wake().unwrap();
                holes.assert_contents();
            }
            holes.end();
        }
    }
}

/// A buffer whose address is asked for inside of a sleep, and that uses the pool then.
struct Nested(Vec<u8>, Pool, Stream);

// SAFETY: the vector's own bytes.
unsafe impl HostRead for Nested {
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

// SAFETY: and writable.
unsafe impl HostBuffer for Nested {}

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

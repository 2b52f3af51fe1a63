//! A device that is lost while a pool sleeps, falls asleep or wakes.

use super::{MIB, Pool, assert_numbers, keeps, numbers, pool};
use crate::device_lost::{End, end, ends};
use crate::support;
use aquifer::mr::Keep;
use aquifer::pinned::{HostBuffer, HostRead};
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{Device, DeviceVec, ErrorKind, Stream};
use aquifer_core::resource::asleep::any_asleep;
use std::ptr::NonNull;

/// A pool with memory of two streams, which none of them has waited for.
struct Used {
    device: Device,
    simulator: Simulator,
    streams: [Stream; 2],
    pool: Pool,
    vecs: Vec<DeviceVec<u32>>,
}

impl Used {
    fn new() -> Self {
        let (device, simulator) = support::simulated(SimConfig::default());
        let streams = [(); 2].map(|()| device.new_stream().unwrap());
        let pool = pool(&device);
        let [stream, other] = &streams;
        let vecs = vec![numbers(stream, &pool, 300_000, 4), numbers(other, &pool, 700_000, 5)];
        drop((numbers(stream, &pool, 800_000, 4), numbers(other, &pool, 5_000, 4)));
        Self { device, simulator, streams, pool, vecs }
    }

    /// Drops all, and has a pool of another device sleep and wake.
    fn end(self, what: &str, vecs_first: bool) {
        let Self { device, simulator, streams, pool, vecs } = self;
        let unmapped = simulator.call_count("cuMemUnmap");
        for vec in &vecs {
            vec.to_vec().unwrap_err();
        }
        match vecs_first {
            true => drop((vecs, pool, streams, device)),
            false => drop((device, streams, pool, vecs)),
        }
        assert_eq!((what, simulator.call_count("cuMemUnmap")), (what, unmapped));
        assert!(!any_asleep(), "{what}: a use looks at the list still");
        let (device, simulator) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let pool = self::pool(&device);
        let vec = numbers(&stream, &pool, 700_000, 4);
        // SAFETY: this test has no other pointers.
        unsafe { super::asleep(&pool, Keep::PageLocked) };
        assert!(any_asleep());
        pool.wake().unwrap();
        assert!(!any_asleep());
        assert_numbers(&vec, 4);
        drop((vec, pool));
        simulator.check().unwrap();
    }
}

fn all_keeps() -> Vec<super::Way> {
    let mut all = keeps();
    all.push(("nothing", || Keep::Nothing));
    all
}

#[test]
fn a_pool_whose_device_is_lost_while_it_sleeps_is_off_the_list() {
    let name = "a_pool_whose_device_is_lost_while_it_sleeps_is_off_the_list";
    if !support::in_own_process(module_path!(), name) {
        return;
    }
    for how in ends() {
        for (number, (keep, new)) in all_keeps().into_iter().enumerate() {
            for vecs_first in [false, true] {
                let used = Used::new();
                // SAFETY: this test has no other pointers.
                unsafe { super::asleep(&used.pool, new()) };
                end(&used.device, how);
                if number % 2 == 0 {
                    let error = used.pool.wake().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ContextLost, "{keep}: {error}");
                    assert!(used.pool.is_asleep());
                }
                used.end(&format!("{how:?}, {keep}, {vecs_first}"), vecs_first);
            }
        }
    }
}

#[test]
fn a_device_that_is_lost_in_the_midst_of_it_leaves_no_entry() {
    let name = "a_device_that_is_lost_in_the_midst_of_it_leaves_no_entry";
    if !support::in_own_process(module_path!(), name) {
        return;
    }
    let calls = [
        // Of the sleep, and of the wake.
        (true, "cuMemcpyDtoHAsync"),
        (true, "cuEventSynchronize"),
        (true, "cuMemUnmap"),
        (true, "cuMemRelease"),
        (false, "cuMemCreate"),
        (false, "cuMemMap"),
        (false, "cuMemSetAccess"),
        (false, "cuMemcpyHtoDAsync"),
        (false, "cuMemsetAsync"),
        (false, "cuStreamSynchronize"),
    ];
    for ((of_sleep, call), (keep, new)) in
        calls.iter().flat_map(|call| all_keeps().into_iter().map(move |keep| (*call, keep)))
    {
        // An illegal address, and a driver that has ended.
        for (vecs_first, code) in [(false, 700), (true, 4)] {
            let what = format!("{call} {code}, {keep}");
            let used = Used::new();
            let before = used.simulator.call_count(call);
            let fail = || used.simulator.fail_call(call, 1, code).unwrap();
            if of_sleep {
                fail();
            }
            // SAFETY: this test has no other pointers.
            let slept = unsafe { used.pool.sleep(new()) };
            if of_sleep && used.simulator.call_count(call) == before {
                // This one needs no such call.
                continue;
            }
            if !of_sleep {
                slept.unwrap();
                fail();
                let woken = used.pool.wake();
                if used.simulator.call_count(call) == before {
                    continue;
                }
                let error = woken.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ContextLost, "{what}: {error}");
                assert!(!error.to_string().contains("next wake"), "{what}: {error}");
            }
            used.end(&what, vecs_first);
        }
    }
}

/// A buffer inside of whose sleep the device is lost.
struct Losing(Vec<u8>, Device, End);

// SAFETY: the vector's own bytes.
unsafe impl HostRead for Losing {
    type Item = u8;

    fn parts(&mut self) -> (NonNull<u8>, usize) {
        end(&self.1, self.2);
        (NonNull::from(&mut self.0[..]).cast(), self.0.len())
    }
}

// SAFETY: and writable.
unsafe impl HostBuffer for Losing {}

#[test]
fn a_device_that_is_lost_before_the_copies_leaves_no_entry() {
    let name = "a_device_that_is_lost_before_the_copies_leaves_no_entry";
    if !support::in_own_process(module_path!(), name) {
        return;
    }
    for how in ends() {
        let used = Used::new();
        let buffer = Losing(vec![0; 16 * MIB], used.device.clone(), how);
        // SAFETY: this test has no other pointers.
        let error = unsafe { used.pool.sleep(Keep::Buffer(Box::new(buffer))) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ContextLost, "{how:?}: {error}");
        assert!(!used.pool.is_asleep());
        used.end(&format!("{how:?}"), true);
    }
}

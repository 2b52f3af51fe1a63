//! The order of the calls of a sleep and a wake. A GPU copies while the host goes on, so what is unmapped or freed has to
//! wait; the simulated device copies at once, and shows none of that.

use super::child::{Installed, StandIn, alone, value};
use aquifer::mr::{Keep, VirtualResource};
use aquifer::{Device, DeviceVec, PoolResource, Stream};
use std::collections::HashMap;
use std::ops::Range;

const MIB: usize = 1 << 20;

type Pool = PoolResource<VirtualResource>;

/// A pool with memory in two reservations, which are a group each, with a hole in one of them.
struct Held {
    pool: Pool,
    vecs: Vec<DeviceVec<u8>>,
    /// The handles by address.
    mapped: HashMap<u64, String>,
    _streams: [Stream; 2],
}

impl Held {
    fn new(driver: &StandIn) -> Self {
        let device = Device::open(0).unwrap();
        let streams = [(); 2].map(|()| device.new_stream().unwrap());
        driver.take();
        let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
        let new = |stream, mib: usize, value| {
            let mut vec = DeviceVec::<u8>::zeroed_in(stream, mib * MIB, pool.clone()).unwrap();
            vec.fill(value).unwrap();
            vec
        };
        let [first, second] = &streams;
        let (kept, hole, last) = (new(first, 4, 1), new(first, 2, 2), new(first, 6, 3));
        let vecs = vec![kept, last, new(second, 8, 4)];
        drop(hole);
        first.synchronize().unwrap();
        pool.trim(0).unwrap();
        let mapped = Call::all(driver.take())
            .iter()
            .filter(|call| call.is("cuMemMap"))
            .map(|call| (call.number("address"), value(&call.line, "handle").to_owned()))
            .collect();
        Self { pool, vecs, mapped, _streams: streams }
    }

    fn sleep(&self, keep: Keep) -> aquifer::Result<()> {
        // SAFETY: this test has no other pointers.
        unsafe { self.pool.sleep(keep) }.map(drop)
    }

    fn assert_contents(&self) {
        for (vec, value) in self.vecs.iter().zip([1, 3, 4]) {
            assert!(vec.to_vec().unwrap().iter().all(|byte| *byte == value));
        }
    }
}

/// A call, with the mode of the thread before it.
struct Call {
    line: String,
    is_relaxed: bool,
}

impl Call {
    fn all(lines: Vec<String>) -> Vec<Self> {
        let mut mode = false;
        let mut calls = Vec::new();
        for line in lines {
            match line.strip_prefix("# mode=") {
                Some(number) => mode = number == "2",
                None => calls.push(Self { line, is_relaxed: mode }),
            }
        }
        calls
    }

    fn is(&self, name: &str) -> bool {
        self.line.split(' ').next() == Some(name)
    }

    fn number(&self, key: &str) -> u64 {
        let text = value(&self.line, key);
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
            None => text.parse().unwrap(),
        }
    }

    /// The device's memory that it is about.
    fn range(&self, key: &str) -> Range<u64> {
        let bytes = if self.is("cuMemsetD8Async") { "count" } else { "bytes" };
        let start = self.number(key);
        start..start + self.number(bytes)
    }

    fn is_in(&self, key: &str, all: &Range<u64>) -> bool {
        let range = self.range(key);
        all.start <= range.start && range.end <= all.end
    }
}

/// The place of the first call of this kind from `at` on.
#[track_caller]
fn next(calls: &[Call], at: usize, what: &str, is_it: impl Fn(&Call) -> bool) -> usize {
    let found = calls[at..].iter().position(is_it).map(|found| at + found);
    let lines = || calls.iter().map(|call| &*call.line).collect::<Vec<_>>().join("\n");
    found.unwrap_or_else(|| panic!("no {what} after call {at} of:\n{}", lines()))
}

/// The host is past a copy here: past an event that was recorded after it, or past its stream.
fn passed(calls: &[Call], copy: usize) -> usize {
    let stream = value(&calls[copy].line, "stream").to_owned();
    let is_of_stream = |call: &Call| value(&call.line, "stream") == stream;
    let after = next(calls, copy, "record or wait", |call| {
        (call.is("cuEventRecord") || call.is("cuStreamSynchronize")) && is_of_stream(call)
    });
    if calls[after].is("cuStreamSynchronize") {
        return after;
    }
    let event = value(&calls[after].line, "event").to_owned();
    next(calls, after, "wait for the event", |call| {
        call.is("cuEventSynchronize") && value(&call.line, "event") == event
    })
}

fn places<'a>(calls: &'a [Call], name: &'a str) -> impl Iterator<Item = usize> + 'a {
    (0..calls.len()).filter(move |at| calls[*at].is(name))
}

const OUT: &str = "cuMemcpyDtoHAsync_v2";
const IN: &str = "cuMemcpyHtoDAsync_v2";

/// Copies, their end, and then the unmapping and the release, of each group. Returns the bytes that were copied.
fn assert_sleep(calls: &[Call], held: &Held) -> u64 {
    let unmaps: Vec<usize> = places(calls, "cuMemUnmap").collect();
    assert!(unmaps.len() >= 3, "two of the reservation with a hole: {}", unmaps.len());
    let recorded = next(calls, 0, "record of all work", |call| call.is("cuCtxRecordEvent"));
    let event = value(&calls[recorded].line, "event").to_owned();
    let is_passed =
        |call: &Call| call.is("cuEventSynchronize") && value(&call.line, "event") == event;
    let begun = next(calls, recorded, "wait for all work", is_passed);
    let mut copied = 0;
    for unmap in unmaps {
        let range = calls[unmap].range("address");
        for copy in places(calls, OUT).filter(|at| calls[*at].is_in("source", &range)) {
            assert!(begun < copy && passed(calls, copy) < unmap, "{}", calls[unmap].line);
            copied += calls[copy].number("bytes");
        }
        for (address, handle) in &held.mapped {
            if range.contains(address) {
                let is_it =
                    |call: &Call| call.is("cuMemRelease") && value(&call.line, "handle") == handle;
                let released = next(calls, unmap, "release", is_it);
                assert!(calls[released].is_relaxed);
            }
        }
        // A capture on another thread goes on.
        assert!(calls[unmap].is_relaxed);
    }
    copied
}

/// All memory first. Then each place is mapped, reached and filled, and the host waits for all of it. Returns the bytes
/// that were filled.
fn assert_wake(calls: &[Call], fill: &str) -> u64 {
    let maps: Vec<usize> = places(calls, "cuMemMap").collect();
    assert!(maps.len() >= 2);
    let last = places(calls, "cuMemCreate").last().unwrap();
    assert!(last < maps[0], "a card without room is found before anything is mapped");
    let mut filled = 0;
    for &map in &maps {
        let range = calls[map].range("address");
        let is_of = |call: &Call| {
            let all = call.is("cuMemSetAccess").then(|| call.range("address"));
            all.is_some_and(|all| all.start <= range.start && range.end <= all.end)
        };
        let reached = next(calls, map, "access", is_of);
        assert!(calls[map].is_relaxed && calls[reached].is_relaxed);
        for copy in places(calls, fill).filter(|at| calls[*at].is_in("target", &range)) {
            assert!(reached < copy, "{}", calls[copy].line);
            passed(calls, copy);
            filled += calls[copy].range("target").count() as u64;
        }
    }
    filled
}

const USED: u64 = 18 * MIB as u64;

#[test]
fn memory_goes_when_it_is_copied_and_is_there_when_it_is_filled() {
    let name = "sleep::memory_goes_when_it_is_copied_and_is_there_when_it_is_filled";
    alone(name, Installed::StandIn, &[], |driver| {
        let mut held = Held::new(driver);
        let keeps: [fn() -> Keep; 4] = [
            || Keep::PageLocked,
            || Keep::Buffer(Box::new(vec![0_u8; 32 * MIB])),
            || Keep::File(std::env::temp_dir()),
            || Keep::Nothing,
        ];
        for keep in keeps {
            let before = driver.alive();
            let kept = keep();
            let is_dropped = matches!(kept, Keep::Nothing);
            driver.take();
            held.sleep(kept).unwrap();
            let calls = Call::all(driver.take());
            assert_eq!(assert_sleep(&calls, &held), if is_dropped { 0 } else { USED });
            assert!(driver.alive() < before);
            driver.take();
            held.pool.wake().unwrap();
            let calls = Call::all(driver.take());
            let fill = if is_dropped { "cuMemsetD8Async" } else { IN };
            assert_eq!(assert_wake(&calls, fill), USED);
            held.mapped = places(&calls, "cuMemMap")
                .map(|at| &calls[at])
                .map(|map| (map.number("address"), value(&map.line, "handle").to_owned()))
                .collect();
            if !is_dropped {
                held.assert_contents();
            }
        }
    });
}

/// Copies that were begun run on behind an error, in memory that is about to go.
#[test]
fn an_error_waits_for_the_copies_before_it() {
    let name = "sleep::an_error_waits_for_the_copies_before_it";
    alone(name, Installed::StandIn, &[], |driver| {
        let held = Held::new(driver);
        driver.take();
        driver.fail(OUT, 3, 999);
        held.sleep(Keep::Buffer(Box::new(vec![0_u8; 32 * MIB]))).unwrap_err();
        let calls = Call::all(driver.take());
        // The buffer is dropped behind the last of these.
        let waits: Vec<usize> = places(&calls, OUT).map(|copy| passed(&calls, copy)).collect();
        assert_eq!(waits.len(), 3);
        assert_eq!(places(&calls, "cuMemUnmap").count(), 0);
        held.assert_contents();
        held.sleep(Keep::PageLocked).unwrap();
        driver.take();
        driver.fail(IN, 3, 999);
        held.pool.wake().unwrap_err();
        let calls = Call::all(driver.take());
        let unmapped = places(&calls, "cuMemUnmap").next().unwrap();
        assert!(places(&calls, IN).all(|copy| passed(&calls, copy) < unmapped));
        held.pool.wake().unwrap();
        held.assert_contents();
    });
}

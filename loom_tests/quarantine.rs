#![cfg(aquifer_loom)]
//! The quarantine of freed host memory (`crates/core/src/pinned/quarantine.rs`): a block comes back after a fence
//! that covers it (INV-1), once (INV-2), and none stays behind; the count (INV-3); no lock over a driver
//! call (INV-4).

mod harness;

use aquifer::models::{FenceError, Quarantine};
use harness::driver::{Access::Free, Access::Write, Driver, Event, WHOLE};
use harness::model;
use loom::sync::Mutex;

/// Blocks of host memory by number. Stream `n` works on block `n`.
struct Host {
    driver: Driver,
    quarantine: Quarantine<usize, Event>,
    lost: Mutex<Vec<usize>>,
}

const BLOCKS: usize = 4;

impl Host {
    fn new() -> Self {
        let driver = Driver::new(BLOCKS);
        Self { driver, quarantine: Quarantine::default(), lost: Mutex::new(Vec::new()) }
    }

    /// The owner frees a block that one of its copies may still use.
    fn free(&self, block: usize) {
        self.driver.use_block(block, block, WHOLE, Write);
        self.quarantine.push(block);
    }

    fn record(&self) -> Result<Event, FenceError> {
        if self.driver.is_lost() {
            return Err(FenceError::DeviceLost);
        }
        if self.driver.is_capturing() {
            return Err(FenceError::NotNow);
        }
        Ok(self.driver.record_context())
    }

    fn query(&self, fence: &Event) -> Result<bool, FenceError> {
        if self.driver.is_lost() {
            return Err(FenceError::DeviceLost);
        }
        if self.driver.is_capturing() {
            return Err(FenceError::NotNow);
        }
        Ok(self.driver.is_complete(fence))
    }

    fn collect(&self) {
        let collected = self.quarantine.collect(|| self.record(), |fence| self.query(fence));
        for block in collected.free {
            self.driver.use_on_host(block, WHOLE, Free);
        }
        if !collected.lost.is_empty() {
            self.lost.lock().unwrap().extend(collected.lost);
        }
    }

    /// As `collect` where no capture runs and no device is lost, with fewer driver calls.
    fn collect_no_capture(&self) {
        let collected = self.quarantine.collect(
            || Ok(self.driver.record_context()),
            |fence| Ok(self.driver.is_complete(fence)),
        );
        for block in collected.free {
            self.driver.use_on_host(block, WHOLE, Free);
        }
    }

    /// Takes all that waits, if the device has passed it.
    fn collect_all(&self) {
        let passed = || self.driver.is_complete(&self.driver.record_context());
        for block in self.quarantine.collect_all(passed) {
            self.driver.use_on_host(block, WHOLE, Free);
        }
    }

    /// The device finishes: every freed block comes back.
    fn end(&self, blocks: usize) {
        self.driver.set_capturing(false);
        self.driver.finish_all();
        self.collect();
        let lost = self.lost.lock().unwrap();
        for block in 0..blocks {
            let freed = self.driver.is_freed(block);
            let times = usize::from(freed) + lost.iter().filter(|lost| **lost == block).count();
            assert_eq!(times, 1, "block {block} came back {times} times");
        }
        assert_eq!(self.quarantine.len(), 0, "the count of an empty quarantine");
    }
}

#[test]
fn two_frees_and_a_collector() {
    model::<Host>(
        "two_frees_and_a_collector",
        1_800,
        Host::new,
        &[|h| h.free(0), |h| h.free(1), Host::collect_no_capture],
        |h| h.end(2),
    );
}

/// The device finishes with one block while it is collected.
#[test]
fn a_free_and_a_collector_that_sees_the_device_move() {
    model::<Host>(
        "a_free_and_a_collector_that_sees_the_device_move",
        130,
        || {
            let host = Host::new();
            host.free(0);
            host
        },
        &[
            |h| h.free(1),
            |h| {
                h.collect_no_capture();
                h.driver.finish(0);
                h.collect_no_capture();
            },
        ],
        |h| h.end(2),
    );
}

#[test]
fn two_collectors() {
    model::<Host>(
        "two_collectors",
        220,
        || {
            let host = Host::new();
            host.free(0);
            host.collect_no_capture();
            host.free(1);
            host
        },
        &[Host::collect_no_capture, |h| {
            h.driver.finish(0);
            h.collect_no_capture();
        }],
        |h| h.end(2),
    );
}

#[test]
fn two_collectors_and_a_free() {
    model::<Host>(
        "two_collectors_and_a_free",
        5_000,
        || {
            let host = Host::new();
            host.free(0);
            host.driver.finish(0);
            host
        },
        &[|h| h.free(1), Host::collect_no_capture, Host::collect_no_capture],
        |h| h.end(2),
    );
}

/// One block has a fence, one comes in, and the device finishes with either.
fn with_a_fenced_block() -> Host {
    let host = Host::new();
    host.free(0);
    host.collect_no_capture();
    host
}

#[test]
fn a_free_and_a_collector_of_all() {
    model::<Host>(
        "a_free_and_a_collector_of_all",
        200,
        with_a_fenced_block,
        &[
            |h| {
                h.free(1);
                h.driver.finish(1);
            },
            |h| {
                h.collect_all();
                h.driver.finish(0);
                h.collect_all();
            },
        ],
        |h| h.end(2),
    );
}

#[test]
fn a_collector_of_all_beside_one_that_records() {
    model::<Host>(
        "a_collector_of_all_beside_one_that_records",
        500,
        with_a_fenced_block,
        &[
            |h| h.free(1),
            Host::collect_no_capture,
            |h| {
                h.driver.finish(0);
                h.collect_all();
            },
        ],
        |h| h.end(2),
    );
}

/// No fence while a stream is in capture.
#[test]
fn a_capture_ends() {
    model::<Host>(
        "a_capture_ends",
        40,
        || {
            let host = Host::new();
            host.driver.set_capturing(true);
            host
        },
        &[
            |h| {
                h.free(0);
                h.driver.set_capturing(false);
            },
            |h| {
                h.collect();
                h.collect();
            },
        ],
        |h| h.end(1),
    );
}

/// Blocks of a lost device come back as lost.
#[test]
fn a_device_is_lost() {
    model::<Host>(
        "a_device_is_lost",
        1_500,
        || {
            let host = Host::new();
            host.free(0);
            host.collect();
            host
        },
        &[|h| h.free(1), Host::collect, |h| h.driver.lose()],
        |h| h.end(2),
    );
}

/// INV-3: at any moment the count is at most the number of blocks that were freed.
#[test]
fn the_count() {
    model::<Host>(
        "the_count",
        900,
        Host::new,
        &[
            |h| h.quarantine.push(0),
            Host::collect_no_capture,
            |h| {
                let waiting = h.quarantine.len();
                assert!(waiting <= 1, "the count is {waiting} with one block");
            },
        ],
        |h| h.end(1),
    );
}

/// INV-4: no lock is held while a fence is recorded or queried.
#[test]
fn fences_without_a_lock() {
    model::<Host>(
        "fences_without_a_lock",
        1,
        Host::new,
        &[|h| {
            h.free(0);
            h.quarantine.collect(
                || {
                    h.free(1);
                    h.record()
                },
                |fence| {
                    h.free(2);
                    h.query(fence)
                },
            );
            h.quarantine.collect_all(|| {
                h.free(3);
                false
            });
        }],
        |h| h.end(4),
    );
}

#![cfg(aquifer_loom)]
//! Freed host memory that the device may still use: it comes back after a fence that covers it, once,
//! and none stays behind.

mod harness;

use aquifer::models::{Pending, Unfenced};
use harness::driver::{Access::Free, Access::Write, Driver, Event, WHOLE};
use harness::model;
use loom::sync::Mutex;

/// Blocks of host memory by number. Stream `n` works on block `n`.
struct Host {
    driver: Driver,
    pending: Pending<usize, Event>,
    lost: Mutex<Vec<usize>>,
}

const BLOCKS: usize = 3;

impl Host {
    fn new() -> Self {
        let driver = Driver::new(BLOCKS);
        Self { driver, pending: Pending::default(), lost: Mutex::new(Vec::new()) }
    }

    /// The owner frees a block that a copy of its may still use.
    fn free(&self, block: usize) {
        self.driver.use_block(block, block, WHOLE, Write);
        self.pending.push(block);
    }

    fn fence(&self) -> Result<Event, Unfenced> {
        if self.driver.is_lost() {
            return Err(Unfenced::Never);
        }
        if self.driver.is_capturing() {
            return Err(Unfenced::Later);
        }
        Ok(self.driver.record_context())
    }

    fn passed(&self, fence: &Event) -> Result<bool, Unfenced> {
        if self.driver.is_lost() {
            return Err(Unfenced::Never);
        }
        if self.driver.is_capturing() {
            return Err(Unfenced::Later);
        }
        Ok(self.driver.is_complete(fence))
    }

    fn collect(&self) {
        let collected = self.pending.collect(|| self.fence(), |fence| self.passed(fence));
        for block in collected.free {
            self.driver.use_on_host(block, WHOLE, Free);
        }
        if !collected.lost.is_empty() {
            self.lost.lock().unwrap().extend(collected.lost);
        }
    }

    /// The same where no capture runs and no device is lost, with fewer questions to the driver.
    fn collect_plainly(&self) {
        let collected = self.pending.collect(
            || Ok(self.driver.record_context()),
            |fence| Ok(self.driver.is_complete(fence)),
        );
        for block in collected.free {
            self.driver.use_on_host(block, WHOLE, Free);
        }
    }

    /// The device gets done: what was freed comes back, all of it.
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
        assert_eq!(self.pending.len(), 0, "the count of an empty yard");
    }
}

#[test]
fn two_frees_and_a_collector() {
    model::<Host>(
        "two_frees_and_a_collector",
        1_800,
        Host::new,
        &[|h| h.free(0), |h| h.free(1), Host::collect_plainly],
        |h| h.end(2),
    );
}

/// The device gets done with one block while it is collected.
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
                h.collect_plainly();
                h.driver.finish(0);
                h.collect_plainly();
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
            host.collect_plainly();
            host.free(1);
            host
        },
        &[Host::collect_plainly, |h| {
            h.driver.finish(0);
            h.collect_plainly();
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
        &[|h| h.free(1), Host::collect_plainly, Host::collect_plainly],
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

/// What cannot be known any more is handed out as lost.
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

/// Never more than there are, whatever the moment.
#[test]
fn the_count() {
    model::<Host>(
        "the_count",
        900,
        Host::new,
        &[
            |h| h.pending.push(0),
            Host::collect_plainly,
            |h| {
                let waiting = h.pending.len();
                assert!(waiting <= 1, "the count is {waiting} with one block");
            },
        ],
        |h| h.end(1),
    );
}

/// No lock is held over a question to the driver.
#[test]
fn questions_without_a_lock() {
    model::<Host>(
        "questions_without_a_lock",
        1,
        Host::new,
        &[|h| {
            h.free(0);
            h.pending.collect(
                || {
                    h.free(1);
                    h.fence()
                },
                |fence| {
                    h.free(2);
                    h.passed(fence)
                },
            );
        }],
        |h| h.end(3),
    );
}

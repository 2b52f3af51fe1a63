#![cfg(aquifer_loom)]
//! Deferred drops: buffers of transfers that were dropped early. Each is freed once, after its event.

mod harness;

use aquifer::models::{Collected, DeferredQueue, Passed};
use harness::driver::{Access::Free, Access::Write, Driver, Event, WHOLE};
use harness::model;
use loom::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[derive(Debug)]
struct Buffer {
    block: usize,
    event: Event,
    /// A thread is asking: loom has no part in it.
    asked: AtomicBool,
    questions: AtomicUsize,
}

struct Host {
    driver: Driver,
    deferred: DeferredQueue<Buffer>,
    lost: Mutex<Vec<usize>>,
}

impl Host {
    fn new() -> Self {
        let driver = Driver::new(3);
        Self { driver, deferred: DeferredQueue::default(), lost: Mutex::new(Vec::new()) }
    }

    /// A transfer by stream `block` is dropped.
    fn defer(&self, block: usize) {
        self.driver.use_block(block, block, WHOLE, Write);
        self.defer_unused(block);
    }

    fn defer_unused(&self, block: usize) {
        let event = self.driver.record(block);
        let (asked, questions) = (AtomicBool::new(false), AtomicUsize::new(0));
        self.deferred.defer(Buffer { block, event, asked, questions });
    }

    fn passed(&self, buffer: &Buffer) -> Passed {
        assert!(!buffer.asked.swap(true, Ordering::Relaxed), "two threads ask one buffer");
        let complete = self.driver.is_complete(&buffer.event);
        buffer.asked.store(false, Ordering::Relaxed);
        buffer.questions.fetch_add(1, Ordering::Relaxed);
        if complete { Passed::Yes } else { Passed::NotYet }
    }

    fn collect(&self) {
        let collected = self.deferred.collect(|buffer| self.passed(buffer));
        self.free(collected);
    }

    fn collect_if_known(&self) {
        let collected = self.deferred.collect(|buffer| match self.driver.is_lost() {
            true => Passed::Never,
            false => self.passed(buffer),
        });
        self.free(collected);
    }

    fn free(&self, collected: Collected<Buffer>) {
        for buffer in collected.ready {
            self.driver.use_on_host(buffer.block, WHOLE, Free);
        }
        for buffer in collected.lost {
            self.lost.lock().unwrap().push(buffer.block);
        }
    }

    fn end(&self, blocks: usize) {
        self.driver.finish_all();
        self.collect();
        let lost = self.lost.lock().unwrap();
        for block in 0..blocks {
            let freed = self.driver.is_freed(block);
            let times = usize::from(freed) + lost.iter().filter(|lost| **lost == block).count();
            assert_eq!(times, 1, "buffer {block} was given out {times} times");
        }
        assert!(self.deferred.is_empty(), "the count of an empty queue");
    }
}

#[test]
fn a_drop_and_two_collectors() {
    model::<Host>(
        "a_drop_and_two_collectors",
        8_000,
        || {
            let host = Host::new();
            host.defer(0);
            host.driver.finish(0);
            host
        },
        &[|h| h.defer(1), Host::collect, Host::collect],
        |h| h.end(2),
    );
}

/// The device gets done while it is asked about buffers.
#[test]
fn two_collectors_see_the_device_move() {
    model::<Host>(
        "two_collectors_see_the_device_move",
        200,
        || {
            let host = Host::new();
            host.defer(0);
            host.defer(1);
            host
        },
        &[Host::collect, |h| {
            h.driver.finish(1);
            h.collect();
        }],
        |h| h.end(2),
    );
}

#[test]
fn two_drops_and_a_collector() {
    model::<Host>(
        "two_drops_and_a_collector",
        5_000,
        Host::new,
        &[
            |h| h.defer(0),
            |h| h.defer(1),
            |h| {
                h.driver.finish(0);
                h.collect();
            },
        ],
        |h| h.end(2),
    );
}

#[test]
fn a_device_is_lost() {
    model::<Host>(
        "a_device_is_lost",
        1_800,
        || {
            let host = Host::new();
            host.defer(0);
            host
        },
        &[|h| h.defer(1), Host::collect_if_known, |h| h.driver.lose()],
        |h| h.end(2),
    );
}

/// A buffer whose free defers another: no lock is held while the caller drops what was collected.
#[test]
fn a_free_that_defers() {
    model::<Host>(
        "a_free_that_defers",
        35,
        || {
            let host = Host::new();
            host.defer(0);
            host.driver.finish(0);
            host
        },
        &[Host::collect, |h| {
            let collected = h.deferred.collect(|buffer| h.passed(buffer));
            let found = !collected.ready.is_empty();
            h.free(collected);
            if found {
                h.defer(1);
            }
        }],
        |h| {
            if h.driver.is_freed(0) && h.deferred.is_empty() {
                h.defer(1)
            }
            h.end(2);
        },
    );
}

/// No lock is held over a question, and a buffer that is put back is not asked again at once.
#[test]
fn questions_without_a_lock() {
    model::<Host>(
        "questions_without_a_lock",
        1,
        Host::new,
        &[|h| {
            h.defer(0);
            let collected = h.deferred.collect(|buffer| {
                h.defer(1);
                h.passed(buffer)
            });
            assert!(collected.ready.is_empty());
            h.driver.finish_all();
            let collected = h.deferred.collect(|buffer| h.passed(buffer));
            for buffer in &collected.ready {
                let asked = buffer.questions.load(Ordering::Relaxed);
                assert_eq!(asked, 2 - buffer.block, "buffer {} asked", buffer.block);
            }
            h.free(collected);
        }],
        |h| h.end(2),
    );
}

/// Never counted down before it was counted up: the count would go round to the largest number.
#[test]
fn the_count() {
    fn collect(host: &Host) {
        let collected = host.deferred.collect(|_| Passed::Yes);
        let waiting = host.deferred.len();
        assert!(waiting <= 2, "the count is {waiting} with two buffers");
        host.free(collected);
    }
    model::<Host>(
        "the_count",
        9_000,
        || {
            let host = Host::new();
            host.defer_unused(0);
            host
        },
        &[|h| h.defer_unused(1), collect, collect],
        |h| h.end(2),
    );
}

#![cfg(aquifer_loom)]
//! The graveyard: buffers of transfers that were dropped early. Each is freed once, after its event.

mod harness;

use aquifer::models::{Graveyard, Passed, Reaped};
use harness::driver::{Access::Free, Access::Write, Driver, Event, WHOLE};
use harness::model;
use loom::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[derive(Debug)]
struct Grave {
    block: usize,
    event: Event,
    /// Who is asking: loom has no part in it.
    asked: AtomicBool,
    questions: AtomicUsize,
}

struct Host {
    driver: Driver,
    graves: Graveyard<Grave>,
    lost: Mutex<Vec<usize>>,
}

impl Host {
    fn new() -> Self {
        let driver = Driver::new(3);
        Self { driver, graves: Graveyard::default(), lost: Mutex::new(Vec::new()) }
    }

    /// A transfer by stream `block` is dropped.
    fn bury(&self, block: usize) {
        self.driver.use_block(block, block, WHOLE, Write);
        self.bury_unused(block);
    }

    fn bury_unused(&self, block: usize) {
        let event = self.driver.record(block);
        let (asked, questions) = (AtomicBool::new(false), AtomicUsize::new(0));
        self.graves.bury(Grave { block, event, asked, questions });
    }

    fn passed(&self, grave: &Grave) -> Passed {
        assert!(!grave.asked.swap(true, Ordering::Relaxed), "two threads ask one grave");
        let complete = self.driver.is_complete(&grave.event);
        grave.asked.store(false, Ordering::Relaxed);
        grave.questions.fetch_add(1, Ordering::Relaxed);
        if complete { Passed::Yes } else { Passed::NotYet }
    }

    fn reap(&self) {
        let reaped = self.graves.reap(|grave| self.passed(grave));
        self.free(reaped);
    }

    fn reap_if_known(&self) {
        let reaped = self.graves.reap(|grave| match self.driver.is_lost() {
            true => Passed::Never,
            false => self.passed(grave),
        });
        self.free(reaped);
    }

    fn free(&self, reaped: Reaped<Grave>) {
        for grave in reaped.free {
            self.driver.use_on_host(grave.block, WHOLE, Free);
        }
        for grave in reaped.lost {
            self.lost.lock().unwrap().push(grave.block);
        }
    }

    fn end(&self, blocks: usize) {
        self.driver.finish_all();
        self.reap();
        let lost = self.lost.lock().unwrap();
        for block in 0..blocks {
            let freed = self.driver.is_freed(block);
            let times = usize::from(freed) + lost.iter().filter(|lost| **lost == block).count();
            assert_eq!(times, 1, "grave {block} was given out {times} times");
        }
        assert!(self.graves.is_empty(), "the count of an empty graveyard");
    }
}

#[test]
fn a_burial_and_two_reapers() {
    model::<Host>(
        "a_burial_and_two_reapers",
        8_000,
        || {
            let host = Host::new();
            host.bury(0);
            host.driver.finish(0);
            host
        },
        &[|h| h.bury(1), Host::reap, Host::reap],
        |h| h.end(2),
    );
}

/// The device gets done while graves are asked.
#[test]
fn two_reapers_see_the_device_move() {
    model::<Host>(
        "two_reapers_see_the_device_move",
        200,
        || {
            let host = Host::new();
            host.bury(0);
            host.bury(1);
            host
        },
        &[Host::reap, |h| {
            h.driver.finish(1);
            h.reap();
        }],
        |h| h.end(2),
    );
}

#[test]
fn two_burials_and_a_reaper() {
    model::<Host>(
        "two_burials_and_a_reaper",
        5_000,
        Host::new,
        &[
            |h| h.bury(0),
            |h| h.bury(1),
            |h| {
                h.driver.finish(0);
                h.reap();
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
            host.bury(0);
            host
        },
        &[|h| h.bury(1), Host::reap_if_known, |h| h.driver.lose()],
        |h| h.end(2),
    );
}

/// A buffer whose free buries another: no lock is held while the caller drops what was reaped.
#[test]
fn a_free_that_buries() {
    model::<Host>(
        "a_free_that_buries",
        35,
        || {
            let host = Host::new();
            host.bury(0);
            host.driver.finish(0);
            host
        },
        &[Host::reap, |h| {
            let reaped = h.graves.reap(|grave| h.passed(grave));
            let found = !reaped.free.is_empty();
            h.free(reaped);
            if found {
                h.bury(1);
            }
        }],
        |h| {
            if h.driver.is_freed(0) && h.graves.is_empty() {
                h.bury(1)
            }
            h.end(2);
        },
    );
}

/// No lock is held over a question, and a grave that is put back is not asked again at once.
#[test]
fn questions_without_a_lock() {
    model::<Host>(
        "questions_without_a_lock",
        1,
        Host::new,
        &[|h| {
            h.bury(0);
            let reaped = h.graves.reap(|grave| {
                h.bury(1);
                h.passed(grave)
            });
            assert!(reaped.free.is_empty());
            h.driver.finish_all();
            let reaped = h.graves.reap(|grave| h.passed(grave));
            for grave in &reaped.free {
                let asked = grave.questions.load(Ordering::Relaxed);
                assert_eq!(asked, 2 - grave.block, "grave {} asked", grave.block);
            }
            h.free(reaped);
        }],
        |h| h.end(2),
    );
}

/// Never counted down before it was counted up: the count would go round to the largest number.
#[test]
fn the_count() {
    fn reap(host: &Host) {
        let reaped = host.graves.reap(|_| Passed::Yes);
        let waiting = host.graves.len();
        assert!(waiting <= 2, "the count is {waiting} with two graves");
        host.free(reaped);
    }
    model::<Host>(
        "the_count",
        9_000,
        || {
            let host = Host::new();
            host.bury_unused(0);
            host
        },
        &[|h| h.bury_unused(1), reap, reap],
        |h| h.end(2),
    );
}

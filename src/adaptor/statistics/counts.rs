//! The counts of all threads: exact, and without a locked instruction while one thread counts.
//!
//! The first thread that counts owns the counts and changes them with plain loads and stores, inside
//! a section that it marks as busy. The first other thread ends that for good: it takes the ownership
//! away, waits until the owner is out of its section, and from then on everyone counts with
//! read-modify-writes. The mark and the look at the owner are a store before a load, which
//! [`barrier`]'s pair of fences orders; where its cheap side would not be cheap, nobody owns.

use super::{Counter, Counters};
use crate::backend::is_forked_child;
use crate::sync::barrier;
use crate::sync::trusted::{AtomicBool, AtomicI64, AtomicU64, Ordering, thread_local, unique};
use std::cell::Cell;
use std::thread::yield_now;

/// Nobody has counted yet.
const NOBODY: u64 = 0;
/// The ownership was taken away, and the owner may be in its section still.
const ENDING: u64 = 1;
/// Everyone counts with read-modify-writes. Threads are numbered from 16.
const EVERYONE: u64 = 2;

thread_local! {
    static ME: Cell<u64> = const { Cell::new(NOBODY) };
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    owner: AtomicU64,
    /// Written by the owner alone.
    busy: AtomicBool,
    bytes: Cells,
    allocations: Cells,
}

#[derive(Debug, Default)]
struct Cells {
    current: AtomicI64,
    peak: AtomicI64,
    total: AtomicI64,
}

impl Counts {
    /// Counts a block of so many bytes.
    #[inline(always)]
    pub(super) fn add(&self, bytes: i64) {
        self.change(bytes, 1);
    }

    /// Counts its end.
    #[inline(always)]
    pub(super) fn subtract(&self, bytes: i64) {
        self.change(bytes.wrapping_neg(), -1);
    }

    /// The counts. Those of the calls that happened before this one are in it; of calls that run
    /// meanwhile some numbers may be and others not.
    pub(super) fn read(&self) -> Counters {
        Counters { bytes: self.bytes.read(), allocations: self.allocations.read() }
    }

    #[inline(always)]
    fn change(&self, bytes: i64, blocks: i64) {
        if !self.change_alone(ME.with(Cell::get), bytes, blocks) {
            self.change_cold(bytes, blocks);
        }
    }

    /// Counts if `me` owns the counts.
    #[inline(always)]
    fn change_alone(&self, me: u64, bytes: i64, blocks: i64) -> bool {
        if self.owner.load(Ordering::Relaxed) != me || me == NOBODY {
            return false;
        }
        self.busy.store(true, Ordering::Relaxed);
        barrier::compiler();
        // Who takes the ownership away either sees the mark, or is seen here.
        let mine = self.owner.load(Ordering::Relaxed) == me;
        if mine {
            self.bytes.change_alone(bytes, blocks);
            self.allocations.change_alone(blocks, blocks);
        }
        // Release: who waits for it goes on with what was counted.
        self.busy.store(false, Ordering::Release);
        mine
    }

    #[inline(never)]
    fn change_cold(&self, bytes: i64, blocks: i64) {
        let me = ME.with(|me| {
            if me.get() == NOBODY {
                me.set(unique());
            }
            me.get()
        });
        loop {
            // Acquire: what was counted alone is there before anyone adds to it.
            match self.owner.load(Ordering::Acquire) {
                EVERYONE => break,
                NOBODY => {
                    let next = if barrier::is_asymmetric() { me } else { EVERYONE };
                    let _ = self.pass(NOBODY, next);
                }
                ENDING => {
                    // A fork may have left the thread behind that was to end it.
                    if is_forked_child() {
                        break;
                    }
                    yield_now();
                }
                owner if owner == me => {
                    if self.change_alone(me, bytes, blocks) {
                        return;
                    }
                }
                owner => {
                    if self.pass(owner, ENDING) {
                        barrier::heavy();
                        while self.busy.load(Ordering::Acquire) && !is_forked_child() {
                            yield_now();
                        }
                        self.owner.store(EVERYONE, Ordering::Release);
                    }
                }
            }
        }
        self.bytes.change_together(bytes, blocks);
        self.allocations.change_together(blocks, blocks);
    }

    fn pass(&self, from: u64, to: u64) -> bool {
        self.owner.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }
}

impl Cells {
    /// By the owner, in its section. `blocks` tells an allocation from a free.
    #[inline(always)]
    fn change_alone(&self, by: i64, blocks: i64) {
        let now = self.current.load(Ordering::Relaxed).wrapping_add(by);
        self.current.store(now, Ordering::Relaxed);
        if blocks > 0 {
            if now > self.peak.load(Ordering::Relaxed) {
                self.peak.store(now, Ordering::Relaxed);
            }
            let total = self.total.load(Ordering::Relaxed).wrapping_add(by);
            self.total.store(total, Ordering::Relaxed);
        }
    }

    /// Relaxed: each number is exact by itself, and orders nothing else.
    fn change_together(&self, by: i64, blocks: i64) {
        let now = self.current.fetch_add(by, Ordering::Relaxed).wrapping_add(by);
        if blocks > 0 {
            if now > self.peak.load(Ordering::Relaxed) {
                self.peak.fetch_max(now, Ordering::Relaxed);
            }
            self.total.fetch_add(by, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Counter {
        Counter {
            current: self.current.load(Ordering::Relaxed),
            peak: self.peak.load(Ordering::Relaxed),
            total: self.total.load(Ordering::Relaxed),
        }
    }
}

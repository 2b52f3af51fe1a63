//! The caches of threads, and what of them goes to the heaps because memory is short.

use super::block::{SlotId, UNIT_SHIFT};
use super::core::Pool;
use super::local;
use super::magazine::{Magazine, SizeClasses};
use super::request::Request;
use super::slot::report;
use super::upstream::Upstream;
use crate::sync::trusted::Ordering;
use crate::sync::{Arc, MODELLED, MutexGuard};

/// Where all magazines hold less, growth flushes the calling thread's alone.
const MIN_CACHED_TO_FLUSH_ALL: usize = 8 << 20;
/// And so much more for each, so that many small ones are no reason.
const MIN_CACHED_PER_MAGAZINE: usize = 8 << 10;
/// Misses before a thread's caches are flushed again for growth, for each magazine of the pool.
const FLUSH_MISSES_PER_MAGAZINE: usize = 4;

impl<U: Upstream> Pool<U> {
    /// Empties a magazine into the heaps. The caller may be inside: heaps call no magazine.
    pub(super) fn drain(&self, magazine: &Magazine, classes: &mut SizeClasses) {
        if let Some(slot) = self.slot(magazine.slot() as SlotId) {
            classes.drain(|block| report(self.free_to_owner(slot, block)));
        }
    }

    /// As [`drain`](Self::drain), because memory is short.
    fn flush(&self, magazine: &Magazine, classes: &mut SizeClasses) {
        if let Some(slot) = self.slot(magazine.slot() as SlotId) {
            classes.flush(|block| report(self.free_to_owner(slot, block)));
        }
    }

    /// Calls `each` for these magazines, of any threads.
    pub(super) fn revoke(
        &self,
        _reclaim: &MutexGuard<'_, ()>,
        magazines: &[Arc<Magazine>],
        each: impl FnMut(&Magazine, &mut SizeClasses),
    ) {
        // SAFETY: INV-POOL-4, by the guard.
        unsafe { Magazine::with_revoked(magazines.iter().map(|magazine| &**magazine), each) }
    }

    /// Takes the magazines of all threads off their slots.
    pub(super) fn take_magazines(&self) -> Vec<Arc<Magazine>> {
        self.all_slots().flat_map(|slot| std::mem::take(&mut *slot.magazines.lock())).collect()
    }

    /// Those of all threads.
    pub(super) fn magazines(&self) -> Vec<Arc<Magazine>> {
        let mut all = Vec::new();
        for slot in self.all_slots() {
            all.extend(slot.magazines.lock().iter().cloned());
        }
        all
    }

    /// Calls `each` for the magazines of all threads.
    pub(super) fn with_all_revoked(&self, each: impl FnMut(&Magazine, &mut SizeClasses)) {
        let reclaim = self.reclaim_lock.lock();
        self.revoke(&reclaim, &self.magazines(), each);
    }

    /// Flushes every magazine of every thread into the heaps.
    pub(super) fn flush_all(&self) {
        self.with_all_revoked(|magazine, classes| self.flush(magazine, classes));
    }

    /// Flushes the calling thread's own magazines, of this stream and of others, which costs no
    /// barrier. Returns whether they had something.
    pub(super) fn flush_thread(&self) -> bool {
        let mut flushed = false;
        local::remove_stocked_if(self.id, |magazine| {
            // SAFETY: this thread's own magazine, and heaps enter none.
            let emptied = unsafe {
                magazine.try_with(|classes| {
                    // What has nothing may just have got its sizes.
                    let flush = classes.totals().0 > 0;
                    if flush {
                        self.flush(magazine, classes);
                        classes.unlist();
                    }
                    flush
                })
            };
            flushed |= emptied == Some(true);
            emptied == Some(true)
        });
        flushed
    }

    /// As [`flush_thread`](Self::flush_thread), if its blocks could serve together and none could alone.
    pub(super) fn flush_thread_if_mergeable(&self, request: &Request<'_, U>) -> bool {
        let (mut all, mut largest) = (0, 0);
        local::remove_stocked_if(self.id, |magazine| {
            // SAFETY: this thread's own magazine, and nothing is entered.
            let contents =
                unsafe { magazine.try_with(|classes| (classes.totals().1, classes.largest())) };
            let (units, most) = contents.unwrap_or_default();
            all += units;
            largest = largest.max(most);
            false
        });
        largest < request.units && all >= u64::from(request.units) && self.flush_thread()
    }

    /// Flushes the caches of the calling thread, unless it did so a few misses ago: a pool that is too
    /// small for all of them is to grow. Flushes those of all threads if they hold much. Returns whether there was something.
    pub(super) fn flush_if_due(&self, request: &Request<'_, U>) -> bool {
        // Whether caches are large is a matter of size, which no model has.
        if MODELLED {
            return false;
        }
        let least = MIN_CACHED_TO_FLUSH_ALL.max(self.reserved_bytes() / 8).max(request.bytes());
        let reclaim = self.reclaim_lock.lock();
        let magazines = self.magazines();
        let mut cached = 0;
        self.revoke(&reclaim, &magazines, |_, classes| cached += classes.totals().1);
        let misses = self.counters().misses.load(Ordering::Relaxed);
        let count = magazines.len();
        let is_much = (cached << UNIT_SHIFT) as usize >= least + count * MIN_CACHED_PER_MAGAZINE;
        let is_due = cached > 0 && misses >= self.next_flush.load(Ordering::Relaxed);
        if !is_much && !is_due {
            return false;
        }
        self.next_flush.store(misses + FLUSH_MISSES_PER_MAGAZINE * count, Ordering::Relaxed);
        if is_much {
            // Those of this thread, too.
            self.revoke(&reclaim, &magazines, |magazine, classes| self.flush(magazine, classes));
            return true;
        }
        drop(reclaim);
        self.flush_thread()
    }
}

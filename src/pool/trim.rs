//! Free memory that goes back to upstream: at once what the device is past, all of it behind a wait, and what is above the
//! release threshold where the program has waited for the device.

use super::core::Pool;
use super::local;
use super::steal::{MIN_POLL_ATTEMPTS, MIN_POLL_TIME};
use super::upstream::{Failure, Upstream};
use crate::debug_log::{defer_events, range};
use crate::sync::MODELLED;
use crate::sync::trusted::Ordering;
use std::time::{Duration, Instant};

/// How long a trim asks whether the device has nothing to do.
const IDLE_PATIENCE: Duration = Duration::from_millis(2);

impl<U: Upstream> Pool<U> {
    /// Gives free memory back that the device is past, until `keep` bytes are reserved. Waits for no work of the device. Returns
    /// how many bytes went back.
    pub fn trim(&self, keep: usize) -> usize {
        let _deferred = defer_events();
        let _range = range(c"pool: trim", keep);
        self.empty_magazines(keep);
        let bytes = self.give_back_if_idle(keep, IDLE_PATIENCE);
        self.note_trimmed();
        bytes
    }

    /// As [`trim`](Self::trim), of all free memory: the host waits until the streams that freed it are done.
    pub fn wait_and_trim(&self, keep: usize) -> Result<usize, Failure<U::Error>> {
        let _deferred = defer_events();
        let _range = range(c"pool: wait and trim", keep);
        self.empty_magazines(keep);
        let mut failed = None;
        for source in self.stream_slots() {
            if source.recording_graph() != 0 {
                failed = Some(Failure::Captured);
                continue;
            }
            let stamp = source.epochs.current();
            if let Err(error) = source.epochs.synchronize(&self.upstream, stamp) {
                failed = Some(error);
            }
        }
        // A request that has no room meanwhile waits for this lock, and finds memory given back.
        let trim = self.lock_or_try_trim();
        self.close_and_poll_all();
        let bytes = self.give_back(keep);
        drop(trim);
        self.note_trimmed();
        match failed {
            Some(error) if bytes == 0 => Err(error),
            _ => Ok(bytes),
        }
    }

    /// Gives free memory back that the device is past, until no more is reserved than the release threshold. Threads keep what
    /// they have in their magazines.
    /// Returns how many bytes went back.
    pub fn release_above_threshold(&self) -> usize {
        let threshold = self.settings.limits.release_threshold();
        if self.reserved_bytes() <= threshold || self.free_and_other_bytes().0 == 0 {
            return 0;
        }
        let _deferred = defer_events();
        self.give_back_if_idle(threshold, MIN_POLL_TIME)
    }

    /// Handles go back whatever the device does. To free a block waits for all kernels: for so long it is asked whether
    /// there are none.
    fn give_back_if_idle(&self, keep: usize, patience: Duration) -> usize {
        self.close_and_poll_briefly();
        if self.upstream.mapped().is_some() {
            return self.give_back(keep);
        }
        // One that has it gives memory back, for a request or behind a wait.
        let Some(_trim) = self.trim_lock.try_lock() else { return 0 };
        if self.reserved_bytes() <= keep || !self.upstream.is_idle(patience) {
            return 0;
        }
        self.close_and_poll_all();
        self.give_back(keep)
    }

    /// Closes the epochs of all free memory, and asks the device for as long as an event takes on a stream that has nothing
    /// else to do.
    fn close_and_poll_briefly(&self) {
        // As before growth: where a device works only when it is asked, time decides nothing.
        let end = self.upstream.works_unasked().then(|| Instant::now() + MIN_POLL_TIME);
        let is_late = || end.is_none_or(|end| MODELLED || Instant::now() >= end);
        let mut attempts = 0;
        while !self.close_and_poll_all() && (attempts < MIN_POLL_ATTEMPTS || !is_late()) {
            attempts += 1;
        }
    }

    /// Gives memory back that is known to be complete.
    fn give_back(&self, keep: usize) -> usize {
        if let Some(mapped) = self.upstream.mapped() {
            self.merge_complete();
            // A request that is about to be refused waits for what is on its way (INV-POOL-5).
            let _transit = self.in_transit.read();
            return self.release_complete(mapped, keep);
        }
        let Some(shared) = self.make_shared_slot() else { return 0 };
        let extracted = {
            let _transit = self.in_transit.write();
            self.move_complete_to_shared();
            self.extract_upstream_blocks(&mut shared.heap(), keep)
        };
        self.release_upstream(extracted)
    }

    /// Empties every magazine of every thread; for good, where memory is to go back: each thread makes those anew that it
    /// uses again.
    fn empty_magazines(&self, keep: usize) {
        if keep >= self.reserved_bytes() {
            return self.flush_all();
        }
        {
            let reclaim = self.reclaim_lock.lock();
            let magazines = self.take_magazines();
            // SAFETY: INV-POOL-4.
            magazines.iter().for_each(|magazine| unsafe { magazine.retire() });
            self.revoke(&reclaim, &magazines, |magazine, classes| self.drain(magazine, classes));
        }
        local::sweep();
    }

    fn note_trimmed(&self) {
        self.peak_live.store(0, Ordering::Relaxed);
        self.stream_slots().for_each(|slot| slot.release_bookkeeping(&self.upstream));
    }
}

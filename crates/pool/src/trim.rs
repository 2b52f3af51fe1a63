//! A mechanism of a miss, and a call of the user's: free memory goes back to upstream. At once what the device is past, all of
//! it behind a wait, and what is above the release threshold where the program has waited for the device.
//!
//! Handles go back whatever the device does. To free a block waits for all kernels of a GPU, so blocks go back where the
//! device has nothing to do, or will have in a moment, or where the caller waits. Before it grows, a pool of blocks gives
//! those back that would be more than [`BOUND`] times what was live at its peak: a size that grows by little each time leaves
//! no block behind for each growth.

use super::core::Pool;
use super::local;
use super::ready::{MIN_POLL_TIME, Polls};
use super::request::Request;
use super::upstream::{Failure, Upstream};
use super::upstream_blocks::UpstreamBlock;
use super::whole_blocks::First;
use crate::debug_log::{defer_events, range};
use crate::sync::ReentrantMutexGuard;
use crate::sync::trusted::Ordering;
use std::time::Duration;

/// How long it is asked whether the device has nothing to do: growth takes the host as long.
const IDLE_PATIENCE: Duration = Duration::from_millis(2);

/// What a pool of blocks may have, over what was live: numerator and denominator.
const BOUND: (usize, usize) = (3, 2);

/// What it may have beside that, however little is live.
const SLACK: usize = 16 << 20;

/// The part by which it grows before it looks again where it found nothing to give back: to look takes time, and a
/// pool that a kernel keeps busy looks 32 times while it grows by a factor of 2.7.
const GROWTH_BETWEEN_DIVISOR: usize = 32;

/// Blocks that were taken out of the pool, to be given back without a lock but this one.
pub(super) struct Surplus<'a, U: Upstream> {
    pub(super) blocks: Vec<UpstreamBlock<U::Block>>,
    /// The most to ask upstream for then, so that the pool stays within its bound.
    pub(super) room: usize,
    /// A thread that finds no room meanwhile waits for it.
    _trim: ReentrantMutexGuard<'a, ()>,
}

impl<U: Upstream> Pool<U> {
    /// Gives free memory back that the device is past, until `keep` bytes are reserved. Waits for no work of the device. Returns
    /// how many bytes went back.
    pub fn trim(&self, keep: usize) -> usize {
        let _deferred = defer_events();
        let _range = range(c"pool: trim", keep);
        if self.is_asleep() {
            return 0;
        }
        self.empty_magazines(keep);
        let bytes = self.give_back_if_idle(keep, IDLE_PATIENCE);
        self.note_trimmed();
        bytes
    }

    /// As [`trim`](Self::trim), of all free memory: the host waits until the streams that freed it are done.
    pub fn wait_and_trim(&self, keep: usize) -> Result<usize, Failure<U::Error>> {
        let _deferred = defer_events();
        let _range = range(c"pool: wait and trim", keep);
        self.require_awake()?;
        self.empty_magazines(keep);
        let mut bytes = 0;
        let mut failed = self.wait_for_all_pending(|| {
            // A request that has no room meanwhile waits for this lock, and finds memory given back.
            let _trim = self.lock_or_try_trim();
            self.close_and_poll_all(None);
            bytes += self.give_back(keep);
        });
        if self.stream_slots().any(|source| source.recording_graph() != 0) {
            failed = Some(Failure::Captured);
        }
        self.note_trimmed();
        match failed {
            Some(error) if bytes == 0 => Err(error),
            _ => Ok(bytes),
        }
    }

    /// As [`wait_and_trim`](Self::wait_and_trim), until `is_enough`, which is asked after each wait that gave something
    /// back: without a lock.
    pub fn wait_and_trim_until(&self, keep: usize, is_enough: &mut dyn FnMut() -> bool) {
        let _deferred = defer_events();
        let _range = range(c"pool: wait and trim", keep);
        if self.reserved_bytes() <= keep || self.is_asleep() {
            return;
        }
        self.flush_all();
        let served = self.wait_oldest_first(|| {
            // What goes back while it has a second address is the device's when that is unmapped.
            let before = self.reserved_bytes();
            {
                let _trim = self.lock_or_try_trim();
                self.give_back(keep);
            }
            let reserved = self.reserved_bytes();
            // No further wait would have it give back more.
            Ok((reserved < before && is_enough() || reserved <= keep).then_some(()))
        });
        // No error: what cannot be waited for stays.
        drop(served);
        self.note_trimmed();
    }

    /// Gives free memory back that the device is past, until no more is reserved than the release threshold. Threads keep what
    /// they have in their magazines.
    /// Returns how many bytes went back.
    pub fn release_above_threshold(&self) -> usize {
        let threshold = self.settings.limits.release_threshold();
        if self.reserved_bytes() <= threshold
            || self.is_asleep()
            || self.free_and_other_bytes().0 == 0
        {
            return 0;
        }
        let _deferred = defer_events();
        self.give_back_if_idle(threshold, MIN_POLL_TIME)
    }

    /// As far as the device allows it. For so long it is asked whether it is idle.
    fn give_back_if_idle(&self, keep: usize, patience: Duration) -> usize {
        let mut polls = Polls::brief(&*self.upstream);
        while !self.close_and_poll_all(None) && polls.again() {}
        if self.upstream.mapped().is_some() {
            return self.give_back(keep);
        }
        // One that has it gives memory back, for a request or behind a wait.
        let Some(_trim) = self.trim_lock.try_lock() else { return 0 };
        if self.reserved_bytes() <= keep || !self.upstream.is_idle(patience) {
            return 0;
        }
        self.close_and_poll_all(None);
        self.give_back(keep)
    }

    /// Gives memory back that is known to be complete.
    fn give_back(&self, keep: usize) -> usize {
        if let Some(mapped) = self.upstream.mapped() {
            // A request that is about to be refused waits for what is on its way (INV-POOL-5).
            let _transit = self.in_transit.read();
            return if self.is_asleep() { 0 } else { self.release_and_merge(mapped, keep) };
        }
        let extracted = {
            let _transit = self.in_transit.write();
            self.move_complete_to_shared();
            self.extract_blocks(keep, First::Largest)
        };
        self.release_blocks(extracted)
    }

    /// Takes whole free blocks out, as far as growth by `least` bytes would pass the bound, where the device is idle. `live`
    /// bytes are in use, and the pool may grow to `limit`. The caller has asked `lock_growth`.
    pub(super) fn take_surplus(
        &self,
        request: &Request<'_, U>,
        live: usize,
        least: usize,
        limit: usize,
    ) -> Option<Surplus<'_, U>> {
        let peak = live.saturating_add(least).max(self.peak_live.load(Ordering::Relaxed));
        self.peak_live.store(peak, Ordering::Relaxed);
        let bound = (peak / BOUND.1).saturating_mul(BOUND.0).saturating_add(SLACK);
        let reserved = self.reserved_bytes();
        let least_to_ask = bound.max(self.next_surplus.load(Ordering::Relaxed));
        // What no growth serves takes no block from others.
        let is_possible = request.padded_bytes(self.settings.alignment)? <= limit;
        let is_over = reserved.saturating_add(least) > least_to_ask;
        if !is_possible || !is_over || request.graph_upto.is_some() {
            return None;
        }
        // Not waited for, since who has it may wait for growth.
        let trim = self.trim_lock.try_lock()?;
        let blocks = self.extract_if_idle(bound.saturating_sub(least));
        let next = if blocks.is_empty() { reserved + reserved / GROWTH_BETWEEN_DIVISOR } else { 0 };
        self.next_surplus.store(next, Ordering::Relaxed);
        let returned: usize = blocks.iter().map(|block| block.bytes as usize).sum();
        let room = bound.saturating_sub(self.reserved_bytes().saturating_sub(returned));
        (!blocks.is_empty()).then_some(Surplus { blocks, room, _trim: trim })
    }

    /// Takes whole free blocks out, until no more than `target` bytes would be reserved without them. None where the device is
    /// busy.
    fn extract_if_idle(&self, target: usize) -> Vec<UpstreamBlock<U::Block>> {
        if !self.has_whole_free_block() {
            return Vec::new();
        }
        // Closed first, so that a device which is idle then is past all of them.
        self.close_and_poll_all(None);
        if !self.upstream.is_idle(IDLE_PATIENCE) {
            return Vec::new();
        }
        self.close_and_poll_all(None);
        self.extract_blocks(target, First::Smallest)
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

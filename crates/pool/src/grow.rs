//! How much the pool grows on a miss, and whether a wait or a move of free memory had better come first.

use super::block::SHARED;
use super::core::Pool;
use super::miss_step::MissStep;
use super::placement::LARGE;
use super::request::Request;
use super::upstream::{Failure, Upstream};
use crate::debug_log::defer_events;
use crate::sync::trusted::Ordering;

/// Smallest growth for small requests, unless a step is set: 2 MiB, the driver's own granule.
const LEAST_GROWTH: usize = 2 << 20;
/// A wait for another stream comes before growth where more than this part of what is live is free.
const WAIT_MIN_FREE_DIVISOR: usize = 8;
/// Where all memory is one stream's, and mapped, it moves before growth where more than this part is free: nobody waits.
const MOVE_MIN_FREE_DIVISOR: usize = 64;
/// Mapped memory moves before a large block has the pool grow past what was live at most by more than this part of it,
const LARGE_BOUND_DIVISOR: usize = 64;
/// and so many bytes.
const LARGE_SLACK: usize = 8 << 20;
/// Growth is a part of what is live, up to this.
const MAX_PROPORTIONAL_GROWTH: usize = 1 << 30;
/// The least part of what is live by which the pool grows.
const MIN_GROWTH_DIVISOR: usize = 32;
/// The largest part, for large requests.
const MAX_GROWTH_DIVISOR: usize = 6;
/// Blocks of the request's size that growth is for, between the two.
const GROWTH_BLOCKS: usize = 6;
/// The part of a large request that growth adds, so that a size which differs by little fits, too.
const MARGIN_DIVISOR: usize = 32;

impl<U: Upstream> Pool<U> {
    /// How much a pool of blocks grows for `bytes`. By what is live, not by what is reserved, which misses alone would
    /// let grow.
    pub(super) fn growth_for(&self, request: &Request<'_, U>, live: usize, bytes: usize) -> usize {
        match (self.settings.growth_step, request.graph_upto) {
            (0, Some(_)) => return bytes.max(LEAST_GROWTH),
            (0, None) => {}
            (step, _) => return bytes.max(step),
        }
        let blocks = bytes.saturating_mul(GROWTH_BLOCKS);
        let part = blocks.clamp(live / MIN_GROWTH_DIVISOR, live / MAX_GROWTH_DIVISOR);
        let part = part.min(MAX_PROPORTIONAL_GROWTH);
        if bytes < LEAST_GROWTH / 2 {
            return part.max(LEAST_GROWTH);
        }
        // A whole number of blocks: a rest that none fits in is of no use.
        let whole = (part - part % bytes).max(bytes);
        let margin = if self.grows_with_margin(bytes) { bytes / MARGIN_DIVISOR } else { 0 };
        whole.saturating_add(margin)
    }

    /// Whether a range for large blocks has room for a size that differs by little. A pool with a maximum has
    /// none: all of the maximum serves blocks. Sizes of whole granules need none, since they pack without a
    /// rest, also in a pool below. The first range has room all the same: without it the next size would take a
    /// second range.
    fn grows_with_margin(&self, bytes: usize) -> bool {
        let is_first = self.reserved_bytes() == 0;
        !self.settings.limits.has_maximum() && (is_first || !bytes.is_multiple_of(LEAST_GROWTH))
    }
    /// Whether a wait for another stream comes before growth: so much is free that growth would let
    /// the pool follow its misses instead of what is live. For a small request, or with a step of the
    /// user's, one granule is no reason to wait. Returns what is live, too.
    pub(super) fn wait_is_better_and_live(&self, bytes: usize) -> (bool, usize) {
        let (free, live) = self.free_and_other_bytes();
        let is_large = bytes >= LEAST_GROWTH / 2 && self.settings.growth_step == 0;
        // Mapped memory serves in parts, too, if a later step moves it.
        let moves =
            self.upstream.mapped().is_some() && self.settings.steps.iter().any(MissStep::moves);
        let least = match (is_large, moves) {
            (false, _) => LEAST_GROWTH + 1,
            (true, false) => bytes,
            (true, true) => bytes.min(LEAST_GROWTH),
        };
        let divisor = match moves && !self.has_several_sources() {
            true => MOVE_MIN_FREE_DIVISOR,
            false => WAIT_MIN_FREE_DIVISOR,
        };
        let is_over = moves
            && bytes as u64 >= LARGE
            && self.reserved_bytes().saturating_add(bytes) > self.bound_of_large(live, bytes);
        let is_enough = is_over || free >= least.max(live / divisor);
        (is_enough && (moves || self.settings.steps.contains(&MissStep::Wait)), live)
    }

    /// What a pool that maps its memory may have before it grows for a large block of so many bytes, beside `live` ones.
    pub(super) fn bound_of_large(&self, live: usize, bytes: usize) -> usize {
        let now = live.saturating_add(bytes);
        let peak = now.max(self.peak_live.fetch_max(now, Ordering::Relaxed));
        peak.saturating_add(peak / LARGE_BOUND_DIVISOR).saturating_add(LARGE_SLACK)
    }

    /// Whether the pool may grow for the request under a limit, as of some moment.
    pub(super) fn fits(&self, request: &Request<'_, U>, limit: usize) -> bool {
        let bytes = request.padded_bytes(self.settings.alignment);
        let sum = bytes.and_then(|bytes| self.reserved_bytes().checked_add(bytes));
        sum.is_some_and(|sum| sum <= limit)
    }

    /// Takes complete memory from upstream into the shared heap.
    pub fn prepare(&self, bytes: usize) -> Result<(), Failure<U::Error>> {
        let _deferred = defer_events();
        if let Some(mapped) = self.upstream.mapped() {
            let Some(shared) = self.make_shared_slot() else { return Ok(()) };
            return self.prepare_mapped(shared, mapped, bytes);
        }
        let piece = self.take_upstream(None, bytes, bytes, self.settings.limits.maximum())?;
        let _transit = self.in_transit.read();
        if let (Some(piece), Some(shared)) = (piece, self.make_shared_slot()) {
            self.add(shared, &mut shared.heap(), SHARED, piece);
        }
        Ok(())
    }
}

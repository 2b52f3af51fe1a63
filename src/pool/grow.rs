//! Memory that comes to a stream's heap: from the shared heap, or from upstream.

use super::block::{SHARED, UNIT_SHIFT};
use super::core::Pool;
use super::events::emit;
use super::mapping::MapLimits;
use super::miss_step::MissStep;
use super::placement::LARGE;
use super::request::{Request, TakenBlock};
use super::surplus::with_room;
use super::upstream::{Failure, Upstream, count};
use super::upstream_blocks::{Origin, UpstreamBlock};
use crate::debug_log::{POOL, defer_events, emit_deferred, event, is_enabled, range};
use crate::heap::Piece;
use crate::sync::trusted::Ordering;
use crate::sync::{MODELLED, ReentrantMutexGuard};
use std::time::{Duration, Instant};

/// Smallest growth for small requests, unless a step is set: 2 MiB, the driver's own granule.
const LEAST_GROWTH: usize = 2 << 20;
/// How long a thread waits for another that grows.
const GROWTH_PATIENCE: Duration = Duration::from_secs(1);
/// Where all magazines hold less, growth flushes the calling thread's alone.
const MIN_CACHED_TO_FLUSH_ALL: usize = 8 << 20;
/// And so much more for each, so that many small ones are no reason.
const MIN_CACHED_PER_MAGAZINE: usize = 8 << 10;
/// Misses before a thread's caches are flushed again for growth, for each magazine of the pool.
const FLUSH_MISSES_PER_MAGAZINE: usize = 4;
/// A wait for another stream comes before growth where more than this part of what is live is free.
const WAIT_MIN_FREE_DIVISOR: usize = 8;
/// Where all memory is one stream's, and mapped, it moves before growth where more than this part is free: nobody waits.
const MOVE_MIN_FREE_DIVISOR: usize = 64;
/// Mapped memory moves before a large block has the pool grow past what was live at most by more than this part of it,
const LARGE_BOUND_DIVISOR: usize = 16;
/// and so many bytes.
const LARGE_SLACK: usize = 32 << 20;
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

/// How much a pool grows for `bytes`. By what is live, not by what is reserved, which misses alone would
/// let grow.
fn growth_for(live: usize, bytes: usize, with_margin: bool) -> usize {
    let blocks = bytes.saturating_mul(GROWTH_BLOCKS);
    let part = blocks.clamp(live / MIN_GROWTH_DIVISOR, live / MAX_GROWTH_DIVISOR);
    let part = part.min(MAX_PROPORTIONAL_GROWTH);
    if bytes < LEAST_GROWTH / 2 {
        return part.max(LEAST_GROWTH);
    }
    // A whole number of blocks: a rest that none fits in is of no use.
    let whole = (part - part % bytes).max(bytes);
    let margin = if with_margin { bytes / MARGIN_DIVISOR } else { 0 };
    whole.saturating_add(margin)
}

impl<U: Upstream> Pool<U> {
    /// Moves complete memory from the shared heap into the stream's, more than is asked, so that the
    /// shared heap is seldom needed.
    pub(super) fn refill_from_shared(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        self.slot(SHARED).filter(|shared| shared.shared_heap_may_have_free())?;
        let _transit = self.in_transit.read();
        self.refill_from_shared_locked(request)
    }

    /// As [`refill_from_shared`](Self::refill_from_shared). The caller has `in_transit` (INV-POOL-5).
    pub(super) fn refill_from_shared_locked(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let shared = self.slot(SHARED)?;
        let least = request.padded_units(self.settings.alignment)?;
        let piece = {
            let mut heap = shared.heap();
            let most = heap.largest_bound(SHARED);
            if most < least {
                shared.set_shared_heap_may_have_free(most > 0);
                return None;
            }
            let units = match request.graph_upto {
                Some(_) => least,
                None => {
                    // A part of what is left: the other streams come, too.
                    let part = (heap.stats().free_bytes >> UNIT_SHIFT) / 16;
                    let most = u64::from(u32::MAX);
                    let part = part.clamp(LEAST_GROWTH as u64 >> UNIT_SHIFT, most) as u32;
                    // What stays behind is aligned, too.
                    least.max(part & !((self.settings.alignment >> UNIT_SHIFT) as u32 - 1))
                }
            };
            let is_mapped = self.upstream.mapped().is_some();
            let most = if is_mapped { u32::MAX } else { units };
            let piece = heap.extract(SHARED, least, most, usize::MAX)?;
            let wanted = piece.address + (u64::from(units) << UNIT_SHIFT);
            match is_mapped.then(|| self.upstream_blocks.lock().end_of(wanted - 1)).flatten() {
                // No handle lies in two heaps, which could not give it back.
                Some(end) if end < piece.address + piece.bytes => {
                    let bytes = end - piece.address;
                    let rest = Piece { address: end, bytes: piece.bytes - bytes, ..piece };
                    self.add(shared, &mut heap, SHARED, rest);
                    Piece { bytes, ..piece }
                }
                _ => piece,
            }
        };
        let mut heap = request.slot.heap();
        self.add(request.slot, &mut heap, request.tag(), Piece { stamp: 0, ..piece });
        self.take_new(request, &mut heap)
    }

    /// Moves all memory of the shared heap into the stream's.
    pub(super) fn drain_shared_into_own(&self, request: &Request<'_, U>) {
        let Some(shared) = self.slot(SHARED) else { return };
        let _transit = self.in_transit.read();
        let mut pieces = Vec::new();
        shared.heap().extract_all(SHARED, usize::MAX, &mut pieces);
        let (slot, tag) = (request.slot, request.tag());
        let mut heap = slot.heap();
        pieces.into_iter().for_each(|piece| self.add(slot, &mut heap, tag, piece));
    }

    /// Keeps other threads from growth. `None` where one of them grows for so long that its upstream may wait for
    /// this thread, which then grows beside it.
    pub(super) fn lock_growth(&self) -> Option<ReentrantMutexGuard<'_, ()>> {
        let growth = self.growth_lock.try_lock_for(GROWTH_PATIENCE);
        if growth.is_none() {
            self.report_patience("growth_lock", GROWTH_PATIENCE);
        }
        growth
    }

    /// Says that another thread has a lock for so long that its upstream may wait for this one.
    pub(super) fn report_patience(&self, lock: &'static str, waited: Duration) {
        let (pool, device) = (self.id(), U::device(&self.upstream));
        emit_deferred(move || {
            let waited_ms = waited.as_millis() as u64;
            event!(
                warn, target: POOL, pool, device, lock, waited_ms,
                "a thread goes on without a lock that another one keeps in a call of upstream, which may wait for it"
            );
        });
    }

    /// Takes more from upstream, for the request's stream. One thread at a time grows; the others look
    /// again when they come in.
    pub(super) fn grow(
        &self,
        request: &Request<'_, U>,
        step: MissStep,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let Some(bytes) = request.padded_bytes(self.settings.alignment) else { return Ok(None) };
        let is_owner = self.growth_lock.is_owned_by_current_thread();
        let growth = self.lock_growth();
        // A callback of upstream, which grows, gives nothing back. Nor does a thread beside an upstream that waits for it.
        let is_nested = is_owner || growth.is_none();
        let (wait_first, _) = self.wait_is_better_and_live(bytes);
        if let Some(found) = self.take_before_growth(request, step == MissStep::Grow && wait_first)
        {
            return Ok(Some(found));
        }
        let (wait_first, live) = self.wait_is_better_and_live(bytes);
        if let Some(mapped) = self.upstream.mapped() {
            let (soft, maximum) =
                (self.settings.limits.soft_limit(), self.settings.limits.maximum());
            let limits = match step {
                MissStep::Grow if wait_first => return Ok(None),
                MissStep::Grow => MapLimits { moves: false, waits: false, new: Some(soft) },
                _ => MapLimits {
                    moves: true,
                    waits: wait_first && self.has_waits() && request.may_wait(),
                    new: Some(maximum),
                },
            };
            if limits.moves && request.fills_handles.get() {
                // What is free in handles of the wrong size goes back before the pool has more than it may: what the stream
                // itself freed, too, about which nobody has asked.
                let bound = self.bound_of_large(live, bytes);
                if self.reserved_bytes().saturating_add(bytes) > bound {
                    self.close_and_poll_all();
                }
                let new = Some(bound.min(maximum));
                if let Some(found) = self.map_for(request, mapped, MapLimits { new, ..limits })? {
                    return Ok(Some(found));
                }
            }
            return self.map_for(request, mapped, limits);
        }
        let limit = match step {
            MissStep::Grow if wait_first => return Ok(None),
            MissStep::Grow => self.settings.limits.soft_limit(),
            _ => self.settings.limits.maximum(),
        };
        let least = match (self.settings.growth_step, request.graph_upto) {
            (0, Some(_)) => LEAST_GROWTH,
            (0, None) => growth_for(live, bytes, self.grows_with_margin(bytes)),
            (step, _) => step,
        };
        let surplus = match is_nested {
            true => None,
            false => self.take_surplus(request, live, bytes.max(least), limit),
        };
        let Some(surplus) = surplus else {
            return self.grow_by(request, bytes, bytes.max(least), limit);
        };
        let wish = with_room(bytes, &surplus.blocks).min(surplus.room).max(bytes.max(least));
        // To give memory back may wait for the device, and call code of the upstream's.
        drop(growth);
        self.release_upstream(surplus.blocks);
        let _growth = self.lock_growth();
        self.grow_by(request, bytes, wish, limit)
    }

    /// Whether a range for large blocks has room for a size that differs by little. A pool with a maximum has
    /// none: all of the maximum serves blocks. Sizes of whole granules need none, since they pack without a
    /// rest, also in a pool below. The first range has room all the same: without it the next size would take a
    /// second range.
    fn grows_with_margin(&self, bytes: usize) -> bool {
        let is_first = self.reserved_bytes() == 0;
        !self.settings.limits.has_maximum() && (is_first || !bytes.is_multiple_of(LEAST_GROWTH))
    }

    /// What need not be asked of upstream: what another thread grew by, what caches hold unless a wait comes
    /// first, and what is ready by now and merges.
    fn take_before_growth(&self, request: &Request<'_, U>, wait_first: bool) -> Option<TakenBlock> {
        if !request.is_anywhere() {
            // Elsewhere it does not serve, but it can move.
            if request.graph_upto.is_none() {
                self.poll_and_merge_all(request);
            }
            return None;
        }
        if request.graph_upto.is_some() {
            return self.take_own(request).or_else(|| self.refill_from_shared(request));
        }
        // Whether caches are large is a matter of size, which no model has.
        let flushed = if MODELLED || wait_first { None } else { self.flush_if_due(request) };
        flushed.or_else(|| self.poll_and_coalesce_all(request))
    }

    /// Flushes the caches of the calling thread, unless it did so a few misses ago: a pool that is too
    /// small for all of them is to grow. Flushes those of all threads if they hold much.
    fn flush_if_due(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let (mut magazines, mut cached) = (0, 0);
        self.with_all_revoked(|_, classes| {
            magazines += 1;
            cached += classes.totals().1;
        });
        let misses = self.counters().misses.load(Ordering::Relaxed);
        let is_due = cached > 0 && misses >= self.next_flush.load(Ordering::Relaxed);
        let least = MIN_CACHED_TO_FLUSH_ALL.max(self.reserved_bytes() / 8).max(request.bytes());
        if (cached << UNIT_SHIFT) as usize >= least + magazines * MIN_CACHED_PER_MAGAZINE {
            self.flush_all();
        } else if !is_due {
            return None;
        }
        self.next_flush.store(misses + FLUSH_MISSES_PER_MAGAZINE * magazines, Ordering::Relaxed);
        self.flush_thread_magazines(request)
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
    fn bound_of_large(&self, live: usize, bytes: usize) -> usize {
        let peak = live.saturating_add(bytes).max(self.peak_live.load(Ordering::Relaxed));
        self.peak_live.store(peak, Ordering::Relaxed);
        peak.saturating_add(peak / LARGE_BOUND_DIVISOR).saturating_add(LARGE_SLACK)
    }

    /// Takes between `bytes` and `wish` from upstream into the request's heap, and the block from
    /// there. The caller has asked [`lock_growth`](Self::lock_growth), and has not `in_transit`: upstream may call back.
    pub(super) fn grow_by(
        &self,
        request: &Request<'_, U>,
        bytes: usize,
        wish: usize,
        limit: usize,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        let Request { slot, stream, graph_upto, .. } = *request;
        // For a graph it is complete memory, which upstream gives on another stream: no node of the
        // graph.
        let stream = graph_upto.is_none().then_some(stream);
        let Some(piece) = self.take_upstream(stream, bytes, wish, limit)? else { return Ok(None) };
        let _transit = self.in_transit.read();
        let mut heap = slot.heap();
        // Upstream gave it to this stream, from this point of it on: so it is the stream's own, and
        // for every other it is as if freed here and now.
        let stamp = if stream.is_some() { slot.epochs.current() } else { 0 };
        self.add(slot, &mut heap, request.tag(), Piece { stamp, ..piece });
        Ok(self.take_new(request, &mut heap))
    }

    /// Whether the pool may grow for the request under a limit, as of some moment.
    pub(super) fn fits(&self, request: &Request<'_, U>, limit: usize) -> bool {
        let bytes = request.padded_bytes(self.settings.alignment);
        let sum = bytes.and_then(|bytes| self.reserved_bytes().checked_add(bytes));
        sum.is_some_and(|sum| sum <= limit)
    }

    /// Asks upstream for `wish` bytes, or fewer where there is no room, but `least`.
    fn take_upstream(
        &self,
        stream: Option<&U::Stream>,
        least: usize,
        wish: usize,
        limit: usize,
    ) -> Result<Option<Piece>, Failure<U::Error>> {
        let mask = self.settings.alignment as usize - 1;
        let mut wish = wish.checked_add(mask).map_or(least, |sum| sum & !mask);
        loop {
            let reserved = self.upstream_blocks.lock().reserve(least, wish, limit & !mask);
            let Some(bytes) = reserved else { return Ok(None) };
            let begin = is_enabled().then(Instant::now);
            let _range = range(c"pool: grow", bytes);
            match self.upstream.allocate(stream, bytes) {
                Ok((address, block)) => {
                    count(&self.counters().growths);
                    let origin = Origin::Block(block);
                    let block = UpstreamBlock { address, bytes: bytes as u64, origin };
                    let upstream_block = {
                        let mut blocks = self.upstream_blocks.lock();
                        let number = blocks.new_number();
                        blocks.insert(number, block);
                        number
                    };
                    if let Some(begin) = begin {
                        let elapsed = begin.elapsed().as_nanos();
                        emit!(self, {
                            stream = stream.map_or(0, U::id), asked = least, bytes,
                            reserved = self.reserved_bytes(),
                            elapsed_ns = u64::try_from(elapsed).unwrap_or(u64::MAX),
                        }, "pool grew");
                    }
                    let bytes = bytes as u64;
                    return Ok(Some(Piece { upstream_block, address, bytes, stamp: 0 }));
                }
                Err(error) => {
                    self.upstream_blocks.lock().unreserve(bytes);
                    emit!(self, {
                        stream = stream.map_or(0, U::id), asked = least, bytes,
                        reserved = self.reserved_bytes(), error = error.to_string(),
                    }, "upstream refused");
                    if bytes == least || !U::is_exhausted(&error) {
                        return Err(Failure::Upstream(error));
                    }
                    wish = least.max((bytes / 2) & !mask);
                }
            }
        }
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

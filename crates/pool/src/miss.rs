//! What a pool does when a stream's own free memory does not serve.
//!
//! A miss takes the steps of its policy in order until one finds memory. A step uses these mechanisms, which know nothing of
//! each other, and looks again after each:
//!
//! | mechanism | file | steps |
//! | --- | --- | --- |
//! | a look at memory that needs no wait | `look` | all |
//! | threads' caches go to the heaps | `caches` | before the first, and growth, `Gather`, `Trim` |
//! | the last uses of free memory are waited for, by a question to the device, by the stream, by the host | `wait` | `Complete`; `Wait`, `Gather`; `Trim` |
//! | memory of upstream comes, or mapped memory moves | `grow`, `whole_blocks`, `mapping` | `Grow`, `GrowToMaximum`, `Gather` |
//! | memory goes back to upstream | `trim` | growth of blocks, `Trim` |

use super::callback::{CalledBack, Calls};
use super::core::Pool;
use super::events::emit;
use super::look::Candidates;
use super::mapping::MapLimits;
use super::miss_step::MissStep;
use super::placement::Search;
use super::ready::Polls;
use super::request::{Request, TakenBlock};
use super::upstream::{Failure, Mapped, Upstream, count};
use super::whole_blocks::{First, with_room};
use crate::debug_log::range;

/// How often a miss looks for memory to wait for, while other threads take what it sees.
const WAIT_ATTEMPTS: usize = 3;

/// What a step of a miss found.
type Found<U> = Result<Option<TakenBlock>, Failure<<U as Upstream>::Error>>;

impl<U: Upstream> Pool<U> {
    /// Memory for a stream whose own free memory did not serve.
    #[cold]
    pub(super) fn miss(&self, request: &Request<'_, U>) -> Result<TakenBlock, Failure<U::Error>> {
        count(&self.counters().misses);
        if self.upstream.is_capturing(request.stream)? {
            return Err(Failure::Captured);
        }
        let flushed = || match self.flush_thread_if_mergeable(request) {
            true => self.take_own(request),
            false => None,
        };
        let mut seen = None;
        let found = self
            .take_from_recent_owners(request)
            .or_else(flushed)
            .or_else(|| self.refill_from_shared(request))
            .or_else(|| self.steal_unpolled(request, &mut seen))
            .or_else(|| self.poll_own(request));
        found.map_or_else(|| self.take_steps(request, seen), Ok)
    }

    /// Memory for a graph. Nothing here gives the capturing stream work (INV-POOL-7).
    pub(super) fn miss_for_graph(
        &self,
        request: &Request<'_, U>,
    ) -> Result<TakenBlock, Failure<U::Error>> {
        count(&self.counters().misses);
        let found = self.look(request, Search::Exhaustive).or_else(|| {
            for source in self.stream_slots() {
                source.epochs.poll(&self.upstream, &mut source.epochs.lock());
            }
            self.look(request, Search::Exhaustive)
        });
        found.map_or_else(|| self.take_steps(request, None), Ok)
    }

    /// The steps of the policy, as far as they serve the request. `seen` is what a scan has found.
    pub(super) fn take_steps(
        &self,
        request: &Request<'_, U>,
        mut seen: Option<Candidates>,
    ) -> Result<TakenBlock, Failure<U::Error>> {
        let (mut last, mut calls, mut number) = (None, Calls::default(), 0);
        let steps = &self.settings.steps;
        loop {
            let step = steps.get(number);
            // Before the host waits, and before a refusal.
            if step.is_none_or(|step| *step == MissStep::Trim) {
                let waits =
                    step.is_none() && steps.contains(&MissStep::Trim) && request.may_block();
                if let Some(found) = self.grow_after_others(request, &last, waits) {
                    return Ok(found);
                }
                match self.call_back(request, last.as_ref(), &mut calls) {
                    CalledBack::Found(found) => return Ok(found),
                    CalledBack::Retry => {
                        (last, number, seen) = (None, 0, None);
                        continue;
                    }
                    CalledBack::GoOn => {}
                }
            }
            let Some(step) = step else { break };
            let is_last_growth = !steps[number..].iter().any(MissStep::grows);
            let before = match step {
                MissStep::Gather | MissStep::Trim if is_last_growth => self.look_anywhere(request),
                _ => None,
            };
            let found =
                before.map_or_else(|| self.take_step(request, *step, &mut seen), |it| Ok(Some(it)));
            match found {
                Ok(Some(found)) => return Ok(found),
                Err(Failure::Asleep) => return Err(Failure::Asleep),
                Ok(None) | Err(Failure::Captured | Failure::Gone | Failure::Crowded) => {}
                Err(Failure::Upstream(error))
                    if step.asks_upstream() && !U::is_exhausted(&error) =>
                {
                    return Err(Failure::Upstream(error));
                }
                Err(Failure::Upstream(error)) => last = Some(error),
                Err(Failure::Exhausted(error)) => last = error.or(last),
            }
            number += 1;
        }
        match (self.look_behind_others(request), last) {
            (Some(found), _) => Ok(found),
            (None, Some(error)) if !U::is_exhausted(&error) => Err(Failure::Upstream(error)),
            (None, error) => Err(Failure::Exhausted(error)),
        }
    }

    fn take_step(
        &self,
        request: &Request<'_, U>,
        step: MissStep,
        seen: &mut Option<Candidates>,
    ) -> Found<U> {
        let is_graph = request.graph_upto.is_some();
        match step {
            MissStep::Grow | MissStep::GrowToMaximum => self.grow(request, step),
            MissStep::Gather if !is_graph && request.may_block() => self.gather(request),
            MissStep::Trim if request.may_block() => self.wait_and_trim_for(request),
            // The others look where memory lies. A graph's has been looked for.
            _ if is_graph || !request.is_anywhere() => Ok(None),
            MissStep::Wait => self.steal_with_wait(request),
            MissStep::Complete | MissStep::Ordered => {
                if seen.is_none()
                    && let Some(found) = self.scan(request, seen.insert(Candidates::default()))
                {
                    return Ok(Some(found));
                }
                match (step, seen) {
                    (MissStep::Complete, Some(seen)) => Ok(self.poll_for(request, seen)),
                    _ => Ok(None),
                }
            }
            MissStep::Gather | MissStep::Trim => Ok(None),
        }
    }

    /// Takes a block of another stream without a question to the device, with a wait if need be: where a wait is
    /// what the policy comes to, and there is one stream to wait for. Elsewhere a question is worth its time:
    /// what is complete merges, and needs no wait.
    fn steal_unpolled(
        &self,
        request: &Request<'_, U>,
        seen: &mut Option<Candidates>,
    ) -> Option<TakenBlock> {
        if !self.waits_next(request) {
            return None;
        }
        let seen = seen.insert(Candidates::default());
        let mut found = self.scan(request, seen);
        // This thread's caches may have it. Memory is short, and what follows would flush those of all.
        if found.is_none() && seen.is_empty() && self.flush_thread() {
            found = self.take_own(request).or_else(|| self.scan(request, seen));
        }
        match found {
            None if seen.is_of_one_stream() => self.wait_for_one(request, seen).ok().flatten(),
            found => found,
        }
    }

    /// Whether a wait is the next step that can serve: the policy looks at ordered memory before it, and cannot
    /// grow, gather or trim before it.
    fn waits_next(&self, request: &Request<'_, U>) -> bool {
        let steps = &self.settings.steps;
        let Some(wait) = steps.iter().position(|step| *step == MissStep::Wait) else {
            return false;
        };
        let serves = |step: &MissStep| match step {
            MissStep::Grow => self.fits(request, self.settings.limits.soft_limit()),
            MissStep::GrowToMaximum => self.fits(request, self.settings.limits.maximum()),
            MissStep::Gather | MissStep::Trim => true,
            MissStep::Complete | MissStep::Ordered | MissStep::Wait => false,
        };
        steps[..wait].contains(&MissStep::Ordered) && !steps[..wait].iter().any(serves)
    }

    /// Asks the device about the candidates: more than once where the pool could grow instead, which takes the host a
    /// hundred times longer.
    fn poll_for(&self, request: &Request<'_, U>, seen: &Candidates) -> Option<TakenBlock> {
        if seen.is_empty() {
            return None;
        }
        self.close_candidates(seen);
        if let Some(found) = self.take_complete(request, seen) {
            return Some(found);
        }
        let may_grow = self.settings.steps.contains(&MissStep::Grow)
            && self.fits(request, self.settings.limits.soft_limit());
        let mut polls = if may_grow { Polls::brief(&*self.upstream) } else { Polls::once() };
        loop {
            self.poll_candidates(seen);
            let found = self.take_complete(request, seen);
            if found.is_some() || !polls.again() {
                return found;
            }
        }
    }

    /// Takes memory of other streams and makes the request's stream wait for it.
    fn steal_with_wait(&self, request: &Request<'_, U>) -> Found<U> {
        for _ in 0..WAIT_ATTEMPTS {
            // Since the last scan growth may have flushed caches, and another thread may have made its
            // stream own what was seen.
            let mut seen = Candidates::default();
            let found = match self.scan_some(request, &mut seen, usize::MAX, Search::Short) {
                None if seen.is_empty() => break,
                None => self.wait_for_one(request, &seen)?,
                found => found,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        let (waits, _) = self.wait_is_better_and_live(request.bytes());
        if waits { self.wait_for_heap(request) } else { Ok(None) }
    }

    /// Takes more from upstream, for the request's stream. One thread at a time grows; the others look
    /// again when they come in.
    fn grow(&self, request: &Request<'_, U>, step: MissStep) -> Found<U> {
        let Some(bytes) = request.padded_bytes(self.settings.alignment) else { return Ok(None) };
        let is_owner = self.growth_lock.is_owned_by_current_thread();
        let growth = self.lock_growth();
        // A callback of upstream, which grows, gives nothing back. Nor does a thread beside an upstream that waits for it.
        let is_nested = is_owner || growth.is_none();
        let waits_first = |is_better| step == MissStep::Grow && is_better;
        let (mut is_better, mut live) = self.wait_is_better_and_live(bytes);
        // What caches hold need not be asked of upstream, unless a wait comes first.
        if request.is_anywhere()
            && request.graph_upto.is_none()
            && !waits_first(is_better)
            && self.flush_if_due(request)
        {
            if let Some(found) = self.take_own(request) {
                return Ok(Some(found));
            }
            // More is free by now. What follows moves free memory, and makes none.
            (is_better, live) = self.wait_is_better_and_live(bytes);
        }
        if let Some(found) = self.look_before_growth(request) {
            return Ok(Some(found));
        }
        if waits_first(is_better) {
            return Ok(None);
        }
        let limits = &self.settings.limits;
        let limit = if step == MissStep::Grow { limits.soft_limit() } else { limits.maximum() };
        if let Some(mapped) = self.upstream.mapped() {
            let moves = step != MissStep::Grow;
            let waits = moves && is_better && self.has_waits() && request.may_wait();
            let limits = MapLimits { moves, waits, new: Some(limit) };
            if moves && request.fills_handles.get() {
                // What is free in handles of the wrong size goes back before the pool has more than it may: what the stream
                // itself freed, too, about which nobody has asked.
                let bound = self.bound_of_large(live, bytes);
                if self.reserved_bytes().saturating_add(bytes) > bound {
                    self.close_and_poll_all(None);
                }
                let new = Some(bound.min(limit));
                if let Some(found) = self.map(request, mapped, MapLimits { new, ..limits })? {
                    return Ok(Some(found));
                }
            }
            return self.map(request, mapped, limits);
        }
        let wish = self.growth_for(request, live, bytes);
        let surplus = if is_nested { None } else { self.take_surplus(request, live, wish, limit) };
        let Some(surplus) = surplus else { return self.grow_by(request, (bytes, wish), limit) };
        let wish = with_room(bytes, &surplus.blocks).min(surplus.room).max(wish);
        // To give memory back may wait for the device, and call code of the upstream's.
        drop(growth);
        self.release_blocks(surplus.blocks);
        let _growth = self.lock_growth();
        self.grow_by(request, (bytes, wish), limit)
    }

    /// What need not be asked of upstream: what another thread grew by, and what is ready by now and merges.
    fn look_before_growth(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        if request.graph_upto.is_some() {
            let found = || self.take_own(request).or_else(|| self.refill_from_shared(request));
            return if request.is_anywhere() { found() } else { None };
        }
        self.close_and_poll_all(Some(request.slot));
        self.merge_ready();
        // Elsewhere it does not serve, but it can move.
        if request.is_anywhere() { self.look(request, Search::Short) } else { None }
    }

    /// Makes the stream wait for all that freed memory. What is one piece nowhere becomes one: where it is mapped, handles move;
    /// else all pieces go to one heap.
    fn gather(&self, request: &Request<'_, U>) -> Found<U> {
        let _range = range(c"pool: gather", request.bytes());
        if let Some(mapped) = self.upstream.mapped() {
            self.flush_all();
            if !self.gathering_may_serve(request) {
                return Ok(None);
            }
            let waited = self.wait_for_all(request);
            let found = self.look_or_map(request, mapped, None)?;
            return if found.is_none() { waited.map(|()| None) } else { Ok(found) };
        }
        let _transit = self.in_transit.write();
        self.flush_all();
        if !self.gathering_may_serve(request) {
            return Ok(None);
        }
        let waited = self.wait_for_all(request);
        self.gather_own(request);
        emit!(self, {
            stream = U::id(request.stream), asked = request.bytes(),
            largest = request.slot.heap().largest_free(),
        }, "gathered free memory");
        let found = self.take_own(request);
        if found.is_none() { waited.map(|()| None) } else { Ok(found) }
    }

    /// Where gathering does not do, the host waits for the streams that freed memory. Whole blocks or handles go back until
    /// there is room for the request, and upstream is asked for it.
    fn wait_and_trim_for(&self, request: &Request<'_, U>) -> Found<U> {
        let _trim = self.lock_or_try_trim();
        let maximum = self.settings.limits.maximum();
        let bytes = request.padded_bytes(self.settings.alignment);
        let Some(bytes) = bytes.filter(|bytes| *bytes <= maximum) else { return Ok(None) };
        // Where memory is mapped, a policy without waits has its streams wait for none.
        let gathers = self.upstream.mapped().is_none() || self.has_waits();
        let gather = || match gathers && request.graph_upto.is_none() {
            true => self.gather(request).ok().flatten(),
            false => None,
        };
        if let Some(found) = gather() {
            return Ok(Some(found));
        }
        let _range = range(c"pool: trim for a request", bytes);
        self.flush_all();
        if !self.waiting_may_serve(request, maximum) {
            return Ok(None);
        }
        let served = match self.upstream.mapped() {
            Some(mapped) => self.wait_oldest_first(|| {
                self.merge_ready();
                self.look_or_map(request, mapped, Some(maximum))
            }),
            None => self.wait_oldest_first(|| self.replace_blocks(request, bytes, maximum)),
        };
        match served {
            Ok(Some(found)) => Ok(Some(found)),
            // What came meanwhile, while the host waited: it is of a later epoch.
            unserved => gather().map_or(unserved, |found| Ok(Some(found))),
        }
    }

    /// Gives whole blocks back that the device is past, until there is room for the request, and asks upstream for it.
    fn replace_blocks(&self, request: &Request<'_, U>, bytes: usize, maximum: usize) -> Found<U> {
        // What the maximum asks for first; everything, if upstream has no more.
        let mut target = maximum - bytes;
        loop {
            let blocks = {
                // INV-POOL-5. Free while upstream is called, as is the lock of growth while it takes memory back:
                // another thread may grow into the room.
                let _transit = self.in_transit.write();
                self.flush_all();
                self.move_complete_to_shared();
                if let Some(found) = self.look_under_lock(request) {
                    return Ok(Some(found));
                }
                self.extract_blocks(target, First::Largest)
            };
            let (is_last, wish) = (blocks.is_empty(), with_room(bytes, &blocks));
            self.release_blocks(blocks);
            let found = {
                let _growth = self.lock_growth();
                self.grow_by(request, (bytes, wish), maximum)
            };
            match &found {
                Ok(Some(_)) => return found,
                Err(_) if target > 0 => target = 0,
                _ if is_last => return found,
                _ => {}
            }
        }
    }

    /// Memory of the device that other pools of it give back, where there was no other. Behind waits for their streams, or
    /// of what the device is past.
    fn grow_after_others(
        &self,
        request: &Request<'_, U>,
        last: &Option<U::Error>,
        waits: bool,
    ) -> Option<TakenBlock> {
        let is_full = last.as_ref().is_some_and(U::is_device_full);
        if !is_full {
            return None;
        }
        let mut found = None;
        self.upstream.trim_others(self.id(), request.bytes(), waits, &mut || {
            let mut steps = self.settings.steps.iter().filter(|step| step.grows());
            found = steps.find_map(|step| self.grow(request, *step).ok().flatten());
            found.is_some()
        });
        found
    }

    /// Gives up that the request fills handles, and looks again: nothing can be mapped for it.
    fn look_anywhere(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let filled = request.fills_handles.replace(false);
        if filled { self.look(request, Search::Short) } else { None }
    }

    /// The last look, at what the steps pass over: behind many others, aligned by chance, or in other threads' hands
    /// (INV-POOL-5).
    fn look_behind_others(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        request.fills_handles.set(false);
        if request.is_anywhere() {
            self.drain_shared_into_own(request);
            if let Some(found) = self.look(request, Search::Exhaustive) {
                return Some(found);
            }
        }
        let mapped = self.upstream.mapped().filter(|_| request.may_block())?;
        let limits = &self.settings.limits;
        let limit = |step: &MissStep| match step {
            MissStep::Grow => Some(limits.soft_limit()),
            MissStep::GrowToMaximum | MissStep::Trim => Some(limits.maximum()),
            _ => None,
        };
        let steps = &self.settings.steps;
        if !steps.iter().any(|step| matches!(step, MissStep::Gather | MissStep::Trim)) {
            return None;
        }
        drop(self.in_transit.write());
        // A trim may have given it back.
        let new = steps.iter().filter_map(limit).max();
        self.look_or_map(request, mapped, new).ok().flatten()
    }

    /// Memory that is ready in a heap, or can be mapped into the request's: with new memory, up to so many bytes in all.
    fn look_or_map(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
        new: Option<usize>,
    ) -> Found<U> {
        let _growth = self.lock_growth();
        if request.is_anywhere()
            && let Some(found) = self.look(request, Search::Exhaustive)
        {
            return Ok(Some(found));
        }
        self.map(request, mapped, MapLimits { moves: true, waits: self.has_waits(), new })
    }
}

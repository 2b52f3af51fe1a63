//! What a pool does when a stream's own free memory does not serve: the steps of its policy, in
//! order, until one of them finds memory.

use super::core::Pool;
use super::local;
use super::miss_step::MissStep;
use super::placement::Search;
use super::request::{Request, TakenBlock};
use super::steal::Candidates;
use super::upstream::{Failure, Mapped, Upstream, count};

/// How often a miss looks for memory to wait for, while other threads take what it sees.
const WAIT_ATTEMPTS: usize = 3;

/// Tags of heaps that a miss of a small block looks at for memory that needs no wait. The next one goes on
/// behind them.
const SCAN_LIMIT: usize = 128;

/// The most bytes of a small block. A larger one is looked for in all heaps: where large blocks lay in any heap
/// that came first, pools grew by more (decision 7).
const MAX_SMALL: usize = 256 << 10;

impl<U: Upstream> Pool<U> {
    /// Memory for a stream whose own free memory did not serve.
    #[cold]
    pub(super) fn miss(&self, request: &Request<'_, U>) -> Result<TakenBlock, Failure<U::Error>> {
        count(&self.counters().misses);
        if self.upstream.is_capturing(request.stream)? {
            return Err(Failure::Captured);
        }
        let ready = self
            .take_from_recent_owners(request)
            .or_else(|| self.flush_thread_if_mergeable(request))
            .or_else(|| self.refill_from_shared(request));
        if let Some(found) = ready {
            return Ok(found);
        }
        let mut seen = None;
        if let Ok(Some(found)) = self.steal_unpolled(request, &mut seen) {
            return Ok(found);
        }
        if let Some(found) = self.poll_and_coalesce_own(request) {
            return Ok(found);
        }
        self.run_steps(request, |step| {
            if matches!(step, MissStep::Complete | MissStep::Ordered)
                && seen.is_none()
                && let Some(found) =
                    self.scan(request, seen.insert(Candidates::default()), scan_limit(request))
            {
                return Ok(Some(found));
            }
            match (step, &seen) {
                (MissStep::Complete, Some(seen)) => Ok(self.record_and_poll(request, seen)),
                (MissStep::Wait, _) => self.steal_with_wait(request),
                (MissStep::Gather, _) => match self.upstream.mapped() {
                    Some(mapped) => self.wait_for_all_and_map(request, mapped),
                    None => {
                        let _transit = self.in_transit.write();
                        self.gather(request)
                    }
                },
                (MissStep::Trim, _) => {
                    let _trim = self.lock_or_try_trim();
                    self.wait_and_trim_for(request)
                }
                _ => Ok(None),
            }
        })
    }

    /// Takes a block of another stream without a question to the device, with a wait if need be: where a wait is
    /// what the policy comes to, and there is one stream to wait for. Elsewhere a question is worth its time:
    /// what is complete merges, and needs no wait.
    fn steal_unpolled(
        &self,
        request: &Request<'_, U>,
        seen: &mut Option<Candidates>,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        if !self.waits_next(request) {
            return Ok(None);
        }
        let seen = seen.insert(Candidates::default());
        let mut found = self.scan(request, seen, scan_limit(request));
        if found.is_none() && seen.is_empty() {
            // This thread's caches may have it. Memory is short, and what follows would flush those of all.
            found = self.flush_thread_magazines(request);
            found = found.or_else(|| self.scan(request, seen, scan_limit(request)));
        }
        match found {
            None if seen.is_of_one_stream() => self.steal_one_with_wait(request, seen),
            found => Ok(found),
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

    /// Takes memory of other streams and makes the request's stream wait for it.
    fn steal_with_wait(
        &self,
        request: &Request<'_, U>,
    ) -> Result<Option<TakenBlock>, Failure<U::Error>> {
        for _ in 0..WAIT_ATTEMPTS {
            // Since the last scan growth may have flushed caches, and another thread may have made its
            // stream own what was seen.
            let mut seen = Candidates::default();
            let found = match self.scan(request, &mut seen, usize::MAX) {
                None if seen.is_empty() => break,
                None => self.steal_one_with_wait(request, &seen)?,
                found => found,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        let (waits, _) = self.wait_is_better_and_live(request.bytes());
        if waits { self.wait_and_merge_heap(request) } else { Ok(None) }
    }

    /// Memory that is mapped where the request wants it, by the steps of the policy that map some.
    pub(super) fn map_by_policy(
        &self,
        request: &Request<'_, U>,
        mapped: Mapped<'_, U>,
    ) -> Result<TakenBlock, Failure<U::Error>> {
        self.run_steps(request, |step| match step {
            MissStep::Gather | MissStep::Trim if !request.may_block() => Ok(None),
            MissStep::Gather if request.graph_upto.is_none() => {
                self.wait_for_all_and_map(request, mapped)
            }
            MissStep::Trim => {
                let _trim = self.lock_or_try_trim();
                self.wait_and_trim_for_graph(request)
            }
            _ => Ok(None),
        })
    }

    /// Memory for a graph. Nothing here gives the capturing stream work (INV-POOL-7).
    pub(super) fn miss_for_graph(
        &self,
        request: &Request<'_, U>,
    ) -> Result<TakenBlock, Failure<U::Error>> {
        count(&self.counters().misses);
        if let Some(found) = self.take_for_graph(request) {
            return Ok(found);
        }
        for source in self.stream_slots() {
            source.epochs.poll(&self.upstream, &mut source.epochs.lock());
        }
        if let Some(found) = self.take_for_graph(request) {
            return Ok(found);
        }
        self.run_steps(request, |step| match step {
            MissStep::Trim => {
                let _trim = self.lock_or_try_trim();
                self.wait_and_trim_for_graph(request)
            }
            _ => Ok(None),
        })
    }

    /// Takes the steps of the policy, growth itself and the others by `step`.
    fn run_steps(
        &self,
        request: &Request<'_, U>,
        mut step: impl FnMut(MissStep) -> Result<Option<TakenBlock>, Failure<U::Error>>,
    ) -> Result<TakenBlock, Failure<U::Error>> {
        let mut last = None;
        let steps = &self.settings.steps;
        let grows = |step: &MissStep| matches!(step, MissStep::Grow | MissStep::GrowToMaximum);
        for (number, one) in steps.iter().enumerate() {
            // Before the host waits.
            if matches!(one, MissStep::Trim)
                && let Some(found) = self.grow_after_others(request, &last, false)
            {
                return Ok(found);
            }
            if matches!(one, MissStep::Gather | MissStep::Trim)
                && !steps[number..].iter().any(grows)
                && let Some(found) = self.take_anywhere(request)
            {
                return Ok(found);
            }
            let found = match one {
                MissStep::Grow | MissStep::GrowToMaximum => self.grow(request, *one),
                other => step(*other),
            };
            match found {
                Ok(Some(found)) => return Ok(found),
                Ok(None) | Err(Failure::Captured | Failure::Gone | Failure::Crowded) => {}
                Err(Failure::Upstream(error))
                    if one.asks_upstream() && !U::is_exhausted(&error) =>
                {
                    return Err(Failure::Upstream(error));
                }
                Err(Failure::Upstream(error)) => last = Some(error),
                Err(Failure::Exhausted(error)) => last = error.or(last),
            }
        }
        let waits = self.settings.steps.contains(&MissStep::Trim) && request.may_block();
        if let Some(found) = self.grow_after_others(request, &last, waits) {
            return Ok(found);
        }
        request.fills_handles.set(false);
        // Blocks that the steps pass over: behind many others, or aligned by chance.
        let passed_over = match request.is_anywhere() {
            true => {
                self.drain_shared_into_own(request);
                self.take_ready(request)
            }
            false => None,
        };
        let found = passed_over.or_else(|| self.map_what_was_in_transit(request));
        match (found, last) {
            (Some(found), _) => Ok(found),
            (None, Some(error)) if !U::is_exhausted(&error) => Err(Failure::Upstream(error)),
            (None, error) => Err(Failure::Exhausted(error)),
        }
    }

    /// Memory of the device that other pools of it give back, where there was no other. Behind a wait for their streams, or
    /// of what the device is past.
    fn grow_after_others(
        &self,
        request: &Request<'_, U>,
        last: &Option<U::Error>,
        waits: bool,
    ) -> Option<TakenBlock> {
        let is_full = last.as_ref().is_some_and(U::is_device_full);
        if !is_full || !self.upstream.trim_others(self.id(), request.bytes(), waits) {
            return None;
        }
        let grows = |step: &&MissStep| matches!(step, MissStep::Grow | MissStep::GrowToMaximum);
        let mut steps = self.settings.steps.iter().filter(grows);
        steps.find_map(|step| self.grow(request, *step).ok().flatten())
    }

    /// Gives up that the request fills handles, and looks again at what needs no wait: nothing can be mapped for it.
    fn take_anywhere(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let filled = request.fills_handles.replace(false);
        if filled { self.take_without_wait(request) } else { None }
    }

    /// INV-POOL-5, of memory that is mapped: what other threads had in hand while the steps looked is in heaps again.
    fn map_what_was_in_transit(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let mapped = self.upstream.mapped().filter(|_| request.may_block())?;
        if !self.settings.steps.iter().any(|step| matches!(step, MissStep::Gather | MissStep::Trim))
        {
            return None;
        }
        drop(self.in_transit.write());
        let limits = &self.settings.limits;
        let limit = |step: &MissStep| match step {
            MissStep::Grow => Some(limits.soft_limit()),
            MissStep::GrowToMaximum | MissStep::Trim => Some(limits.maximum()),
            _ => None,
        };
        // A trim may have given it back.
        let new = self.settings.steps.iter().filter_map(limit).max();
        self.take_or_map(request, mapped, new).ok().flatten()
    }

    /// Memory that the stream freed into another's heap, for a small block.
    fn take_from_recent_owners(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let Request { slot, units, align, .. } = *request;
        if request.bytes() > MAX_SMALL {
            return None;
        }
        slot.recent_owners.find_map(|owner| {
            let taken = self.slot(owner)?.heap().allocate(slot.id, units, align, usize::MAX)?;
            Some(TakenBlock { owner, freed_by: slot.id, taken })
        })
    }

    /// Flushes the calling thread's own magazines, if their blocks could serve together and none could
    /// alone.
    fn flush_thread_if_mergeable(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
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
        let serves = largest < request.units && all >= u64::from(request.units);
        if serves { self.flush_thread_magazines(request) } else { None }
    }

    /// Flushes the calling thread's own magazines, of this stream and of others, which costs no
    /// barrier.
    pub(super) fn flush_thread_magazines(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
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
        if flushed { self.take_own(request) } else { None }
    }

    /// Memory for a graph that needs no wait.
    fn take_for_graph(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        self.take_own(request)
            .or_else(|| self.refill_from_shared(request))
            .or_else(|| self.take_ready(request))
    }

    /// A block of the stream's own free memory, of before the capture if it records a graph.
    pub(super) fn take_own(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let Request { slot, graph_upto, .. } = *request;
        let own = (slot.id, graph_upto.unwrap_or(usize::MAX));
        let taken = self.take_from(request, &mut slot.heap(), own, Search::Exhaustive)?;
        Some(TakenBlock { owner: slot.id, freed_by: slot.id, taken })
    }

    /// A block that needs no wait, in any heap. Misses none that serves.
    pub(super) fn take_ready(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        let Request { slot, graph_upto, .. } = *request;
        self.find_populated(|source| {
            source.heap().find_tag(|heap, tag| {
                // What the stream is ordered after it was before the capture, as was its own.
                let upto = match graph_upto {
                    Some(upto) if tag == slot.id => upto,
                    _ => self.ready_stamp(slot, tag),
                };
                let taken = self.take_from(request, heap, (tag, upto), Search::Exhaustive)?;
                if tag != slot.id {
                    count(&self.counters().steals);
                }
                Some(TakenBlock { owner: source.id, freed_by: tag, taken })
            })
        })
    }
}

fn scan_limit<U: Upstream>(request: &Request<'_, U>) -> usize {
    if request.bytes() > MAX_SMALL { usize::MAX } else { SCAN_LIMIT }
}

//! What a pool does when a stream's own free memory does not serve.

use super::core::{Pool, count};
use super::inbox::Freed;
use super::local;
use super::magazine::{Magazine, Shelves};
use super::reserve::Held;
use super::slot::{Slot, UNIT_SHIFT};
use super::upstream::{Failure, Upstream};
use crate::debug_log::{hold, is_wanted, range};
use crate::heap::{COMPLETE, Heap, Piece, Tag, Taken};
use std::time::Instant;

/// One thing that a pool tries on a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rung {
    /// Memory that other streams freed and the host has seen complete.
    Complete,
    /// Memory that other streams freed at points which the calling stream is already ordered after.
    Ordered,
    /// More memory from upstream, while the pool is under its soft limit.
    Grow,
    /// Memory of one other stream: the calling stream is made to wait for it, the host is not.
    Wait,
    /// More memory from upstream, up to the maximum size.
    GrowToMaximum,
    /// All free memory of the pool is gathered in one place, and the calling stream is made to wait
    /// for all streams that freed it.
    Gather,
    /// Free blocks of upstream are given back, and upstream is asked for one that fits. The host
    /// waits for the streams that used them.
    Trim,
}

impl Rung {
    fn asks_upstream(self) -> bool {
        matches!(self, Self::Grow | Self::GrowToMaximum | Self::Trim)
    }
}

/// Smallest growth, unless a step is set: 2 MiB, the driver's own granule.
pub(super) const LEAST_GROWTH: usize = 2 << 20;
/// Growth is an eighth of what is there, up to this.
const MOST_GROWTH: usize = 1 << 30;

/// How often the device is asked before the pool grows: some microseconds in all.
const ROUNDS: usize = 16;

/// Places where a miss saw memory that it may not take yet.
const CANDIDATES: usize = 8;

/// Free memory large enough, of a stream that the asking one is not ordered after.
#[derive(Clone, Copy)]
struct Candidate {
    home: Tag,
    tag: Tag,
    /// No free block of the tag has an earlier stamp.
    oldest: usize,
    /// None has a later one.
    latest: usize,
}

#[derive(Default)]
struct Candidates {
    known: [Option<Candidate>; CANDIDATES],
    length: usize,
}

impl Candidates {
    fn push(&mut self, candidate: Candidate) {
        if let Some(place) = self.known.get_mut(self.length) {
            *place = Some(candidate);
            self.length += 1;
        }
    }

    fn iter(&self) -> impl Iterator<Item = Candidate> + '_ {
        self.known.iter().flatten().copied()
    }
}

/// One request on its way through the rungs.
struct Request<'a, U: Upstream> {
    slot: &'a Slot<U>,
    stream: &'a U::Stream,
    units: u32,
    align: u64,
}

impl<U: Upstream> Request<'_, U> {
    fn bytes(&self) -> usize {
        (self.units as usize) << UNIT_SHIFT
    }
}

type Found = (Tag, Taken);

impl<U: Upstream> Pool<U> {
    /// The stream's own free memory did not serve.
    #[cold]
    pub(super) fn miss(
        &self,
        slot: &Slot<U>,
        stream: &U::Stream,
        units: u32,
        align: u64,
    ) -> Result<Found, Failure<U::Error>> {
        count(&self.counters.misses);
        if self.upstream.is_capturing(stream)? {
            return Err(Failure::Captured);
        }
        let request = Request { slot, stream, units, align };
        let ready = self.own_magazines(&request).or_else(|| self.draw(&request));
        if let Some(found) = ready {
            return Ok(found);
        }
        let mut last = None;
        let mut candidates = None;
        for rung in &self.settings.rungs {
            let found = match rung {
                Rung::Complete => {
                    if let Some(found) = self.survey(&request, &mut candidates) {
                        return Ok(found);
                    }
                    Ok(self.complete(&request, candidates.as_ref()))
                }
                Rung::Ordered => Ok(self.survey(&request, &mut candidates)),
                Rung::Grow => self.grow(&request, self.settings.soft_limit),
                Rung::GrowToMaximum => self.grow(&request, self.settings.maximum),
                Rung::Wait => {
                    if let Some(found) = self.survey(&request, &mut candidates) {
                        return Ok(found);
                    }
                    self.wait_for_one(&request, candidates.as_ref())
                }
                Rung::Gather => {
                    let _turn = self.turn.lock();
                    let _all = self.moving.write();
                    self.gather(&request)
                }
                Rung::Trim => {
                    let _turn = self.turn.lock();
                    self.trim_for(&request)
                }
            };
            match found {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(Failure::Upstream(error))
                    if rung.asks_upstream() && !U::is_exhausted(&error) =>
                {
                    return Err(Failure::Upstream(error));
                }
                Err(Failure::Upstream(error)) => last = Some(error),
                Err(Failure::Captured | Failure::Gone) => {}
                Err(Failure::Exhausted(error)) => last = error.or(last),
                Err(Failure::Crowded) => return Err(Failure::Crowded),
            }
        }
        match last {
            Some(error) if !U::is_exhausted(&error) => Err(Failure::Upstream(error)),
            error => Err(Failure::Exhausted(error)),
        }
    }

    /// What the calling thread itself keeps: of this stream, and of others, which costs no barrier.
    fn own_magazines(&self, request: &Request<'_, U>) -> Option<Found> {
        let mut gave = false;
        local::each_stocked(self.id, |magazine| {
            // SAFETY: this thread's own magazine, and heaps enter none.
            let emptied = unsafe {
                magazine.enter(|shelves| {
                    gave |= shelves.contents().0 > 0;
                    self.raid(magazine, shelves);
                    shelves.unlist();
                })
            };
            emptied.is_some()
        });
        if !gave {
            return None;
        }
        self.own(request)
    }

    fn own(&self, request: &Request<'_, U>) -> Option<Found> {
        let taken = request.slot.allocate(request.units, request.align)?;
        Some((request.slot.tag, taken))
    }

    /// The last stamp of `tag` that needs no wait of the request's stream.
    pub(super) fn ready(&self, slot: &Slot<U>, tag: Tag) -> usize {
        if tag == slot.tag || tag == COMPLETE {
            return usize::MAX;
        }
        let completed = self.slot(tag).map_or(0, |source| source.epochs.completed());
        completed.max(slot.epochs.ordered_after(tag))
    }

    /// Looks through all heaps for memory that needs no wait; notes where there is some that does.
    fn survey(
        &self,
        request: &Request<'_, U>,
        candidates: &mut Option<Candidates>,
    ) -> Option<Found> {
        if candidates.is_some() {
            return None;
        }
        let candidates = candidates.insert(Candidates::default());
        self.find_home(|source| {
            let mut heap = source.heap();
            let home = source.tag;
            if home == request.slot.tag && self.absorb(request.slot, &mut heap) {
                let own = heap.allocate(home, request.units, request.align, usize::MAX);
                if let Some(taken) = own {
                    return Some((home, taken));
                }
            }
            let mut from = 0;
            while let Some((place, tag)) = heap.tag_from(from) {
                from = place + 1;
                if heap.at_most(tag) < request.units || tag == home && home == request.slot.tag {
                    continue;
                }
                let ready = self.ready(request.slot, tag);
                let oldest = heap.oldest(tag);
                if oldest <= ready
                    && let Some(taken) = heap.allocate(tag, request.units, request.align, ready)
                {
                    if tag != request.slot.tag {
                        count(&self.counters.steals);
                        drop(heap);
                        self.note_steal(request.stream, tag, request.bytes(), "ordered");
                    }
                    return Some((home, taken));
                }
                let latest = heap.latest(tag);
                candidates.push(Candidate { home, tag, oldest, latest });
            }
            None
        })
    }

    /// Makes the stream's own what other streams freed into its heap and it is ordered after.
    fn absorb(&self, slot: &Slot<U>, heap: &mut Heap) -> bool {
        let mut moved = 0;
        let mut from = 0;
        while let Some((place, tag)) = heap.tag_from(from) {
            from = place + 1;
            let ready = self.ready(slot, tag);
            if tag != slot.tag && heap.oldest(tag) <= ready {
                moved += heap.retag(tag, ready, slot.tag, slot.epochs.open());
            }
        }
        moved > 0
    }

    /// Moves complete memory from the bank into the stream's heap, more than is asked, so that the
    /// bank is seldom needed.
    fn draw(&self, request: &Request<'_, U>) -> Option<Found> {
        let bank = self.slot(COMPLETE).filter(|bank| bank.may_have_free())?;
        let least = request.units.checked_add(padding(request.align, self.settings.alignment))?;
        let _moving = self.moving.read();
        let piece = {
            let mut heap = bank.heap();
            let most = heap.at_most(COMPLETE);
            if most < least {
                bank.set_filled(most > 0);
                return None;
            }
            // A part of what is left: the other streams come, too.
            let share = (heap.account().free_bytes >> UNIT_SHIFT) / 16;
            let share = share.clamp(LEAST_GROWTH as u64 >> UNIT_SHIFT, u64::from(u32::MAX)) as u32;
            // What stays behind is aligned, too.
            let share = share & !((self.settings.alignment >> UNIT_SHIFT) as u32 - 1);
            heap.cut(COMPLETE, least, share.max(least), usize::MAX)?
        };
        let mut heap = request.slot.heap();
        self.add(request.slot, &mut heap, request.slot.tag, Piece { stamp: 0, ..piece });
        let taken = heap.allocate(request.slot.tag, request.units, request.align, usize::MAX)?;
        Some((request.slot.tag, taken))
    }

    /// Asks the device whether the memory that was seen is complete, and closes the epochs of the
    /// streams that it belongs to, so that this miss or the next can be told. Where the pool could
    /// grow instead, which takes the host a hundred times longer, it asks more than once.
    fn complete(&self, request: &Request<'_, U>, candidates: Option<&Candidates>) -> Option<Found> {
        let candidates = candidates.filter(|seen| seen.length > 0)?;
        for candidate in candidates.iter() {
            let Some(source) = self.slot(candidate.tag) else { continue };
            if source.epochs.completed() < candidate.latest && source.captured() == 0 {
                let mut record = source.epochs.lock();
                if record.newest() >= candidate.oldest {
                    source.epochs.poll(&self.upstream, &mut record);
                }
                // A failure leaves things as they are: the memory is not ready.
                let _ = self.close_past(source, &mut record, candidate.latest);
            }
        }
        let grows = self
            .needed(request)
            .is_some_and(|bytes| self.has_room(bytes, self.settings.soft_limit));
        let rounds = if grows && self.settings.rungs.contains(&Rung::Grow) { ROUNDS } else { 0 };
        for round in 0..=rounds {
            for candidate in candidates.iter() {
                let Some(source) = self.slot(candidate.tag) else { continue };
                if round > 0 && source.epochs.completed() < candidate.latest {
                    source.epochs.poll(&self.upstream, &mut source.epochs.lock());
                }
                let completed = source.epochs.completed();
                let Some(home) = self.slot(candidate.home) else { continue };
                if completed < candidate.oldest {
                    continue;
                }
                let (units, align) = (request.units, request.align);
                let taken = home.heap().allocate(candidate.tag, units, align, completed);
                if let Some(taken) = taken {
                    count(&self.counters.steals);
                    self.note_steal(request.stream, candidate.tag, request.bytes(), "complete");
                    return Some((candidate.home, taken));
                }
            }
        }
        None
    }

    fn close_past(
        &self,
        source: &Slot<U>,
        record: &mut super::epochs::Record<U>,
        stamp: usize,
    ) -> Result<(), Failure<U::Error>> {
        let before = record.newest();
        source.epochs.close_past(&self.upstream, record, stamp)?;
        if record.newest() != before {
            count(&self.counters.records);
        }
        Ok(())
    }

    /// Blocks until the device has passed `stamp` of the stream.
    fn synchronize(
        &self,
        source: &Slot<U>,
        record: &mut super::epochs::Record<U>,
        stamp: usize,
    ) -> Result<(), Failure<U::Error>> {
        self.close_past(source, record, stamp)?;
        source.epochs.synchronize(&self.upstream, record, stamp)
    }

    /// Makes the request's stream ordered after `stamp` of `tag`.
    pub(super) fn order(
        &self,
        slot: &Slot<U>,
        stream: &U::Stream,
        tag: Tag,
        stamp: usize,
    ) -> Result<(), Failure<U::Error>> {
        if stamp <= self.ready(slot, tag) {
            return Ok(());
        }
        let source = self.slot(tag).ok_or(Failure::Gone)?;
        if source.captured() != 0 {
            return Err(Failure::Captured);
        }
        let mut record = source.epochs.lock();
        self.close_past(source, &mut record, stamp)?;
        let target = (&slot.epochs, stream);
        let waited = source.epochs.order(&self.upstream, &mut record, (tag, stamp), target)?;
        if waited {
            count(&self.counters.waits);
        }
        Ok(())
    }

    /// Takes one block of another stream and makes the request's stream wait for it.
    fn wait_for_one(
        &self,
        request: &Request<'_, U>,
        candidates: Option<&Candidates>,
    ) -> Result<Option<Found>, Failure<U::Error>> {
        let mut failed = None;
        for candidate in candidates.into_iter().flat_map(Candidates::iter) {
            let Some(home) = self.slot(candidate.home) else { continue };
            let (units, align) = (request.units, request.align);
            // Taken first, so that nobody else comes before; nobody uses it until the order is made.
            let taken = home.heap().allocate(candidate.tag, units, align, usize::MAX);
            let Some(taken) = taken else { continue };
            let _range = range(c"pool: wait for a stream", request.bytes());
            match self.order(request.slot, request.stream, candidate.tag, taken.stamp) {
                Ok(()) => {
                    count(&self.counters.steals);
                    self.note_steal(request.stream, candidate.tag, request.bytes(), "waited");
                    return Ok(Some((candidate.home, taken)));
                }
                Err(error) => {
                    // Back as it was: no nearer to being ready than before.
                    let Taken { node, stamp, .. } = taken;
                    #[cfg(not(aquifer_fault = "failed_wait_loses_block"))]
                    home.free(Freed { node, tag: candidate.tag, stamp });
                    #[cfg(aquifer_fault = "failed_wait_loses_block")]
                    let _ = (node, stamp);
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Takes more from upstream, for the request's stream.
    fn grow(
        &self,
        request: &Request<'_, U>,
        limit: usize,
    ) -> Result<Option<Found>, Failure<U::Error>> {
        let Some(bytes) = self.needed(request).filter(|need| self.has_room(*need, limit)) else {
            return Ok(None);
        };
        let wish = match self.settings.step {
            0 => {
                // Of what the stream has, not the pool: streams that come and go would leave the
                // pool as large as each of them would have wanted it.
                let own = request.slot.heap().account().total_bytes as usize;
                bytes.max((own / 8).min(MOST_GROWTH)).max(LEAST_GROWTH)
            }
            step => bytes.max(step),
        };
        #[cfg(not(aquifer_fault = "growth_in_hand"))]
        let _moving = self.moving.read();
        let grown = self.reserve_more(Some(request.stream), bytes, wish, limit)?;
        let Some(piece) = grown else { return Ok(None) };
        let mut heap = request.slot.heap();
        // Upstream gave it to this stream, from this point of it on: so it is the stream's own, and
        // for every other it is as if freed here and now.
        #[cfg(not(aquifer_fault = "growth_is_complete"))]
        let stamp = request.slot.epochs.open();
        #[cfg(aquifer_fault = "growth_is_complete")]
        let stamp = 0;
        self.add(request.slot, &mut heap, request.slot.tag, Piece { stamp, ..piece });
        let taken = heap.allocate(request.slot.tag, request.units, request.align, usize::MAX);
        Ok(taken.map(|taken| (request.slot.tag, taken)))
    }

    /// Whether the pool may grow by so much, as of some moment.
    fn has_room(&self, bytes: usize, limit: usize) -> bool {
        self.reserve.lock().bytes().checked_add(bytes).is_some_and(|sum| sum <= limit)
    }

    /// The bytes of a fresh range that serves the request for sure.
    fn needed(&self, request: &Request<'_, U>) -> Option<usize> {
        let units = request.units.checked_add(padding(request.align, self.settings.alignment))?;
        (units as usize).checked_mul(1 << UNIT_SHIFT)
    }

    /// Asks upstream for `wish` bytes, or fewer where there is no room, but `least`.
    pub(super) fn reserve_more(
        &self,
        stream: Option<&U::Stream>,
        least: usize,
        wish: usize,
        limit: usize,
    ) -> Result<Option<Piece>, Failure<U::Error>> {
        let mask = self.settings.alignment as usize - 1;
        let mut wish = wish.checked_add(mask).map_or(least, |sum| sum & !mask);
        loop {
            let limit = limit & !mask;
            let Some(bytes) = self.reserve.lock().count_in(least, wish, limit) else {
                return Ok(None);
            };
            let begin = is_wanted().then(Instant::now);
            let _range = range(c"pool: grow", bytes);
            match self.upstream.obtain(stream, bytes) {
                Ok((address, range)) => {
                    count(&self.counters.growths);
                    let grown = bytes;
                    let bytes = bytes as u64;
                    let range = self.reserve.lock().insert(Held { address, bytes, range });
                    if let Some(begin) = begin {
                        self.note_growth(stream, least, grown, begin.elapsed());
                    }
                    return Ok(Some(Piece { range, address, bytes, stamp: 0 }));
                }
                Err(error) => {
                    self.reserve.lock().count_out(bytes);
                    self.note_refusal(stream, least, bytes, &error);
                    if bytes == least || !U::is_exhausted(&error) {
                        return Err(Failure::Upstream(error));
                    }
                    wish = least.max((bytes / 2) & !mask);
                }
            }
        }
    }

    /// Empties every magazine of every thread into the heaps.
    pub(super) fn reclaim_all(&self) {
        self.each_magazine(|magazine, shelves| self.raid(magazine, shelves));
    }

    /// Goes through the magazines of all threads.
    pub(super) fn each_magazine(&self, each: impl FnMut(&Magazine, &mut Shelves)) {
        let _one = self.reclaiming.lock();
        let mut all = Vec::new();
        for slot in self.all_slots() {
            all.extend(slot.magazines.lock().iter().cloned());
        }
        // SAFETY: under the reclaimers' lock.
        unsafe { Magazine::reclaim(all.iter().map(|magazine| &**magazine), each) }
    }

    /// Brings all free memory of the pool into the stream's heap, ordered, and so in one piece where
    /// its addresses are. The caller has the turn.
    fn gather(&self, request: &Request<'_, U>) -> Result<Option<Found>, Failure<U::Error>> {
        let _range = range(c"pool: gather", request.bytes());
        self.reclaim_all();
        let Request { slot, stream, .. } = request;
        let mut failed = None;
        let mut pieces = Vec::new();
        for source in self.all_slots() {
            let mut next = 0;
            loop {
                let (tag, latest) = {
                    let heap = source.heap();
                    let Some(tag) = nth_tag(&heap, next) else { break };
                    (tag, heap.latest(tag))
                };
                next += 1;
                if tag == slot.tag && source.tag == slot.tag {
                    continue;
                }
                #[cfg(not(aquifer_fault = "gather_without_order"))]
                if let Err(error) = self.order(slot, stream, tag, latest) {
                    failed = Some(error);
                    continue;
                }
                #[cfg(aquifer_fault = "gather_without_order")]
                let _ = (stream, &mut failed);
                if source.tag == slot.tag {
                    source.heap().retag(tag, latest, slot.tag, slot.epochs.open());
                } else {
                    source.heap().cut_all(tag, latest, &mut pieces);
                }
                // The tag is gone from the list, unless somebody freed meanwhile.
                next -= 1;
                next += usize::from(nth_tag(&source.heap(), next) == Some(tag));
            }
        }
        let stamp = slot.epochs.open();
        {
            let mut heap = slot.heap();
            for piece in pieces {
                self.add(slot, &mut heap, slot.tag, Piece { stamp, ..piece });
            }
        }
        if is_wanted() {
            let largest = slot.heap().largest_free();
            self.note_gathering(stream, request.bytes(), largest);
        }
        match (self.own(request), failed) {
            (Some(found), _) => Ok(Some(found)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// Gives whole blocks of upstream back until one of the request's size may be asked for, and asks.
    /// The host waits for the stream, which waits for the others. The caller has the turn.
    fn trim_for(&self, request: &Request<'_, U>) -> Result<Option<Found>, Failure<U::Error>> {
        let Some(bytes) = self.needed(request).filter(|need| *need <= self.settings.maximum) else {
            return Ok(None);
        };
        let _range = range(c"pool: trim for a request", bytes);
        {
            let _all = self.moving.write();
            if let Some(found) = self.gather(request)? {
                return Ok(Some(found));
            }
        }
        let Request { slot, stream, .. } = request;
        let stamp = slot.epochs.open();
        {
            let mut record = slot.epochs.lock();
            self.synchronize(slot, &mut record, stamp)?;
        }
        let _all = self.moving.write();
        // What came meanwhile, while the host waited. It is of a later epoch.
        if let Some(found) = self.gather(request)? {
            return Ok(Some(found));
        }
        // What the maximum asks for first; everything, if upstream has no more.
        for all in [false, true] {
            let target = if all { 0 } else { self.settings.maximum.saturating_sub(bytes) };
            let mut heap = slot.heap();
            heap.retag(slot.tag, stamp, COMPLETE, 0);
            let returned = self.cut_whole(&mut heap, target);
            heap.retag(COMPLETE, usize::MAX, slot.tag, 0);
            drop(heap);
            self.give_all_back(returned);
            let maximum = self.settings.maximum;
            match self.reserve_more(Some(stream), bytes, bytes, maximum) {
                Ok(Some(piece)) => {
                    let mut heap = slot.heap();
                    let piece = Piece { stamp: slot.epochs.open(), ..piece };
                    self.add(slot, &mut heap, slot.tag, piece);
                    drop(heap);
                    return Ok(self.own(request));
                }
                Ok(None) => return Ok(None),
                Err(error) if all => return Err(error),
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Cuts whole blocks of upstream that are complete out of a heap, until `target` bytes are
    /// reserved.
    pub(super) fn cut_whole(&self, heap: &mut Heap, target: usize) -> Vec<Held<U::Range>> {
        let mut reserve = self.reserve.lock();
        let mut cut = Vec::new();
        for (number, address, bytes) in reserve.largest_first() {
            if reserve.bytes() <= target {
                break;
            }
            if heap.cut_exactly(number, address, bytes)
                && let Some(held) = reserve.remove(number)
            {
                cut.push(held);
            }
        }
        cut
    }

    /// Returns how many bytes.
    fn give_all_back(&self, returned: Vec<Held<U::Range>>) -> usize {
        let blocks = returned.len();
        let bytes = returned.iter().map(|held| held.bytes as usize).sum();
        for held in returned {
            count(&self.counters.returns);
            self.upstream.give_back(None, held.range);
        }
        self.note_return(blocks, bytes);
        bytes
    }

    /// Gives whole free blocks of upstream back until `keep` bytes are reserved. Blocks the host
    /// until the streams that freed them are done. Returns how many bytes went back.
    pub fn trim(&self, keep: usize) -> Result<usize, Failure<U::Error>> {
        let _held = hold();
        let _range = range(c"pool: trim", keep);
        let _turn = self.turn.lock();
        self.reclaim_all();
        let mut failed = None;
        for source in self.all_slots().filter(|source| !source.is_bank()) {
            if source.captured() != 0 {
                failed = Some(Failure::Captured);
                continue;
            }
            let mut record = source.epochs.lock();
            let stamp = match record.stream {
                Some(_) => source.epochs.open(),
                None => record.newest(),
            };
            if let Err(error) = self.synchronize(source, &mut record, stamp) {
                failed = Some(error);
            }
        }
        #[cfg(not(aquifer_fault = "trim_beside_growth"))]
        let _all = self.moving.write();
        self.bank_complete();
        let returned = match self.slot(COMPLETE) {
            Some(bank) => self.cut_whole(&mut bank.heap(), keep),
            None => Vec::new(),
        };
        let bytes = self.give_all_back(returned);
        match failed {
            Some(error) if bytes == 0 => Err(error),
            _ => Ok(bytes),
        }
    }

    /// Moves what is known to be complete from all heaps to the bank.
    pub(super) fn bank_complete(&self) {
        let mut pieces = Vec::new();
        for source in self.all_slots().filter(|source| !source.is_bank()) {
            let mut heap = source.heap();
            let mut next = 0;
            while let Some(tag) = nth_tag(&heap, next) {
                next += 1;
                let completed = if cfg!(aquifer_fault = "trim_of_pending") {
                    usize::MAX
                } else {
                    self.slot(tag).map_or(0, |slot| slot.epochs.completed())
                };
                let before = pieces.len();
                heap.cut_all(tag, completed, &mut pieces);
                if pieces.len() > before && nth_tag(&heap, next - 1) != Some(tag) {
                    next -= 1;
                }
            }
        }
        if let Some(bank) = self.slot(COMPLETE) {
            let mut heap = bank.heap();
            bank.set_filled(true);
            for piece in pieces {
                heap.add(COMPLETE, Piece { stamp: 0, ..piece });
            }
        }
    }

    /// Takes complete memory from upstream into the bank.
    pub fn prepare(&self, bytes: usize) -> Result<(), Failure<U::Error>> {
        let _held = hold();
        let _moving = self.moving.read();
        let piece = self.reserve_more(None, bytes, bytes, self.settings.maximum)?;
        if let (Some(piece), Some(bank)) = (piece, self.slot(COMPLETE)) {
            bank.heap().add(COMPLETE, piece);
            bank.set_filled(true);
        }
        Ok(())
    }
}

/// The tags are few, and change under the loops that go through them.
pub(super) fn nth_tag(heap: &Heap, index: usize) -> Option<Tag> {
    heap.tags().nth(index)
}

/// Units that an alignment may cost in memory that is aligned to `granted`.
pub(super) fn padding(align: u64, granted: u64) -> u32 {
    u32::try_from(align.saturating_sub(granted) >> UNIT_SHIFT).unwrap_or(u32::MAX)
}

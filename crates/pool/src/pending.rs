//! Free memory that the device may still use, and the host's waits for it.
//!
//! Memory is *pending* from its free until the device is seen past the epoch of the free. A request that waits has the
//! device asked for the streams with pending memory, the one first whose memory is pending for longest. It looks whether
//! there is enough as soon as the device is past one of them. So it waits for no stream that has nothing pending, nor
//! for one that is late where others have enough.
//!
//! | memory is pending since | which is told by | asked for |
//! | --- | --- | --- |
//! | an epoch that is closed | the number of its close among all of the process | the lowest number first |
//! | an epoch that could not be closed | nothing | last, and not where a declared capture has the stream |
//!
//! What was pending when the waits began is waited for. What other threads free meanwhile is not, so the waits end.

use super::addresses::Vacated;
use super::block::SlotId;
use super::core::Pool;
use super::ready::Polls;
use super::request::Request;
use super::upstream::{Failure, Upstream};
use crate::heap::FreeBlock;
use crate::sync::MODELLED;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the host sleeps between two questions: at first as long as a kernel takes, then longer each time.
const LEAST_PAUSE: Duration = Duration::from_micros(20);
const MOST_PAUSE: Duration = Duration::from_millis(1);
/// Questions before a pause to a device that works only when it is asked.
const QUESTIONS: usize = 1024;

/// What one stream freed and the device may still use.
struct Pending {
    /// The earliest stamp and the latest one.
    oldest: usize,
    latest: usize,
    bytes: u64,
}

/// The streams that the host still may wait for, each with the last stamp that it waits for.
struct Waits<E> {
    left: BTreeMap<SlotId, usize>,
    /// The last error of a wait.
    failed: Option<Failure<E>>,
}

impl<U: Upstream> Pool<U> {
    /// Bytes that are free, outside of magazines, and that the device may still use: it is asked, and no event recorded.
    pub fn pending_bytes(&self) -> usize {
        for slot in self.stream_slots() {
            slot.epochs.poll(&self.upstream, &mut slot.epochs.lock());
        }
        self.pending_by_stream(Self::is_released)
            .values()
            .map(|pending| pending.bytes as usize)
            .sum()
    }

    /// Since which event of the process memory is pending here, if some is: a pool with a lower number comes first.
    pub fn pending_since(&self) -> Option<u64> {
        self.flush_all();
        self.close_and_poll_all(None);
        let pending = self.pending_by_stream(Self::is_released).into_iter();
        pending.map(|(id, pending)| self.closed_at(id, pending.oldest).unwrap_or(u64::MAX)).min()
    }

    /// Waits for all that is pending, has `give_back` give it back, and waits for the further addresses of that. Returns an
    /// error of a wait.
    pub(super) fn wait_for_all_pending(
        &self,
        mut give_back: impl FnMut(),
    ) -> Option<Failure<U::Error>> {
        self.close_and_poll_all(None);
        let mut waits = self.waits();
        loop {
            while self.wait_for_oldest(&mut waits) {}
            give_back();
            if !self.wait_for_oldest(&mut waits) {
                return waits.failed;
            }
        }
    }

    /// Asks `serve` until it serves: at once, and after each wait for the stream whose memory is pending for longest. An
    /// error other than that upstream is exhausted ends it. All caches are flushed.
    pub(super) fn wait_oldest_first<T>(
        &self,
        mut serve: impl FnMut() -> Result<Option<T>, Failure<U::Error>>,
    ) -> Result<Option<T>, Failure<U::Error>> {
        self.close_and_poll_all(None);
        let mut waits = None;
        loop {
            let served = serve();
            let is_over = match &served {
                Ok(found) => found.is_some(),
                Err(Failure::Upstream(error)) => !U::is_exhausted(error),
                Err(_) => false,
            };
            if is_over {
                return served;
            }
            let waits = waits.get_or_insert_with(|| self.waits());
            if !self.wait_for_oldest(waits) {
                return match (served, waits.failed.take()) {
                    // A device that is lost is no lack of memory.
                    (Ok(None), Some(Failure::Upstream(error))) if !U::is_captured(&error) => {
                        Err(Failure::Upstream(error))
                    }
                    (served, _) => served,
                };
            }
        }
    }

    /// Whether all free memory in one heap, in the order of one stream, may serve the request: what cannot is no reason to
    /// make a stream wait for the others. All caches are flushed.
    pub(super) fn gathering_may_serve(&self, request: &Request<'_, U>) -> bool {
        let mut free = Vec::new();
        self.each_free_block(|block| free.push((block.address, block.end())));
        if self.upstream.mapped().is_some() {
            let total: u64 = free.iter().map(|(start, end)| end - start).sum();
            return total >= request.bytes() as u64;
        }
        free.sort_unstable();
        let (mut from, mut upto) = (0, 0);
        free.into_iter().any(|(start, end)| {
            if start != upto {
                from = start;
            }
            upto = end;
            upto - from >= request.bytes() as u64
        })
    }

    /// Whether all free memory, with what the pool may grow by, has the bytes of the request: where it has not, no wait helps.
    /// All caches are flushed.
    pub(super) fn waiting_may_serve(&self, request: &Request<'_, U>, maximum: usize) -> bool {
        let mut free = maximum.saturating_sub(self.reserved_bytes()) as u64;
        self.each_free_block(|block| free = free.saturating_add(block.end() - block.address));
        let vacated = self.vacated.lock();
        let released = vacated.iter().map(|one| one.released as u64).sum::<u64>();
        free.saturating_add(released) >= request.bytes() as u64
    }

    fn waits(&self) -> Waits<U::Error> {
        // All addresses that memory has left: what is at the new ones may be given back meanwhile.
        let pending = self.pending_by_stream(|_| true).into_iter();
        Waits { left: pending.map(|(id, pending)| (id, pending.latest)).collect(), failed: None }
    }

    /// Waits until the device is past the oldest of one of the streams that are left. `false` if there is none.
    fn wait_for_oldest(&self, waits: &mut Waits<U::Error>) -> bool {
        let mut pause = LEAST_PAUSE;
        loop {
            let oldest = self.oldest_first(waits);
            if oldest.is_empty() {
                return false;
            }
            let mut polls = Polls::brief(&*self.upstream);
            // A device that works only when it is asked is asked often.
            let mut more = if self.upstream.works_unasked() { 0 } else { QUESTIONS };
            loop {
                // All of them, so that what another one is past, too, costs no further look.
                let mut any = false;
                for &(_, id, stamp) in &oldest {
                    any |= waits.left.contains_key(&id) && self.is_past(waits, id, stamp, MODELLED);
                    if MODELLED && any {
                        break;
                    }
                }
                if any {
                    return true;
                }
                if more > 0 {
                    more -= 1;
                } else if !polls.again() {
                    break;
                }
            }
            if !MODELLED {
                std::thread::sleep(pause);
                pause = MOST_PAUSE.min(2 * pause);
            }
        }
    }

    /// Whether the device is past a stamp; behind a wait for it, where no question tells. What fails is left no more.
    fn is_past(
        &self,
        waits: &mut Waits<U::Error>,
        id: SlotId,
        stamp: usize,
        waits_for_it: bool,
    ) -> bool {
        let Some(slot) = self.slot(id) else { return false };
        let passed = match waits_for_it {
            true => slot.epochs.synchronize(&self.upstream, stamp).map(|()| true),
            false => slot.epochs.has_passed(&self.upstream, stamp),
        };
        match passed {
            Ok(passed) => passed,
            Err(error) => {
                // Its memory is not ready, and will not be.
                waits.failed = Some(error);
                waits.left.remove(&id);
                false
            }
        }
    }

    /// The oldest stamp of each stream that is left, with its slot and since when it is pending: the oldest first.
    fn oldest_first(&self, waits: &Waits<U::Error>) -> Vec<(u64, SlotId, usize)> {
        let mut oldest = Vec::new();
        for (id, Pending { oldest: stamp, .. }) in self.pending_by_stream(Self::is_released) {
            let is_left = waits.left.get(&id).is_some_and(|latest| stamp <= *latest);
            let since = self.closed_at(id, stamp);
            let is_captured = self.slot(id).is_none_or(|slot| slot.recording_graph() != 0);
            if is_left && (since.is_some() || !is_captured) {
                oldest.push((since.unwrap_or(u64::MAX), id, stamp));
            }
        }
        oldest.sort_unstable();
        oldest
    }

    /// The number of the event that covers a stream's stamp, if there is one.
    fn closed_at(&self, id: SlotId, stamp: usize) -> Option<u64> {
        self.slot(id)?.epochs.lock().closed_at(stamp)
    }

    fn each_free_block(&self, mut each: impl FnMut(FreeBlock)) {
        self.each_heap(|slot| slot.heap().free_blocks_from(1).for_each(&mut each));
    }

    /// Whether upstream has memory when its former addresses are unmapped.
    fn is_released(vacated: &Vacated) -> bool {
        vacated.released > 0
    }

    fn pending_by_stream(&self, counts: fn(&Vacated) -> bool) -> BTreeMap<SlotId, Pending> {
        let mut all = BTreeMap::<SlotId, Pending>::new();
        let mut note = |tag, stamp, bytes| {
            if stamp > self.completed_stamp(tag) {
                let new = Pending { oldest: stamp, latest: stamp, bytes: 0 };
                let pending = all.entry(tag).or_insert(new);
                pending.oldest = pending.oldest.min(stamp);
                pending.latest = pending.latest.max(stamp);
                pending.bytes += bytes;
            }
        };
        self.each_free_block(|block| note(block.tag, block.stamp, block.bytes));
        for vacated in self.vacated.lock().iter().filter(|it| counts(it)) {
            note(vacated.tag, vacated.stamp, vacated.released as u64);
        }
        all
    }
}

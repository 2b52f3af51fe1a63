//! Streams that come and go: a slot for each, which the next stream uses again.

use super::block::SlotId;
use super::core::Pool;
use super::slot::Slot;
use super::upstream::{Failure, Upstream};
use crate::debug_log::defer_events;
use crate::sync::Ordering;
use crate::sync::trusted;

/// How many streams in use a new stream scans for abandoned ones.
const SCAN_LIMIT: usize = 64;

impl<U: Upstream> Pool<U> {
    /// The slot of a stream: its own, that of a stream which is gone, or a new one.
    pub(super) fn find_or_make_slot(
        &self,
        stream: &U::Stream,
        stream_id: u64,
    ) -> Result<SlotId, Failure<U::Error>> {
        if let Some(slot) = self.streams.lock().by_id.get(&stream_id) {
            return Ok(*slot);
        }
        let _deferred = defer_events();
        self.retire_abandoned();
        let reused = self.wait_and_reuse_slot(stream).and_then(|reused| self.slot(reused));
        let mut streams = self.streams.lock();
        if let Some(slot) = streams.by_id.get(&stream_id) {
            // Another thread registered the stream first. The slot waits for the next stream.
            let slot = *slot;
            drop(streams);
            if let Some(unused) = reused {
                let handle = unused.epochs.lock().stream.take();
                self.streams.lock().vacant.insert(unused.id);
                handle.into_iter().for_each(U::drop_pool_handle);
            }
            return Ok(slot);
        }
        let slot = match reused {
            Some(slot) => {
                slot.epochs.begin_for_next_stream();
                slot.id
            }
            None => self.new_slot(stream)?,
        };
        streams.by_id.insert(stream_id, slot);
        Ok(slot)
    }

    /// The caller has the lock of `streams`.
    fn new_slot(&self, stream: &U::Stream) -> Result<SlotId, Failure<U::Error>> {
        let count = self.slot_count();
        let place = self.slots.get_or_make(count).filter(|_| count < SlotId::MAX as usize);
        let id = count as SlotId;
        let _ = place
            .ok_or(Failure::Crowded)?
            .set(Box::new(Slot::new(id, Some(U::clone_pool_handle(stream)))));
        self.slot_count.store(count + 1, Ordering::Release);
        Ok(id)
    }

    /// Gives a stream the slot of one that is gone, with its memory: the new stream waits for the
    /// last work of the old one, so what was the old one's own is its own.
    fn wait_and_reuse_slot(&self, stream: &U::Stream) -> Option<SlotId> {
        // A stream in capture cannot wait for what lies outside.
        if self.upstream.is_capturing(stream).unwrap_or(true) {
            return None;
        }
        let mut refused = Vec::<SlotId>::new();
        let reused = loop {
            let vacant = self.streams.lock().vacant.pop_first();
            let Some(slot) = vacant.and_then(|vacant| self.slot(vacant)) else { break None };
            let mut record = slot.epochs.lock();
            if record.wait_for_last(&self.upstream, stream).is_err() {
                refused.push(slot.id);
                continue;
            }
            record.stream = Some(U::clone_pool_handle(stream));
            break Some(slot.id);
        };
        if !refused.is_empty() {
            self.streams.lock().vacant.extend(refused);
        }
        reused
    }

    /// Retires streams that only pools hold. A scan ends after [`SCAN_LIMIT`] streams in use, and the
    /// next one goes on there: so a new stream costs no more for all that are there, and none stays
    /// abandoned for longer than they take to go round.
    fn retire_abandoned(&self) {
        let slots = self.slot_count();
        // The last slot is about to be given out: every one that may come free is wanted.
        let mut left = if slots < SlotId::MAX as usize { SCAN_LIMIT } else { usize::MAX };
        // Relaxed: where two begin at one place, one scans in vain.
        let begin =
            if slots > SCAN_LIMIT { self.next_scan.load(trusted::Ordering::Relaxed) } else { 0 };
        for step in 0..slots {
            let place = (begin + step) % slots;
            let slot = self.slot(place as SlotId).filter(|slot| !slot.is_shared_heap());
            let Some(slot) = slot else { continue };
            if left == 0 {
                return self.next_scan.store(place, trusted::Ordering::Relaxed);
            }
            if !self.retire_if_abandoned(slot) {
                left -= 1;
            }
        }
    }

    /// Releases the stream of a slot and closes its last epoch, if only pools hold the stream.
    fn retire_if_abandoned(&self, slot: &Slot<U>) -> bool {
        let reclaim = self.reclaim_lock.lock();
        let mut record = slot.epochs.lock();
        if slot.recording_graph() != 0 || !record.stream.as_ref().is_some_and(U::is_abandoned) {
            return false;
        }
        drop(record);
        // Before the close: what the magazines hold is stamped with the epoch that it closes.
        let magazines = std::mem::take(&mut *slot.magazines.lock());
        // SAFETY: INV-POOL-4.
        magazines.iter().for_each(|magazine| unsafe { magazine.retire() });
        self.revoke(&reclaim, &magazines, |magazine, classes| self.drain(magazine, classes));
        record = slot.epochs.lock();
        // Without an event no stream can use the slot: this one stays, and is tried again.
        let Ok(gone) = slot.epochs.close_last(&self.upstream, &mut record) else { return false };
        drop(record);
        if let Some(stream) = gone {
            let mut streams = self.streams.lock();
            streams.by_id.remove(&U::id(&stream));
            streams.vacant.insert(slot.id);
            drop(streams);
            U::drop_pool_handle(stream);
        }
        true
    }
}

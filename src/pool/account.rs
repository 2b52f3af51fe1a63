//! What a pool holds, counted when it is asked, and how it ends.

use super::core::Pool;
use super::magazine::Magazine;
use super::rungs::nth_tag;
use super::slot::{Slot, UNIT_SHIFT};
use super::upstream::{Failure, Upstream};
use crate::debug_log::hold;
use crate::heap::COMPLETE;
use crate::sync::trusted::Ordering;

/// Sums over all slots. Exact while no other thread uses the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub reserved: usize,
    pub peak_reserved: usize,
    pub live: usize,
    pub live_blocks: usize,
    pub cached: usize,
    pub held: usize,
    pub largest_free: usize,
    pub upstream_blocks: usize,
    pub streams: usize,
    pub misses: usize,
    pub steals: usize,
    pub records: usize,
    pub waits: usize,
    pub growths: usize,
    pub returns: usize,
}

impl<U: Upstream> Pool<U> {
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let mut cached_blocks = 0;
        self.each_magazine(|_, shelves| {
            let (blocks, units) = shelves.contents();
            totals.cached += (units << UNIT_SHIFT) as usize;
            cached_blocks += blocks;
        });
        for slot in self.all_slots() {
            {
                let heap = slot.heap();
                let account = heap.account();
                totals.live += account.live_bytes as usize;
                totals.live_blocks += account.live_blocks;
                totals.largest_free = totals.largest_free.max(heap.largest_free() as usize);
            }
            totals.streams += usize::from(slot.epochs.lock().stream.is_some());
        }
        // Blocks in magazines are not free in their heaps.
        totals.live = totals.live.saturating_sub(totals.cached);
        totals.live_blocks = totals.live_blocks.saturating_sub(cached_blocks);
        totals.held = self.graphs.lock().held_bytes();
        let reserve = self.reserve.lock();
        totals.reserved = reserve.bytes();
        totals.peak_reserved = reserve.peak();
        totals.upstream_blocks = reserve.blocks();
        drop(reserve);
        let counters = &self.counters;
        totals.misses = counters.misses.load(Ordering::Relaxed);
        totals.steals = counters.steals.load(Ordering::Relaxed);
        totals.records = counters.records.load(Ordering::Relaxed);
        totals.waits = counters.waits.load(Ordering::Relaxed);
        totals.growths = counters.growths.load(Ordering::Relaxed);
        totals.returns = counters.returns.load(Ordering::Relaxed);
        totals
    }

    /// Makes one stream wait for all that freed memory of this pool. Returns it, unless every stream
    /// is gone; the host waits for those then.
    fn last_stream(&self) -> Result<Option<U::Stream>, Failure<U::Error>> {
        for slot in self.all_slots() {
            let record = slot.epochs.lock();
            // Its last work has no event and gets none; and it is not to free or to wait in a graph.
            if let Some(stream) = &record.stream
                && self.upstream.is_capturing(stream).unwrap_or(false)
            {
                return Err(Failure::Captured);
            }
        }
        let with_stream = |slot: &&Slot<U>| slot.epochs.lock().stream.is_some();
        let Some(last) = self.all_slots().filter(|slot| !slot.is_bank()).find(with_stream) else {
            for slot in self.all_slots().filter(|slot| !slot.is_bank()) {
                let mut record = slot.epochs.lock();
                let stamp = record.newest();
                slot.epochs.synchronize(&self.upstream, &mut record, stamp)?;
            }
            return Ok(None);
        };
        let Some(stream) = last.epochs.lock().stream.clone() else { return Err(Failure::Gone) };
        for slot in self.all_slots().filter(|slot| !slot.is_bank() && slot.tag != last.tag) {
            let stamp = {
                let record = slot.epochs.lock();
                if record.stream.is_some() { slot.epochs.open() } else { record.newest() }
            };
            self.order(last, &stream, slot.tag, stamp)?;
        }
        Ok(Some(stream))
    }

    /// Gives everything back to upstream in the order of one stream that waits for all others, so
    /// nothing changes hands there before its last work. What users still hold is leaked.
    fn close(&mut self) {
        self.settle_late();
        let magazines: Vec<_> = self
            .all_slots()
            .flat_map(|slot| slot.magazines.lock().drain(..).collect::<Vec<_>>())
            .collect();
        // SAFETY: nobody else has the pool any more.
        unsafe {
            magazines.iter().for_each(|magazine| magazine.retire());
            Magazine::reclaim(magazines.iter().map(|own| &**own), |magazine, shelves| {
                self.empty(magazine, shelves);
            });
        }
        let stream = match self.last_stream() {
            Ok(stream) => stream,
            Err(error) => return self.upstream.leaked(self.totals().reserved, &error),
        };
        let mut pieces = Vec::new();
        for slot in self.all_slots().filter(|slot| !slot.is_bank()) {
            let mut heap = slot.heap();
            while let Some(tag) = nth_tag(&heap, 0) {
                heap.cut_all(tag, usize::MAX, &mut pieces);
            }
        }
        let Some(bank) = self.slot(COMPLETE) else { return };
        let returned = {
            let mut heap = bank.heap();
            pieces.into_iter().for_each(|piece| heap.add(COMPLETE, piece));
            self.cut_whole(&mut heap, 0)
        };
        let blocks = returned.len();
        let bytes = returned.iter().map(|held| held.bytes as usize).sum();
        for held in returned {
            self.upstream.give_back(stream.as_ref(), held.range);
        }
        let lost = self.reserve.lock().bytes();
        self.note_end(blocks, bytes, lost);
        if lost > 0 {
            self.upstream.leaked(lost, &Failure::Exhausted(None));
        }
    }

    /// However the pool ended: a handle that is dropped without this would count as a pool's for good.
    fn let_go_of_streams(&self) {
        for slot in self.all_slots() {
            let kept = slot.epochs.lock().stream.take();
            kept.into_iter().for_each(U::let_go);
        }
    }
}

impl<U: Upstream> Drop for Pool<U> {
    fn drop(&mut self) {
        // In the child of a fork the memory is the parent's, and its locks may be held.
        if !self.upstream.is_forked() {
            let _held = hold();
            self.close();
            self.let_go_of_streams();
        }
    }
}

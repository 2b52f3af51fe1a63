//! Whole blocks of upstream: taken when the pool grows, and given back when all of one is free.

use super::block::{SHARED, SlotId};
use super::core::Pool;
use super::events::emit;
use super::request::{Request, TakenBlock};
use super::slot::Slot;
use super::upstream::{Failure, Upstream, count};
use super::upstream_blocks::{Origin, UpstreamBlock};
use crate::debug_log::{is_enabled, range};
use crate::heap::Piece;
use std::time::Instant;

/// What to ask upstream for, where `replaced` went back. A size that follows one a little smaller gets half of it more:
/// sizes that grow by 1% find room in that 40 times. Others get none, since a pool with a maximum may need all of it.
pub(super) fn with_room<B>(bytes: usize, replaced: &[UpstreamBlock<B>]) -> usize {
    let is_little_smaller = |block: &UpstreamBlock<B>| {
        let before = block.bytes as usize;
        before < bytes && before >= bytes / 2
    };
    match replaced.iter().any(is_little_smaller) {
        true => bytes.saturating_add(bytes / 2),
        false => bytes,
    }
}

/// Which blocks of a heap go back first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// They serve least.
    Smallest,
    /// They are fewest: each free waits for the device.
    Largest,
}

impl<U: Upstream> Pool<U> {
    /// Takes between `bytes` and `wish` from upstream into the request's heap, and the block from
    /// there. The caller has asked [`lock_growth`](Self::lock_growth), and has not `in_transit`: upstream may call back.
    pub(super) fn grow_by(
        &self,
        request: &Request<'_, U>,
        (bytes, wish): (usize, usize),
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

    /// Asks upstream for `wish` bytes, or fewer where there is no room, but `least`.
    pub(super) fn take_upstream(
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

    /// Takes whole blocks out of the heaps in which they are free and complete, until no more than `target` bytes would be
    /// reserved without them.
    pub(super) fn extract_blocks(
        &self,
        target: usize,
        first: First,
    ) -> Vec<UpstreamBlock<U::Block>> {
        let mut all = self.upstream_blocks.lock().smallest_first();
        if first == First::Largest {
            all.reverse();
        }
        let is_complete = |tag, stamp| stamp <= self.completed_stamp(tag);
        let mut left = self.reserved_bytes();
        let mut extracted = Vec::new();
        self.each_heap(|source| {
            let mut heap = source.heap();
            for &(number, address, bytes) in &all {
                if left <= target || heap.stats().free_bytes < bytes {
                    continue;
                }
                if heap.extract_free_block(number, address, bytes, is_complete) {
                    left = left.saturating_sub(bytes as usize);
                    // Its bytes stay reserved until upstream has it (INV-POOL-6).
                    extracted.extend(self.upstream_blocks.lock().remove_reserved(number, address));
                }
            }
        });
        extracted
    }

    /// Whether all of some block of upstream is free, for whichever stream.
    pub(super) fn has_whole_free_block(&self) -> bool {
        let all = self.upstream_blocks.lock().smallest_first();
        let is_free = |source: &Slot<U>| {
            let heap = source.heap();
            let mut all = all.iter();
            all.any(|&(number, address, bytes)| heap.has_free_block(number, address, bytes))
        };
        let found = self.find_populated(|source| is_free(source).then_some(()));
        found.is_some() || self.slot(SHARED).is_some_and(is_free)
    }

    /// Gives blocks back that nothing uses. Returns how many bytes they have. Upstream may wait for the
    /// device, or call back: the caller has no lock of the pool.
    pub(super) fn release_blocks(&self, blocks: Vec<UpstreamBlock<U::Block>>) -> usize {
        let (number, bytes): (usize, usize) =
            (blocks.len(), blocks.iter().map(|block| block.bytes as usize).sum());
        for block in blocks {
            count(&self.counters().returns);
            if let Origin::Block(memory) = block.origin {
                self.upstream.deallocate(None, memory);
            }
            self.upstream_blocks.lock().unreserve(block.bytes as usize);
        }
        if number > 0 {
            emit!(self, {
                blocks = number, bytes, reserved = self.reserved_bytes(),
            }, "gave memory back");
        }
        bytes
    }

    /// Moves what is known to be complete from all heaps to the shared one.
    pub(super) fn move_complete_to_shared(&self) {
        let mut pieces = Vec::new();
        for source in self.stream_slots() {
            let mut heap = source.heap();
            let tags: Vec<SlotId> = heap.tags().collect();
            for tag in tags {
                heap.extract_all(tag, self.completed_stamp(tag), &mut pieces);
            }
        }
        if let Some(shared) = self.make_shared_slot() {
            let mut heap = shared.heap();
            for piece in pieces {
                self.add(shared, &mut heap, SHARED, Piece { stamp: 0, ..piece });
            }
        }
    }
}

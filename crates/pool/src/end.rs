//! How a pool ends: everything goes back to upstream in the order of one stream.

use super::block::SHARED;
use super::core::Pool;
use super::events::emit;
use super::upstream::{Failure, Upstream};
use super::upstream_blocks::Origin;
use super::whole_blocks::First;
use crate::debug_log::defer_events;

impl<U: Upstream> Pool<U> {
    /// Whether a capture has one of the pool's streams, so that the pool had better end later.
    pub fn has_stream_in_capture(&self) -> bool {
        self.stream_slots().any(|slot| {
            let record = slot.epochs.lock();
            record.stream.as_ref().is_some_and(|stream| self.upstream.is_capturing_for_now(stream))
        })
    }

    /// Makes one stream wait for all that freed memory of this pool. Returns it, unless every stream
    /// is gone; the host waits for those then.
    fn join_streams(&self) -> Result<Option<U::Stream>, Failure<U::Error>> {
        let mut last = None;
        for slot in self.stream_slots() {
            let record = slot.epochs.lock();
            let Some(stream) = &record.stream else { continue };
            // Its last work has no event and gets none; and it is not to free or to wait in a graph.
            if self.upstream.is_capturing(stream).unwrap_or(false) {
                return Err(Failure::Captured);
            }
            last.get_or_insert_with(|| (slot, stream.clone()));
        }
        for slot in self.stream_slots() {
            let stamp = slot.epochs.current();
            match &last {
                None => slot.epochs.synchronize(&self.upstream, stamp)?,
                Some((last, _)) if last.id == slot.id => {}
                Some((last, stream)) => self.make_wait(last, stream, slot.id, stamp)?,
            }
        }
        Ok(last.map(|(_, stream)| stream))
    }

    /// Gives everything back to upstream in the order of one stream that waits for all others, so
    /// nothing changes hands there before its last work. What users still hold is leaked.
    fn close(&mut self) {
        self.free_deferred_graphs();
        let magazines = self.take_magazines();
        {
            let reclaim = self.reclaim_lock.lock();
            // SAFETY: INV-POOL-4.
            magazines.iter().for_each(|magazine| unsafe { magazine.retire() });
            self.revoke(&reclaim, &magazines, |magazine, classes| self.drain(magazine, classes));
        }
        let stream = match self.join_streams() {
            Ok(stream) => stream,
            Err(error) => {
                return self.upstream.report_leak(self.id(), self.stats().reserved, &error);
            }
        };
        if let Some(mapped) = self.upstream.mapped() {
            let end = self.take_all_mapped();
            let blocks = end.handles.len();
            let bytes: u64 = end.handles.iter().map(|handle| handle.1).sum();
            mapped.end(stream.as_ref(), end);
            return self.report_end(blocks, bytes as usize);
        }
        let mut pieces = Vec::new();
        for slot in self.stream_slots() {
            let mut heap = slot.heap();
            let tags: Vec<_> = heap.tags().collect();
            tags.into_iter().for_each(|tag| heap.extract_all(tag, usize::MAX, &mut pieces));
        }
        if let Some(shared) = self.make_shared_slot() {
            let mut heap = shared.heap();
            pieces.into_iter().for_each(|piece| heap.add(SHARED, piece));
        }
        let returned = self.extract_blocks(0, First::Largest);
        let blocks = returned.len();
        let bytes: usize = returned.iter().map(|block| block.bytes as usize).sum();
        for block in returned {
            if let Origin::Block(memory) = block.origin {
                self.upstream.deallocate(stream.as_ref(), memory);
            }
            self.upstream_blocks.lock().unreserve(block.bytes as usize);
        }
        self.report_end(blocks, bytes);
    }

    fn report_end(&self, blocks: usize, bytes: usize) {
        let lost = self.reserved_bytes();
        emit!(self, { blocks, bytes, leaked = lost }, "pool ended");
        if lost > 0 {
            self.upstream.report_leak(self.id(), lost, &Failure::Exhausted(None));
        }
    }

    /// However the pool ended: a handle that is dropped without this would count as a pool's for good.
    fn release_streams(&self) {
        for slot in self.all_slots() {
            let stream = slot.epochs.lock().stream.take();
            stream.into_iter().for_each(U::drop_pool_handle);
        }
    }
}

impl<U: Upstream> Drop for Pool<U> {
    fn drop(&mut self) {
        // In the child of a fork the memory is the parent's, and its locks may be held.
        if !self.upstream.is_forked() {
            let _deferred = defer_events();
            let run = self.upstream.end();
            run(&mut || {
                self.close();
                self.release_streams();
            });
        }
    }
}

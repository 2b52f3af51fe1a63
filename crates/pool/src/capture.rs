//! Declared captures: where memory comes from while a stream records a graph, and what is kept until
//! the graph is gone.
//!
//! A graph runs again with the addresses that it was recorded with. So a block that was allocated in
//! the capture stays in the heap of its graph pool after its free, for this capture and for those of
//! graphs that never run beside this one. A block from elsewhere that is freed on the stream meanwhile
//! may be in the graph, and is kept too. Both are free when the graphs are gone and the stream waits
//! for their launches.

use super::block::{Block, GRAPH_BIT, UNIT_SHIFT};
use super::core::Pool;
use super::graph_heap::GraphPoolId;
use super::graphs::{DroppedGraph, FreedForGraph};
use super::request::Request;
use super::slot::{Slot, report};
use super::upstream::{Failure, Upstream};
use crate::debug_log::defer_events;
use crate::heap::{COMPLETE, NotLive};
use crate::sync::trusted;

impl<U: Upstream> Pool<U> {
    /// A graph pool, in which captures may begin until [`close_graph_pool`](Self::close_graph_pool). Launches of its graphs
    /// come one after the other: that is the caller's to see to.
    pub fn open_graph_pool(&self) -> Result<u16, Failure<U::Error>> {
        self.graphs.lock().open_pool(true).ok_or(Failure::Crowded)
    }

    /// No further capture begins in a graph pool. Its memory goes back when its graphs are gone.
    pub fn close_graph_pool(&self, graph_pool: u16) {
        self.graphs.lock().close_pool(graph_pool);
    }

    /// What a graph pool has taken from this pool, and what of it is free for captures, in bytes, and the graphs that have
    /// memory of it.
    pub fn graph_pool_use(&self, graph_pool: u16) -> (usize, usize, usize) {
        let graphs = self.graphs.lock();
        let heap = graphs.heap(graph_pool);
        heap.map_or((0, 0, 0), |heap| (heap.bytes(), heap.free_bytes(), heap.graphs()))
    }

    /// Bytes that a graph may use of what graphs keep.
    pub fn held_by(&self, graph: usize) -> usize {
        self.graphs.lock().bytes_of(graph)
    }

    /// Has a launch of a graph on `stream` come after the last uses of vectors that captures of other graphs had left over
    /// where this graph works. Returns the bytes of those that live, over which it would write: it may not be launched then.
    /// From here to the launch no capture of this graph pool ends.
    pub fn order_launch(
        &self,
        graph: usize,
        stream: &U::Stream,
        stream_id: u64,
    ) -> Result<u64, Failure<U::Error>> {
        let after = {
            let graphs = self.graphs.lock();
            match graphs.overwritten_by(graph) {
                0 => graphs.launches_after(graph),
                bytes => return Ok(bytes),
            }
        };
        if !after.is_empty() {
            let _deferred = defer_events();
            let slot = self.find_or_make_slot(stream, stream_id)?;
            let slot = self.slot(slot).ok_or(Failure::Crowded)?;
            for (source, stamp) in after {
                self.make_wait(slot, stream, source, stamp)?;
            }
        }
        Ok(0)
    }

    /// The capture of a graph is about to end: nothing more is allocated for it where other graphs work. Returns whether
    /// blocks are left over. The next use of these comes after all launches of graphs of this graph pool, also of those that
    /// are gone: that is the caller's to see to, before another launch may begin.
    pub fn note_left_over(&self, graph: usize) -> bool {
        self.graphs.lock().end_capture(graph)
    }

    /// Declares a capture on `stream`, which `begin` begins, in a graph pool or one of its own. Returns the
    /// graph's number. The gate of the stream is closed to all other threads (INV-POOL-8).
    pub fn begin_capture<B>(
        &self,
        stream: &U::Stream,
        stream_id: u64,
        graph_pool: Option<u16>,
        begin: impl FnOnce() -> Result<B, U::Error>,
    ) -> Result<(usize, B), Failure<U::Error>> {
        self.upstream.check_device(stream)?;
        self.free_deferred_graphs();
        let _deferred = defer_events();
        let slot_id = self.find_or_make_slot(stream, stream_id)?;
        let slot = self.slot(slot_id).ok_or(Failure::Crowded)?;
        let graph = trusted::unique() as usize;
        {
            let mut graphs = self.graphs.lock();
            let own = || graphs.open_pool(false).ok_or(Failure::Crowded);
            let graph_pool = graph_pool.map_or_else(own, Ok)?;
            // Nothing but complete memory, until it is known which epoch the capture comes after.
            graphs.begin(graph, slot_id, graph_pool);
        }
        if let Err(refused) = self.try_begin_capture(slot, graph) {
            self.graphs.lock().cancel(graph);
            return Err(refused);
        }
        let begun = {
            // Threads that close an epoch of this stream ask under this lock whether it is in capture.
            let mut record = slot.epochs.lock();
            let closed = slot.epochs.close(&self.upstream, &mut record);
            let begun = closed.and_then(|()| begin().map_err(Failure::Upstream));
            begun.map(|begun| (record.newest(), begun))
        };
        match begun {
            Ok((epoch, begun)) => {
                self.graphs.lock().set_upto(graph, epoch);
                Ok((graph, begun))
            }
            Err(error) => {
                self.end_capture(graph);
                self.on_graph_drop(graph, stream, &[]);
                Err(error)
            }
        }
    }

    /// Shuts and empties the magazines of all threads for the stream. An error if the stream is in a
    /// declared capture already, or the pool sleeps.
    fn try_begin_capture(&self, slot: &Slot<U>, graph: usize) -> Result<(), Failure<U::Error>> {
        let reclaim = self.reclaim_lock.lock();
        self.require_awake()?;
        if slot.recording_graph() != 0 {
            return Err(Failure::Captured);
        }
        slot.set_recording_graph(graph);
        let magazines = slot.magazines.lock().clone();
        // SAFETY: INV-POOL-4.
        magazines.iter().for_each(|magazine| unsafe { magazine.suspend() });
        self.revoke(&reclaim, &magazines, |magazine, classes| self.drain(magazine, classes));
        Ok(())
    }

    /// The capture is over, after [`note_left_over`](Self::note_left_over): the stream's memory is as any other's again, but
    /// for what the graph keeps.
    pub fn end_capture(&self, graph: usize) {
        let slot_id = self.graphs.lock().slot(graph);
        let Some(slot) = slot_id.and_then(|slot_id| self.slot(slot_id)) else { return };
        {
            let _reclaim = self.reclaim_lock.lock();
            slot.set_recording_graph(0);
            // SAFETY: INV-POOL-4.
            slot.magazines.lock().iter().for_each(|magazine| unsafe { magazine.resume() });
        }
        // What was brought for the graph and is left is the stream's own.
        slot.heap().retag(COMPLETE, usize::MAX, slot.id, 0);
        self.free_deferred_graphs();
    }

    /// The graph is gone, and may still run on these streams. What it keeps is free as soon as
    /// `stream`, which recorded it, waits for them; later, if one of them is in a capture.
    pub fn on_graph_drop(&self, graph: usize, stream: &U::Stream, launched_on: &[U::Stream]) {
        let (stream, launched_on) = (stream.clone(), launched_on.to_vec());
        self.free_graph_or_defer(DroppedGraph { graph, stream, launched_on });
    }

    /// Frees the memory of graphs that a capture was in the way of.
    pub fn free_deferred_graphs(&self) {
        let deferred = std::mem::take(&mut self.graphs.lock().deferred);
        deferred.into_iter().for_each(|ended| self.free_graph_or_defer(ended));
    }

    fn free_graph_or_defer(&self, ended: DroppedGraph<U::Stream>) {
        let error = match self.free_graph(&ended) {
            Ok(()) => return,
            Err(error) => error,
        };
        let in_capture = match &error {
            Failure::Captured => true,
            // A capture that began between the question and the record.
            Failure::Upstream(error) => U::is_captured(error),
            _ => false,
        };
        let mut graphs = self.graphs.lock();
        if in_capture {
            return graphs.deferred.push(ended);
        }
        // Its blocks stay kept: nothing can be made to wait for their last work.
        let bytes = graphs.bytes_of(ended.graph);
        drop(graphs);
        if bytes > 0 {
            self.upstream.report_leak(self.id(), bytes, &error);
        }
    }

    /// Frees the memory of a graph, in the order of the stream that recorded it.
    fn free_graph(&self, ended: &DroppedGraph<U::Stream>) -> Result<(), Failure<U::Error>> {
        let DroppedGraph { graph, stream, launched_on } = ended;
        let slot_id = self.graphs.lock().slot(*graph);
        let Some(slot) = slot_id.and_then(|slot_id| self.slot(slot_id)) else { return Ok(()) };
        let _deferred = defer_events();
        if self.graphs.lock().bytes_of(*graph) > 0 {
            // Asked first: an event of a stream in capture would take this one in, and a wait of one in
            // capture for what lies outside would lose it.
            for stream in launched_on.iter().chain([stream]) {
                if self.upstream.is_capturing(stream)? {
                    return Err(Failure::Captured);
                }
            }
            for other in launched_on.iter().filter(|other| U::id(other) != U::id(stream)) {
                let event = self.upstream.record(other)?;
                self.upstream.wait(stream, &event)?;
            }
        }
        let mut made = Vec::new();
        let free = loop {
            let mut graphs = self.graphs.lock();
            let mut waits = graphs.waits_of(*graph);
            // A wait that was made may have been forgotten since.
            waits.retain(|wait| wait.1 > self.ready_stamp(slot, wait.0) && !made.contains(wait));
            if waits.is_empty() {
                break graphs.end(*graph, slot.id, slot.epochs.current());
            }
            drop(graphs);
            for (source, stamp) in waits {
                self.make_wait(slot, stream, source, stamp)?;
                made.push((source, stamp));
            }
        };
        free.blocks.into_iter().for_each(|block| report(self.free_to_owner(slot, block)));
        free.unused.into_iter().for_each(|pool| self.free_unused_chunks(pool, slot, stream));
        Ok(())
    }

    /// Gives back what a graph pool has for no graph, in the order of the stream of a slot: as the end of a graph that never
    /// ran, and that nothing but this memory was for.
    fn free_unused_chunks(&self, pool: GraphPoolId, slot: &Slot<U>, stream: &U::Stream) {
        let graph = trusted::unique() as usize;
        self.graphs.lock().use_unused(graph, pool, slot.id);
        self.on_graph_drop(graph, stream, &[]);
    }

    /// Notes the free of a block on the stream of a slot, for the graphs that may use it. `None` if
    /// there is none. An error is for [`report`].
    #[cold]
    pub(super) fn defer_free_to_graph(
        &self,
        slot: &Slot<U>,
        stream: &U::Stream,
        block: &Block,
    ) -> Option<Result<(), NotLive>> {
        let capturing = slot.recording_graph();
        if block.token & GRAPH_BIT == 0 && capturing == 0 {
            return None;
        }
        let freed = self.graphs.lock().free(block, capturing, (slot.id, slot.epochs.current()))?;
        Some(freed.map(|freed| {
            if let FreedForGraph::Unused(pool) = freed {
                self.free_unused_chunks(pool, slot, stream);
            }
        }))
    }

    /// Whether a free of this block on the stream would be kept for graphs, which may use it.
    pub fn is_kept_for_graph(&self, stream_id: u64, block: &Block) -> bool {
        let slot_id = self.streams.lock().by_id.get(&stream_id).copied();
        let slot = slot_id.and_then(|slot_id| self.slot(slot_id));
        let capturing = slot.map_or(0, |slot| slot.recording_graph());
        self.graphs.lock().keeps(block.token, capturing)
    }

    /// A block for the graph that the slot's stream was found to record. `None` if that is over.
    #[cold]
    pub(super) fn allocate_for_graph(
        &self,
        (slot, graph): (&Slot<U>, usize),
        stream: &U::Stream,
        (units, align): (u32, u64),
    ) -> Result<Option<Block>, Failure<U::Error>> {
        let upto = self.graphs.lock().upto(graph);
        if upto.is_none() {
            return Ok(None);
        }
        let _deferred = defer_events();
        let request = self.request(slot, stream, (units, align), upto);
        if let Some(block) = self.take_from_graph_pool(&request, graph) {
            return Ok(Some(block));
        }
        let found = self.miss_for_graph(&request)?;
        let chunk = self.make_block(found.owner, found.taken.node, found.taken.address, units);
        let owner = self.slot(found.owner);
        let number = owner.and_then(|owner| owner.heap().number_of(chunk.address));
        let mut graphs = self.graphs.lock();
        let from = (found.freed_by, found.taken.stamp);
        let block = number.and_then(|number| graphs.add_chunk(graph, &chunk, number, from));
        let token = block.and_then(|block| graphs.token(self.mark, graph, block));
        drop(graphs);
        match token {
            Some(token) => Ok(Some(Block { token, ..chunk })),
            // The capture was given up meanwhile.
            None => {
                self.put_back(&found);
                Ok(None)
            }
        }
    }

    /// A block of what the graph pool has free, and that needs no wait.
    fn take_from_graph_pool(&self, request: &Request<'_, U>, graph: usize) -> Option<Block> {
        let size = (request.units, request.align);
        let take = || {
            let mut graphs = self.graphs.lock();
            let block = graphs.allocate(graph, size, |tag| self.ready_for(request, tag))?;
            let token = graphs.token(self.mark, graph, block)?;
            let bytes = (block.units as usize) << UNIT_SHIFT;
            Some(Block { address: block.address, token, bytes })
        };
        take().or_else(|| {
            // The device may be past what was freed there.
            let tags = self.graphs.lock().free_tags(graph);
            for source in tags.into_iter().filter_map(|tag| self.slot(tag)) {
                source.epochs.poll(&self.upstream, &mut source.epochs.lock());
            }
            take()
        })
    }
}

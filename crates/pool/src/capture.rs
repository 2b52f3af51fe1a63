//! Declared captures: where memory comes from while a stream records a graph, and what is kept until
//! the graph is gone.
//!
//! A graph runs again with the addresses that it was recorded with. So a block that was allocated in
//! the capture is the graph's even after its free; a block that is freed on the stream meanwhile may
//! be in the graph, and is kept too. Both are free when the graph is gone and the stream waits for
//! its launches.

use super::block::{Block, GRAPH_BIT};
use super::core::Pool;
use super::graphs::DroppedGraph;
use super::slot::{Slot, report};
use super::upstream::{Failure, Upstream};
use crate::debug_log::defer_events;
use crate::heap::{COMPLETE, NotLive};
use crate::sync::trusted;

impl<U: Upstream> Pool<U> {
    /// Declares a capture on `stream`, which `begin` begins. Returns the graph's number. The gate of
    /// the stream is closed to all other threads (INV-POOL-8).
    pub fn begin_capture<B>(
        &self,
        stream: &U::Stream,
        stream_id: u64,
        begin: impl FnOnce() -> Result<B, U::Error>,
    ) -> Result<(usize, B), Failure<U::Error>> {
        self.upstream.check_device(stream)?;
        self.free_deferred_graphs();
        let _deferred = defer_events();
        let slot_id = self.find_or_make_slot(stream, stream_id)?;
        let slot = self.slot(slot_id).ok_or(Failure::Crowded)?;
        let graph = trusted::unique() as usize;
        // Nothing but complete memory, until it is known which epoch the capture comes after.
        self.graphs.lock().begin(graph, slot_id);
        if let Err(refused) = self.try_begin_capture(slot, graph) {
            self.graphs.lock().arenas.remove(&graph);
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
                if let Some(arena) = self.graphs.lock().arenas.get_mut(&graph) {
                    arena.upto = epoch;
                }
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

    /// The capture is over: the stream's memory is as any other's again, but for what the graph
    /// keeps.
    pub fn end_capture(&self, graph: usize) {
        let slot_id = self.graphs.lock().arenas.get(&graph).map(|arena| arena.slot);
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
        let slot_id = self.graphs.lock().slot_or_remove_empty(*graph);
        let Some(slot_id) = slot_id else { return Ok(()) };
        let slot = self.slot(slot_id).ok_or(Failure::Gone)?;
        let _deferred = defer_events();
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
        let mut made = Vec::new();
        loop {
            let mut graphs = self.graphs.lock();
            let mut waits = graphs.waits_of(*graph);
            // A wait that was made may have been forgotten since.
            waits.retain(|wait| wait.1 > self.ready_stamp(slot, wait.0) && !made.contains(wait));
            if waits.is_empty() {
                let free = graphs.end(*graph, slot_id, slot.epochs.current());
                drop(graphs);
                free.into_iter().for_each(|block| report(self.free_to_owner(slot, block)));
                return Ok(());
            }
            drop(graphs);
            for (source, stamp) in waits {
                self.make_wait(slot, stream, source, stamp)?;
                made.push((source, stamp));
            }
        }
    }

    /// Notes the free of a block on the stream of a slot, for the graphs that may use it. `None` if
    /// there is none. An error is for [`report`].
    #[cold]
    pub(super) fn defer_free_to_graph(
        &self,
        slot: &Slot<U>,
        block: &Block,
    ) -> Option<Result<(), NotLive>> {
        let capturing = slot.recording_graph();
        if block.token & GRAPH_BIT == 0 && capturing == 0 {
            return None;
        }
        let block = Block { token: block.token & !GRAPH_BIT, ..*block };
        self.graphs.lock().free(&block, capturing, (slot.id, slot.epochs.current()))
    }

    /// Whether a free of this block on the stream would be kept for graphs, which may use it.
    pub fn is_kept_for_graph(&self, stream_id: u64, block: &Block) -> bool {
        let slot_id = self.streams.lock().by_id.get(&stream_id).copied();
        let slot = slot_id.and_then(|slot_id| self.slot(slot_id));
        let capturing = slot.map_or(0, |slot| slot.recording_graph());
        self.graphs.lock().keeps(block.token & !GRAPH_BIT, capturing)
    }

    /// A block for the graph that the slot's stream was found to record. `None` if that is over.
    #[cold]
    pub(super) fn allocate_for_graph(
        &self,
        (slot, graph): (&Slot<U>, usize),
        stream: &U::Stream,
        (units, align): (u32, u64),
    ) -> Result<Option<Block>, Failure<U::Error>> {
        let upto = self.graphs.lock().arenas.get(&graph).map(|arena| arena.upto);
        if upto.is_none() {
            return Ok(None);
        }
        let _deferred = defer_events();
        let found = self.miss_for_graph(&self.request(slot, stream, (units, align), upto))?;
        let block = self.make_block(found.owner, found.taken.node, found.taken.address, units);
        if self.graphs.lock().allocate(graph, &block) {
            return Ok(Some(Block { token: block.token | GRAPH_BIT, ..block }));
        }
        // The capture was given up meanwhile.
        self.put_back(&found);
        Ok(None)
    }
}

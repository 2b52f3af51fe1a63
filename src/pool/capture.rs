//! Declared captures: where memory comes from while a stream records a graph, and what is kept until
//! the graph is gone.
//!
//! A graph runs again with the addresses that it was recorded with. So a block that was allocated in
//! the capture is the graph's, whoever frees it; what is freed on the stream meanwhile may be in the
//! graph, and is kept too. Both are free when the graph is gone and the stream waits for its launches.
//!
//! Nothing here gives the capturing stream work: memory for a graph is complete, or what the
//! stream had freed or had waited for before the capture, which each launch comes after.

use super::core::{Block, GRAPH_BIT, Pool, count};
use super::inbox::Freed;
use super::magazine::{Cached, Magazine};
use super::rungs::{LEAST_GROWTH, Rung, padding};
use super::slot::{Slot, UNIT_SHIFT, report_not_live};
use super::upstream::{Failure, Upstream};
use crate::debug_log::hold;
use crate::heap::{COMPLETE, Heap, Node, Tag, Taken};
use crate::sync::Arc;
use crate::sync::trusted;
use std::collections::HashMap;

/// What all graphs keep of a pool.
#[derive(Debug)]
pub(super) struct Graphs<S> {
    arenas: HashMap<usize, Arena>,
    /// By token, without the graphs' bit.
    kept: HashMap<u64, Kept>,
    /// Graphs that are gone, whose launches the stream could not wait for at the time.
    late: Vec<Ending<S>>,
}

/// What one graph keeps.
#[derive(Debug)]
struct Arena {
    /// The stream that recorded it.
    tag: Tag,
    /// The last epoch that the capture, and so each launch, comes after.
    upto: usize,
    tokens: Vec<u64>,
}

/// A block that some graph may use.
#[derive(Debug)]
struct Kept {
    address: u64,
    bytes: usize,
    graphs: Vec<usize>,
    /// Its user has given it back.
    freed: bool,
    /// What its next use has to come after, besides the graphs that are left.
    after: Vec<(Tag, usize)>,
}

/// A graph that is gone.
#[derive(Debug)]
struct Ending<S> {
    graph: usize,
    /// The stream that recorded it; as long as this is here, pools are not alone with it.
    stream: S,
    launched_on: Vec<S>,
}

impl<S> Default for Graphs<S> {
    fn default() -> Self {
        Self { arenas: HashMap::new(), kept: HashMap::new(), late: Vec::new() }
    }
}

impl<S> Graphs<S> {
    /// Bytes that were given back and wait for a graph.
    pub(super) fn held_bytes(&self) -> usize {
        self.kept.values().filter(|kept| kept.freed).map(|kept| kept.bytes).sum()
    }

    /// What the memory that goes with this graph has to come after.
    fn owed(&self, graph: usize) -> Vec<(Tag, usize)> {
        let tokens = self.arenas.get(&graph).into_iter().flat_map(|arena| &arena.tokens);
        let last = |kept: &&Kept| kept.freed && kept.graphs == [graph];
        let kept = tokens.filter_map(|token| self.kept.get(token)).filter(last);
        kept.flat_map(|kept| kept.after.iter().copied()).collect()
    }

    /// Forgets a graph, which the stream of `tag` waits for up to `stamp`. Returns what is free then.
    fn forget(&mut self, graph: usize, tag: Tag, stamp: usize) -> Vec<Cached> {
        let Some(arena) = self.arenas.remove(&graph) else { return Vec::new() };
        let mut free = Vec::new();
        for token in arena.tokens {
            let Some(kept) = self.kept.get_mut(&token) else { continue };
            kept.graphs.retain(|other| *other != graph);
            if !kept.graphs.is_empty() {
                kept.after.push((tag, stamp));
                continue;
            }
            // What its user still has is an ordinary block from here on.
            if let Some(Kept { freed: true, address, .. }) = self.kept.remove(&token) {
                free.push(Cached { address, token });
            }
        }
        free
    }
}

/// Where memory for a graph was found: its heap, the tag that it had there, and the block.
type Ready = (Tag, Tag, Taken);

impl<U: Upstream> Pool<U> {
    /// Declares a capture on `stream`, which `begin` begins. Returns the graph's number.
    pub fn begin_capture<B>(
        &self,
        stream: &U::Stream,
        id: u64,
        begin: impl FnOnce() -> Result<B, U::Error>,
    ) -> Result<(usize, B), Failure<U::Error>> {
        self.upstream.check(stream)?;
        self.settle_late();
        let tag = self.slot_of(stream, id)?;
        let slot = self.slot(tag).ok_or(Failure::Crowded)?;
        let graph = trusted::unique() as usize;
        // Nothing but complete memory, until it is known which epoch the capture comes after.
        let arena = Arena { tag, upto: 0, tokens: Vec::new() };
        self.graphs.lock().arenas.insert(graph, arena);
        if !self.close_magazines(slot, graph) {
            self.graphs.lock().arenas.remove(&graph);
            return Err(Failure::Captured);
        }
        #[cfg(not(aquifer_fault = "capture_beside_wait"))]
        slot.wait_for_busy();
        let begun = {
            // Whoever closes an epoch of this stream asks under this lock whether it is in capture.
            let mut record = slot.epochs.lock();
            let closed = slot.epochs.close(&self.upstream, &mut record);
            let begun = closed.and_then(|()| {
                count(&self.counters.records);
                begin().map_err(Failure::Upstream)
            });
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
                self.release(graph, stream, &[]);
                Err(error)
            }
        }
    }

    /// Keeps all threads out of their magazines for the stream, and empties them. `false` if the
    /// stream is in a declared capture already.
    fn close_magazines(&self, slot: &Slot<U>, graph: usize) -> bool {
        let _one = self.reclaiming.lock();
        if slot.captured() != 0 {
            return false;
        }
        slot.set_captured(graph);
        let magazines: Vec<Arc<Magazine>> = slot.magazines.lock().clone();
        // SAFETY: under the reclaimers' lock.
        unsafe {
            magazines.iter().for_each(|magazine| magazine.shut(true));
            Magazine::reclaim(magazines.iter().map(|own| &**own), |magazine, shelves| {
                self.empty(magazine, shelves);
            });
        }
        true
    }

    /// The capture is over: the stream's memory is as any other's again, but for what the graph
    /// keeps.
    pub fn end_capture(&self, graph: usize) {
        let tag = self.graphs.lock().arenas.get(&graph).map(|arena| arena.tag);
        let Some(slot) = tag.and_then(|tag| self.slot(tag)) else { return };
        {
            let _one = self.reclaiming.lock();
            slot.set_captured(0);
            for magazine in slot.magazines.lock().iter() {
                // SAFETY: under the reclaimers' lock.
                unsafe { magazine.shut(false) };
            }
        }
        // What was brought for the graph and is left is the stream's own.
        slot.heap().retag(COMPLETE, usize::MAX, slot.tag, 0);
        self.settle_late();
    }

    /// The graph is gone, and may still run on these streams. What it keeps is free as soon as
    /// `stream`, which recorded it, waits for them; later, if one of them is in a capture.
    pub fn release(&self, graph: usize, stream: &U::Stream, launched_on: &[U::Stream]) {
        let ending = Ending { graph, stream: stream.clone(), launched_on: launched_on.to_vec() };
        self.settle(ending);
    }

    /// Tries again what a capture was in the way of.
    pub fn settle_late(&self) {
        let late = std::mem::take(&mut self.graphs.lock().late);
        late.into_iter().for_each(|ending| self.settle(ending));
    }

    fn settle(&self, ending: Ending<U::Stream>) {
        match self.free_of(&ending) {
            Ok(()) => {}
            Err(Failure::Captured) => self.graphs.lock().late.push(ending),
            Err(error) => {
                // Its blocks stay kept: nothing can be made to wait for their last work.
                let graphs = self.graphs.lock();
                let arena = graphs.arenas.get(&ending.graph);
                let tokens = arena.into_iter().flat_map(|arena| &arena.tokens);
                let bytes = tokens.filter_map(|token| graphs.kept.get(token)).map(|it| it.bytes);
                let bytes = bytes.sum();
                drop(graphs);
                if bytes > 0 {
                    self.upstream.leaked(bytes, &error);
                }
            }
        }
    }

    /// Frees what goes with a graph, in the order of the stream that recorded it.
    fn free_of(&self, ending: &Ending<U::Stream>) -> Result<(), Failure<U::Error>> {
        let Ending { graph, stream, launched_on } = ending;
        let tag = {
            let mut graphs = self.graphs.lock();
            let Some(arena) = graphs.arenas.get(graph) else { return Ok(()) };
            if arena.tokens.is_empty() {
                graphs.arenas.remove(graph);
                return Ok(());
            }
            arena.tag
        };
        let slot = self.slot(tag).ok_or(Failure::Gone)?;
        let _busy = slot.busy().ok_or(Failure::Captured)?;
        // Asked first: an event of a stream in capture would take this one in, and a wait of one in
        // capture for what lies outside would lose it.
        for stream in launched_on.iter().chain([stream]) {
            if self.upstream.is_capturing(stream)? {
                return Err(Failure::Captured);
            }
        }
        for other in launched_on.iter().filter(|other| U::id(other) != U::id(stream)) {
            #[cfg(not(aquifer_fault = "graph_without_wait"))]
            {
                let event = self.upstream.record(other, None)?;
                count(&self.counters.records);
                self.upstream.wait(stream, &event)?;
                count(&self.counters.waits);
            }
            #[cfg(aquifer_fault = "graph_without_wait")]
            let _ = other;
        }
        loop {
            let mut graphs = self.graphs.lock();
            let mut owed = graphs.owed(*graph);
            owed.retain(|(source, stamp)| *stamp > self.ready(slot, *source));
            if owed.is_empty() {
                let free = graphs.forget(*graph, tag, slot.epochs.open());
                drop(graphs);
                free.into_iter().for_each(|block| self.give_home(tag, block));
                return Ok(());
            }
            drop(graphs);
            for (source, stamp) in owed {
                self.order(slot, stream, source, stamp)?;
            }
        }
    }

    /// Keeps a block that was freed on the stream of `tag` for the graphs that may use it. `false` if
    /// there is none.
    #[cold]
    pub(super) fn hold(&self, tag: Tag, block: &Block) -> bool {
        let Some(slot) = self.slot(tag) else { return false };
        let capturing = slot.captured();
        if block.token & GRAPH_BIT == 0 && capturing == 0 {
            return false;
        }
        let token = block.token & !GRAPH_BIT;
        let mut graphs = self.graphs.lock();
        let Graphs { arenas, kept, .. } = &mut *graphs;
        let arena = arenas.get_mut(&capturing);
        if arena.is_none() && !kept.contains_key(&token) {
            return false;
        }
        let kept = kept.entry(token).or_insert_with(|| Kept {
            address: block.address,
            bytes: block.bytes,
            graphs: Vec::new(),
            freed: false,
            after: Vec::new(),
        });
        if kept.freed {
            report_not_live(token as Node);
            return true;
        }
        kept.freed = true;
        match arena {
            Some(arena) if !kept.graphs.contains(&capturing) => {
                kept.graphs.push(capturing);
                arena.tokens.push(token);
            }
            Some(_) => {}
            None => kept.after.push((tag, slot.epochs.open())),
        }
        true
    }

    /// A block for the graph that the slot's stream records. `None` if that is over.
    #[cold]
    pub(super) fn allocate_captured(
        &self,
        slot: &Slot<U>,
        units: u32,
        align: u64,
    ) -> Result<Option<Block>, Failure<U::Error>> {
        let graph = slot.captured();
        let upto = self.graphs.lock().arenas.get(&graph).map(|arena| arena.upto);
        let Some(upto) = upto else { return Ok(None) };
        let _held = hold();
        count(&self.counters.misses);
        let (home, from, taken) = self.find_for_graph(&Wanted {
            slot,
            upto,
            units,
            align,
            granted: self.settings.alignment,
        })?;
        let token = self.token(home, taken.node);
        let (address, bytes) = (taken.address, (units as usize) << UNIT_SHIFT);
        let mut graphs = self.graphs.lock();
        let Graphs { arenas, kept, .. } = &mut *graphs;
        if let Some(arena) = arenas.get_mut(&graph) {
            arena.tokens.push(token);
            let graphs = vec![graph];
            kept.insert(token, Kept { address, bytes, graphs, freed: false, after: Vec::new() });
            return Ok(Some(Block { address, bytes, token: token | GRAPH_BIT }));
        }
        drop(graphs);
        // Given up meanwhile. Back as it was: no nearer to being ready than before.
        if let Some(home) = self.slot(home) {
            home.free(Freed { node: taken.node, tag: from, stamp: taken.stamp });
        }
        Ok(None)
    }

    fn find_for_graph(&self, wanted: &Wanted<'_, U>) -> Result<Ready, Failure<U::Error>> {
        if let Some(ready) = self.ready_for_graph(wanted) {
            return Ok(ready);
        }
        for source in self.all_slots().filter(|source| !source.is_bank()) {
            let mut record = source.epochs.lock();
            source.epochs.poll(&self.upstream, &mut record);
        }
        if let Some(ready) = self.ready_for_graph(wanted) {
            return Ok(ready);
        }
        let mut last = None;
        for rung in &self.settings.rungs {
            let found = match rung {
                Rung::Grow => {
                    let _moving = self.moving.read();
                    self.grow_for_graph(wanted, self.settings.soft_limit)
                }
                Rung::GrowToMaximum => {
                    let _moving = self.moving.read();
                    self.grow_for_graph(wanted, self.settings.maximum)
                }
                Rung::Trim => {
                    let _turn = self.turn.lock();
                    self.trim_for_graph(wanted)
                }
                _ => Ok(None),
            };
            match found {
                Ok(Some(ready)) => return Ok(ready),
                Ok(None) => {}
                Err(Failure::Upstream(error)) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        match last {
            Some(error) if !U::is_exhausted(&error) => Err(Failure::Upstream(error)),
            error => Err(Failure::Exhausted(error)),
        }
    }

    /// Free memory that needs no wait: the stream's own from before the capture, complete memory of
    /// the bank, and what any stream freed that is complete or that the stream had waited for. While
    /// it is in capture nobody makes it wait for more.
    fn ready_for_graph(&self, wanted: &Wanted<'_, U>) -> Option<Ready> {
        let Wanted { slot, upto, units, align, .. } = *wanted;
        if let Some(taken) = slot.heap().allocate(slot.tag, units, align, upto) {
            return Some((slot.tag, slot.tag, taken));
        }
        if let Some(ready) = self.draw_for_graph(wanted) {
            return Some(ready);
        }
        self.find_home(|source| {
            let mut heap = source.heap();
            let mut from = 0;
            while let Some((place, tag)) = heap.tag_from(from) {
                from = place + 1;
                // What the stream is ordered after it was before the capture, as was its own.
                let last = if tag == slot.tag { upto } else { self.ready(slot, tag) };
                if last == 0 || heap.at_most(tag) < units {
                    continue;
                }
                if let Some(taken) = heap.allocate(tag, units, align, last) {
                    count(&self.counters.steals);
                    return Some((source.tag, tag, taken));
                }
            }
            None
        })
    }

    /// Moves complete memory of the bank into the stream's heap, where it stays complete: merged with
    /// what was freed on the stream since the capture began it would not be the graph's to take.
    fn draw_for_graph(&self, wanted: &Wanted<'_, U>) -> Option<Ready> {
        let least = wanted.units.checked_add(padding(wanted.align, wanted.granted))?;
        let piece = {
            let mut heap = self.slot(COMPLETE)?.heap();
            if heap.at_most(COMPLETE) < least {
                return None;
            }
            heap.cut(COMPLETE, least, least, usize::MAX)?
        };
        let mut heap = wanted.slot.heap();
        self.add(wanted.slot, &mut heap, COMPLETE, piece);
        wanted.complete(&mut heap)
    }

    /// Takes complete memory from upstream, on a stream aside: no node of the graph. The caller reads
    /// or writes `moving`.
    fn grow_for_graph(
        &self,
        wanted: &Wanted<'_, U>,
        limit: usize,
    ) -> Result<Option<Ready>, Failure<U::Error>> {
        let Some(bytes) = wanted.needed() else { return Ok(None) };
        let wish = match self.settings.step {
            0 => bytes.max(LEAST_GROWTH),
            step => bytes.max(step),
        };
        let Some(piece) = self.reserve_more(None, bytes, wish, limit)? else { return Ok(None) };
        let mut heap = wanted.slot.heap();
        self.add(wanted.slot, &mut heap, COMPLETE, piece);
        Ok(wanted.complete(&mut heap))
    }

    /// The host waits for all streams that are not in capture, and blocks of upstream go back, if
    /// that makes room. The caller has the turn.
    fn trim_for_graph(&self, wanted: &Wanted<'_, U>) -> Result<Option<Ready>, Failure<U::Error>> {
        let Some(bytes) = wanted.needed().filter(|need| *need <= self.settings.maximum) else {
            return Ok(None);
        };
        self.reclaim_all();
        for source in self.all_slots().filter(|source| !source.is_bank()) {
            let mut record = source.epochs.lock();
            let stamp = match record.stream {
                Some(_) if source.captured() == 0 => source.epochs.open(),
                // Closed epochs have events from before the capture, which may be waited for.
                _ => record.newest(),
            };
            // A failure leaves things as they are: the memory is not ready.
            let _ = source.epochs.synchronize(&self.upstream, &mut record, stamp);
        }
        let _all = self.moving.write();
        self.bank_complete();
        if let Some(ready) = self.ready_for_graph(wanted) {
            return Ok(Some(ready));
        }
        let Some(bank) = self.slot(COMPLETE) else { return Ok(None) };
        // What the maximum asks for first; everything, if upstream has no more.
        for all in [false, true] {
            let target = if all { 0 } else { self.settings.maximum.saturating_sub(bytes) };
            let returned = self.cut_whole(&mut bank.heap(), target);
            for held in returned {
                count(&self.counters.returns);
                self.upstream.give_back(None, held.range);
            }
            match self.grow_for_graph(wanted, self.settings.maximum) {
                Err(_) if !all => {}
                found => return found,
            }
        }
        Ok(None)
    }
}

/// One request of a stream in a declared capture.
struct Wanted<'a, U: Upstream> {
    slot: &'a Slot<U>,
    upto: usize,
    units: u32,
    align: u64,
    /// What upstream aligns to.
    granted: u64,
}

impl<U: Upstream> Wanted<'_, U> {
    /// The bytes of a fresh range that serves for sure.
    fn needed(&self) -> Option<usize> {
        let units = self.units.checked_add(padding(self.align, self.granted))?;
        (units as usize).checked_mul(1 << UNIT_SHIFT)
    }

    /// A block of the complete memory in the stream's own heap.
    fn complete(&self, heap: &mut Heap) -> Option<Ready> {
        let taken = heap.allocate(COMPLETE, self.units, self.align, usize::MAX)?;
        Some((self.slot.tag, COMPLETE, taken))
    }
}

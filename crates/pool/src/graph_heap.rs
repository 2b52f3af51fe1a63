//! The memory that the graphs of one graph pool share.
//!
//! It is made of *chunks*, blocks that the pool has handed out for these graphs. A capture allocates from the free memory
//! of the chunks, and gives it back there. So graphs that never run at the same time have the same memory. A chunk goes
//! back to the pool when no graph uses it and nothing in it is live.
//!
//! # State table of a part of a chunk
//!
//! | the part is | graphs that use it | may be allocated by | launches of these graphs |
//! | --- | --- | --- | --- |
//! | never allocated, or its graphs are gone | none | captures of this graph pool | - |
//! | live, of the capture that allocated it | that one, and former ones | nobody | run |
//! | free | one or more | captures of this graph pool | run |
//! | live, and left over by its capture | that one | nobody | run |
//! | the same | former ones, too | nobody | of the former ones are refused ([`Pool::order_launch`](super::Pool::order_launch)) |
//! | free, and was left over | former ones, too | captures of this graph pool | of the former ones come after its free |
//!
//! Free memory has the tag and the stamp that it had before its capture allocated it, since a launch of another graph may
//! be the first one to use it. What is freed outside of captures has those of that free.

use super::block::{GRAPH_BIT, SlotId, UNIT_SHIFT, token_of};
use super::magazine::Cached;
use crate::heap::{Heap, Node, NotLive, Piece, Tag};
use std::collections::BTreeMap;

/// The number of a graph pool, which stands in the tokens of its blocks in place of a slot.
pub(super) type GraphPoolId = u16;

/// An address and the one after the last byte.
type Range = (u64, u64);

#[derive(Debug)]
pub(super) struct GraphHeap {
    id: GraphPoolId,
    heap: Heap,
    /// By address.
    chunks: BTreeMap<u64, Chunk>,
    /// What each graph has allocated, by its number. A graph that is here exists, or its capture is under way.
    users: BTreeMap<usize, User>,
    /// Whether somebody may begin further captures.
    pub(super) is_open: bool,
}

#[derive(Debug)]
struct Chunk {
    end: u64,
    /// The block's token in its pool.
    token: u64,
    /// The epochs that its next use comes after, besides its graphs and the frees in it. One for each slot.
    after: BTreeMap<SlotId, usize>,
}

#[derive(Debug, Default)]
struct User {
    /// The thread that records. Others that allocate on its stream give the stream their work when the capture is over: a
    /// launch may not write over what they get.
    thread: u64,
    /// All that the graph may use, in order. Adjacent ones are one.
    ranges: Vec<Range>,
    /// The blocks that its capture has allocated and not freed, with the tag and stamp that they had.
    made: BTreeMap<Node, (Tag, usize)>,
    /// Its capture is over, or about to be.
    has_ended: bool,
    /// It has left something over.
    has_left: bool,
    /// Live blocks that captures of other graphs have left over where this graph works.
    overwrites: Vec<Node>,
    /// The frees of such blocks: each launch comes after them. One for each slot.
    after: BTreeMap<SlotId, usize>,
}

/// A block of a graph heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct GraphBlock {
    pub(super) address: u64,
    pub(super) units: u32,
    pub(super) node: Node,
}

impl GraphHeap {
    pub(super) fn new(id: GraphPoolId, is_open: bool) -> Self {
        // No stream's memory is found the fastest: captures are few.
        let heap = Heap::new(UNIT_SHIFT, 0);
        Self { id, heap, chunks: BTreeMap::new(), users: BTreeMap::new(), is_open }
    }

    /// Whether nothing is left of it.
    pub(super) fn is_over(&self) -> bool {
        !self.is_open && self.users.is_empty() && self.chunks.is_empty()
    }

    pub(super) fn begin(&mut self, graph: usize, thread: u64) {
        self.users.insert(graph, User { thread, ..User::default() });
    }

    pub(super) fn free_bytes(&self) -> usize {
        self.heap.stats().free_bytes as usize
    }

    /// Bytes that came from the pool.
    pub(super) fn bytes(&self) -> usize {
        self.heap.stats().total_bytes as usize
    }

    pub(super) fn graphs(&self) -> usize {
        self.users.len()
    }

    /// Bytes that a graph may use.
    pub(super) fn bytes_of(&self, graph: usize) -> usize {
        let ranges = self.users.get(&graph).map(|user| &user.ranges);
        ranges.into_iter().flatten().map(|(start, end)| (end - start) as usize).sum()
    }

    /// The tags of its free memory.
    pub(super) fn tags(&self) -> Vec<Tag> {
        self.heap.tags().collect()
    }

    pub(super) fn token(&self, pool_mark: u16, node: Node) -> u64 {
        token_of(pool_mark, self.id, node) | GRAPH_BIT
    }

    /// A block of free memory for the capture of `graph`, if `thread` records it. `ready` gives the last stamp of a tag that
    /// the capture comes after.
    pub(super) fn allocate(
        &mut self,
        (graph, thread): (usize, u64),
        (units, align): (u32, u64),
        ready: impl Fn(Tag) -> usize,
    ) -> Option<GraphBlock> {
        // What is left over of it is known by now.
        if self.users.get(&graph).is_none_or(|user| user.has_ended || user.thread != thread) {
            return None;
        }
        let (tag, taken) = self.heap.find_tag(|heap, tag| {
            let taken = heap.allocate_exhaustive(tag, units, align, ready(tag))?;
            Some((tag, taken))
        })?;
        let block = GraphBlock { address: taken.address, units, node: taken.node };
        self.note(graph, block, (tag, taken.stamp));
        Some(block)
    }

    /// Takes a block of the pool as a chunk, for a capture of `graph`, which gets all of it. `number` is that of its
    /// upstream block, and `from` the tag and stamp that its memory had. `None` if there is no room for it in the heap's
    /// data.
    pub(super) fn add_chunk(
        &mut self,
        graph: usize,
        block: &super::Block,
        number: u32,
        from: (Tag, usize),
    ) -> Option<GraphBlock> {
        let (address, bytes) = (block.address, block.bytes as u64);
        let piece = Piece { upstream_block: number, address, bytes, stamp: from.1 };
        let taken = self.heap.add_allocated(piece)?;
        let chunk = Chunk { end: address + bytes, token: block.token, after: BTreeMap::new() };
        self.chunks.insert(address, chunk);
        let units = (bytes >> UNIT_SHIFT) as u32;
        let new = GraphBlock { address, units, node: taken.node };
        self.note(graph, new, from);
        Some(new)
    }

    fn note(&mut self, graph: usize, block: GraphBlock, from: (Tag, usize)) {
        let Some(user) = self.users.get_mut(&graph) else { return };
        // Work that is given to the stream from here on may run for real before the pool hears of the end.
        if !user.has_ended {
            user.made.insert(block.node, from);
        }
        insert_range(&mut user.ranges, block.range());
    }

    /// Whether a graph may use this live block, or the capture of one.
    pub(super) fn is_used(&self, node: Node) -> bool {
        let Some(range) = self.range(node) else { return false };
        self.users.values().any(|user| overlaps(&user.ranges, range))
    }

    fn range(&self, node: Node) -> Option<Range> {
        let (address, units) = self.heap.live(node).ok()?;
        Some((address, address + (u64::from(units) << UNIT_SHIFT)))
    }

    /// Whether the capture of `graph` has allocated a live block.
    pub(super) fn is_made_by(&self, node: Node, graph: usize) -> bool {
        self.users.get(&graph).is_some_and(|user| user.made.contains_key(&node))
    }

    /// Frees a block in the capture of the graph that has allocated it.
    pub(super) fn free_made(&mut self, node: Node, graph: usize) -> Result<(), NotLive> {
        let made = self.users.get_mut(&graph).and_then(|user| user.made.remove(&node));
        let (tag, stamp) = made.ok_or(NotLive(node))?;
        self.heap.free(node, tag, stamp).map(drop)
    }

    /// Frees a block outside of captures, in epoch `stamp` of `slot`. Returns whether a chunk can go back to the pool now.
    pub(super) fn free(&mut self, node: Node, slot: SlotId, stamp: usize) -> Result<bool, NotLive> {
        let range = self.range(node).ok_or(NotLive(node))?;
        self.heap.free(node, slot, stamp)?;
        for user in self.users.values_mut() {
            user.made.remove(&node);
            let before = user.overwrites.len();
            user.overwrites.retain(|other| *other != node);
            if user.overwrites.len() < before {
                note_latest(&mut user.after, slot, stamp);
            }
        }
        let is_used = |chunk: Range| self.users.values().any(|user| overlaps(&user.ranges, chunk));
        Ok(self.chunks_in(range).any(|chunk| !is_used(chunk) && self.is_free(chunk)))
    }

    fn chunks_in(&self, (start, end): Range) -> impl Iterator<Item = Range> + '_ {
        // Chunks are disjoint: the last one that begins before is the first that may reach into it.
        let first = self.chunks.range(..=start).next_back().map_or(start, |(at, _)| *at);
        let from = self.chunks.range(first..end).map(|(at, chunk)| (*at, chunk.end));
        from.filter(move |chunk| chunk.1 > start)
    }

    /// The capture of a graph is about to end. Launches of other graphs that would write over what it has left are refused
    /// from here on. Returns whether it has left something over, where graphs that are gone may still run.
    pub(super) fn end_capture(&mut self, graph: usize) -> bool {
        let Some(user) = self.users.get_mut(&graph) else { return false };
        user.has_ended = true;
        let left: Vec<Node> = std::mem::take(&mut user.made).into_keys().collect();
        for node in &left {
            let Some(range) = self.range(*node) else { continue };
            let others = self.users.iter_mut().filter(|(other, _)| **other != graph);
            for (_, user) in others.filter(|(_, user)| overlaps(&user.ranges, range)) {
                user.overwrites.push(*node);
            }
        }
        // Asked again, where the first answer led to nothing.
        let Some(user) = self.users.get_mut(&graph) else { return false };
        user.has_left |= !left.is_empty();
        user.has_left
    }

    /// The frees that each launch of a graph comes after.
    pub(super) fn launches_after(&self, graph: usize) -> Vec<(SlotId, usize)> {
        let after = self.users.get(&graph).map(|user| &user.after);
        after.into_iter().flatten().map(|(slot, stamp)| (*slot, *stamp)).collect()
    }

    /// Bytes of the live vectors of other graphs that a launch of this graph would write over.
    pub(super) fn overwritten_by(&self, graph: usize) -> u64 {
        let nodes = self.users.get(&graph).map(|user| &user.overwrites);
        let ranges = nodes.into_iter().flatten().filter_map(|node| self.range(*node));
        ranges.map(|(start, end)| end - start).sum()
    }

    /// Has a graph that never runs use the chunks in which nobody else does, so that its end gives them back.
    pub(super) fn use_unused(&mut self, graph: usize) {
        let is_used = |chunk: Range| self.users.values().any(|user| overlaps(&user.ranges, chunk));
        let chunks = self.chunks.iter().map(|(at, chunk)| (*at, chunk.end));
        let ranges = chunks.filter(|chunk| !is_used(*chunk)).collect();
        self.users.insert(graph, User { ranges, ..User::default() });
    }

    /// The chunks that can go back when this graph is gone.
    fn last_of(&self, graph: usize) -> Vec<Range> {
        let Some(user) = self.users.get(&graph) else { return Vec::new() };
        let others = || self.users.iter().filter(|(other, _)| **other != graph);
        let chunks = self.chunks.iter().map(|(at, chunk)| (*at, chunk.end));
        let own = chunks.filter(|chunk| overlaps(&user.ranges, *chunk));
        let last = own.filter(|chunk| !others().any(|(_, it)| overlaps(&it.ranges, *chunk)));
        last.filter(|chunk| self.is_free(*chunk)).collect()
    }

    fn is_free(&self, (start, end): Range) -> bool {
        self.free_in((start, end)).map(|(_, _, bytes)| bytes).sum::<u64>() == end - start
    }

    /// The free memory in a range: tags, stamps and bytes.
    fn free_in(&self, (start, end): Range) -> impl Iterator<Item = (Tag, usize, u64)> + '_ {
        self.heap.free_blocks_from(1).filter_map(move |block| {
            let bytes = block.end().min(end).checked_sub(block.address.max(start))?;
            (bytes > 0).then_some((block.tag, block.stamp, bytes))
        })
    }

    /// The epochs that the chunks which can go back without this graph come after.
    pub(super) fn waits_of(&self, graph: usize) -> Vec<(SlotId, usize)> {
        let mut waits = Vec::new();
        for range in self.last_of(graph) {
            waits.extend(self.free_in(range).map(|(tag, stamp, _)| (tag, stamp)));
            let after = self.chunks.get(&range.0).into_iter().flat_map(|chunk| &chunk.after);
            waits.extend(after.map(|(slot, stamp)| (*slot, *stamp)));
        }
        waits
    }

    /// Forgets a graph, which the stream of `slot` waits for up to `stamp`. Returns the pool's blocks that are free then.
    pub(super) fn end(&mut self, graph: usize, slot: SlotId, stamp: usize) -> Vec<Cached> {
        let last = self.last_of(graph);
        let Some(user) = self.users.remove(&graph) else { return Vec::new() };
        let mut free = Vec::new();
        for (start, end) in last {
            // All of it is free, and its blocks may go past it.
            let blocks: Vec<_> = self.heap.free_blocks_from(1).collect();
            let mut cut = 0;
            for block in blocks {
                let (from, to) = (block.address.max(start), block.end().min(end));
                if from < to && self.heap.extract_range(block, from, to - from).is_some() {
                    cut += to - from;
                }
            }
            // Without room for a node of the heap, a part of it stays there: then all of it stays.
            if cut == end - start
                && let Some(Chunk { token, .. }) = self.chunks.remove(&start)
            {
                free.push(Cached { address: start, token });
            }
        }
        for (start, chunk) in &mut self.chunks {
            if overlaps(&user.ranges, (*start, chunk.end)) {
                note_latest(&mut chunk.after, slot, stamp);
            }
        }
        free
    }
}

impl GraphBlock {
    fn range(&self) -> Range {
        (self.address, self.address + (u64::from(self.units) << UNIT_SHIFT))
    }
}

fn note_latest(after: &mut BTreeMap<SlotId, usize>, slot: SlotId, stamp: usize) {
    let latest = after.entry(slot).or_default();
    *latest = stamp.max(*latest);
}

fn overlaps(ranges: &[Range], (start, end): Range) -> bool {
    let first = ranges.partition_point(|range| range.1 <= start);
    ranges.get(first).is_some_and(|range| range.0 < end)
}

/// Adds a range to others that are in order.
fn insert_range(ranges: &mut Vec<Range>, (mut start, mut end): Range) {
    let first = ranges.partition_point(|range| range.1 < start);
    let last = first + ranges[first..].partition_point(|range| range.0 <= end);
    for range in ranges.drain(first..last) {
        (start, end) = (start.min(range.0), end.max(range.1));
    }
    ranges.insert(first, (start, end));
}

#[cfg(test)]
mod tests;

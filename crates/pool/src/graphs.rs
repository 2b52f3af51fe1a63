//! What the graphs of a pool keep: the memory of their graph pools, and blocks from elsewhere that were freed while they
//! were recorded.
//!
//! | a block that is freed on a stream that records a graph | is then |
//! | --- | --- |
//! | that this capture has allocated | free in the heap of its graph pool ([`graph_heap`](super::graph_heap)) |
//! | any other | kept until the graph is gone, since its work may have read it before: then it is free |

use super::block::{Block, GRAPH_BIT, SlotId, node_of, owner_of};
use super::graph_heap::{GraphBlock, GraphHeap, GraphPoolId};
use super::magazine::Cached;
use crate::heap::{NotLive, Tag};
use crate::sync::thread_id;
use std::collections::HashMap;

#[derive(Debug)]
pub(super) struct Graphs<S> {
    graphs: HashMap<usize, GraphMemory>,
    heaps: HashMap<GraphPoolId, GraphHeap>,
    /// Numbers that were given out, and those of them that no graph pool has.
    numbers: u32,
    vacant: Vec<GraphPoolId>,
    /// The bytes of what graphs keep from elsewhere, by token.
    kept: HashMap<u64, usize>,
    /// Graphs that are gone, whose launches the stream could not wait for at the time.
    pub(super) deferred: Vec<DroppedGraph<S>>,
}

/// The memory of one graph.
#[derive(Debug)]
struct GraphMemory {
    /// The slot of the stream that recorded the graph.
    slot: SlotId,
    /// INV-POOL-7: the last epoch that the capture, and so each launch, comes after. 0 until it is known.
    upto: usize,
    pool: GraphPoolId,
    /// The blocks that it keeps from elsewhere.
    kept: Vec<Cached>,
}

/// A graph that is gone.
#[derive(Debug)]
pub(super) struct DroppedGraph<S> {
    pub(super) graph: usize,
    /// The stream that recorded it. While this is here, the stream is not abandoned.
    pub(super) stream: S,
    pub(super) launched_on: Vec<S>,
}

/// What a free has come to, of a block that graphs may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreedForGraph {
    /// Graphs keep it.
    Kept,
    /// It lies in the heap of this graph pool, where a chunk can go back to the pool now.
    Unused(GraphPoolId),
}

/// What is free when a graph is gone.
#[derive(Debug, Default)]
pub(super) struct FreeAfterGraph {
    pub(super) blocks: Vec<Cached>,
    /// Graph pools where chunks can go back to the pool now, after some waits.
    pub(super) unused: Vec<GraphPoolId>,
}

impl<S> Default for Graphs<S> {
    fn default() -> Self {
        Self {
            graphs: HashMap::new(),
            heaps: HashMap::new(),
            numbers: 0,
            vacant: Vec::new(),
            kept: HashMap::new(),
            deferred: Vec::new(),
        }
    }
}

impl<S> Graphs<S> {
    /// A new graph pool. `None` if there are more than a token can tell apart.
    pub(super) fn open_pool(&mut self, is_open: bool) -> Option<GraphPoolId> {
        let id = match self.vacant.pop() {
            Some(id) => id,
            None => {
                let id = GraphPoolId::try_from(self.numbers).ok()?;
                self.numbers += 1;
                id
            }
        };
        self.heaps.insert(id, GraphHeap::new(id, is_open));
        Some(id)
    }

    /// No further capture begins in a graph pool.
    pub(super) fn close_pool(&mut self, id: GraphPoolId) {
        if let Some(heap) = self.heaps.get_mut(&id) {
            heap.is_open = false;
        }
        self.forget_if_over(id);
    }

    fn forget_if_over(&mut self, id: GraphPoolId) {
        if self.heaps.get(&id).is_some_and(GraphHeap::is_over) {
            self.heaps.remove(&id);
            self.vacant.push(id);
        }
    }

    pub(super) fn heap(&self, id: GraphPoolId) -> Option<&GraphHeap> {
        self.heaps.get(&id)
    }

    pub(super) fn begin(&mut self, graph: usize, slot: SlotId, pool: GraphPoolId) {
        self.graphs.insert(graph, GraphMemory { slot, upto: 0, pool, kept: Vec::new() });
        if let Some(heap) = self.heaps.get_mut(&pool) {
            heap.begin(graph, thread_id::assign());
        }
    }

    /// Forgets a graph that has not begun.
    pub(super) fn cancel(&mut self, graph: usize) {
        let Some(memory) = self.graphs.remove(&graph) else { return };
        if let Some(heap) = self.heaps.get_mut(&memory.pool) {
            heap.end(graph, memory.slot, 0);
        }
        self.forget_if_over(memory.pool);
    }

    pub(super) fn set_upto(&mut self, graph: usize, upto: usize) {
        if let Some(memory) = self.graphs.get_mut(&graph) {
            memory.upto = upto;
        }
    }

    pub(super) fn upto(&self, graph: usize) -> Option<usize> {
        self.graphs.get(&graph).map(|memory| memory.upto)
    }

    pub(super) fn slot(&self, graph: usize) -> Option<SlotId> {
        self.graphs.get(&graph).map(|memory| memory.slot)
    }

    /// The capture of a graph is about to end. Returns whether it leaves something over.
    pub(super) fn end_capture(&mut self, graph: usize) -> bool {
        self.heap_of_mut(graph).is_some_and(|heap| heap.end_capture(graph))
    }

    /// The frees that each launch of a graph comes after.
    pub(super) fn launches_after(&self, graph: usize) -> Vec<(SlotId, usize)> {
        self.heap_of(graph).map_or_else(Vec::new, |heap| heap.launches_after(graph))
    }

    fn heap_of(&self, graph: usize) -> Option<&GraphHeap> {
        self.heaps.get(&self.graphs.get(&graph)?.pool)
    }

    fn heap_of_mut(&mut self, graph: usize) -> Option<&mut GraphHeap> {
        self.heaps.get_mut(&self.graphs.get(&graph)?.pool)
    }

    /// Bytes that were freed and wait for a graph.
    pub(super) fn pending_free_bytes(&self) -> usize {
        self.kept.values().sum::<usize>()
            + self.heaps.values().map(GraphHeap::free_bytes).sum::<usize>()
    }

    /// Bytes that a graph may use of the memory that graphs keep.
    pub(super) fn bytes_of(&self, graph: usize) -> usize {
        let kept = self.graphs.get(&graph).map(|memory| &memory.kept).into_iter().flatten();
        let kept = kept.filter_map(|block| self.kept.get(&block.token));
        kept.sum::<usize>() + self.heap_of(graph).map_or(0, |heap| heap.bytes_of(graph))
    }

    /// Bytes of live vectors of other graphs that a launch of this graph would write over.
    pub(super) fn overwritten_by(&self, graph: usize) -> u64 {
        self.heap_of(graph).map_or(0, |heap| heap.overwritten_by(graph))
    }

    /// The tags of what is free for the capture of a graph.
    pub(super) fn free_tags(&self, graph: usize) -> Vec<Tag> {
        self.heap_of(graph).map_or_else(Vec::new, GraphHeap::tags)
    }

    /// A block for a graph from its graph pool, if this thread records the graph.
    pub(super) fn allocate(
        &mut self,
        graph: usize,
        size: (u32, u64),
        ready: impl Fn(Tag) -> usize,
    ) -> Option<GraphBlock> {
        self.heap_of_mut(graph)?.allocate((graph, thread_id::assign()), size, ready)
    }

    /// A new chunk of a graph's pool, which the graph gets. `number` is that of its upstream block, and `from` the tag and
    /// stamp that its memory had. `None` if there is no such graph.
    pub(super) fn add_chunk(
        &mut self,
        graph: usize,
        chunk: &Block,
        number: u32,
        from: (Tag, usize),
    ) -> Option<GraphBlock> {
        self.heap_of_mut(graph)?.add_chunk(graph, chunk, number, from)
    }

    /// The token of a block of a graph's pool.
    pub(super) fn token(&self, pool_mark: u16, graph: usize, block: GraphBlock) -> Option<u64> {
        self.heap_of(graph).map(|heap| heap.token(pool_mark, block.node))
    }

    /// Whether a graph may use the block of this token when its user has freed it. `capturing`: the graph
    /// that the stream of the free records, or 0.
    pub(super) fn keeps(&self, token: u64, capturing: usize) -> bool {
        let in_heap =
            || self.heaps.get(&owner_of(token)).is_some_and(|it| it.is_used(node_of(token)));
        self.graphs.contains_key(&capturing) || token & GRAPH_BIT != 0 && in_heap()
    }

    /// Notes a free in epoch `stamp` of `slot`, whose stream records the graph `capturing`, or 0.
    /// `None` if no graph may use the block; `NotLive` if the block was freed before.
    pub(super) fn free(
        &mut self,
        block: &Block,
        capturing: usize,
        (slot, stamp): (SlotId, usize),
    ) -> Option<Result<FreedForGraph, NotLive>> {
        let token = block.token;
        if self.kept.contains_key(&token) {
            return Some(Err(NotLive(node_of(token))));
        }
        let memory = self.graphs.get_mut(&capturing);
        if token & GRAPH_BIT != 0 {
            let pool = owner_of(token);
            let node = node_of(token);
            let Some(heap) = self.heaps.get_mut(&pool) else { return Some(Err(NotLive(node))) };
            if heap.is_made_by(node, capturing) {
                return Some(heap.free_made(node, capturing).map(|()| FreedForGraph::Kept));
            }
            if memory.is_none() {
                let freed = heap.free(node, slot, stamp);
                return Some(freed.map(|is_unused| match is_unused {
                    true => FreedForGraph::Unused(pool),
                    false => FreedForGraph::Kept,
                }));
            }
        }
        memory?.kept.push(Cached { address: block.address, token });
        self.kept.insert(token, block.bytes);
        Some(Ok(FreedForGraph::Kept))
    }

    /// Has a new graph, which never runs, use the memory of a graph pool that no graph uses and that nothing live is in.
    pub(super) fn use_unused(&mut self, graph: usize, pool: GraphPoolId, slot: SlotId) {
        let Some(heap) = self.heaps.get_mut(&pool) else { return };
        heap.use_unused(graph);
        self.graphs.insert(graph, GraphMemory { slot, upto: 0, pool, kept: Vec::new() });
    }

    /// The epochs that the memory which is free without this graph comes after.
    pub(super) fn waits_of(&self, graph: usize) -> Vec<(SlotId, usize)> {
        self.heap_of(graph).map_or_else(Vec::new, |heap| heap.waits_of(graph))
    }

    /// Forgets a graph, which the stream of `slot` waits for up to `stamp`. Returns what is free then.
    pub(super) fn end(&mut self, graph: usize, slot: SlotId, stamp: usize) -> FreeAfterGraph {
        let mut free = FreeAfterGraph::default();
        let Some(memory) = self.graphs.remove(&graph) else { return free };
        // Before what it keeps of such a heap is free there: that comes after more than was waited for.
        if let Some(heap) = self.heaps.get_mut(&memory.pool) {
            free.blocks = heap.end(graph, slot, stamp);
        }
        for block in memory.kept {
            self.kept.remove(&block.token);
            if block.token & GRAPH_BIT == 0 {
                free.blocks.push(block);
                continue;
            }
            let pool = owner_of(block.token);
            let heap = self.heaps.get_mut(&pool);
            if heap.is_some_and(|it| it.free(node_of(block.token), slot, stamp) == Ok(true)) {
                free.unused.push(pool);
            }
        }
        self.forget_if_over(memory.pool);
        free
    }
}

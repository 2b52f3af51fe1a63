//! What the graphs of a pool keep: their own blocks, and those that were freed while they were
//! recorded.
//!
//! # State table of a block that a graph may use
//!
//! | `graphs` | `freed` | the block is | next |
//! | --- | --- | --- | --- |
//! | some | no | its user's, and the graphs' | a free, or the last graph ends: it is an ordinary block |
//! | some | yes | the graphs' | the last graph ends: it is free, after `after` and the graph's launches |

use super::block::{Block, SlotId, node_of};
use super::magazine::Cached;
use crate::heap::NotLive;
use std::collections::HashMap;

#[derive(Debug)]
pub(super) struct Graphs<S> {
    pub(super) arenas: HashMap<usize, GraphMemory>,
    /// By token, without the graphs' bit.
    blocks: HashMap<u64, GraphBlock>,
    /// Graphs that are gone, whose launches the stream could not wait for at the time.
    pub(super) deferred: Vec<DroppedGraph<S>>,
}

/// The memory of one graph.
#[derive(Debug)]
pub(super) struct GraphMemory {
    /// The slot of the stream that recorded the graph.
    pub(super) slot: SlotId,
    /// INV-POOL-7: the last epoch that the capture, and so each launch, comes after. 0 until it is known.
    pub(super) upto: usize,
    tokens: Vec<u64>,
}

#[derive(Debug)]
struct GraphBlock {
    address: u64,
    bytes: usize,
    graphs: Vec<usize>,
    /// Its user has freed it.
    freed: bool,
    /// The epochs that its next use comes after, besides the graphs that are left.
    after: Vec<(SlotId, usize)>,
}

/// A graph that is gone.
#[derive(Debug)]
pub(super) struct DroppedGraph<S> {
    pub(super) graph: usize,
    /// The stream that recorded it. While this is here, the stream is not abandoned.
    pub(super) stream: S,
    pub(super) launched_on: Vec<S>,
}

impl<S> Default for Graphs<S> {
    fn default() -> Self {
        Self { arenas: HashMap::new(), blocks: HashMap::new(), deferred: Vec::new() }
    }
}

impl<S> Graphs<S> {
    pub(super) fn begin(&mut self, graph: usize, slot: SlotId) {
        self.arenas.insert(graph, GraphMemory { slot, upto: 0, tokens: Vec::new() });
    }

    /// Bytes that were freed and wait for a graph.
    pub(super) fn pending_free_bytes(&self) -> usize {
        self.blocks.values().filter(|block| block.freed).map(|block| block.bytes).sum()
    }

    fn blocks_of(&self, graph: usize) -> impl Iterator<Item = &GraphBlock> {
        let tokens = self.arenas.get(&graph).into_iter().flat_map(|arena| &arena.tokens);
        tokens.filter_map(|token| self.blocks.get(token))
    }

    pub(super) fn bytes_of(&self, graph: usize) -> usize {
        self.blocks_of(graph).map(|block| block.bytes).sum()
    }

    /// The slot of a graph that has memory. Forgets a graph that has none.
    pub(super) fn slot_or_remove_empty(&mut self, graph: usize) -> Option<SlotId> {
        let arena = self.arenas.get(&graph)?;
        if arena.tokens.is_empty() {
            self.arenas.remove(&graph);
            return None;
        }
        Some(arena.slot)
    }

    /// Adds a new block to a graph's arena. `false` if there is no such graph.
    pub(super) fn allocate(&mut self, graph: usize, block: &Block) -> bool {
        let Some(arena) = self.arenas.get_mut(&graph) else { return false };
        arena.tokens.push(block.token);
        let new = GraphBlock { graphs: vec![graph], ..GraphBlock::new(block) };
        self.blocks.insert(block.token, new);
        true
    }

    /// The block of this token has another size now.
    pub(super) fn set_bytes(&mut self, token: u64, bytes: usize) {
        if let Some(block) = self.blocks.get_mut(&token) {
            block.bytes = bytes;
        }
    }

    /// Whether a graph may use the block of this token when its user has freed it. `capturing`: the graph
    /// that the stream of the free records, or 0.
    pub(super) fn keeps(&self, token: u64, capturing: usize) -> bool {
        self.arenas.contains_key(&capturing) || self.blocks.contains_key(&token)
    }

    /// Notes a free in epoch `stamp` of `slot`, whose stream records the graph `capturing`, or 0.
    /// `None` if no graph may use the block; `NotLive` if the block was freed before.
    pub(super) fn free(
        &mut self,
        block: &Block,
        capturing: usize,
        (slot, stamp): (SlotId, usize),
    ) -> Option<Result<(), NotLive>> {
        let arena = self.arenas.get_mut(&capturing);
        if arena.is_none() && !self.blocks.contains_key(&block.token) {
            return None;
        }
        let kept = self.blocks.entry(block.token).or_insert_with(|| GraphBlock::new(block));
        if kept.freed {
            return Some(Err(NotLive(node_of(block.token))));
        }
        kept.freed = true;
        match arena {
            Some(arena) if !kept.graphs.contains(&capturing) => {
                kept.graphs.push(capturing);
                arena.tokens.push(block.token);
            }
            Some(_) => {}
            None => kept.after.push((slot, stamp)),
        }
        Some(Ok(()))
    }

    /// The epochs that the memory which is free without this graph comes after.
    pub(super) fn waits_of(&self, graph: usize) -> Vec<(SlotId, usize)> {
        let last = self.blocks_of(graph).filter(|block| block.freed && block.graphs == [graph]);
        last.flat_map(|block| block.after.iter().copied()).collect()
    }

    /// Forgets a graph, which the stream of `slot` waits for up to `stamp`. Returns what is free then.
    pub(super) fn end(&mut self, graph: usize, slot: SlotId, stamp: usize) -> Vec<Cached> {
        let Some(arena) = self.arenas.remove(&graph) else { return Vec::new() };
        let mut free = Vec::new();
        for token in arena.tokens {
            let Some(block) = self.blocks.get_mut(&token) else { continue };
            block.graphs.retain(|other| *other != graph);
            if !block.graphs.is_empty() {
                block.after.push((slot, stamp));
                continue;
            }
            // A block that its user still has is an ordinary one from here on.
            if let Some(GraphBlock { freed: true, address, .. }) = self.blocks.remove(&token) {
                free.push(Cached { address, token });
            }
        }
        free
    }
}

impl GraphBlock {
    fn new(block: &Block) -> Self {
        let Block { address, bytes, .. } = *block;
        Self { address, bytes, graphs: Vec::new(), freed: false, after: Vec::new() }
    }
}

//! Memory that comes to the heap, leaves it, or changes its tag.

use super::allocate::Heap;
use super::bins::{all, bin_of, insert, list, remove, up};
use super::merge::resize;
use super::nodes::{BORDER, BlockNode, LIVE};
use super::spans::Span;
use super::types::{COMPLETE, FreeBlock, Piece, Tag, Taken};

impl Heap {
    /// Adds free memory (a fresh upstream_block, or a piece cut from another heap). Joins neighbours of the
    /// same upstream_block that lie in this heap: they become linked, and merge if their tags agree.
    /// O(log pieces).
    ///
    /// The piece is a multiple of the unit in address and size, and no part of it is in the heap
    /// already. One that is not, or is empty, is not taken.
    pub fn add(&mut self, tag: Tag, piece: Piece) {
        let Some((first, blocks)) = self.add_as_live(piece) else { return };
        // A block whose turn is still to come is live, so no other merges with it.
        let mut node = first;
        for _ in 0..blocks {
            let next = self.nodes[node].next;
            self.give(node, tag, piece.stamp);
            node = next;
        }
    }

    /// Adds memory as [`add`](Self::add) does, and allocates all of it as one block. `None`, and it is not
    /// taken, where that fails or it is too large for one block.
    pub fn add_allocated(&mut self, piece: Piece) -> Option<Taken> {
        u32::try_from(piece.bytes >> self.unit_shift).ok()?;
        let (node, _) = self.add_as_live(piece)?;
        let BlockNode { address, units, .. } = self.nodes[node];
        self.count_live(i64::from(units), 1);
        Some(Taken { node, address, stamp: piece.stamp })
    }

    /// The memory of a piece in blocks that stand in no list: the first of them, and how many.
    fn add_as_live(&mut self, piece: Piece) -> Option<(u32, usize)> {
        let Piece { upstream_block, address, bytes, .. } = piece;
        let odd = (address | bytes) & ((1 << self.unit_shift) - 1) != 0;
        let end = address.checked_add(bytes).filter(|_| bytes != 0 && !odd);
        let end = end.filter(|&end| !self.spans.overlap(address, end));
        // One block has no more units than a `u32` counts.
        let blocks = (bytes >> self.unit_shift).div_ceil(u64::from(u32::MAX)) as usize;
        // An upstream may hand out a block twice, or one that goes past the last address.
        let end = end.filter(|_| self.nodes.room_for(blocks + 1))?;
        let (below, above) = self.open(address, end, upstream_block);
        self.total_bytes += bytes;

        let (mut low, mut start) = (below, address);
        while start < end {
            let left = (end - start) >> self.unit_shift;
            let units = u32::try_from(left).unwrap_or(u32::MAX);
            let node = self.nodes.take(BlockNode::live(start, units, low, above));
            self.nodes.link(low, node);
            low = node;
            start += u64::from(units) << self.unit_shift;
        }
        self.nodes.link(low, above);
        Some((self.nodes[below].next, blocks))
    }

    /// Opens a ring for the blocks of a new piece, and sets the span that covers it. Returns the
    /// nodes that they go between.
    fn open(&mut self, start: u64, end: u64, upstream_block: u32) -> (u32, u32) {
        let before = self.spans.ending(start, upstream_block);
        let after = self.spans.starting(end, upstream_block);
        if after.is_some() {
            self.spans.remove(end);
        }
        match (before, after) {
            (None, None) => {
                let border = self.new_border();
                self.spans.set(start, Span { end, upstream_block, border });
                (border, border)
            }
            (Some((first, span)), None) => {
                self.spans.set(first, Span { end, ..span });
                (self.nodes[span.border].prev, span.border)
            }
            (None, Some(span)) => {
                self.spans.set(start, span);
                (span.border, self.nodes[span.border].next)
            }
            (Some((first, span)), Some(gone)) => {
                let below = self.nodes[span.border].prev;
                let BlockNode { next: above, prev: last, .. } = self.nodes[gone.border];
                self.nodes.link(last, span.border);
                self.nodes.release(gone.border);
                self.spans.set(first, Span { end: gone.end, ..span });
                (below, above)
            }
        }
    }

    /// A ring of no blocks.
    fn new_border(&mut self) -> u32 {
        let block = BlockNode { bin: BORDER, ..BlockNode::live(0, 0, 0, 0) };
        let border = self.nodes.take(block);
        self.nodes.link(border, border);
        border
    }

    /// Takes the span of addresses that lies between two neighbours in a ring out of the heap.
    fn close(&mut self, below: u32, above: u32, start: u64, end: u64) {
        let Some((first, span)) = self.spans.below(start) else { return };
        let bottom = self.nodes[below].bin == BORDER;
        let top = self.nodes[above].bin == BORDER;
        if bottom {
            self.spans.remove(first);
        } else {
            self.spans.set(first, Span { end: start, ..span });
        }
        match (bottom, top) {
            (true, true) => self.nodes.release(span.border),
            (true, false) => self.spans.set(end, span),
            (false, true) => {}
            (false, false) => {
                let last = self.nodes[span.border].prev;
                self.nodes.link(below, span.border);
                let border = self.new_border();
                self.nodes.link(border, above);
                self.nodes.link(last, border);
                self.spans.set(end, Span { border, ..span });
            }
        }
        self.total_bytes -= end - start;
        if self.total_bytes == 0 {
            // Whatever the heap was, it costs nothing now.
            self.nodes.clear();
            self.tag_bins.clear();
        }
    }

    /// Free memory of `from` with a stamp of at most `upto` becomes free memory of `to` with this
    /// stamp, and merges there. O(blocks of `from`). Returns how many blocks moved.
    pub fn retag(&mut self, from: Tag, upto: usize, to: Tag, stamp: usize) -> usize {
        let moved = self.nodes_upto(from, upto);
        for &node in &moved {
            self.remove(from, node);
            self.give(node, to, stamp);
        }
        moved.len()
    }

    /// Takes a free block of a tag out of its list: it is live.
    fn remove(&mut self, tag: Tag, node: u32) {
        let mut nodes = self.nodes.view();
        remove(self.tag_bins.make(tag), &mut nodes, node);
        nodes[node].bin = LIVE;
        self.tag_bins.settle(tag, &mut self.nodes);
    }

    /// The free blocks of a tag with a stamp of at most `upto`, which the caller takes out.
    fn nodes_upto(&mut self, tag: Tag, upto: usize) -> Vec<u32> {
        let mut moved = Vec::new();
        let mut oldest = usize::MAX;
        let Some(lists) = self.tag_bins.get(tag) else { return moved };
        for (node, block) in all(lists, self.nodes.all()) {
            if block.stamp <= upto {
                moved.push(node);
            } else {
                oldest = oldest.min(block.stamp);
            }
        }
        // Without this each look at what is ready would go through all again, in vain.
        self.tag_bins.make(tag).set_oldest(oldest);
        moved
    }

    /// Cuts free memory of `tag` with a stamp of at most `upto` out of this heap: at least `least`
    /// units if there is such a block (a good fit for `least`), else the largest there is; at most
    /// `most` units, from its low end. `None` only if there is no such memory, or `most` is 0. After
    /// this the heap knows nothing of it: its neighbours have a border there.
    ///
    /// O(log pieces) if there is a good fit for `least` that `allocate` would take; else as long as
    /// the bins of `least` and of the largest block are.
    pub fn extract(&mut self, tag: Tag, least: u32, most: u32, upto: usize) -> Option<Piece> {
        if most == 0 || !self.nodes.room_for(1) {
            return None;
        }
        let every = (usize::MAX, usize::MAX, 0);
        let fit = self.find_any(tag, least.max(1), 1, upto, every).map(|(node, _)| node);
        let node = fit.or_else(|| self.largest(self.tag_bins.get(tag)?, upto))?;
        Some(self.extract_node(node, most))
    }

    /// Cuts all free memory of `tag` with a stamp of at most `upto` out. O(blocks of the tag), each
    /// O(log pieces).
    pub fn extract_all(&mut self, tag: Tag, upto: usize, into: &mut Vec<Piece>) {
        for node in self.nodes_upto(tag, upto) {
            if self.nodes.room_for(1) {
                into.push(self.extract_node(node, u32::MAX));
            }
        }
    }

    /// Free blocks of so many bytes and more. O(blocks of this size and above).
    pub fn free_blocks_from(&self, least: u64) -> impl Iterator<Item = FreeBlock> + '_ {
        let least = u32::try_from(least >> self.unit_shift).unwrap_or(u32::MAX).max(1);
        self.tag_bins.filled().flat_map(move |(tag, lists)| {
            let large = up(lists, bin_of(least));
            let blocks = large.flat_map(move |at| list(self.nodes.all(), lists.head(at)));
            let blocks = blocks.filter(move |(_, block)| block.units >= least);
            blocks.map(move |(node, &BlockNode { address, units, stamp, .. })| {
                let bytes = u64::from(units) << self.unit_shift;
                FreeBlock { node, tag, address, bytes, stamp }
            })
        })
    }

    /// The free memory of a tag right below and right above a range of `upstream_block` that is not in this heap: what
    /// the range would merge with. O(log pieces).
    pub fn free_beside(
        &self,
        tag: Tag,
        upstream_block: u32,
        (start, end): (u64, u64),
    ) -> (u64, u64) {
        let bytes = |node: u32| {
            let block = &self.nodes[node];
            let is_own = block.is_free() && block.tag == tag;
            if is_own { u64::from(block.units) << self.unit_shift } else { 0 }
        };
        let below = self.spans.ending(start, upstream_block);
        let above = self.spans.starting(end, upstream_block);
        (
            below.map_or(0, |(_, span)| bytes(self.nodes[span.border].prev)),
            above.map_or(0, |span| bytes(self.nodes[span.border].next)),
        )
    }

    /// Cuts a range out of a free block that is as it was seen. `None` if it is not. O(log pieces).
    pub fn extract_range(&mut self, block: FreeBlock, address: u64, bytes: u64) -> Option<Piece> {
        let unit = |bytes: u64| u32::try_from(bytes >> self.unit_shift).ok();
        let (skip, cut) = (unit(address.checked_sub(block.address)?)?, unit(bytes)?);
        let FreeBlock { mut node, tag, stamp, .. } = block;
        let seen = *self.nodes.all().get(node as usize).filter(|seen| seen.is_free())?;
        let BlockNode { units, next, .. } = seen;
        let is_same = (seen.tag, seen.address, Some(units), seen.stamp)
            == (tag, block.address, unit(block.bytes), stamp);
        let is_inside = skip.checked_add(cut).is_some_and(|end| end <= units);
        if cut == 0 || !is_same || !is_inside || !self.nodes.room_for(2) {
            return None;
        }
        if skip > 0 {
            let upper = BlockNode::live(address, units - skip, node, next);
            let upper = self.nodes.take(BlockNode { tag, stamp, ..upper });
            self.nodes.link(node, upper);
            self.nodes.link(upper, next);
            let (lists, mut nodes) = (self.tag_bins.make(tag), self.nodes.view());
            resize(lists, &mut nodes, node, skip);
            insert(lists, &mut nodes, upper);
            self.tag_bins.settle(tag, &mut self.nodes);
            node = upper;
        }
        Some(self.extract_node(node, cut))
    }

    /// Cuts a free block out, or that many units from its low end.
    fn extract_node(&mut self, node: u32, most: u32) -> Piece {
        let BlockNode { address, units, prev, next, tag, stamp, .. } = self.nodes[node];
        let cut = units.min(most);
        let bytes = u64::from(cut) << self.unit_shift;
        let upstream_block = self.spans.below(address).map_or(0, |(_, span)| span.upstream_block);
        let above = if cut == units {
            self.remove(tag, node);
            self.nodes.release(node);
            // Out of the ring first, so that a border can be put in its place.
            self.nodes.link(prev, next);
            next
        } else {
            let (lists, mut nodes) = (self.tag_bins.make(tag), self.nodes.view());
            nodes[node].address += bytes;
            resize(lists, &mut nodes, node, units - cut);
            node
        };
        self.close(prev, above, address, address + bytes);
        Piece { upstream_block, address, bytes, stamp }
    }

    /// Cuts out the addresses `[address, address + bytes)` of `upstream_block` if all of it is one free block
    /// of complete memory that starts and ends there: a whole upstream block. O(log pieces) where a
    /// piece starts there; elsewhere as long as the bin of its size.
    pub fn extract_complete_block(
        &mut self,
        upstream_block: u32,
        address: u64,
        bytes: u64,
    ) -> bool {
        self.extract_free_block(upstream_block, address, bytes, |tag, _| tag == COMPLETE)
    }

    /// As [`extract_complete_block`](Self::extract_complete_block), of memory whose tags and stamps are `ready`.
    pub fn extract_free_block(
        &mut self,
        upstream_block: u32,
        address: u64,
        bytes: u64,
        ready: impl Fn(Tag, usize) -> bool,
    ) -> bool {
        let found = self.free_block(upstream_block, address, bytes, ready);
        let Some((first, blocks)) = found.filter(|_| self.nodes.room_for(1)) else { return false };
        let mut node = first;
        for _ in 0..blocks {
            let next = self.nodes[node].next;
            self.extract_node(node, u32::MAX);
            node = next;
        }
        true
    }

    /// Whether a whole block of upstream is free.
    pub fn has_free_block(&self, upstream_block: u32, address: u64, bytes: u64) -> bool {
        self.free_block(upstream_block, address, bytes, |_, _| true).is_some()
    }

    /// The first node and the number of nodes of a whole block of upstream, if it is free and `ready`.
    fn free_block(
        &self,
        upstream_block: u32,
        address: u64,
        bytes: u64,
        ready: impl Fn(Tag, usize) -> bool,
    ) -> Option<(u32, usize)> {
        let (start, span) = self.spans.below(address)?;
        let ends = address.checked_add(bytes).is_some_and(|end| end <= span.end);
        if !ends || bytes == 0 || span.upstream_block != upstream_block {
            return None;
        }
        let first = match start == address {
            true => self.nodes[span.border].next,
            false => self.found(address, bytes)?,
        };
        // Of one tag only what is too large for one block's count is more than one block here.
        let (mut node, mut left, mut blocks) = (first, bytes, 0);
        while left != 0 {
            let block = &self.nodes[node];
            let size = u64::from(block.units) << self.unit_shift;
            if !block.is_free() || size > left || !ready(block.tag, block.stamp) {
                return None;
            }
            left -= size;
            blocks += 1;
            node = block.next;
        }
        Some((first, blocks))
    }

    /// The complete block of this address and size.
    fn found(&self, address: u64, bytes: u64) -> Option<u32> {
        let units = u32::try_from(bytes >> self.unit_shift).ok()?;
        let lists = self.tag_bins.get(COMPLETE)?;
        let head = lists.head(lists.list_of(bin_of(units)));
        let found = |block: &BlockNode| block.units == units && block.address == address;
        list(self.nodes.all(), head).find(|(_, block)| found(block)).map(|(node, _)| node)
    }
}

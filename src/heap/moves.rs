//! Memory that comes to the heap, leaves it, or changes its tag.

use super::bins::{Bins, bin_of};
use super::nodes::{Block, State};
use super::pieces::Span;
use super::tagged::place_of;
use super::{COMPLETE, Heap, Piece, Tag};

impl Heap {
    /// Adds free memory (a fresh range, or a piece cut from another heap). Joins neighbours of the
    /// same range that lie in this heap: they become linked, and merge if their tags agree.
    /// O(log pieces).
    ///
    /// The piece is a multiple of the unit in address and size, and no part of it is in the heap
    /// already. One that is not, or is empty, is not taken.
    pub(crate) fn add(&mut self, tag: Tag, piece: Piece) {
        let Piece { range, address, bytes, stamp } = piece;
        let odd = (address | bytes) & ((1 << self.unit_shift) - 1) != 0;
        let end = address.checked_add(bytes).filter(|_| bytes != 0 && !odd);
        let end = end.filter(|&end| !self.pieces.overlap(address, end));
        // One block has no more units than a `u32` counts.
        let blocks = (bytes >> self.unit_shift).div_ceil(u64::from(u32::MAX)) as usize;
        let Some(end) = end.filter(|_| self.nodes.room_for(blocks + 1)) else {
            debug_assert!(bytes == 0, "no piece that the heap can take: {piece:?}");
            return;
        };
        let (below, above) = self.open(address, end, range);
        self.total_bytes += bytes;

        let (mut low, mut start) = (below, address);
        while start < end {
            let left = (end - start) >> self.unit_shift;
            let units = u32::try_from(left).unwrap_or(u32::MAX);
            let node = self.nodes.take(Block::live(start, units, low, above));
            self.nodes.link(low, node);
            low = node;
            start += u64::from(units) << self.unit_shift;
        }
        self.nodes.link(low, above);
        // A block that has not had its turn is live, so no other swallows it.
        let mut node = self.nodes[below].next;
        let set = self.shelf.make(tag);
        for _ in 0..blocks {
            let next = self.nodes[node].next;
            self.tagged(set).give(node, tag, stamp);
            node = next;
        }
    }

    /// Opens a ring for the blocks of a new piece, and sets the span that covers it. Returns the
    /// nodes that they go between.
    fn open(&mut self, start: u64, end: u64, range: u32) -> (u32, u32) {
        let before = self.pieces.ending(start, range);
        let after = self.pieces.starting(end, range);
        if after.is_some() {
            self.pieces.remove(end);
        }
        match (before, after) {
            (None, None) => {
                let border = self.new_border();
                self.pieces.set(start, Span { end, range, border });
                (border, border)
            }
            (Some((first, span)), None) => {
                self.pieces.set(first, Span { end, ..span });
                (self.nodes[span.border].prev, span.border)
            }
            (None, Some(span)) => {
                self.pieces.set(start, span);
                (span.border, self.nodes[span.border].next)
            }
            (Some((first, span)), Some(gone)) => {
                let below = self.nodes[span.border].prev;
                let Block { next: above, prev: last, .. } = self.nodes[gone.border];
                self.nodes.link(last, span.border);
                self.nodes.release(gone.border);
                self.pieces.set(first, Span { end: gone.end, ..span });
                (below, above)
            }
        }
    }

    /// A ring of no blocks.
    fn new_border(&mut self) -> u32 {
        let block = Block { state: State::Border, ..Block::live(0, 0, 0, 0) };
        let border = self.nodes.take(block);
        self.nodes.link(border, border);
        border
    }

    /// Takes the span of addresses that lies between two neighbours in a ring out of the heap.
    fn close(&mut self, below: u32, above: u32, start: u64, end: u64) {
        let Some((first, span)) = self.pieces.below(start) else { return };
        let bottom = self.nodes[below].state == State::Border;
        let top = self.nodes[above].state == State::Border;
        if bottom {
            self.pieces.remove(first);
        } else {
            self.pieces.set(first, Span { end: start, ..span });
        }
        match (bottom, top) {
            (true, true) => self.nodes.release(span.border),
            (true, false) => self.pieces.set(end, span),
            (false, true) => {}
            (false, false) => {
                let last = self.nodes[span.border].prev;
                self.nodes.link(below, span.border);
                let border = self.new_border();
                self.nodes.link(border, above);
                self.nodes.link(last, border);
                self.pieces.set(end, Span { border, ..span });
            }
        }
        self.total_bytes -= end - start;
    }

    /// Free memory of `from` with a stamp of at most `upto` becomes free memory of `to` with this
    /// stamp, and merges there. O(blocks of `from`). Returns how many blocks moved.
    pub(crate) fn retag(&mut self, from: Tag, upto: usize, to: Tag, stamp: usize) -> usize {
        let moved = self.nodes_of(from, upto);
        let Some(set) = self.shelf.place(from) else { return 0 };
        for &node in &moved {
            self.tagged(set).unshelve(node);
            // The bins of `from` may become those of `to`, with the last block only.
            let set = self.shelf.make(to);
            self.tagged(set).give(node, to, stamp);
        }
        moved.len()
    }

    /// The free blocks of a tag with a stamp of at most `upto`.
    fn nodes_of(&self, tag: Tag, upto: usize) -> Vec<u32> {
        let entries = self.shelf.get(tag).into_iter().flat_map(Bins::entries);
        entries.filter(|entry| entry.stamp <= upto).map(|entry| entry.node).collect()
    }

    /// Cuts free memory of `tag` with a stamp of at most `upto` out of this heap: at least `least`
    /// units if there is such a block (a good fit for `least`), else the largest there is; at most
    /// `most` units, from its low end. `None` only if there is no such memory, or `most` is 0. After
    /// this the heap knows nothing of it: its neighbours have a border there.
    ///
    /// O(log pieces) if there is a good fit for `least` that `allocate` would take; else as long as
    /// the bins of `least` and of the largest block are.
    pub(crate) fn cut(&mut self, tag: Tag, least: u32, most: u32, upto: usize) -> Option<Piece> {
        if most == 0 || !self.nodes.room_for(1) {
            return None;
        }
        let bins = self.shelf.get(tag)?;
        let early = |units| bins.early(units, upto);
        let place = early(least.max(1)).or_else(|| bins.largest(upto))?;
        let node = bins.entry(place).node;
        Some(self.cut_node(node, most))
    }

    /// Cuts all free memory of `tag` with a stamp of at most `upto` out. O(blocks of the tag), each
    /// O(log pieces).
    pub(crate) fn cut_all(&mut self, tag: Tag, upto: usize, into: &mut Vec<Piece>) {
        for node in self.nodes_of(tag, upto) {
            if self.nodes.room_for(1) {
                into.push(self.cut_node(node, u32::MAX));
            }
        }
    }

    /// Cuts a free block out, or that many units from its low end.
    fn cut_node(&mut self, node: u32, most: u32) -> Piece {
        let Block { address, units, prev, next, tag, .. } = self.nodes[node];
        let cut = units.min(most);
        let bytes = u64::from(cut) << self.unit_shift;
        let range = self.pieces.below(address).map_or(0, |(_, span)| span.range);
        let set = self.shelf.make(tag);
        let stamp;
        let above = if cut == units {
            stamp = self.tagged(set).unshelve(node);
            self.nodes.release(node);
            // Out of the ring first, so that a border can be put in its place.
            self.nodes.link(prev, next);
            next
        } else {
            let place = place_of(&self.nodes[node]);
            stamp = self.shelf[set].entry(place).stamp;
            let mut tagged = self.tagged(set);
            tagged.nodes[node].address += bytes;
            tagged.resize(node, place, units - cut, 0);
            node
        };
        self.close(prev, above, address, address + bytes);
        Piece { range, address, bytes, stamp }
    }

    /// Cuts out the addresses `[address, address + bytes)` of `range` if all of it is one free block
    /// of complete memory that starts and ends there: a whole upstream block. O(log pieces) where a
    /// piece starts there; elsewhere as long as the bin of its size.
    pub(crate) fn cut_exactly(&mut self, range: u32, address: u64, bytes: u64) -> bool {
        let Some((start, span)) = self.pieces.below(address) else { return false };
        let ends = address.checked_add(bytes).is_some_and(|end| end <= span.end);
        if !ends || bytes == 0 || span.range != range {
            return false;
        }
        let first = if start == address {
            self.nodes[span.border].next
        } else {
            match self.found(address, bytes) {
                Some(node) => node,
                None => return false,
            }
        };
        // Only what is too large for one block's count is more than one block here.
        let (mut node, mut left, mut blocks) = (first, bytes, 0);
        while left != 0 {
            let block = &self.nodes[node];
            let size = u64::from(block.units) << self.unit_shift;
            if block.state != State::Free || block.tag != COMPLETE || size > left {
                return false;
            }
            left -= size;
            blocks += 1;
            node = block.next;
        }
        if !self.nodes.room_for(1) {
            return false;
        }
        let mut node = first;
        for _ in 0..blocks {
            let next = self.nodes[node].next;
            self.cut_node(node, u32::MAX);
            node = next;
        }
        true
    }

    /// The complete block of this address and size.
    fn found(&self, address: u64, bytes: u64) -> Option<u32> {
        let units = u32::try_from(bytes >> self.unit_shift).ok()?;
        let bins = self.shelf.get(COMPLETE)?;
        let mut entries = bins.kept().into_iter().chain(bins.in_bin(bin_of(units)));
        let found = |node: u32| self.nodes[node].address == address;
        entries.find(|entry| entry.units == units && found(entry.node)).map(|entry| entry.node)
    }
}

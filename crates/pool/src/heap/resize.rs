//! Live blocks that change their size where they are.

use super::allocate::Heap;
use super::bins::remove;
use super::merge::resize;
use super::nodes::{BORDER, BlockNode, LIVE};
use super::types::{Above, FreeBlock, Node, NotLive, Tag, Taken};

impl Heap {
    /// What lies right above a live block: free memory that is `ready`, and what ends it. O(log pieces, and its blocks).
    ///
    /// # Errors
    ///
    /// [`NotLive`] if the node is no live block's.
    pub fn above(&self, node: Node, ready: impl Fn(Tag, usize) -> bool) -> Result<Above, NotLive> {
        let BlockNode { address, units, mut next, .. } = *self.nodes.live(node)?;
        let bytes = |units: u32| u64::from(units) << self.unit_shift;
        let start = address + bytes(units);
        let mut end = start;
        loop {
            let block = &self.nodes[next];
            if block.bin == BORDER {
                let span = self.spans.below(address);
                let open = span.map(|(_, span)| span.upstream_block);
                return Ok(Above { start, end, open });
            }
            if !block.is_free() || !ready(block.tag, block.stamp) {
                return Ok(Above { start, end, open: None });
            }
            end += bytes(block.units);
            next = block.next;
        }
    }

    /// The units of a live block.
    pub fn live_units(&self, node: Node) -> Option<u32> {
        self.nodes.live(node).ok().map(|block| block.units)
    }

    /// The free blocks right above a live block, nearest first: their tags, stamps and units.
    ///
    /// # Errors
    ///
    /// As [`above`](Self::above).
    pub fn free_above(
        &self,
        node: Node,
    ) -> Result<impl Iterator<Item = (Tag, usize, u32)> + '_, NotLive> {
        let mut next = self.nodes.live(node)?.next;
        Ok(std::iter::from_fn(move || {
            let block = &self.nodes[next];
            next = block.next;
            (block.bin != BORDER && block.is_free()).then_some((
                block.tag,
                block.stamp,
                block.units,
            ))
        }))
    }

    /// Has a live block take so many units of the free memory right above it, whatever its tags. Returns whether
    /// it did; if not, nothing changes.
    ///
    /// # Errors
    ///
    /// As [`above`](Self::above).
    pub fn extend(
        &mut self,
        node: Node,
        units: u32,
        ready: impl Fn(Tag, usize) -> bool,
    ) -> Result<bool, NotLive> {
        let above = self.above(node, ready)?;
        let all = self.nodes[node].units.checked_add(units);
        let is_free = (above.end - above.start) >> self.unit_shift >= u64::from(units);
        let Some(all) = all.filter(|_| is_free) else { return Ok(false) };
        let mut left = units;
        while left > 0 {
            let next = self.nodes[node].next;
            let BlockNode { units: its, next: beyond, tag, .. } = self.nodes[next];
            let (lists, mut nodes) = (self.tag_bins.make(tag), self.nodes.view());
            let taken = left.min(its);
            if taken == its {
                remove(lists, &mut nodes, next);
                nodes.release(next);
                nodes.link(node, beyond);
            } else {
                nodes[next].address += u64::from(taken) << self.unit_shift;
                resize(lists, &mut nodes, next, its - taken);
            }
            self.tag_bins.settle(tag, &mut self.nodes);
            left -= taken;
        }
        self.nodes.view()[node].units = all;
        self.count_live(i64::from(units), 0);
        Ok(true)
    }

    /// Has a live block keep its first units, not none of them, and frees the others with this tag and stamp.
    /// Returns whether it did; if not, nothing changes.
    ///
    /// # Errors
    ///
    /// As [`above`](Self::above).
    pub fn shrink(
        &mut self,
        node: Node,
        units: u32,
        tag: Tag,
        stamp: usize,
    ) -> Result<bool, NotLive> {
        let BlockNode { address, units: all, next, .. } = *self.nodes.live(node)?;
        if units == 0 || units >= all || !self.nodes.room_for(1) {
            return Ok(units == all);
        }
        let past = address + (u64::from(units) << self.unit_shift);
        let rest = self.nodes.take(BlockNode::live(past, all - units, node, next));
        debug_assert_eq!(self.nodes[rest].bin, LIVE, "a rest stands in no list");
        self.nodes.link(node, rest);
        self.nodes.link(rest, next);
        self.nodes.view()[node].units = units;
        self.count_live(-i64::from(all - units), 0);
        self.give(rest, tag, stamp);
        Ok(true)
    }

    /// Allocates the first units of a free block that is as it was seen. `None` if it is not.
    pub fn allocate_from(&mut self, block: FreeBlock, units: u32) -> Option<Taken> {
        let FreeBlock { node, tag, address, bytes, stamp } = block;
        let seen = self.nodes.all().get(node as usize).filter(|seen| seen.is_free())?;
        let its = u64::from(seen.units) << self.unit_shift;
        let is_same = (seen.tag, seen.address, its, seen.stamp) == (tag, address, bytes, stamp);
        let fits = is_same && (1..=seen.units).contains(&units);
        if fits { self.take(tag, units, (node, 0)) } else { None }
    }

    /// The number of the upstream block of a span that ends at an address.
    pub fn number_below(&self, end: u64) -> Option<u32> {
        let (_, span) = self.spans.below(end.checked_sub(1)?)?;
        (span.end == end).then_some(span.upstream_block)
    }

    /// The number of the upstream block that an address of this heap is of.
    pub fn number_of(&self, address: u64) -> Option<u32> {
        let (_, span) = self.spans.below(address)?;
        (address < span.end).then_some(span.upstream_block)
    }

    /// Whether the last block before the end of a span of `upstream_block` is live.
    pub fn is_live_below(&self, end: u64, upstream_block: u32) -> bool {
        let span = self.spans.ending(end, upstream_block);
        span.is_some_and(|(_, span)| self.nodes[self.nodes[span.border].prev].bin == LIVE)
    }
}

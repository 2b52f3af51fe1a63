//! Allocating and freeing: a block is taken from the bins and split, or put back and merged.

use super::bins::{FreeLists, Table, best, bin_of, down, insert, list, up};
use super::merge::{give, resize, take_low};
use super::nodes::{BlockNode, LIVE, NO_NODE, Nodes};
use super::spans::Spans;
use super::tag_bins::TagBins;
use super::types::{HeapStats, Node, NotLive, Tag, Taken};

/// How many blocks of a list are compared for the best fit.
const PROBES: usize = 4;
/// How many lists are scanned for a block that is early enough, or lies right for an alignment.
const LISTS: usize = 8;
/// How many blocks of the floor bin are compared before `allocate` gives up.
const LAST_PROBES: usize = 256;

/// Free and live blocks of some pieces of address space.
///
/// Nodes lie outside of the memory that they describe: a slab, 40 bytes for a block. Sizes are exact, in
/// units. Each block knows its neighbours, so splitting and merging take constant time; neighbours are
/// always of one range, and merge when both are free with the same tag. Free blocks stand in lists by
/// size, for each tag.
///
/// A block is found by a good fit: the best of a few of its size's own bin, or of the next one that
/// has blocks. Whether there is none is known as fast.
#[derive(Debug)]
pub struct Heap {
    pub(super) unit_shift: u32,
    pub(super) nodes: Nodes,
    pub(super) tag_bins: TagBins,
    pub(super) spans: Spans,
    pub(super) total_bytes: u64,
    live_units: u64,
    live_blocks: usize,
}

impl Heap {
    /// `unit_shift`: log2 of the unit: 8 (256 B, device) or 6 (64 B, pinned). All addresses and
    /// sizes are multiples of the unit. Memory of the tag `own` is found the fastest.
    pub fn new(unit_shift: u32, own: Tag) -> Self {
        Self {
            unit_shift,
            nodes: Nodes::new(),
            tag_bins: TagBins::new(own),
            spans: Spans::default(),
            total_bytes: 0,
            live_units: 0,
            live_blocks: 0,
        }
    }

    /// A block of exactly `units` units whose absolute address is a multiple of `align` bytes, from
    /// free memory of `tag` whose stamp is at most `upto` (`usize::MAX`: any). The rests stay free
    /// with the same tag and stamp. Constant time, a failure too.
    ///
    /// `align` is a power of two; up to the unit it constrains nothing. `units` is not 0. A block that
    /// serves may be missed behind many that do not: [`allocate_exhaustive`](Self::allocate_exhaustive) finds it.
    pub fn allocate(&mut self, tag: Tag, units: u32, align: u64, upto: usize) -> Option<Taken> {
        let is_plain = upto == usize::MAX && align >> self.unit_shift <= 1;
        let own =
            if is_plain && tag == self.tag_bins.own_tag { self.allocate_own(units) } else { None };
        match own {
            Some((node, address)) => Some(Taken { node, address, stamp: self.nodes[node].stamp }),
            None => self.allocate_any(tag, units, align, upto),
        }
    }

    /// A block of exactly `units` units, from free memory of the heap's own tag, however late: its node
    /// and its address. As [`allocate`](Self::allocate), and gives up sooner.
    #[inline(always)]
    pub fn allocate_own(&mut self, units: u32) -> Option<(Node, u64)> {
        let (node, address) = self.take_own_or_none(units);
        (node != NO_NODE).then_some((node, address))
    }

    /// `NO_NODE` for none: an `Option` of two numbers would not come back in registers.
    #[inline(never)]
    fn take_own_or_none(&mut self, units: u32) -> (u32, u64) {
        self.take_own(units).unwrap_or((NO_NODE, 0))
    }

    #[inline(always)]
    fn take_own(&mut self, units: u32) -> Option<(u32, u64)> {
        let lists = self.tag_bins.own().filter(|_| units != 0)?;
        let free = find(lists, self.nodes.all(), units)?;
        let taken = take_low(lists, &mut self.nodes, (free, units), self.unit_shift)?;
        self.live_units += u64::from(units);
        self.live_blocks += 1;
        Some((taken.node, taken.address))
    }

    #[cold]
    fn allocate_any(&mut self, tag: Tag, units: u32, align: u64, upto: usize) -> Option<Taken> {
        let found = self.find_any(tag, units, align, upto, (LISTS, PROBES, LAST_PROBES));
        self.take(tag, units, found?)
    }

    /// As [`allocate`](Self::allocate), and misses no block that serves: the last look before a request
    /// is refused. O(blocks of this size and above).
    #[cold]
    pub fn allocate_exhaustive(
        &mut self,
        tag: Tag,
        units: u32,
        align: u64,
        upto: usize,
    ) -> Option<Taken> {
        if let Some(taken) = self.allocate(tag, units, align, upto) {
            return Some(taken);
        }
        let all = (usize::MAX, usize::MAX, 0);
        let found = self.find_any(tag, units, align, upto, all);
        self.take(tag, units, found?)
    }

    /// As [`allocate_exhaustive`](Self::allocate_exhaustive), where `place` says. It is given where a free block begins and
    /// ends, and returns where in it the block lies, at a multiple of the unit.
    #[cold]
    pub fn allocate_where(
        &mut self,
        tag: Tag,
        units: u32,
        upto: usize,
        place: impl Fn(u64, u64) -> Option<u64>,
    ) -> Option<Taken> {
        let skip = |block: &BlockNode| {
            let end = block.address + (u64::from(block.units) << self.unit_shift);
            let skip = place(block.address, end)?.checked_sub(block.address)? >> self.unit_shift;
            u32::try_from(skip).ok().filter(|skip| block.units.checked_sub(units) >= Some(*skip))
        };
        let all = (usize::MAX, usize::MAX, 0);
        let found = self.find_where(tag, units, (None, upto), skip, all);
        self.take(tag, units, found?)
    }

    /// Takes units out of a free block, after some that stay free.
    pub(super) fn take(&mut self, tag: Tag, units: u32, (free, skip): (u32, u32)) -> Option<Taken> {
        // A block splits into three at most.
        if !self.nodes.room_for(2) {
            return None;
        }
        let lists = self.tag_bins.make(tag);
        let taken = match skip {
            0 => take_low(lists, &mut self.nodes, (free, units), self.unit_shift)?,
            _ => self.take_at(tag, free, skip, units),
        };
        self.live_units += u64::from(units);
        self.live_blocks += 1;
        self.tag_bins.settle(tag, &mut self.nodes);
        Some(taken)
    }

    /// A block that holds `units` units at an alignment, and how many units come before. Scans `most`
    /// lists of this size and above, and `probes` blocks of each; then `last` of the first list.
    pub(super) fn find_any(
        &self,
        tag: Tag,
        units: u32,
        align: u64,
        upto: usize,
        (most, probes, last): (usize, usize, usize),
    ) -> Option<(u32, u32)> {
        if !align.is_power_of_two() {
            return None;
        }
        let skip = |block: &BlockNode| {
            let skip = (block.address.wrapping_neg() & (align - 1)) >> self.unit_shift;
            u32::try_from(skip).ok().filter(|skip| block.units.checked_sub(units) >= Some(*skip))
        };
        // Of this size every block has a place that is aligned.
        let sure = u32::try_from((align >> self.unit_shift).saturating_sub(1)).ok();
        let sure = sure.and_then(|pad| units.checked_add(pad));
        self.find_where(tag, units, (sure, upto), skip, (most, probes, last))
    }

    /// As [`find_any`](Self::find_any), where `skip` says how many units of a free block come before. Each block of `sure`
    /// units has a place.
    fn find_where(
        &self,
        tag: Tag,
        units: u32,
        (sure, upto): (Option<u32>, usize),
        skip: impl Fn(&BlockNode) -> Option<u32>,
        (most, probes, last): (usize, usize, usize),
    ) -> Option<(u32, u32)> {
        if units == 0 {
            return None;
        }
        // The own tag keeps its table when that has no block.
        let lists = self.tag_bins.get(tag).filter(|lists| lists.blocks() > 0)?;
        let nodes = self.nodes.all();
        let accept = |block: &BlockNode| block.stamp <= upto && skip(block).is_some();
        let floor = bin_of(units);
        let above = sure.map(bin_of).into_iter().flat_map(|bin| up(lists, bin).take(most));
        let in_list = |at, probes| best(nodes, lists.head(at), units, probes, accept);
        let near = up(lists, floor).take(most).chain(above).find_map(|at| in_list(at, probes));
        let node = near.or_else(|| in_list(lists.list_of(floor), last))?;
        Some((node, skip(&self.nodes[node])?))
    }

    /// Takes units out of a free block that leave `skip` at its low end.
    fn take_at(&mut self, tag: Tag, free: u32, skip: u32, units: u32) -> Taken {
        let BlockNode { address, units: all, next, stamp, .. } = self.nodes[free];
        let address = address + (u64::from(skip) << self.unit_shift);
        let past = address + (u64::from(units) << self.unit_shift);
        let node = self.nodes.take(BlockNode::live(address, units, free, next));
        let rest = all - skip - units;
        let after = match rest {
            0 => next,
            _ => {
                let block = BlockNode { tag, stamp, ..BlockNode::live(past, rest, node, next) };
                self.nodes.take(block)
            }
        };
        self.nodes.link(free, node);
        self.nodes.link(node, after);
        let (lists, mut nodes) = (self.tag_bins.make(tag), self.nodes.view());
        resize(lists, &mut nodes, free, skip);
        if rest != 0 {
            nodes.link(after, next);
            insert(lists, &mut nodes, after);
        }
        Taken { node, address, stamp }
    }

    /// Puts a block that stands in no list into those of a tag.
    #[cold]
    pub(super) fn give(&mut self, node: u32, tag: Tag, stamp: usize) {
        give(self.tag_bins.make(tag), &mut self.nodes.view(), node, (tag, stamp));
        self.tag_bins.settle(tag, &mut self.nodes);
    }

    /// Frees a live block with this tag and stamp; merges with free neighbours of the same tag (the
    /// later stamp stands). Returns the units of what was freed.
    ///
    /// # Errors
    ///
    /// [`NotLive`], and nothing changes, if the node is no live block's: free, merged away or never
    /// given out. A node that stands for another live block by now is not noticed.
    #[inline(always)]
    pub fn free(&mut self, node: Node, tag: Tag, stamp: usize) -> Result<u32, NotLive> {
        let units = self.nodes.live(node)?.units;
        self.live_units -= u64::from(units);
        self.live_blocks -= 1;
        match self.tag_bins.own_of(tag) {
            Some(lists) => give(lists, &mut self.nodes.view(), node, (tag, stamp)),
            None => self.give(node, tag, stamp),
        }
        Ok(units)
    }

    /// Changes what is counted as live.
    pub(super) fn count_live(&mut self, units: i64, blocks: isize) {
        self.live_units = self.live_units.wrapping_add_signed(units);
        self.live_blocks = self.live_blocks.wrapping_add_signed(blocks);
    }

    /// The address and units of a live block.
    pub fn live(&self, node: Node) -> Result<(u64, u32), NotLive> {
        self.nodes.live(node).map(|block| (block.address, block.units))
    }

    /// Upper bound, in units, on what `allocate(tag, ..)` could serve; exact if 0. Constant time.
    #[inline]
    pub fn largest_bound(&self, tag: Tag) -> u32 {
        self.tag_bins.summary(tag, &self.nodes).largest
    }

    /// The exact largest free block of any tag, in bytes. O(tags, and blocks in their top bins).
    pub fn largest_free(&self) -> u64 {
        let largest =
            |(_, lists)| self.largest(lists, usize::MAX).map(|node| self.nodes[node].units);
        let units = self.tag_bins.filled().filter_map(largest).max().unwrap_or(0);
        u64::from(units) << self.unit_shift
    }

    /// The largest of these blocks with a stamp of at most `upto`.
    pub(super) fn largest(&self, lists: &dyn FreeLists, upto: usize) -> Option<u32> {
        down(lists).find_map(|at| {
            let early =
                list(self.nodes.all(), lists.head(at)).filter(|(_, block)| block.stamp <= upto);
            early.max_by_key(|(_, block)| block.units).map(|(node, _)| node)
        })
    }

    /// Tags that have free blocks.
    #[inline]
    pub fn tags(&self) -> impl Iterator<Item = Tag> + '_ {
        self.tag_bins.filled().map(|(tag, _)| tag)
    }

    /// What `find` returns for the first tag with free blocks for which it returns some. While `find`
    /// frees nothing, it sees each tag once.
    pub fn find_tag<T>(&mut self, mut find: impl FnMut(&mut Self, Tag) -> Option<T>) -> Option<T> {
        let mut last = None;
        while let Some(tag) = self.tag_bins.next_filled(last) {
            if let Some(found) = find(self, tag) {
                return Some(found);
            }
            last = Some(tag);
        }
        None
    }

    /// No free block of a tag has an earlier stamp. `usize::MAX` if there is none. After a
    /// [`retag`](Self::retag) up to some stamp it is later than that.
    #[inline]
    pub fn oldest_bound(&self, tag: Tag) -> usize {
        self.tag_bins.summary(tag, &self.nodes).oldest
    }

    /// The latest stamp among the free blocks of a tag, or a later one that was there since the tag
    /// last had none; 0 if it has none. Constant time.
    #[inline]
    pub fn latest_bound(&self, tag: Tag) -> usize {
        self.tag_bins.summary(tag, &self.nodes).latest
    }

    /// Every block, live or free, in no order: its address, its bytes, and whether it is free.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        let is_block = |node: &&BlockNode| node.is_free() || node.bin == LIVE;
        let bytes = |node: &BlockNode| u64::from(node.units) << self.unit_shift;
        let blocks = self.nodes.all().iter().filter(is_block);
        blocks.map(move |node| (node.address, bytes(node), node.is_free()))
    }

    #[inline]
    pub fn stats(&self) -> HeapStats {
        let live_bytes = self.live_units << self.unit_shift;
        HeapStats {
            total_bytes: self.total_bytes,
            free_bytes: self.total_bytes - live_bytes,
            live_bytes,
            live_blocks: self.live_blocks,
        }
    }

    /// O(tags).
    #[cfg(test)]
    pub(super) fn free_blocks(&self) -> usize {
        self.tag_bins.filled().map(|(_, lists)| lists.blocks() as usize).sum()
    }
}

/// A block with at least these units: one of a few of its own bin, or the newest of the next one.
#[inline(always)]
fn find(table: &Table, nodes: &[BlockNode], units: u32) -> Option<u32> {
    let floor = bin_of(units);
    let mut node = table.head(floor);
    for _ in 0..PROBES {
        let Some(block) = nodes.get(node as usize) else { break };
        if block.units >= units {
            return Some(node);
        }
        node = block.older;
    }
    table.at_or_above(floor + 1).map(|above| table.head(above))
}

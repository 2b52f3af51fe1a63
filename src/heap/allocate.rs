//! Allocating and freeing: a block is taken from the bins and split, or put back and merged.

use super::bins::{Bins, Entry, Place, bin_of};
use super::merge::{BinnedBlocks, place_of};
use super::nodes::{BlockNode, NodeState, Nodes};
use super::spans::Spans;
use super::tag_bins::TagBins;
use super::types::{HeapStats, Node, NotLive, Tag, Taken};

/// How many blocks of a bin are compared for the best fit.
const PROBES: usize = 4;
/// How many bins are scanned for a block that is early enough, or lies right for an alignment.
const BINS: usize = 8;
/// How many blocks of the floor bin are compared before `allocate` gives up.
const LAST_PROBES: usize = 256;

/// Free and live blocks of some pieces of address space.
///
/// Nodes lie outside of the memory that they describe: a slab, 32 bytes for a block and 16 more for
/// a free one. Sizes are exact, in units. Each block knows its neighbours, so splitting and merging
/// take constant time; neighbours are always of one range, and merge when both are free with the
/// same tag. Free blocks stand in bins by size, a set of bins for each tag.
///
/// A block is found by a good fit: the best of a few of its size's own bin and of the next one that
/// has blocks. Whether there is none is known as fast.
#[derive(Debug)]
pub(crate) struct Heap {
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
    /// sizes are multiples of the unit.
    pub(crate) fn new(unit_shift: u32) -> Self {
        Self {
            unit_shift,
            nodes: Nodes::new(),
            tag_bins: TagBins::new(),
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
    /// serves may be missed behind many that do not:
    /// [`allocate_exhaustive`](Self::allocate_exhaustive) finds it.
    #[inline]
    pub(crate) fn allocate(
        &mut self,
        tag: Tag,
        units: u32,
        align: u64,
        upto: usize,
    ) -> Option<Taken> {
        let set = self.tag_bins.place(tag)?;
        let bins = &self.tag_bins[set];
        let (place, skip) = if align >> self.unit_shift <= 1 {
            (find(bins, units, upto)?, 0)
        } else {
            self.find_aligned(bins, units, align, upto, (BINS, PROBES))?
        };
        // A block splits into three at most.
        self.nodes.room_for(2).then(|| self.take(set, place, skip, units))
    }

    /// As [`allocate`](Self::allocate), and misses no block that serves: the last look before a request
    /// is refused. O(blocks of this size and above).
    #[cold]
    pub(crate) fn allocate_exhaustive(
        &mut self,
        tag: Tag,
        units: u32,
        align: u64,
        upto: usize,
    ) -> Option<Taken> {
        if let Some(taken) = self.allocate(tag, units, align, upto) {
            return Some(taken);
        }
        let set = self.tag_bins.place(tag)?;
        let all = (usize::MAX, usize::MAX);
        let (place, skip) = self.find_aligned(&self.tag_bins[set], units, align, upto, all)?;
        self.nodes.room_for(2).then(|| self.take(set, place, skip, units))
    }

    /// A place whose block holds `units` units at an alignment, and how many units come before. Scans
    /// `most` bins of this size and above, and `probes` blocks of each.
    #[cold]
    fn find_aligned(
        &self,
        bins: &Bins,
        units: u32,
        align: u64,
        upto: usize,
        (most, probes): (usize, usize),
    ) -> Option<(Place, u32)> {
        if units == 0 || !align.is_power_of_two() {
            return None;
        }
        let skip = |entry: &Entry| {
            let address = self.nodes[entry.node].address;
            let skip = (address.wrapping_neg() & (align - 1)) >> self.unit_shift;
            u32::try_from(skip).ok().filter(|skip| entry.units.checked_sub(units) >= Some(*skip))
        };
        let accept = |entry: &Entry| entry.stamp <= upto && skip(entry).is_some();
        let floor = bin_of(units);
        let near = bins_from(bins, floor).take(most);
        // Of this size every block has a place that is aligned.
        let sure = u32::try_from((align >> self.unit_shift).saturating_sub(1)).ok();
        let sure = sure.and_then(|pad| units.checked_add(pad)).map(bin_of);
        let above = sure.into_iter().flat_map(|bin| bins_from(bins, bin).take(most));
        let fit = near.chain(above).find_map(|bin| bins.best(bin, units, probes, accept));
        let fit = bins.better_fit(fit, units, accept);
        let place = fit.or_else(|| bins.best(floor, units, LAST_PROBES, accept))?.place;
        Some((place, skip(bins.entry(place))?))
    }

    /// Splits a free block: `skip` units stay free, `units` become a live block, the rest stays free.
    #[inline]
    fn take(&mut self, set: usize, place: Place, skip: u32, units: u32) -> Taken {
        let &Entry { node: free, units: all, stamp } = self.tag_bins[set].entry(place);
        self.live_units += u64::from(units);
        self.live_blocks += 1;
        if skip != 0 {
            return self.take_at(set, free, skip, units, stamp);
        }
        let BlockNode { address, prev, .. } = self.nodes[free];
        if all == units {
            let mut binned = self.binned(set);
            binned.remove(free);
            binned.nodes[free].state = NodeState::Live;
            return Taken { node: free, address, stamp };
        }
        // The rest keeps the node: it often keeps the bin, too.
        let node = self.nodes.take(BlockNode::live(address, units, prev, free));
        let past = address + (u64::from(units) << self.unit_shift);
        let mut binned = self.binned(set);
        binned.nodes[prev].next = node;
        let rest = &mut binned.nodes[free];
        rest.address = past;
        rest.prev = node;
        binned.resize(free, place, all - units, 0);
        Taken { node, address, stamp }
    }

    /// Takes units out of a free block that leave `skip` at its low end.
    #[cold]
    fn take_at(&mut self, set: usize, free: u32, skip: u32, units: u32, stamp: usize) -> Taken {
        let block = self.nodes[free];
        let address = block.address + (u64::from(skip) << self.unit_shift);
        let past = address + (u64::from(units) << self.unit_shift);
        let node = self.nodes.take(BlockNode::live(address, units, free, block.next));
        let rest = block.units - skip - units;
        let after = match rest {
            0 => block.next,
            _ => self.nodes.take(BlockNode::live(past, rest, node, block.next)),
        };
        self.nodes.link(free, node);
        self.nodes.link(node, after);
        let mut binned = self.binned(set);
        binned.resize(free, place_of(&block), skip, 0);
        if rest != 0 {
            binned.nodes.link(after, block.next);
            binned.insert(after, block.tag, stamp);
        }
        Taken { node, address, stamp }
    }

    /// The bins at a place of `tag_bins`, and all nodes.
    #[inline]
    pub(super) fn binned(&mut self, set: usize) -> BinnedBlocks<'_> {
        BinnedBlocks { bins: &mut self.tag_bins[set], nodes: self.nodes.view() }
    }

    /// Frees a live block with this tag and stamp; merges with free neighbours of the same tag (the
    /// later stamp stands). Returns the units of what was freed.
    ///
    /// # Errors
    ///
    /// [`NotLive`], and nothing changes, if the node is no live block's: free, merged away or never
    /// given out. A node that stands for another live block by now is not noticed.
    #[inline]
    pub(crate) fn free(&mut self, node: Node, tag: Tag, stamp: usize) -> Result<u32, NotLive> {
        let units = self.nodes.live(node)?.units;
        self.live_units -= u64::from(units);
        self.live_blocks -= 1;
        let set = self.tag_bins.make(tag);
        self.binned(set).give(node, tag, stamp);
        Ok(units)
    }

    /// The address and units of a live block.
    pub(crate) fn live(&self, node: Node) -> Result<(u64, u32), NotLive> {
        self.nodes.live(node).map(|block| (block.address, block.units))
    }

    /// Upper bound, in units, on what `allocate(tag, ..)` could serve; exact if 0. Constant time.
    pub(crate) fn largest_bound(&self, tag: Tag) -> u32 {
        self.tag_bins.get(tag).map_or(0, Bins::largest_bound)
    }

    /// The exact largest free block of any tag, in bytes. O(blocks in the top bins).
    pub(crate) fn largest_free(&self) -> u64 {
        let largest = |bins: &Bins| bins.largest(usize::MAX).map(|place| bins.entry(place).units);
        let units = self.tag_bins.filled().filter_map(largest).max().unwrap_or(0);
        u64::from(units) << self.unit_shift
    }

    /// Tags that have free blocks.
    pub(crate) fn tags(&self) -> impl Iterator<Item = Tag> + '_ {
        self.tag_bins.filled().map(|bins| bins.tag)
    }

    /// What `find` returns for the first tag with free blocks for which it returns some. While `find`
    /// frees nothing, it sees each tag once.
    pub(crate) fn find_tag<T>(
        &mut self,
        mut find: impl FnMut(&mut Self, Tag) -> Option<T>,
    ) -> Option<T> {
        let mut place = 0;
        while let Some((at, tag)) = self.tag_bins.filled_at_or_after(place) {
            if let Some(found) = find(self, tag) {
                return Some(found);
            }
            place = at + 1;
        }
        None
    }

    /// No free block of a tag has an earlier stamp. `usize::MAX` if there is none.
    pub(crate) fn oldest_bound(&self, tag: Tag) -> usize {
        self.tag_bins.get(tag).map_or(usize::MAX, Bins::oldest_bound)
    }

    /// The latest stamp among the free blocks of a tag, or a later one that was there since the tag
    /// last had none; 0 if it has none. Constant time.
    pub(crate) fn latest_bound(&self, tag: Tag) -> usize {
        self.tag_bins.get(tag).map_or(0, Bins::latest_bound)
    }

    pub(crate) fn stats(&self) -> HeapStats {
        let live_bytes = self.live_units << self.unit_shift;
        HeapStats {
            total_bytes: self.total_bytes,
            free_bytes: self.total_bytes - live_bytes,
            live_bytes,
            live_blocks: self.live_blocks,
            free_blocks: self.tag_bins.filled().map(Bins::blocks).sum(),
        }
    }
}

/// The bins with blocks, from this one up.
fn bins_from(bins: &Bins, bin: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(bins.at_or_above(bin), |bin| bins.at_or_above(bin + 1))
}

/// A place whose block has at least these units.
#[inline]
fn find(bins: &Bins, units: u32, upto: usize) -> Option<Place> {
    if units == 0 {
        return None;
    }
    let floor = bin_of(units);
    let accept = |entry: &Entry| entry.stamp <= upto;
    let mut bin = floor;
    let mut fit = None;
    for _ in 0..BINS {
        let Some(filled) = bins.at_or_above(bin) else { break };
        fit = bins.best(filled, units, PROBES, accept);
        if fit.is_some() {
            break;
        }
        bin = filled + 1;
    }
    match bins.better_fit(fit, units, accept) {
        Some(fit) => Some(fit.place),
        None => Some(bins.best(floor, units, LAST_PROBES, accept)?.place),
    }
}

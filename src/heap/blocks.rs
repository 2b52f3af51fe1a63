//! Allocating and freeing: a block is taken from the bins and split, or put back and merged.

use super::bins::{Bins, Entry, Place, bin_of, largest_of};
use super::nodes::{Block, Nodes, State};
use super::pieces::Pieces;
use super::shelf::Shelf;
use super::{Account, Node, NotLive, Tag, Taken};

/// How many blocks of the floor bin are looked at before the bins above are.
const FLOOR_PROBES: usize = 16;
/// How many blocks of the bin that serves are looked at for the best fit.
const CEILING_PROBES: usize = 16;
/// How many bins are looked at for a block that is early enough, or lies right for an alignment.
const BINS: usize = 8;
/// How many blocks of the floor bin are looked at before the heap gives up.
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
    pub(super) shelf: Shelf,
    pub(super) pieces: Pieces,
    pub(super) total_bytes: u64,
    pub(super) live_bytes: u64,
    pub(super) live_blocks: usize,
}

impl Heap {
    /// `unit_shift`: log2 of the unit: 8 (256 B, device) or 6 (64 B, pinned). All addresses and
    /// sizes are multiples of the unit.
    pub(crate) fn new(unit_shift: u32) -> Self {
        Self {
            unit_shift,
            nodes: Nodes::new(),
            shelf: Shelf::new(),
            pieces: Pieces::default(),
            total_bytes: 0,
            live_bytes: 0,
            live_blocks: 0,
        }
    }

    /// A block of exactly `units` units whose absolute address is a multiple of `align` bytes, from
    /// free memory of `tag` whose stamp is at most `upto` (`usize::MAX`: any). The rests stay free
    /// with the same tag and stamp. Constant time, a failure too.
    ///
    /// `align` is a power of two; up to the unit it constrains nothing. `units` is not 0. Without an
    /// alignment above the unit and without a bound on the stamp, a block that serves is missed only
    /// if it is less than a bin's width larger than asked, and stands behind many such.
    #[inline]
    pub(crate) fn allocate(
        &mut self,
        tag: Tag,
        units: u32,
        align: u64,
        upto: usize,
    ) -> Option<Taken> {
        let bins = self.shelf.get(tag)?;
        let (place, skip) = if align >> self.unit_shift <= 1 {
            (find(bins, units, upto)?, 0)
        } else {
            self.find_aligned(bins, units, align, upto)?
        };
        // A block splits into three at most.
        self.nodes.room_for(2).then(|| self.take(tag, place, skip, units))
    }

    /// A place whose block holds `units` units at an alignment, and how many come before.
    #[cold]
    fn find_aligned(
        &self,
        bins: &Bins,
        units: u32,
        align: u64,
        upto: usize,
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
        let near = bins_from(bins, floor).take(BINS);
        // Of this size every block has a place that is aligned.
        let sure = u32::try_from((align >> self.unit_shift) - 1).ok();
        let sure = sure.and_then(|pad| units.checked_add(pad)).map(bin_of);
        let above = sure.into_iter().flat_map(|bin| bins_from(bins, bin).take(BINS));
        let place = near
            .chain(above)
            .find_map(|bin| bins.best(bin, units, CEILING_PROBES, accept))
            .or_else(|| bins.best(floor, units, LAST_PROBES, accept))?;
        Some((place, skip(&bins.entry(place))?))
    }

    /// Splits a free block: `skip` units stay free, `units` become a live block, the rest stays free.
    #[inline]
    fn take(&mut self, tag: Tag, place: Place, skip: u32, units: u32) -> Taken {
        let shift = self.unit_shift;
        let bins = self.shelf.bins(tag);
        let Entry { node: free, units: all, stamp } = bins.entry(place);
        let rest = all - skip - units;
        let block = self.nodes[free];
        let address = block.address + (u64::from(skip) << shift);
        let node = match (skip, rest) {
            (0, 0) => {
                self.unshelve(free);
                self.nodes[free].state = State::Live;
                free
            }
            (0, _) => {
                let live = Block { units, next: free, state: State::Live, ..block };
                let node = self.nodes.take(live);
                self.nodes[block.prev].next = node;
                let remainder = &mut self.nodes[free];
                remainder.address += u64::from(units) << shift;
                remainder.prev = node;
                self.resize(free, rest, stamp);
                node
            }
            _ => {
                let live = Block { address, units, prev: free, state: State::Live, ..block };
                let node = self.nodes.take(live);
                let mut after = node;
                if rest != 0 {
                    let address = address + (u64::from(units) << shift);
                    let remainder = Block { address, units: rest, prev: node, ..live };
                    after = self.nodes.take(remainder);
                    self.nodes[node].next = after;
                }
                self.nodes[free].next = node;
                self.nodes[block.next].prev = after;
                self.resize(free, skip, stamp);
                if rest != 0 {
                    self.shelve(after, tag, stamp);
                }
                node
            }
        };
        self.live_bytes += u64::from(units) << shift;
        self.live_blocks += 1;
        Taken { node, address, stamp }
    }

    /// Frees a live block with this tag and stamp; merges with free neighbours of the same tag (the
    /// later stamp stands). Returns the units of what was freed.
    ///
    /// # Errors
    ///
    /// [`NotLive`], and nothing changes, if the node is no live block's: free, merged away or never
    /// given out. A node that came to stand for another live block cannot be told.
    #[inline]
    pub(crate) fn free(&mut self, node: Node, tag: Tag, stamp: usize) -> Result<u32, NotLive> {
        let units = self.nodes.live(node)?.units;
        self.live_bytes -= u64::from(units) << self.unit_shift;
        self.live_blocks -= 1;
        self.give(node, tag, stamp);
        Ok(units)
    }

    /// The address and units of a live block.
    pub(crate) fn live(&self, node: Node) -> Result<(u64, u32), NotLive> {
        self.nodes.live(node).map(|block| (block.address, block.units))
    }

    /// Puts a block that stands in no bin into those of `tag`, merged with its neighbours there.
    #[inline]
    pub(super) fn give(&mut self, node: u32, tag: Tag, mut stamp: usize) {
        let block = self.nodes[node];
        let low = self.joins(block.prev, tag);
        let high = self.joins(block.next, tag);
        let with_high = high.and_then(|units| units.checked_add(block.units));
        let with_low = low.and_then(|units| units.checked_add(block.units));
        let all = low.zip(with_high).and_then(|(low, rest)| low.checked_add(rest));
        if let Some(all) = all {
            stamp = stamp.max(self.unshelve(block.next));
            self.absorb_next(node);
            self.absorb_next(block.prev);
            self.resize(block.prev, all, stamp);
        } else if let Some(units) = with_low {
            self.absorb_next(block.prev);
            self.resize(block.prev, units, stamp);
        } else if let Some(units) = with_high {
            let high = &mut self.nodes[block.next];
            high.address = block.address;
            high.prev = block.prev;
            self.nodes[block.prev].next = block.next;
            self.nodes.release(node);
            self.resize(block.next, units, stamp);
        } else {
            self.shelve(node, tag, stamp);
        }
    }

    /// The units of a free block of this tag.
    #[inline]
    fn joins(&self, node: u32, tag: Tag) -> Option<u32> {
        let block = &self.nodes[node];
        (block.state == State::Free && block.tag == tag).then_some(block.units)
    }

    /// Takes the next node, which stands in no bin, out of the ring.
    #[inline]
    fn absorb_next(&mut self, node: u32) {
        let gone = self.nodes[node].next;
        let next = self.nodes[gone].next;
        self.nodes.link(node, next);
        self.nodes.release(gone);
    }

    /// Puts a block into its bin.
    #[inline]
    pub(super) fn shelve(&mut self, node: u32, tag: Tag, stamp: usize) {
        let block = &mut self.nodes[node];
        let units = block.units;
        block.state = State::Free;
        block.tag = tag;
        let position = self.shelf.bins(tag).insert(bin_of(units), Entry { units, node, stamp });
        // A position is no larger than the count of nodes.
        block.position = position as u32;
    }

    /// Takes a free block out of its bin; it still says that it is free. Returns its stamp.
    #[inline]
    pub(super) fn unshelve(&mut self, node: u32) -> usize {
        let (tag, place) = self.place(node);
        self.unshelve_from(tag, place)
    }

    /// Gives a free block another size and at least this stamp, in the bin that is right then.
    #[inline]
    pub(super) fn resize(&mut self, node: u32, units: u32, stamp: usize) {
        let (tag, place) = self.place(node);
        self.nodes[node].units = units;
        let bins = self.shelf.bins(tag);
        if bin_of(units) == place.bin {
            let stamp = stamp.max(bins.entry(place).stamp);
            bins.replace(place, Entry { units, node, stamp });
        } else {
            let stamp = stamp.max(self.unshelve_from(tag, place));
            self.shelve(node, tag, stamp);
        }
    }

    #[inline]
    fn unshelve_from(&mut self, tag: Tag, place: Place) -> usize {
        let (entry, moved) = self.shelf.bins(tag).remove(place);
        if let Some(moved) = moved {
            self.nodes[moved].position = place.position as u32;
        }
        entry.stamp
    }

    /// Where a free block stands.
    #[inline]
    pub(super) fn place(&self, node: u32) -> (Tag, Place) {
        let block = &self.nodes[node];
        let place = Place { bin: bin_of(block.units), position: block.position as usize };
        (block.tag, place)
    }

    /// Upper bound, in units, on what `allocate(tag, ..)` could serve; exact if 0. Constant time.
    pub(crate) fn at_most(&self, tag: Tag) -> u32 {
        self.shelf.get(tag).and_then(Bins::top).map_or(0, largest_of)
    }

    /// The exact largest free block of any tag, in bytes. As long as there are blocks in the top
    /// bins.
    pub(crate) fn largest_free(&self) -> u64 {
        let tops = self.shelf.filled().filter_map(|bins| Some(bins.in_bin(bins.top()?)));
        let units = tops.flatten().map(|entry| entry.units).max().unwrap_or(0);
        u64::from(units) << self.unit_shift
    }

    /// Tags that have free blocks.
    pub(crate) fn tags(&self) -> impl Iterator<Item = Tag> + '_ {
        self.shelf.filled().map(|bins| bins.tag)
    }

    /// The latest stamp among the free blocks of a tag, or a later one that was there since the tag
    /// last had none; 0 if it has none. Constant time.
    pub(crate) fn latest(&self, tag: Tag) -> usize {
        self.shelf.get(tag).map_or(0, Bins::latest)
    }

    pub(crate) fn account(&self) -> Account {
        Account {
            total_bytes: self.total_bytes,
            free_bytes: self.total_bytes - self.live_bytes,
            live_bytes: self.live_bytes,
            live_blocks: self.live_blocks,
            free_blocks: self.shelf.filled().map(Bins::blocks).sum(),
        }
    }
}

/// The bins that have blocks, from this one up.
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
    if let Some(place) = bins.best(floor, units, FLOOR_PROBES, accept) {
        return Some(place);
    }
    let mut bin = floor;
    for _ in 0..BINS {
        let Some(above) = bins.at_or_above(bin + 1) else { break };
        if let Some(place) = bins.best(above, units, CEILING_PROBES, accept) {
            return Some(place);
        }
        bin = above;
    }
    bins.best(floor, units, LAST_PROBES, accept)
}

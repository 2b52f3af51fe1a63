//! Blocks of one tag: into their bins and out, split and merged.

use super::bins::{Bins, Entry, Place, VICTIM, bin_of};
use super::nodes::{BlockNode, NodeState, View};
use super::types::Tag;

/// The bins of one tag, and the nodes of all.
pub(super) struct BinnedBlocks<'a> {
    pub(super) bins: &'a mut Bins,
    pub(super) nodes: View<'a>,
}

/// Where a free block stands in the bins of its tag.
#[inline]
pub(super) fn place_of(block: &BlockNode) -> Place {
    Place { bin: bin_of(block.units), position: block.position }
}

impl BinnedBlocks<'_> {
    /// Puts a block that stands in no bin into these, merged with its neighbours there.
    #[inline]
    pub(super) fn give(&mut self, node: u32, tag: Tag, stamp: usize) {
        let BlockNode { address, units, prev, next, .. } = self.nodes[node];
        let low = self.mergeable_units(prev, tag);
        let high = self.mergeable_units(next, tag);
        let with_low = low.and_then(|low| low.checked_add(units));
        let with_high = high.and_then(|high| high.checked_add(units));
        match (with_low, with_high) {
            (None, None) => self.insert(node, tag, stamp),
            (None, Some(all)) => {
                self.nodes[prev].next = next;
                let high = &mut self.nodes[next];
                high.address = address;
                high.prev = prev;
                let place = place_of(high);
                self.resize(next, place, all, stamp);
                self.nodes.release(node);
            }
            (Some(all), with_high) => {
                let all_three = with_high.and(high).and_then(|high| all.checked_add(high));
                let place = place_of(&self.nodes[prev]);
                self.nodes.release(node);
                let Some(all) = all_three else {
                    self.nodes.link(prev, next);
                    return self.resize(prev, place, all, stamp);
                };
                let after = self.nodes[next].next;
                let later = self.remove(next);
                self.nodes.release(next);
                self.nodes.link(prev, after);
                // Its place may have changed as the other left.
                let place = place_of(&self.nodes[prev]);
                self.resize(prev, place, all, stamp.max(later));
            }
        }
    }

    /// The units of a free block of this tag.
    #[inline]
    fn mergeable_units(&self, node: u32, tag: Tag) -> Option<u32> {
        let block = &self.nodes[node];
        (block.state == NodeState::Free && block.tag == tag).then_some(block.units)
    }

    /// Puts a block into its bin.
    #[inline(always)]
    pub(super) fn insert(&mut self, node: u32, tag: Tag, stamp: usize) {
        let block = &mut self.nodes[node];
        let units = block.units;
        block.state = NodeState::Free;
        block.tag = tag;
        let entry = Entry { units, node, stamp };
        if self.bins.is_next_victim(units) {
            return self.set_victim(entry);
        }
        block.position = self.bins.insert(bin_of(units), entry);
    }

    /// Makes a block the victim, and puts the former one into its bin.
    #[cold]
    fn set_victim(&mut self, entry: Entry) {
        self.nodes[entry.node].position = VICTIM;
        if let Some(old) = self.bins.set_victim(entry) {
            self.nodes[old.node].position = self.bins.insert(bin_of(old.units), old);
        }
    }

    /// Takes a free block out of its bin; it still says that it is free. Returns its stamp.
    #[inline(always)]
    pub(super) fn remove(&mut self, node: u32) -> usize {
        let place = place_of(&self.nodes[node]);
        let (stamp, moved) = self.bins.remove(place);
        self.nodes[moved].position = place.position;
        stamp
    }

    /// Gives a free block another size and at least this stamp, in the bin that is right then.
    #[inline(always)]
    pub(super) fn resize(&mut self, node: u32, place: Place, units: u32, stamp: usize) {
        self.nodes[node].units = units;
        let bin = bin_of(units);
        if place.position == VICTIM || bin == place.bin {
            return self.bins.change(place, units, stamp);
        }
        if self.bins.is_next_victim(units) {
            let (old, moved) = self.bins.remove(place);
            self.nodes[moved].position = place.position;
            return self.set_victim(Entry { units, node, stamp: stamp.max(old) });
        }
        let (position, moved) = self.bins.shift(place, bin, Entry { units, node, stamp });
        // In this order: the one that moved may be the block itself.
        self.nodes[moved].position = place.position;
        self.nodes[node].position = position;
    }
}

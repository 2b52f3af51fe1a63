//! Blocks of one tag: into their lists and out, split and merged.

use super::bins::{FreeLists, bin_of, insert, push, remove, unlink};
use super::nodes::{BlockNode, LIVE, Nodes, View};
use super::types::{Tag, Taken};

/// Takes units from the low end of a free block. `None`, and nothing changes, if there is no room for a
/// node.
#[inline(always)]
pub(super) fn take_low<L: FreeLists + ?Sized>(
    lists: &mut L,
    nodes: &mut Nodes,
    (free, units): (u32, u32),
    unit_shift: u32,
) -> Option<Taken> {
    let BlockNode { address, prev, stamp, units: all, .. } = nodes[free];
    if all == units {
        let mut nodes = nodes.view();
        remove(lists, &mut nodes, free);
        nodes[free].bin = LIVE;
        return Some(Taken { node: free, address, stamp });
    }
    // The rest keeps the node: it often keeps the bin, too.
    let node = nodes.take_live((address, units), stamp, prev, free)?;
    let mut nodes = nodes.view();
    nodes[prev].next = node;
    let rest = &mut nodes[free];
    rest.address = address + (u64::from(units) << unit_shift);
    rest.prev = node;
    resize(lists, &mut nodes, free, all - units);
    Some(Taken { node, address, stamp })
}

/// Puts a block that stands in no list into these, merged with its neighbours there.
#[inline(always)]
pub(super) fn give<L: FreeLists + ?Sized>(
    lists: &mut L,
    nodes: &mut View<'_>,
    node: u32,
    (tag, stamp): (Tag, usize),
) {
    let BlockNode { address, units, prev, next, .. } = nodes[node];
    let joins = |node: u32| {
        let block: &BlockNode = &nodes[node];
        (block.is_free() && block.tag == tag).then_some(block.units)
    };
    let with_low = joins(prev).and_then(|low| low.checked_add(units));
    let high = joins(next);
    let with_high = high.and_then(|high| high.checked_add(units));
    let mut latest = stamp;
    let (kept, all) = match (with_low, with_high) {
        (None, None) => {
            let block = &mut nodes[node];
            block.tag = tag;
            block.stamp = stamp;
            return insert(lists, nodes, node);
        }
        (None, Some(all)) => {
            nodes[prev].next = next;
            let high = &mut nodes[next];
            high.address = address;
            high.prev = prev;
            (next, all)
        }
        (Some(low), with_high) => {
            let all = with_high.and(high).and_then(|high| low.checked_add(high));
            let mut after = next;
            if all.is_some() {
                let BlockNode { next: beyond, stamp: later, .. } = nodes[next];
                remove(lists, nodes, next);
                nodes.release(next);
                latest = latest.max(later);
                after = beyond;
            }
            nodes.link(prev, after);
            (prev, all.unwrap_or(low))
        }
    };
    nodes.release(node);
    let block = &mut nodes[kept];
    block.stamp = block.stamp.max(latest);
    lists.note(block.stamp);
    resize(lists, nodes, kept, all);
}

/// Gives a free block another size, in the list that is right then.
#[inline(always)]
pub(super) fn resize<L: FreeLists + ?Sized>(
    lists: &mut L,
    nodes: &mut View<'_>,
    node: u32,
    units: u32,
) {
    let block = &mut nodes[node];
    if usize::from(block.bin) == bin_of(units) {
        block.units = units;
        return;
    }
    unlink(lists, nodes, node);
    nodes[node].units = units;
    push(lists, nodes, node);
}

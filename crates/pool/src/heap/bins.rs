//! Bins of free blocks by size: which is the smallest that serves, found through two levels of
//! bitmaps.
//!
//! A bin holds the sizes that share their leading bits, as a floating-point number would with a
//! mantissa of [`MANTISSA`] bits: rows are powers of two, columns the steps within one. Sizes are
//! not rounded, so the bin of a wanted size holds blocks that serve and blocks that do not (the
//! *floor* bin), and every block in a bin above serves. Searching only above loses freed blocks of
//! the very size that is asked for, again and again; searching all of the floor bin takes long. So
//! some of it is probed; all of it only before memory is said to be out.
//!
//! A table of all bins has 4 KiB. A tag with few blocks has coarser lists: one of all blocks, or one for
//! each row. The blocks of a list are linked through their nodes.

use super::nodes::{BINS, BlockNode, NO_NODE, View};

/// Bits of a size, below its leading one, that choose a bin.
const MANTISSA: u32 = 5;
const COLUMNS: usize = 1 << MANTISSA;
/// One for each power of two.
const ROWS: usize = u32::BITS as usize;
const _: () = assert!(BINS == ROWS * COLUMNS);

/// The bin of a size that is not 0.
#[inline]
pub(super) fn bin_of(units: u32) -> usize {
    // As integers: a float's registers are those that blocks are copied through, and it would wait.
    let row = (u32::BITS - 1 - (units | 1).leading_zeros()) as usize;
    // The leading one counts as a column too many; it makes row 1 of row 0.
    (row << MANTISSA) + (((units as usize) << MANTISSA) >> row) - COLUMNS
}

/// The largest size of a bin.
pub(super) fn largest_of(bin: usize) -> u32 {
    let (row, column) = (bin >> MANTISSA, (bin & (COLUMNS - 1)) as u64);
    let past = (COLUMNS as u64 + column + 1) << row;
    ((past - 1) >> MANTISSA) as u32
}

/// A bin's row and column.
#[inline]
fn split(bin: usize) -> (usize, usize) {
    ((bin >> MANTISSA) % ROWS, bin % COLUMNS)
}

/// The lowest bit of a bitmap at or above a place.
#[inline]
fn bit_at_or_above(bits: u32, place: usize) -> Option<usize> {
    let bits = bits.checked_shr(place as u32).unwrap_or(0);
    (bits != 0).then(|| place + bits.trailing_zeros() as usize)
}

/// The highest bit of a bitmap at or below a place.
fn bit_at_or_below(bits: u32, place: usize) -> Option<usize> {
    Some((bits & (u32::MAX >> (31 - place % 32))).checked_ilog2()? as usize)
}

/// The free blocks of one tag, in lists by size. Each list has those of one bin or of several.
pub(super) trait FreeLists {
    /// The list of a bin.
    fn list_of(&self, bin: usize) -> usize;
    /// The newest block of a list.
    fn head(&self, list: usize) -> u32;
    /// The first list at or above this one that has blocks.
    fn at_or_above(&self, list: usize) -> Option<usize>;
    /// The last list at or below this one that has blocks.
    fn at_or_below(&self, list: usize) -> Option<usize>;
    /// Puts a block before the others of its bin's list. Returns the one that was the first.
    fn push_head(&mut self, bin: usize, node: u32) -> u32;
    /// Makes the second block of the bin's list the first.
    fn pop_head(&mut self, bin: usize, second: u32);
    /// How many blocks there are, to be changed.
    fn blocks_mut(&mut self) -> &mut u32;
    /// The bounds of the stamps, where they are kept.
    fn stamps_mut(&mut self) -> Option<&mut Stamps>;

    /// Counts a block that comes.
    #[inline(always)]
    fn count_in(&mut self) {
        *self.blocks_mut() += 1;
    }

    /// Counts a block that goes.
    #[inline(always)]
    fn count_out(&mut self) {
        let blocks = self.blocks_mut();
        *blocks -= 1;
        if *blocks == 0
            && let Some(stamps) = self.stamps_mut()
        {
            *stamps = Stamps::NONE;
        }
    }

    /// Notes the stamp of a block that comes, or has a new one.
    #[inline(always)]
    fn note(&mut self, stamp: usize) {
        if let Some(stamps) = self.stamps_mut() {
            stamps.note(stamp);
        }
    }

    /// Notes that no block has an earlier stamp.
    fn set_oldest(&mut self, stamp: usize) {
        if let Some(stamps) = self.stamps_mut() {
            stamps.oldest = stamp;
        }
    }

    /// How many blocks there are.
    fn blocks(&self) -> u32;
    fn summary(&self, nodes: &[BlockNode]) -> Summary;
}

/// Between which bounds the blocks are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    /// No block is larger.
    pub(super) largest: u32,
    /// No block has an earlier stamp.
    pub(super) oldest: usize,
    /// None has a later one.
    pub(super) latest: usize,
}

impl Summary {
    pub(super) const EMPTY: Self = Self { largest: 0, oldest: usize::MAX, latest: 0 };
}

/// The blocks of a list, the newest first.
#[inline]
pub(super) fn list(nodes: &[BlockNode], head: u32) -> impl Iterator<Item = (u32, &BlockNode)> {
    let at = |node: u32| nodes.get(node as usize).map(|block| (node, block));
    std::iter::successors(at(head), move |(_, block)| at(block.older))
}

/// All blocks, those of the largest sizes first.
pub(super) fn all<'a>(
    lists: &'a dyn FreeLists,
    nodes: &'a [BlockNode],
) -> impl Iterator<Item = (u32, &'a BlockNode)> {
    down(lists).flat_map(|at| list(nodes, lists.head(at)))
}

/// The lists with blocks, from the last one down.
pub(super) fn down(lists: &dyn FreeLists) -> impl Iterator<Item = usize> {
    let top = lists.at_or_below(BINS - 1);
    std::iter::successors(top, |&at| lists.at_or_below(at.checked_sub(1)?))
}

/// The lists with blocks, from the one of this bin up.
pub(super) fn up(lists: &dyn FreeLists, bin: usize) -> impl Iterator<Item = usize> {
    let first = lists.at_or_above(lists.list_of(bin));
    std::iter::successors(first, |at| lists.at_or_above(at + 1))
}

/// Of the first `probes` blocks of a list, the smallest with at least this size that is accepted.
#[inline]
pub(super) fn best(
    nodes: &[BlockNode],
    head: u32,
    units: u32,
    probes: usize,
    accept: impl Fn(&BlockNode) -> bool,
) -> Option<u32> {
    let probed = list(nodes, head).take(probes);
    let serves = probed.filter(|(_, block)| block.units >= units && accept(block));
    serves.min_by_key(|(_, block)| block.units).map(|(node, _)| node)
}

/// Puts a free block that comes to these lists into that of its size.
#[inline(always)]
pub(super) fn insert<L: FreeLists + ?Sized>(lists: &mut L, nodes: &mut View<'_>, node: u32) {
    lists.count_in();
    lists.note(nodes[node].stamp);
    push(lists, nodes, node);
}

/// Takes a free block that leaves these lists out of its own. It still says that it is free.
#[inline(always)]
pub(super) fn remove<L: FreeLists + ?Sized>(lists: &mut L, nodes: &mut View<'_>, node: u32) {
    unlink(lists, nodes, node);
    lists.count_out();
}

/// Puts a block that is in no list into that of its size.
#[inline(always)]
pub(super) fn push<L: FreeLists + ?Sized>(lists: &mut L, nodes: &mut View<'_>, node: u32) {
    let block = &mut nodes[node];
    let bin = bin_of(block.units);
    let older = lists.push_head(bin, node);
    block.bin = bin as u16;
    block.newer = NO_NODE;
    block.older = older;
    if let Some(older) = nodes.blocks.get_mut(older as usize) {
        older.newer = node;
    }
}

/// Takes a block out of its list.
#[inline(always)]
pub(super) fn unlink<L: FreeLists + ?Sized>(lists: &mut L, nodes: &mut View<'_>, node: u32) {
    let BlockNode { newer, older, bin, .. } = nodes[node];
    if let Some(older) = nodes.blocks.get_mut(older as usize) {
        older.newer = newer;
    }
    match nodes.blocks.get_mut(newer as usize) {
        Some(newer) => newer.older = older,
        None => lists.pop_head(usize::from(bin), older),
    }
}

/// All blocks in one list.
#[derive(Debug)]
pub(super) struct OneList {
    head: u32,
    blocks: u32,
}

impl OneList {
    pub(super) const EMPTY: Self = Self { head: NO_NODE, blocks: 0 };
}

impl FreeLists for OneList {
    fn list_of(&self, _: usize) -> usize {
        0
    }

    fn head(&self, _: usize) -> u32 {
        self.head
    }

    fn at_or_above(&self, list: usize) -> Option<usize> {
        (list == 0 && self.head != NO_NODE).then_some(0)
    }

    fn at_or_below(&self, _: usize) -> Option<usize> {
        (self.head != NO_NODE).then_some(0)
    }

    fn push_head(&mut self, _: usize, node: u32) -> u32 {
        std::mem::replace(&mut self.head, node)
    }

    fn pop_head(&mut self, _: usize, second: u32) {
        self.head = second;
    }

    fn blocks_mut(&mut self) -> &mut u32 {
        &mut self.blocks
    }

    fn stamps_mut(&mut self) -> Option<&mut Stamps> {
        None
    }

    fn blocks(&self) -> u32 {
        self.blocks
    }

    fn summary(&self, nodes: &[BlockNode]) -> Summary {
        list(nodes, self.head).fold(Summary::EMPTY, |all, (_, block)| Summary {
            largest: all.largest.max(block.units),
            oldest: all.oldest.min(block.stamp),
            latest: all.latest.max(block.stamp),
        })
    }
}

/// Bounds of the stamps since the lists were last empty.
#[derive(Debug)]
pub(super) struct Stamps {
    oldest: usize,
    latest: usize,
}

impl Stamps {
    const NONE: Self = Self { oldest: usize::MAX, latest: 0 };

    // With branches, which are all but always right: most frees are of the latest epoch.
    #[inline]
    fn note(&mut self, stamp: usize) {
        if stamp > self.latest {
            self.latest = stamp;
        }
        if stamp < self.oldest {
            self.oldest = stamp;
        }
    }
}

/// A list for each row.
#[derive(Debug)]
pub(super) struct Rows {
    stamps: Stamps,
    blocks: u32,
    rows: u32,
    heads: [u32; ROWS],
}

impl Rows {
    pub(super) const EMPTY: Self =
        Self { stamps: Stamps::NONE, blocks: 0, rows: 0, heads: [NO_NODE; ROWS] };
}

impl FreeLists for Rows {
    fn list_of(&self, bin: usize) -> usize {
        bin >> MANTISSA
    }

    fn head(&self, list: usize) -> u32 {
        self.heads[list % ROWS]
    }

    fn at_or_above(&self, list: usize) -> Option<usize> {
        bit_at_or_above(self.rows, list)
    }

    fn at_or_below(&self, list: usize) -> Option<usize> {
        bit_at_or_below(self.rows, list.min(ROWS - 1))
    }

    fn push_head(&mut self, bin: usize, node: u32) -> u32 {
        let (row, _) = split(bin);
        self.rows |= 1 << row;
        std::mem::replace(&mut self.heads[row], node)
    }

    fn pop_head(&mut self, bin: usize, second: u32) {
        let (row, _) = split(bin);
        self.heads[row] = second;
        self.rows &= !(u32::from(second == NO_NODE) << row);
    }

    fn blocks_mut(&mut self) -> &mut u32 {
        &mut self.blocks
    }

    fn stamps_mut(&mut self) -> Option<&mut Stamps> {
        Some(&mut self.stamps)
    }

    fn blocks(&self) -> u32 {
        self.blocks
    }

    fn summary(&self, _: &[BlockNode]) -> Summary {
        let top = self.at_or_below(ROWS - 1);
        let largest = top.map_or(0, |row| largest_of((row << MANTISSA) + COLUMNS - 1));
        let Stamps { oldest, latest } = self.stamps;
        Summary { largest, oldest, latest }
    }
}

/// A list for each bin.
#[derive(Debug)]
pub(super) struct Table {
    stamps: Stamps,
    blocks: u32,
    /// A bit for each row that has blocks.
    rows: u32,
    /// A bit for each bin that has blocks, by row.
    columns: [u32; ROWS],
    heads: [u32; BINS],
}

impl Table {
    pub(super) const EMPTY: Self = Self {
        stamps: Stamps::NONE,
        blocks: 0,
        rows: 0,
        columns: [0; ROWS],
        heads: [NO_NODE; BINS],
    };
}

impl FreeLists for Table {
    #[inline]
    fn list_of(&self, bin: usize) -> usize {
        bin
    }

    #[inline]
    fn head(&self, list: usize) -> u32 {
        self.heads[list % BINS]
    }

    #[inline]
    fn at_or_above(&self, list: usize) -> Option<usize> {
        if list >= BINS {
            return None;
        }
        let (row, column) = split(list);
        let here = self.columns[row] & (u32::MAX << column);
        if here != 0 {
            return Some((row << MANTISSA) + here.trailing_zeros() as usize);
        }
        let above = self.rows & (u32::MAX << row << 1);
        if above == 0 {
            return None;
        }
        let row = above.trailing_zeros() as usize;
        Some((row << MANTISSA) + self.columns[row % ROWS].trailing_zeros() as usize)
    }

    fn at_or_below(&self, list: usize) -> Option<usize> {
        let (row, column) = split(list);
        if let Some(column) = bit_at_or_below(self.columns[row], column) {
            return Some((row << MANTISSA) + column);
        }
        let row = bit_at_or_below(self.rows, row.checked_sub(1)?)?;
        Some((row << MANTISSA) + bit_at_or_below(self.columns[row], COLUMNS - 1)?)
    }

    #[inline]
    fn push_head(&mut self, bin: usize, node: u32) -> u32 {
        let (row, column) = split(bin);
        self.rows |= 1 << row;
        self.columns[row] |= 1 << column;
        std::mem::replace(&mut self.heads[bin % BINS], node)
    }

    #[inline(always)]
    fn pop_head(&mut self, bin: usize, second: u32) {
        self.heads[bin % BINS] = second;
        if second != NO_NODE {
            return;
        }
        let (row, column) = split(bin);
        let columns = self.columns[row] & !(1 << column);
        self.columns[row] = columns;
        if columns == 0 {
            self.rows &= !(1 << row);
        }
    }

    #[inline(always)]
    fn blocks_mut(&mut self) -> &mut u32 {
        &mut self.blocks
    }

    #[inline(always)]
    fn stamps_mut(&mut self) -> Option<&mut Stamps> {
        Some(&mut self.stamps)
    }

    fn blocks(&self) -> u32 {
        self.blocks
    }

    fn summary(&self, _: &[BlockNode]) -> Summary {
        let largest = self.at_or_below(BINS - 1).map_or(0, largest_of);
        let Stamps { oldest, latest } = self.stamps;
        Summary { largest, oldest, latest }
    }
}

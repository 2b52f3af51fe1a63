//! Bins of free blocks by size: which is the smallest that serves, found through two levels of
//! bitmaps.
//!
//! A bin holds the sizes that share their leading bits, as a floating-point number would with a
//! mantissa of [`MANTISSA`] bits: rows are powers of two, columns the steps within one. Sizes are
//! not rounded, so the bin of a wanted size holds blocks that serve and blocks that do not (the
//! *floor* bin), and every block in a bin above serves. Searching only above loses freed blocks of
//! the very size that is asked for, again and again; searching all of the floor bin takes long. So
//! some of it is probed, and a few of the bin above for a better fit.

use super::Tag;

/// Bits of a size, below its leading one, that choose a bin.
const MANTISSA: u32 = 5;
const COLUMNS: usize = 1 << MANTISSA;
/// Row 0 is for sizes without a leading one above the mantissa, the others for one power of two.
const ROWS: usize = (u32::BITS - MANTISSA + 1) as usize;

/// A free block as its bin knows it: what a search looks at lies side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) units: u32,
    pub(super) node: u32,
    pub(super) stamp: usize,
}

/// Where a free block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) bin: usize,
    pub(super) position: usize,
}

/// The free blocks of one tag.
#[derive(Debug)]
pub(super) struct Bins {
    pub(super) tag: Tag,
    blocks: usize,
    latest: usize,
    /// A bit for each row that has blocks.
    rows: u32,
    /// A bit for each bin that has blocks, by row.
    columns: [u64; ROWS],
    /// Grows with the largest size that was seen.
    bins: Vec<Vec<Entry>>,
}

/// The bin of a size.
#[inline]
pub(super) fn bin_of(units: u32) -> usize {
    if units < COLUMNS as u32 {
        return units as usize;
    }
    let exponent = u32::BITS - 1 - units.leading_zeros() - MANTISSA;
    // The leading one carries into the row: rows count from 1 here.
    ((exponent as usize) << MANTISSA) + (units >> exponent) as usize
}

/// The largest size of a bin.
pub(super) fn largest_of(bin: usize) -> u32 {
    let (row, column) = (bin >> MANTISSA, (bin & (COLUMNS - 1)) as u64);
    if row == 0 {
        return column as u32;
    }
    let past = (COLUMNS as u64 + column + 1) << (row - 1);
    u32::try_from(past - 1).unwrap_or(u32::MAX)
}

impl Bins {
    pub(super) fn new(tag: Tag) -> Self {
        Self { tag, blocks: 0, latest: 0, rows: 0, columns: [0; ROWS], bins: Vec::new() }
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// The latest stamp that came in since the bins were last empty.
    pub(super) fn latest(&self) -> usize {
        if self.blocks == 0 { 0 } else { self.latest }
    }

    #[inline]
    fn note(&mut self, stamp: usize) {
        self.latest = if self.blocks == 0 { stamp } else { self.latest.max(stamp) };
    }

    /// Adds a block. Returns its position in the bin.
    #[inline]
    pub(super) fn insert(&mut self, bin: usize, entry: Entry) -> usize {
        self.note(entry.stamp);
        self.blocks += 1;
        if bin >= self.bins.len() {
            self.grow(bin);
        }
        let list = &mut self.bins[bin];
        list.push(entry);
        let position = list.len() - 1;
        if position == 0 {
            self.rows |= 1 << (bin >> MANTISSA);
            self.columns[bin >> MANTISSA] |= 1 << (bin & (COLUMNS - 1));
        }
        position
    }

    #[cold]
    fn grow(&mut self, bin: usize) {
        self.bins.resize_with((bin | (COLUMNS - 1)) + 1, Vec::new);
    }

    /// Takes a block out. The second is the node that stands in its place now, if one does.
    #[inline]
    pub(super) fn remove(&mut self, place: Place) -> (Entry, Option<u32>) {
        let list = &mut self.bins[place.bin];
        let entry = list.swap_remove(place.position);
        let moved = list.get(place.position).map(|entry| entry.node);
        self.blocks -= 1;
        if list.is_empty() {
            let row = place.bin >> MANTISSA;
            self.columns[row] &= !(1 << (place.bin & (COLUMNS - 1)));
            if self.columns[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
        (entry, moved)
    }

    #[inline]
    pub(super) fn entry(&self, place: Place) -> Entry {
        self.bins[place.bin][place.position]
    }

    /// Changes a block that stays in its bin.
    #[inline]
    pub(super) fn replace(&mut self, place: Place, entry: Entry) {
        self.note(entry.stamp);
        self.bins[place.bin][place.position] = entry;
    }

    /// The first bin at or above this one that has blocks.
    #[inline]
    pub(super) fn at_or_above(&self, bin: usize) -> Option<usize> {
        let row = bin >> MANTISSA;
        let here = self.columns.get(row)? & (u64::MAX << (bin & (COLUMNS - 1)));
        if here != 0 {
            return Some((row << MANTISSA) + here.trailing_zeros() as usize);
        }
        // Rows are fewer than 32, so the shift is no overflow.
        let row = (self.rows & (u32::MAX << row << 1)).trailing_zeros() as usize;
        Some((row << MANTISSA) + self.columns.get(row)?.trailing_zeros() as usize)
    }

    /// The highest bin that has blocks.
    pub(super) fn top(&self) -> Option<usize> {
        self.at_or_below(usize::MAX)
    }

    /// The last bin at or below this one that has blocks.
    pub(super) fn at_or_below(&self, bin: usize) -> Option<usize> {
        let bin = bin.min(ROWS * COLUMNS - 1);
        let (row, column) = (bin >> MANTISSA, bin & (COLUMNS - 1));
        let here = self.columns[row] & (u64::MAX >> (63 - column));
        if here != 0 {
            return Some((row << MANTISSA) + here.ilog2() as usize);
        }
        let row = (self.rows & !(u32::MAX << row)).checked_ilog2()? as usize;
        Some((row << MANTISSA) + self.columns[row].checked_ilog2()? as usize)
    }

    /// Of the last `probes` blocks of a bin, the smallest with at least this size that is accepted.
    #[inline]
    pub(super) fn best(
        &self,
        bin: usize,
        units: u32,
        probes: usize,
        accept: impl Fn(&Entry) -> bool,
    ) -> Option<Place> {
        let list = self.bins.get(bin)?;
        let first = list.len().saturating_sub(probes);
        let mut best = None;
        // What is smaller than wanted wraps to above this.
        let mut excess = u64::from(u32::MAX - units) + 1;
        for (position, entry) in list.iter().enumerate().skip(first).rev() {
            let over = u64::from(entry.units.wrapping_sub(units));
            if over < excess && accept(entry) {
                excess = over;
                best = Some(Place { bin, position });
                if over == 0 {
                    break;
                }
            }
        }
        best
    }

    /// The first bin at or above this one where a block serves.
    fn search(&self, bin: usize, units: u32, probes: usize, upto: usize) -> Option<Place> {
        let mut bins =
            std::iter::successors(self.at_or_above(bin), |&bin| self.at_or_above(bin + 1));
        bins.find_map(|bin| self.best(bin, units, probes, |entry| entry.stamp <= upto))
    }

    /// The best fit of all blocks with these units and a stamp of at most `upto`.
    pub(super) fn early(&self, units: u32, upto: usize) -> Option<Place> {
        self.search(bin_of(units), units, usize::MAX, upto)
    }

    /// The largest block with a stamp of at most `upto`.
    pub(super) fn largest(&self, upto: usize) -> Option<Place> {
        self.filled_down().find_map(|bin| {
            let entries = self.in_bin(bin).iter().enumerate();
            let (position, _) = entries
                .filter(|(_, entry)| entry.stamp <= upto)
                .max_by_key(|(_, entry)| entry.units)?;
            Some(Place { bin, position })
        })
    }

    /// Every block, those of the bins of the largest sizes first.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.filled_down().flat_map(|bin| self.in_bin(bin))
    }

    fn filled_down(&self) -> impl Iterator<Item = usize> {
        std::iter::successors(self.top(), |&bin| self.at_or_below(bin.checked_sub(1)?))
    }

    /// The blocks of one bin.
    pub(super) fn in_bin(&self, bin: usize) -> &[Entry] {
        self.bins.get(bin).map_or(&[], Vec::as_slice)
    }
}

//! Bins of free blocks by size: which is the smallest that serves, found through two levels of
//! bitmaps.
//!
//! A bin holds the sizes that share their leading bits, as a floating-point number would with a
//! mantissa of [`MANTISSA`] bits: rows are powers of two, columns the steps within one. Sizes are
//! not rounded, so the bin of a wanted size holds blocks that serve and blocks that do not (the
//! *floor* bin), and every block in a bin above serves. Searching only above loses freed blocks of
//! the very size that is asked for, again and again; searching all of the floor bin takes long. So
//! some of it is probed, and a few of the bin above for a better fit; all of it only before memory
//! is said to be out.

use super::types::Tag;

/// Bits of a size, below its leading one, that choose a bin.
const MANTISSA: u32 = 5;
const COLUMNS: usize = 1 << MANTISSA;
/// One for each power of two.
const ROWS: usize = u32::BITS as usize;
const BINS: usize = ROWS * COLUMNS;

/// A free block as its bin knows it: what a search looks at lies side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) units: u32,
    pub(super) node: u32,
    pub(super) stamp: usize,
}

/// The position of the victim.
pub(super) const VICTIM: u32 = u32::MAX;

/// Where a free block stands. The bin of the victim means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) bin: usize,
    pub(super) position: u32,
}

/// A block that serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fit {
    /// By how many units it is larger than asked.
    excess: u32,
    pub(super) place: Place,
}

/// The free blocks of one tag.
#[derive(Debug)]
pub(super) struct Bins {
    pub(super) tag: Tag,
    latest: usize,
    oldest: usize,
    /// A bit for each row that has blocks.
    rows: u32,
    /// A bit for each bin that has blocks, by row.
    columns: [u64; ROWS],
    bins: Box<[Vec<Entry>; BINS]>,
    /// A large block that stands in no bin, so that blocks which are cut from it and merged with it
    /// again move nothing: dlmalloc's designated victim. Without units there is none.
    victim: Entry,
}

/// A bin's row and column.
#[inline]
fn split(bin: usize) -> (usize, usize) {
    ((bin >> MANTISSA) % ROWS, bin % COLUMNS)
}

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

const NO_ENTRY: Entry = Entry { units: 0, node: 0, stamp: 0 };

// Bitmaps and lists change without a branch where that is possible: whether a bin runs empty, or which
// of its blocks goes, is unpredictable, and a wrong prediction costs more than the rest.
impl Bins {
    pub(super) fn new(tag: Tag) -> Self {
        let bins = Box::new([const { Vec::new() }; BINS]);
        Self { tag, latest: 0, oldest: 0, rows: 0, columns: [0; ROWS], bins, victim: NO_ENTRY }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0 && self.victim.units == 0
    }

    /// How many blocks there are. O(bins with blocks).
    pub(super) fn blocks(&self) -> usize {
        let in_bins: usize = self.filled_down().map(|bin| self.in_bin(bin).len()).sum();
        in_bins + usize::from(self.victim.units != 0)
    }

    /// The latest stamp that came in since the bins were last empty.
    pub(super) fn latest_bound(&self) -> usize {
        if self.is_empty() { 0 } else { self.latest }
    }

    /// The earliest stamp that came in since the bins were last empty; `usize::MAX` if they are.
    pub(super) fn oldest_bound(&self) -> usize {
        if self.is_empty() { usize::MAX } else { self.oldest }
    }

    /// Whether a block of this size is to be the victim.
    #[inline]
    pub(super) fn is_next_victim(&self, units: u32) -> bool {
        units > self.victim.units
    }

    /// Makes a new block the victim. Returns the former one, which is in no bin now.
    #[cold]
    pub(super) fn set_victim(&mut self, entry: Entry) -> Option<Entry> {
        let empty = self.is_empty();
        self.latest = if empty { entry.stamp } else { self.latest.max(entry.stamp) };
        self.oldest = if empty { entry.stamp } else { self.oldest.min(entry.stamp) };
        Some(std::mem::replace(&mut self.victim, entry)).filter(|old| old.units != 0)
    }

    /// Adds a block to bins that are not empty. Returns its position in its bin.
    #[inline]
    pub(super) fn insert(&mut self, bin: usize, entry: Entry) -> u32 {
        self.latest = self.latest.max(entry.stamp);
        self.oldest = self.oldest.min(entry.stamp);
        let (row, column) = split(bin);
        self.rows |= 1 << row;
        self.columns[row] |= 1 << column;
        self.push(bin, entry)
    }

    #[inline]
    fn push(&mut self, bin: usize, entry: Entry) -> u32 {
        let list = &mut self.bins[bin % BINS];
        let position = list.len();
        list.push(entry);
        // There are no more blocks than nodes.
        position as u32
    }

    /// Takes a block out. Returns its stamp, and the node that stands in its place now; that may be
    /// its own.
    #[inline]
    pub(super) fn remove(&mut self, place: Place) -> (usize, u32) {
        if place.position == VICTIM {
            let Entry { node, stamp, .. } = self.victim;
            self.victim = NO_ENTRY;
            return (stamp, node);
        }
        let (stamp, moved, empty) = self.pull(place);
        let (row, column) = split(place.bin);
        let columns = self.columns[row] & !(u64::from(empty) << column);
        self.columns[row] = columns;
        self.rows &= !(u32::from(columns == 0) << row);
        (stamp, moved)
    }

    /// Takes a block out of its bin's list. Returns its stamp, the node that stands in its place, and
    /// whether the list is empty now.
    #[inline]
    fn pull(&mut self, place: Place) -> (usize, u32, bool) {
        let list = &mut self.bins[place.bin % BINS];
        let last = list.len() - 1;
        let moved = list[last].node;
        let stamp = list[place.position as usize].stamp;
        list[place.position as usize] = list[last];
        list.truncate(last);
        (stamp, moved, last == 0)
    }

    #[inline]
    pub(super) fn entry(&self, place: Place) -> &Entry {
        if place.position == VICTIM {
            return &self.victim;
        }
        &self.bins[place.bin % BINS][place.position as usize]
    }

    /// Gives a block that stays in its place another size, and at least this stamp.
    #[inline]
    pub(super) fn change(&mut self, place: Place, units: u32, stamp: usize) {
        self.latest = self.latest.max(stamp);
        let entry = match place.position {
            VICTIM => &mut self.victim,
            position => &mut self.bins[place.bin % BINS][position as usize],
        };
        entry.units = units;
        entry.stamp = entry.stamp.max(stamp);
    }

    /// Takes a block from one bin to another, with at least this stamp. Returns its position there, and the
    /// node that stands in its old place now; that may be its own.
    #[inline]
    pub(super) fn shift(&mut self, place: Place, bin: usize, mut entry: Entry) -> (u32, u32) {
        self.latest = self.latest.max(entry.stamp);
        let (stamp, moved, empty) = self.pull(place);
        entry.stamp = entry.stamp.max(stamp);
        let ((from, column), (to, new)) = (split(place.bin), split(bin));
        let columns = self.columns[from] & !(u64::from(empty) << column);
        self.columns[from] = columns;
        self.columns[to] |= 1 << new;
        self.rows = self.rows & !(u32::from(columns == 0) << from) | 1 << to;
        (self.push(bin, entry), moved)
    }

    /// The first bin at or above this one that has blocks.
    #[inline]
    pub(super) fn at_or_above(&self, bin: usize) -> Option<usize> {
        if bin >= BINS {
            return None;
        }
        let (row, column) = split(bin);
        let here = self.columns[row] & (u64::MAX << column);
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

    /// Upper bound on the units of a block; exact if 0.
    pub(super) fn largest_bound(&self) -> u32 {
        self.top().map_or(0, largest_of).max(self.victim.units)
    }

    /// The highest bin that has blocks.
    pub(super) fn top(&self) -> Option<usize> {
        self.at_or_below(BINS - 1)
    }

    /// The last bin at or below this one that has blocks.
    pub(super) fn at_or_below(&self, bin: usize) -> Option<usize> {
        let (row, column) = split(bin);
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
    ) -> Option<Fit> {
        let list = self.in_bin(bin);
        let first = list.len().saturating_sub(probes);
        // A block that is too small, or not accepted, counts as worse than all others. Without a branch:
        // which of them is the best is unpredictable.
        let none = u64::from(u32::MAX - units) + 1;
        let (mut excess, mut best) = (none, 0);
        for (position, entry) in list[first..].iter().enumerate() {
            let over = u64::from(entry.units.wrapping_sub(units));
            let better = (over < excess) & accept(entry);
            excess = if better { over } else { excess };
            best = if better { position } else { best };
        }
        let place = Place { bin, position: (first + best) as u32 };
        (excess != none).then_some(Fit { excess: excess as u32, place })
    }

    /// The better fit: this one, or the victim.
    #[inline]
    pub(super) fn better_fit(
        &self,
        fit: Option<Fit>,
        units: u32,
        accept: impl Fn(&Entry) -> bool,
    ) -> Option<Fit> {
        let excess = self.victim.units.checked_sub(units).filter(|_| accept(&self.victim));
        let Some(excess) = excess else { return fit };
        let victim = Fit { excess, place: Place { bin: 0, position: VICTIM } };
        Some(fit.filter(|fit| fit.excess <= excess).unwrap_or(victim))
    }

    /// The best fit of all blocks with these units, which are not 0, and a stamp of at most `upto`.
    pub(super) fn best_upto(&self, units: u32, upto: usize) -> Option<Place> {
        let accept = |entry: &Entry| entry.stamp <= upto;
        let bins = std::iter::successors(self.at_or_above(bin_of(units)), |&bin| {
            self.at_or_above(bin + 1)
        });
        let fit = bins.filter_map(|bin| self.best(bin, units, usize::MAX, accept)).next();
        self.better_fit(fit, units, accept).map(|fit| fit.place)
    }

    /// The largest block with a stamp of at most `latest`.
    pub(super) fn largest(&self, latest: usize) -> Option<Place> {
        let in_bins = self.filled_down().find_map(|bin| {
            let entries = (0..).zip(self.in_bin(bin)).filter(|(_, entry)| entry.stamp <= latest);
            let (position, _) = entries.max_by_key(|(_, entry)| entry.units)?;
            Some(Place { bin, position })
        });
        let victim = (self.victim.units != 0 && self.victim.stamp <= latest)
            .then_some(Place { bin: 0, position: VICTIM });
        in_bins.into_iter().chain(victim).max_by_key(|&place| self.entry(place).units)
    }

    /// Every block, those of the bins of the largest sizes first.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.victim().into_iter().chain(self.filled_down().flat_map(|bin| self.in_bin(bin)))
    }

    fn filled_down(&self) -> impl Iterator<Item = usize> {
        std::iter::successors(self.top(), |&bin| self.at_or_below(bin.checked_sub(1)?))
    }

    /// The blocks of one bin.
    pub(super) fn in_bin(&self, bin: usize) -> &[Entry] {
        &self.bins[bin % BINS]
    }

    /// The victim.
    pub(super) fn victim(&self) -> Option<&Entry> {
        Some(&self.victim).filter(|victim| victim.units != 0)
    }
}

//! Counters of bytes and of blocks.

/// A number that allocations raise and frees lower. RMM calls it
/// `statistics_resource_adaptor::counter`.
// Aligned for a gap between the two of `Counters`. Side by side, one's total and the other's current are
// changed as a pair, and what a free writes by itself is slow to read as a half of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(32))]
#[non_exhaustive]
pub struct Counter {
    /// The current value. It is below zero if more was freed than allocated, such as blocks that
    /// were allocated before or elsewhere.
    pub current: i64,
    /// The highest value, at least 0.
    pub peak: i64,
    /// The sum of all allocations, whatever was freed. For bytes it includes those that
    /// blocks gained in place.
    pub total: i64,
}

/// Counters of bytes and of blocks, as a [`StatisticsAdaptor`](crate::mr::StatisticsAdaptor) gives them.
///
/// ```
/// use aquifer::mr::Counters;
///
/// let none = Counters::default();
/// assert_eq!((none.bytes.peak, none.allocations.total), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Bytes, of the size that blocks have.
    pub bytes: Counter,
    /// Blocks.
    pub allocations: Counter,
}

impl Counter {
    #[inline(always)]
    pub(super) fn change(&mut self, by: i64, blocks: i64) {
        self.current = self.current.wrapping_add(by);
        if blocks > 0 {
            self.peak = self.peak.max(self.current);
            self.total = self.total.wrapping_add(by);
        }
    }

    /// Adds the changes that happened after this.
    fn fold(&mut self, later: &Self) {
        self.peak = self.peak.max(self.current.wrapping_add(later.peak));
        self.current = self.current.wrapping_add(later.current);
        self.total = self.total.wrapping_add(later.total);
    }
}

impl Counters {
    #[inline(always)]
    pub(super) fn change(&mut self, bytes: i64, blocks: i64) {
        self.bytes.change(bytes, blocks);
        self.allocations.change(blocks, blocks);
    }

    /// Counts a block that now has so many bytes more, or fewer if negative.
    pub(super) fn resize(&mut self, bytes: i64) {
        self.bytes.change(bytes, bytes);
    }

    /// Counts bytes that a block still has, and which were counted as given up.
    pub(super) fn keep(&mut self, bytes: i64) {
        self.bytes.change(bytes, 1);
        self.bytes.total = self.bytes.total.wrapping_sub(bytes);
    }

    pub(super) fn fold(&mut self, later: &Self) {
        self.bytes.fold(&later.bytes);
        self.allocations.fold(&later.allocations);
    }
}

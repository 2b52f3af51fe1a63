//! When the blocks of a route that is closing are counted anew: the last free has to find that there is none left.
//!
//! To count them means to read the whole page map, so it is not done at each free, but when half of those are freed that
//! were found last.
//!
//! - INV-1: a free that was counted before [`begin_count`](Closing::begin_count) is seen by the count, which begins after
//!   that; one that comes later counts against what is found.
//! - INV-2: an allocation on its way is found as a block, until it has left one: the count asks for those first.
//!
//! `loom_tests/c_library.rs` explores it.

use crate::atomics::{AtomicBool, AtomicIsize, Ordering};

#[derive(Debug)]
pub(crate) struct Closing {
    is_begun: AtomicBool,
    /// Frees until the blocks are counted anew.
    frees_left: AtomicIsize,
    allocations: AtomicIsize,
}

impl Closing {
    pub(crate) fn new() -> Self {
        let [frees_left, allocations] = [0, 0].map(AtomicIsize::new);
        Self { is_begun: AtomicBool::new(false), frees_left, allocations }
    }

    /// From now on frees are counted. The blocks are to be counted once after this.
    pub(crate) fn begin(&self) {
        self.is_begun.store(true, Ordering::Release);
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun.load(Ordering::Acquire)
    }

    /// Counts a free, whose block is noted as freed. Whether the blocks are to be counted now.
    pub(crate) fn count_free(&self) -> bool {
        self.is_begun() && self.frees_left.fetch_sub(1, Ordering::AcqRel) <= 1
    }

    /// An allocation begins, ordered before the close by a lock of the caller's.
    pub(crate) fn begin_allocation(&self) {
        // Relaxed: the lock.
        self.allocations.fetch_add(1, Ordering::Relaxed);
    }

    /// An allocation ends, whose block is noted as in use, or which has none. As [`count_free`](Self::count_free).
    pub(crate) fn end_allocation(&self) -> bool {
        // Release: pairs with `allocations`.
        self.allocations.fetch_sub(1, Ordering::Release);
        self.count_free()
    }

    /// Allocations on their way: to be asked between [`begin_count`](Self::begin_count) and the count.
    pub(crate) fn allocations(&self) -> isize {
        // Acquire: the blocks of those that have ended are found.
        self.allocations.load(Ordering::Acquire)
    }

    /// Whether the blocks are to be counted.
    pub(crate) fn is_due(&self) -> bool {
        self.frees_left.load(Ordering::Acquire) <= 0
    }

    /// The count begins. One thread at a time counts.
    pub(crate) fn begin_count(&self) {
        // An exchange, for INV-1: a mere store could lie behind the reads of the count, and would not acquire.
        self.frees_left.swap(0, Ordering::AcqRel);
    }

    /// So many blocks were found, and there were some.
    pub(crate) fn found(&self, blocks: isize) {
        self.frees_left.fetch_add((blocks / 2).max(1), Ordering::AcqRel);
    }
}

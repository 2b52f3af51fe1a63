//! How many blocks of a route are in use: a route that is closing goes with the last one.
//!
//! A thread counts what it allocates and frees on the warm way by itself, without an exchange. All other calls share a word.
//!
//! | word | what it says | who writes it |
//! |---|---|---|
//! | `shared` | twice the blocks that no thread counts by itself, and 1 once the route closes | allocations and frees that are not warm, a thread that stops to count, the close: by exchanges |
//! | `ThreadBlocks::own` | the warm allocations of a thread less its warm frees | that thread |
//!
//! - INV-1: an allocation is counted before its block is taken. One that is not warm is ordered before the close by a lock
//!   of the caller's; a warm one looks then whether the route closes, and takes no block where it does. The fence between
//!   its two steps and that of the close ([`barrier`]) have one of them see the other.
//! - INV-2: a free is counted after its block is noted as freed. So, once the route closes, no sum is below the blocks that
//!   are in use.
//! - INV-3: of the close and the frees that come after it, the last one sees all others: those that write `shared` by their
//!   exchanges, warm ones by a fence before the sum. A warm free that does not see the close is seen by it. So one finds no
//!   block left.
//!
//! `loom_tests/c_library.rs` explores it.

use crate::atomics::{AtomicIsize, Mutex, Ordering, barrier, fence};
use std::sync::Arc;

const CLOSING: isize = 1;
/// A block, in `shared`.
const BLOCK: isize = 2;

#[derive(Debug)]
pub(crate) struct LiveBlocks {
    shared: AtomicIsize,
    /// What each thread counts.
    by_thread: Mutex<Vec<Arc<Own>>>,
}

/// Alone on its cache lines, as one thread writes it again and again.
#[derive(Debug)]
#[repr(align(128))]
struct Own(AtomicIsize);

impl LiveBlocks {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { shared: AtomicIsize::new(0), by_thread: Mutex::new(Vec::new()) })
    }

    /// Counts an allocation: of a block that the caller has not given out, or of one that is on its way.
    pub(crate) fn add(&self) {
        // Relaxed: what orders it before the close is a lock of the caller's.
        self.shared.fetch_add(BLOCK, Ordering::Relaxed);
    }

    /// Counts a free. Whether the route is closing and has no block left.
    pub(crate) fn remove(&self) -> bool {
        // Release, and acquire: INV-3.
        let before = self.shared.fetch_sub(BLOCK, Ordering::AcqRel);
        before & CLOSING != 0 && self.is_empty()
    }

    /// From now on the last free finds that it is the last. Whether there is no block by now.
    pub(crate) fn close(&self) -> bool {
        // Acquire: INV-3.
        self.shared.fetch_or(CLOSING, Ordering::AcqRel);
        barrier::heavy();
        self.is_empty()
    }

    pub(crate) fn is_closing(&self) -> bool {
        // Acquire: what was allocated before the close is counted for who sees it.
        self.shared.load(Ordering::Acquire) & CLOSING != 0
    }

    fn is_empty(&self) -> bool {
        // After the count of a warm free: INV-3.
        fence(Ordering::SeqCst);
        // Under the lock no thread stops to count, which would move its blocks from one word to another.
        let by_thread = self.by_thread.lock();
        // Acquire: what a warm free gave back is there for the end of the route.
        let own: isize = by_thread.iter().map(|own| own.0.load(Ordering::Acquire)).sum();
        own + self.shared.load(Ordering::Acquire).div_euclid(BLOCK) == 0
    }

    /// The calling thread counts for itself.
    pub(crate) fn of_thread(self: &Arc<Self>) -> ThreadBlocks {
        let own = Arc::new(Own(AtomicIsize::new(0)));
        self.by_thread.lock().push(own.clone());
        ThreadBlocks { of: self.clone(), own }
    }
}

/// What one thread counts of a route's blocks.
#[derive(Debug)]
pub(crate) struct ThreadBlocks {
    of: Arc<LiveBlocks>,
    own: Arc<Own>,
}

impl ThreadBlocks {
    /// Counts a warm allocation that begins. `false` where the route closes: then it takes no block, and is counted as freed.
    #[inline(always)]
    #[must_use]
    pub(crate) fn add(&self) -> bool {
        self.change(1);
        barrier::light();
        !self.of.is_closing()
    }

    /// Counts a warm free. Whether the route is closing and has no block left.
    #[inline(always)]
    #[must_use]
    pub(crate) fn remove(&self) -> bool {
        self.change(-1);
        barrier::light();
        self.of.is_closing() && self.of.is_empty()
    }

    #[inline(always)]
    fn change(&self, by: isize) {
        // Two steps, as no other thread writes it. Release: pairs with `is_empty`.
        self.own.0.store(self.own.0.load(Ordering::Relaxed) + by, Ordering::Release);
    }
}

impl Drop for ThreadBlocks {
    /// The thread stops to count, which changes no sum.
    fn drop(&mut self) {
        let mut by_thread = self.of.by_thread.lock();
        by_thread.retain(|other| !Arc::ptr_eq(other, &self.own));
        let own = self.own.0.load(Ordering::Relaxed) * BLOCK;
        // Release: what the thread gave back is there for the end of the route.
        self.of.shared.fetch_add(own, Ordering::AcqRel);
    }
}

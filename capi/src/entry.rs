//! A block's entry in the page map: what is known of it, and the state that it is in.
//!
//! | `state` | the entry is | written by |
//! |---|---|---|
//! | 0 | never used | - |
//! | [`LIVE`] | of a block that is in use | the thread that allocated it, after the other fields |
//! | [`USED_ELSEWHERE`] | of one that was used on other streams | its user, by an exchange from `LIVE` |
//! | [`FREEING`] | of a block that is being freed | the one thread whose exchange from these two succeeded |
//! | [`FREED`] | of a block that was freed | that thread, before its resource gets the block |
//!
//! - INV-1: one thread alone takes a block out, also where two free it.
//! - INV-2: between `FREED` and the next `LIVE` of an address lies the resource's own hand-over of that address, by
//!   which the next owner's writes come after the last one's reads.
//!
//! `loom_tests/c_library.rs` explores it.

use crate::atomics::{AtomicU32, AtomicU64, Ordering};

pub(crate) const LIVE: u32 = 1;
pub(crate) const USED_ELSEWHERE: u32 = 2;
pub(crate) const FREEING: u32 = 3;
pub(crate) const FREED: u32 = 4;

/// What is known of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// The route that it came by.
    pub(crate) route: u32,
    /// The stream that it was allocated on.
    pub(crate) stream: u32,
    pub(crate) token: u64,
    /// The size of the resource's block.
    pub(crate) bytes: u64,
    /// The size that was asked for.
    pub(crate) requested: u64,
}

impl Block {
    /// By the [`numbers`] of its route and its stream.
    #[inline(always)]
    pub(crate) fn new(numbers: u64, token: u64, bytes: u64, requested: u64) -> Self {
        let (route, stream) = ((numbers >> 32) as u32, numbers as u32);
        Self { route, stream, token, bytes, requested }
    }
}

/// One that was never used is of zeros.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    state: AtomicU32,
    numbers: AtomicU64,
    token: AtomicU64,
    bytes: AtomicU64,
    requested: AtomicU64,
}

/// A route's number and a stream's, as one.
#[inline(always)]
pub(crate) fn numbers(route: u32, stream: u32) -> u64 {
    u64::from(route) << 32 | u64::from(stream)
}

impl Entry {
    #[inline(always)]
    pub(crate) fn insert(&self, block: Block) {
        // Relaxed: the caller alone has the address (INV-2); the state publishes them.
        self.numbers.store(numbers(block.route, block.stream), Ordering::Relaxed);
        self.token.store(block.token, Ordering::Relaxed);
        self.bytes.store(block.bytes, Ordering::Relaxed);
        self.requested.store(block.requested, Ordering::Relaxed);
        // Release: pairs with the loads of a thread that is handed the address.
        self.state.store(LIVE, Ordering::Release);
    }

    #[inline]
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// Whether the block is in use.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state(), LIVE | USED_ELSEWHERE)
    }

    /// The block was used on another stream. `false` where it is not in use: a thread may be freeing it.
    pub(crate) fn set_used_elsewhere(&self) -> bool {
        // An exchange: by a store a block that is freed meanwhile would live again. Release: INV-2.
        let exchange = |from| {
            self.state.compare_exchange(from, USED_ELSEWHERE, Ordering::AcqRel, Ordering::Acquire)
        };
        matches!(exchange(LIVE), Ok(_) | Err(USED_ELSEWHERE))
    }

    /// The numbers of the route and the stream, and the size that was asked for.
    #[inline(always)]
    pub(crate) fn numbers_and_requested(&self) -> (u64, u64) {
        (self.numbers.load(Ordering::Relaxed), self.requested.load(Ordering::Relaxed))
    }

    /// Takes a live block that was used on its own stream alone, and notes at once that it is freed.
    #[inline(always)]
    pub(crate) fn take(&self) -> bool {
        // Acquire: the fields come before the state. Release: INV-2.
        self.state.compare_exchange(LIVE, FREED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes a block that is in use, for the caller to free, and whether it was used on other streams. Else the state that
    /// it is in.
    pub(crate) fn begin_free(&self) -> Result<(Block, bool), u32> {
        // Acquire: the fields come before the state; no release, as nothing was written.
        let take =
            |from| self.state.compare_exchange(from, FREEING, Ordering::Acquire, Ordering::Acquire);
        let is_used_elsewhere = match take(LIVE) {
            Ok(_) => false,
            Err(USED_ELSEWHERE) => take(USED_ELSEWHERE).map(|_| true)?,
            Err(other) => return Err(other),
        };
        Ok((self.block(), is_used_elsewhere))
    }

    /// The block goes back to its resource after this.
    #[inline]
    pub(crate) fn end_free(&self) {
        // Release: INV-2.
        self.state.store(FREED, Ordering::Release);
    }

    /// The block stays in use.
    pub(crate) fn cancel_free(&self, is_used_elsewhere: bool) {
        let state = if is_used_elsewhere { USED_ELSEWHERE } else { LIVE };
        self.state.store(state, Ordering::Release);
    }

    /// The resource's token, and the size of its block.
    #[inline(always)]
    pub(crate) fn token_and_bytes(&self) -> (u64, u64) {
        (self.token.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn block(&self) -> Block {
        let numbers = self.numbers.load(Ordering::Relaxed);
        Block {
            route: (numbers >> 32) as u32,
            stream: numbers as u32,
            token: self.token.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            requested: self.requested.load(Ordering::Relaxed),
        }
    }
}

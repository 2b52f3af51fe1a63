//! The counts of all threads: exact, and without a locked instruction where threads come again.
//!
//! **One thread** owns the account and counts in it. **The second** ends that for good; from then on
//! the account has a lock, and each thread a desk, a till of its own.
//!
//! What a thread frees stays at its desk as *spare*: the account still counts it as current. It
//! allocates from the spare first, and only asks the account for more. So the account's current is
//! what there is and all spares, never less than what there is; and as long as it does not pass the
//! peak, no peak has been passed, in whatever order the threads count. Where it would, all desks are
//! shut and their spares given back: then the account is what there is, at one moment, and the peak
//! is exact. Desks stay shut for a while then, since the next allocation may well be a peak again;
//! meanwhile everyone counts in the account, under its lock.

use super::{Counter, Counters};
use crate::adaptor::seats::{self, NO_SEAT};
use crate::adaptor::till::{DESKS, EVERYONE, SHUT, Till, is_cheap, keep_out};
use crate::backend::is_forked_child;
use crate::sync::{CachePadded, MODELLED, Mutex, MutexGuard};
use std::array;

/// For how many calls desks stay shut: what it costs to shut them, some microseconds, is little
/// beside it.
const CALLS_WITHOUT_DESKS: u32 = if MODELLED { 1 } else { 2048 };

#[derive(Debug)]
pub struct Counts {
    account: CachePadded<Till<Account>>,
    lock: CachePadded<Mutex<Opening>>,
    desks: [CachePadded<Till<Desk>>; DESKS],
}

/// The two counters with a gap between them. Side by side, one's total and the other's current are
/// changed as a pair, and what a free writes by itself is slow to read as a half of it.
#[derive(Debug, Default)]
#[repr(C)]
struct Account {
    bytes: Counter,
    _gap: u64,
    blocks: Counter,
}

/// Which desks are open.
#[derive(Debug, Default)]
struct Opening {
    /// All have smaller seats.
    end: usize,
    /// Calls until desks open again.
    calls: u32,
}

#[derive(Debug, Default)]
struct Desk {
    bytes: Spare,
    blocks: Spare,
}

#[derive(Debug, Default)]
struct Spare {
    /// At least 0.
    left: i64,
    /// Allocations that the account does not know yet.
    total: i64,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            account: Default::default(),
            lock: Default::default(),
            desks: array::from_fn(|_| Default::default()),
        }
    }
}

impl Counts {
    /// Counts a block of so many bytes.
    #[inline(always)]
    pub fn add(&self, bytes: i64) {
        self.change(bytes, 1);
    }

    /// Counts its end.
    #[inline(always)]
    pub fn subtract(&self, bytes: i64) {
        self.change(bytes.wrapping_neg(), -1);
    }

    #[inline(always)]
    fn change(&self, bytes: i64, blocks: i64) {
        let seat = seats::mine();
        let done = if self.account.owner() == seat {
            // SAFETY: the seat is this thread's, and the account has one owner for good.
            unsafe { self.account.enter(seat, |account| account.change(bytes, blocks)) }.is_some()
        } else if let Some(desk) = self.desks.get(seat)
            && desk.owner() == seat
        {
            // SAFETY: the seat is this thread's, and only it owns the desk.
            let counted = unsafe { desk.enter(seat, |desk| desk.change(bytes, blocks)) };
            counted == Some(true)
        } else {
            false
        };
        if !done {
            self.change_cold(bytes, blocks);
        }
    }

    #[inline(never)]
    fn change_cold(&self, bytes: i64, blocks: i64) {
        let seat = seats::take();
        let Some(mut opening) = self.lock() else { return };
        match self.account.owner() {
            EVERYONE => {}
            SHUT if is_cheap() && seat != NO_SEAT => {
                // SAFETY: shut from the start, and this thread has the lock.
                unsafe { self.account.with_shut(|account| account.change(bytes, blocks)) };
                return self.account.give(seat);
            }
            SHUT => self.account.shut(EVERYONE),
            // Someone has read meanwhile.
            owner if owner == seat => {
                // SAFETY: as in `change`. Open, since only the holder of the lock shuts it.
                unsafe { self.account.enter(seat, |account| account.change(bytes, blocks)) };
                return;
            }
            _ => {
                self.account.shut(EVERYONE);
                keep_out([&*self.account].into_iter());
            }
        }
        // SAFETY: shut for good, above or before; this thread has the lock.
        unsafe {
            self.account.with_shut(|account| {
                self.change_together(&mut opening, account, seat, bytes, blocks);
            });
        }
    }

    /// Counts under the lock, where nobody owns the account.
    fn change_together(
        &self,
        opening: &mut Opening,
        account: &mut Account,
        seat: usize,
        bytes: i64,
        blocks: i64,
    ) {
        if opening.calls > 0 || !is_cheap() {
            opening.calls = opening.calls.saturating_sub(1);
            return account.change(bytes, blocks);
        }
        let done = if seat == NO_SEAT {
            let mut desk = Desk::default();
            let done = desk.change_with(account, bytes, blocks);
            desk.give_back(account);
            done
        } else {
            let desk = &self.desks[seat];
            if desk.owner() == SHUT {
                desk.give(seat);
                opening.end = opening.end.max(seat + 1);
            }
            // SAFETY: as in `change`. Open, since only the holder of the lock shuts it.
            let done = unsafe { desk.enter(seat, |desk| desk.change_with(account, bytes, blocks)) };
            done == Some(true)
        };
        if !done {
            #[cfg(not(aquifer_fault = "spare_unseen"))]
            {
                let waited = self.shut_desks(opening, |_, desk| desk.give_back(account));
                // A thread that is alone at its desk shuts it and opens it as it likes.
                let calls = if waited { CALLS_WITHOUT_DESKS } else { 0 };
                *opening = Opening { end: 0, calls };
            }
            account.change(bytes, blocks);
        }
    }

    /// Shuts all desks and looks into each, at one moment of all threads. Whether other threads have
    /// desks, so that it took long.
    fn shut_desks(&self, opening: &Opening, mut each: impl FnMut(usize, &mut Desk)) -> bool {
        let owned = |seat: &usize| self.desks[*seat].owner() == *seat;
        let mut open = [NO_SEAT; DESKS];
        let mut count = 0;
        for seat in (0..opening.end).filter(owned) {
            self.desks[seat].shut(SHUT);
            open[count] = seat;
            count += 1;
        }
        let open = &open[..count];
        // This thread is not at its own desk.
        let waits = open.iter().any(|seat| *seat != seats::mine());
        if waits {
            keep_out(open.iter().map(|seat| &*self.desks[*seat]));
        }
        for seat in open {
            // SAFETY: shut above, by the holder of the lock; its owner is kept out, or this thread.
            unsafe { self.desks[*seat].with_shut(|desk| each(*seat, desk)) };
        }
        waits
    }

    /// The counts at one moment, not before this call. Who owns a till finds it open again.
    pub fn read(&self) -> Counters {
        let Some(opening) = self.lock() else { return Counters::default() };
        let owner = self.account.owner();
        self.account.shut(SHUT);
        if ![EVERYONE, SHUT, seats::mine()].contains(&owner) {
            keep_out([&*self.account].into_iter());
        }
        // SAFETY: shut above or before, by holders of the lock; its owner is kept out, or this thread.
        let mut counters = unsafe { self.account.with_shut(|account| account.counters()) };
        self.account.give(owner);
        let mut open = [false; DESKS];
        self.shut_desks(&opening, |seat, desk| {
            desk.bytes.add_to(&mut counters.bytes);
            desk.blocks.add_to(&mut counters.allocations);
            open[seat] = true;
        });
        for seat in (0..opening.end).filter(|seat| open[*seat]) {
            self.desks[seat].give(seat);
        }
        counters
    }

    /// `None` in the child of a fork, where there is nothing to count: the holder, or who was about to
    /// wait, may have been left behind, and then not even the release of a lock that was free returns.
    fn lock(&self) -> Option<MutexGuard<'_, Opening>> {
        if is_forked_child() { None } else { Some(self.lock.lock()) }
    }
}

impl Account {
    #[inline(always)]
    fn change(&mut self, bytes: i64, blocks: i64) {
        self.bytes.change(bytes, blocks);
        self.blocks.change(blocks, blocks);
    }

    fn counters(&self) -> Counters {
        Counters { bytes: self.bytes, allocations: self.blocks }
    }
}

impl Desk {
    /// Counts if the spare is enough.
    #[inline(always)]
    fn change(&mut self, bytes: i64, blocks: i64) -> bool {
        let enough = blocks < 0 || (self.bytes.left >= bytes && self.blocks.left >= blocks);
        if enough {
            self.bytes.change(bytes, blocks);
            self.blocks.change(blocks, blocks);
        }
        enough
    }

    /// Counts with what is lacking from the account, if it stays within its peak.
    fn change_with(&mut self, account: &mut Account, bytes: i64, blocks: i64) -> bool {
        let (more_bytes, more_blocks) = (self.bytes.lacks(bytes), self.blocks.lacks(blocks));
        let within = account.bytes.has_room(more_bytes) && account.blocks.has_room(more_blocks);
        if within {
            self.bytes.borrow(&mut account.bytes, more_bytes);
            self.blocks.borrow(&mut account.blocks, more_blocks);
            self.bytes.change(bytes, blocks);
            self.blocks.change(blocks, blocks);
        }
        within
    }

    /// Ends what the desk has of its own.
    fn give_back(&mut self, account: &mut Account) {
        self.bytes.add_to(&mut account.bytes);
        self.blocks.add_to(&mut account.blocks);
        *self = Self::default();
    }
}

impl Spare {
    #[inline(always)]
    fn change(&mut self, by: i64, blocks: i64) {
        self.left = self.left.wrapping_sub(by);
        if blocks > 0 {
            self.total = self.total.wrapping_add(by);
        }
    }

    /// What an allocation of `by` needs on top; a free needs nothing.
    fn lacks(&self, by: i64) -> i64 {
        by.saturating_sub(self.left).max(0)
    }

    fn borrow(&mut self, counter: &mut Counter, more: i64) {
        counter.current = counter.current.wrapping_add(more);
        self.left = self.left.wrapping_add(more);
    }

    fn add_to(&self, counter: &mut Counter) {
        counter.current = counter.current.wrapping_sub(self.left);
        counter.total = counter.total.wrapping_add(self.total);
    }
}

impl Counter {
    fn has_room(&self, more: i64) -> bool {
        self.current.checked_add(more).is_some_and(|sum| sum <= self.peak)
    }
}

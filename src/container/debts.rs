//! What a vector's home stream still has to wait for.
//!
//! A vector at home on one stream may be used on others. Each such use makes the other stream wait
//! for home, and leaves a *debt* here before any guard or reference to the memory exists: home must
//! wait for that stream before it uses the range in a way that conflicts. So a guard that is
//! forgotten changes nothing, and a use that is never followed by one at home costs nothing more.
//!
//! The order is paid late: one event on the other stream, recorded when home needs it, covers all
//! that the other stream was given by then. That may be more than the use itself: a false wait,
//! never a race.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicUsize, Mutex};
use std::ops::Range;

/// Someone who may have given work on the memory, and can make a home stream wait for it.
pub trait Lender {
    /// The stream that waits.
    type Home;
    /// What can go wrong.
    type Error;

    /// Makes `home` wait for all work that the lender has given so far.
    fn make_wait(&self, home: &Self::Home) -> Result<(), Self::Error>;

    /// Whether two lenders' work is in one order already.
    fn same(&self, other: &Self) -> bool;

    /// Whether making home wait for one, later, covers the other too.
    fn covers(&self, other: &Self) -> bool {
        self.same(other)
    }
}

/// The unpaid debts of one block of memory, by byte range.
#[derive(Debug)]
pub struct Debts<L> {
    list: Mutex<Vec<Debt<L>>>,
    unpaid: AtomicUsize,
}

#[derive(Debug)]
struct Debt<L> {
    lender: L,
    range: Range<usize>,
    writes: bool,
    /// Every use that it was entered for is of the whole range.
    uniform: bool,
}

impl<L> Debt<L> {
    /// Two reads never conflict, nor do ranges that do not meet.
    fn conflicts(&self, range: &Range<usize>, writes: bool) -> bool {
        (writes || self.writes) && self.range.start < range.end && range.start < self.range.end
    }

    /// Takes off what is paid when home has waited because of a conflicting use of `range`. Whether
    /// anything is still owed.
    ///
    /// A guard that the debt was entered for may give its stream more work after the wait, though
    /// none on `range`: the borrow rules keep conflicting uses apart. So a debt for one range is
    /// paid. One for several is owed on for the rest; where the rest is in two pieces, for all of
    /// it, which is a false wait at most.
    fn outlives(&mut self, range: &Range<usize>) -> bool {
        if self.uniform || cfg!(aquifer_fault = "paid_for_others") {
            return false;
        }
        if range.start <= self.range.start {
            self.range.start = range.end;
        } else if self.range.end <= range.end {
            self.range.end = range.start;
        }
        !self.range.is_empty()
    }
}

impl<L: Lender> Default for Debts<L> {
    fn default() -> Self {
        Self { list: Mutex::new(Vec::new()), unpaid: AtomicUsize::new(0) }
    }
}

impl<L: Lender> Debts<L> {
    /// Whether nothing is owed, without a lock. True for a vector that never left its home.
    pub fn is_empty(&self) -> bool {
        // Acquire: pairs with the Release in `pay`. Whoever reads zero enqueues on home after the
        // call that made home wait. A debt that another thread enters meanwhile is no conflict, or
        // the borrow rules would have ordered the two.
        let order = if cfg!(aquifer_fault = "relaxed_glance") { Relaxed } else { Acquire };
        self.unpaid.load(order) == 0
    }

    /// Pays what conflicts with a use of `range` at home: makes home wait for those lenders.
    ///
    /// # Errors
    ///
    /// The first failure; what is not paid stays owed.
    pub fn pay(&self, home: &L::Home, range: &Range<usize>, writes: bool) -> Result<(), L::Error> {
        if self.is_empty() {
            return Ok(());
        }
        self.settle(home, range, writes, None)
    }

    /// Enters a use of `range` by `borrower` on another stream than home: pays first what conflicts
    /// with it, so that home, which the borrower is about to wait for, is ordered after it.
    ///
    /// # Errors
    ///
    /// A failure to pay; then nothing is entered.
    pub fn enter(
        &self,
        home: &L::Home,
        borrower: L,
        range: Range<usize>,
        writes: bool,
    ) -> Result<(), L::Error> {
        if !self.is_empty() {
            self.settle(home, &range, writes, Some(&borrower))?;
        }
        self.owe(borrower, range, writes);
        Ok(())
    }

    /// Enters a use without paying anything before it.
    pub fn owe(&self, borrower: L, range: Range<usize>, writes: bool) {
        if cfg!(aquifer_fault = "debt_forgotten") && !writes {
            return;
        }
        let mut list = self.list.lock();
        let known =
            list.iter_mut().find(|debt| debt.writes == writes && debt.lender.covers(&borrower));
        match known {
            // One debt a stream and kind: a range that spans both uses is owed for both.
            #[cfg(aquifer_fault = "range_not_joined")]
            Some(_) => {}
            #[cfg(not(aquifer_fault = "range_not_joined"))]
            Some(debt) => {
                debt.uniform &= debt.range == range;
                debt.range = debt.range.start.min(range.start)..debt.range.end.max(range.end);
            }
            None => {
                list.push(Debt { lender: borrower, range, writes, uniform: true });
                self.unpaid.store(list.len(), Release);
            }
        }
    }

    /// The lock is held over the driver calls: a second thread that finds a debt gone must find
    /// home waiting already. It is the vector's own lock, and a vector that stays home never takes
    /// it.
    fn settle(
        &self,
        home: &L::Home,
        range: &Range<usize>,
        writes: bool,
        not: Option<&L>,
    ) -> Result<(), L::Error> {
        // Dropped after the lock, whichever way out: a lender may be the last handle on its stream.
        let mut paid = Vec::new();
        let mut list = self.list.lock();
        let mut index = 0;
        while let Some(debt) = list.get_mut(index) {
            // The borrower's own earlier work comes before its next in its own order.
            let same = if cfg!(aquifer_fault = "covered_as_own") { L::covers } else { L::same };
            let own = not.is_some_and(|own| same(own, &debt.lender));
            if own || !debt.conflicts(range, writes) {
                if cfg!(aquifer_fault = "read_debt_dropped") && !own && !debt.writes {
                    drop(list.swap_remove(index));
                    continue;
                }
                index += 1;
                continue;
            }
            #[cfg(aquifer_fault = "failure_forgets")]
            if let Err(error) = debt.lender.make_wait(home) {
                drop(list.swap_remove(index));
                return Err(error);
            }
            #[cfg(not(any(aquifer_fault = "publish_before_wait", aquifer_fault = "skip_wait")))]
            debt.lender.make_wait(home)?;
            if debt.outlives(range) {
                index += 1;
                continue;
            }
            paid.push(list.swap_remove(index));
        }
        let order = if cfg!(aquifer_fault = "relaxed_payment") { Relaxed } else { Release };
        self.unpaid.store(list.len(), order);
        #[cfg(aquifer_fault = "publish_before_wait")]
        {
            drop(list);
            for debt in paid {
                debt.lender.make_wait(home)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[derive(Debug, Clone, PartialEq)]
    struct Named(&'static str);

    crate::sync::trusted::thread_local! {
        static FAIL: RefCell<bool> = const { RefCell::new(false) };
    }

    impl Lender for Named {
        type Home = RefCell<Vec<&'static str>>;
        type Error = ();

        fn make_wait(&self, home: &Self::Home) -> Result<(), ()> {
            if FAIL.with(|fail| *fail.borrow()) {
                return Err(());
            }
            home.borrow_mut().push(self.0);
            Ok(())
        }

        fn same(&self, other: &Self) -> bool {
            self == other
        }
    }

    #[test]
    fn only_what_conflicts_is_paid() {
        let home = RefCell::default();
        let debts = Debts::default();
        debts.enter(&home, Named("reader"), 0..8, false).unwrap();
        debts.pay(&home, &(0..8), false).unwrap();
        assert!(home.borrow().is_empty(), "two reads");
        debts.enter(&home, Named("writer"), 16..24, true).unwrap();
        debts.pay(&home, &(8..16), true).unwrap();
        assert!(home.borrow().is_empty(), "elsewhere");
        debts.pay(&home, &(4..20), true).unwrap();
        assert_eq!(home.take(), ["reader", "writer"]);
        debts.pay(&home, &(0..24), true).unwrap();
        assert!(home.borrow().is_empty() && debts.is_empty(), "paid once");
    }

    #[test]
    fn a_borrower_waits_for_others_and_not_for_itself() {
        let home = RefCell::default();
        let debts = Debts::default();
        debts.enter(&home, Named("a"), 0..8, true).unwrap();
        debts.enter(&home, Named("a"), 0..8, true).unwrap();
        assert!(home.borrow().is_empty(), "its own order");
        debts.enter(&home, Named("b"), 0..8, false).unwrap();
        assert_eq!(home.take(), ["a"], "a's write is before b's read, through home");
        debts.enter(&home, Named("c"), 0..8, false).unwrap();
        debts.enter(&home, Named("b"), 4..12, false).unwrap();
        debts.pay(&home, &(8..12), true).unwrap();
        assert_eq!(home.take(), ["b"], "one debt a stream, over both ranges");
    }

    #[test]
    fn a_payment_for_one_part_leaves_the_others_owed() {
        let home = RefCell::default();
        let debts = Debts::default();
        // Two guards on one stream; the second is dropped and its half used at home, and only then
        // is the first one's stream given work.
        debts.enter(&home, Named("a"), 0..4, true).unwrap();
        debts.enter(&home, Named("a"), 4..8, true).unwrap();
        debts.pay(&home, &(4..8), true).unwrap();
        assert_eq!(home.take(), ["a"]);
        debts.pay(&home, &(4..8), true).unwrap();
        assert!(home.borrow().is_empty(), "that half is paid");
        debts.pay(&home, &(0..8), true).unwrap();
        assert_eq!(home.take(), ["a"], "and the other is not");
        assert!(debts.is_empty());
        // The same around a middle.
        debts.enter(&home, Named("a"), 0..2, false).unwrap();
        debts.enter(&home, Named("a"), 6..8, false).unwrap();
        debts.pay(&home, &(3..5), true).unwrap();
        home.take();
        debts.pay(&home, &(7..8), true).unwrap();
        assert_eq!(home.take(), ["a"]);
        debts.pay(&home, &(0..1), true).unwrap();
        assert_eq!(home.take(), ["a"]);
    }

    #[test]
    fn a_failure_leaves_the_debt() {
        let home = RefCell::default();
        let debts = Debts::default();
        debts.enter(&home, Named("a"), 0..8, true).unwrap();
        FAIL.with(|fail| *fail.borrow_mut() = true);
        assert!(debts.pay(&home, &(0..8), false).is_err());
        assert!(debts.enter(&home, Named("b"), 0..8, false).is_err());
        FAIL.with(|fail| *fail.borrow_mut() = false);
        debts.pay(&home, &(0..8), false).unwrap();
        assert_eq!(home.take(), ["a"]);
    }
}

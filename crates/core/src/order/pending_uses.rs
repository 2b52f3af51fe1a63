//! Uses of a block on other streams that the home stream has not waited for.
//!
//! A vector at home on one stream may be used on others. Each such use makes the other stream wait for home and is
//! recorded here, before any guard or reference to the memory exists. So a guard that is forgotten changes nothing.
//! Home waits for a recorded use before its next conflicting one, as Linux's `dma_resv` does with the fences of a
//! buffer.
//!
//! A use holds no event. The event is recorded on the other stream when home has to wait. It covers all that the stream
//! was given by then, which may be more than the use (a false wait, never a race). A use that nothing conflicts with
//! costs no event.
//!
//! # State table
//!
//! The table is of one timeline and one kind of use (read or write).
//!
//! | state | `record_use` | `wait_conflicting` that conflicts |
//! | --- | --- | --- |
//! | not listed | listed, uniform | - |
//! | listed, uniform: all uses are of one range | the same range: no change; another: listed, mixed | not listed |
//! | listed, mixed: the range spans all uses | the range grows | the range without the waited part; not listed if nothing is left |
//!
//! | word | written | read |
//! | --- | --- | --- |
//! | `list` | under its lock | under its lock |
//! | `count` | under the list's lock, after home waits | anywhere |
//!
//! - `INV-1`. A use leaves the list only after home waits for its timeline. A failed wait leaves it.
//! - `INV-2`. The `count` drops (Release) after home waits. A thread that reads 0 (Acquire) enqueues on home behind
//!   that wait.
//! - `INV-3`. A use is listed before its stream is given work on the memory.

#![allow(unreachable_pub, reason = "the models of loom_tests reach it through `models`")]

use crate::sync::Ordering::{Acquire, Release};
use crate::sync::{AtomicUsize, WaitMutex};
use std::ops::Range;

/// The work that a use is a part of, and that home can be made to wait for.
pub trait Timeline {
    /// Whether the work of both is in one order by itself.
    fn same(&self, other: &Self) -> bool;

    /// Whether a later wait for this one is a wait for the other too.
    fn covers(&self, other: &Self) -> bool {
        self.same(other)
    }
}

/// The uses of one block, by byte range, that home has not waited for.
#[derive(Debug)]
pub struct PendingUses<T> {
    list: WaitMutex<Vec<TimelineUses<T>>>,
    count: AtomicUsize,
}

#[derive(Debug)]
struct TimelineUses<T> {
    on: T,
    range: Range<usize>,
    writes: bool,
    /// Each use that it stands for is of the whole range.
    uniform: bool,
}

impl<T> TimelineUses<T> {
    /// Two reads never conflict, nor do ranges that do not meet.
    fn conflicts(&self, range: &Range<usize>, writes: bool) -> bool {
        (writes || self.writes) && self.range.start < range.end && range.start < self.range.end
    }

    /// Takes `range` off, which home has waited for. Returns whether uses are left.
    ///
    /// A guard may give its stream more work after the wait, but none on `range`: the borrow rules
    /// keep conflicting uses apart. So a uniform use ends. A mixed one stays for the rest; where the
    /// rest is in two pieces, for all of it, which is a false wait at most.
    fn retain_outside(&mut self, range: &Range<usize>) -> bool {
        if self.uniform {
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

impl<T: Timeline> Default for PendingUses<T> {
    fn default() -> Self {
        Self { list: WaitMutex::new(Vec::new()), count: AtomicUsize::new(0) }
    }
}

impl<T: Timeline> PendingUses<T> {
    /// Whether no use is pending, without a lock. True for a vector that never left its home.
    pub fn is_empty(&self) -> bool {
        // Acquire: INV-2. A use that another thread records meanwhile does not conflict: the borrow
        // rules would have ordered the two.
        self.count.load(Acquire) == 0
    }

    /// Makes home wait for each use that conflicts with a use of `range` at home. `wait` makes home
    /// wait for all that a timeline was given so far.
    ///
    /// # Errors
    ///
    /// The error is the first failure. Uses that home does not wait for stay pending.
    pub fn wait_conflicting<E>(
        &self,
        range: &Range<usize>,
        writes: bool,
        wait: impl Fn(&T) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.is_empty() {
            return Ok(());
        }
        self.lock_and_wait(range, writes, None, wait)
    }

    /// Records a use of `range` on another stream than home, after home waits for each use that conflicts with it. The
    /// other stream waits for home next, so it is ordered after them all.
    ///
    /// # Errors
    ///
    /// The error is the first failure. Then no use is recorded.
    pub fn wait_and_record<E>(
        &self,
        on: T,
        range: Range<usize>,
        writes: bool,
        wait: impl Fn(&T) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.is_empty() {
            self.lock_and_wait(&range, writes, Some(&on), wait)?;
        }
        self.record_use(on, range, writes);
        Ok(())
    }

    /// Records a use without a wait.
    pub fn record_use(&self, on: T, range: Range<usize>, writes: bool) {
        let mut list = self.list.lock();
        let known = list.iter_mut().find(|known| known.writes == writes && known.on.covers(&on));
        match known {
            // One entry for a timeline and kind, of a range that spans both uses.
            Some(known) => {
                known.uniform &= known.range == range;
                known.range = known.range.start.min(range.start)..known.range.end.max(range.end);
            }
            None => {
                list.push(TimelineUses { on, range, writes, uniform: true });
                self.count.store(list.len(), Release);
            }
        }
    }

    /// Waits under the lock, which is held over the driver calls. A second thread that finds a use gone must find home
    /// waiting already. The lock is the vector's own, and a vector that stays home never takes it.
    fn lock_and_wait<E>(
        &self,
        range: &Range<usize>,
        writes: bool,
        not: Option<&T>,
        wait: impl Fn(&T) -> Result<(), E>,
    ) -> Result<(), E> {
        // Dropped after the lock, on every way out: a use may hold the last handle on its stream.
        let mut waited = Vec::new();
        let mut list = self.list.lock();
        let mut index = 0;
        while let Some(pending) = list.get_mut(index) {
            // Earlier work of the same timeline comes before its next by itself.
            let own = not.is_some_and(|own| own.same(&pending.on));
            if own || !pending.conflicts(range, writes) {
                index += 1;
                continue;
            }
            wait(&pending.on)?;
            if pending.retain_outside(range) {
                index += 1;
                continue;
            }
            waited.push(list.swap_remove(index));
        }
        self.count.store(list.len(), Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

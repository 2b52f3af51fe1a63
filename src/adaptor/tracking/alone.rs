//! What the only thread that calls has for its own, until a second one calls.

use crate::adaptor::seats::{self, NO_SEAT};
use crate::adaptor::till::{EVERYONE, SHUT, Till, is_cheap, keep_out};
use crate::sync::{CachePadded, Mutex};

/// A value that its first user enters without a locked instruction. The second ends that for good: it
/// hands the value on to where all can reach it.
#[derive(Debug, Default)]
pub struct Alone<T: Default> {
    till: CachePadded<Till<T>>,
    /// Held by who changes the till's owner, or keeps it out.
    turn: CachePadded<Mutex<()>>,
}

impl<T: Default> Alone<T> {
    /// The way in of who has come before. `None` of others, and while someone looks.
    ///
    /// # Safety
    ///
    /// `body` calls nothing that may come here.
    #[inline(always)]
    pub unsafe fn enter<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let seat = seats::mine();
        if self.till.owner() != seat {
            return None;
        }
        // SAFETY: the seat is this thread's, and the till has one owner for good; `body` does not come
        // back, as the caller promises.
        unsafe { self.till.enter(seat, body) }
    }

    /// The way in of who comes first, or finds that someone looks. `None` when it is everyone's: if
    /// this call makes it so, after it has given the value to `share`.
    ///
    /// # Safety
    ///
    /// `body` calls nothing that may come here.
    pub unsafe fn claim<R>(
        &self,
        body: impl FnOnce(&mut T) -> R,
        share: impl FnOnce(T),
    ) -> Option<R> {
        if self.till.is_everyones() {
            return None;
        }
        let seat = seats::take();
        let _turn = self.turn.lock();
        match self.till.owner() {
            EVERYONE => None,
            SHUT if is_cheap() && seat != NO_SEAT => {
                // SAFETY: shut since the start, or by one who looked and panicked, after `keep_out`;
                // this thread has the lock.
                let result = unsafe { self.till.with_shut(body) };
                self.till.give(seat);
                Some(result)
            }
            // SAFETY: as in `enter`. It is open: only who has the lock shuts it.
            owner if owner == seat => unsafe { self.till.enter(seat, body) },
            owner => {
                self.till.shut(SHUT);
                if owner != SHUT {
                    keep_out([&*self.till].into_iter());
                }
                // SAFETY: shut above or before, and its owner is kept out; this thread has the lock.
                share(unsafe { self.till.with_shut(std::mem::take) });
                self.till.give(EVERYONE);
                None
            }
        }
    }

    /// Calls `body` while nobody is inside or enters. `None` if it is everyone's.
    pub fn look<R>(&self, body: impl FnOnce(&T) -> R) -> Option<R> {
        let _turn = self.turn.lock();
        let owner = self.till.owner();
        if owner == EVERYONE {
            return None;
        }
        self.till.shut(SHUT);
        #[cfg(not(aquifer_fault = "looks_at_once"))]
        if ![SHUT, seats::mine()].contains(&owner) {
            keep_out([&*self.till].into_iter());
        }
        // SAFETY: shut above, and its owner is kept out, or is this thread, which is not inside; this
        // thread has the lock.
        let result = unsafe { self.till.with_shut(|value| body(value)) };
        self.till.give(owner);
        Some(result)
    }
}

//! Counters that a thread opens for the calls of all threads, nested.
//!
//! The calls change the innermost scope alone, whatever is open. So a call is as fast with scopes as without.

use super::counters::Counters;
use super::shared::SharedCounters;
use crate::driver::is_forked_child;
use crate::sync::trusted::Mutex;
use std::fmt;

/// Counters of all threads, and the scopes that are open in them.
#[derive(Default)]
pub(super) struct SharedScopes {
    /// Of the innermost scope. Of all calls where none is open.
    innermost: SharedCounters,
    /// What was counted before each open scope, from the beginning of the one around it. Its lock is held over changes and
    /// reads of both.
    before: Mutex<Vec<Counters>>,
}

impl SharedScopes {
    /// What a call changes.
    #[inline(always)]
    pub(super) fn counters(&self) -> &SharedCounters {
        &self.innermost
    }

    /// Opens a scope, and returns the counters of what is around it. Not for the child of a fork.
    pub(super) fn push(&self) -> Counters {
        let mut before = self.before.lock();
        let around = self.innermost.exchange(std::mem::take);
        before.push(around);
        around
    }

    /// Ends the innermost scope, and adds its counters to what is around it. Not for the child of a fork.
    pub(super) fn pop(&self) -> Option<Counters> {
        let mut before = self.before.lock();
        let mut around = before.pop()?;
        Some(self.innermost.exchange(|counters| {
            let ended = *counters;
            around.fold(&ended);
            *counters = around;
            ended
        }))
    }

    /// The counters of the innermost scope.
    pub(super) fn read_innermost(&self) -> Option<Counters> {
        // There a thread that is gone may have the lock.
        if is_forked_child() {
            return None;
        }
        let before = self.before.lock();
        (!before.is_empty()).then(|| self.innermost.read())
    }

    /// The counters of all calls. Zero in the child of a fork.
    pub(super) fn read(&self) -> Counters {
        if is_forked_child() {
            return Counters::default();
        }
        let before = self.before.lock();
        let later = self.innermost.read();
        let mut all = Counters::default();
        before.iter().chain([&later]).for_each(|part| all.fold(part));
        all
    }
}

impl fmt::Debug for SharedScopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

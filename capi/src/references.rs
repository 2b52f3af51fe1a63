//! The users of a handle that is counted.
//!
//! `loom_tests/c_library.rs` explores it.

use crate::atomics::{AtomicUsize, Ordering};

/// The process keeps it, besides its users.
const KEPT: usize = 1 << (usize::BITS - 1);

/// How many users a handle has, and whether the process keeps it.
#[derive(Debug)]
pub(crate) struct References(AtomicUsize);

/// What a release has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// Others use it.
    Used,
    /// It was the last user.
    Last,
    /// None was left to be counted off: the process keeps it.
    Kept,
}

impl References {
    /// With one user.
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(1))
    }

    /// The process keeps it in place of its one user.
    pub(crate) fn keep(&self) {
        self.0.fetch_add(KEPT - 1, Ordering::Relaxed);
    }

    /// Counts one user more. The caller is one.
    pub(crate) fn retain(&self) {
        // Relaxed: the caller has a reference.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one user less.
    pub(crate) fn release(&self) -> Released {
        let less = |users: usize| if users == KEPT { None } else { users.checked_sub(1) };
        // AcqRel: what others did with it comes before the end.
        match self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less) {
            Ok(1) => Released::Last,
            Ok(_) => Released::Used,
            Err(_) => Released::Kept,
        }
    }
}

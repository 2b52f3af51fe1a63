//! Where in the program a call comes from, for the reports of simulated devices.
//!
//! Each public function that gives a device work is `#[track_caller]` and begins with [`CallSite::enter`].
//! The line is the thread's until that function returns, so what it calls needs no parameter for it. A
//! function with a closure of the user enters around its own work alone.

use crate::sync::trusted::{AtomicBool, Ordering, thread_local};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

/// Whether a simulated device was opened. Without one nothing is noted.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: Cell<Option<Site>> = const { Cell::new(None) };
}

/// The path of this file below the crate's sources.
const THIS_FILE: &str = "driver/sim/check/site.rs";

/// A line of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site(&'static Location<'static>);

impl Site {
    /// The line that gives what the calling thread is about to give a device, if it is known.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.get()
    }

    pub(crate) fn location(self) -> &'static Location<'static> {
        self.0
    }

    /// Whether it is a line of this crate: of a call that no function has entered for, or of the table of a
    /// trait object.
    fn is_own(self) -> bool {
        // A compiler on Windows mixes both separators, and the length is the same.
        let root = file!().len().saturating_sub(THIS_FILE.len());
        file!().get(..root).is_some_and(|root| self.0.file().starts_with(root))
    }
}

/// By address: to compare the paths would cost each merge of two segments.
impl PartialEq for Site {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Site {}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Has the calling thread give work in the name of a line until it is dropped.
#[must_use = "dropped at once, it names nothing"]
#[derive(Debug)]
pub(crate) struct CallSite {
    /// What was current before, if this has changed it.
    before: Option<Option<Site>>,
    /// It is the thread's.
    stays: PhantomData<*const ()>,
}

impl CallSite {
    /// Names the line of the caller's caller, unless one is named already: functions of the crate call each
    /// other, and the first of them is the program's.
    #[inline]
    #[track_caller]
    pub(crate) fn enter() -> Self {
        if Self::is_wanted() { Self::enter_at(Location::caller()) } else { Self::unchanged() }
    }

    #[cold]
    fn enter_at(location: &'static Location<'static>) -> Self {
        let site = Site(location);
        if CURRENT.get().is_some() || site.is_own() {
            return Self::unchanged();
        }
        Self::change(Some(site))
    }

    /// Names no line: for drops that an unrelated call runs.
    pub(crate) fn leave() -> Self {
        Self::change(None)
    }

    fn change(site: Option<Site>) -> Self {
        Self { before: Some(CURRENT.replace(site)), stays: PhantomData }
    }

    #[inline]
    fn unchanged() -> Self {
        Self { before: None, stays: PhantomData }
    }

    /// Whether a simulated device was opened.
    #[inline]
    pub(crate) fn is_wanted() -> bool {
        // Relaxed: a thread got its device after that was opened.
        IS_WANTED.load(Ordering::Relaxed)
    }

    /// A simulated device is opened.
    pub(crate) fn want() {
        IS_WANTED.store(true, Ordering::Relaxed);
    }
}

impl Drop for CallSite {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            CURRENT.set(before);
        }
    }
}

#[cfg(test)]
mod tests;

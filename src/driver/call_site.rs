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
const THIS_FILE: &str = "driver/call_site.rs";

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
    /// It has named the line. One flag, and calls out of line for the rest: this is inlined into constructors
    /// of vectors.
    is_outermost: bool,
    /// It is the thread's.
    stays: PhantomData<*const ()>,
}

impl CallSite {
    /// Names the line of the caller's caller, unless one is named already: functions of the crate call each
    /// other, and the first of them is the program's.
    #[inline]
    #[track_caller]
    pub(crate) fn enter() -> Self {
        let is_outermost = Self::is_wanted() && enter_at(Location::caller());
        Self { is_outermost, stays: PhantomData }
    }

    /// Runs `body` in the name of the line of the caller's caller, as [`enter`](Self::enter). For constructors
    /// of vectors: without a simulated device there is nothing to be dropped behind the vector, which would be
    /// moved once more for it.
    #[inline]
    #[track_caller]
    pub(crate) fn run<R>(body: impl FnOnce() -> R) -> R {
        if Self::is_wanted() { run_at(Location::caller(), body) } else { body() }
    }

    /// Whether a simulated device was opened.
    #[inline]
    pub(crate) fn is_wanted() -> bool {
        // Relaxed: a thread got its device after that was opened.
        IS_WANTED.load(Ordering::Relaxed)
    }

    /// Whether the calling thread is inside of a call of the program whose line is known. A drop is no such call.
    pub(crate) fn is_inside() -> bool {
        CURRENT.get().is_some()
    }

    /// A simulated device is opened.
    pub(crate) fn want() {
        IS_WANTED.store(true, Ordering::Relaxed);
    }
}

impl Drop for CallSite {
    #[inline]
    fn drop(&mut self) {
        if self.is_outermost {
            end();
        }
    }
}

#[cold]
#[inline(never)]
fn run_at<R>(location: &'static Location<'static>, body: impl FnOnce() -> R) -> R {
    let _site = CallSite { is_outermost: enter_at(location), stays: PhantomData };
    body()
}

/// Whether the line is the thread's from now on.
#[cold]
fn enter_at(location: &'static Location<'static>) -> bool {
    let site = Site(location);
    let is_outermost = CURRENT.get().is_none() && !site.is_own();
    if is_outermost {
        CURRENT.set(Some(site));
    }
    is_outermost
}

#[cold]
fn end() {
    CURRENT.set(None);
}

/// Has the calling thread give work in the name of no line until it is dropped: for drops that an unrelated
/// call runs.
#[must_use = "dropped at once, it does nothing"]
#[derive(Debug)]
pub(crate) struct NoCallSite {
    before: Option<Site>,
    /// It is the thread's.
    stays: PhantomData<*const ()>,
}

impl NoCallSite {
    pub(crate) fn enter() -> Self {
        Self { before: CURRENT.take(), stays: PhantomData }
    }
}

impl Drop for NoCallSite {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(test)]
mod tests;

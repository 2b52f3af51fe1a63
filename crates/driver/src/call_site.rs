//! Where in the program a call comes from, for the reports of simulated devices.
//!
//! Each public function that gives a device work is `#[track_caller]` and begins with [`CallSite::enter`].
//! The line is the thread's until that function returns, so the functions that it calls need no parameter for it. A
//! function with a closure of the user enters around its own work alone.

use crate::sync::LazyLock;
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

/// The path of this file below its crate.
const THIS_FILE: &str = "/src/call_site.rs";

/// The crates below `aquifer`, whose lines are no lines of the program.
pub const OWN_CRATES: [&str; 13] = [
    "collective",
    "core",
    "driver",
    "events",
    "mr",
    "nccl",
    "nvrtc",
    "nvtx",
    "plug",
    "pool",
    "ptx",
    "sim",
    "sync",
];

/// The files of our crates, by what surrounds a crate's name in their paths: `crates/` in the repository, `aquifer-` and
/// `-0.1.0` in a registry.
#[derive(Debug)]
pub struct OwnFiles<'a> {
    before: &'a str,
    after: &'a str,
}

impl<'a> OwnFiles<'a> {
    /// Beside the crate `name`, whose folder is `root`.
    pub fn beside(root: &'a str, name: &str) -> Option<Self> {
        root.rsplit_once(name).map(|(before, after)| Self { before, after })
    }

    /// Whether `path` is one of them.
    pub fn contain(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix(self.before) else { return false };
        OWN_CRATES.iter().any(|one| {
            let rest = path.strip_prefix(one).and_then(|path| path.strip_prefix(self.after));
            rest.is_some_and(|path| path.starts_with(['/', '\\']))
        })
    }
}

/// Those beside this crate.
static OWN_FILES: LazyLock<Option<OwnFiles<'static>>> = LazyLock::new(|| {
    // A compiler on Windows mixes both separators, and the length is the same.
    let end = file!().len().checked_sub(THIS_FILE.len())?;
    OwnFiles::beside(file!().get(..end)?, "driver")
});

/// A line of the program.
#[derive(Clone, Copy, Debug)]
pub struct Site(&'static Location<'static>);

impl Site {
    /// The line in whose name the calling thread gives a device work, if it is known.
    pub fn current() -> Option<Self> {
        CURRENT.get()
    }

    pub fn location(self) -> &'static Location<'static> {
        self.0
    }

    /// Whether the line is one of aquifer's own. Then no function has entered for the call, or the line is that of the
    /// table of a trait object.
    fn is_own(self) -> bool {
        OWN_FILES.as_ref().is_some_and(|own| own.contain(self.0.file()))
    }
}

/// Compares by address, since comparing the paths would cost each merge of two segments.
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
pub struct CallSite {
    /// Whether this guard has named the line. It is one flag, and calls out of line do the rest, since the guard is
    /// inlined into constructors of vectors.
    is_outermost: bool,
    /// Keeps the guard on its thread.
    stays: PhantomData<*const ()>,
}

impl CallSite {
    /// Names the line of the caller's caller, unless one is named already. Functions of the crate call each other, and
    /// the program called the first of them.
    #[inline]
    #[track_caller]
    pub fn enter() -> Self {
        let is_outermost = Self::is_wanted() && enter_at(Location::caller());
        Self { is_outermost, stays: PhantomData }
    }

    /// Runs `body` in the name of the line of the caller's caller, as [`enter`](Self::enter). Constructors of vectors
    /// use it. A guard that is dropped behind the vector has the vector moved once more, and without a simulated device
    /// there is none here.
    #[inline]
    #[track_caller]
    pub fn run<R>(body: impl FnOnce() -> R) -> R {
        if Self::is_wanted() { run_at(Location::caller(), body) } else { body() }
    }

    /// Whether a simulated device was opened.
    #[inline]
    pub fn is_wanted() -> bool {
        // Relaxed: a thread got its device after that was opened.
        IS_WANTED.load(Ordering::Relaxed)
    }

    /// Whether the calling thread is inside of a call of the program whose line is known. A drop is no such call.
    pub fn is_inside() -> bool {
        CURRENT.get().is_some()
    }

    /// Notes that a simulated device is opened.
    pub fn want() {
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

/// Names the line for the thread, unless one is named. Returns whether it did.
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

/// Has the calling thread give work in the name of no line until it is dropped. It is for drops that an unrelated call
/// runs.
#[must_use = "dropped at once, it does nothing"]
#[derive(Debug)]
pub struct NoCallSite {
    before: Option<Site>,
    /// Keeps the guard on its thread.
    stays: PhantomData<*const ()>,
}

impl NoCallSite {
    pub fn enter() -> Self {
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

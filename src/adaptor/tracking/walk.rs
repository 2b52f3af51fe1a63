//! The addresses that the functions on the stack return to.
//!
//! An unwinder looks up, for each frame, what the compiler says of the place where the frame is, and
//! runs the small program that it finds: about 100 ns a frame. Nearly always it says the same: the
//! caller's frame begins so many bytes above one of two registers. On Linux x86-64 a thread remembers
//! that for the places where it has been, in [`steps`]; whatever is not of that kind, and every other
//! system, is left to the unwinder of the `backtrace` crate.

use crate::sync::trusted::thread_local;
use std::cell::Cell;

#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64", not(miri)))]
mod rules;
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64", not(miri)))]
mod steps;

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64", not(miri))))]
mod steps {
    use super::Addresses;

    pub(super) struct Steps;

    impl Steps {
        pub(super) fn new() -> Self {
            Self
        }

        pub(super) fn walk(&mut self, _: &mut Addresses) -> Option<()> {
            None
        }
    }
}

use steps::Steps;

/// Frames that are noted, the innermost ones.
const MOST: usize = 128;

/// Where a walk writes.
struct Addresses {
    found: [usize; MOST],
    count: usize,
}

impl Addresses {
    /// Whether there was room for it.
    fn push(&mut self, address: usize) -> bool {
        let Some(place) = self.found.get_mut(self.count) else { return false };
        *place = address;
        self.count += 1;
        true
    }
}

/// What a thread keeps for its walks.
struct Walker {
    addresses: Addresses,
    steps: Steps,
}

thread_local! {
    /// Taken out while a walk runs: a walk within it, of an allocator for instance, has its own.
    static WALKER: Cell<Option<Box<Walker>>> = const { Cell::new(None) };
}

impl Walker {
    fn new() -> Self {
        Self { addresses: Addresses { found: [0; MOST], count: 0 }, steps: Steps::new() }
    }

    fn walk(&mut self) -> &[usize] {
        let Self { addresses, steps } = self;
        addresses.count = 0;
        if steps.walk(addresses).is_none() {
            addresses.count = 0;
            // The outermost may be followed by nothing.
            backtrace::trace(|frame| !frame.ip().is_null() && addresses.push(frame.ip() as usize));
        }
        addresses.found.get(..addresses.count).unwrap_or_default()
    }
}

/// Calls `body` with the addresses of the calling thread's stack, the innermost first.
pub(super) fn with_addresses<R>(body: impl FnOnce(&[usize]) -> R) -> R {
    let known = WALKER.try_with(Cell::take).ok().flatten();
    let mut walker = known.unwrap_or_else(|| Box::new(Walker::new()));
    let result = body(walker.walk());
    // A thread that ends keeps none.
    let _ = WALKER.try_with(|here| here.set(Some(walker)));
    result
}

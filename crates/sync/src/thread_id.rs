//! Numbers for the threads of the process: one load on the warm way, where the standard library's
//! `ThreadId` is a call.

use super::thread_local;
use super::trusted::unique;
use std::cell::Cell;

/// No thread's number: what `current` gives on a thread that has none yet.
pub const NO_THREAD: u64 = 0;

thread_local! {
    /// Without a destructor, so that it is there in the destructors of other thread locals.
    static ID: Cell<u64> = const { Cell::new(NO_THREAD) };
}

/// The calling thread's number, if [`assign`] gave it one.
#[inline(always)]
pub fn current_or_none() -> u64 {
    ID.try_with(Cell::get).unwrap_or(NO_THREAD)
}

/// The calling thread's number. No other thread of the process has it, nor will one.
pub fn assign() -> u64 {
    match current_or_none() {
        NO_THREAD => {
            let id = unique();
            let _ = ID.try_with(|own| own.set(id));
            id
        }
        id => id,
    }
}

#[cfg(test)]
mod tests;

//! Calls of the program's own code from a resource, whose methods do not panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a callback, a `Write` or a drop of the program's: `None` if it panicked. Blocks are freed
/// while a thread unwinds, where a second panic would abort the process.
pub(super) fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(payload) => {
            // Leaked: its drop may panic in turn.
            std::mem::forget(payload);
            None
        }
    }
}

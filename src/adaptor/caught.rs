//! Calls of the program's own code from a resource, whose methods do not panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the call gives; `None` if it panicked. For callbacks and for words to a subscriber: blocks
/// are freed while others unwind, and a panic on the way would cost the block.
pub(super) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(thrown) => {
            // Not dropped: that may panic in turn.
            std::mem::forget(thrown);
            None
        }
    }
}

//! Calls of the program's own code from where no panic may come out.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a callback, a `Write` or a drop of the program's: `None` if it panicked. Blocks are freed
/// while a thread unwinds, where a second panic would abort the process.
pub fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_panic_text(call).ok()
}

/// As [`catch_panic`], with the text that was thrown, if it is one.
pub fn catch_panic_text<T>(call: impl FnOnce() -> T) -> Result<T, Option<String>> {
    catch_unwind(AssertUnwindSafe(call)).map_err(text_of)
}

fn text_of(payload: Box<dyn Any + Send>) -> Option<String> {
    let payload = match payload.downcast::<String>() {
        Ok(text) => return Some(*text),
        Err(payload) => payload,
    };
    let text = payload.downcast_ref::<&str>().map(|text| String::from(*text));
    // Leaked: its drop may panic in turn.
    std::mem::forget(payload);
    text
}

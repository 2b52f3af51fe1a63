//! Panics of a stream's host functions, until a wait for the stream reports them.

use crate::error::{Error, ErrorKind, Result};
use crate::sync::trusted::{AtomicBool, Mutex, Ordering};
use std::fmt;

/// The panics that no wait has reported.
#[derive(Debug, Default)]
pub(super) struct HostPanics {
    /// Whether there are any, without the lock.
    any: AtomicBool,
    panics: Mutex<Panics>,
}

#[derive(Debug, Default)]
struct Panics {
    /// What the first one said. Only the first is kept, so that a stream that nobody waits for does not collect them.
    first: Option<String>,
    /// Those after it.
    more: usize,
}

impl HostPanics {
    pub(super) fn add(&self, text: String) {
        let mut panics = self.panics.lock();
        match panics.first {
            None => panics.first = Some(text),
            Some(_) => panics.more += 1,
        }
        // Relaxed: a wait that comes after the function is ordered by the driver.
        self.any.store(true, Ordering::Relaxed);
    }

    /// An error if there were panics since the last call.
    pub(super) fn report(&self, stream: impl fmt::Display) -> Result<()> {
        if !self.any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Panics { first, more } = {
            let mut panics = self.panics.lock();
            self.any.store(false, Ordering::Relaxed);
            std::mem::take(&mut *panics)
        };
        // Another thread has reported it.
        let Some(text) = first else { return Ok(()) };
        let others = match more {
            0 => String::new(),
            more => format!(", and {more} more after it"),
        };
        let what = format!("waiting for {stream}: a host function of it panicked{others}: {text}");
        Err(Error::new(ErrorKind::Panicked, what).with_advice(
            "the stream itself went on, and is done with all that it was given: mend the function",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::HostPanics;

    #[test]
    fn the_first_panic_is_told_once_with_the_number_of_the_others() {
        let panics = HostPanics::default();
        assert!(panics.report("a stream").is_ok());
        panics.add("first".into());
        panics.add("second".into());
        let error = panics.report("a stream").unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Panicked);
        assert!(error.to_string().contains("panicked, and 1 more after it: first"), "{error}");
        assert!(panics.report("a stream").is_ok());
    }
}

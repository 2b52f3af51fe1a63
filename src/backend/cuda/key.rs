//! A number for each context that is never used again.
//!
//! The driver gives a context's handle to the next one when it is gone: releasing a primary context
//! and retaining it again gives the same handle for new state. So drivers share a number as long as
//! one of them keeps the context alive, and the next one gets another.

use super::library::Handle;
use crate::sync::trusted::{Mutex, unique};
use crate::sync::{Arc, Weak};

/// The number of one context, shared by all drivers of it.
#[derive(Debug)]
pub(super) struct ContextKey(u64);

impl ContextKey {
    /// The key of a context that the caller keeps alive for as long as the key.
    pub(super) fn of(context: Handle) -> Arc<Self> {
        static LIVE: Mutex<Vec<(Handle, Weak<ContextKey>)>> = Mutex::new(Vec::new());
        let mut live = LIVE.lock();
        live.retain(|(_, key)| key.strong_count() > 0);
        // A key may lose its last owner between `retain` and here, so its life is asked again.
        if let Some(key) =
            live.iter().filter(|(handle, _)| *handle == context).find_map(|(_, key)| key.upgrade())
        {
            return key;
        }
        let key = Arc::new(Self(unique()));
        live.push((context, Arc::downgrade(&key)));
        key
    }

    pub(super) fn number(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_comes_back_is_another_context() {
        let first = ContextKey::of(0xfeed);
        assert_eq!(first.number(), ContextKey::of(0xfeed).number());
        assert_ne!(first.number(), ContextKey::of(0xbeef).number());
        let number = first.number();
        drop(first);
        assert_ne!(number, ContextKey::of(0xfeed).number());
    }
}

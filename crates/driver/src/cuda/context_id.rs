//! A number for each context, which is never used again.
//!
//! The driver reuses handles. A primary context that is released and retained again has the same handle
//! for new state. So all [`CudaDriver`](super::CudaDriver)s of a context share a number while one of
//! them keeps the context alive, and later ones get another number.

use super::library::Handle;
use crate::sync::trusted::{Mutex, unique};
use crate::sync::{Arc, Weak};

/// The number of one context, shared by all drivers of it.
#[derive(Debug)]
pub(super) struct ContextId(u64);

impl ContextId {
    /// The number of a context, which the caller keeps alive for as long as the number.
    pub(super) fn of(context: Handle) -> Arc<Self> {
        static LIVE: Mutex<Vec<(Handle, Weak<ContextId>)>> = Mutex::new(Vec::new());
        let mut live = LIVE.lock();
        live.retain(|(_, id)| id.strong_count() > 0);
        // An id may lose its last owner between `retain` and here, so `upgrade` asks again.
        let mut same = live.iter().filter(|(handle, _)| *handle == context);
        if let Some(id) = same.find_map(|(_, id)| id.upgrade()) {
            return id;
        }
        let id = Arc::new(Self(unique()));
        live.push((context, Arc::downgrade(&id)));
        id
    }

    pub(super) fn number(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests;

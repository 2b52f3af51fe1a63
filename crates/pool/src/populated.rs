//! Which slots have a heap worth a look: those that were ever given memory.
//!
//! Most streams of a pool that many use live on what others freed, and have an empty heap of their
//! own. Slots are never taken off the list.

use super::block::SlotId;
use crate::sync::{Arc, trusted};

/// Slots in order, if there are any. A miss scans the list as it was when the miss began.
#[derive(Debug, Default)]
pub(super) struct Populated(trusted::Mutex<Option<Arc<Vec<SlotId>>>>);

impl Populated {
    pub(super) fn insert(&self, slot: SlotId) {
        let mut slots = self.0.lock();
        let slots = slots.get_or_insert_default();
        if let Err(place) = slots.binary_search(&slot) {
            Arc::make_mut(slots).insert(place, slot);
        }
    }

    pub(super) fn snapshot(&self) -> Option<Arc<Vec<SlotId>>> {
        self.0.lock().clone()
    }
}

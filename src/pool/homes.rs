//! Which slots have a heap worth a look: those that were ever given memory.
//!
//! Most streams of a pool that many use live on what others freed, and have an empty heap of their
//! own. Slots are never taken off the list.

use super::core::Pool;
use super::slot::Slot;
use super::upstream::Upstream;
use crate::heap::{Heap, Piece, Tag};
use crate::sync::{Arc, trusted};

/// Tags in order. A miss looks through what the list was when it came.
#[derive(Debug, Default)]
pub(super) struct Homes(trusted::Mutex<Arc<Vec<Tag>>>);

impl Homes {
    fn insert(&self, tag: Tag) {
        let mut homes = self.0.lock();
        if let Err(place) = homes.binary_search(&tag) {
            Arc::make_mut(&mut homes).insert(place, tag);
        }
    }

    fn tags(&self) -> Arc<Vec<Tag>> {
        self.0.lock().clone()
    }
}

impl<U: Upstream> Pool<U> {
    /// Adds memory to the heap of a stream's slot. All of it comes this way: what does not is missed
    /// until it is gathered.
    pub(super) fn add(&self, slot: &Slot<U>, heap: &mut Heap, tag: Tag, piece: Piece) {
        heap.add(tag, piece);
        if slot.becomes_home() {
            self.homes.insert(slot.tag);
        }
    }

    /// Goes through the slots of streams whose heaps may have memory, until `look` finds something.
    pub(super) fn find_home<T>(&self, look: impl FnMut(&Slot<U>) -> Option<T>) -> Option<T> {
        let tags = self.homes.tags();
        tags.iter().filter_map(|tag| self.slot(*tag)).find_map(look)
    }
}

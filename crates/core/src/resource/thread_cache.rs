//! Each thread's cache of the current resources that the registry returned to it.
//!
//! | data | written by | under |
//! |---|---|---|
//! | `GENERATION` | [`invalidate`] | the lock of `THREAD_RESOURCES` |
//! | `THREAD_RESOURCES`, all threads' references | [`insert`], [`invalidate`] | its lock |
//! | `CACHE`, one thread's entries | [`insert`] on that thread | nothing |
//!
//! - INV-1. `THREAD_RESOURCES` alone keeps a cached resource alive, and the caches hold it weakly. So a change of the
//!   current resource drops the old one, even if some threads never look again.
//! - INV-2. An entry is used only if its generation is the present one. A generation is read before the registry, so an
//!   entry is never newer than its generation says.

use super::device_resource::DeviceResource;
use super::handle::{ContextId, ThreadResource};
use crate::sync::trusted::{AtomicUsize, Mutex, Ordering, thread_local};
use crate::sync::{Arc, Weak};
use std::cell::RefCell;

/// Grows with each change of a current resource, on any device.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

static THREAD_RESOURCES: Mutex<Vec<Arc<ThreadResource>>> = Mutex::new(Vec::new());

struct CacheEntry {
    context_id: ContextId,
    generation: usize,
    resource: Weak<ThreadResource>,
}

thread_local! {
    static CACHE: RefCell<Vec<CacheEntry>> = const { RefCell::new(Vec::new()) };
}

/// The present generation, to be read before the registry.
pub(super) fn generation() -> usize {
    // Acquire: a thread that reads this generation finds in the registry what was set before it.
    GENERATION.load(Ordering::Acquire)
}

/// The calling thread's entry for this context and generation.
pub(super) fn lookup(context_id: ContextId, generation: usize) -> Option<Arc<ThreadResource>> {
    let found = CACHE.try_with(|cache| {
        let cache = cache.try_borrow().ok()?;
        let is_wanted =
            |entry: &&CacheEntry| entry.context_id == context_id && entry.generation == generation;
        cache.iter().find(is_wanted)?.resource.upgrade()
    });
    found.ok().flatten()
}

/// Adds an entry to the calling thread's cache. `None` if the generation is over.
pub(super) fn insert(
    resource: &Arc<dyn DeviceResource>,
    generation: usize,
) -> Option<Arc<ThreadResource>> {
    let resource = ThreadResource::new(resource.clone());
    {
        let mut resources = THREAD_RESOURCES.lock();
        if GENERATION.load(Ordering::Relaxed) != generation {
            return None;
        }
        // Threads that have ended leave references behind.
        resources.retain(|other| Arc::strong_count(other) > 1 || Arc::weak_count(other) > 0);
        resources.push(resource.clone());
    }
    let context_id = resource.context_id;
    let entry = CacheEntry { context_id, generation, resource: Arc::downgrade(&resource) };
    let _ = CACHE.try_with(|cache| {
        if let Ok(mut cache) = cache.try_borrow_mut() {
            cache.retain(|old| old.context_id != context_id && old.generation == generation);
            cache.push(entry);
        }
    });
    Some(resource)
}

/// Begins a new generation, after the current resource of a context has changed.
pub(super) fn invalidate(context_id: ContextId) {
    let dropped: Vec<_> = {
        let mut resources = THREAD_RESOURCES.lock();
        GENERATION.fetch_add(1, Ordering::Release);
        resources.extract_if(.., |resource| resource.context_id == context_id).collect()
    };
    // After the lock: the last reference to a resource may be among them.
    drop(dropped);
}

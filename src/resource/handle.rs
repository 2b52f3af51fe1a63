//! A container's handle on its resource.
//!
//! A reference count that all threads write is slower than the pool behind it. So each thread has a
//! count of its own for what is current: a handle on a handle, which the registry keeps.

use super::{DeviceResource, registry, scope};
use crate::device::Device;
use crate::error::Result;
use crate::sync::trusted::{AtomicUsize, Mutex, Ordering, thread_local};
use crate::sync::{Arc, Weak};
use std::cell::RefCell;
use std::ops::Deref;

/// A resource that its owner named, or what was current on the thread that made the owner.
#[derive(Clone)]
pub(crate) enum Handle {
    Named(Arc<dyn DeviceResource>),
    Current(Arc<Local>),
}

/// One thread's handle on a device's current resource, or a scope's.
pub(crate) struct Local {
    key: Key,
    resource: Arc<dyn DeviceResource>,
}

pub(super) type Key = (crate::backend::BackendKind, u64);

impl Local {
    /// A handle on `resource` for a scope of its device.
    pub(super) fn new(resource: Arc<dyn DeviceResource>) -> Self {
        Self { key: resource.device().key(), resource }
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn resource(&self) -> &Arc<dyn DeviceResource> {
        &self.resource
    }
}

impl Handle {
    pub(crate) fn get(&self) -> &Arc<dyn DeviceResource> {
        match self {
            Self::Named(resource) => resource,
            Self::Current(local) => &local.resource,
        }
    }
}

impl Deref for Handle {
    type Target = dyn DeviceResource;

    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            Self::Named(resource) => &**resource,
            Self::Current(local) => &*local.resource,
        }
    }
}

impl From<Arc<dyn DeviceResource>> for Handle {
    fn from(resource: Arc<dyn DeviceResource>) -> Self {
        Self::Named(resource)
    }
}

/// Grows with every change of what is current, on any device.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// The threads' handles. Kept here, so that a change drops them whatever the threads do.
static LOCALS: Mutex<Vec<Arc<Local>>> = Mutex::new(Vec::new());

struct Remembered {
    key: Key,
    changes: usize,
    local: Weak<Local>,
}

thread_local! {
    static REMEMBERED: RefCell<Vec<Remembered>> = const { RefCell::new(Vec::new()) };
}

/// What is current on `device`, as [`current_device_resource`](super::current_device_resource).
pub(crate) fn current(device: &Device) -> Result<Handle> {
    let key = device.key();
    if let Some(local) = scope::innermost(key) {
        return Ok(Handle::Current(local));
    }
    // Acquire: what was set before the change that is seen here is what the registry has.
    let changes = CHANGES.load(Ordering::Acquire);
    let known = REMEMBERED.try_with(|remembered| {
        let remembered = remembered.try_borrow().ok()?;
        let known = remembered.iter().find(|known| known.key == key && known.changes == changes)?;
        known.local.upgrade()
    });
    if let Ok(Some(local)) = known {
        return Ok(Handle::Current(local));
    }
    let (resource, kept) = registry::current(device)?;
    // What the registry itself lets go of is not to be kept by a thread.
    Ok(if kept { remember(key, changes, resource) } else { Handle::Named(resource) })
}

fn remember(key: Key, changes: usize, resource: Arc<dyn DeviceResource>) -> Handle {
    let local = Arc::new(Local { key, resource });
    {
        let mut locals = LOCALS.lock();
        if CHANGES.load(Ordering::Relaxed) != changes {
            return Handle::Named(local.resource.clone());
        }
        // Threads that are gone leave theirs behind.
        locals.retain(|local| Arc::strong_count(local) > 1 || Arc::weak_count(local) > 0);
        locals.push(local.clone());
    }
    let remembered = Remembered { key, changes, local: Arc::downgrade(&local) };
    let _ = REMEMBERED.try_with(|all| {
        if let Ok(mut all) = all.try_borrow_mut() {
            all.retain(|known| known.key != key && known.changes == changes);
            all.push(remembered);
        }
    });
    Handle::Current(local)
}

/// What is current on `device` has changed: every thread asks the registry again.
pub(super) fn forget(device: &Device) {
    let key = device.key();
    let dropped: Vec<_> = {
        let mut locals = LOCALS.lock();
        CHANGES.fetch_add(1, Ordering::Release);
        locals.extract_if(.., |local| local.key == key).collect()
    };
    // Not under the lock: the last handle on a resource may go.
    drop(dropped);
}

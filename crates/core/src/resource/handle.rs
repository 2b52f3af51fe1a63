//! A container's reference to its resource.

use super::device_resource::DeviceResource;
use crate::driver::BackendKind;
use crate::sync::Arc;
use std::ops::Deref;

/// A device's context, by its backend and the number that the backend gave it.
pub(super) type ContextId = (BackendKind, u64);

/// A resource that the caller named, or the one that was current for the calling thread.
#[derive(Clone)]
pub(crate) enum ResourceHandle {
    Named(Arc<dyn DeviceResource>),
    Current(Arc<ThreadResource>),
}

/// A thread's or a scope's reference to the current resource of a device.
///
/// An `Arc` of this has a reference count of its own. If all threads wrote the count of the resource itself, that would
/// take longer than an allocation from a warm pool.
pub(crate) struct ThreadResource {
    pub(super) context_id: ContextId,
    pub(super) resource: Arc<dyn DeviceResource>,
}

impl ThreadResource {
    pub(super) fn new(resource: Arc<dyn DeviceResource>) -> Arc<Self> {
        Arc::new(Self { context_id: resource.device().key(), resource })
    }
}

impl ResourceHandle {
    #[inline]
    pub(crate) fn get(&self) -> &Arc<dyn DeviceResource> {
        match self {
            Self::Named(resource) => resource,
            Self::Current(current) => &current.resource,
        }
    }
}

impl Deref for ResourceHandle {
    type Target = dyn DeviceResource;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &**self.get()
    }
}

impl From<Arc<dyn DeviceResource>> for ResourceHandle {
    fn from(resource: Arc<dyn DeviceResource>) -> Self {
        Self::Named(resource)
    }
}

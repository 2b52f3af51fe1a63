//! The current resource of one thread during a call, or of one task during its polls. Each thread has a list of scopes
//! ([`ScopeList`]).

use super::device_resource::DeviceResource;
use super::handle::{ContextId, ThreadResource};
use crate::sync::scope_list::{PolledInScope, ScopeList};
use crate::sync::{Arc, thread_local};

#[cfg(test)]
mod tests;

thread_local! {
    static SCOPES: ScopeList<ThreadResource> = const { ScopeList::new() };
}

/// The resource of the calling thread's innermost scope for this context.
#[inline]
pub(super) fn innermost(context_id: ContextId) -> Option<Arc<ThreadResource>> {
    ScopeList::innermost(&SCOPES, |scope| scope.context_id == context_id)
}

/// Runs `body` with `resource` as the current resource of its device on the calling thread. Inside,
/// [`current_device_resource`](crate::mr::current_device_resource) returns it, and containers allocate
/// from it unless the caller names another.
///
/// Scopes nest. The innermost scope of a device wins, and does not concern other devices. A scope ends when `body`
/// returns or unwinds. Other threads do not see it. While it lasts, its thread does not see the resource that is
/// [set](crate::mr::set_current_device_resource) for the process. A container made inside has a handle of its own on
/// the resource and may outlive the scope. For a task that may move between threads, see [`with_device_resource_async`].
///
/// A stackful coroutine that is suspended in `body` does not leave the scope. Its resource stays current on the thread
/// that entered it, for all code that runs there, until `body` ends, on this thread or another. Of several such scopes
/// the one entered last wins, in whatever order they end. A scope that never ends stays current and keeps its resource
/// alive.
///
/// RMM has one current resource a device for the whole process, behind a mutex. A library that wants another for a
/// while changes it for all threads.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, mr::with_device_resource};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let plain = CudaResource::new(&device);
/// let vec = with_device_resource(plain, || DeviceVec::<u8>::zeroed(&stream, 10))?;
/// assert!(format!("{:?}", vec.resource()).contains("CudaResource"));
/// # Ok::<(), aquifer::Error>(())
/// ```
pub fn with_device_resource<R>(
    resource: impl DeviceResource + 'static,
    body: impl FnOnce() -> R,
) -> R {
    ScopeList::run(&SCOPES, &ThreadResource::new(resource.into_shared()), body)
}

/// `future`, polled in a scope of [`with_device_resource`], on whatever thread.
///
/// Tasks that take turns on one thread do not see each other's resource. The future is not in the scope while it waits,
/// nor when it is dropped. A task that it spawns (`tokio::spawn`) is another future, outside of the scope. Wrap that
/// one, too. The result is `Send` if `future` is.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, mr::with_device_resource_async};
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let task = with_device_resource_async(CudaResource::new(&device), async {
///     DeviceVec::<u8>::zeroed(&stream, 10)
/// });
/// let Poll::Ready(vec) = pin!(task).poll(&mut Context::from_waker(Waker::noop())) else {
///     unreachable!("it waits for nothing")
/// };
/// assert!(format!("{:?}", vec?.resource()).contains("CudaResource"));
/// # Ok::<(), aquifer::Error>(())
/// ```
pub fn with_device_resource_async<F: Future>(
    resource: impl DeviceResource + 'static,
    future: F,
) -> impl Future<Output = F::Output> {
    PolledInScope::new(&SCOPES, ThreadResource::new(resource.into_shared()), future)
}

crate::sync::for_models! {
    /// The resource of the calling thread's innermost scope for `device`.
    #[allow(unreachable_pub)]
    pub fn scoped_resource(device: &crate::device::Device) -> Option<Arc<dyn DeviceResource>> {
        innermost(device.key()).map(|scoped| scoped.resource.clone())
    }

    /// An entered scope, as a suspended coroutine has it.
    #[allow(unreachable_pub, dead_code, missing_debug_implementations)]
    pub struct EnteredScope(crate::sync::scope_list::EnteredScope<ThreadResource>);

    /// Enters a scope of `resource`.
    #[allow(unreachable_pub)]
    pub fn enter_scope(resource: Arc<dyn DeviceResource>) -> EnteredScope {
        let resource = ThreadResource::new(resource);
        EnteredScope(crate::sync::scope_list::EnteredScope::enter(&SCOPES, resource))
    }
}

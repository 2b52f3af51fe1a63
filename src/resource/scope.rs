//! What is current for one thread inside of a call, or for one task inside of its polls.
//!
//! A thread's scopes are a list of frames that lie on its stack, so that to enter one allocates
//! nothing, and a look where there is none is one read of a plain thread local, which outlives those
//! with destructors.

use super::DeviceResource;
use super::handle::{Key, Local};
use crate::sync::Arc;
#[cfg(not(aquifer_fault = "scope_of_all_threads"))]
use crate::sync::thread_local;
#[cfg(aquifer_fault = "scope_of_all_threads")]
use crate::sync::trusted::thread_local;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::{from_ref, null};
use std::task::{Context, Poll};

/// One scope that a thread is in.
struct Frame {
    local: Arc<Local>,
    outer: *const Frame,
}

thread_local! {
    /// The frame of the innermost scope, or null.
    static INNERMOST: Cell<*const Frame> = const { Cell::new(null()) };
}

/// Leaves a scope, also when the body unwinds.
struct Leave {
    outer: *const Frame,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let _ = INNERMOST.try_with(|innermost| innermost.set(self.outer));
    }
}

/// Runs `body` in a scope of `local`.
fn within<R>(local: &Arc<Local>, body: impl FnOnce() -> R) -> R {
    let Ok(outer) = INNERMOST.try_with(Cell::get) else {
        // Where the system has no plain thread locals, one that ends can have lost this one.
        return body();
    };
    let frame = Frame { local: local.clone(), outer };
    // Dropped before the frame is: what the thread's list names is always alive.
    let _leave = Leave { outer };
    let _ = INNERMOST.try_with(|innermost| innermost.set(from_ref(&frame)));
    body()
}

/// The innermost scope of the calling thread that is of a device with this key.
#[inline]
pub(super) fn innermost(key: Key) -> Option<Arc<Local>> {
    let frame = INNERMOST.try_with(Cell::get).ok()?;
    if frame.is_null() { None } else { find(frame, key) }
}

#[cold]
fn find(mut frame: *const Frame, key: Key) -> Option<Arc<Local>> {
    // SAFETY: a frame that this thread's list names lies in a call of `within` that has not returned;
    // no such call changes its frame, and no other thread sees it.
    while let Some(scope) = unsafe { frame.as_ref() } {
        if scope.local.key() == key {
            return Some(scope.local.clone());
        }
        frame = scope.outer;
    }
    None
}

/// Runs `body` with `resource` as the current resource of its device on the calling thread: what
/// [`current_device_resource`](crate::current_device_resource) gives there, and what containers take
/// when none is named.
///
/// Scopes nest; the innermost of a device wins, and other devices see nothing of it. It ends when
/// `body` returns or unwinds. Other threads do not see it, and what is
/// [set](crate::set_current_device_resource) for the process meanwhile is seen when the scope ends.
/// What was made inside keeps its own handle on the resource and may outlive the scope. For a task
/// that may change its thread, see [`WithDeviceResource`].
///
/// RMM has only the one that is set for the process, with a mutex: a library that wants its own for a
/// while changes it for everybody.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, with_device_resource};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let plain = Arc::new(CudaResource::new(&device));
/// let vec = with_device_resource(plain, || DeviceVec::<u8>::zeroed(&stream, 10))?;
/// assert!(format!("{:?}", vec.resource()).contains("CudaResource"));
/// # Ok::<(), aquifer::Error>(())
/// ```
pub fn with_device_resource<R>(resource: Arc<dyn DeviceResource>, body: impl FnOnce() -> R) -> R {
    within(&Arc::new(Local::new(resource)), body)
}

/// A future with a resource of its own as the current one of its device: in the scope of
/// [`with_device_resource`] whenever it is polled, on whatever thread.
///
/// Tasks that take turns on one thread see nothing of each other's. The scope is left while the
/// future waits, and is not entered to drop it.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, WithDeviceResource, current_device_resource};
/// use std::pin::pin;
/// use std::sync::Arc;
/// use std::task::{Context, Poll, Waker};
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let task = WithDeviceResource::new(Arc::new(CudaResource::new(&device)), async {
///     DeviceVec::<u8>::zeroed(&stream, 10)
/// });
/// let Poll::Ready(vec) = pin!(task).poll(&mut Context::from_waker(Waker::noop())) else {
///     unreachable!("it waits for nothing")
/// };
/// assert!(format!("{:?}", vec?.resource()).contains("CudaResource"));
/// # Ok::<(), aquifer::Error>(())
/// ```
#[must_use = "a future does nothing unless it is polled"]
pub struct WithDeviceResource<F> {
    local: Arc<Local>,
    future: F,
}

impl<F> WithDeviceResource<F> {
    /// `future`, with `resource` as the current one of its device.
    pub fn new(resource: Arc<dyn DeviceResource>, future: F) -> Self {
        Self { local: Arc::new(Local::new(resource)), future }
    }

    /// The resource.
    pub fn resource(&self) -> &Arc<dyn DeviceResource> {
        self.local.resource()
    }
}

impl<F: Future> Future for WithDeviceResource<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let local = self.local.clone();
        // SAFETY: the future is pinned with the whole: nothing here moves it, the type has no `Drop`
        // and no `Unpin` of its own, and is not packed.
        let future = unsafe { self.map_unchecked_mut(|this| &mut this.future) };
        within(&local, || future.poll(context))
    }
}

impl<F> fmt::Debug for WithDeviceResource<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithDeviceResource")
            .field("resource", self.resource())
            .finish_non_exhaustive()
    }
}

crate::sync::for_models! {
    /// What the calling thread's scopes say of `device`.
    #[allow(unreachable_pub)]
    pub fn scoped(device: &crate::device::Device) -> Option<Arc<dyn DeviceResource>> {
        innermost(device.key()).map(|local| local.resource().clone())
    }
}

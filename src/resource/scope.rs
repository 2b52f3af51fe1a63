//! The current resource of one thread during a call, or of one task during its polls.
//!
//! Each thread has a list of frames, the innermost scope's first. Plain calls leave their scopes in the
//! order of a stack. Coroutines, which safe code can switch between inside of a scope, leave theirs in
//! any order, on any thread, or never. So the scope and the list each own a reference to the frame.
//!
//! | frame | in the list | `ended` | references |
//! |---|---|---|---|
//! | entered | yes | no | scope, list |
//! | left on its thread | no | yes | scope, until it is dropped |
//! | left on another thread | until its thread leaves another scope | yes | list |
//! | never left, or its thread ended first | yes | any | list, for good |
//!
//! - INV-1: only its own thread reads or writes a list: `INNERMOST` and the `outer` of its frames.
//! - INV-2: a list owns one reference to each of its frames, until [`take_ended`] returns it.
//! - INV-3: only frames of scopes that have not ended are current.
//!
//! `INNERMOST` has no destructor, so it outlives thread locals that have one, and without a scope a
//! look at it is one load. For the same reason nothing frees the list of a thread that ends.

use super::device_resource::DeviceResource;
use super::handle::{ContextId, ThreadResource};
use super::impls::debug_struct;
use crate::sync::Arc;
use crate::sync::thread_local;
// loom models neither `Arc` nor, therefore, writes up to the drop of its last reference.
use crate::sync::trusted::{AtomicBool, Ordering};
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::ptr::null;
use std::task::{Context, Poll};

#[cfg(test)]
mod tests;

/// An entered scope, in the list of the thread that entered it.
struct ScopeFrame {
    resource: Arc<ThreadResource>,
    /// The next frame of the list.
    outer: Cell<*const Self>,
    ended: AtomicBool,
}

// SAFETY: all fields but `outer` may be shared; INV-1 keeps `outer` to one thread.
unsafe impl Send for ScopeFrame {}
// SAFETY: as above.
unsafe impl Sync for ScopeFrame {}

impl ScopeFrame {
    // Relaxed: the flag publishes nothing else. A program that leaves a scope elsewhere and tells the
    // scope's thread so orders the flag by that.
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

thread_local! {
    /// The first frame of the calling thread's list, or null.
    static INNERMOST: Cell<*const ScopeFrame> = const { Cell::new(null()) };
}

/// An entered scope. Its drop leaves it, on whatever thread, also when the body unwinds.
struct ResourceScope {
    frame: Arc<ScopeFrame>,
}

impl ResourceScope {
    // Neither this nor `leave` is inlined: the compiler would keep the address of a thread local over
    // the body, in which a coroutine may move to another thread.
    #[inline(never)]
    fn enter(resource: Arc<ThreadResource>) -> Self {
        let frame = Arc::new(ScopeFrame {
            resource,
            outer: Cell::new(null()),
            ended: AtomicBool::new(false),
        });
        let listed = frame.clone();
        // On systems without plain thread locals, an ending thread may have dropped this one: then the
        // body runs without the scope.
        let _ = INNERMOST.try_with(|innermost| {
            frame.outer.set(innermost.get());
            innermost.set(Arc::into_raw(listed));
        });
        Self { frame }
    }

    #[inline(never)]
    fn leave(&self) {
        self.frame.ended.store(true, Ordering::Relaxed);
        // Dropped one at a time, outside of the list: the drop of a resource may enter scopes.
        while let Some(ended) = take_ended() {
            drop(ended);
        }
    }
}

impl Drop for ResourceScope {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Takes the first frame whose scope has ended out of the calling thread's list.
fn take_ended() -> Option<Arc<ScopeFrame>> {
    let first_ended = |innermost: &Cell<*const ScopeFrame>| {
        let mut link = innermost;
        // SAFETY: the list owns its frames (INV-2), and only this thread takes one out (INV-1).
        while let Some(frame) = unsafe { link.get().as_ref() } {
            if frame.has_ended() {
                let listed = link.replace(frame.outer.get());
                // SAFETY: from `Arc::into_raw` in `enter`; the list has given up its reference.
                return Some(unsafe { Arc::from_raw(listed) });
            }
            link = &frame.outer;
        }
        None
    };
    INNERMOST.try_with(first_ended).ok().flatten()
}

fn run_in_scope<R>(resource: &Arc<ThreadResource>, body: impl FnOnce() -> R) -> R {
    let _scope = ResourceScope::enter(resource.clone());
    body()
}

/// The resource of the calling thread's innermost scope for this context.
#[inline]
pub(super) fn innermost(context_id: ContextId) -> Option<Arc<ThreadResource>> {
    let frame = INNERMOST.try_with(Cell::get).ok()?;
    if frame.is_null() { None } else { find(frame, context_id) }
}

#[cold]
fn find(mut frame: *const ScopeFrame, context_id: ContextId) -> Option<Arc<ThreadResource>> {
    // SAFETY: the list owns its frames (INV-2), and nothing here takes one out.
    while let Some(scope) = unsafe { frame.as_ref() } {
        if scope.resource.context_id == context_id && !scope.has_ended() {
            return Some(scope.resource.clone());
        }
        frame = scope.outer.get();
    }
    None
}

/// Runs `body` with `resource` as the current resource of its device on the calling thread. Inside,
/// [`current_device_resource`](crate::current_device_resource) returns it, and containers allocate
/// from it unless the caller names another.
///
/// Scopes nest: the innermost scope of a device wins, and does not concern other devices. A scope ends
/// when `body` returns or unwinds. Other threads do not see it. While it lasts, its thread does not see
/// what is [set](crate::set_current_device_resource) for the process. A container made inside has a
/// handle of its own on the resource and may outlive the scope. For a task that may move between
/// threads, see [`WithDeviceResource`].
///
/// A stackful coroutine that is suspended in `body` does not leave the scope: its resource stays
/// current on the thread that entered it, for whatever runs there, until `body` ends, on this thread or
/// another. Of several such scopes the one entered last wins, in whatever order they end. A scope that
/// never ends stays current and keeps its resource alive.
///
/// RMM has one current resource a device for the whole process, behind a mutex: a library that wants
/// another for a while changes it for all threads.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, with_device_resource};
///
/// let device = Device::detect()?;
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
    run_in_scope(&ThreadResource::new(resource.into_shared()), body)
}

/// A future that is polled in a scope of [`with_device_resource`], on whatever thread.
///
/// Tasks that take turns on one thread do not see each other's resource. The future is not in the
/// scope while it waits, nor when it is dropped. A task that it spawns (`tokio::spawn`) is another future, outside
/// of the scope: wrap that one, too.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, WithDeviceResource, current_device_resource};
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let task = WithDeviceResource::new(CudaResource::new(&device), async {
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
    resource: Arc<ThreadResource>,
    future: F,
}

impl<F> WithDeviceResource<F> {
    /// Wraps `future`, for which `resource` is the current one of its device.
    pub fn new(resource: impl DeviceResource + 'static, future: F) -> Self {
        Self { resource: ThreadResource::new(resource.into_shared()), future }
    }

    /// The resource.
    pub fn resource(&self) -> &Arc<dyn DeviceResource> {
        &self.resource.resource
    }
}

impl<F: Future> Future for WithDeviceResource<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let resource = self.resource.clone();
        // SAFETY: structural pinning: nothing here moves the future, and the type has no `Drop`, no
        // `Unpin` of its own, and is not packed.
        let future = unsafe { self.map_unchecked_mut(|this| &mut this.future) };
        run_in_scope(&resource, || future.poll(context))
    }
}

debug_struct!([F] WithDeviceResource<F> { resource(), .. });

crate::sync::for_models! {
    /// The resource of the calling thread's innermost scope for `device`.
    #[allow(unreachable_pub)]
    pub fn scoped_resource(device: &crate::device::Device) -> Option<Arc<dyn DeviceResource>> {
        innermost(device.key()).map(|scoped| scoped.resource.clone())
    }

    /// An entered scope, as a suspended coroutine has it.
    #[allow(unreachable_pub, dead_code, missing_debug_implementations)]
    pub struct EnteredScope(ResourceScope);

    /// Enters a scope of `resource`.
    #[allow(unreachable_pub)]
    pub fn enter_scope(resource: Arc<dyn DeviceResource>) -> EnteredScope {
        EnteredScope(ResourceScope::enter(ThreadResource::new(resource)))
    }
}

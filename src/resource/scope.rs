//! What is current for one thread inside of a call, or for one task inside of its polls.
//!
//! A thread's scopes are a list of frames on the heap. Scopes of plain calls end in the order of a
//! stack; those of coroutines, which safe code can switch between inside of a scope, in any order, on
//! any thread, or never. So each frame is counted, by its scope and by its thread's list: a scope
//! that ends takes its own frame out, and one that ends on another thread only marks it, as the list
//! is its thread's alone.
//!
//! A look where there is no scope is one read of a plain thread local, which outlives those with
//! destructors. So a thread that ends leaves behind what its list still names.

use super::DeviceResource;
use super::handle::{Key, Local};
use crate::sync::Arc;
#[cfg(not(aquifer_fault = "scope_of_all_threads"))]
use crate::sync::thread_local;
#[cfg(aquifer_fault = "scope_of_all_threads")]
use crate::sync::trusted::thread_local;
// loom sees no `Arc`, so neither what is written until the last one goes.
use crate::sync::trusted::{AtomicBool, Ordering};
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::null;
use std::task::{Context, Poll};

#[cfg(test)]
mod tests;

/// One scope that was entered on a thread.
struct Frame {
    local: Arc<Local>,
    /// The next one in the list of that thread, which alone reads and writes this.
    outer: Cell<*const Self>,
    ended: AtomicBool,
}

// SAFETY: all but `outer` may be shared, and only the thread whose list has the frame touches that.
unsafe impl Send for Frame {}
// SAFETY: as above.
unsafe impl Sync for Frame {}

impl Frame {
    // Relaxed: nothing but the mark is read for it. Whoever ends a scope elsewhere and tells the
    // thread of it orders the mark along.
    fn has_ended(&self) -> bool {
        if cfg!(aquifer_fault = "scope_ended_elsewhere_stays") {
            return false;
        }
        self.ended.load(Ordering::Relaxed)
    }
}

thread_local! {
    /// The frame that was entered last and is listed, or null. Each that the list names is counted
    /// for it.
    static INNERMOST: Cell<*const Frame> = const { Cell::new(null()) };
}

/// A scope that was entered. Leaves it, on whatever thread, also when the body unwinds.
struct Scope {
    frame: Arc<Frame>,
}

impl Scope {
    // Not inlined, as `leave` is not: no address of a thread local is kept over the body, in which a
    // coroutine may change its thread.
    #[inline(never)]
    fn enter(local: Arc<Local>) -> Self {
        let frame =
            Arc::new(Frame { local, outer: Cell::new(null()), ended: AtomicBool::new(false) });
        let listed = frame.clone();
        // Where the system has no plain thread locals, one that ends can have lost this one: then
        // the body runs without the scope.
        let _ = INNERMOST.try_with(|innermost| {
            frame.outer.set(innermost.get());
            innermost.set(Arc::into_raw(listed));
        });
        Self { frame }
    }

    #[inline(never)]
    fn leave(&self) {
        self.frame.ended.store(true, Ordering::Relaxed);
        // One at a time: to drop one may drop a resource, whose own drop may enter scopes.
        while let Some(ended) = unlist() {
            drop(ended);
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Takes one whose scope has ended out of the calling thread's list.
fn unlist() -> Option<Arc<Frame>> {
    let first = |innermost: &Cell<*const Frame>| {
        let mut link = innermost;
        // SAFETY: what this thread's list names is counted for it until the thread takes it out here,
        // and nothing that a turn of the loop runs does.
        while let Some(frame) = unsafe { link.get().as_ref() } {
            if frame.ended.load(Ordering::Relaxed) {
                let listed = link.replace(frame.outer.get());
                // SAFETY: `enter` made it of an `Arc` for the list, which names it no more.
                return Some(unsafe { Arc::from_raw(listed) });
            }
            link = &frame.outer;
        }
        None
    };
    INNERMOST.try_with(first).ok().flatten()
}

/// Runs `body` in a scope of `local`.
fn within<R>(local: &Arc<Local>, body: impl FnOnce() -> R) -> R {
    let _scope = Scope::enter(local.clone());
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
    // SAFETY: what this thread's list names is counted for it until the thread takes it out, which
    // nothing here does.
    while let Some(scope) = unsafe { frame.as_ref() } {
        if scope.local.key() == key && !scope.has_ended() {
            return Some(scope.local.clone());
        }
        frame = scope.outer.get();
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
/// A coroutine with a stack of its own that is suspended in `body` does not leave the scope: it is
/// current on the thread that entered it, for whatever runs there, until `body` ends, be it on another
/// thread. Of several the one that was entered last wins, in whatever order they end. One that never
/// ends stays current, and keeps its resource.
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

    /// A scope that was entered, as a coroutine has it while it is suspended.
    #[allow(unreachable_pub, dead_code, missing_debug_implementations)]
    pub struct Entered(Scope);

    /// Enters a scope of `resource`.
    #[allow(unreachable_pub)]
    pub fn enter_scope(resource: Arc<dyn DeviceResource>) -> Entered {
        Entered(Scope::enter(Arc::new(Local::new(resource))))
    }
}

//! A lock around a resource that has none.

use super::caught::caught;
use super::handles::{handles, identity_by};
use crate::backend::is_forked_child;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::{AtomicUsize, Mutex, MutexGuard, Ordering, thread_local};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Hands out device memory in stream order, to one caller at a time: a
/// [`DeviceResource`] without locks of its own.
///
/// A [`ThreadSafeAdaptor`] makes a [`DeviceResource`] of it. RMM has no such trait: whether one of its
/// resources may be shared is in its documentation, and nothing checks it.
///
/// # Safety
///
/// As [`DeviceResource`], for one call at a time, on any thread.
///
/// # Examples
///
/// A resource that gives out one region piece by piece, and takes it back as a whole.
///
/// ```
/// use aquifer::{
///     CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Error, ErrorKind,
///     LocalDeviceResource, Result, Stream, ThreadSafeAdaptor,
/// };
/// use std::sync::Arc;
///
/// #[derive(Debug)]
/// struct Bump {
///     upstream: CudaResource,
///     region: DeviceBlock,
///     used: usize,
/// }
///
/// // SAFETY: pieces of the region do not overlap, start at multiples of 256, and are never handed
/// // out again; the region lives as long as this does.
/// unsafe impl LocalDeviceResource for Bump {
///     fn device(&self) -> &Device {
///         self.upstream.device()
///     }
///
///     fn allocate(&mut self, _stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
///         let bytes = layout.bytes().next_multiple_of(256);
///         if layout.alignment() > 256 || bytes > self.region.bytes() - self.used {
///             return Err(Error::new(ErrorKind::OutOfMemory, format!("{layout:?} in a full region")));
///         }
///         let block = DeviceBlock::new(self.region.address() + self.used as u64, bytes, 0);
///         self.used += bytes;
///         Ok(block)
///     }
///
///     unsafe fn deallocate(&mut self, _stream: &Stream, _block: DeviceBlock) {}
/// }
///
/// impl Drop for Bump {
///     fn drop(&mut self) {
///         let stream = self.upstream.device().default_stream();
///         let region = std::mem::replace(&mut self.region, DeviceBlock::new(0, 0, 0));
///         // SAFETY: the region is upstream's. The streams that used its pieces have passed: see below.
///         unsafe { self.upstream.deallocate(&stream, region) }
///     }
/// }
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let upstream = CudaResource::new(&device);
/// let region = upstream.allocate(&stream, DeviceLayout::new(1 << 20)?)?;
/// let bump = Arc::new(ThreadSafeAdaptor::new(Bump { upstream, region, used: 0 }));
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, bump.clone())?;
/// assert_eq!(bump.inspect(|bump| bump.used)?, 4096);
/// drop(vec);
/// stream.synchronize()?;
/// # Ok::<(), aquifer::Error>(())
/// ```
pub unsafe trait LocalDeviceResource: fmt::Debug + Send {
    /// The device whose memory this is: the same one for good.
    fn device(&self) -> &Device;

    /// As [`DeviceResource::allocate`].
    ///
    /// # Errors
    ///
    /// Those of [`DeviceResource::allocate`].
    fn allocate(&mut self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock>;

    /// As [`DeviceResource::deallocate`].
    ///
    /// # Safety
    ///
    /// As [`DeviceResource::deallocate`].
    unsafe fn deallocate(&mut self, stream: &Stream, block: DeviceBlock);
}

/// Makes a [`DeviceResource`] of a [`LocalDeviceResource`], by a lock: RMM's
/// `thread_safe_resource_adaptor`.
///
/// The lock is held over the resource's own calls, whatever they wait for: that is what it is for, and
/// all other callers wait too. So the resource must not wait for another thread that may come here.
/// A resource whose call comes back here on the same thread, through a callback or an upstream that
/// leads here, does not deadlock: the inner allocation is an error, and the block of an inner free
/// waits for the end of the outer call. RMM deadlocks there.
///
/// A handle: clones share the resource, which goes with the last. In the child of a fork allocations
/// are errors and frees leak, since the lock may be held for good. The resources of this crate need
/// none of this.
///
/// ```
/// use aquifer::{
///     Device, DeviceLayout, DeviceResource, LocalDeviceResource, Result, ThreadSafeAdaptor,
/// };
///
/// fn share<R: LocalDeviceResource + 'static>(resource: R) -> Result<()> {
///     let shared = ThreadSafeAdaptor::new(resource);
///     let other = shared.clone();
///     std::thread::spawn(move || {
///         let stream = other.device().new_stream()?;
///         let block = other.allocate(&stream, DeviceLayout::new(4096)?)?;
///         // SAFETY: the block is this resource's, and no work uses it.
///         unsafe { other.deallocate(&stream, block) };
///         Ok(())
///     })
///     .join()
///     .unwrap()
/// }
/// ```
pub struct ThreadSafeAdaptor<R> {
    state: Arc<State<R>>,
}

struct State<R> {
    device: Device,
    /// The mark of the thread that has the lock; 0 for none.
    holder: AtomicUsize,
    /// Freed from inside of the call that has the lock, on its thread; empty when it is over.
    waiting: Mutex<Vec<(Stream, DeviceBlock)>>,
    resource: Mutex<R>,
}

thread_local! {
    static MARK: u8 = const { 0 };
}

/// A number that no other living thread has, and never 0.
fn mark() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

struct Held<'a, R: LocalDeviceResource> {
    state: &'a State<R>,
    resource: MutexGuard<'a, R>,
}

impl<R: LocalDeviceResource> Drop for Held<'_, R> {
    fn drop(&mut self) {
        loop {
            let waiting = std::mem::take(&mut *self.state.waiting.lock());
            if waiting.is_empty() {
                break;
            }
            for (stream, block) in waiting {
                // A resource that breaks its contract may be why this unwinds already.
                // SAFETY: the promise of whoever freed it; later on its stream is in order, too.
                caught(|| unsafe { self.resource.deallocate(&stream, block) });
            }
        }
        // Before the lock is free: a field drops after this.
        self.state.holder.store(0, Ordering::Relaxed);
    }
}

impl<R: LocalDeviceResource> Deref for Held<'_, R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.resource
    }
}

impl<R: LocalDeviceResource> DerefMut for Held<'_, R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.resource
    }
}

impl<R: LocalDeviceResource> State<R> {
    fn lock(&self, wanted: &str) -> Result<Held<'_, R>> {
        if is_forked_child() {
            return Err(Error::new(
                ErrorKind::Forked,
                format!(
                    "{wanted} in the child of a fork, where the resource's lock may be held for good"
                ),
            ));
        }
        // Relaxed: a thread finds its own mark only if it stored it itself and has not taken it back;
        // what others store is some other number.
        if self.holder.load(Ordering::Relaxed) == mark() {
            return Err(Error::new(
                ErrorKind::Reentered,
                format!("{wanted} from inside of a call of the same resource, which has its lock"),
            )
            .advise("let the resource's callbacks use another one"));
        }
        let resource = self.resource.lock();
        Ok(self.held(resource))
    }

    fn held<'a>(&'a self, resource: MutexGuard<'a, R>) -> Held<'a, R> {
        self.holder.store(mark(), Ordering::Relaxed);
        Held { state: self, resource }
    }
}

impl<R: LocalDeviceResource> ThreadSafeAdaptor<R> {
    /// Puts a lock around `resource`.
    pub fn new(resource: R) -> Self {
        let device = resource.device().clone();
        let (holder, waiting) = (AtomicUsize::new(0), Mutex::default());
        let resource = Mutex::new(resource);
        Self { state: Arc::new(State { device, holder, waiting, resource }) }
    }

    /// Looks at the resource, under the lock. It cannot be changed or replaced here: blocks that are
    /// out belong to it. A block that is freed from inside of `look`, as by the drop of a vector, waits
    /// for its end.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Reentered`] from inside of a call of the resource or another look on this thread;
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn inspect<T>(&self, look: impl FnOnce(&R) -> T) -> Result<T> {
        Ok(look(&*self.state.lock("a look at a resource")?))
    }
}

// SAFETY: the resource keeps the contract for one call at a time, which the lock makes of all calls,
// and it lives as long as a handle.
unsafe impl<R: LocalDeviceResource> DeviceResource for ThreadSafeAdaptor<R> {
    fn device(&self) -> &Device {
        &self.state.device
    }

    identity_by!(state);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.state.lock("an allocation")?.allocate(stream, layout)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        match self.state.lock("a free") {
            // SAFETY: the caller's promise; the block is the resource's.
            Ok(mut resource) => unsafe { resource.deallocate(stream, block) },
            Err(error) if error.kind() == ErrorKind::Reentered => {
                self.state.waiting.lock().push((stream.clone(), block));
            }
            // The child of a fork: the parent has the memory.
            Err(_) => {}
        }
    }
}

handles! {
    /// Equal if they are handles on one resource.
    ThreadSafeAdaptor, state
}

impl<R: LocalDeviceResource> fmt::Debug for ThreadSafeAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ThreadSafeAdaptor");
        // Not by waiting: it may be this very thread that has the lock. In the child of a fork not even
        // the release of a free one is sure to return.
        let resource = if is_forked_child() { None } else { self.state.resource.try_lock() };
        match resource {
            // What the resource or the writer calls from here is inside of a call.
            Some(resource) => debug.field("resource", &*self.state.held(resource)).finish(),
            None => debug.field("device", &self.state.device).finish_non_exhaustive(),
        }
    }
}

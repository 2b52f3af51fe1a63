//! A lock around a resource that has none.

use crate::device::Device;
use crate::driver::{is_forked_child, may_not_call, not_in_host_function};
use crate::error::catch_panic;
use crate::error::{ErrorKind, FORKED_ADVICE, Result, ensure};
use crate::inside::deferred::{HoldBuffers, hold_buffers};
use crate::layout::DeviceLayout;
use crate::resource::impls::{forward, handle};
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::thread_id::{self, NO_THREAD};
use crate::sync::trusted::{AtomicU64, Mutex, Ordering, WaitMutex, WaitMutexGuard};
use std::fmt;

/// A [`DeviceResource`] without locks of its own. It hands out device memory in stream
/// order, to one caller at a time.
///
/// A [`ThreadSafeAdaptor`] makes a [`DeviceResource`] of it. RMM has no such trait. Its documentation
/// says which resources threads may share, but the compiler does not check it.
///
/// # Safety
///
/// The contract of [`DeviceResource`] holds for one call at a time, on any thread.
///
/// # Examples
///
/// A bump allocator hands out one region piece by piece, and frees the region as a whole.
///
/// ```
/// use aquifer::{
///     CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Error,
///     ErrorKind, Result, Stream, mr::{LocalDeviceResource, ThreadSafeAdaptor},
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
/// let device = Device::detect_or_simulate()?;
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
    /// The device whose memory this is. It never changes.
    fn device(&self) -> &Device;

    /// The counterpart of [`DeviceResource::allocate`].
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceResource::allocate`].
    fn allocate(&mut self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock>;

    /// The counterpart of [`DeviceResource::deallocate`].
    ///
    /// # Safety
    ///
    /// The conditions of [`DeviceResource::deallocate`] hold.
    unsafe fn deallocate(&mut self, stream: &Stream, block: DeviceBlock);
}

/// Makes a [`DeviceResource`] of a [`LocalDeviceResource`], by a lock. RMM calls it
/// `thread_safe_resource_adaptor`. The resources of this crate do not need it.
///
/// The lock is held over the resource's own calls, and all other callers wait for their end. So the
/// resource must not wait for another thread that may call this adaptor.
///
/// The resource may call this adaptor back on the same thread, through a callback or an upstream.
/// RMM's adaptor then deadlocks. Here the inner allocation is an error, and the block of an inner free
/// waits for the end of the outer call.
///
/// Clones of the adaptor share the resource, which drops with the last one. In the child of a fork
/// allocations are errors and frees leak, since a thread of the parent may hold the lock for good.
///
/// ```
/// use aquifer::{
///     Device, DeviceLayout, DeviceResource, Result, mr::{LocalDeviceResource, ThreadSafeAdaptor},
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
    state: Arc<ThreadSafeState<R>>,
}

handle!([R: LocalDeviceResource] ThreadSafeAdaptor<R> { state });

struct ThreadSafeState<R> {
    device: Device,
    /// The [`thread_id`] of the thread that holds the lock of `resource`, or 0.
    owner: AtomicU64,
    /// Blocks that the owner freed inside its call. Empty when the lock is released.
    deferred_frees: Mutex<Vec<(Stream, DeviceBlock)>>,
    /// The lock stays held while a call of the resource waits.
    resource: WaitMutex<R>,
}

struct ResourceGuard<'a, R: LocalDeviceResource> {
    state: &'a ThreadSafeState<R>,
    resource: WaitMutexGuard<'a, R>,
    /// The drop of a user's buffer may ask for a lock whose holder waits for this one.
    _held: HoldBuffers,
}

impl<R: LocalDeviceResource> Drop for ResourceGuard<'_, R> {
    fn drop(&mut self) {
        loop {
            let frees = std::mem::take(&mut *self.state.deferred_frees.lock());
            if frees.is_empty() {
                break;
            }
            for (stream, block) in frees {
                // A panic of the resource may be the reason that this guard drops.
                // SAFETY: the promise of the inner free's caller; a later free on its stream keeps it.
                catch_panic(|| unsafe { self.resource.deallocate(&stream, block) });
            }
        }
        // Before the lock is released: the field drops after this.
        self.state.owner.store(NO_THREAD, Ordering::Relaxed);
    }
}

impl<R: LocalDeviceResource> ThreadSafeState<R> {
    /// The errors name `operation`. They are [`ErrorKind::Reentered`] on the owner's
    /// thread, and [`ErrorKind::Forked`].
    fn lock(&self, operation: &str) -> Result<ResourceGuard<'_, R>> {
        ensure!(
            !is_forked_child(),
            Forked,
            FORKED_ADVICE,
            "{operation} in the child of a fork, where the resource's lock may be held for good"
        );
        // Another thread may have the lock over a driver call.
        not_in_host_function("a resource behind a lock")?;
        // Relaxed: only this thread stores its number, and it reads its own last store or a later one.
        ensure!(
            self.owner.load(Ordering::Relaxed) != thread_id::assign(),
            Reentered,
            "let the resource's callbacks use another one",
            "{operation} from inside of a call of the same resource, which has its lock"
        );
        Ok(self.guard(self.resource.lock()))
    }

    /// Marks this thread as the owner of the lock that it took.
    fn guard<'a>(&'a self, resource: WaitMutexGuard<'a, R>) -> ResourceGuard<'a, R> {
        self.owner.store(thread_id::assign(), Ordering::Relaxed);
        ResourceGuard { state: self, resource, _held: hold_buffers() }
    }
}

impl<R: LocalDeviceResource> ThreadSafeAdaptor<R> {
    /// Puts a lock around `resource`.
    pub fn new(resource: R) -> Self {
        let device = resource.device().clone();
        Self {
            state: Arc::new(ThreadSafeState {
                device,
                owner: AtomicU64::new(NO_THREAD),
                deferred_frees: Mutex::default(),
                resource: WaitMutex::new(resource),
            }),
        }
    }

    /// Reads the resource, under the lock. There is no mutable access, since it could replace the
    /// resource, to which live blocks belong. If `read` frees a block, by the drop of a vector for
    /// example, the free waits for the end of `read`.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Reentered`] inside a call of the resource or another `inspect` on this thread.
    /// - [`ErrorKind::Forked`] in the child of a fork.
    pub fn inspect<T>(&self, read: impl FnOnce(&R) -> T) -> Result<T> {
        Ok(read(&self.state.lock("a look at a resource")?.resource))
    }
}

// SAFETY: the resource keeps the contract for one call at a time, the lock orders all calls, and the
// resource lives as long as a handle.
unsafe impl<R: LocalDeviceResource> DeviceResource for ThreadSafeAdaptor<R> {
    fn device(&self) -> &Device {
        &self.state.device
    }

    forward!(identity);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.state.lock("an allocation")?.resource.allocate(stream, layout)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        match self.state.lock("a free") {
            // SAFETY: the caller's promise; the block is the resource's.
            Ok(mut guard) => unsafe { guard.resource.deallocate(stream, block) },
            // The next call with the lock frees it.
            Err(error)
                if matches!(error.kind(), ErrorKind::Reentered | ErrorKind::NotPermitted) =>
            {
                self.state.deferred_frees.lock().push((stream.clone(), block));
            }
            // The child of a fork: the memory is the parent's.
            Err(_) => {}
        }
    }
}

impl<R: LocalDeviceResource> fmt::Debug for ThreadSafeAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ThreadSafeAdaptor");
        // `try_lock`, as this thread may hold the lock. Not in the child of a fork, where even the
        // release of the lock may not return.
        let resource = if may_not_call() { None } else { self.state.resource.try_lock() };
        match resource {
            // Guarded: the resource's `Debug` or the formatter may call this adaptor.
            Some(resource) => {
                debug.field("resource", &*self.state.guard(resource).resource).finish()
            }
            None => debug.field("device", &self.state.device).finish_non_exhaustive(),
        }
    }
}

//! The traits of everything that hands out device memory.

use super::block::DeviceBlock;
use super::identity::ResourceId;
use super::mapped::Mappable;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::pool::ThreadMagazine;
use crate::stream::Stream;
use crate::sync::Arc;
use std::any::TypeId;
use std::fmt;
use std::ptr::NonNull;

/// A resource that allocates device memory in stream order. RMM calls it a memory resource.
///
/// Work on `stream` may use the memory from [`allocate`](Self::allocate) on. [`deallocate`](Self::deallocate) takes the
/// memory back as soon as the work that `stream` was given before has run. Neither waits for the device unless the
/// resource's own documentation says so. Resources compose, since an adaptor is a resource made of another. `Arc<R>`
/// and `Arc<dyn DeviceResource>` are resources too. A `Box<dyn DeviceResource>` is none, but `Arc::from` makes an `Arc`
/// of it.
///
/// A [`PinnedPool`](crate::pinned::PinnedPool) or [`PinnedResource`](crate::pinned::PinnedResource) is an
/// `Allocator` as well, which has an `allocate`, too. If both traits are
/// imported, `DeviceResource::allocate(&pool, ..)` says which.
///
/// # What a method may wait for
///
/// A method may wait for the device, and for other threads. It may call the resource that called it, such as the
/// pool above it. It waits for no lock that a caller of the resource may have, and for no thread that waits for this
/// very call.
///
/// A pool calls its upstream while other threads that need more memory of the pool wait for that call. So an upstream
/// that waits for such a thread makes it stand still for a time. That is 1 second where the pool grows, and 10 where it
/// gives memory back. Then the thread goes on beside the call, with a [`tracing`](https://docs.rs/tracing) warning that
/// names the pool's lock. The pool may grow by more than it needs, or refuse memory that is on its way back.
///
/// A wait for a stream or for the device inside of a pool's upstream drops no buffer that [waits for the
/// device](crate::Transfer). A later call does. A call of an upstream or a callback, or a wait for the device, under
/// any other of the crate's locks is a bug of the crate, which panics in debug builds.
///
/// # What compute-sanitizer sees
///
/// `memcheck` knows each allocation of the driver by its bounds. Of the blocks that are cut from an allocation it knows
/// those that a tool interface registers.
///
/// | resource | what it is to `memcheck` |
/// |---|---|
/// | [`CudaResource`](crate::CudaResource), `ManagedResource`, `ManagedAlloc` | each block, to the byte |
/// | `AsyncResource` | each block, to the byte, in stream order |
/// | [`PinnedResource`](crate::pinned::PinnedResource) | each block, to its last page |
/// | [`PoolResource`](crate::PoolResource), `FixedSizeResource`, `ArenaResource`, [`PinnedPool`](crate::pinned::PinnedPool) | one large block for each of the upstream's: an access past a block's end, or after its free, is inside it and not seen |
/// | the same but `PinnedPool`, with the feature `nvtx` and `--nvtx yes` | each block, to the byte or to the bin's size; see [`debug_log`](crate::debug_log#the-memory-extension) |
/// | `SystemResource` | nothing: it is the host's heap |
/// | `BinningResource` | what the resource of the bin is |
/// | `CallbackResource` | what the closures hand out |
/// | an adaptor | what its upstream is |
///
/// To look for such accesses to the byte, run with
/// [`set_current_device_resource`](crate::mr::set_current_device_resource) of a
/// [`CudaResource`](crate::CudaResource).
///
/// # Safety
///
/// - An implementation returns blocks of memory of [`device`](Self::device), of at least the bytes and at the alignment
///   asked, that overlap no other live block.
/// - A block that is resized keeps its address.
/// - It allocates freed memory again on another stream only after that stream is ordered after the free.
/// - Blocks stay valid until they are deallocated, whatever else happens to the resource, while a handle on it lives.
/// - [`frees_with_driver`](Self::frees_with_driver) is `true` of no block that `cuMemFreeAsync` of its address would
///   not free.
/// - [`has_peer_access`](Self::has_peer_access) is `true` only if kernels of that device reach every block.
/// - Resources of equal [`identity`](Self::identity) may free each other's blocks.
/// - No method panics.
///
/// # Examples
///
/// A resource that counts the bytes that pass through another one.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Result, Stream};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// #[derive(Debug)]
/// struct Counting<U> {
///     upstream: U,
///     bytes: AtomicUsize,
/// }
///
/// // SAFETY: every block is the upstream's, and goes back to it unchanged.
/// unsafe impl<U: DeviceResource> DeviceResource for Counting<U> {
///     fn device(&self) -> &Device {
///         self.upstream.device()
///     }
///
///     fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
///         let block = self.upstream.allocate(stream, layout)?;
///         self.bytes.fetch_add(block.bytes(), Ordering::Relaxed);
///         Ok(block)
///     }
///
///     unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
///         self.bytes.fetch_sub(block.bytes(), Ordering::Relaxed);
///         // SAFETY: the block is the upstream's; our caller vouches for the rest.
///         unsafe { self.upstream.deallocate(stream, block) }
///     }
/// }
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let counting = Arc::new(Counting { upstream: CudaResource::new(&device), bytes: AtomicUsize::new(0) });
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, counting.clone())?;
/// assert_eq!(counting.bytes.load(Ordering::Relaxed), 4000);
/// drop(vec);
/// assert_eq!(counting.bytes.load(Ordering::Relaxed), 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub unsafe trait DeviceResource: Share + fmt::Debug + Send + Sync {
    /// The device whose memory this is.
    fn device(&self) -> &Device;

    /// The resource behind an `Arc`, as containers keep it. An `Arc` is that already. A function that takes an
    /// `impl DeviceResource` calls it, so there is nothing to implement.
    #[doc(hidden)]
    fn into_shared(self) -> Arc<dyn DeviceResource>
    where
        Self: Sized + 'static,
    {
        Arc::new(self)
    }

    /// Memory of `layout` for work on `stream`, from this call on. Zero bytes give an empty block
    /// without a driver call.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is no room.
    /// - [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) if `stream` is of another device.
    /// - The errors of the driver.
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock>;

    /// Memory like that of [`allocate`](Self::allocate), with free addresses behind it for
    /// [`resize_in_place`](Self::resize_in_place). The resource maps nothing else there while the block lives. `None`
    /// if it has no such memory, or no addresses for it. By default that is always so. Vectors ask for it when they
    /// grow into another block.
    ///
    /// A [pool](crate::PoolResource) on [handles](crate::mr::Handles) gives whole granules, and addresses for all memory of the
    /// device.
    ///
    /// # Errors
    ///
    /// The errors of [`allocate`](Self::allocate).
    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        let _ = (stream, layout);
        Ok(None)
    }

    /// Makes a block hold `bytes` bytes, or a few more, at its address, without a copy, for work on `stream` from this
    /// call on. Returns whether it did. If not, the block is as it was. The added bytes have no values. Zero bytes are
    /// refused. By default a resource cannot.
    ///
    /// ```
    /// use aquifer::{
    ///     Device, DeviceLayout, DeviceResource, PoolResource, mr::VirtualResource, sim::SimConfig,
    /// };
    ///
    /// let device = Device::simulated(SimConfig::default());
    /// let stream = device.new_stream()?;
    /// let pool = PoolResource::new(VirtualResource::new(&device)?)?;
    /// let layout = DeviceLayout::new(4 << 20)?;
    /// let mut block = pool.allocate_growable(&stream, layout)?.expect("there are addresses");
    /// let address = block.address();
    /// // SAFETY: the pool's block, which no work uses.
    /// assert!(unsafe { pool.resize_in_place(&stream, &mut block, 64 << 20)? });
    /// assert_eq!((block.address(), block.bytes()), (address, 64 << 20));
    /// // SAFETY: the same.
    /// unsafe { pool.deallocate(&stream, block) };
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`allocate`](Self::allocate), if there is a place for the bytes and no memory. The block is as it
    /// was then.
    ///
    /// # Safety
    ///
    /// `block` came from this resource, or from one that equals it. All work that uses memory past `bytes` is ordered
    /// before this call on `stream`.
    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        let _ = (stream, block, bytes);
        Ok(false)
    }

    /// Resources of equal identities take back each other's blocks, and are equal when they are
    /// type-erased. By default each resource has an identity of its own. A resource whose clones share a
    /// state behind an `Arc` returns `ResourceId::of_state::<Self, _>(Arc::as_ptr(..))`.
    fn identity(&self) -> ResourceId {
        ResourceId::of_object(self)
    }

    /// Lets kernels and copies on streams of `peer` reach this resource's memory where it lies, which includes blocks
    /// that it has, and those that it will have. A vector here can then be used [on](crate::DeviceVec::on) a stream of
    /// `peer` and be given to a [launch](crate::Stream::launch) there. It stays so until the device or the driver's
    /// pool is gone. For mapped memory it stays so until the last [`VirtualResource`](crate::mr::VirtualResource) of
    /// the device and the last pool on [handles](crate::mr::Handles) are gone. For the resource's own device it does
    /// nothing. For a vector, call `vec.resource().enable_peer_access(&peer)`.
    ///
    /// By default a resource cannot. The driver's answer for two devices is asked once.
    /// [`CudaResource`](crate::CudaResource) enables it for all plain memory of its device,
    /// [`VirtualResource`](crate::mr::VirtualResource) for all mapped memory,
    /// `AsyncResource` for its pool alone. A pool on handles does what a `VirtualResource`
    /// does. Other pools, and adaptors, ask their upstream.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceResource, DeviceVec, PoolResource, sim::SimConfig};
    ///
    /// let one = Device::simulated(SimConfig::default());
    /// let two = Device::simulated(SimConfig::default().ordinal(1));
    /// let pool = PoolResource::new(CudaResource::new(&one))?;
    /// pool.enable_peer_access(&two)?;
    /// let vec = DeviceVec::<f32>::zeroed_in(&one.new_stream()?, 1000, pool)?;
    /// let stream = two.new_stream()?;
    /// let there = vec.on(&stream)?; // for cudarc; `Stream::launch` takes the vector itself
    /// # drop(there);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the resource cannot, or the two devices do not
    /// reach each other's memory, which [`Device::can_access_peer`](crate::Device::can_access_peer) tells. Other errors
    /// are those of the driver.
    fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        let what = format!(
            "{} of {} cannot let {} reach its memory",
            self.identity().name(),
            self.device(),
            self.device().name_of_other(peer)
        );
        Err(Error::new(ErrorKind::Unsupported, what)
            .with_advice("copy the memory to that device, or take a pool over CudaResource"))
    }

    /// Whether streams of `peer` reach this resource's memory where it lies.
    fn has_peer_access(&self, peer: &Device) -> bool {
        let _ = peer;
        false
    }

    /// Whether `block`'s memory may be freed by `cuMemFreeAsync` of its address, for example by another
    /// library, instead of by [`deallocate`](Self::deallocate). By default `false`.
    fn frees_with_driver(&self, block: &DeviceBlock) -> bool {
        let _ = block;
        false
    }

    /// The memory that a pool above may map by itself. A resource that counts or changes its blocks has nothing of the
    /// kind.
    #[doc(hidden)]
    fn mappable(&self) -> Mappable<'_> {
        Mappable::No
    }

    /// The calling thread's magazine of a stream, if the resource is a pool that has one. It is for libraries over this
    /// crate, which look it up once.
    #[doc(hidden)]
    fn thread_magazine(&self, stream: &Stream) -> Option<ThreadMagazine> {
        let _ = stream;
        None
    }

    /// Takes a block back, in the order of `stream`. A block that cannot be freed is leaked, with a
    /// [`tracing`](https://docs.rs/tracing) error.
    ///
    /// # Safety
    ///
    /// `block` came from [`allocate`](Self::allocate) of this resource, or of one that equals it,
    /// and all work that uses it is ordered before this call on `stream`.
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock);
}

/// Erases the type of a shared resource, and tells it. Each resource has it, a `dyn DeviceResource` by its
/// table. There is no other implementation than that for all resources, so what it tells is true.
#[doc(hidden)]
pub trait Share {
    fn share(self: Arc<Self>) -> Arc<dyn DeviceResource>
    where
        Self: 'static;

    fn type_of_resource(&self) -> TypeId;
}

impl<R: DeviceResource> Share for R {
    fn share(self: Arc<Self>) -> Arc<dyn DeviceResource>
    where
        Self: 'static,
    {
        self
    }

    fn type_of_resource(&self) -> TypeId {
        typeid::of::<R>()
    }
}

// SAFETY: forwards to a resource, which keeps the contract.
unsafe impl<R: DeviceResource + ?Sized> DeviceResource for Arc<R> {
    fn device(&self) -> &Device {
        (**self).device()
    }

    fn into_shared(self) -> Arc<dyn DeviceResource>
    where
        Self: Sized + 'static,
    {
        R::share(self)
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        (**self).allocate(stream, layout)
    }

    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        (**self).allocate_growable(stream, layout)
    }

    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        // SAFETY: the caller's promise, unchanged.
        unsafe { (**self).resize_in_place(stream, block, bytes) }
    }

    fn identity(&self) -> ResourceId {
        (**self).identity()
    }

    fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        (**self).enable_peer_access(peer)
    }

    fn has_peer_access(&self, peer: &Device) -> bool {
        (**self).has_peer_access(peer)
    }

    fn frees_with_driver(&self, block: &DeviceBlock) -> bool {
        (**self).frees_with_driver(block)
    }

    fn mappable(&self) -> Mappable<'_> {
        (**self).mappable()
    }

    fn thread_magazine(&self, stream: &Stream) -> Option<ThreadMagazine> {
        (**self).thread_magazine(stream)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller's promise, unchanged.
        unsafe { (**self).deallocate(stream, block) }
    }
}

/// Two erased resources are equal if one takes back the blocks of the other.
impl PartialEq for dyn DeviceResource {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for dyn DeviceResource {}

/// A [`DeviceResource`] whose memory the host may use at once. No device work can access a block that
/// [`allocate`](DeviceResource::allocate) returns. The resource allocates freed memory again only when the device has
/// completed the free, not merely ordered it.
///
/// An adaptor is none, since it may count what [`block_at`](Self::block_at) cannot know. Ask its upstream for the
/// pointer.
///
/// # Safety
///
/// - The above holds.
/// - [`host_pointer`](Self::host_pointer) is valid for the block's bytes until the block is deallocated.
/// - [`block_at`](Self::block_at) returns the very block.
/// - If the resource is `Clone`, a clone takes back the original's blocks.
pub unsafe trait HostAccessible: DeviceResource {
    /// The host's address of a block's first byte. Dangling, and aligned, for an empty block.
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8>;

    /// The block that [`host_pointer`](Self::host_pointer) gave this pointer for.
    ///
    /// # Safety
    ///
    /// `pointer` belongs to a live block of this resource that was allocated with `layout`, or with more
    /// bytes or another alignment which the pointer meets. The caller deallocates at most one of the
    /// blocks that it makes of one pointer.
    unsafe fn block_at(&self, pointer: NonNull<u8>, layout: DeviceLayout) -> DeviceBlock;
}

// SAFETY: forwards to a resource, which keeps the contract.
unsafe impl<R: HostAccessible + ?Sized> HostAccessible for Arc<R> {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        (**self).host_pointer(block)
    }

    unsafe fn block_at(&self, pointer: NonNull<u8>, layout: DeviceLayout) -> DeviceBlock {
        // SAFETY: the caller's promise, unchanged.
        unsafe { (**self).block_at(pointer, layout) }
    }
}

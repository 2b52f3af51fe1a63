//! Managed memory.

use super::block::Padded;
use super::cuda::{allocate, free_after};
use super::{DeviceBlock, DeviceResource, HostAccessible, HostComplete, ResourceId};
use crate::backend::{Wanted, is_forked_child, not_forked};
use crate::debug_log::hold;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::stream::{Stream, graveyard};
use crate::sync::Arc;
use crate::sync::trusted::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;

mod account;

use account::Account;

/// Managed memory, which the driver moves between host and device: `cuMemAllocManaged`.
///
/// A request for more than the device has free at that moment is an out-of-memory error, since on a
/// GPU that others share the driver would take it from them or page without end. So is one that would
/// not fit beside the managed memory that the process has already, touched or not: all of it together
/// is never more than was free when the first block was asked for, and what others gave back since.
/// Memory that the driver has moved to the host looks like the latter.
/// [`oversubscribe`](ManagedOptions::oversubscribe) lifts both. Before it is refused, a request waits
/// for its stream, if that is in no capture. A free waits for its stream; on a stream in capture it
/// is made in a later call of this crate, after the capture's end. Every instance on one device is
/// equal.
///
/// RMM: `managed_memory_resource`, which asks the driver for whatever it is told to and learns
/// nothing of what is free.
///
/// ```
/// use aquifer::{Device, DeviceVec, ManagedResource};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let managed = Arc::new(ManagedResource::new(&device)?);
/// let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, managed)?;
/// assert_eq!(vec.to_vec()?, [0; 100]);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct ManagedResource {
    device: Device,
    oversubscribe: bool,
    /// What all resources of the device have taken.
    account: Arc<Mutex<Account>>,
}

impl fmt::Debug for ManagedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedResource")
            .field("device", &self.device)
            .field("oversubscribe", &self.oversubscribe)
            .finish_non_exhaustive()
    }
}

/// How managed memory is asked for. From [`ManagedResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ManagedOptions {
    device: Device,
    oversubscribe: bool,
}

impl ManagedOptions {
    /// Whether more may be asked than the device has room for, which the driver then pages in and out.
    /// Off unless said otherwise.
    ///
    /// ```
    /// use aquifer::{Device, ManagedResource};
    ///
    /// let managed = ManagedResource::builder(&Device::detect()?).oversubscribe(true).build()?;
    /// # let _ = managed;
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn oversubscribe(mut self, oversubscribe: bool) -> Self {
        self.oversubscribe = oversubscribe;
        self
    }

    /// The resource.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the device has no managed memory; [`ErrorKind::Forked`] in the
    /// child of a fork.
    pub fn build(self) -> Result<ManagedResource> {
        let Self { device, oversubscribe } = self;
        not_forked("managed memory")?;
        if !device.properties().managed_memory {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{device} has no managed memory"),
            )
            .advise("use CudaResource, and copies"));
        }
        let account = account::of(&device);
        Ok(ManagedResource { device, oversubscribe, account })
    }
}

impl ManagedResource {
    /// The managed memory of `device`, no more of it than the device has free.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the device has none; [`ErrorKind::Forked`] in the child of a
    /// fork.
    pub fn new(device: &Device) -> Result<Self> {
        Self::builder(device).build()
    }

    /// The options, as [`new`](Self::new) sets them.
    pub fn builder(device: &Device) -> ManagedOptions {
        ManagedOptions { device: device.clone(), oversubscribe: false }
    }

    /// This memory for the host's collections: bound to a stream by [`OnStream`](crate::OnStream) it
    /// is an allocator.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] unless the host may touch managed memory while kernels run
    /// ([`concurrent_managed_access`](crate::DeviceProperties::concurrent_managed_access)): elsewhere
    /// a `Vec` that is read while any kernel runs is a fault of the process.
    pub fn allocator(&self) -> Result<ManagedAlloc> {
        if !self.device.properties().concurrent_managed_access {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the host may not touch managed memory while kernels run on {}",
                    self.device
                ),
            )
            .advise("use PinnedAlloc for what both sides read"));
        }
        Ok(ManagedAlloc {
            state: Arc::new(State { managed: self.clone(), moved: Mutex::default() }),
        })
    }

    /// A block, if there is room for it. Nobody else of the process takes the room meanwhile.
    fn attempt(&self, stream: &Stream, layout: DeviceLayout) -> Result<Option<DeviceBlock>> {
        let bytes = Padded::new(layout, DEFAULT_ALIGNMENT).bytes() as u64;
        // Held over calls of the driver, and of nobody else: what a simulated one tells waits.
        let _held = hold();
        let mut account = self.account.lock();
        if !self.oversubscribe {
            account.see(self.device.memory_info()?.free);
            if !account.has_room(bytes) {
                return Ok(None);
            }
        }
        let block = allocate(&self.device, stream, layout, |bytes| {
            self.device.driver().mem_alloc_managed(bytes)
        })?;
        account.enter(block.token(), bytes);
        Ok(Some(block))
    }

    /// The error of a request that there is no room for, with what there is.
    fn refused(&self, layout: DeviceLayout) -> Error {
        let bytes = Padded::new(layout, DEFAULT_ALIGNMENT).bytes();
        let device = &self.device;
        let live = self.account.lock().live();
        let room = match device.memory_info() {
            Ok(info) => format!("{} of {} are free and", info.free, info.total),
            Err(_) => String::new(),
        };
        Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "allocating {bytes} bytes of managed memory on {device}, where {room} {live} are \
                 managed already"
            ),
        )
        .advise("ask for less, or build the resource with oversubscribe(true)")
    }
}

/// They take back each other's blocks; how much they hand out is another matter.
impl PartialEq for ManagedResource {
    fn eq(&self, other: &Self) -> bool {
        self.device == other.device
    }
}

impl Eq for ManagedResource {}

// SAFETY: as CudaResource: disjoint blocks of the driver, freed when the stream has passed.
unsafe impl DeviceResource for ManagedResource {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_device::<Self>(&self.device, 0)
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.device.require(stream.device(), "the stream")?;
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        not_forked("managed memory")?;
        graveyard::reap_blocks();
        if let Some(block) = self.attempt(stream, layout)? {
            return Ok(block);
        }
        if !stream.is_capturing()? {
            // The stream may have frees before it that have not run. A pool may have locks of its own
            // in hand, so nothing else is done on the way.
            let waited = self.device.driver().stream_synchronize(stream.raw());
            waited.wanted(|| format!("waiting for {stream}"))?;
            graveyard::reap_blocks();
            if let Some(block) = self.attempt(stream, layout)? {
                return Ok(block);
            }
        }
        Err(self.refused(layout))
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // In the child of a fork the memory is the parent's, and the lock may be held.
        if block.is_empty() || is_forked_child() {
            return;
        }
        let bytes = self.account.lock().leave(block.token());
        // SAFETY: the caller vouches for the block; the token is the driver's address.
        unsafe { free_after(stream, &self.device, block) }
        self.account.lock().left(bytes);
    }
}

/// Managed memory that the host touches while kernels run, from [`ManagedResource::allocator`].
///
/// It is no allocator by itself, since its frees wait for a stream: `OnStream<ManagedAlloc>` is
/// one. A free waits for that stream and is complete, as `cuMemFree` is. A handle: clones are the
/// same resource.
///
/// RMM's `managed_memory_resource` says of its memory that the host reaches it, whatever the device
/// can.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{Device, ManagedResource, OnStream};
///
/// let device = Device::detect()?;
/// if device.properties().concurrent_managed_access {
///     let managed = ManagedResource::new(&device)?.allocator()?;
///     let mut vec = Vec::new_in(OnStream::new(managed, &device.new_stream()?)?);
///     vec.extend([1, 2, 3]);
/// }
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct ManagedAlloc {
    state: Arc<State>,
}

struct State {
    managed: ManagedResource,
    /// The driver's addresses of blocks that were aligned further than it aligns, by their own.
    moved: Mutex<BTreeMap<u64, u64>>,
}

impl ManagedAlloc {
    /// What the memory comes from.
    pub fn upstream(&self) -> &ManagedResource {
        &self.state.managed
    }
}

impl PartialEq for ManagedAlloc {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

impl Eq for ManagedAlloc {}

impl fmt::Debug for ManagedAlloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedAlloc").field("upstream", self.upstream()).finish_non_exhaustive()
    }
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl DeviceResource for ManagedAlloc {
    fn device(&self) -> &Device {
        self.upstream().device()
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_state::<Self, _>(Arc::as_ptr(&self.state))
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self.upstream().allocate(stream, layout)?;
        if layout.alignment() > DEFAULT_ALIGNMENT && block.address() != block.token() {
            self.state.moved.lock().insert(block.address(), block.token());
        }
        Ok(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if is_forked_child() {
            return;
        }
        if block.address() != block.token() {
            // Before the free: its address may be handed out again at once.
            self.state.moved.lock().remove(&block.address());
        }
        // SAFETY: the block is the upstream's; our caller vouches for the rest.
        unsafe { self.upstream().deallocate(stream, block) }
    }
}

// SAFETY: managed memory has one address for both sides, and the device is one where the host may
// use it at any time, checked when this was made.
unsafe impl HostAccessible for ManagedAlloc {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        let pointer = std::ptr::with_exposed_provenance_mut(block.address() as usize);
        NonNull::new(pointer).unwrap_or(NonNull::dangling())
    }
}

// SAFETY: `cuMemAllocManaged` hands out memory that no work touches, and a block goes back to the
// driver when its stream is complete. A block's token is its address, or in the map.
unsafe impl HostComplete for ManagedAlloc {
    unsafe fn block_at(&self, pointer: NonNull<u8>, layout: DeviceLayout) -> DeviceBlock {
        let address = pointer.expose_provenance().get() as u64;
        // In the child of a fork nothing goes back, and the lock may be held.
        let base = match is_forked_child() {
            true => address,
            false => self.state.moved.lock().get(&address).copied().unwrap_or(address),
        };
        DeviceBlock::new(address, layout.bytes(), base)
    }
}

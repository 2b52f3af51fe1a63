//! Managed memory.

use crate::debug_log::defer_events;
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{is_forked_child, is_in_host_function, not_forked};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::inside::DeviceInside;
use crate::inside::deferred;
use crate::layout::DeviceLayout;
use crate::resource::block::{DeviceBlock, padded_bytes};
use crate::resource::cuda::{allocate, free_blocking};
use crate::resource::device_resource::DeviceResource;
use crate::resource::identity::ResourceId;
use crate::resource::impls::{debug_struct, equal_by_identity, setters};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::Mutex;

mod quota;

use quota::ManagedQuota;

/// Managed memory of `cuMemAllocManaged`, which the driver moves between host and device.
///
/// A request for more than the device has free is an out-of-memory error. On a shared GPU the
/// driver would otherwise take the memory from other programs, or page without end. The resource
/// asks the driver for the free memory before such an error. It also asks when a sixteenth of the
/// driver's last answer has been asked for since. It also refuses a request that does not fit
/// beside the managed memory that the process has already, touched or not. The sum stays below the
/// memory that was free when the first block was asked for, plus the memory that other programs
/// freed since. Memory that the driver has moved to the host looks as if others had freed it.
/// [`oversubscribe`](ManagedOptions::oversubscribe) lifts both limits. Before an error, a request waits
/// for its stream, unless that is in capture. A free waits for its stream. On a stream in capture, a
/// later call of this crate makes it after the capture's end. All instances on one device are equal,
/// whatever their options.
///
/// RMM calls it `managed_memory_resource`, which passes each request on to the driver and
/// does not look at the free memory.
///
/// ```
/// use aquifer::{Device, DeviceVec, mr::ManagedResource};
/// use std::sync::Arc;
///
/// let device = Device::detect_or_simulate()?;
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
    /// Shared by all resources of the device.
    quota: Arc<Mutex<ManagedQuota>>,
}

debug_struct!(ManagedResource { device, oversubscribe, .. });

/// The options of a [`ManagedResource`], from [`ManagedResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ManagedOptions {
    device: Device,
    oversubscribe: bool,
}

impl ManagedOptions {
    setters! {
        /// Whether a request may be larger than the device's room, which the driver then pages in and
        /// out. Off by default.
        ///
        /// ```
        /// use aquifer::{Device, mr::ManagedResource};
        ///
        /// let managed = ManagedResource::builder(&Device::detect_or_simulate()?).oversubscribe(true).build()?;
        /// # let _ = managed;
        /// # Ok::<(), aquifer::Error>(())
        /// ```
        oversubscribe: bool;
    }

    /// The resource.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the device has no managed memory, or
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn build(self) -> Result<ManagedResource> {
        let Self { device, oversubscribe } = self;
        not_forked("managed memory")?;
        ensure!(
            device.properties().managed_memory,
            Unsupported,
            "use CudaResource, and copies",
            "{device} has no managed memory"
        );
        let quota = ManagedQuota::of_device(&device);
        Ok(ManagedResource { device, oversubscribe, quota })
    }
}

impl ManagedResource {
    /// A resource of managed memory of `device`, no more of it than the device has free.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the device has none, or [`ErrorKind::Forked`] in the
    /// child of a fork.
    pub fn new(device: &Device) -> Result<Self> {
        Self::builder(device).build()
    }

    /// The options, as [`new`](Self::new) sets them.
    pub fn builder(device: &Device) -> ManagedOptions {
        ManagedOptions { device: device.clone(), oversubscribe: false }
    }

    /// A block, if there is room for it.
    fn attempt(&self, stream: &Stream, layout: DeviceLayout) -> Result<Option<DeviceBlock>> {
        let bytes = padded_bytes(layout) as u64;
        // The lock is held over a question to the driver, of which the simulated one emits events.
        let deferred = defer_events();
        let mut quota = self.quota.lock();
        if !self.oversubscribe && !quota.has_room_surely(bytes) {
            quota.update(self.device.memory_info()?.free as u64);
            if !quota.has_room(bytes) {
                return Ok(None);
            }
        }
        quota.begin_allocate(bytes);
        // An allocation may wait for the device.
        drop((quota, deferred));
        let allocated = allocate(&self.device, stream, layout, |bytes| {
            self.device.driver().mem_alloc_managed(bytes)
        });
        let mut quota = self.quota.lock();
        quota.end_allocate(bytes);
        let insert = |block: &DeviceBlock| quota.insert(block.token(), bytes);
        allocated.inspect(insert).map(Some)
    }

    fn out_of_memory(&self, layout: DeviceLayout) -> Error {
        let bytes = padded_bytes(layout);
        let device = &self.device;
        let live = self.quota.lock().live();
        let counted = |bytes| Count(bytes, "byte");
        let room = match device.memory_info() {
            Ok(info) => {
                format!(", which has {} free of its {}", counted(info.free), counted(info.total))
            }
            Err(_) => String::new(),
        };
        let (bytes, live) = (Count(bytes, "byte"), Count(live, "byte"));
        Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "allocating {bytes} of managed memory on {device}{room}; {live} are managed already"
            ),
        )
        .with_advice("ask for less, or build the resource with oversubscribe(true)")
    }
}

equal_by_identity!(ManagedResource);

// SAFETY: as CudaResource: disjoint blocks of the driver, freed when the stream has passed.
unsafe impl DeviceResource for ManagedResource {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_device::<Self>(&self.device, 0)
    }

    /// Managed memory is in reach of each device that has it, from the beginning.
    fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        let advice = "copy the memory to that device";
        let reaches = self.has_peer_access(peer);
        ensure!(
            reaches,
            Unsupported,
            advice,
            "{peer} reaches no managed memory of {}",
            peer.name_of_other(&self.device)
        );
        Ok(())
    }

    fn has_peer_access(&self, peer: &Device) -> bool {
        self.device.kind() == peer.kind() && peer.properties().managed_memory
    }

    #[track_caller]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let _site = CallSite::enter();
        self.device.require(stream.device(), "the stream")?;
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        not_forked("managed memory")?;
        deferred::collect_blocks();
        if let Some(block) = self.attempt(stream, layout)? {
            return Ok(block);
        }
        if !stream.is_capturing()? {
            // Frees before this on the stream may not have run. Not `synchronize`, which runs other
            // owners' destructors: a pool above may have its locks.
            stream.synchronize_uncaptured()?;
            deferred::collect_blocks();
            if let Some(block) = self.attempt(stream, layout)? {
                return Ok(block);
            }
        }
        Err(self.out_of_memory(layout))
    }

    #[track_caller]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let _site = CallSite::enter();
        // In the child of a fork the memory is the parent's, and the lock may be held for good.
        if block.is_empty() || is_forked_child() {
            return;
        }
        if is_in_host_function() {
            let (resource, stream) = (self.clone(), stream.clone());
            // SAFETY: the caller's promise, which a later moment keeps as well.
            return deferred::defer_to_program(move || unsafe {
                resource.deallocate(&stream, block)
            });
        }
        let bytes = self.quota.lock().begin_free(block.token());
        // SAFETY: the caller vouches for the block; the token is the driver's address.
        unsafe { free_blocking(stream, &self.device, block) }
        self.quota.lock().end_free(bytes);
    }
}

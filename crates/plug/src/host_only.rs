//! The host's part of a memory manager, for those that have device memory alone.

use super::ipc::IpcHandle;
use super::memory_manager::{HostAllocFlags, INTERFACE_VERSION, MemoryManager};
use super::pending::{DeferCleanup, PendingDeallocations};
use super::pointers::{MemoryPointer, PinnedMemory};
use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::driver::{ErrorContext, HostFlags, MemoryInfo, not_forked};
use crate::error::{ErrorKind, Result};
use crate::impls::{Count, debug_struct};
use crate::inside::DeviceInside;
use crate::layout::DeviceLayout;
use crate::stream::Stream;
use std::fmt;
use std::ptr::NonNull;

/// A memory manager of device memory alone, which [`HostOnly`] makes a whole one.
///
/// # Safety
///
/// The conditions of [`MemoryManager`] hold.
pub unsafe trait DeviceMemoryManager: fmt::Debug + Send + Sync {
    /// The counterpart of [`MemoryManager::interface_version`].
    fn interface_version(&self) -> u32 {
        INTERFACE_VERSION
    }

    /// The counterpart of [`MemoryManager::initialize`].
    ///
    /// # Errors
    ///
    /// The manager's own errors.
    fn initialize(&self) -> Result<()> {
        Ok(())
    }

    /// The counterpart of [`MemoryManager::memalloc`].
    ///
    /// # Errors
    ///
    /// The errors of [`MemoryManager::memalloc`].
    fn memalloc(&self, stream: &Stream, layout: DeviceLayout) -> Result<MemoryPointer>;

    /// The counterpart of [`MemoryManager::memory_info`].
    ///
    /// # Errors
    ///
    /// The errors of [`MemoryManager::memory_info`].
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// The counterpart of [`MemoryManager::ipc_handle`].
    ///
    /// # Errors
    ///
    /// The errors of [`MemoryManager::ipc_handle`].
    fn ipc_handle(&self, memory: &MemoryPointer) -> Result<IpcHandle> {
        memory.ipc_handle()
    }

    /// Does the work of [`MemoryManager::reset`], for device memory.
    ///
    /// # Errors
    ///
    /// The manager's own errors.
    fn reset(&self) -> Result<()> {
        Ok(())
    }

    /// Does the work of [`MemoryManager::defer_cleanup`], for device memory. By
    /// default nothing is deferred.
    fn defer_cleanup(&self) -> DeferCleanup {
        DeferCleanup::none()
    }
}

/// A whole [`MemoryManager`] of one that has device memory alone. NBEP 7 calls it
/// `HostOnlyCUDAMemoryManager`.
///
/// Page-locked memory is the driver's. Its deallocations wait in a list of
/// [`PendingDeallocations::for_device`], 10 at most, of 20% of the device's memory. Where page-locked
/// memory runs out, they are done, and the request is tried again.
/// [`defer_cleanup`](MemoryManager::defer_cleanup) defers them, and also the cleanup of the manager
/// within. Memory that was pinned where it lies is unlocked at once.
///
/// This is NBEP 7's example, of a manager that logs an allocation and a free, and a
/// program that does not know of it.
///
/// ```
/// use aquifer::{
///     CudaResource, Device, DeviceLayout, DeviceResource, DeviceVec, Result, Stream,
///     device::MemoryInfo,
///     nbep7::{DeviceMemoryManager, HostOnly, MemoryPointer, set_memory_manager},
/// };
/// use std::sync::{Arc, Mutex};
///
/// #[derive(Debug)]
/// struct Logging {
///     resource: CudaResource,
///     log: Arc<Mutex<Vec<String>>>,
/// }
///
/// // SAFETY: each block is a `CudaResource`'s, and goes back to it when its finalizer runs.
/// unsafe impl DeviceMemoryManager for Logging {
///     fn memalloc(&self, stream: &Stream, layout: DeviceLayout) -> Result<MemoryPointer> {
///         let block = self.resource.allocate(stream, layout)?;
///         let (address, bytes) = (block.address(), block.bytes());
///         self.log.lock().unwrap().push(format!("Allocated {bytes} bytes"));
///         let (resource, log) = (self.resource.clone(), self.log.clone());
///         Ok(MemoryPointer::new(stream, address, bytes, move |stream| {
///             log.lock().unwrap().push(format!("Freeing {bytes} bytes"));
///             // SAFETY: the resource's block; the finalizer runs once, when nothing uses it.
///             unsafe { resource.deallocate(stream, block) };
///         }))
///     }
///
///     fn memory_info(&self) -> Result<MemoryInfo> {
///         self.resource.device().memory_info()
///     }
/// }
///
/// let log = Arc::new(Mutex::new(Vec::new()));
/// let its = log.clone();
/// set_memory_manager(move |device| {
///     let resource = CudaResource::new(device);
///     HostOnly::new(device, Logging { resource, log: its.clone() })
/// })?;
///
/// // As `cuda.to_device(np.zeros(10))` and `del` in NBEP 7.
/// let stream = Device::detect_or_simulate()?.new_stream()?;
/// let array = DeviceVec::from_slice(&stream, &[0_f64; 10])?;
/// drop(array);
/// assert_eq!(*log.lock().unwrap(), ["Allocated 80 bytes", "Freeing 80 bytes"]);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct HostOnly<M> {
    device: Device,
    device_memory: M,
    pending: PendingDeallocations,
}

impl<M: DeviceMemoryManager> HostOnly<M> {
    /// The manager of `device` whose device memory is `device_memory`'s.
    ///
    /// # Errors
    ///
    /// The errors of asking the device for its memory.
    pub fn new(device: &Device, device_memory: M) -> Result<Self> {
        let pending = PendingDeallocations::for_device(device)?;
        Ok(Self { device: device.clone(), device_memory, pending })
    }

    /// The manager of device memory.
    pub fn device_memory(&self) -> &M {
        &self.device_memory
    }

    /// The deallocations of page-locked memory that wait.
    pub fn pending(&self) -> &PendingDeallocations {
        &self.pending
    }
}

// SAFETY: device memory is the inner manager's, which keeps the contract; page-locked memory is the driver's, and
// goes back to it when its finalizer has run.
unsafe impl<M: DeviceMemoryManager> MemoryManager for HostOnly<M> {
    fn interface_version(&self) -> u32 {
        self.device_memory.interface_version()
    }

    fn initialize(&self) -> Result<()> {
        self.device_memory.initialize()
    }

    fn memalloc(&self, stream: &Stream, layout: DeviceLayout) -> Result<MemoryPointer> {
        self.device_memory.memalloc(stream, layout)
    }

    fn memhostalloc(&self, bytes: usize, flags: HostAllocFlags) -> Result<PinnedMemory> {
        not_forked("page-locked memory")?;
        let host_alloc = || {
            let allocated = self.device.driver().host_alloc(bytes.max(1), flags.flags);
            allocated.with_context(|| {
                let bytes = Count(bytes, "byte");
                format!("allocating {bytes} of page-locked memory for {}", self.device)
            })
        };
        let base = match host_alloc() {
            // What waits may be all that is missing.
            Err(error) if error.kind() == ErrorKind::OutOfMemory && !self.pending.is_empty() => {
                self.pending.clear();
                host_alloc()?
            }
            answer => answer?,
        };
        let (device, pending, freed) = (self.device.clone(), self.pending.clone(), Freed(base));
        let memory = NonNull::slice_from_raw_parts(base, bytes);
        Ok(PinnedMemory::new(memory, move || {
            pending.push(bytes, move || freed.free(&device, bytes))
        }))
    }

    unsafe fn mempin(&self, memory: NonNull<[u8]>, mapped: bool) -> Result<PinnedMemory> {
        not_forked("page-locked memory")?;
        let flags = HostFlags { portable: true, mapped, ..HostFlags::default() };
        // SAFETY: the caller's promise.
        let registered = unsafe { self.device.driver().host_register(memory, flags) };
        registered.with_context(|| {
            format!("page-locking {} for {}", Count(memory.len(), "byte"), self.device)
        })?;
        let (device, freed) = (self.device.clone(), Freed(memory.cast()));
        Ok(PinnedMemory::new(memory, move || freed.unregister(&device)))
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.device_memory.memory_info()
    }

    fn ipc_handle(&self, memory: &MemoryPointer) -> Result<IpcHandle> {
        self.device_memory.ipc_handle(memory)
    }

    fn reset(&self) -> Result<()> {
        self.pending.clear();
        self.device_memory.reset()
    }

    fn defer_cleanup(&self) -> DeferCleanup {
        let (host, device) = (self.pending.defer_cleanup(), self.device_memory.defer_cleanup());
        DeferCleanup::new(move || {
            drop(device);
            drop(host);
        })
    }
}

debug_struct!([M: fmt::Debug] HostOnly<M> { device, device_memory, pending });

/// Page-locked memory that nothing uses any more.
struct Freed(NonNull<u8>);

// SAFETY: this value owns the memory behind the pointer; nothing reads through it.
unsafe impl Send for Freed {}

impl Freed {
    fn free(self, device: &Device, bytes: usize) {
        // SAFETY: allocated by `memhostalloc`, whose finalizer ran, once: neither side uses it.
        if let Err(error) = unsafe { device.driver().host_free(self.0) } {
            let device = device.to_string();
            deferred_event!(error, %device, bytes, %error, "leaked page-locked memory");
        }
    }

    fn unregister(self, device: &Device) {
        // SAFETY: registered by `mempin`, whose finalizer ran, once: no device work uses it.
        if let Err(error) = unsafe { device.driver().host_unregister(self.0) } {
            let device = device.to_string();
            deferred_event!(error, %device, %error, "host memory is page-locked still");
        }
    }
}

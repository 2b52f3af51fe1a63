//! Memory from a pool of the driver.

use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{
    BackendKind, ErrorContext, PoolAttribute, PoolSpec, RawPool, is_forked_child,
    is_in_host_function, not_forked,
};
use crate::error::{DriverError, Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::inside::{DeviceInside, StreamInside};
use crate::inside::{StreamCall, deferred, wait_for_idle_streams};
use crate::layout::DeviceLayout;
use crate::resource::block::DeviceBlock;
use crate::resource::cuda::{allocate, free_in_order, report_failed_free};
use crate::resource::device_resource::DeviceResource;
use crate::resource::identity::ResourceId;
use crate::resource::impls::{equal_by_identity, setters};
use crate::stream::Stream;
use crate::sync::trusted::Mutex;
#[cfg(unix)]
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

/// The time for which a trim asks which streams have nothing to do.
const IDLE_PATIENCE: Duration = Duration::from_millis(2);

/// Stream-ordered memory from a pool of the driver, by `cuMemAllocFromPoolAsync` and `cuMemFreeAsync`.
///
/// The resource owns its pool, unless it is [a view](Self::default_pool) of a pool that others use too.
/// Allocations and frees do not wait for the device.
///
/// On a stream in capture, memory of the driver would exist while the graph runs and at no other time. So
/// an allocation is [`ErrorKind::Capture`] there. Declare a [`PoolResource`](crate::PoolResource) over
/// this one to [`Stream::capture`] instead. A later call of this crate makes a free on such a stream,
/// after the capture's end. RMM passes both on to the driver.
///
/// RMM calls it `cuda_async_memory_resource`, `cuda_async_managed_memory_resource` and
/// `cuda_async_view_memory_resource`. These have neither the switches of reuse nor the pool's own
/// counts, and accept an initial size that the threshold releases at once.
///
/// ```
/// use aquifer::{Device, DeviceVec, mr::AsyncResource};
/// use std::sync::Arc;
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let resource = Arc::new(AsyncResource::new(&device)?);
/// let vec = DeviceVec::from_slice_in(&stream, &[1_u32, 2, 3], resource)?;
/// assert_eq!(vec.to_vec()?, [1, 2, 3]);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Debug)]
pub struct AsyncResource {
    device: Device,
    pool: RawPool,
    /// Whether the drop destroys the pool.
    owned: bool,
    /// The [keys](Device::key) of the devices that were given access to the pool's memory.
    peers: Mutex<Vec<(BackendKind, u64)>>,
}

/// The bytes that a driver pool holds, from [`AsyncResource::statistics`]. Each figure is the driver's
/// own, and one is asked after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncStatistics {
    /// Bytes that are taken from the system and not given back.
    pub reserved_bytes: usize,
    /// The most bytes that were ever reserved.
    pub reserved_peak: usize,
    /// Bytes in blocks that are not freed.
    pub used_bytes: usize,
    /// The most bytes that were ever used.
    pub used_peak: usize,
}

/// The options of a driver pool, from [`AsyncResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct AsyncOptions {
    device: Device,
    initial_size: usize,
    release_threshold: usize,
    reuse_follow_event_dependencies: Option<bool>,
    reuse_opportunistic: Option<bool>,
    reuse_internal_dependencies: Option<bool>,
    shareable: bool,
    fabric: bool,
    managed: bool,
}

impl AsyncOptions {
    setters! {
        /// Bytes that the pool takes from the system when it is built, by one allocation that is
        /// freed again. The default is none.
        initial_size: usize;

        /// Bytes that the pool keeps, those in use among them, when the program waits
        /// for a stream or an event of one. Free memory above goes back to the system.
        /// The default is `usize::MAX`, as for RMM. The driver keeps and releases whole
        /// chunks, of 32 MiB on an H200 (driver 580). Below one chunk it keeps nothing.
        /// It releases nothing at [`Device::synchronize`] (H100, driver 580), which
        /// waits for an event of all streams.
        release_threshold: usize;

        /// Whether an allocation may take memory that was freed on another stream, if the streams'
        /// events order the two already. By default the driver's choice, which is yes.
        reuse_follow_event_dependencies: bool => Some;

        /// Whether an allocation may take memory that was freed on another stream, if the device happens
        /// to be past the free. By default the driver's choice, which is yes.
        reuse_opportunistic: bool => Some;

        /// Whether the driver may make a stream wait for another to use its memory again. By default the
        /// driver's choice, which is yes. Without it streams wait only where the program asks for it.
        reuse_internal_dependencies: bool => Some;

        /// Whether [`send_to`](AsyncResource::send_to) and [`export`](AsyncResource::export) can give the pool to
        /// other processes, and vectors in it have handles for them. Off by default.
        #[cfg(unix)]
        shareable: bool;

        /// Whether the driver gives handles of the pool's memory for other nodes of a fabric, as of NVLink
        /// (`CU_MEM_HANDLE_TYPE_FABRIC`). Off by default.
        fabric: bool;

        /// Whether the pool is of managed memory (CUDA 13), which the host reaches too. Off by default.
        managed: bool;
    }

    /// The pool.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`] if the release threshold would give the initial size back at
    ///   once, or an address space does not hold it.
    /// - [`ErrorKind::Unsupported`] where the device has no memory pools, or none of this kind.
    /// - [`ErrorKind::OutOfMemory`] if there is no room for the initial size.
    /// - The errors of the driver.
    pub fn build(self) -> Result<AsyncResource> {
        let Self { device, initial_size, release_threshold, shareable, fabric, managed, .. } = self;
        ensure!(
            initial_size <= release_threshold,
            InvalidArgument,
            "raise the release threshold to the initial size",
            "a driver pool was to begin with {} and to keep {}",
            Count(initial_size, "byte"),
            Count(release_threshold, "byte")
        );
        let initial = DeviceLayout::new(initial_size)?;
        require_pools(&device)?;
        if managed && device.properties().driver_version < MANAGED_POOLS_SINCE {
            return Err(lacking(&device, "managed memory", None));
        }
        let spec =
            PoolSpec { shareable, fabric, managed, ..PoolSpec::keeping(release_threshold as u64) };
        let pool = device.driver().pool_create(spec).map_err(|error| {
            let unknown = matches!(
                error.code(),
                DriverError::INVALID_VALUE
                    | DriverError::NOT_SUPPORTED
                    | DriverError::NOT_PERMITTED
            );
            match spec {
                PoolSpec { managed: true, .. } if unknown => {
                    lacking(&device, "managed memory", Some(&error))
                }
                PoolSpec { fabric: true, .. } if unknown => {
                    lacking(&device, "memory for a fabric", Some(&error))
                        .with_advice("build it without `fabric`")
                }
                PoolSpec { shareable: true, .. } if unknown => {
                    lacking(&device, "memory for other processes", Some(&error))
                        .with_advice("build it without `shareable`")
                }
                _ => Error::driver_call(format!("making a driver pool on {device}"), error),
            }
        })?;
        // From here on the resource's drop destroys the pool.
        let resource = AsyncResource { device, pool, owned: true, peers: Mutex::default() };
        for (switch, name, allow) in [
            (
                PoolAttribute::FollowEventDependencies,
                "reuse_follow_event_dependencies",
                self.reuse_follow_event_dependencies,
            ),
            (PoolAttribute::AllowOpportunistic, "reuse_opportunistic", self.reuse_opportunistic),
            (
                PoolAttribute::AllowInternalDependencies,
                "reuse_internal_dependencies",
                self.reuse_internal_dependencies,
            ),
        ] {
            if let Some(allow) = allow {
                let driver = resource.device.driver();
                driver.pool_set(pool, switch, u64::from(allow)).with_context(|| {
                    format!("setting {name} of a driver pool on {}", resource.device)
                })?;
            }
        }
        resource.prime(initial)?;
        let (device, handle) = (resource.device.ordinal(), pool.0);
        let initial = initial.bytes();
        deferred_event!(debug, target: DRIVER_POOL, device, handle, initial, "driver pool made");
        Ok(resource)
    }
}

/// The target of the driver pools' events.
const DRIVER_POOL: &str = "aquifer::driver_pool";

/// The first version whose driver has pools of managed memory.
const MANAGED_POOLS_SINCE: u32 = 13000;

fn require_pools(device: &Device) -> Result<()> {
    let has_pools = device.properties().memory_pools;
    let advice = "use CudaResource, or a PoolResource over it";
    ensure!(has_pools, Unsupported, advice, "{device} has no stream-ordered memory pools");
    Ok(())
}

fn lacking(device: &Device, what: &str, why: Option<&DriverError>) -> Error {
    let why = why.map(|error| format!(": {error}")).unwrap_or_default();
    Error::new(ErrorKind::Unsupported, format!("{device} has no pools of {what}{why}"))
        .with_advice("use a driver pool of plain device memory, or ManagedResource")
}

impl AsyncResource {
    /// A new pool that keeps all its memory until it is dropped or [trimmed](Self::trim). The release
    /// threshold is `u64::MAX`, as for RMM.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the device has no memory pools, and the errors of the driver.
    pub fn new(device: &Device) -> Result<Self> {
        Self::builder(device).build()
    }

    /// A new pool that gives free memory back to the system when the program waits for a stream. It
    /// does so while it has more than `bytes` in all. See [`AsyncOptions::release_threshold`].
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new).
    pub fn with_release_threshold(device: &Device, bytes: usize) -> Result<Self> {
        Self::builder(device).release_threshold(bytes).build()
    }

    /// The options, as [`new`](Self::new) sets them.
    ///
    /// ```
    /// use aquifer::{Device, mr::AsyncResource};
    ///
    /// let pool = AsyncResource::builder(&Device::detect_or_simulate()?)
    ///     .initial_size(1 << 20)
    ///     .release_threshold(1 << 30)
    ///     .reuse_internal_dependencies(false)
    ///     .build()?;
    /// assert_eq!(pool.statistics()?.used_bytes, 0);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn builder(device: &Device) -> AsyncOptions {
        AsyncOptions {
            device: device.clone(),
            initial_size: 0,
            release_threshold: usize::MAX,
            reuse_follow_event_dependencies: None,
            reuse_opportunistic: None,
            reuse_internal_dependencies: None,
            shareable: false,
            fabric: false,
            managed: false,
        }
    }

    /// A view of the device's default pool, `cuDeviceGetDefaultMemPool`, which other libraries use as
    /// well. Its attributes stay as they are.
    ///
    /// ```
    /// use aquifer::{Device, mr::AsyncResource};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// assert_eq!(AsyncResource::default_pool(&device)?, AsyncResource::default_pool(&device)?);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new).
    pub fn default_pool(device: &Device) -> Result<Self> {
        require_pools(device)?;
        let wanted = || format!("asking {device} for its default pool");
        let pool = device.driver().pool_default().with_context(wanted)?;
        Ok(Self { device: device.clone(), pool, owned: false, peers: Mutex::default() })
    }

    /// A view of a `CUmemoryPool` that other code made and will destroy.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `pool` is null, or [`ErrorKind::Unsupported`] where the
    /// device has no memory pools.
    ///
    /// # Safety
    ///
    /// `pool` is a pool of `device`'s memory, and lives as long as this resource and each of its
    /// blocks.
    ///
    /// ```
    /// use aquifer::{Device, ErrorKind, mr::AsyncResource};
    ///
    /// // SAFETY: null is refused.
    /// let refused = unsafe { AsyncResource::from_raw_pool(&Device::detect_or_simulate()?, 0) };
    /// assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub unsafe fn from_raw_pool(device: &Device, pool: u64) -> Result<Self> {
        let advice = "see whether the call that made it failed";
        ensure!(pool != 0, InvalidArgument, advice, "a null handle was given for a driver pool");
        require_pools(device)?;
        Ok(Self {
            device: device.clone(),
            pool: RawPool(pool),
            owned: false,
            peers: Mutex::default(),
        })
    }

    /// The `CUmemoryPool`, for other libraries. It belongs to this resource, so do not destroy it.
    pub fn as_raw_pool(&self) -> u64 {
        self.pool.0
    }

    /// The bytes that the pool holds, as the driver counts them.
    ///
    /// # Errors
    ///
    /// The errors of the driver, or [`ErrorKind::MissingSymbol`] if it cannot say.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, mr::AsyncResource};
    /// use std::sync::Arc;
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let pool = Arc::new(AsyncResource::new(&device)?);
    /// let vec = DeviceVec::<u8>::zeroed_in(&device.new_stream()?, 1000, pool.clone())?;
    /// assert!(pool.statistics()?.used_bytes >= 1000);
    /// # drop(vec);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn statistics(&self) -> Result<AsyncStatistics> {
        Ok(AsyncStatistics {
            reserved_bytes: self.count(PoolAttribute::ReservedCurrent)?,
            reserved_peak: self.count(PoolAttribute::ReservedHigh)?,
            used_bytes: self.count(PoolAttribute::UsedCurrent)?,
            used_peak: self.count(PoolAttribute::UsedHigh)?,
        })
    }

    fn count(&self, attribute: PoolAttribute) -> Result<usize> {
        let wanted = || format!("asking a driver pool on {} for its counts", self.device);
        let count = self.device.driver().pool_get(self.pool, attribute).with_context(wanted)?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Gives free memory back to the system at once, as far as the device is past it, until `keep` bytes are reserved, those
    /// in use among them. Waits for no work of the device. Returns how many bytes went back.
    ///
    /// The driver counts memory as free when the program has waited for the stream that freed it. So
    /// this call waits for those of the crate's streams that have nothing to do, or become idle within
    /// 2 ms. The memory that they freed then goes back. Streams in capture are left alone.
    ///
    /// # Errors
    ///
    /// The errors of the driver, or [`ErrorKind::MissingSymbol`] if it cannot say what is reserved.
    pub fn trim(&self, keep: usize) -> Result<usize> {
        let before = self.count(PoolAttribute::ReservedCurrent)?;
        if before > keep {
            wait_for_idle_streams(&self.device, IDLE_PATIENCE);
        }
        self.device.driver().pool_trim(self.pool, keep).with_context(|| {
            format!("trimming a driver pool on {} to {}", self.device, Count(keep, "byte"))
        })?;
        let given = before.saturating_sub(self.count(PoolAttribute::ReservedCurrent)?);
        let (device, handle) = (self.device.ordinal(), self.pool.0);
        deferred_event!(
            debug, target: DRIVER_POOL, device, handle, keep, bytes = given, "driver pool trimmed"
        );
        Ok(given)
    }

    /// A file descriptor of a [shareable](AsyncOptions::shareable) pool, for another process to
    /// import (`IpcPool::import`, or another library's call).
    /// `send_to` sends one over a socket. The descriptor of a simulated
    /// device serves its own process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the pool is not shareable, and the errors of the driver.
    #[cfg(unix)]
    pub fn export(&self) -> Result<OwnedFd> {
        let wanted = || format!("exporting a driver pool on {}", self.device);
        let advice = "build it with shareable(true)";
        let descriptor = match self.device.driver().pool_export(self.pool) {
            Err(error) if error.is_not_shareable() => {
                let what = format!("{}: it was not made to be shared", wanted());
                let refused = Error::new(ErrorKind::Unsupported, what).with_driver(error);
                return Err(refused.with_advice(advice));
            }
            exported => exported.with_context(wanted)?,
        };
        let what = || format!("{}: the driver gave no descriptor", wanted());
        ensure!(descriptor >= 0, Unsupported, advice, "{}", what());
        // SAFETY: the driver made the descriptor for this call, which owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Allocates and frees a block of `layout`, and waits for the free. Then every
    /// stream finds the memory.
    fn prime(&self, layout: DeviceLayout) -> Result<()> {
        if layout.bytes() == 0 {
            return Ok(());
        }
        let stream = self.device.new_stream()?;
        let block = self.allocate(&stream, layout)?;
        // SAFETY: the block is this resource's, and no work uses it.
        unsafe { self.deallocate(&stream, block) };
        stream.synchronize()
    }
}

equal_by_identity!(AsyncResource);

// SAFETY: the driver's pool is stream-ordered and hands out disjoint blocks; live ones outlive the
// pool itself, by its documentation.
unsafe impl DeviceResource for AsyncResource {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_device::<Self>(&self.device, self.pool.0)
    }

    #[track_caller]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let _site = CallSite::enter();
        self.device.require(stream.device(), "the stream")?;
        deferred::collect_blocks();
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        let entered = stream.begin_nested_call()?;
        refuse_capture(&entered, layout)?;
        allocate(&self.device, stream, layout, |bytes| {
            self.device.driver().mem_alloc_async(self.pool, bytes, entered.raw())
        })
    }

    /// Calls `cuMemPoolSetAccess`. For a [view](AsyncResource::default_pool) it holds
    /// for all who use the pool.
    fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        not_forked("a driver pool")?;
        if self.has_peer_access(peer) {
            return Ok(());
        }
        peer.require_peer(&self.device)?;
        let wanted = || {
            let own = peer.name_of_other(&self.device);
            format!("giving {peer} access to a driver pool on {own}")
        };
        self.device
            .driver()
            .pool_enable_access(self.pool, peer.driver().as_any())
            .with_context(wanted)?;
        self.peers.lock().push(peer.key());
        Ok(())
    }

    /// Access that this value has enabled. Another view of the pool does not know of it.
    fn has_peer_access(&self, peer: &Device) -> bool {
        let is_given = || !is_forked_child() && self.peers.lock().contains(&peer.key());
        *peer == self.device || is_given()
    }

    fn frees_with_driver(&self, block: &DeviceBlock) -> bool {
        // A block that was aligned further lies inside the driver's allocation.
        block.address() == block.token()
    }

    #[track_caller]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let _site = CallSite::enter();
        if !block.is_empty() {
            // SAFETY: the caller's promise; the token is the driver's address.
            unsafe { free_in_order(stream, &self.device, block) }
        }
    }
}

impl Drop for AsyncResource {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let (device, pool) = (self.device.clone(), self.pool);
        let destroy = move || {
            // SAFETY: the resource alone allocated from its pool, and it is gone.
            if let Err(error) = unsafe { device.driver().pool_destroy(pool) } {
                report_failed_free(&device, 0, &error);
            }
        };
        if is_in_host_function() { deferred::defer_to_program(destroy) } else { destroy() }
    }
}
fn refuse_capture(entered: &StreamCall<'_>, layout: DeviceLayout) -> Result<()> {
    ensure!(
        !entered.is_capturing()?,
        Capture,
        "allocate before the capture, or give a PoolResource over this to Stream::capture",
        "a driver pool cannot serve {} to {entered}, which is in capture",
        Count(layout.bytes(), "byte")
    );
    Ok(())
}

//! Memory from a pool of the driver.

use super::cuda::{allocate, free_past, leaked};
use super::{DeviceBlock, DeviceResource, ResourceId};
use crate::backend::{PoolAttribute, PoolSpec, RawPool, Wanted};
use crate::debug_log::{event, later};
use crate::device::Device;
use crate::error::{DriverError, Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::stream::{Stream, graveyard};
#[cfg(unix)]
use std::os::fd::{FromRawFd, OwnedFd};

/// Stream-ordered memory from a pool of the driver: `cuMemAllocFromPoolAsync` and `cuMemFreeAsync`.
///
/// The pool is this resource's alone, unless it is [a view](Self::default_pool) of one that others
/// use too. Neither call waits for the device.
///
/// On a stream in capture the driver would hand out memory that is there while the graph runs and at
/// no other time, so an allocation is [`ErrorKind::Capture`] there; declare a
/// [`PoolResource`](crate::PoolResource) over this one to [`Stream::capture`]. A free on such a stream
/// is made in a later call of this crate, after the capture's end. RMM passes both on to the driver.
///
/// RMM: `cuda_async_memory_resource`, `cuda_async_managed_memory_resource` and
/// `cuda_async_view_memory_resource`. There the switches of reuse and the pool's own counts are out of
/// reach, and a priming that the threshold gives back at once is not refused.
///
/// ```
/// use aquifer::{AsyncResource, Device, DeviceVec};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
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
    /// Whether the pool goes with this resource.
    owned: bool,
}

/// What a driver pool holds, in bytes, from [`AsyncResource::statistics`]. Each figure is the
/// driver's own, asked one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncStatistics {
    /// Taken from the system and not given back.
    pub reserved_bytes: u64,
    /// The most that was ever reserved.
    pub reserved_peak: u64,
    /// In blocks that are not freed.
    pub used_bytes: u64,
    /// The most that was ever used.
    pub used_peak: u64,
}

/// How a driver pool is made. From [`AsyncResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct AsyncOptions {
    device: Device,
    spec: PoolSpec,
    initial_size: usize,
    switches: [(PoolAttribute, Option<bool>); 3],
}

impl AsyncOptions {
    /// Bytes that the pool takes from the system at once, by one allocation that is freed again. None
    /// unless said otherwise.
    pub fn initial_size(mut self, bytes: usize) -> Self {
        self.initial_size = bytes;
        self
    }

    /// Bytes that the pool keeps when the program waits for a stream, an event or the device, those in
    /// use among them: above it, free memory goes back to the system. `u64::MAX` unless said otherwise,
    /// as RMM has it. The driver keeps and releases whole chunks, of 32 MiB on an H200
    /// (driver 580): with less than a chunk it keeps nothing.
    pub fn release_threshold(mut self, bytes: u64) -> Self {
        self.spec.release_threshold = bytes;
        self
    }

    /// Whether memory that was freed on another stream is handed out where the streams' events
    /// already order the two. The driver's own choice, which is yes, unless said otherwise.
    pub fn reuse_follow_event_dependencies(mut self, allow: bool) -> Self {
        self.switches[0].1 = Some(allow);
        self
    }

    /// Whether memory that was freed on another stream is handed out once the device happens to be
    /// past it. The driver's own choice, which is yes, unless said otherwise.
    pub fn reuse_opportunistic(mut self, allow: bool) -> Self {
        self.switches[1].1 = Some(allow);
        self
    }

    /// Whether the driver may make one stream wait for another to use its memory again. The
    /// driver's own choice, which is yes, unless said otherwise; off, what a stream waits for is
    /// what the program asked for.
    pub fn reuse_internal_dependencies(mut self, allow: bool) -> Self {
        self.switches[2].1 = Some(allow);
        self
    }

    /// Whether the pool can be given to other processes, by [`export`](AsyncResource::export). Off
    /// unless said otherwise.
    #[cfg(unix)]
    pub fn shareable(mut self, shareable: bool) -> Self {
        self.spec.shareable = shareable;
        self
    }

    /// Whether the pool is of managed memory (CUDA 13), which the host reaches too. Off unless said
    /// otherwise.
    pub fn managed(mut self, managed: bool) -> Self {
        self.spec.managed = managed;
        self
    }

    /// The pool.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if the release threshold would give the initial size back at
    /// once, or an address space does not hold it; [`ErrorKind::Unsupported`] where the device has no memory pools, or none of this kind;
    /// [`ErrorKind::OutOfMemory`] if there is no room for the initial size; those of the driver.
    pub fn build(self) -> Result<AsyncResource> {
        let Self { device, spec, initial_size, switches } = self;
        if initial_size as u64 > spec.release_threshold {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a pool of {initial_size} bytes at first that keeps {}",
                    spec.release_threshold
                ),
            )
            .advise("raise the release threshold to the initial size"));
        }
        let initial = DeviceLayout::new(initial_size)?;
        require_pools(&device)?;
        if spec.managed && device.properties().driver_version < MANAGED_POOLS_SINCE {
            return Err(lacking(&device, "managed memory", None));
        }
        let pool = device.driver().pool_create(spec).map_err(|error| {
            let unknown =
                matches!(error.code(), DriverError::INVALID_VALUE | DriverError::NOT_SUPPORTED);
            match spec {
                PoolSpec { managed: true, .. } if unknown => {
                    lacking(&device, "managed memory", Some(&error))
                }
                PoolSpec { shareable: true, .. } if unknown => {
                    lacking(&device, "memory for other processes", Some(&error))
                }
                _ => Error::driver_call(format!("making a pool on {device}"), error),
            }
        })?;
        // From here on the pool goes with the resource, whatever fails.
        let resource = AsyncResource { device, pool, owned: true };
        for (switch, allow) in switches {
            if let Some(allow) = allow {
                let driver = resource.device.driver();
                driver
                    .pool_set(pool, switch, u64::from(allow))
                    .wanted(|| format!("setting {switch:?} of a pool on {}", resource.device))?;
            }
        }
        resource.prime(initial)?;
        let (device, handle) = (resource.device.ordinal(), pool.0);
        let initial = initial.bytes();
        later(move || {
            event!(debug, target: DRIVER_POOL, device, handle, initial, "driver pool made");
        });
        Ok(resource)
    }
}

/// The target of what is told of driver pools.
const DRIVER_POOL: &str = "aquifer::driver_pool";

/// The first version whose driver has pools of managed memory.
const MANAGED_POOLS_SINCE: u32 = 13000;

fn require_pools(device: &Device) -> Result<()> {
    if device.properties().memory_pools {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, format!("{device} has no memory pools"))
        .advise("use CudaResource"))
}

fn lacking(device: &Device, what: &str, why: Option<&DriverError>) -> Error {
    let why = why.map(|error| format!(": {error}")).unwrap_or_default();
    Error::new(ErrorKind::Unsupported, format!("{device} has no pools of {what}{why}"))
        .advise("use a pool of plain device memory, or ManagedResource")
}

impl AsyncResource {
    /// A new pool that keeps all it ever took until it is dropped or
    /// [trimmed](Self::trim): the release threshold is `u64::MAX`, as RMM's is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the device has no memory pools; those of the driver.
    pub fn new(device: &Device) -> Result<Self> {
        Self::builder(device).build()
    }

    /// A new pool that gives free memory back to the system, while it has more than `bytes` of it in
    /// all, when the program waits for a stream, an event or the device.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_release_threshold(device: &Device, bytes: u64) -> Result<Self> {
        Self::builder(device).release_threshold(bytes).build()
    }

    /// The options, as [`new`](Self::new) sets them.
    ///
    /// ```
    /// use aquifer::{AsyncResource, Device};
    ///
    /// let pool = AsyncResource::builder(&Device::detect()?)
    ///     .initial_size(1 << 20)
    ///     .release_threshold(1 << 30)
    ///     .reuse_internal_dependencies(false)
    ///     .build()?;
    /// assert_eq!(pool.statistics()?.used_bytes, 0);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn builder(device: &Device) -> AsyncOptions {
        let switches = [
            PoolAttribute::FollowEventDependencies,
            PoolAttribute::AllowOpportunistic,
            PoolAttribute::AllowInternalDependencies,
        ];
        AsyncOptions {
            device: device.clone(),
            spec: PoolSpec::keeping(u64::MAX),
            initial_size: 0,
            switches: switches.map(|switch| (switch, None)),
        }
    }

    /// The device's default pool, `cuDeviceGetDefaultMemPool`, which other libraries use as well. It
    /// is not changed, and stays when this goes.
    ///
    /// ```
    /// use aquifer::{AsyncResource, Device};
    ///
    /// let device = Device::detect()?;
    /// assert_eq!(AsyncResource::default_pool(&device)?, AsyncResource::default_pool(&device)?);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn default_pool(device: &Device) -> Result<Self> {
        require_pools(device)?;
        let wanted = || format!("asking {device} for its default pool");
        let pool = device.driver().pool_default().wanted(wanted)?;
        Ok(Self { device: device.clone(), pool, owned: false })
    }

    /// A view of a `CUmemoryPool` that somebody else made, and destroys.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `pool` is null; [`ErrorKind::Unsupported`] where the device
    /// has no memory pools.
    ///
    /// # Safety
    ///
    /// `pool` is a pool of `device`'s memory, and lives as long as this resource and each of its
    /// blocks.
    ///
    /// ```
    /// use aquifer::{AsyncResource, Device, ErrorKind};
    ///
    /// // SAFETY: null is looked at and refused.
    /// let refused = unsafe { AsyncResource::from_raw_pool(&Device::detect()?, 0) };
    /// assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub unsafe fn from_raw_pool(device: &Device, pool: u64) -> Result<Self> {
        if pool == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "a memory pool that is null")
                .advise("see whether the call that made it failed"));
        }
        require_pools(device)?;
        Ok(Self { device: device.clone(), pool: RawPool(pool), owned: false })
    }

    /// The `CUmemoryPool`, for other libraries. It is this resource's: not to be destroyed.
    pub fn as_raw_pool(&self) -> u64 {
        self.pool.0
    }

    /// What the pool holds, as the driver counts it.
    ///
    /// # Errors
    ///
    /// Those of the driver; [`ErrorKind::MissingSymbol`] if it cannot say.
    ///
    /// ```
    /// use aquifer::{AsyncResource, Device, DeviceVec};
    /// use std::sync::Arc;
    ///
    /// let device = Device::detect()?;
    /// let pool = Arc::new(AsyncResource::new(&device)?);
    /// let vec = DeviceVec::<u8>::zeroed_in(&device.new_stream()?, 1000, pool.clone())?;
    /// assert!(pool.statistics()?.used_bytes >= 1000);
    /// # drop(vec);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn statistics(&self) -> Result<AsyncStatistics> {
        let ask = |attribute| {
            let wanted = || format!("asking a pool on {} for its counts", self.device);
            self.device.driver().pool_get(self.pool, attribute).wanted(wanted)
        };
        Ok(AsyncStatistics {
            reserved_bytes: ask(PoolAttribute::ReservedCurrent)?,
            reserved_peak: ask(PoolAttribute::ReservedHigh)?,
            used_bytes: ask(PoolAttribute::UsedCurrent)?,
            used_peak: ask(PoolAttribute::UsedHigh)?,
        })
    }

    /// Gives free memory back to the system until `keep` bytes are reserved, those in use among them.
    /// What was freed on a stream that nobody has waited for since may stay.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn trim(&self, keep: usize) -> Result<()> {
        self.device
            .driver()
            .pool_trim(self.pool, keep)
            .wanted(|| format!("trimming a pool on {} to {keep} bytes", self.device))?;
        let (device, handle) = (self.device.ordinal(), self.pool.0);
        later(move || {
            event!(debug, target: DRIVER_POOL, device, handle, keep, "driver pool trimmed");
        });
        Ok(())
    }

    /// A file descriptor of a [shareable](AsyncOptions::shareable) pool, for another process to
    /// import.
    ///
    /// # Errors
    ///
    /// Those of the driver, where the pool is not shareable too; [`ErrorKind::Unsupported`] on a
    /// simulated device.
    #[cfg(unix)]
    pub fn export(&self) -> Result<OwnedFd> {
        let wanted = || format!("exporting a pool on {}", self.device);
        let descriptor = self.device.driver().pool_export(self.pool).wanted(wanted)?;
        if descriptor < 0 {
            return Err(Error::new(ErrorKind::Unsupported, "the driver exported no descriptor"));
        }
        // SAFETY: the driver made the descriptor for this call, and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Takes so much from the system. The free is waited for, so that every stream finds them.
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

impl PartialEq for AsyncResource {
    fn eq(&self, other: &Self) -> bool {
        self.device == other.device && self.pool == other.pool
    }
}

impl Eq for AsyncResource {}

// SAFETY: the driver's pool is stream-ordered and hands out disjoint blocks; live ones outlive the
// pool itself, by its documentation.
unsafe impl DeviceResource for AsyncResource {
    fn device(&self) -> &Device {
        &self.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_device::<Self>(&self.device, self.pool.0)
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.device.require(stream.device(), "the stream")?;
        graveyard::reap_blocks();
        if layout.bytes() > 0 {
            refuse_capture(stream, layout)?;
        }
        allocate(&self.device, stream, layout, |bytes| {
            self.device.driver().mem_alloc_async(self.pool, bytes, stream.raw())
        })
    }

    fn frees_with_driver(&self, block: &DeviceBlock) -> bool {
        // A block that was aligned further lies inside the driver's allocation.
        block.address() == block.token()
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if !block.is_empty() {
            // SAFETY: the caller's promise; the token is the driver's address.
            unsafe { free(stream, &self.device, block) }
        }
    }
}

/// The error of an allocation that would be a node of a graph: its memory is nobody's between two
/// launches.
fn refuse_capture(stream: &Stream, layout: DeviceLayout) -> Result<()> {
    if !stream.is_capturing()? {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Capture,
        format!("a driver pool cannot serve {} bytes to {stream}, in capture", layout.bytes()),
    )
    .advise("allocate before the capture, or give a PoolResource over this to Stream::capture"))
}

/// # Safety
///
/// The token is the address of a live allocation of a driver pool, freed here, and all its work is
/// ordered before this call on `stream`.
unsafe fn free(stream: &Stream, device: &Device, block: DeviceBlock) {
    if stream.is_capturing().unwrap_or(false) {
        // The driver takes memory into a graph that came from it alone. When it is freed, by whatever
        // thread, the stream may be in its next capture: `cuMemFree` takes a pool's memory too.
        // SAFETY: the caller's contract.
        return unsafe { free_past(stream, device, block) };
    }
    // SAFETY: the caller's contract.
    if let Err(error) = unsafe { device.driver().mem_free_async(block.token(), stream.raw()) } {
        leaked(device, block.bytes(), &error);
    }
}

impl Drop for AsyncResource {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        // SAFETY: this resource alone allocates from its pool, and it is going away.
        let destroyed = unsafe { self.device.driver().pool_destroy(self.pool) };
        if let Err(error) = destroyed {
            leaked(&self.device, 0, &error);
        }
    }
}

//! The seam: the only rooms that talk to a GPU.
//!
//! [`Driver`] is what the crate needs of one device, in raw handles and addresses. Two backends
//! implement it, [`cuda`] and [`sim`]. It is called off the hot path alone, so it is an object.
//! Handles are numbers that the driver may use again; identity is made of them one floor up.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod fork;
pub(crate) mod kernel;
pub mod sim;

use crate::error::{DriverError, Error};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

pub(crate) use fork::{forget_in_child, is_forked_child, not_forked};
pub(crate) use kernel::RawArg;
pub use kernel::{Access, HostArgs, HostForm, Kernel, LaunchConfig};

pub(crate) type DriverResult<T> = Result<T, DriverError>;

/// An address in device memory.
pub(crate) type DeviceAddress = u64;

/// A stream of the driver. May be used again once the stream is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RawStream(pub(crate) u64);

/// An event of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RawEvent(pub(crate) u64);

/// A memory pool of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RawPool(pub(crate) u64);

/// Where memory that moves is to be, if nothing speaks against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreferredHome {
    Device,
    Host,
    /// What was said before is taken back.
    Any,
}

/// What a pool of our own is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolSpec {
    /// Free bytes that it keeps over synchronisations.
    pub(crate) release_threshold: u64,
    /// Other processes can be given it, as a file descriptor.
    pub(crate) shareable: bool,
    /// Of managed memory (CUDA 13).
    pub(crate) managed: bool,
}

impl PoolSpec {
    pub(crate) fn keeping(release_threshold: u64) -> Self {
        Self { release_threshold, ..Self::default() }
    }
}

/// What a pool can be asked and told, by CUDA's numbers. The first three are switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolAttribute {
    FollowEventDependencies = 1,
    AllowOpportunistic = 2,
    AllowInternalDependencies = 3,
    ReleaseThreshold = 4,
    ReservedCurrent = 5,
    ReservedHigh = 6,
    UsedCurrent = 7,
    UsedHigh = 8,
}

/// An executable graph of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RawGraph(pub(crate) u64);

/// A stream that the backend made, and what keeps it alive (cudarc's own handle, or nothing).
pub(crate) struct NewStream {
    pub(crate) raw: RawStream,
    pub(crate) keep: StreamKeeper,
}

/// Keeps a stream of the driver alive. `None`: the driver keeps it (default streams).
pub(crate) type StreamKeeper = Option<Box<dyn Any + Send + Sync>>;

/// Which kind of device this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// A GPU, through the CUDA driver.
    Cuda,
    /// The simulated device: host memory and a scheduler, no GPU.
    Simulated,
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "CUDA",
            Self::Simulated => "simulated",
        })
    }
}

/// Free and total memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Bytes that can still be allocated; others may take them first.
    pub free: u64,
    /// Bytes that the device has in all.
    pub total: u64,
}

/// What a device can do. Asked of the driver once, when the device is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProperties {
    /// The device's name, such as `NVIDIA H200` or `simulated device`.
    pub name: String,
    /// Compute capability, major and minor; `(0, 0)` on the simulated device.
    pub compute_capability: (u32, u32),
    /// The driver's version as it gives it: 13000 is CUDA 13.0; 0 on the simulated device.
    pub driver_version: u32,
    /// Managed memory is there.
    pub managed_memory: bool,
    /// The host may touch managed memory while kernels run.
    pub concurrent_managed_access: bool,
    /// Kernels reach ordinary host memory, which nobody told the driver about.
    pub pageable_memory_access: bool,
    /// Stream-ordered driver pools are there.
    pub memory_pools: bool,
    /// Host memory can be mapped for kernels.
    pub map_host_memory: bool,
    /// Host memory that someone else owns can be page-locked.
    pub host_register: bool,
    /// Virtual memory management is there.
    pub virtual_memory: bool,
    /// One event can stand for all work of the context (`cuCtxRecordEvent`, CUDA 12.5).
    pub context_events: bool,
}

/// How page-locked host memory is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HostFlags {
    pub(crate) portable: bool,
    pub(crate) mapped: bool,
    pub(crate) write_combined: bool,
}

/// Whether a stream is recording a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureStatus {
    None,
    Active,
    Invalidated,
}

/// A value repeated over memory: 1, 2 or 4 bytes wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillWord {
    U8(u8),
    U16(u16),
    U32(u32),
}

impl FillWord {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
        }
    }
}

/// What the crate needs of one device.
///
/// Every method may be called from any thread, makes the device's context current for the call and
/// restores the caller's, never panics, and blocks only where its name says `synchronize` (or where
/// the driver itself blocks: plain allocation and free, pageable copies). An error leaves nothing
/// half done.
///
/// # Safety
///
/// An implementation returns addresses of memory that is the caller's alone until it is freed, and
/// runs what it is given on a stream after all that was given to that stream before.
pub(crate) unsafe trait Driver: Send + Sync + fmt::Debug + 'static {
    fn kind(&self) -> BackendKind;

    /// Two drivers with one key serve the same context: memory and streams of the one are valid in
    /// the other. Never used again in this process.
    fn key(&self) -> u64;

    /// The device's number among its backend's devices.
    fn ordinal(&self) -> usize;

    fn properties(&self) -> &DeviceProperties;

    fn memory_info(&self) -> DriverResult<MemoryInfo>;

    /// `bytes > 0`; aligned to 256 at least.
    fn mem_alloc(&self, bytes: usize) -> DriverResult<DeviceAddress>;

    /// # Safety
    /// `address` came from [`mem_alloc`](Self::mem_alloc) or
    /// [`mem_alloc_managed`](Self::mem_alloc_managed) of this driver, is freed once, and no work
    /// that uses it is pending.
    unsafe fn mem_free(&self, address: DeviceAddress) -> DriverResult<()>;

    fn mem_alloc_managed(&self, bytes: usize) -> DriverResult<DeviceAddress>;

    /// Moves managed or pageable memory to this device, in the order of `stream`. Other memory is
    /// an invalid value, and a stream in capture loses its graph.
    ///
    /// # Safety
    /// The range is memory that stays so until the stream has passed this call.
    unsafe fn prefetch(
        &self,
        address: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()>;

    /// Says where managed or pageable memory is best.
    ///
    /// # Safety
    /// The range is memory of this process for the length of the call.
    unsafe fn advise(
        &self,
        address: DeviceAddress,
        bytes: usize,
        home: PreferredHome,
    ) -> DriverResult<()>;

    /// Makes ordinary host memory known to a device that reads it and could not find it by itself;
    /// nothing to do on a GPU.
    ///
    /// # Safety
    /// The range is memory of this process and stays so until it is detached.
    unsafe fn pageable_attach(&self, pointer: NonNull<u8>, bytes: usize) -> DriverResult<()>;

    /// # Safety
    /// The range was attached, and no device work uses it any more.
    unsafe fn pageable_detach(&self, pointer: NonNull<u8>) -> DriverResult<()>;

    /// A pool of our own.
    fn pool_create(&self, spec: PoolSpec) -> DriverResult<RawPool>;

    /// The device's own pool, which every library may use. Not ours to destroy.
    fn pool_default(&self) -> DriverResult<RawPool>;

    fn pool_get(&self, pool: RawPool, attribute: PoolAttribute) -> DriverResult<u64>;

    fn pool_set(&self, pool: RawPool, attribute: PoolAttribute, value: u64) -> DriverResult<()>;

    /// A file descriptor of a shareable pool, for another process; the caller's to close.
    #[cfg(unix)]
    fn pool_export(&self, pool: RawPool) -> DriverResult<i32>;

    /// # Safety
    /// Nothing is allocated from `pool` after this call. Live blocks stay valid until freed.
    unsafe fn pool_destroy(&self, pool: RawPool) -> DriverResult<()>;

    /// Gives free memory back to the system, but for `keep` bytes.
    fn pool_trim(&self, pool: RawPool, keep: usize) -> DriverResult<()>;

    /// `bytes > 0`. Usable in stream order after this call on `stream`.
    fn mem_alloc_async(
        &self,
        pool: RawPool,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<DeviceAddress>;

    /// # Safety
    /// `address` came from [`mem_alloc_async`](Self::mem_alloc_async), is freed once, and all work
    /// that uses it is ordered before this call on `stream`.
    unsafe fn mem_free_async(&self, address: DeviceAddress, stream: RawStream) -> DriverResult<()>;

    /// Page-locked host memory, page-aligned. `bytes > 0`.
    fn host_alloc(&self, bytes: usize, flags: HostFlags) -> DriverResult<NonNull<u8>>;

    /// # Safety
    /// `pointer` came from [`host_alloc`](Self::host_alloc), is freed once, and neither host nor
    /// device uses it any more.
    unsafe fn host_free(&self, pointer: NonNull<u8>) -> DriverResult<()>;

    /// # Safety
    /// The range is memory of this process and stays so until it is unregistered.
    unsafe fn host_register(
        &self,
        pointer: NonNull<u8>,
        bytes: usize,
        flags: HostFlags,
    ) -> DriverResult<()>;

    /// # Safety
    /// The range was registered with this driver, and no device work uses it any more.
    unsafe fn host_unregister(&self, pointer: NonNull<u8>) -> DriverResult<()>;

    /// The device's address of a mapped host block's first byte.
    fn host_device_address(&self, pointer: NonNull<u8>) -> DriverResult<DeviceAddress>;

    /// A new stream that does not wait for the legacy default stream.
    fn stream_create(&self) -> DriverResult<NewStream>;

    /// Destroys a stream that [`stream_create`](Self::stream_create) made, or lets go of a foreign
    /// one. Work in it still runs to its end.
    fn stream_destroy(&self, raw: RawStream, keep: StreamKeeper);

    fn legacy_stream(&self) -> RawStream;

    /// The calling thread's own default stream.
    fn per_thread_stream(&self) -> DriverResult<RawStream>;

    fn stream_synchronize(&self, stream: RawStream) -> DriverResult<()>;

    fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> DriverResult<()>;

    /// Never invalidates a capture.
    fn capture_status(&self, stream: RawStream) -> DriverResult<CaptureStatus>;

    /// Begins to record what `stream` is given from here on instead of running it, in relaxed mode.
    ///
    /// In that mode no call on any thread loses the capture but those that name its streams or
    /// events, and the capture may be ended on any thread. The stricter modes would refuse, and lose
    /// the graph over, every plain allocation, event query and module load: global mode those of
    /// all threads, thread-local mode those of this one, where a library that is called for the first
    /// time while the capture runs allocates its workspace or loads its kernels. What they would
    /// catch, memory that the graph does not own, is the launch's contract here.
    fn stream_begin_capture(&self, stream: RawStream) -> DriverResult<()>;

    /// Ends the capture that began on `stream` and makes its work executable. On an error there is no
    /// graph; the stream is out of capture unless the driver could not even be asked, or the capture
    /// is another stream's, which is lost then.
    fn stream_end_capture(&self, stream: RawStream) -> DriverResult<RawGraph>;

    /// Ends the capture that began on `stream` and throws away what it recorded, be it whole or lost.
    fn stream_abandon_capture(&self, stream: RawStream) -> DriverResult<()>;

    /// Runs all of a graph on `stream`, after what that stream was given before and after all former
    /// launches of the same graph.
    ///
    /// # Safety
    /// The contracts of the calls that were captured hold from here until the stream has passed this
    /// one. No other thread launches or destroys the same graph meanwhile.
    unsafe fn graph_launch(&self, graph: RawGraph, stream: RawStream) -> DriverResult<()>;

    /// Destroys a graph; launches that are on their way still run to their end.
    ///
    /// # Safety
    /// `graph` is destroyed once and not used after.
    unsafe fn graph_destroy(&self, graph: RawGraph) -> DriverResult<()>;

    /// An event without timing.
    fn event_create(&self) -> DriverResult<RawEvent>;

    /// # Safety
    /// `event` is destroyed once and not used after.
    unsafe fn event_destroy(&self, event: RawEvent) -> DriverResult<()>;

    fn event_record(&self, event: RawEvent, stream: RawStream) -> DriverResult<()>;

    /// Whether the device has passed the event's last record. An event never recorded has passed.
    fn event_query(&self, event: RawEvent) -> DriverResult<bool>;

    fn event_synchronize(&self, event: RawEvent) -> DriverResult<()>;

    /// Records an event that covers all work of the context so far, on every stream.
    fn context_record(&self, event: RawEvent) -> DriverResult<()>;

    fn context_synchronize(&self) -> DriverResult<()>;

    /// Calls `body`, once, while the device's context is the calling thread's current one: for who asks
    /// the driver on his own what that is.
    #[cfg_attr(not(feature = "nvtx"), allow(dead_code, reason = "tools alone do"))]
    fn with_current(&self, body: &mut dyn FnMut()) -> DriverResult<()>;

    /// # Safety
    /// `source` is readable and `target` is device memory for `bytes`; both stay so, and the host
    /// does not write `source`, until the stream has passed this copy.
    unsafe fn copy_to_device(
        &self,
        target: DeviceAddress,
        source: *const u8,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()>;

    /// # Safety
    /// `source` is device memory and `target` writable for `bytes`; both stay so, and the host does
    /// not touch `target`, until the stream has passed this copy.
    unsafe fn copy_to_host(
        &self,
        target: *mut u8,
        source: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()>;

    /// # Safety
    /// Both ranges are device memory of this driver and stay so until the stream has passed.
    unsafe fn copy_on_device(
        &self,
        target: DeviceAddress,
        source: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()>;

    /// A copy from another device of the same backend, on a stream of this one.
    ///
    /// # Safety
    /// As [`copy_on_device`](Self::copy_on_device), `source` being memory of `from`.
    unsafe fn copy_from_peer(
        &self,
        target: DeviceAddress,
        from: &dyn Driver,
        source: DeviceAddress,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()>;

    /// Writes `word` at `target`, `target + stride`, ..., `count` times. A `stride` equal to the
    /// word's width fills a whole range.
    ///
    /// # Safety
    /// All of it is device memory and stays so until the stream has passed.
    unsafe fn fill(
        &self,
        target: DeviceAddress,
        stride: usize,
        word: FillWord,
        count: usize,
        stream: RawStream,
    ) -> DriverResult<()>;

    /// # Safety
    /// The kernel, with these arguments and this grid, touches only the ranges that the arguments
    /// declare, in the way they declare it; they stay valid until the stream has passed.
    unsafe fn launch(
        &self,
        kernel: &Kernel,
        config: &LaunchConfig,
        arguments: &[RawArg],
        stream: RawStream,
    ) -> DriverResult<()>;

    /// Whether a copy into this host memory may still run when its call has returned: it is
    /// page-locked. Copies into other memory are complete by then, by the driver's manual.
    /// `true` where nobody can say.
    fn is_page_locked(&self, pointer: *const u8) -> bool;

    /// After a synchronising call failed: whether the device has surely stopped all that it was
    /// given, so that it writes no host memory any more. `false` where nobody can say.
    fn has_stopped(&self) -> bool;

    /// The backend itself, for what only one of them has.
    fn as_any(&self) -> &dyn Any;
}

/// Turns a driver's failure into the crate's error, saying what was wanted.
pub(crate) trait Wanted<T> {
    fn wanted<M: Into<String>>(self, message: impl FnOnce() -> M) -> Result<T, Error>;
}

impl<T> Wanted<T> for DriverResult<T> {
    fn wanted<M: Into<String>>(self, message: impl FnOnce() -> M) -> Result<T, Error> {
        self.map_err(|driver| Error::driver_call(message(), driver))
    }
}

//! The calls of a driver, in raw handles and addresses.

use crate::arguments::RawArg;
use crate::error::{DriverError, Error};
use crate::host_function::HostFunction;
use crate::ipc::IpcCalls;
use crate::kernel::{Kernel, LaunchConfig};
use crate::peer::PeerCalls;
use crate::properties::{BackendKind, DeviceProperties, MemoryInfo};
use crate::raw::{
    DeviceAddress, DeviceRange, DriverResult, RawEvent, RawGraph, RawPool, RawStream,
};
use crate::sync::Arc;
use crate::virtual_memory::VirtualCalls;
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

/// The preferred location of managed or pageable memory (`cuMemAdvise`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreferredLocation {
    Device,
    Host,
    /// No preferred location, which is the default. It takes a former preference back.
    Any,
}

/// Where managed or pageable memory goes (`cuMemPrefetchAsync`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLocation {
    /// The memory's device.
    Device,
    /// The host.
    Host,
}

/// The properties of a new memory pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSpec {
    /// Free bytes that the pool caches over synchronisations.
    pub release_threshold: u64,
    /// The pool can be shared with other processes, as a file descriptor.
    pub shareable: bool,
    /// The pool can be shared with other nodes of a fabric (CUDA 12.3).
    pub fabric: bool,
    /// The pool is of managed memory (CUDA 13).
    pub managed: bool,
}

impl PoolSpec {
    pub fn keeping(release_threshold: u64) -> Self {
        Self { release_threshold, ..Self::default() }
    }
}

/// The attributes of a pool, by CUDA's numbers. The first three are switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolAttribute {
    FollowEventDependencies = 1,
    AllowOpportunistic = 2,
    AllowInternalDependencies = 3,
    ReleaseThreshold = 4,
    ReservedCurrent = 5,
    ReservedHigh = 6,
    UsedCurrent = 7,
    UsedHigh = 8,
}

/// A new stream, and its owner.
pub struct NewStream {
    pub raw: RawStream,
    pub keep: StreamKeeper,
}

/// cudarc's own handle, which keeps a stream alive. `None` if the driver keeps it alive.
pub type StreamKeeper = Option<Box<dyn Any + Send + Sync>>;

/// The flags of page-locked host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HostFlags {
    pub portable: bool,
    pub mapped: bool,
    pub write_combined: bool,
    /// Of memory of the caller that the device only reads.
    pub read_only: bool,
}

/// Whether a stream is in capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    None,
    Active,
    Invalidated,
}

/// A value of 1, 2 or 4 bytes that is repeated over memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillWord {
    U8(u8),
    U16(u16),
    U32(u32),
}

impl FillWord {
    pub fn bytes(self) -> usize {
        match self {
            Self::U8(_) => 1,
            Self::U16(_) => 2,
            Self::U32(_) => 4,
        }
    }
}

/// A copy, from and to pointers of the host or addresses of the device.
#[derive(Clone, Copy, Debug)]
pub struct RawCopy<T, S> {
    pub target: T,
    pub source: S,
    pub bytes: usize,
}

pub type CopyToDevice = RawCopy<DeviceAddress, *const u8>;
pub type CopyToHost = RawCopy<*mut u8, DeviceAddress>;
pub type CopyOnDevice = RawCopy<DeviceAddress, DeviceAddress>;

/// Writes `word` at `target`, `target + stride`, ..., `count` times. A `stride` equal to the word's
/// width fills a whole range.
#[derive(Clone, Copy, Debug)]
pub struct RawFill {
    pub target: DeviceAddress,
    pub stride: usize,
    pub word: FillWord,
    pub count: usize,
}

/// A launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct RawLaunch<'a> {
    pub kernel: &'a Kernel,
    pub config: &'a LaunchConfig,
    pub arguments: &'a [RawArg],
}

/// The driver of one device.
///
/// Its calls are in traits, one for each group. Every method may be called from any thread. It makes
/// the device's context current for the call and restores the caller's. It does not panic. It blocks
/// only if its name says `synchronize`, or where the driver itself blocks. The driver does so in plain
/// allocation and free and in pageable copies. An error leaves nothing half done.
///
/// # Safety
///
/// An implementation returns addresses of memory that is the caller's alone until it is freed. It runs
/// the work of a stream in the order of the calls. Both hold for the calls of each group.
pub unsafe trait Driver:
    MemoryCalls
    + VirtualCalls
    + PoolCalls
    + IpcCalls
    + PeerCalls
    + StreamCalls
    + GraphCalls
    + WorkCalls
    + Send
    + Sync
    + fmt::Debug
    + 'static
{
    fn kind(&self) -> BackendKind;

    /// The number of the context, which is never used again in this process. Memory and streams of one
    /// driver are valid in another with the same number.
    fn context_id(&self) -> u64;

    /// The device's number among those of its kind.
    fn ordinal(&self) -> usize;

    fn properties(&self) -> &DeviceProperties;

    /// Calls `body` once with the device's context current. Tools in `body` can read the current context, and several
    /// calls there look at it once.
    fn with_current(&self, body: &mut dyn FnMut()) -> DriverResult<()>;

    /// Whether host memory is page-locked, so that a copy to it may run after its call has returned. By
    /// the driver's manual, copies to other memory are complete by then. `true` if unknown.
    fn is_page_locked(&self, pointer: *const u8) -> bool;

    /// Whether the device has certainly stopped all work after a failed synchronisation, so that it no longer writes
    /// host memory. `false` if unknown.
    fn has_stopped(&self) -> bool;

    /// Whether the device works while no call asks for anything, so that a later query may find the work done.
    fn works_unasked(&self) -> bool {
        true
    }

    /// The error that a synchronisation returns even if it has nothing to wait for. On the simulated
    /// device it is the first report that was not taken.
    fn check(&self) -> DriverResult<()> {
        Ok(())
    }

    /// The calls that tell of the parts that pools cut from this device's memory. `None` if nothing follows the parts.
    fn regions(&self) -> Option<&dyn RegionCalls> {
        None
    }

    /// The copies of what pools put aside while they sleep. `None` if they are ordinary ones.
    fn aside(&self) -> Option<&dyn AsideCalls> {
        None
    }

    /// The implementation itself, for code that only one of them needs.
    fn as_any(&self) -> &dyn Any;
}

/// The calls by which a device learns of vectors, and of the parts that pools cut from its memory. They are no calls of
/// CUDA's, and none is refused. `pool` is a number that no other pool has.
pub trait RegionCalls {
    /// Tells that a range is the pool's from now on. It may be a region of a pool below.
    fn heap_register(&self, pool: u64, heap: DeviceRange);

    /// Tells that a range is the pool's no more.
    fn heap_unregister(&self, pool: u64, heap: DeviceRange);

    /// Answers [`event_query`](StreamCalls::event_query) for a pool. The answer orders the memory that pools hand out
    /// from now on, and nothing else. A pool asks when it has no memory at hand, and an ordinary query would then hide
    /// that work of the user's lacks a wait.
    fn event_query_for_pool(&self, event: RawEvent) -> DriverResult<bool>;

    /// Tells that a part of a heap is handed out, for work that is ordered after what `stream` was given so far.
    fn region_register(&self, pool: u64, region: DeviceRange, stream: RawStream);

    /// Tells that a region has `bytes` bytes now. Bytes that it gained are for work that is ordered after what `stream`
    /// was given so far. Bytes that it lost are freed after that.
    fn region_resize(&self, pool: u64, region: DeviceRange, bytes: usize, stream: RawStream);

    /// Tells that a part of a heap is freed, after what `stream` was given so far. With `kept_for_graph`, launches of
    /// graphs may still use it.
    fn region_unregister(
        &self,
        pool: u64,
        region: DeviceRange,
        stream: RawStream,
        kept_for_graph: bool,
    );

    /// Tells what a container makes of a range. The range may be in any memory of the device.
    fn vector(&self, range: DeviceRange, event: VectorEvent);
}

/// The copies of memory that a pool puts aside while it sleeps, on a device that knows of each byte whether it was
/// written. What it knows is put aside, too. They are done on return.
pub trait AsideCalls {
    /// Copies a part of mapped memory to the host.
    ///
    /// # Safety
    /// `target` is writable for the bytes of the range. No work that the host has not seen complete uses the range.
    unsafe fn put_aside(&self, range: DeviceRange, target: *mut u8) -> DriverResult<()>;

    /// Copies what was put aside of a range to memory that is mapped there now. Without a source all of it is zero.
    ///
    /// # Safety
    /// `source` is null, or readable for the bytes of the range. No work uses the range.
    unsafe fn bring_back(&self, range: DeviceRange, source: *const u8) -> DriverResult<()>;
}

/// The type and the size of a vector, for reports.
#[derive(Clone, Copy, Debug)]
pub struct VectorType {
    /// The type's name, by [`std::any::type_name`].
    pub name: &'static str,
    pub elements: usize,
    pub bytes: usize,
}

/// The new role of a range of memory.
#[derive(Clone, Copy, Debug)]
pub enum VectorEvent {
    /// The range was allocated for a vector.
    Made(VectorType),
    /// The range is a vector's from now on, unless it is one's already.
    Assembled(VectorType),
    /// The range is no vector's any more.
    TakenApart,
}

/// The calls of a [`Driver`] on memory of the device and of the host.
pub trait MemoryCalls {
    fn memory_info(&self) -> DriverResult<MemoryInfo>;

    /// Whether the driver knows the memory at an address. It does not know ordinary memory of the host.
    fn is_known(&self, address: DeviceAddress) -> DriverResult<bool>;

    /// `bytes > 0`. The address is aligned to 256 bytes at least.
    fn mem_alloc(&self, bytes: usize) -> DriverResult<DeviceAddress>;

    /// # Safety
    /// `address` came from [`mem_alloc`](Self::mem_alloc) or
    /// [`mem_alloc_managed`](Self::mem_alloc_managed) of this driver, is freed once, and no work
    /// that uses it is pending.
    unsafe fn mem_free(&self, address: DeviceAddress) -> DriverResult<()>;

    fn mem_alloc_managed(&self, bytes: usize) -> DriverResult<DeviceAddress>;

    /// Migrates managed or pageable memory, in the order of `stream`. Other memory is an invalid value.
    /// The call invalidates a capture.
    ///
    /// # Safety
    /// The range is memory that stays so until the stream has passed this call.
    unsafe fn prefetch(
        &self,
        range: DeviceRange,
        to: MemoryLocation,
        stream: RawStream,
    ) -> DriverResult<()>;

    /// Sets the preferred location of managed or pageable memory.
    ///
    /// # Safety
    /// The range is memory of this process for the length of the call.
    unsafe fn advise(&self, range: DeviceRange, preferred: PreferredLocation) -> DriverResult<()>;

    /// Makes ordinary host memory known to a device that can access it. A GPU needs no such call, and
    /// its driver does nothing here.
    ///
    /// # Safety
    /// The range is memory of this process and stays so until it is detached.
    unsafe fn pageable_attach(&self, pointer: NonNull<u8>, bytes: usize) -> DriverResult<()>;

    /// # Safety
    /// The range was attached, and no device work uses it any more.
    unsafe fn pageable_detach(&self, pointer: NonNull<u8>) -> DriverResult<()>;

    /// Page-locked host memory, page-aligned. `bytes > 0`.
    fn host_alloc(&self, bytes: usize, flags: HostFlags) -> DriverResult<NonNull<u8>>;

    /// # Safety
    /// `pointer` came from [`host_alloc`](Self::host_alloc), is freed once, and neither host nor
    /// device uses it any more.
    unsafe fn host_free(&self, pointer: NonNull<u8>) -> DriverResult<()>;

    /// # Safety
    /// The range is memory of this process and stays so until it is unregistered.
    unsafe fn host_register(&self, memory: NonNull<[u8]>, flags: HostFlags) -> DriverResult<()>;

    /// # Safety
    /// The range was registered with this driver, and no device work uses it any more.
    unsafe fn host_unregister(&self, pointer: NonNull<u8>) -> DriverResult<()>;

    /// The device's address of a mapped host block's first byte.
    fn host_device_address(&self, pointer: NonNull<u8>) -> DriverResult<DeviceAddress>;
}

/// The calls of a [`Driver`] on memory pools, whose memory is allocated and freed in stream order.
pub trait PoolCalls {
    /// A new memory pool.
    fn pool_create(&self, spec: PoolSpec) -> DriverResult<RawPool>;

    /// The device's default pool, which any library may use. It is never destroyed.
    fn pool_default(&self) -> DriverResult<RawPool>;

    fn pool_get(&self, pool: RawPool, attribute: PoolAttribute) -> DriverResult<u64>;

    fn pool_set(&self, pool: RawPool, attribute: PoolAttribute, value: u64) -> DriverResult<()>;

    /// A file descriptor of a shareable pool, for another process. The caller closes it.
    #[cfg(unix)]
    fn pool_export(&self, pool: RawPool) -> DriverResult<i32>;

    /// # Safety
    /// Nothing is allocated from `pool` after this call. Live blocks stay valid until freed.
    unsafe fn pool_destroy(&self, pool: RawPool) -> DriverResult<()>;

    /// Returns cached memory to the system, except for `keep` bytes.
    fn pool_trim(&self, pool: RawPool, keep: usize) -> DriverResult<()>;

    /// `bytes > 0`. The block is usable on `stream` at once, and elsewhere in an order after this call.
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
}

/// The calls of a [`Driver`] on streams, events and the context.
pub trait StreamCalls {
    /// A new stream that does not wait for the legacy default stream.
    fn stream_create(&self) -> DriverResult<NewStream>;

    /// A new stream that waits for the legacy default stream, and that the legacy default stream waits for.
    fn stream_create_blocking(&self) -> DriverResult<NewStream>;

    /// Destroys a stream that this driver made, or drops the reference on a foreign
    /// one. Its work still runs to the end.
    fn stream_destroy(&self, raw: RawStream, keep: StreamKeeper);

    /// The keeper that the crate holds for a stream that another library keeps alive.
    fn stream_borrow(&self, raw: RawStream) -> DriverResult<StreamKeeper>;

    /// The driver's own number of a stream, which is never used again. The call invalidates a capture
    /// of the stream.
    fn stream_number(&self, raw: RawStream) -> DriverResult<u64>;

    /// Whether others may have made a stream of the context, or used a thread's own default stream there. `true` where
    /// that cannot be told. The call is slow, since it makes a stream.
    fn may_have_foreign_streams(&self) -> bool;

    fn legacy_stream(&self) -> RawStream;

    /// The calling thread's own default stream.
    fn per_thread_stream(&self) -> DriverResult<RawStream>;

    fn stream_synchronize(&self, stream: RawStream) -> DriverResult<()>;

    /// Whether the stream has done all that it was given so far. The call invalidates a capture of the stream.
    fn stream_query(&self, stream: RawStream) -> DriverResult<bool>;

    fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> DriverResult<()>;

    /// An event without timing.
    fn event_create(&self) -> DriverResult<RawEvent>;

    /// # Safety
    /// `event` is destroyed once and not used after.
    unsafe fn event_destroy(&self, event: RawEvent) -> DriverResult<()>;

    fn event_record(&self, event: RawEvent, stream: RawStream) -> DriverResult<()>;

    /// Whether the device has passed the event's last record. `true` if it was never recorded.
    fn event_query(&self, event: RawEvent) -> DriverResult<bool>;

    fn event_synchronize(&self, event: RawEvent) -> DriverResult<()>;

    /// Records an event that covers all work of the context so far, on every stream.
    fn context_record(&self, event: RawEvent) -> DriverResult<()>;

    fn context_synchronize(&self) -> DriverResult<()>;
}

/// The calls of a [`Driver`] on captures, and on the graphs that they become.
pub trait GraphCalls {
    /// The status of a stream's capture. The call never invalidates a capture.
    fn capture_status(&self, stream: RawStream) -> DriverResult<CaptureStatus>;

    /// Begins a capture on `stream` in relaxed mode, so that later work is recorded instead of run.
    ///
    /// In that mode only calls that name a stream or an event of the capture can invalidate it, and any thread may end
    /// it. The stricter modes refuse every plain allocation, event query and module load, and invalidate the capture.
    /// Global mode does so on all threads. Thread-local mode does so on this thread, where a library may allocate its
    /// workspace or load its kernels on first use. Those modes would find uses of memory that the graph does not own,
    /// but here that is part of the contract of the launch.
    fn stream_begin_capture(&self, stream: RawStream) -> DriverResult<()>;

    /// Ends the capture that began on `stream` and instantiates its graph. After an error there is no graph, and the
    /// stream is out of capture, with two exceptions. Either the driver could not be called, or the capture began on
    /// another stream, which invalidates it.
    fn stream_end_capture(&self, stream: RawStream) -> DriverResult<RawGraph>;

    /// Ends the capture that began on `stream`, valid or not, and discards its work.
    fn stream_abandon_capture(&self, stream: RawStream) -> DriverResult<()>;

    /// Runs a graph on `stream`, after all former work of that stream and all former launches of the
    /// graph.
    ///
    /// # Safety
    /// The contracts of the captured calls hold until the stream has passed this one. No other thread
    /// launches or destroys the graph meanwhile.
    unsafe fn graph_launch(&self, graph: RawGraph, stream: RawStream) -> DriverResult<()>;

    /// Destroys a graph. Pending launches still run to the end.
    ///
    /// # Safety
    /// `graph` is destroyed once and not used after.
    unsafe fn graph_destroy(&self, graph: RawGraph) -> DriverResult<()>;
}

/// The calls of a [`Driver`] that enqueue copies, fills, kernels and functions of the host.
pub trait WorkCalls {
    /// # Safety
    /// The source is readable and the target is device memory for `bytes`. Both stay so until the stream has passed
    /// this copy, and until then the host does not write the source.
    unsafe fn copy_to_device(&self, copy: CopyToDevice, stream: RawStream) -> DriverResult<()>;

    /// # Safety
    /// The source is device memory and the target is writable for `bytes`. Both stay so until the stream has passed
    /// this copy, and until then the host does not touch the target.
    unsafe fn copy_to_host(&self, copy: CopyToHost, stream: RawStream) -> DriverResult<()>;

    /// # Safety
    /// Both ranges are device memory of this driver and stay so until the stream has passed.
    unsafe fn copy_on_device(&self, copy: CopyOnDevice, stream: RawStream) -> DriverResult<()>;

    /// A copy from another device of the same kind, on a stream of this one.
    ///
    /// # Safety
    /// The contract of [`copy_on_device`](Self::copy_on_device), for a source in memory of `from`.
    unsafe fn copy_from_peer(
        &self,
        copy: CopyOnDevice,
        from: &dyn Driver,
        stream: RawStream,
    ) -> DriverResult<()>;

    /// # Safety
    /// All of it is device memory and stays so until the stream has passed.
    unsafe fn fill(&self, fill: RawFill, stream: RawStream) -> DriverResult<()>;

    /// # Safety
    /// The kernel, with these arguments and this grid, accesses only the ranges that the arguments
    /// declare, in the declared way. The ranges stay valid until the stream has passed.
    unsafe fn launch(&self, launch: RawLaunch<'_>, stream: RawStream) -> DriverResult<()>;

    /// Has `function` called when the stream is past all that it was given, on a thread that is no program's, by
    /// [`run_in_host_function`](crate::run_in_host_function). What the stream is given after this waits for its end. It is
    /// called once, and after an error never. Refused in a capture.
    fn launch_host_function(
        &self,
        function: Arc<dyn HostFunction>,
        stream: RawStream,
    ) -> DriverResult<()>;
}

/// Whether the call that returned this error has ended its capture all the same. Then the capture was
/// invalidated or not joined, and there is nothing to discard.
pub fn has_ended_capture(error: &DriverError) -> bool {
    matches!(
        error.code(),
        DriverError::STREAM_CAPTURE_INVALIDATED | DriverError::STREAM_CAPTURE_UNJOINED
    )
}

/// Turns a driver's error into the crate's, with what was attempted.
pub trait ErrorContext<T> {
    #[track_caller]
    fn with_context<M: Into<String>>(self, message: impl FnOnce() -> M) -> Result<T, Error>;
}

impl<T> ErrorContext<T> for DriverResult<T> {
    fn with_context<M: Into<String>>(self, message: impl FnOnce() -> M) -> Result<T, Error> {
        // Not `map_err`, whose closure would be the caller that the error names.
        match self {
            Ok(done) => Ok(done),
            Err(driver) => Err(Error::driver_call(message(), driver)),
        }
    }
}

//! The handle by which tests inspect a simulated device and make it fail.

use super::calls::Call;
use super::check::Report;
use super::run::discard_queues;
use super::state::{BlockKind, InjectedFailure, SimBlock, SimContext, lock_state, notify_changed};
use aquifer_driver::error::{DriverError, Error, Result, ensure};
use aquifer_driver::impls::debug_struct;
use aquifer_driver::{CaptureStatus, DriverResult, ErrorContext, RawStream, names};
use aquifer_sync::Arc;

/// A handle on a simulated device, with its reports, its counts of driver calls, and failures to
/// inject.
///
/// A handle is cheap to clone. It stays usable when the device is gone, and does not keep the device
/// alive.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, ErrorKind, sim::SimConfig};
///
/// let device = Device::simulated(SimConfig::default());
/// let stream = device.new_stream()?;
/// let simulator = device.simulator().unwrap();
/// simulator.fail_call("cuMemAlloc", 2, 2)?; // the second from here, with CUDA_ERROR_OUT_OF_MEMORY
/// let plain = CudaResource::new(&device);
/// let first = DeviceVec::<u8>::zeroed_in(&stream, 100, plain.clone())?;
/// let second = DeviceVec::<u8>::zeroed_in(&stream, 100, plain).unwrap_err();
/// assert_eq!(second.kind(), ErrorKind::OutOfMemory);
/// assert_eq!(simulator.call_count("cuMemAlloc"), 2);
/// simulator.check()?; // and no report
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct Simulator {
    pub(super) context: Arc<SimContext>,
}

debug_struct!(Simulator { seed(), .. });

impl Simulator {
    /// The seed that replays this device's schedule.
    pub fn seed(&self) -> u64 {
        self.context.config.seed
    }

    /// The reports that were not taken, oldest first. The first 1024 are kept.
    pub fn reports(&self) -> Vec<Report> {
        self.context.log.lock().reports.iter().map(|report| Report::clone(report)).collect()
    }

    /// Takes the reports. Synchronisations, and all else that waits, return the first of them until then.
    pub fn take_reports(&self) -> Vec<Report> {
        let taken = self.context.take_reports();
        taken.iter().map(|report| Report::clone(report)).collect()
    }

    /// Checks that the device found no violation so far. Synchronise first, since operations that have
    /// not run may still add one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Simulation`](crate::ErrorKind::Simulation) if there is a report that was not
    /// taken. The first one is the source of the driver error behind it.
    pub fn check(&self) -> Result<()> {
        let reports = self.reports();
        let saw = match reports.len() {
            1 => "a violation".into(),
            count => format!("{count} violations, of which the first is this"),
        };
        let Some(first) = reports.into_iter().next() else { return Ok(()) };
        let code = DriverError::LAUNCH_FAILED;
        let driver = DriverError::with_detail("simulated device", code, Arc::new(first));
        Err(Error::driver_call(format!("the simulated device saw {saw}"), driver))
    }

    /// Makes the `nth` call of a driver function from now on fail once with `code`. The next call is the first. `code`
    /// is a number of CUDA's, or of NCCL's for a function of NCCL. `call` is one of [`CALLS`](Self::CALLS). A device
    /// that is gone makes no more calls.
    ///
    /// A code of CUDA's that means a lost context, such as 700, loses it. Then queued operations are discarded,
    /// captures are invalidated, and every later call returns that code.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the call is none of those, or `nth` or
    /// `code` is zero. A test of a failure that never happens would pass for the wrong reason.
    pub fn fail_call(&self, call: &str, nth: u64, code: u32) -> Result<()> {
        ensure!(
            Self::CALLS.contains(&call),
            InvalidArgument,
            "name one of Simulator::CALLS",
            "a call of {call} was to fail, which can be made to fail on no simulated device"
        );
        ensure!(
            nth > 0,
            InvalidArgument,
            "count from 1, which is the next one",
            "call 0 of {call} was to fail"
        );
        ensure!(
            code != 0,
            InvalidArgument,
            "give a number of CUresult's that is an error",
            "{call} was to fail with 0, which is CUDA_SUCCESS"
        );
        let failure = InjectedFailure { call: call.to_owned(), left: nth, code };
        self.context.log.lock().failures.push(failure);
        Ok(())
    }

    /// The driver calls that the device counts and that can be made to fail, by their names in CUDA's manual. A stream
    /// whose destruction failed stays in the simulation, and no error tells of it.
    pub const CALLS: [&'static str; 80] = names! {
        cuCtxEnablePeerAccess cuCtxRecordEvent cuCtxSynchronize cuDeviceGetDefaultMemPool
        cuDeviceGetUuid cuEventCreate cuEventDestroy cuEventQuery cuEventRecord
        cuEventSynchronize cuGraphExecDestroy cuGraphInstantiate cuGraphLaunch
        cuIpcCloseMemHandle cuIpcGetMemHandle cuIpcOpenMemHandle cuLaunchKernel
        cuMemAddressFree cuMemAddressReserve cuMemAdvise cuMemAlloc cuMemAllocFromPoolAsync
        cuMemAllocManaged cuMemCreate cuMemExportToShareableHandle cuMemFree cuMemFreeAsync
        cuMemFreeHost cuMemGetAddressRange cuMemGetAllocationGranularity cuMemGetInfo
        cuMemHostAlloc cuMemHostGetDevicePointer cuMemHostRegister cuMemHostUnregister
        cuMemImportFromShareableHandle cuMemMap cuMemPoolCreate cuMemPoolDestroy
        cuMemPoolExportPointer cuMemPoolExportToShareableHandle cuMemPoolGetAttribute
        cuMemPoolImportFromShareableHandle cuMemPoolImportPointer cuMemPoolSetAccess
        cuMemPoolSetAttribute cuMemPoolTrimTo cuMemPrefetchAsync cuMemRelease
        cuMemRetainAllocationHandle cuMemSetAccess cuMemUnmap cuMemcpyDtoDAsync
        cuMemcpyDtoHAsync cuMemcpyHtoDAsync cuMemcpyPeerAsync cuMemsetAsync
        cuPointerGetAttributes cuStreamAddCallback cuStreamBeginCapture cuStreamCreate cuStreamDestroy
        cuStreamEndCapture cuStreamGetId cuStreamIsCapturing cuStreamQuery cuStreamSynchronize
        cuStreamWaitEvent ncclAllGather ncclAllReduce ncclBroadcast ncclCommDeregister
        ncclCommInitRank ncclCommRegister ncclGetUniqueId ncclMemAlloc ncclRecv ncclReduce
        ncclReduceScatter ncclSend
    };

    /// Loses the context. Queued operations are discarded, captures are invalidated, and every later call returns
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED`. A host form that is running runs to its end. Calls that wait return after
    /// that, so its memory may be freed then.
    pub fn lose_context(&self) {
        let mut state = lock_state();
        self.context.lose(DriverError::CONTEXT_IS_DESTROYED);
        discard_queues(&mut state, self.context.id);
    }

    /// The driver functions called so far, by name, and how often. Each name is one of [`CALLS`](Self::CALLS). A
    /// simulated device makes no other calls of a GPU's driver, such as to load a module.
    pub fn calls(&self) -> Vec<(&'static str, u64)> {
        self.context.log.lock().calls.iter().map(|(&call, &count)| (call, count)).collect()
    }

    /// How often a driver function was called, such as `cuEventRecord`.
    pub fn call_count(&self, call: &str) -> u64 {
        self.calls().iter().find(|(name, _)| *name == call).map_or(0, |&(_, count)| count)
    }

    fn blocks(&self, is_counted: impl Fn(BlockKind) -> bool) -> (usize, u64) {
        let state = lock_state();
        let own = |block: &&SimBlock| block.device == self.context.id && is_counted(block.kind);
        state
            .blocks
            .iter()
            .filter(own)
            .fold((0, 0), |(count, bytes), block| (count + 1, bytes + block.bytes))
    }

    /// Bytes of device memory, managed memory and handles included, that are allocated and not freed.
    pub fn live_bytes(&self) -> usize {
        (self.blocks(BlockKind::is_device_memory).1 + self.handles().1) as usize
    }

    /// Blocks of device memory, managed memory and handles included, that are allocated and not freed.
    pub fn live_blocks(&self) -> usize {
        self.blocks(BlockKind::is_device_memory).0 + self.handles().0
    }

    fn handles(&self) -> (usize, u64) {
        lock_state().virtual_memory.totals(self.context.id)
    }

    /// Blocks of page-locked host memory that are allocated and not freed.
    pub fn host_blocks(&self) -> usize {
        self.blocks(|kind| matches!(kind, BlockKind::Host(_))).0
    }

    /// Blocks of ordinary host memory that the device reaches, of a
    /// `SystemResource`, that are not freed.
    pub fn pageable_blocks(&self) -> usize {
        self.blocks(|kind| kind == BlockKind::Pageable).0
    }

    /// Ranges of host memory that are registered.
    pub fn registered_ranges(&self) -> usize {
        self.blocks(|kind| matches!(kind, BlockKind::Registered(_))).0
    }

    /// A stream as another library makes it, by its driver's handle. It is for tests of
    /// `Stream::from_handle`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ContextLost`](crate::ErrorKind::ContextLost).
    pub fn create_foreign_stream(&self) -> Result<u64> {
        self.context.check_alive("cuStreamCreate").with_context(|| "making a stream")?;
        let mut state = lock_state();
        state.note_foreign_stream(self.context.id);
        let handle = state.add_stream(self.context.id);
        state.foreign_handles.insert(handle);
        Ok(handle)
    }

    /// Makes a stream as [`create_foreign_stream`](Self::create_foreign_stream) does, with the handle of such a stream
    /// that was destroyed. A driver uses handles again, too.
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for the handle of a stream that
    /// lives, or of none.
    pub fn reuse_foreign_handle(&self, handle: u64) -> Result<()> {
        self.context.check_alive("cuStreamCreate").with_context(|| "making a stream")?;
        let mut state = lock_state();
        let former = state.stream_behind(RawStream(handle));
        let is_free = state.foreign_handles.contains(&handle)
            && state.streams.get(&former).is_none_or(|stream| stream.destroyed);
        ensure!(
            is_free,
            InvalidArgument,
            "destroy the stream of the handle first",
            "the handle {handle:#x} was to become that of another stream"
        );
        let id = state.add_stream(self.context.id);
        state.behind_used_handles.insert(handle, id);
        Ok(())
    }

    /// Destroys a stream of [`create_foreign_stream`](Self::create_foreign_stream), as its owner. Work that it was
    /// given runs to its end. A later call that names it is an error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Driver`](crate::ErrorKind::Driver) for a handle that no stream has.
    pub fn destroy_foreign_stream(&self, handle: u64) -> Result<()> {
        Call::unchecked(&self.context, "cuStreamDestroy")
            .destroy_stream(RawStream(handle))
            .with_context(|| format!("destroying the stream of handle {handle:#x}"))
    }

    /// Holds up a stream, or lets it go on. `false` if the device has none of this handle.
    pub(crate) fn set_stalled(&self, stream: RawStream, stalled: bool) -> bool {
        let found = lock_state().stall_streams(self.context.id, Some(stream.0), stalled);
        notify_changed();
        found
    }

    /// Begins a capture, in a call that is neither counted nor refused.
    pub(crate) fn begin_capture(&self, stream: RawStream) -> DriverResult<()> {
        Call::unchecked(&self.context, "cuStreamBeginCapture").begin_capture(stream)
    }

    /// Ends a capture on any thread, drops its recording, and returns its former status.
    pub(crate) fn end_capture(&self, stream: RawStream) -> CaptureStatus {
        let id = lock_state().stream_behind(stream);
        match Call::unchecked(&self.context, "cuStreamEndCapture").end_capture(id) {
            Ok(_) => CaptureStatus::Active,
            Err(error) if error.code() == DriverError::ILLEGAL_STATE => CaptureStatus::None,
            Err(_) => CaptureStatus::Invalidated,
        }
    }
}

//! The handle by which tests look into a simulated device and make it fail.

use super::capture;
use super::ledger::Ledger;
use super::report::Report;
use super::schedule;
use super::table::{Block, Kind};
use super::world::world;
use crate::backend::{CaptureStatus, DriverResult, RawStream};
use crate::error::{DriverError, Error, ErrorKind, Result};
use crate::sync::Arc;
use std::fmt;

/// A handle on a simulated device: what it reported, what was called, and how to make it fail.
///
/// Cheap to clone. It stays usable when the device is gone; the device does not stay for it.
#[derive(Clone)]
pub struct Simulator {
    pub(super) ledger: Arc<Ledger>,
}

impl fmt::Debug for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator").field("seed", &self.seed()).finish_non_exhaustive()
    }
}

impl Simulator {
    /// The seed that replays this device's schedule.
    pub fn seed(&self) -> u64 {
        self.ledger.config.seed
    }

    /// The reports that nobody took, oldest first. The first 1024 are kept.
    pub fn reports(&self) -> Vec<Report> {
        self.ledger.reports()
    }

    /// Takes the reports. Synchronisations return errors as long as there are some.
    pub fn take_reports(&self) -> Vec<Report> {
        self.ledger.take_reports()
    }

    /// Whether the device saw no violation so far. What has not been enqueued or has not run yet
    /// is not seen: synchronise first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Simulation`](crate::ErrorKind::Simulation) if there is a report that nobody
    /// took. The first one is the source of the driver error behind it.
    pub fn check(&self) -> Result<()> {
        let Some(first) = self.reports().into_iter().next() else { return Ok(()) };
        let code = DriverError::LAUNCH_FAILED;
        let driver = DriverError::with_detail("simulated device", code, Arc::new(first));
        Err(Error::driver_call("the simulated device saw a violation", driver))
    }

    /// Makes the `nth` call of a driver function from now on fail once with `code`, a number of
    /// CUDA's. The next call is the first. `call` is one of [`CALLS`](Self::CALLS).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if no such call is ever
    /// made, or `nth` is zero: a test of a failure that never happens would pass for the wrong
    /// reason.
    pub fn fail_call(&self, call: &str, nth: u64, code: u32) -> Result<()> {
        if !Self::CALLS.contains(&call) || nth == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("call {nth} of {call} was to fail, and there is none"),
            )
            .advise("name one of Simulator::CALLS, and count from 1"));
        }
        self.ledger.fail(call, nth, code);
        Ok(())
    }

    /// The driver calls that the device counts, and that can be made to fail: plain names, as in
    /// CUDA's manual.
    pub const CALLS: [&'static str; 41] = [
        "cuCtxRecordEvent",
        "cuCtxSynchronize",
        "cuDeviceGetDefaultMemPool",
        "cuEventCreate",
        "cuEventDestroy",
        "cuEventQuery",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuGraphExecDestroy",
        "cuGraphInstantiate",
        "cuGraphLaunch",
        "cuLaunchKernel",
        "cuMemAdvise",
        "cuMemAlloc",
        "cuMemAllocFromPoolAsync",
        "cuMemAllocManaged",
        "cuMemFree",
        "cuMemFreeAsync",
        "cuMemFreeHost",
        "cuMemGetInfo",
        "cuMemHostAlloc",
        "cuMemHostGetDevicePointer",
        "cuMemHostRegister",
        "cuMemHostUnregister",
        "cuMemPoolCreate",
        "cuMemPoolDestroy",
        "cuMemPoolGetAttribute",
        "cuMemPoolSetAttribute",
        "cuMemPoolTrimTo",
        "cuMemPrefetchAsync",
        "cuMemcpyDtoDAsync",
        "cuMemcpyDtoHAsync",
        "cuMemcpyHtoDAsync",
        "cuMemcpyPeerAsync",
        "cuMemsetAsync",
        "cuStreamBeginCapture",
        "cuStreamCreate",
        "cuStreamEndCapture",
        "cuStreamIsCapturing",
        "cuStreamSynchronize",
        "cuStreamWaitEvent",
    ];

    /// Loses the context: what is queued is given up, and every later call returns
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
    pub fn lose_context(&self) {
        let mut held = world();
        self.ledger.lose(DriverError::CONTEXT_IS_DESTROYED);
        schedule::abandon(&mut held, self.ledger.device);
    }

    /// The driver functions called so far, by name, and how often.
    pub fn calls(&self) -> Vec<(&'static str, u64)> {
        self.ledger.calls()
    }

    /// How often a driver function was called, such as `cuEventRecord`.
    pub fn call_count(&self, call: &str) -> u64 {
        self.calls().iter().find(|(name, _)| *name == call).map_or(0, |&(_, count)| count)
    }

    fn blocks(&self, wanted: impl Fn(Kind) -> bool) -> (usize, u64) {
        let held = world();
        let own = |block: &&Block| block.device == self.ledger.device && wanted(block.kind);
        held.table
            .iter()
            .map(|(_, block)| block)
            .filter(own)
            .fold((0, 0), |(count, bytes), block| (count + 1, bytes + block.bytes))
    }

    /// Bytes of device memory, managed memory included, that are allocated and not freed.
    pub fn live_bytes(&self) -> u64 {
        self.blocks(Kind::is_device_memory).1
    }

    /// Blocks of device memory, managed memory included, that are allocated and not freed.
    pub fn live_blocks(&self) -> usize {
        self.blocks(Kind::is_device_memory).0
    }

    /// Blocks of page-locked host memory that are allocated and not freed.
    pub fn host_blocks(&self) -> usize {
        self.blocks(|kind| matches!(kind, Kind::Host(_))).0
    }

    /// Blocks of ordinary host memory that the device reaches, of a
    /// [`SystemResource`](crate::SystemResource), that are not freed.
    pub fn pageable_blocks(&self) -> usize {
        self.blocks(|kind| kind == Kind::Pageable).0
    }

    /// Ranges of host memory that are registered.
    pub fn registered_ranges(&self) -> usize {
        self.blocks(|kind| matches!(kind, Kind::Registered(_))).0
    }

    /// Begins a capture: operations on the stream are kept and do not run.
    pub(crate) fn begin_capture(&self, stream: RawStream) -> DriverResult<()> {
        let mut held = world();
        let id = held.stream(&self.ledger, "cuStreamBeginCapture", stream)?;
        capture::begin(&mut held, self.ledger.device, id)
    }

    /// Ends a capture and says what had become of it. What it kept is dropped.
    pub(crate) fn end_capture(&self, stream: RawStream) -> CaptureStatus {
        match capture::end(&mut world(), stream.0) {
            Ok(_) => CaptureStatus::Active,
            Err(error) if error.code() == DriverError::ILLEGAL_STATE => CaptureStatus::None,
            Err(_) => CaptureStatus::Invalidated,
        }
    }
}

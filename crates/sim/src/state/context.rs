//! The context of a simulated device. It has the reports, the call counts, the failures to inject, and
//! whether the context is lost.
//!
//! It is shared by the driver, the handles of tests and the scheduler. Its lock is a leaf, so no other lock is taken,
//! and nothing else is called, under it.

use super::config::SimConfig;
use crate::check::{OpName, Report, ReportedMemory, Violation};
use aquifer_driver::error::DriverError;
use aquifer_driver::{CallSite, DriverResult, RawStream};
use aquifer_events::{emit_deferred, event};
use aquifer_sync::thread_id;
use aquifer_sync::trusted::{AtomicU64, Mutex, Ordering, unique};
use aquifer_sync::{Arc, OnceLock};
use std::collections::BTreeMap;

/// More reports than this are logged and not kept.
const KEPT_REPORTS: usize = 1024;

/// The log of a report that an earlier call returned already.
const TOLD_BEFORE: &str = "an earlier call returned this report; each that waits does, until Simulator::take_reports clears it";

#[derive(Debug)]
pub(crate) struct InjectedFailure {
    pub(crate) call: String,
    /// Calls until the failure. The next call is 1.
    pub(crate) left: u64,
    pub(crate) code: u32,
}

#[derive(Debug, Default)]
pub(crate) struct ContextLog {
    /// The reports that were not taken.
    pub(crate) reports: Vec<Arc<Report>>,
    /// A call of the program has returned the first of them.
    is_first_told: bool,
    /// Reports that were not logged yet.
    unlogged: Vec<Arc<Report>>,
    pub(crate) calls: BTreeMap<&'static str, u64>,
    pub(crate) failures: Vec<InjectedFailure>,
}

/// The context of one device.
#[derive(Debug)]
pub(crate) struct SimContext {
    /// Names the device. Never used again in this process.
    pub(crate) id: u64,
    pub(crate) config: SimConfig,
    /// The device's legacy default stream, which takes no part in captures.
    pub(crate) legacy_stream: u64,
    /// The error code of every call, or 0 while the context lives.
    lost: AtomicU64,
    /// The report of what lost it, if the device found that. It is the source of every later error.
    cause: OnceLock<Arc<Report>>,
    pub(crate) log: Mutex<ContextLog>,
    /// The threads that are in a launch of a graph, and on which handles. They may wait for the state's lock.
    launches: Mutex<Vec<(u64, RawStream)>>,
}

/// A launch of a graph that is under way, until it is dropped.
pub(crate) struct LaunchUnderWay<'a>(&'a SimContext);

impl Drop for LaunchUnderWay<'_> {
    fn drop(&mut self) {
        let here = thread_id::assign();
        self.0.launches.lock().retain(|(thread, _)| *thread != here);
    }
}

impl SimContext {
    pub(crate) fn new(config: SimConfig) -> Self {
        let (id, legacy_stream) = (unique(), unique());
        let (lost, cause) = (AtomicU64::new(0), OnceLock::new());
        let (log, launches) = (Mutex::default(), Mutex::default());
        Self { id, config, legacy_stream, lost, cause, log, launches }
    }

    /// Notes that the calling thread launches a graph on the stream.
    pub(crate) fn begin_launch(&self, stream: RawStream) -> LaunchUnderWay<'_> {
        self.launches.lock().push((thread_id::assign(), stream));
        LaunchUnderWay(self)
    }

    /// Whether another thread launches a graph on the stream.
    pub(crate) fn is_launched_on(&self, stream: RawStream) -> bool {
        let here = thread_id::assign();
        self.launches.lock().iter().any(|&(thread, on)| on == stream && thread != here)
    }

    /// Counts a call. Returns the error that was injected for it, if any.
    pub(crate) fn count_call(&self, call: &'static str) -> DriverResult<()> {
        let mut log = self.log.lock();
        *log.calls.entry(call).or_default() += 1;
        for failure in log.failures.iter_mut().filter(|failure| failure.call == call) {
            failure.left = failure.left.saturating_sub(1);
        }
        let due = |failure: &InjectedFailure| failure.call == call && failure.left == 0;
        match log.failures.iter().position(due) {
            Some(first) => Err(DriverError::new(call, log.failures.remove(first).code)),
            None => Ok(()),
        }
    }

    /// An error if the context is lost.
    pub(crate) fn check_alive(&self, call: &'static str) -> DriverResult<()> {
        // Relaxed: set under the lock of the state, and checked again under it where it matters.
        match self.lost.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(match self.cause.get() {
                Some(cause) => DriverError::with_cause(call, code as u32, cause.clone()),
                None => DriverError::new(call, code as u32),
            }),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        // Relaxed: as above.
        self.lost.load(Ordering::Relaxed) != 0
    }

    /// Loses the context for a kernel's fault, unless it is lost already. The caller has the lock of the
    /// state.
    pub(crate) fn lose_by(&self, fault: Arc<Report>) {
        // Set first, so that no error of the loss is without it.
        if !self.is_lost() {
            let _ = self.cause.set(fault);
        }
        self.lose(DriverError::LAUNCH_FAILED);
    }

    /// Loses the context with `code`, unless it is lost already. The caller has the lock of the state.
    pub(crate) fn lose(&self, code: u32) {
        let _ =
            self.lost.compare_exchange(0, u64::from(code), Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn report(
        &self,
        kind: Violation,
        operation: OpName,
        other: Option<OpName>,
        memory: ReportedMemory,
        note: Option<String>,
    ) -> Arc<Report> {
        let seed = self.config.seed;
        let report = Arc::new(Report::new(kind, operation, other, memory, seed, note));
        let mut log = self.log.lock();
        if log.reports.len() < KEPT_REPORTS {
            log.reports.push(Arc::clone(&report));
        }
        log.unlogged.push(Arc::clone(&report));
        report
    }

    /// Reports a handle that is dead, or of another device. Returns the error of the call.
    pub(crate) fn report_handle(
        &self,
        kind: Violation,
        name: OpName,
        note: Option<String>,
    ) -> DriverError {
        let report = self.report(kind, name, None, ReportedMemory::NONE, note);
        DriverError::with_detail(name.call, DriverError::INVALID_HANDLE, report)
    }

    /// Reports a range that is not memory of the device, or not any more. Returns the error of the
    /// call.
    pub(crate) fn report_address(
        &self,
        kind: Violation,
        name: OpName,
        other: Option<OpName>,
        memory: ReportedMemory,
        note: Option<String>,
    ) -> DriverError {
        let report = self.report(kind, name, other, memory, note);
        DriverError::with_detail(name.call, DriverError::INVALID_VALUE, report)
    }

    /// Logs the new reports. The caller holds no lock of the simulator, since a subscriber may call it.
    /// The events are deferred until the locks of a pool above are released, too.
    pub(crate) fn emit_reports(&self) {
        let unlogged = std::mem::take(&mut self.log.lock().unlogged);
        for report in unlogged {
            emit_deferred(
                move || event!(error, kind = ?report.kind(), "simulated device: {report}"),
            );
        }
    }

    /// The result of a synchronisation. The first report that was not taken goes before the loss.
    pub(crate) fn sync_result(&self, call: &'static str) -> DriverResult<()> {
        let mut log = self.log.lock();
        let Some(report) = log.reports.first().cloned() else {
            drop(log);
            return self.check_alive(call);
        };
        let error = DriverError::with_detail(call, DriverError::LAUNCH_FAILED, report);
        if log.is_first_told {
            return Err(error.with_log(TOLD_BEFORE));
        }
        // What a drop is told, the program does not hear of.
        log.is_first_told = CallSite::is_inside();
        Err(error)
    }

    pub(crate) fn take_reports(&self) -> Vec<Arc<Report>> {
        let mut log = self.log.lock();
        log.is_first_told = false;
        std::mem::take(&mut log.reports)
    }
}

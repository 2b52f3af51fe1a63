//! One driver call, with the locked state, the device, and the checks of the handles that it names.

use crate::check::{OpName, ReportedMemory, Violation};
use crate::run::discard_queues;
use crate::state::{SimContext, SimDevice, SimState, StateGuard, lock_state};
use aquifer_driver::error::{DriverError, ErrorKind};
use aquifer_driver::{DriverResult, RawStream, call_not_forked};
use aquifer_sync::thread_id;

/// One driver call on a simulated device. It holds the lock of the state.
pub(crate) struct Call<'a> {
    /// It stands before `_reports`, so that the lock is released first.
    pub(super) state: StateGuard,
    /// The context of the device that is called.
    pub(super) context: &'a SimContext,
    /// The name of the driver function.
    pub(super) name: &'static str,
    _reports: EmitReports<'a>,
}

/// Logs the new reports of a device when it is dropped.
struct EmitReports<'a>(&'a SimContext);

impl Drop for EmitReports<'_> {
    fn drop(&mut self) {
        self.0.emit_reports();
    }
}

/// Whether an injected error has a number of NCCL's, which says nothing of a context.
pub(super) fn is_of_nccl(injected: &DriverError) -> bool {
    const LAST_RESULT: u32 = 7;
    injected.code() <= LAST_RESULT && injected.call().starts_with("nccl")
}

/// Loses the context if an injected error says that it is lost. On a GPU no call works after such a code.
pub(super) fn lose_if_said(state: &mut SimState, context: &SimContext, injected: &DriverError) {
    if injected.kind() == ErrorKind::ContextLost && !is_of_nccl(injected) {
        context.lose(injected.code());
        discard_queues(state, context.id);
    }
}

impl<'a> Call<'a> {
    /// Begins a call of the driver. It is counted, and refused if a failure was injected.
    pub(crate) fn begin(context: &'a SimContext, name: &'static str) -> DriverResult<Self> {
        // Before any lock: the child of a fork has inherited them as they were.
        call_not_forked(name)?;
        let reports = EmitReports(context);
        if let Err(injected) = context.count_call(name) {
            lose_if_said(&mut lock_state(), context, &injected);
            return Err(injected);
        }
        Self::lock(reports, name).checked()
    }

    /// Begins a call that is not the driver's. It is checked as by [`begin`](Self::begin), but not
    /// counted.
    pub(super) fn uncounted(context: &'a SimContext, name: &'static str) -> DriverResult<Self> {
        call_not_forked(name)?;
        Self::unchecked(context, name).checked()
    }

    /// A call that is neither counted nor refused.
    pub(crate) fn unchecked(context: &'a SimContext, name: &'static str) -> Self {
        Self::lock(EmitReports(context), name)
    }

    fn lock(reports: EmitReports<'a>, name: &'static str) -> Self {
        Self { state: lock_state(), context: reports.0, name, _reports: reports }
    }

    /// Refuses the call if the context is lost, or the calling thread inside of a host form.
    fn checked(self) -> DriverResult<Self> {
        self.context.check_alive(self.name)?;
        if self.state.is_running_here() {
            return self.refuse(DriverError::NOT_PERMITTED);
        }
        Ok(self)
    }

    pub(super) fn error(&self, code: u32) -> DriverError {
        DriverError::new(self.name, code)
    }

    pub(super) fn refuse<T>(&self, code: u32) -> DriverResult<T> {
        Err(self.error(code))
    }

    pub(super) fn invalid<T>(&self) -> DriverResult<T> {
        self.refuse(DriverError::INVALID_VALUE)
    }

    /// Refuses a call for a feature that the device lacks.
    pub(super) fn require(&self, feature: bool) -> DriverResult<()> {
        if feature { Ok(()) } else { self.refuse(DriverError::NOT_SUPPORTED) }
    }

    pub(super) fn device(&mut self) -> Option<&mut SimDevice> {
        self.state.devices.get_mut(&self.context.id)
    }

    /// Checks a stream that the call names, and names an operation on it.
    pub(super) fn on_stream(&self, raw: RawStream) -> DriverResult<(u64, OpName)> {
        Ok((self.stream(raw)?, OpName::on(self.name, raw.0)))
    }

    /// Checks a stream that the call names.
    pub(super) fn stream(&self, raw: RawStream) -> DriverResult<u64> {
        let name = OpName::on(self.name, raw.0);
        let id = self.state.stream_behind(raw);
        match self.state.streams.get(&id) {
            Some(stream) if stream.device != self.context.id => {
                Err(self.context.report_handle(Violation::ForeignHandle, name, None))
            }
            Some(stream) if !stream.destroyed => {
                // To ask is the only thing to do about a capture of another library.
                if self.name != "cuStreamIsCapturing" {
                    self.check_capture_thread(name, stream.capture);
                }
                Ok(id)
            }
            _ => Err(self.context.report_handle(Violation::DestroyedStream, name, None)),
        }
    }

    /// Reports a call on a capture by another thread than the one that began it.
    pub(super) fn check_capture_thread(&self, name: OpName, capture: Option<u64>) {
        let Some(capture) = capture.and_then(|id| self.state.captures.get(&id)) else { return };
        if capture.thread != thread_id::assign() {
            let kind = Violation::CaptureRace;
            self.context.report(kind, name, None, ReportedMemory::NONE, None);
        }
    }
}

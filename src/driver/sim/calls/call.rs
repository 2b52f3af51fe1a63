//! One driver call: the locked state, the device, and the checks of the handles that it names.

use crate::driver::sim::check::{OpName, Violation};
use crate::driver::sim::state::{
    CapturePoint, EventRecord, SimContext, SimDevice, SimEvent, SimPool, StateGuard, lock_state,
};
use crate::driver::{DriverResult, RawEvent, RawPool, RawStream};
use crate::error::DriverError;

/// `CUDA_ERROR_NOT_PERMITTED`: the call came from inside a host form.
const NOT_PERMITTED: u32 = 800;

/// One driver call on a simulated device.
pub(crate) struct Call<'a> {
    pub(crate) state: &'a mut StateGuard,
    /// The context of the device that is called.
    pub(crate) context: &'a SimContext,
    /// The name of the driver function.
    pub(crate) name: &'static str,
}

impl Call<'_> {
    /// Runs a call under the lock of the state, if the context lives and the calling thread is not
    /// inside of a host form.
    pub(crate) fn run<T>(
        context: &SimContext,
        name: &'static str,
        body: impl FnOnce(&mut Call<'_>) -> DriverResult<T>,
    ) -> DriverResult<T> {
        let state = &mut lock_state();
        context.check_alive(name)?;
        if state.is_running_here() {
            return Err(DriverError::new(name, NOT_PERMITTED));
        }
        body(&mut Call { state, context, name })
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

    pub(super) fn require_pools(&self) -> DriverResult<()> {
        self.require(self.context.config.properties.memory_pools)
    }

    /// Reports a violation by this call, on no memory. The error that the call returns.
    pub(super) fn report(
        &self,
        kind: Violation,
        name: OpName,
        note: Option<String>,
    ) -> DriverError {
        let report = self.context.report(kind, name, None, (0, 0), note);
        DriverError::with_detail(name.call, DriverError::INVALID_HANDLE, report)
    }

    /// Reports a range that is not memory of the device. The error that the call returns.
    pub(super) fn report_unmapped(&self, name: OpName, range: (u64, u64)) -> DriverError {
        let report = self.context.report(Violation::UnmappedAddress, name, None, range, None);
        DriverError::with_detail(name.call, DriverError::INVALID_VALUE, report)
    }

    pub(super) fn device(&mut self) -> Option<&mut SimDevice> {
        self.state.devices.get_mut(&self.context.id)
    }

    /// Checks a stream that the call names.
    pub(crate) fn stream(&self, raw: RawStream) -> DriverResult<u64> {
        let name = OpName::on(self.name, raw.0);
        match self.state.streams.get(&raw.0) {
            Some(stream) if stream.device != self.context.id => {
                Err(self.report(Violation::ForeignHandle, name, None))
            }
            Some(stream) if !stream.destroyed => {
                // To ask is the only thing to do about a capture of another library.
                if self.name != "cuStreamIsCapturing" {
                    self.check_capture_thread(name, stream.capture);
                }
                Ok(raw.0)
            }
            _ => Err(self.report(Violation::DestroyedStream, name, None)),
        }
    }

    /// Checks an event that the call names.
    pub(super) fn event(&mut self, name: OpName, raw: RawEvent) -> DriverResult<&mut SimEvent> {
        let Self { context, .. } = *self;
        self.state.events.get_mut(&raw.0).ok_or_else(|| {
            let note = Some(format!("event {}", raw.0));
            let report = context.report(Violation::DestroyedEvent, name, None, (0, 0), note);
            DriverError::with_detail(name.call, DriverError::INVALID_HANDLE, report)
        })
    }

    /// The last record of an event, or its point in a capture.
    pub(super) fn last_record(
        &mut self,
        name: OpName,
        raw: RawEvent,
    ) -> DriverResult<(Option<EventRecord>, Option<CapturePoint>)> {
        let event = self.event(name, raw)?;
        Ok((event.record.clone(), event.captured))
    }

    /// Checks a pool that the call names.
    pub(super) fn pool(&mut self, pool: RawPool) -> DriverResult<&mut SimPool> {
        let error = self.error(DriverError::INVALID_HANDLE);
        let id = self.context.id;
        self.state.pools.get_mut(&pool.0).filter(|pool| pool.device == id).ok_or(error)
    }

    /// Reports a call on a capture by another thread than the one that began it.
    pub(super) fn check_capture_thread(&self, name: OpName, capture: Option<u64>) {
        let Some(capture) = capture.and_then(|id| self.state.captures.get(&id)) else { return };
        if capture.thread != std::thread::current().id() {
            self.context.report(Violation::CaptureRace, name, None, (0, 0), None);
        }
    }
}

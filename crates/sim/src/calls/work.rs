//! Copies, fills, launches of kernels, and functions of the program.

use super::call::Call;
use super::enqueue::OpRequest;
use super::launch::entry_of;
use crate::check::Violation;
use crate::driver::SimDriver;
use crate::run::{discard_queues, run_until};
use crate::state::{AddressSpace, HostSide, OpWork, SimOp, TouchedRange};
use aquifer_driver::error::DriverError;
use aquifer_driver::{
    Access, CaptureStatus, CopyOnDevice, CopyToDevice, CopyToHost, Driver, DriverResult,
    HostFunction, RawCopy, RawFill, RawLaunch, RawStream, WorkCalls,
};
use aquifer_sync::Arc;

impl WorkCalls for SimDriver {
    unsafe fn copy_to_device(&self, copy: CopyToDevice, stream: RawStream) -> DriverResult<()> {
        let mut call = self.call("cuMemcpyHtoDAsync")?;
        let (id, name) = call.on_stream(stream)?;
        let RawCopy { target, source, bytes } = copy;
        if bytes == 0 {
            return Ok(());
        }
        let write = call.on_device(target, bytes, Access::Write);
        if call.state.blocks.is_page_locked(source as u64, bytes) {
            let read = TouchedRange::new(source as u64, bytes, Access::Read, AddressSpace::Host);
            let touched = [read, write];
            let request = OpRequest {
                watched: Some(0),
                host_side: Some(HostSide::Source(source)),
                ..OpRequest::new(name, &touched, OpWork::Copy(bytes))
            };
            return call.submit(id, request).map(|_| ());
        }
        // A graph would read the source at each launch, when it may be gone.
        call.forbid_in_capture(id)?;
        let mut staged = Vec::new();
        if staged.try_reserve_exact(bytes).is_err() {
            return call.refuse(DriverError::OUT_OF_MEMORY);
        }
        // SAFETY: the caller promises a readable source; the capacity was reserved above and is
        // written before the length is set.
        unsafe {
            std::ptr::copy_nonoverlapping(source, staged.as_mut_ptr(), bytes);
            staged.set_len(bytes);
        }
        let work = OpWork::CopyStaged(staged);
        call.submit(id, OpRequest::new(name, &[write], work)).map(|_| ())
    }

    unsafe fn copy_to_host(&self, copy: CopyToHost, stream: RawStream) -> DriverResult<()> {
        let mut call = self.call("cuMemcpyDtoHAsync").map_err(|error| self.first_report(error))?;
        let (id, name) = call.on_stream(stream)?;
        let RawCopy { target, source, bytes } = copy;
        if bytes == 0 {
            return Ok(());
        }
        let is_locked = call.state.blocks.is_page_locked(target as u64, bytes);
        if !is_locked && call.capture_status(id) != CaptureStatus::None {
            // It would have to be complete on return, and a captured copy does not run.
            return call.forbid_in_capture(id);
        }
        let touched = [
            call.on_device(source, bytes, Access::Read),
            TouchedRange::new(target as u64, bytes, Access::Write, AddressSpace::Host),
        ];
        let request = OpRequest {
            name,
            touched: if is_locked { &touched } else { &touched[..1] },
            watched: is_locked.then_some(1),
            work: OpWork::Copy(bytes),
            host_side: Some(HostSide::Target(target)),
            refused: OpWork::PoisonHost(bytes),
        };
        let refused = call.submit(id, request)?;
        if is_locked {
            return Ok(());
        }
        // Pageable: complete on return, or the pointer would outlive the call. A discarded queue
        // counts as passed only when none of its operations runs any more.
        let (clock, tick) = (call.state.clock_of(id), call.state.last_tick(id));
        while !run_until(&mut call.state, call.context.id, |state| state.has_passed(id, tick)) {
            // Excluded by INV-3 of the scheduler. To return would be worse than to lose the context.
            call.context.lose(DriverError::UNKNOWN);
            discard_queues(&mut call.state, call.context.id);
        }
        let alive = call.context.check_alive(call.name);
        if alive.is_ok() {
            call.state.observe(&clock);
        }
        if alive.is_err() || refused.is_some() {
            // The first report, as a synchronisation returns: this copy's own would mask it.
            call.context.sync_result(call.name)?;
        }
        alive?;
        match refused {
            None => Ok(()),
            // Another thread has taken the reports.
            Some(report) => {
                Err(DriverError::with_detail(call.name, DriverError::LAUNCH_FAILED, report))
            }
        }
    }

    unsafe fn copy_on_device(&self, copy: CopyOnDevice, stream: RawStream) -> DriverResult<()> {
        let mut call = self.call("cuMemcpyDtoDAsync")?;
        call.copy(copy, self.context.id, stream)
    }

    unsafe fn copy_from_peer(
        &self,
        copy: CopyOnDevice,
        from: &dyn Driver,
        stream: RawStream,
    ) -> DriverResult<()> {
        let mut call = self.call("cuMemcpyPeerAsync")?;
        let Some(from) = from.as_any().downcast_ref::<Self>() else {
            return call.refuse(DriverError::NOT_SUPPORTED);
        };
        from.context.check_alive(call.name)?;
        call.copy(copy, from.context.id, stream)
    }

    unsafe fn fill(&self, fill: RawFill, stream: RawStream) -> DriverResult<()> {
        let mut call = self.call("cuMemsetAsync")?;
        let (id, name) = call.on_stream(stream)?;
        let RawFill { target, stride, word, count } = fill;
        if count == 0 {
            return Ok(());
        }
        let width = word.bytes();
        let span = (count - 1).checked_mul(stride).and_then(|gap| gap.checked_add(width));
        let is_aligned =
            target.is_multiple_of(width as u64) && (count == 1 || stride.is_multiple_of(width));
        if span.is_none() || !is_aligned || (count > 1 && stride < width) {
            return call.invalid();
        }
        let touched = if stride == width || count == 1 {
            call.on_device(target, width * count, Access::Write)
        } else {
            let row = call.on_device(target, width, Access::Write);
            TouchedRange { stride: stride as u64, count: count as u64, ..row }
        };
        call.submit(id, OpRequest::new(name, &[touched], OpWork::Fill(fill))).map(|_| ())
    }

    unsafe fn launch(&self, launch: RawLaunch<'_>, stream: RawStream) -> DriverResult<()> {
        // Before the lock of the state: a text may be long.
        let entry = entry_of(launch.kernel);
        self.call("cuLaunchKernel")?.launch(launch, &entry, stream)
    }

    fn launch_host_function(
        &self,
        function: Arc<dyn HostFunction>,
        stream: RawStream,
    ) -> DriverResult<()> {
        let mut call = self.call("cuStreamAddCallback")?;
        let (id, name) = call.on_stream(stream)?;
        call.forbid_in_capture(id)?;
        let before = call.state.clock_of(id);
        call.state.push(id, SimOp::new(name, OpWork::HostFunction { function, before }));
        Ok(())
    }
}

impl Call<'_> {
    /// A range of memory of this device.
    fn on_device(&self, address: u64, bytes: usize, access: Access) -> TouchedRange {
        TouchedRange::new(address, bytes, access, AddressSpace::Device(self.context.id))
    }

    /// A copy between two ranges of device memory. `from` is the device of the source.
    fn copy(&mut self, copy: CopyOnDevice, from: u64, stream: RawStream) -> DriverResult<()> {
        let (id, name) = self.on_stream(stream)?;
        let RawCopy { target, source, bytes } = copy;
        if bytes == 0 {
            return Ok(());
        }
        let imports = &self.state.blocks.imports;
        let apart = imports.resolve(source).abs_diff(imports.resolve(target));
        if apart < bytes as u64 {
            let bytes = bytes as u64 - apart;
            let memory = self.state.blocks.reported(source.max(target), bytes);
            self.context.report(Violation::OverlappingCopy, name, None, memory, None);
        }
        let touched = [
            TouchedRange::new(source, bytes, Access::Read, AddressSpace::Device(from)),
            self.on_device(target, bytes, Access::Write),
        ];
        self.submit(id, OpRequest::new(name, &touched, OpWork::Copy(bytes))).map(|_| ())
    }
}

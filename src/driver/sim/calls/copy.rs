//! Copies and fills.

use super::call::Call;
use super::enqueue::OpRequest;
use crate::driver::sim::check::{OpName, Violation};
use crate::driver::sim::run::{discard_queues, run_until};
use crate::driver::sim::state::{AddressSpace, HostSide, OpWork, SimContext, TouchedRange};
use crate::driver::{Access, CaptureStatus, DriverResult, FillWord, RawStream};
use crate::error::DriverError;

impl Call<'_> {
    /// A range of memory of this device.
    fn on_device(&self, address: u64, bytes: usize, access: Access) -> TouchedRange {
        TouchedRange::new(address, bytes, access, AddressSpace::Device(self.context.id))
    }

    /// A copy from host memory.
    ///
    /// # Safety
    /// As [`Driver::copy_to_device`](crate::driver::Driver::copy_to_device).
    pub(crate) unsafe fn copy_to_device(
        &mut self,
        target: u64,
        source: *const u8,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        let id = self.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let name = OpName::on(self.name, id);
        let write = self.on_device(target, bytes, Access::Write);
        if self.state.blocks.is_page_locked(source as u64, bytes) {
            let read = TouchedRange::new(source as u64, bytes, Access::Read, AddressSpace::Host);
            let touched = [read, write];
            let request = OpRequest {
                watched: Some(0),
                host_side: Some(HostSide::Source(source)),
                ..OpRequest::new(name, &touched, OpWork::Copy { bytes })
            };
            return self.submit(id, request).map(|_| ());
        }
        // A graph would read the source at each launch, when it may be gone.
        self.forbid_in_capture(id)?;
        let mut staged = Vec::new();
        if staged.try_reserve_exact(bytes).is_err() {
            return self.refuse(DriverError::OUT_OF_MEMORY);
        }
        // SAFETY: the caller promises a readable source; the capacity was reserved above and is
        // written before the length is set.
        unsafe {
            std::ptr::copy_nonoverlapping(source, staged.as_mut_ptr(), bytes);
            staged.set_len(bytes);
        }
        let work = OpWork::CopyStaged(staged);
        self.submit(id, OpRequest::new(name, &[write], work)).map(|_| ())
    }

    /// A copy to host memory.
    ///
    /// # Safety
    /// As [`Driver::copy_to_host`](crate::driver::Driver::copy_to_host).
    pub(crate) unsafe fn copy_to_host(
        &mut self,
        target: *mut u8,
        source: u64,
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        let id = self.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let is_locked = self.state.blocks.is_page_locked(target as u64, bytes);
        if !is_locked && self.capture_status(id) != CaptureStatus::None {
            // It would have to be complete on return, and a captured copy does not run.
            return self.forbid_in_capture(id);
        }
        let touched = [
            self.on_device(source, bytes, Access::Read),
            TouchedRange::new(target as u64, bytes, Access::Write, AddressSpace::Host),
        ];
        let request = OpRequest {
            name: OpName::on(self.name, id),
            touched: if is_locked { &touched } else { &touched[..1] },
            watched: is_locked.then_some(1),
            work: OpWork::Copy { bytes },
            host_side: Some(HostSide::Target(target)),
            refused: OpWork::PoisonHost { bytes },
        };
        let refused = self.submit(id, request)?;
        if is_locked {
            return Ok(());
        }
        // Pageable: complete on return, or the pointer would outlive the call. A discarded queue
        // counts as passed only when none of its operations runs any more.
        let (clock, tick) = (self.state.clock_of(id), self.state.last_tick(id));
        while !run_until(self.state, self.context.id, |state| state.has_passed(id, tick)) {
            // Excluded by INV-3 of the scheduler. To return would be worse than to lose the context.
            self.context.lose(SimContext::UNKNOWN);
            discard_queues(self.state, self.context.id);
        }
        self.context.check_alive(self.name)?;
        self.state.observe(&clock);
        match refused {
            None => Ok(()),
            Some(report) => {
                Err(DriverError::with_detail(self.name, DriverError::LAUNCH_FAILED, report))
            }
        }
    }

    /// A copy between two ranges of device memory. `from` is the device of the source.
    pub(crate) fn copy(
        &mut self,
        target: u64,
        (source, from): (u64, u64),
        bytes: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        let id = self.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let name = OpName::on(self.name, id);
        if source.abs_diff(target) < bytes as u64 {
            let range = (source.max(target), bytes as u64 - source.abs_diff(target));
            self.context.report(Violation::OverlappingCopy, name, None, range, None);
        }
        let touched = [
            TouchedRange::new(source, bytes, Access::Read, AddressSpace::Device(from)),
            self.on_device(target, bytes, Access::Write),
        ];
        self.submit(id, OpRequest::new(name, &touched, OpWork::Copy { bytes })).map(|_| ())
    }

    /// Fills rows with a word.
    pub(crate) fn fill(
        &mut self,
        target: u64,
        stride: usize,
        word: FillWord,
        count: usize,
        stream: RawStream,
    ) -> DriverResult<()> {
        let id = self.stream(stream)?;
        if count == 0 {
            return Ok(());
        }
        let width = word.bytes();
        let span = (count - 1).checked_mul(stride).and_then(|gap| gap.checked_add(width));
        let is_aligned =
            target.is_multiple_of(width as u64) && (count == 1 || stride.is_multiple_of(width));
        if span.is_none() || !is_aligned || (count > 1 && stride < width) {
            return self.invalid();
        }
        let touched = if stride == width || count == 1 {
            self.on_device(target, width * count, Access::Write)
        } else {
            let row = self.on_device(target, width, Access::Write);
            TouchedRange { stride: stride as u64, count: count as u64, ..row }
        };
        let name = OpName::on(self.name, id);
        let work = OpWork::Fill { stride, word, count };
        self.submit(id, OpRequest::new(name, &[touched], work)).map(|_| ())
    }
}

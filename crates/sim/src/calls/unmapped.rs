//! Reports of ranges that are no memory of the device.

use super::call::Call;
use crate::check::{OpName, ReportedMemory, Violation};
use crate::state::{LookupError, SimContext, TouchedRange};
use aquifer_driver::error::DriverError;
use aquifer_driver::impls::Count;

impl Call<'_> {
    /// A range that a call names, for a report.
    pub(super) fn reported(&self, touched: &TouchedRange) -> ReportedMemory {
        let (address, bytes) = touched.bounds();
        self.state.blocks.reported(address, bytes)
    }

    /// Reports a range that is not memory of the device as a whole. Returns the error of the call.
    pub(super) fn report_unmapped(
        &self,
        context: &SimContext,
        name: OpName,
        touched: &TouchedRange,
        error: LookupError,
    ) -> DriverError {
        let (other, note) = match error {
            LookupError::Outside { by, bytes, past } => {
                let (past, bytes) = (Count(past, "byte"), Count(bytes, "byte"));
                (Some(by), Some(format!("{past} past the end of a block of {bytes}")))
            }
            LookupError::Freed(by) => (Some(by), None),
            LookupError::Unmapped => (None, None),
        };
        let name = name.accessing(touched.access);
        let memory = self.reported(touched);
        context.report_address(Violation::UnmappedAddress, name, other, memory, note)
    }
}

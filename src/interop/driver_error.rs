//! cudarc's errors as the crate's.

use crate::error::{DriverError, Error};

impl From<cudarc::driver::DriverError> for Error {
    fn from(error: cudarc::driver::DriverError) -> Self {
        // Its number alone: to format it would ask the driver for its name.
        Self::driver_call("a call of cudarc failed", DriverError::new("cudarc", error.0 as u32))
    }
}

//! Errors of NVIDIA's crates as Aquifer's.

use aquifer::error::DriverError;
use aquifer::{Error, ErrorKind};

/// The error of a call of theirs: what was wanted, which call, and their code.
pub(crate) fn theirs(
    wanted: impl Into<String>,
    call: &'static str,
    error: cuda_core::DriverError,
) -> Error {
    Error::driver_call(wanted, DriverError::new(call, error.0))
}

/// The error of an argument that cannot be taken.
pub(crate) fn refused(kind: ErrorKind, what: String, advice: &'static str) -> Error {
    Error::new(kind, what).with_advice(advice)
}

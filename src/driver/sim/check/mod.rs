//! The checks, without any device: vector clocks, shadow memory and the reports of violations.

mod clock;
mod report;
mod shadow;

pub(crate) use clock::{AccessStamp, VectorClock};
pub(crate) use report::OpName;
pub use report::{Report, Violation};
pub(crate) use shadow::{AccessCheck, ShadowMemory};

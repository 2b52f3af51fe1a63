//! The checks, without any device. They are vector clocks, shadow memory, lines and vectors, and the reports of
//! violations.

mod clock;
mod report;
mod shadow;
mod vector;

pub(crate) use clock::{AccessStamp, VectorClock};
pub(crate) use report::OpName;
pub use report::{Report, Violation};
pub(crate) use shadow::{AccessCheck, ShadowMemory};
pub(crate) use vector::{ReportedMemory, Vector, Vectors};

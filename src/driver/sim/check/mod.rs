//! The checks, without any device: vector clocks, shadow memory, lines and vectors, and the reports of
//! violations.

mod clock;
mod pool_end;
mod report;
mod shadow;
mod site;
mod vector;

pub(crate) use clock::{AccessStamp, VectorClock};
pub(crate) use pool_end::DefaultPoolEnd;
pub(crate) use report::OpName;
pub use report::{Report, Violation};
pub(crate) use shadow::{AccessCheck, ShadowMemory};
pub(crate) use site::{CallSite, NoCallSite};
pub(crate) use vector::{ReportedMemory, Vector, Vectors};

//! The simulated device: host memory, a seeded scheduler, and the check of every access.
//!
//! `aquifer::sim` says what it does and what it does not find.

// Each part imports only parts above it in this list, but for `calls/` and `driver`: the driver begins
// each call, and the calls are methods of it.
//
// | part | purpose |
// | --- | --- |
// | `check/` | vector clocks, shadow memory, lines of the program, reports |
// | `state/` | the data of all devices, behind one lock |
// | `run/` | the scheduler and the work of an operation |
// | `simulator` | the interface of tests |
// | `driver`, `calls/` | a device, and what each driver call on it does |

mod calls;
mod check;
mod driver;
mod on_streams;
mod run;
mod simulator;
mod state;
#[cfg(test)]
mod tests;

// The name that the documentation links to is that of `aquifer`.
#[cfg(doc)]
use crate as sim;
#[cfg(doc)]
use aquifer_driver::error::{Error, ErrorKind};

pub use check::{Report, Violation};
#[doc(hidden)]
pub use driver::SimDriver;
#[doc(hidden)]
pub use on_streams::SimulatedStream;
pub use simulator::Simulator;
pub use state::{Schedule, SimConfig};

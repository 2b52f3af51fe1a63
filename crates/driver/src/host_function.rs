//! Functions of the program that a stream calls on the host, after its work.

use crate::sync::Arc;
use crate::sync::host_function;
use std::fmt;

/// The end of the work before a host function in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOutcome {
    /// All of it is done.
    Done,
    /// The context was lost, or the device is gone. The function's own work must not run.
    Failed,
}

/// A function that a stream calls once.
pub trait HostFunction: Send + Sync + fmt::Debug {
    /// Calls the program's function, or drops it where the work before it failed. It does not unwind. Only the first call
    /// does anything.
    fn call(&self, outcome: StreamOutcome);
}

/// Calls `function` on this thread as a driver does: marked, so that the driver cannot be called. The handle is dropped
/// inside of it.
pub fn run_in_host_function(function: Arc<dyn HostFunction>, outcome: StreamOutcome) {
    let _inside = host_function::enter();
    function.call(outcome);
    drop(function);
}

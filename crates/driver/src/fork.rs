//! Errors of threads that may not call the driver: those of a process that was forked after a device was opened, and those
//! inside of a host function.
//!
//! A fork copies only a part of the driver's state, and a call may hang instead of failing. A call inside of a host function
//! may wait for the stream that waits for the function.

use crate::error::{DriverError, Error, ErrorKind, FORKED_ADVICE, HOST_FUNCTION_ADVICE, Result};
use aquifer_sync::{fork, host_function};

pub use aquifer_sync::fork::is_forked_child;
pub use aquifer_sync::host_function::{is_inside as is_in_host_function, may_not_call};

/// The error of `call`, a function of the driver's, in the child of a fork or inside of a host function. Callers ask before
/// they take any lock, since a thread of the parent may have held it at the fork, and another thread may have it over a
/// driver call.
#[inline]
pub fn call_not_forked(call: &'static str) -> Result<(), DriverError> {
    if fork::is_any_reason() { ask_for_call(call) } else { Ok(()) }
}

#[cold]
fn ask_for_call(call: &'static str) -> Result<(), DriverError> {
    if !may_not_call() {
        return Ok(());
    }
    let inside = host_function::is_inside();
    let code = if inside { DriverError::NOT_PERMITTED } else { DriverError::FORKED };
    Err(DriverError::new(call, code))
}

/// The error of using `what`, a thing of this crate, in the child of a fork or inside of a host function.
#[inline]
pub fn not_forked(what: &str) -> Result<()> {
    if fork::is_any_reason() { ask(what) } else { Ok(()) }
}

#[cold]
fn ask(what: &str) -> Result<()> {
    if may_not_call() { Err(refused(what)) } else { Ok(()) }
}

/// The error of using `what` inside of a host function.
#[inline]
pub fn not_in_host_function(what: &str) -> Result<()> {
    if fork::is_any_reason() { ask_in_host_function(what) } else { Ok(()) }
}

#[cold]
fn ask_in_host_function(what: &str) -> Result<()> {
    if is_in_host_function() { Err(refused(what)) } else { Ok(()) }
}

#[cold]
fn refused(what: &str) -> Error {
    if host_function::is_inside() {
        let what = format!(
            "{what} was to be used inside of a host function, where the driver may not be called"
        );
        return Error::new(ErrorKind::NotPermitted, what).with_advice(HOST_FUNCTION_ADVICE);
    }
    let what =
        format!("{what} was to be used in the child of a fork, whose parent had opened a device");
    Error::new(ErrorKind::Forked, what).with_advice(FORKED_ADVICE)
}

/// Installs the handler that marks every later child. It is called before the driver is opened.
pub fn install_handler() -> Result<()> {
    crate::error::ensure!(
        fork::install_handler(),
        OutOfMemory,
        "free host memory; without the handler a forked child could hang in the driver",
        "the system has no room to register a fork handler"
    );
    Ok(())
}

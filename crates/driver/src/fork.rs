//! Errors of a process that was forked after a device was opened.
//!
//! A fork copies only a part of the driver's state, and a call may hang instead of failing.

use crate::error::{DriverError, Error, ErrorKind, FORKED_ADVICE, Result};
use aquifer_sync::fork;

pub use aquifer_sync::fork::is_forked_child;

/// The error of `call`, a function of the driver's, in the child of a fork. Callers ask before they
/// take any lock, since a thread of the parent may have held it at the fork.
pub fn call_not_forked(call: &'static str) -> Result<(), DriverError> {
    if is_forked_child() { Err(DriverError::new(call, DriverError::FORKED)) } else { Ok(()) }
}

/// The error of using `what`, a thing of this crate, in the child of a fork.
pub fn not_forked(what: &str) -> Result<()> {
    if is_forked_child() { Err(forked(what)) } else { Ok(()) }
}

#[cold]
fn forked(what: &str) -> Error {
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

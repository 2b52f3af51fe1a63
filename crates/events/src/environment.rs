//! Variables of the environment.

use std::ffi::OsString;

/// What a variable of the environment says. One that is empty says nothing.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

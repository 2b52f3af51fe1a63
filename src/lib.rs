//! Aquifer.
#![allow(dead_code, unused_imports)]
mod backend;
mod error;
mod layout;
mod sync;

pub use backend::sim;
pub use backend::{
    Access, BackendKind, DeviceProperties, HostArgs, HostForm, Kernel, LaunchConfig, MemoryInfo,
};
pub use error::{DriverError, Error, ErrorKind, Result};
pub use layout::{DEFAULT_ALIGNMENT, DeviceLayout};

//! What other memory managers and other processes need of the crate.

mod ipc;

#[cfg(unix)]
pub use ipc::IpcPool;
pub use ipc::{IpcHandle, IpcKind};

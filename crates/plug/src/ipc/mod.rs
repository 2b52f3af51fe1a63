//! Device memory that several processes use.
//!
//! | file | content |
//! | --- | --- |
//! | `ipc_handle` | `IpcHandle`: what one process sends to another, as bytes |
//! | `export` | handles of vectors, slices and blocks |
//! | `opened` | the allocations that are open in this process, counted |
//! | `imported` | mapped memory of a device that comes from another process |
//! | `mapped` | vectors in mapped memory, over a Unix socket |
//! | `memory` | the resource of a vector in another process's memory; opening it |
//! | `socket` | a descriptor over a Unix socket |
//! | `ipc_pool` | pools of the driver that came by a descriptor |

mod export;
#[cfg(unix)]
mod imported;
mod ipc_export;
mod ipc_handle;
#[cfg(unix)]
mod ipc_pool;
#[cfg(unix)]
mod mapped;
mod memory;
mod opened;
#[cfg(unix)]
mod socket;

pub use ipc_export::IpcExport;
pub use ipc_handle::{IpcHandle, IpcKind};
#[cfg(unix)]
pub use ipc_pool::IpcPool;
#[cfg(unix)]
pub use mapped::receive;

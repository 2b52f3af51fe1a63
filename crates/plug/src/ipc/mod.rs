//! Device memory that several processes use.
//!
//! | file | content |
//! | --- | --- |
//! | `handle` | `IpcHandle`: what one process sends to another, as bytes |
//! | `export` | handles of vectors, slices and blocks |
//! | `opened` | the allocations that are open in this process, counted |
//! | `mapped` | vectors in mapped memory, over a Unix socket |
//! | `memory` | the resource of a vector in another process's memory; opening it |
//! | `socket` | a descriptor over a Unix socket |
//! | `pool` | pools of the driver that came by a descriptor |

mod export;
mod handle;
#[cfg(unix)]
mod mapped;
mod memory;
mod opened;
#[cfg(unix)]
mod pool;
#[cfg(unix)]
mod socket;

pub use export::IpcExport;
pub use handle::{IpcHandle, IpcKind};
#[cfg(unix)]
pub use mapped::receive;
#[cfg(unix)]
pub use pool::IpcPool;

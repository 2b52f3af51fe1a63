//! Aquifer as a C library: one table of functions, and entry points for hosts that take function pointers.
//!
//! Each function of C does four things: it asks whether this is the child of a fork, turns handles and pointers into
//! values, calls a module of this crate, and turns what that returns into a code. No panic leaves it, and no foreign
//! pointer is read: a handle is a number, a block is found by its address.

mod atomics;
mod cache;
mod capture;
pub mod embedded;
mod entry;
mod fork;
mod handles;
mod host;
mod hosts;
mod ipc;
mod live_blocks;
mod memory;
mod open_streams;
mod page_map;
mod place;
mod references;
mod route;
mod scope;
mod shadowed;
mod stack;
mod status;
mod table;
#[cfg(test)]
mod tests;

pub use handles::{aquifer_stack, aquifer_stream};
pub use host::AQUIFER_HOST_WRITE_COMBINED;
pub use hosts::{aquifer_cuquantum_handler, aquifer_numpy_handler, aquifer_torch_pool_id};
pub use ipc::AQUIFER_IPC_HANDLE_BYTES;
pub use memory::aquifer_misuse;
pub use status::aquifer_status;
pub use table::{
    AQUIFER_ABI_MAJOR, AQUIFER_ABI_MINOR, AQUIFER_KEEP_FILE, AQUIFER_KEEP_NOTHING,
    AQUIFER_KEEP_PAGE_LOCKED, aquifer_api, aquifer_block_info, aquifer_get_api, aquifer_statistics,
};

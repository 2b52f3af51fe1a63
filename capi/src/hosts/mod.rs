//! Entry points with the signatures that hosts take: one file for each host, and its traps.

#![allow(unreachable_pub, reason = "the symbols are for hosts, by name")]

mod c10;
mod cpp;
mod cupy;
mod cuquantum;
#[cfg(target_os = "linux")]
mod function;
mod numpy;
mod streams;
mod torch;

pub use cuquantum::aquifer_cuquantum_handler;
pub use numpy::aquifer_numpy_handler;
pub use torch::aquifer_torch_pool_id;

//! Page-locked memory, and what is current for the process: tests that count what they alone may change,
//! one at a time.

mod allocator_contract;
mod cancelled;
mod collective_uses;
mod collectives;
#[path = "../support/contract.rs"]
mod contract;
mod current_resources;
mod data_handlers;
mod driver_pools;
mod host_collections;
mod host_memory;
#[path = "../support/kernels.rs"]
mod kernels;
mod lost_ranks;
mod multi_device;
mod one_machine;
mod peers;
mod scoped_resources;
mod sleeping;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/threads.rs"]
mod threads;
mod two;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Any allocation of page-locked memory looks at the blocks that wait on every device, and what is
/// current is the process's: a test that counts either, or sets it, has the process to itself.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // Page-locked memory is of the device of the process: without a GPU, of a simulated one.
    let _ = aquifer::Device::detect_or_simulate();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

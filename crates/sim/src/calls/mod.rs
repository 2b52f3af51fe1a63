//! The effects of each driver call on the state, under its lock.

mod aside;
mod call;
mod capture;
mod collective;
mod enqueue;
mod graph;
mod ipc;
mod launch;
mod memory;
mod peer;
mod pool;
mod regions;
mod stream;
mod unmapped;
mod virtual_memory;
mod work;

pub(crate) use call::Call;

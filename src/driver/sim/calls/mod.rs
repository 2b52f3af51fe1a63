//! What each driver call does to the state, under its lock.

mod call;
mod capture;
mod copy;
mod enqueue;
mod event;
mod graph;
mod host_memory;
mod kernel;
mod memory;
mod pool;

pub(crate) use call::Call;

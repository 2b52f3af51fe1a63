//! Streams, which are in-order queues of work on a device, with an identity of their own.
//!
//! `aquifer::stream` says which type is for what.

mod borrowed_stream;
pub(crate) mod call;
pub(crate) mod capture;
mod capture_state;
pub(crate) mod context;
pub(crate) mod deferred;
mod foreign;
pub(crate) mod gate;
pub(crate) mod graph;
mod handle;
mod host_function;
mod host_panics;
mod members;
mod operations;
mod per_thread;
pub(crate) mod poller;
pub(crate) mod pool_handles;
pub(crate) mod prefetch;
mod regions;
mod synchronized;

pub use crate::event::Event;
pub use borrowed_stream::BorrowedStream;
pub(crate) use call::{Status, StreamCall};
pub(crate) use context::{any_capturing, busy_streams, record_context, record_exposed};
pub(crate) use context::{collect_all_after, pass_all_gates};
pub(crate) use gate::Patience;
pub use graph::Graph;
pub use handle::Stream;
pub(crate) use handle::{CAPTURED_ELSEWHERE, Capture};
pub use per_thread::PerThreadStream;
pub(crate) use pool_handles::PoolHandles;
pub use synchronized::Synchronized;

#[cfg(test)]
mod tests;

//! A simulated device: the same programs on machines without a GPU, and the bugs that a GPU hides.
//!
//! Host memory stands for device memory, and a host function for each kernel. Streams are queues
//! that a seeded scheduler drains in any order that stream order allows. Every access is checked
//! against that order with vector clocks: two accesses that nothing puts in order, a use before
//! the allocation or after the free, a read of bytes that nobody wrote, and more, each a typed
//! [`Report`] with both sides' names and the seed that replays the schedule. What is found when
//! operations are enqueued does not depend on the schedule; the wrong data that a race leaves does.
//!
//! [`SimConfig`] says what the device is like, and a [`Simulator`] looks into it: its reports, its
//! counts of driver calls, and switches that make the n-th call fail or lose the context.
//!
//! What differs from a GPU: operations of one device run one at a time; the default streams are
//! ordered with no other stream unless events say so; a copy of pageable memory cannot be captured,
//! nor an allocation in stream order; a pool keeps no memory back; a device pointer is a number that no host pointer equals, but for page-locked
//! and managed memory; a host form may not call the device. Dropping a device runs what is queued.
//!
//! What it does not see: the host's own reads of memory that a copy is still writing; arguments that a
//! launch gave and a host form did not take, or took as elements of another type; bytes that a kernel
//! declared as output and did not write; memory that a resource of your own hands out again, which is
//! to the device as written as it was.
//!
//! [`PinnedAlloc`](crate::PinnedAlloc) takes memory of the *detected* device. For page-locked memory
//! of a simulated one, use [`PinnedResource::new`](crate::PinnedResource::new) with it, or make that
//! [current](crate::set_current_pinned_resource).

mod backing;
mod capture;
mod clock;
mod config;
mod driver;
mod enqueue;
mod execute;
mod graph;
mod ledger;
mod managed;
mod memory;
mod order;
mod plan;
mod pool;
mod queue;
mod random;
mod report;
mod schedule;
mod shadow;
mod simulator;
mod table;
#[cfg(test)]
mod tests;
mod world;

pub use config::{Schedule, SimConfig};
pub(crate) use driver::SimDriver;
pub use report::{Report, Violation};
pub use simulator::Simulator;

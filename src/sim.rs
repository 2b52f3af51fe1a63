//! A simulated device, which runs the same programs on machines without a GPU and finds the bugs that a
//! GPU hides.
//!
//! Host memory stands for device memory, and a host function for each kernel. Streams are queues that a seeded
//! scheduler drains in any order that stream order allows. Every access is checked against that order with vector
//! clocks. The checks find two accesses without an order, a use before the allocation or after the free, a read of
//! bytes that were never written, and more. They also follow the blocks that a `PoolResource`
//! cuts from its memory. A block is memory from its allocation to its free, and unwritten when it is handed out again.
//!
//! Each violation is a typed [`Report`]. It has both sides, the lines of the program that gave them, the vector's type
//! and size, and the seed that replays the schedule. Reports of enqueued operations do not depend on the schedule, but
//! for [`Violation::HostWroteDuringCopy`]. The wrong data that a race leaves does depend on it.
//!
//! A launch is refused where a driver would refuse it, by the limits of CUDA and by what the PTX text says of the
//! entry. The text is not compiled.
//!
//! [`SimConfig`] configures a device. `CheckedDevice` fails the test that does not look at its
//! reports. A [`Simulator`] inspects a device. It has the reports, the counts of driver calls, and switches that make
//! the n-th call fail or lose the context.
//!
//! # Differences from a GPU
//!
//! - Operations of one device run one at a time.
//! - The default streams are ordered with other streams by events alone.
//! - A copy of pageable memory cannot be captured, nor an allocation in stream order.
//! - A driver's pool caches no memory.
//! - The default pool of a device ends with its last vector, unless the handle of
//!   `default_device_pool` is kept. Then the memory goes back to the driver, and the
//!   counts are gone. The next vector makes another pool, by a driver call. The end of a pool orders no work of the
//!   program's.
//! - Managed memory stays at the host. It takes none of the device's memory, and may be as much as the device and
//!   the machine have together.
//! - A device pointer is a number that no host pointer equals, except for page-locked and managed
//!   memory.
//! - A host form may not call the device.
//! - Memory is shared with other processes by handles that this process alone can open. Opened memory has an address of
//!   its own, and a use at either address is a use at the other.
//! - A launch is refused where a buffer that it writes overlaps another argument, since the host form would get two
//!   references to it.
//! - Ranks of a communicator are in one process, and their calls are compared. A call that waits for a rank gives it up
//!   after [`rank_timeout`](SimConfig::rank_timeout). An `NcclResource` has plain memory.
//! - Dropping a device runs its queues.
//! - With [`Schedule::OnDemand`], queued operations run on the threads that wait for them, and so do host forms. Inside
//!   of `await`, that is the thread that polls the future. A host form that waits for another task of that thread never
//!   ends.
//! - A pool's blocks have just the bytes that were asked, not whole multiples of 256, and each takes a lock,
//!   unless the device was made [`without_pool_checks`](SimConfig::without_pool_checks).
//!
//! # Bugs that it does not find
//!
//! - The host reads memory that a copy is still writing. The seed decides whether it shows in the values, and so do
//!   calls in between. Each call that asks the device for an event may run an operation, and a pool's call may, too.
//! - The host writes page-locked memory whose copy has run by then, which depends on the seed and on calls in between
//!   as well. Or it writes the values that are there already.
//! - The host reads or writes mapped or managed memory by a raw pointer while a kernel uses it.
//! - The host writes ordinary memory that `copy_from_slice_async` reads
//!   still. The memory is read at once, as by a driver that copies it aside.
//! - A host form does not take an argument of the launch, or takes it as elements of another type.
//! - The PTX does something else than the host form, or is faulty in another way than a launch shows.
//! - A kernel does not write all bytes that it declares as output.
//! - Threads of one launch race with each other, since the host form is called once for all of them.
//! - A resource of your own or a `PinnedPool` hands out memory again. To the device that
//!   is one block, and counts as written.
//! - An address that was freed and handed out again is used by its former owner. The device takes it for the new
//!   owner's.
//! - A stream was dropped, and a pool has asked whether its last work is done. All later work then counts as ordered
//!   after it.
//! - Memory that a pool has just taken from upstream is used in no order after its allocation, since no work came
//!   before on any stream. Where the pool has it from a stream, the same program is reported.
//! - A block is given to the `deallocate` of a resource that it is not of, unless that resource finds it out.
//! - Elements that were written are read by a raw pointer behind the length of a vector, after it was truncated.
//! - An address is computed from that of one block and lies in another that is live, such as its neighbour in a pool.
//!   The device finds memory by its address alone. It reports a use in no order with the other's, or a read of bytes
//!   that nobody wrote there. A host form that indexes past the end of its slice is found, since its kernel fails.
//! - One thread calls collectives of several ranks one after the other, outside of a group. A GPU may wait for good.
//! - Memory is never freed. [`Simulator::live_blocks`] counts blocks, and no report names them.
//! - Memory is registered that the process may not read, or has not mapped where the system is not Linux.
//! - Memory in a bin or a block of a fixed size is used past what was asked, since the whole block is the owner's.
//!
//! `PinnedAlloc` takes memory of the device that
//! `Device::detect_or_simulate` found, or ordinary memory before that. For page-locked memory
//! of a simulated one, use `PinnedResource::new` with it, or make that
//! current.

pub use aquifer_core::sim::{Report, Schedule, SimConfig, Simulator, Violation};

//! A simulated device: the same programs on machines without a GPU, and the bugs that a GPU hides.
//!
//! Host memory stands for device memory, and a host function for each kernel. Streams are queues
//! that a seeded scheduler drains in any order that stream order allows. Every access is checked
//! against that order with vector clocks: two accesses without an order, a use before the allocation
//! or after the free, a read of bytes that were never written, and more. What a
//! [`PoolResource`](crate::PoolResource) cuts from its memory is followed, too: a block is memory from its
//! allocation to its free, and unwritten when it is handed out again. Each violation is a typed
//! [`Report`] with both sides, the lines of the program that gave them, the vector's type and size, and the
//! seed that replays the schedule. Reports of enqueued operations do not depend on the schedule, but for
//! [`Violation::HostWroteDuringCopy`]; the wrong data that a race leaves does.
//!
//! A launch is refused where a driver would refuse it: by the limits of CUDA, and by what the PTX text says
//! of the entry. The text is not compiled.
//!
//! [`SimConfig`] configures a device; [`CheckedDevice`](crate::CheckedDevice) fails the test that does not
//! look at its reports. A [`Simulator`] inspects it: its reports, its counts of driver
//! calls, and switches that make the n-th call fail or lose the context.
//!
//! # Differences from a GPU
//!
//! - Operations of one device run one at a time.
//! - The default streams are ordered with other streams by events alone.
//! - A copy of pageable memory cannot be captured, nor an allocation in stream order.
//! - A driver's pool caches no memory.
//! - The default pool of a device ends with its last vector, unless the handle of
//!   [`default_device_pool`](crate::mr::default_device_pool) is kept: the memory goes back to the driver, the counts are
//!   gone, and the next vector makes another pool, by a driver call. Its end orders no work of the program's.
//! - Managed memory stays at the host. It takes none of the device's memory, and may be as much as the device and
//!   the machine have together.
//! - A device pointer is a number that no host pointer equals, except for page-locked and managed
//!   memory.
//! - A host form may not call the device.
//! - Memory is shared with other processes by handles that this process alone can open. What is opened has an
//!   address of its own, and a use of either is a use of the other.
//! - A launch is refused where a buffer that it writes overlaps another argument: the host form would get two
//!   references to it.
//! - Ranks of a communicator are in one process, and what they call is compared. A call that waits for a rank gives it up
//!   after [`rank_timeout`](SimConfig::rank_timeout). What [`NcclResource`](crate::mr::NcclResource) has is plain memory.
//! - Dropping a device runs its queues.
//! - With [`Schedule::OnDemand`], queued operations run on the threads that wait for them, host forms among
//!   them: inside of `await`, on the thread that polls the future. A host form that waits for another task
//!   of that thread never ends.
//! - A pool's blocks have just the bytes that were asked, not whole multiples of 256, and each takes a lock,
//!   unless the device was made [`without_pool_checks`](SimConfig::without_pool_checks).
//!
//! # Bugs that it does not find
//!
//! - The host reads memory that a copy is still writing. Whether it shows in the values depends on the seed, and on
//!   calls in between: each call that asks the device for an event may run an operation, that of a pool too.
//! - The host writes page-locked memory whose copy has run by then, which depends on the seed and on calls in
//!   between as well; or it writes the values that are there already.
//! - The host reads or writes mapped or managed memory by a raw pointer while a kernel uses it.
//! - The host writes ordinary memory that [`copy_from_slice_async`](crate::DeviceVec::copy_from_slice_async) reads
//!   still: it is read at once, as a driver does that copies it aside.
//! - A host form does not take an argument of the launch, or takes it as elements of another type.
//! - The PTX does something else than the host form, or is faulty in another way than a launch shows.
//! - A kernel does not write all bytes that it declares as output.
//! - Threads of one launch race with each other: the host form is called once for all of them.
//! - A resource of your own hands out memory again, or a [`PinnedPool`](crate::pinned::PinnedPool): to the device it
//!   is one block, and counts as written.
//! - An address that was freed and handed out again is used by its former owner: it is the new owner's.
//! - A stream was dropped, and a pool has asked whether its last work is done: all that comes then counts as ordered
//!   after it.
//! - Memory that a pool has just taken from upstream is used in no order after its allocation: nothing came before
//!   on any stream. Where the pool has it from a stream, the same program is reported.
//! - A block is given to the `deallocate` of a resource that it is not of, unless that resource finds it out.
//! - Elements that were written are read by a raw pointer behind the length of a vector, after it was truncated.
//! - An address is computed from that of one block and lies in another that is live, such as its neighbour in a
//!   pool: memory is found by its address alone. What is reported is a use in no order with the other's, or a read
//!   of what nothing wrote there. (An index of a host form is its own slice's: past the end, the kernel failed.)
//! - One thread calls collectives of several ranks one after the other, outside of a group: a GPU may wait for good.
//! - Memory is never freed: [`Simulator::live_blocks`] counts blocks, and no report names them.
//! - Memory is registered that the process has not mapped, where the system is not Linux; or that it may not read.
//! - Memory in a bin or a block of a fixed size is used past what was asked: the whole block is the owner's.
//!
//! [`PinnedAlloc`](crate::PinnedAlloc) takes memory of the device that
//! [`Device::detect_or_simulate`](crate::Device::detect_or_simulate) found, or ordinary memory before that. For page-locked memory
//! of a simulated one, use [`PinnedResource::new`](crate::pinned::PinnedResource::new) with it, or make that
//! [current](crate::pinned::set_current_pinned_resource).

// Each part imports only parts above it in this list, but for `calls/` and `driver`: the driver begins
// each call, and the calls are methods of it.
//
// | part | purpose |
// | --- | --- |
// | `check/` | vector clocks, shadow memory, lines of the program, reports |
// | `state/` | the data of all devices, behind one lock |
// | `run/` | the scheduler and the work of an operation |
// | `simulator` | the interface of tests |
// | `driver`, `calls/` | a device, and what each driver call on it does |

mod calls;
mod check;
mod driver;
mod on_streams;
mod run;
mod simulator;
mod state;
#[cfg(test)]
mod tests;

pub use check::{Report, Violation};
#[doc(hidden)]
pub use driver::SimDriver;
#[doc(hidden)]
pub use on_streams::SimulatedStream;
pub use simulator::Simulator;
pub use state::{Schedule, SimConfig};

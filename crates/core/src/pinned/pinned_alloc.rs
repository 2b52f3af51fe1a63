//! Page-locked memory of the process, as its heap is.

use super::allocator::{HostAllocator, implement_allocators};
use super::ordinary::{allocate_in_host_function, allocate_without_gpu};
use super::registry;
use crate::driver::{is_in_host_function, not_forked};
use crate::error::Result;
use std::alloc::Layout;
use std::ptr::NonNull;

/// The process's page-locked memory, as [`std::alloc::Global`] is its heap.
///
/// New blocks come from the [current pinned resource](crate::pinned::current_pinned_resource). A block goes back to the
/// resource that it came from, whatever is current then. The first use opens the [detected
/// device](crate::Device::detect). A failure is an `AllocError`, and its reason is in
/// [`last_error`](crate::pinned::last_error). As on the heap, a `Vec` that has to grow and cannot ends the process. If
/// there may be no driver or no room, use `try_reserve`. The reason of a failure that ends the process is a warning in
/// [`tracing`](https://docs.rs/tracing).
///
/// A block that is freed waits until every device context is past the work that it had at that time. So a `Vec` may be
/// dropped while another library still copies from it. A copy *into* memory that was freed, or a write by the host
/// while a copy reads, is not covered. [`Transfer`](crate::Transfer) is for copies that own their buffers.
///
/// If there is no GPU, and nothing is current, it is ordinary memory. That is said once, as a warning in `tracing`, and
/// on standard error if no subscriber was ever set. It is an error if `AQUIFER_BACKEND` is `cuda`, is `sim` without the
/// feature, or has no valid value. Once a program has called
/// [`Device::detect_or_simulate`](crate::Device::detect_or_simulate), the memory is the simulated device's.
///
/// Inside of a [host function](crate::Stream::launch_host_fn), where the driver may not be called, a new block is ordinary
/// memory, so that a `Vec` may grow there. It may be used and freed as any other.
///
/// By default that is a [`PinnedPool`](crate::pinned::PinnedPool) over memory of that device. An allocation costs
/// nanoseconds once the pool is warm, while the driver takes a millisecond for each three megabytes.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::PinnedAlloc;
///
/// let mut vec: Vec<u8, PinnedAlloc> = Vec::with_capacity_in(4096, PinnedAlloc);
/// vec.extend_from_slice(b"in page-locked memory");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PinnedAlloc;

// SAFETY: the current pinned resource keeps the contract for its blocks.
unsafe impl HostAllocator for PinnedAlloc {
    #[inline(always)]
    fn allocate_fast(&self, layout: Layout) -> Option<NonNull<[u8]>> {
        registry::allocate_fast(layout, false)
    }

    fn allocate_slow(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        if is_in_host_function() {
            return allocate_in_host_function(layout);
        }
        not_forked("page-locked memory")?;
        match registry::load() {
            Ok(current) => current.allocate_slow(layout),
            Err(missing) => allocate_without_gpu(missing, layout),
        }
    }
}

implement_allocators!([] PinnedAlloc);

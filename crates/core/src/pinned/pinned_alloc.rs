//! Page-locked memory of the process, as its heap is.

use super::allocator::{HostAllocator, implement_allocators};
use super::ordinary::allocate_without_gpu;
use super::registry;
use crate::driver::not_forked;
use crate::error::Result;
use std::alloc::Layout;
use std::ptr::NonNull;

/// The process's page-locked memory, as [`std::alloc::Global`] is its heap.
///
/// New blocks come from the [current pinned resource](crate::pinned::current_pinned_resource); a block goes
/// back to where it came from, whatever is current then. The first use opens the
/// [detected device](crate::Device::detect). A failure is an `AllocError`; its reason is in
/// [`last_error`](crate::pinned::last_error). As on the heap, a `Vec` that has to grow and cannot ends the
/// process: where there may be no driver or no room, use `try_reserve`. The reason of one that ends it is a warning
/// in [`tracing`](https://docs.rs/tracing).
///
/// A block that is freed waits until every device context is past the work that it had at that
/// time, so a `Vec` may be dropped while another library still copies from it. A copy *into* memory
/// that was freed, or a write by the host while a copy reads, is not covered: see
/// [`Transfer`](crate::Transfer) for copies that own their buffers.
///
/// Where there is no GPU, and nothing is current, it is ordinary memory. That is said once: as a warning in `tracing`, and on
/// standard error where no subscriber was ever set. Where `AQUIFER_BACKEND` is `cuda`, is `sim` without the feature, or means nothing, it is an error. Once a program has called
/// [`Device::detect_or_simulate`](crate::Device::detect_or_simulate), the memory is the simulated device's.
///
/// Unless said otherwise that is a [`PinnedPool`](crate::pinned::PinnedPool) over memory of that device: an
/// allocation costs nanoseconds once the pool is warm, where the driver takes a millisecond for each
/// three megabytes.
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
        not_forked("page-locked memory")?;
        match registry::load() {
            Ok(current) => current.allocate_slow(layout),
            Err(missing) => allocate_without_gpu(missing, layout),
        }
    }
}

implement_allocators!([] PinnedAlloc);

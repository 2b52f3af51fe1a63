//! A list of the allocations that were not freed.

mod allocation;
mod clock;
mod shard;
mod table;

pub use allocation::Allocation;

use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::impls::{adaptor, forward, setters};
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use table::{BadFree, TrackingTable};

/// A resource that lists every allocation until it is freed, to find leaks. RMM calls it
/// `tracking_resource_adaptor`.
///
/// [`outstanding`](Self::outstanding) and [`report`](Self::report) give the list at any time. If the
/// last handle drops while blocks are outstanding, the report is a [`tracing`](https://docs.rs/tracing) warning, which names the
/// oldest 100. A vector holds a handle on its resource. So a vector that is leaked by `mem::forget`
/// keeps the list alive, and [`report`](Self::report) alone shows it.
///
/// Clones of the adaptor share the list. While a single thread calls, on Linux, a call takes no lock and no
/// locked instruction. From the second thread's first call on, each takes one of 16 locks, by address,
/// for one insertion or removal. [Backtraces](TrackingOptions::capture_backtraces) cost a walk of the
/// stack for each allocation. Empty blocks have no memory and are not listed.
///
/// A free of an unknown block reaches the upstream as it is. A free with a wrong size
/// reaches it with the right one. The adaptor counts both, and warns of the first of each.
/// The child of a fork tracks nothing.
///
/// RMM's adaptor takes one lock for all threads at each call. It returns a reference to a
/// live map which other threads change, and records no stream, thread or time. The list
/// here is a copy of one moment, in order.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, PoolResource, mr::TrackingAdaptor};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let pool = PoolResource::new(CudaResource::new(&device))?;
/// let tracking = TrackingAdaptor::builder(pool).capture_backtraces(true).build();
///
/// let vec = DeviceVec::<u8>::zeroed_in(&stream, 1 << 20, tracking.clone())?;
/// assert!(tracking.allocated_bytes() >= 1 << 20);
/// println!("{}", tracking.report());
/// drop(vec);
/// assert_eq!(tracking.allocated_bytes(), 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct TrackingAdaptor<U> {
    state: Arc<TrackingState<U>>,
}

struct TrackingState<U> {
    // Drops first: its report comes while the upstream is still there.
    table: TrackingTable,
    backtraces: bool,
    upstream: U,
}

adaptor!(TrackingAdaptor, state.upstream, backtraces);

/// The options of a [`TrackingAdaptor`].
///
/// ```
/// use aquifer::{CudaResource, Device, mr::TrackingAdaptor};
///
/// let device = Device::detect_or_simulate()?;
/// let options = TrackingAdaptor::builder(CudaResource::new(&device)).capture_backtraces(true);
/// let tracking = options.build();
/// assert!(tracking.outstanding().is_empty());
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "options make nothing until `build`"]
pub struct TrackingOptions<U> {
    upstream: U,
    capture_backtraces: bool,
}

impl<U: DeviceResource> TrackingOptions<U> {
    setters! {
        /// Whether each allocation keeps its backtrace, whatever `RUST_BACKTRACE` says. A backtrace is
        /// the addresses of at most 128 frames, in 8 bytes of host memory each. The default is `false`.
        ///
        /// The system's unwinder takes some 100 ns a frame. A report looks up functions and lines.
        capture_backtraces: bool;
    }

    /// The adaptor.
    pub fn build(self) -> TrackingAdaptor<U> {
        let table = TrackingTable::new(self.upstream.device());
        let Self { upstream, capture_backtraces: backtraces } = self;
        TrackingAdaptor { state: Arc::new(TrackingState { table, backtraces, upstream }) }
    }
}

impl<U: DeviceResource> TrackingAdaptor<U> {
    /// Tracks the allocations and frees that pass through from here on, without backtraces.
    pub fn new(upstream: U) -> Self {
        Self::builder(upstream).build()
    }

    /// The options, with their defaults.
    pub fn builder(upstream: U) -> TrackingOptions<U> {
        TrackingOptions { upstream, capture_backtraces: false }
    }
}

impl<U> TrackingAdaptor<U> {
    /// The outstanding allocations of one moment, oldest first. Allocations and frees of other threads
    /// wait while they are copied. A block that was freed to the [upstream](Self::upstream) directly
    /// stays listed. Empty in the child of a fork.
    ///
    /// RMM calls this `get_outstanding_allocations`.
    pub fn outstanding(&self) -> Vec<Allocation> {
        self.state.table.outstanding()
    }

    /// The bytes of all outstanding allocations. RMM calls this `get_allocated_bytes`.
    pub fn allocated_bytes(&self) -> usize {
        self.state.table.bytes()
    }

    /// A text of the number and bytes of outstanding allocations. A line for each follows, oldest
    /// first, which ends with the file and line that allocated it if there is a backtrace. The text
    /// begins with `Outstanding Allocations`. RMM calls this `get_outstanding_allocations_str`.
    pub fn report(&self) -> String {
        self.state.table.report(&self.outstanding(), usize::MAX)
    }

    /// Logs [`report`](Self::report) with the oldest 100 blocks, as a
    /// [`tracing`](https://docs.rs/tracing) warning, or as a debug line if nothing is outstanding. RMM
    /// calls this `log_outstanding_allocations`, which logs at debug level alone.
    pub fn log_outstanding(&self) {
        self.state.table.log();
    }

    /// The number of frees of blocks that were not handed out here.
    pub fn unknown_frees(&self) -> u64 {
        self.state.table.bad_frees(BadFree::Unknown)
    }

    /// The number of frees with a size that was not the block's.
    pub fn wrong_size_frees(&self) -> u64 {
        self.state.table.bad_frees(BadFree::WrongSize)
    }

    /// The number of outstanding blocks that the upstream handed out again. They were freed past this adaptor.
    pub fn bypassing_frees(&self) -> u64 {
        self.state.table.bad_frees(BadFree::Bypassing)
    }
}

// SAFETY: every block is the upstream's, and goes back to it once for each call, as it was handed out;
// the list touches no device memory.
unsafe impl<U: DeviceResource> DeviceResource for TrackingAdaptor<U> {
    forward!(device, peer_access, identity);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self.state.upstream.allocate(stream, layout)?;
        self.state.table.add(&block, stream, self.state.backtraces);
        Ok(block)
    }

    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        let block = self.state.upstream.allocate_growable(stream, layout)?;
        block.iter().for_each(|block| self.state.table.add(block, stream, self.state.backtraces));
        Ok(block)
    }

    /// The block is listed anew, with its size and with the call that changed it.
    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        let before = DeviceBlock::new(block.address(), block.bytes(), block.token());
        // SAFETY: the block is the upstream's; the caller vouches for the rest.
        let resized = unsafe { self.state.upstream.resize_in_place(stream, block, bytes) }?;
        if resized && block.bytes() != before.bytes() {
            let _ = self.state.table.remove(before);
            self.state.table.add(block, stream, self.state.backtraces);
        }
        Ok(resized)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // Before the upstream's free: the address may then be another thread's.
        let block = self.state.table.remove(block);
        // SAFETY: the caller's promise; a listed block is as the upstream handed it out.
        unsafe { self.state.upstream.deallocate(stream, block) }
    }
}

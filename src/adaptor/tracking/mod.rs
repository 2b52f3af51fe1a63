//! A resource that remembers what it has handed out.

mod allocation;
#[allow(unreachable_pub, missing_docs, reason = "the models of loom_tests reach it; no user does")]
pub(super) mod alone;
mod book;
mod call_stack;
mod clock;
mod ledger;

pub use allocation::Allocation;
pub use call_stack::CallStack;

use super::handles::{handles, identity_by};
use crate::device::Device;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible};
use crate::stream::Stream;
use crate::sync::Arc;
use ledger::Ledger;
use std::fmt;
use std::ptr::NonNull;

/// Remembers every allocation until it is freed, to find what leaks: RMM's `tracking_resource_adaptor`.
///
/// A handle: clones share the list. As long as one thread calls, on Linux, there is no lock and no locked
/// instruction; from the second thread's first call on, they meet at one of 16 locks, by address, for
/// one insertion or removal. With backtraces each allocation walks the stack besides:
/// [`capture_backtraces`](TrackingOptions::capture_backtraces). Empty blocks have no memory and are not
/// listed.
///
/// What is still out can be asked at any time, by [`outstanding`](Self::outstanding) or
/// [`report`](Self::report). When the last handle goes while blocks are out, the report is a
/// [`tracing`] warning, which names the oldest 100. A vector holds its resource, so that happens for blocks alone: a vector that
/// is forgotten keeps the list alive, and only [`report`](Self::report) tells.
///
/// A free of an unknown block is passed on, one with a wrong size is passed on with the right one;
/// both are counted, and warned of the first time. In the child of a fork nothing is tracked.
///
/// RMM takes one lock for all threads at each call, hands out a reference to its live map while other
/// threads change it, and knows no stream, thread or time; here it is a copy, of one moment and in
/// order.
///
/// ```
/// use aquifer::{Device, DeviceVec, PoolResource, CudaResource, TrackingAdaptor};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let pool = PoolResource::new(CudaResource::new(&device))?;
/// let tracking = TrackingAdaptor::builder(pool).capture_backtraces(true).build();
///
/// let vec = DeviceVec::<u8>::zeroed_in(&stream, 1 << 20, Arc::new(tracking.clone()))?;
/// assert!(tracking.allocated_bytes() >= 1 << 20);
/// println!("{}", tracking.report());
/// drop(vec);
/// assert_eq!(tracking.allocated_bytes(), 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct TrackingAdaptor<U> {
    state: Arc<State<U>>,
}

struct State<U> {
    // First: the report comes while upstream is still there.
    ledger: Ledger,
    backtraces: bool,
    upstream: U,
}

/// The options of a [`TrackingAdaptor`].
///
/// ```
/// use aquifer::{CudaResource, Device, TrackingAdaptor};
///
/// let device = Device::detect()?;
/// let options = TrackingAdaptor::builder(CudaResource::new(&device)).capture_backtraces(true);
/// let tracking = options.build();
/// assert!(tracking.outstanding().is_empty());
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "options make nothing until `build`"]
pub struct TrackingOptions<U> {
    upstream: U,
    backtraces: bool,
}

impl<U: DeviceResource> TrackingOptions<U> {
    /// Whether each allocation keeps its backtrace, whatever `RUST_BACKTRACE` says: the addresses of at
    /// most 128 frames, in 8 bytes of host memory each. `false` unless set.
    ///
    /// A walk takes the system's unwinder some 100 ns a frame. Functions and lines are looked up when a
    /// report is asked for.
    pub fn capture_backtraces(mut self, capture: bool) -> Self {
        self.backtraces = capture;
        self
    }

    /// The adaptor.
    pub fn build(self) -> TrackingAdaptor<U> {
        let ledger = Ledger::new(self.upstream.device());
        let Self { upstream, backtraces } = self;
        TrackingAdaptor { state: Arc::new(State { ledger, backtraces, upstream }) }
    }
}

impl<U: DeviceResource> TrackingAdaptor<U> {
    /// Tracks what passes to and from `upstream` from here on, without backtraces.
    pub fn new(upstream: U) -> Self {
        Self::builder(upstream).build()
    }

    /// Options to set before the adaptor is made.
    pub fn builder(upstream: U) -> TrackingOptions<U> {
        TrackingOptions { upstream, backtraces: false }
    }
}

impl<U> TrackingAdaptor<U> {
    /// The resource below. What is freed to it directly stays on the list here.
    pub fn upstream(&self) -> &U {
        &self.state.upstream
    }

    /// What has been handed out and not come back, at one moment, oldest first. Allocations and frees
    /// of other threads wait while it is copied. Empty in the child of a fork.
    ///
    /// RMM: `get_outstanding_allocations`.
    pub fn outstanding(&self) -> Vec<Allocation> {
        self.state.ledger.outstanding()
    }

    /// The sum of the sizes that are outstanding, in bytes. RMM: `get_allocated_bytes`.
    pub fn allocated_bytes(&self) -> usize {
        self.state.ledger.bytes()
    }

    /// For people: how much is outstanding and a line for each block, oldest first, which ends with
    /// the file and line that allocated it where there are backtraces. Begins with
    /// `Outstanding Allocations`. RMM: `get_outstanding_allocations_str`.
    pub fn report(&self) -> String {
        self.state.ledger.report_of(&self.outstanding(), usize::MAX)
    }

    /// Logs [`report`](Self::report) with the oldest 100 blocks: a [`tracing`] warning, or a debug
    /// line if nothing is outstanding. RMM: `log_outstanding_allocations`, at debug level alone.
    pub fn log_outstanding(&self) {
        self.state.ledger.log();
    }

    /// How many blocks were freed here that had not been handed out here.
    pub fn unknown_frees(&self) -> u64 {
        self.state.ledger.odd()[0]
    }

    /// How many blocks were freed with a size that was not theirs.
    pub fn wrong_size_frees(&self) -> u64 {
        self.state.ledger.odd()[1]
    }

    /// How many outstanding blocks came again from upstream: they had been freed past this adaptor.
    pub fn bypassing_frees(&self) -> u64 {
        self.state.ledger.odd()[2]
    }
}

// `frees_with_driver` stays `false`: what the driver frees would be outstanding here for good.
//
// SAFETY: blocks are upstream's own and go back to it once for each call, as it handed them out; the
// list touches no device memory.
unsafe impl<U: DeviceResource> DeviceResource for TrackingAdaptor<U> {
    fn device(&self) -> &Device {
        self.state.upstream.device()
    }

    identity_by!(state);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self.state.upstream.allocate(stream, layout)?;
        self.state.ledger.add(&block, stream, self.state.backtraces);
        Ok(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // Off the list first: upstream may hand the address to another thread at once, and its
        // entry must not be the one that goes.
        let block = self.state.ledger.remove(block);
        // SAFETY: the caller's promise; a block of the list is as upstream handed it out.
        unsafe { self.state.upstream.deallocate(stream, block) }
    }
}

// SAFETY: the blocks are upstream's, unchanged.
unsafe impl<U: HostAccessible> HostAccessible for TrackingAdaptor<U> {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        self.state.upstream.host_pointer(block)
    }
}

handles! {
    /// Equal if they are handles on one list.
    TrackingAdaptor, state
}

impl<U: fmt::Debug> fmt::Debug for TrackingAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackingAdaptor")
            .field("upstream", &self.state.upstream)
            .field("backtraces", &self.state.backtraces)
            .finish_non_exhaustive()
    }
}

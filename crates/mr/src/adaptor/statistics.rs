//! A resource that counts what passes through it.

mod counters;
mod scopes;
#[allow(
    unreachable_pub,
    missing_docs,
    reason = "the models of loom_tests reach it through `models`; no user does"
)]
pub(super) mod shared;
mod shared_scopes;

pub use counters::{Counter, Counters};

use crate::driver::not_forked;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::resource::impls::{adaptor, forward};
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use scopes::Scopes;
use shared_scopes::SharedScopes;

/// A resource that counts bytes and blocks, each with its current value, peak and total. RMM
/// calls it `statistics_resource_adaptor`.
///
/// [`counters`](Self::counters) cover all threads and are exact. Each peak is the most
/// that the counter was between two of its changes. A block counts from when upstream
/// returned it until [`deallocate`](DeviceResource::deallocate) begins. It counts with
/// the [bytes that it has](DeviceBlock::bytes), even after they
/// [change in place](DeviceResource::resize_in_place). Empty blocks, which need no
/// memory and no free, do not count.
///
/// A thread opens a scope of its own with [`push_counters`](Self::push_counters) and ends it with
/// [`pop_counters`](Self::pop_counters). The scope counts the calls of that thread alone, including
/// frees of blocks that other threads allocated. [`push_shared_counters`](Self::push_shared_counters) opens a
/// scope that counts the calls of all threads, and [`pop_shared_counters`](Self::pop_shared_counters) ends it. The two
/// kinds know nothing of each other.
///
/// Counting takes no locked instruction while only one thread allocates and frees. From the first such
/// call of a second thread on, each takes one mutex. A read of the counters does not count as such a call.
///
/// RMM takes one lock a call. Its scopes count the calls of all threads, and those of two threads mix.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, mr::StatisticsAdaptor};
/// use std::sync::Arc;
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let counted = Arc::new(StatisticsAdaptor::new(CudaResource::new(&device)));
/// let kept = DeviceVec::<u8>::zeroed_in(&stream, 1000, counted.clone())?;
/// counted.push_counters()?;
/// drop(DeviceVec::<u8>::zeroed_in(&stream, 500, counted.clone())?);
/// let scope = counted.pop_counters()?;
/// assert_eq!((scope.bytes.current, scope.bytes.peak), (0, 500));
/// let all = counted.counters();
/// assert_eq!((all.bytes.current, all.bytes.peak, all.bytes.total), (1000, 1500, 1500));
/// assert_eq!((all.allocations.current, all.allocations.total), (1, 2));
/// # drop(kept);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct StatisticsAdaptor<U> {
    state: Arc<State<U>>,
}

struct State<U> {
    upstream: U,
    scopes: Scopes,
    counters: SharedScopes,
}

adaptor!(StatisticsAdaptor, state.upstream, counters);

impl<U> State<U> {
    #[inline]
    fn count(&self, block: &DeviceBlock) {
        if !block.is_empty() {
            let bytes = block.bytes() as i64;
            self.counters.counters().record_allocation(bytes);
            self.scopes.change(bytes, 1);
        }
    }
}

impl<U> StatisticsAdaptor<U> {
    /// Counts what passes through to `upstream`, from zero.
    pub fn new(upstream: U) -> Self {
        let (scopes, counters) = Default::default();
        Self { state: Arc::new(State { upstream, scopes, counters }) }
    }

    /// The counters of all threads since the adaptor was made, whatever scopes are open. They are the
    /// values at one moment of this call. The call takes some microseconds where only one thread counts,
    /// and it is another. The counters are zero in the child of a fork, where nothing is allocated.
    pub fn counters(&self) -> Counters {
        self.state.counters.read()
    }

    /// Opens a scope of the calling thread, inside of those it has open. Its counters start from zero,
    /// and count this thread's calls. The end of the thread ends its open scopes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the thread is ending, in a destructor of a thread-local value.
    pub fn push_counters(&self) -> Result<()> {
        if self.state.scopes.push() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            "a thread that ends cannot open a scope of counters",
        )
        .with_advice("open it before the thread's last destructors"))
    }

    /// Ends the innermost scope of the calling thread and returns its counters. They count for the
    /// scope around it too, as if that one had been open alone. The peak of the outer scope becomes
    /// the larger of two values. One is its peak before this scope, and the other is its value at the
    /// start of this scope plus this scope's peak.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] if the thread has no scope open.
    pub fn pop_counters(&self) -> Result<Counters> {
        self.state.scopes.pop().ok_or_else(|| {
            Error::new(ErrorKind::OutOfBounds, "this thread has no scope of counters open")
                .with_advice("push_counters opens one, on the thread that pops it")
        })
    }

    /// The counters of the innermost scope that the calling thread has open.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, mr::StatisticsAdaptor};
    ///
    /// let counted = StatisticsAdaptor::new(CudaResource::new(&Device::detect_or_simulate()?));
    /// assert!(counted.scope_counters().is_none());
    /// counted.push_counters()?;
    /// assert_eq!(counted.scope_counters(), Some(counted.counters()));
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn scope_counters(&self) -> Option<Counters> {
        self.state.scopes.innermost()
    }

    /// Opens a scope that counts the calls of all threads from zero, inside of those that are open.
    /// Scopes of all threads are one stack, whichever threads open and end them. A call is not
    /// slower for them. Returns the counters of the scope around it, or of all calls without one.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, mr::StatisticsAdaptor};
    /// use std::sync::Arc;
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let counted = Arc::new(StatisticsAdaptor::new(CudaResource::new(&device)));
    /// counted.push_shared_counters()?;
    /// std::thread::scope(|scope| {
    ///     let thread = scope.spawn(|| {
    ///         let stream = device.new_stream()?;
    ///         DeviceVec::<u8>::zeroed_in(&stream, 500, counted.clone()).map(drop)
    ///     });
    ///     thread.join().unwrap()
    /// })?;
    /// let scope = counted.pop_shared_counters()?;
    /// assert_eq!((scope.bytes.current, scope.bytes.peak), (0, 500));
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn push_shared_counters(&self) -> Result<Counters> {
        not_forked("a scope of counters")?;
        Ok(self.state.counters.push())
    }

    /// Ends the innermost scope of all threads and returns its counters. They count for the scope
    /// around it, as those of [`pop_counters`](Self::pop_counters) do.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OutOfBounds`] if no scope of all threads is open.
    /// - [`ErrorKind::Forked`] in the child of a fork.
    pub fn pop_shared_counters(&self) -> Result<Counters> {
        not_forked("a scope of counters")?;
        self.state.counters.pop().ok_or_else(|| {
            Error::new(ErrorKind::OutOfBounds, "no scope of counters of all threads is open")
                .with_advice("push_shared_counters opens one")
        })
    }

    /// The counters of the innermost scope of all threads.
    pub fn shared_scope_counters(&self) -> Option<Counters> {
        self.state.counters.read_innermost()
    }
}

// SAFETY: every block is upstream's, of the layout asked, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for StatisticsAdaptor<U> {
    forward!(device, peer_access, identity);

    #[inline]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let state = &*self.state;
        let block = state.upstream.allocate(stream, layout)?;
        state.count(&block);
        Ok(block)
    }

    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        let block = self.state.upstream.allocate_growable(stream, layout)?;
        block.iter().for_each(|block| self.state.count(block));
        Ok(block)
    }

    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        let (state, before) = (&*self.state, block.bytes() as i64);
        let count = |bytes: i64| {
            if bytes != 0 {
                state.counters.counters().record_resize(bytes);
                state.scopes.resize(bytes);
            }
        };
        // What is given up, first: upstream may hand it to another thread before it returns.
        let given_up = if block.is_empty() { 0 } else { (before - bytes as i64).max(0) };
        count(-given_up);
        // SAFETY: the block is upstream's; the caller vouches for the rest.
        let resized = unsafe { state.upstream.resize_in_place(stream, block, bytes) };
        match block.bytes() as i64 - before + given_up {
            // Of what was given up some was kept: no block got it now.
            kept if given_up > 0 => {
                state.counters.counters().record_kept(kept);
                state.scopes.keep(kept);
            }
            added => count(added),
        }
        resized
    }

    #[inline]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let state = &*self.state;
        if !block.is_empty() {
            // First: upstream may hand the memory to another thread before it returns.
            let bytes = block.bytes() as i64;
            state.counters.counters().record_free(bytes);
            state.scopes.change(bytes.wrapping_neg(), -1);
        }
        // SAFETY: the block is upstream's; the caller vouches for the rest.
        unsafe { state.upstream.deallocate(stream, block) }
    }
}

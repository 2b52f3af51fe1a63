//! The pool, as a resource over another one.

use super::cuda::lost;
use super::{CudaResource, DeviceBlock, DeviceResource, ResourceId};
use crate::backend::{Wanted, is_forked_child, not_forked};
use crate::debug_log::{POOL, event, later};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::pool::{Block, Failure, Pool, Upstream};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::{AtomicBool, Mutex, Ordering};
use std::fmt;

mod capture;
mod options;
#[cfg(not(feature = "nvtx"))]
mod unwatched;
#[cfg(feature = "nvtx")]
mod watch;

#[cfg(not(feature = "nvtx"))]
use unwatched::Watch;
#[cfg(feature = "nvtx")]
use watch::Watch;

pub use options::{MissPolicy, PoolOptions, PoolStatistics};

/// A stream-ordered pool over another resource: RMM's `pool_memory_resource`, without a driver call
/// once it is warm.
///
/// A handle: clones are the same pool. Use it from any thread, on any stream of its device. Freed
/// memory goes back to the same stream without a check. Another stream takes it when the device is
/// past it, or is made to wait for it: which comes first, and when the pool grows instead, says the
/// [`MissPolicy`].
///
/// The pool takes memory from upstream in large blocks and cuts exact sizes from them, rounded up to
/// 256 bytes. It never holds more than its maximum size, and can always use all of it: on the way to
/// an out-of-memory error it gathers what all streams and threads have freed, and gives blocks of
/// upstream back to get larger ones.
///
/// Handles may be dropped before the vectors that live in the pool; it ends with the last of both.
/// Blocks that were [allocated](DeviceResource::allocate) by hand and not given back by then are
/// leaked with the blocks of upstream that they are part of, and an error in the log.
///
/// One pool serves up to 65,534 streams at a time, and any number one after the other. What it does for
/// each of them, and on a miss, does not grow with their number, but with that of the streams that
/// have memory of upstream to cut from (those that grew the pool), of those that have something free
/// in it, and of those that one of them was made to wait for. [`trim`](Self::trim),
/// [`statistics`](Self::statistics), a request that is about to fail and the pool's end look at every
/// stream. A stream that nobody but the pool holds is let go, for a later one to take over its memory,
/// when new streams come: by the next one among 64, or after a 64th as many as there are. A stream
/// costs the host some 30 KiB, a thread that uses it some more, and a stream that waits for others up
/// to 16 bytes for each stream that there is.
///
/// Over another pool, give this one a [growth step](PoolOptions::growth_step): by default it takes 2
/// MiB at least.
///
/// On Linux, threads keep blocks ready behind a barrier that the system has for it, `membarrier`. Where a
/// filter of system calls forbids it a pool is somewhat slower. A filter that is set after the first
/// pool was made has to allow it: without, the process is aborted.
///
/// The simulated device sees the memory of a pool as written once it was: it does not report a read
/// of a block that was handed out again and not written since.
///
/// To make and drop vectors while a stream records a graph, declare it with [`Stream::capture`]. A
/// stream in capture that the pool was not told of is noticed when the pool has to do more than
/// hand out what the stream freed before; that is [`ErrorKind::Capture`].
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, PoolResource};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let pool = PoolResource::builder(CudaResource::new(&device))
///     .initial_size(16 << 20)
///     .maximum_size(64 << 20)
///     .build()?;
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, Arc::new(pool.clone()))?;
/// assert_eq!(pool.statistics().live, 4096);
/// drop(vec);
/// assert_eq!(pool.statistics().live, 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct PoolResource<U: DeviceResource + 'static = CudaResource> {
    pool: Arc<Pool<Ground<U>>>,
}

impl<U: DeviceResource + 'static> Clone for PoolResource<U> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone() }
    }
}

impl<U: DeviceResource + 'static> PartialEq for PoolResource<U> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }
}

impl<U: DeviceResource + 'static> Eq for PoolResource<U> {}

impl<U: DeviceResource + 'static> fmt::Debug for PoolResource<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolResource")
            .field("upstream", self.upstream())
            .field("statistics", &self.statistics())
            .finish()
    }
}

impl<U: DeviceResource + 'static> PoolResource<U> {
    /// A pool with default options: it starts empty, grows as it needs to, and has no maximum size
    /// but what upstream has.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn new(upstream: U) -> Result<Self> {
        Self::builder(upstream).build()
    }

    /// The options.
    pub fn builder(upstream: U) -> PoolOptions<U> {
        PoolOptions::new(upstream)
    }

    /// The resource that the pool takes its memory from.
    pub fn upstream(&self) -> &U {
        &self.pool.upstream().resource
    }

    /// Gives free memory back to upstream until `keep` bytes are reserved, as far as whole blocks of
    /// upstream are free. The host waits for the streams that freed them. Returns how many bytes
    /// went back.
    ///
    /// # Errors
    ///
    /// Those of the driver, if nothing could be given back for them; [`ErrorKind::Capture`] if a
    /// stream of the pool is in capture.
    pub fn trim(&self, keep: usize) -> Result<usize> {
        not_forked("a pool")?;
        self.pool.settle_late();
        self.pool.trim(keep).map_err(|failure| self.explain(failure, 0))
    }

    /// What the pool holds and what it did. Exact while no other thread uses it.
    pub fn statistics(&self) -> PoolStatistics {
        if is_forked_child() {
            return PoolStatistics::default();
        }
        self.pool.totals().into()
    }

    /// A block that the calling thread keeps ready, if it does: what is common, without a lock.
    #[inline(always)]
    pub(super) fn allocate_warm(
        &self,
        stream: &Stream,
        bytes: usize,
        alignment: usize,
    ) -> Option<DeviceBlock> {
        let warm = self.pool.allocate_warm(stream.id(), bytes, alignment as u64)?;
        Some(DeviceBlock::new(warm.address, warm.bytes, warm.token))
    }

    /// The same for a size in [units](Self::units).
    #[inline(always)]
    pub(super) fn allocate_warm_units(
        &self,
        stream: &Stream,
        units: u32,
        alignment: usize,
    ) -> Option<DeviceBlock> {
        let warm = self.pool.allocate_warm_units(stream.id(), units, alignment as u64)?;
        Some(DeviceBlock::new(warm.address, warm.bytes, warm.token))
    }

    /// The pool's own measure of a size. `None` if no heap has it.
    pub(super) fn units(&self, bytes: usize) -> Option<u32> {
        self.pool.units(bytes)
    }

    /// What handles on one pool have in common, for the identity of resources made of it.
    pub(super) fn state(&self) -> *const () {
        Arc::as_ptr(&self.pool).cast()
    }

    /// As [`allocate`](DeviceResource::allocate), after [`allocate_warm`](Self::allocate_warm).
    #[inline(never)]
    pub(super) fn allocate_cold(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<DeviceBlock> {
        not_forked("a pool")?;
        if layout.bytes() == 0 {
            self.device().require(stream.device(), "the stream")?;
            return Ok(DeviceBlock::empty(layout));
        }
        let align = layout.alignment() as u64;
        match self.pool.allocate(stream, stream.id(), layout.bytes(), align) {
            Ok(Block { address, bytes, token }) => {
                if let Some(watch) = &self.pool.upstream().watch {
                    watch.hand_out(stream, address, bytes);
                }
                Ok(DeviceBlock::new(address, bytes, token))
            }
            Err(failure) => Err(self.explain(failure, layout.bytes())),
        }
    }

    /// # Safety
    ///
    /// As [`DeviceResource::deallocate`].
    #[inline(never)]
    unsafe fn deallocate_cold(&self, stream: &Stream, block: Block) {
        if block.bytes > 0 && !is_forked_child() {
            // Before the pool has it: from then on another thread may get the same address.
            if let Some(watch) = &self.pool.upstream().watch {
                watch.take_back(stream, block.address);
            }
            // SAFETY: the caller's promise.
            unsafe { self.pool.deallocate(stream, stream.id(), block) }
        }
    }

    fn note_stop(&self, asked: usize, why: &'static str) {
        let (pool, device) = (self.pool.number(), self.device().ordinal());
        later(move || {
            event!(error, target: POOL, pool, device, asked, why, "a pool cannot go on");
        });
    }

    #[cold]
    fn explain(&self, failure: Failure<Error>, bytes: usize) -> Error {
        let device = self.device();
        let (pool, ordinal) = (self.pool.number(), device.ordinal());
        match failure {
            Failure::Upstream(error) => {
                if error.kind() == ErrorKind::ContextLost && !self.pool.upstream().is_loss_told() {
                    let error = error.to_string();
                    later(move || {
                        event!(error, target: POOL, pool, device = ordinal, asked = bytes, error, "device lost");
                    });
                }
                error
            }
            Failure::Exhausted(upstream) => {
                let PoolStatistics { reserved, live, largest_free, .. } = self.statistics();
                let maximum = self.pool.settings().maximum;
                let limit = match maximum {
                    options::UNLIMITED => String::from("no maximum"),
                    maximum => format!("a maximum of {maximum}"),
                };
                let last = match &upstream {
                    Some(upstream) => format!("; its upstream: {upstream}"),
                    None => String::new(),
                };
                let rungs = self.pool.settings().rungs.clone();
                let upstream_refused = upstream.is_some();
                let upstream = upstream.map(|error| error.to_string());
                later(move || {
                    event!(
                        warn, target: POOL, pool, device = ordinal, asked = bytes, ?rungs, reserved, live,
                        largest_free, maximum, upstream, "out of memory"
                    );
                });
                Error::new(
                    ErrorKind::OutOfMemory,
                    format!(
                        "allocating {bytes} bytes from a pool on {device} with {limit}: of \
                         {reserved} reserved bytes {live} are in use, and the largest free block \
                         has {largest_free}{last}"
                    ),
                )
                .advise(match maximum {
                    options::UNLIMITED if upstream_refused => {
                        "free some memory, or use a device or an upstream with more of it"
                    }
                    options::UNLIMITED => "free some memory, or let the pool's miss policy grow",
                    _ => "free some memory, or build the pool with a larger maximum",
                })
            }
            Failure::Captured => {
                later(move || {
                    event!(warn, target: POOL, pool, device = ordinal, asked = bytes, "refused a stream in capture");
                });
                Error::new(
                    ErrorKind::Capture,
                    format!("a pool on {device} cannot serve {bytes} bytes to a stream in capture"),
                )
                .advise(
                    "give this pool to Stream::capture, and make vectors on the stream that it \
                     captures; or make them before",
                )
            }
            Failure::Gone => {
                self.note_stop(bytes, "a stream is gone that memory has to be ordered after");
                Error::new(
                    ErrorKind::Driver,
                    format!("a pool on {device} cannot order memory after a stream that is gone"),
                )
                .advise("an earlier error of the driver is in the log")
            }
            Failure::Crowded => {
                self.note_stop(bytes, "there are more streams than a pool can tell apart");
                Error::new(
                    ErrorKind::Unsupported,
                    format!("a pool on {device} has no room for another stream: 65,535 live in it"),
                )
                .advise("drop streams that are not used")
            }
        }
    }
}

// SAFETY: the heaps hand out disjoint parts of live blocks of upstream, and memory changes streams
// only as `pool` says: complete, or behind an event that was waited for.
unsafe impl<U: DeviceResource + 'static> DeviceResource for PoolResource<U> {
    #[inline]
    fn device(&self) -> &Device {
        self.upstream().device()
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_state::<Self, _>(Arc::as_ptr(&self.pool))
    }

    #[inline(always)]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        match self.allocate_warm(stream, layout.bytes(), layout.alignment()) {
            Some(block) => Ok(block),
            None => self.allocate_cold(stream, layout),
        }
    }

    #[inline(always)]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let (address, bytes, token) = (block.address(), block.bytes(), block.token());
        // SAFETY: the caller's promise.
        unsafe {
            let warm = self.pool.deallocate_warm(stream.id(), Block { address, bytes, token });
            if let Err(block) = warm {
                self.deallocate_cold(stream, block);
            }
        }
    }
}

/// The driver's streams and the resource below, as the pool sees them.
struct Ground<U> {
    resource: U,
    /// What every block of upstream is aligned to.
    alignment: usize,
    /// For memory that is to be complete: a stream that nobody else uses.
    aside: Mutex<Option<Stream>>,
    /// Said once: every later call fails as well.
    loss_told: AtomicBool,
    /// If a tool watches memory: threads keep nothing ready then, so it hears of each block.
    watch: Option<Watch>,
}

impl<U: DeviceResource> Ground<U> {
    /// Whether this was asked before.
    fn is_loss_told(&self) -> bool {
        // Relaxed: nothing else hangs on it.
        self.loss_told.swap(true, Ordering::Relaxed)
    }

    fn aside(&self) -> Result<Stream> {
        let mut aside = self.aside.lock();
        if let Some(stream) = &*aside {
            return Ok(stream.clone());
        }
        let stream = self.resource.device().new_stream()?;
        *aside = Some(stream.clone());
        Ok(stream)
    }
}

impl<U: DeviceResource + 'static> Upstream for Ground<U> {
    type Stream = Stream;
    type Event = Event;
    type Range = DeviceBlock;
    type Error = Error;

    fn id(stream: &Stream) -> u64 {
        stream.id()
    }

    fn keep(stream: &Stream) -> Stream {
        stream.keep_for_pool()
    }

    fn is_abandoned(stream: &Stream) -> bool {
        stream.is_abandoned()
    }

    fn let_go(stream: Stream) {
        stream.let_go();
    }

    fn record(&self, stream: &Stream, spare: Option<Event>) -> Result<Event> {
        match spare {
            Some(event) => {
                stream.record_into(&event)?;
                Ok(event)
            }
            None => stream.record(),
        }
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        stream.wait(event)
    }

    fn is_passed(&self, event: &Event) -> Result<bool> {
        event.is_complete()
    }

    fn synchronize(&self, event: &Event) -> Result<()> {
        event.synchronize()
    }

    fn is_capturing(&self, stream: &Stream) -> Result<bool> {
        stream.is_capturing()
    }

    fn check(&self, stream: &Stream) -> Result<()> {
        self.resource.device().require(stream.device(), "the stream")
    }

    fn obtain(&self, stream: Option<&Stream>, bytes: usize) -> Result<(u64, DeviceBlock)> {
        let layout = DeviceLayout::with_alignment(bytes, self.alignment)?;
        let block = match stream {
            Some(stream) => self.resource.allocate(stream, layout)?,
            None => {
                let aside = self.aside()?;
                let block = self.resource.allocate(&aside, layout)?;
                // A stream-ordered upstream gives memory that its former user may still work on.
                // Past `Stream::synchronize`, which also drops what strangers left behind: the pool
                // may have its locks in hand, and such a drop may ask it for memory.
                let waited = aside.device().driver().stream_synchronize(aside.raw());
                if let Err(error) = waited.wanted(|| format!("waiting for {aside}")) {
                    // SAFETY: allocated above, in this order, and given to nobody.
                    unsafe { self.resource.deallocate(&aside, block) };
                    return Err(error);
                }
                block
            }
        };
        if block.bytes() < bytes || !block.address().is_multiple_of(self.alignment as u64) {
            let (address, got) = (block.address(), block.bytes());
            let error = Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{:?} was asked for {bytes} bytes aligned to {} and gave {got} at {address:#x}",
                    self.resource, self.alignment
                ),
            );
            match stream.map_or_else(|| self.aside(), |stream| Ok(stream.clone())) {
                // SAFETY: allocated above, and given to nobody.
                Ok(stream) => unsafe { self.resource.deallocate(&stream, block) },
                Err(_) => later(move || event!(error, bytes = got, "leaked device memory")),
            }
            return Err(error.advise("use a resource that keeps alignments"));
        }
        if let Some(watch) = &self.watch {
            watch.open(block.address(), block.bytes());
        }
        Ok((block.address(), block))
    }

    fn is_exhausted(error: &Error) -> bool {
        error.kind() == ErrorKind::OutOfMemory
    }

    fn give_back(&self, stream: Option<&Stream>, range: DeviceBlock) {
        if let Some(watch) = &self.watch {
            watch.close(stream, range.address(), range.bytes());
        }
        let stream = match stream {
            Some(stream) => Ok(stream.clone()),
            None => self.aside(),
        };
        match stream {
            // SAFETY: the block is upstream's, no part of it is in use, and its last work is
            // complete or ordered before this on `stream`: the pool keeps all three.
            Ok(stream) => unsafe { self.resource.deallocate(&stream, range) },
            Err(error) => {
                let (device, bytes) = (self.resource.device().to_string(), range.bytes());
                later(move || event!(error, %device, bytes, %error, "leaked device memory"));
            }
        }
    }

    fn leaked(&self, bytes: usize, why: &Failure<Error>) {
        let device = self.resource.device();
        if device.memory_info().is_err() {
            // The device is gone, and its memory with it.
            return;
        }
        let name = device.to_string();
        match why {
            Failure::Upstream(error) => lost(device, bytes, error),
            Failure::Exhausted(_) => later(move || {
                event!(
                    error, device = %name, bytes,
                    "leaked device memory: a pool was dropped while blocks of it were in use"
                );
            }),
            _ => later(move || {
                event!(
                    error, device = %name, bytes,
                    "leaked device memory: no stream could be made to wait for its last use"
                );
            }),
        }
    }

    fn device(&self) -> usize {
        self.resource.device().ordinal()
    }

    fn is_forked(&self) -> bool {
        is_forked_child()
    }
}

impl<U: DeviceResource + 'static> PoolOptions<U> {
    /// The pool.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for an option that makes no sense, or not with another;
    /// [`ErrorKind::OutOfMemory`] if upstream has not the initial size; [`ErrorKind::Forked`] in the
    /// child of a fork.
    pub fn build(self) -> Result<PoolResource<U>> {
        not_forked("a pool")?;
        let mut settings = self.check()?;
        let watch = Watch::find(self.upstream.device());
        if watch.is_some() {
            settings.entries = 0;
        }
        let alignment = self.alignment;
        let initial = self.initial_size;
        let ground = Ground {
            resource: self.upstream,
            alignment,
            aside: Mutex::new(None),
            loss_told: AtomicBool::new(false),
            watch,
        };
        let maximum = settings.maximum;
        let pool = PoolResource { pool: Pool::new(ground, settings) };
        let (number, device) = (pool.pool.number(), pool.device().ordinal());
        if let Some(watch) = &pool.pool.upstream().watch {
            watch.name(number);
        }
        later(move || {
            event!(debug, target: POOL, pool = number, device, initial, maximum, "pool made");
        });
        if initial > 0 {
            pool.pool.prepare(initial).map_err(|failure| pool.explain(failure, initial))?;
        }
        Ok(pool)
    }
}

const _: () = assert!(DEFAULT_ALIGNMENT == 256);

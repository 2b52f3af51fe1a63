//! The resources that were built by a text.

use super::text::StackText;
use crate::adaptor::{
    CheckedAdaptor, Counters, LimitingAdaptor, LoggingAdaptor, StatisticsAdaptor, TrackingAdaptor,
};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::pinned::{PinnedPool, PinnedResource};
use crate::resource::impls::{debug_struct, handle};
use crate::resource::{DeviceBlock, DeviceResource, PoolResource, PoolStatistics, ResourceId};
use crate::stream::Stream;
use crate::sync::Arc;
use aquifer_core::mr::{SleepOptions, SleepReport, Woken};
use aquifer_mr::{ArenaResource, AsyncResource, BinningResource, FixedSizeResource};

/// A resource, whatever it is.
pub(super) type AnyResource = Arc<dyn DeviceResource>;

/// A stack of resources by a text, from [`StackText::build`], or around any other resource, from
/// [`compose`](ResourceStack::compose). As a resource it is its outermost one.
///
/// Clones are the same stack. A call costs one dynamic call for each resource and adaptor of the
/// text. A container keeps the outermost resource alone, and with it all that is below.
///
/// The methods reach the layers inside. Of two adaptors or pools of a kind they mean the outer one.
///
/// ```
/// use aquifer::{Device, DeviceVec, mr::StackText};
///
/// let device = Device::detect_or_simulate()?;
/// let text: StackText = "pool(cuda) | limiting(64MiB) | tracking | statistics".parse()?;
/// let stack = text.build(&device)?;
///
/// let vec = DeviceVec::<f32>::zeroed_in(&device.new_stream()?, 1024, stack.clone())?;
/// assert_eq!(stack.counters().unwrap().bytes.current, 4096);
/// assert_eq!(stack.pool_statistics().unwrap().live, 4096);
/// assert_eq!(stack.limiting().unwrap().remaining(), (64 << 20) - 4096);
/// assert!(stack.tracking().unwrap().report().starts_with("Outstanding Allocations"));
///
/// drop(vec);
/// assert_eq!(stack.wait_and_trim(0)?, 2 << 20);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct ResourceStack {
    /// The outermost resource. It is apart from `inside`, so that a call loads one pointer.
    resource: AnyResource,
    inside: Arc<Inside>,
}

struct Inside {
    text: Option<StackText>,
    /// The layers that have methods of their own, from the outermost inwards.
    layers: Vec<Built>,
    /// The number of these that do not belong to a stack that this one is over.
    own: usize,
}

/// A resource or an adaptor of a stack.
#[derive(Clone)]
pub(super) enum Built {
    /// A layer without methods that a stack passes on.
    Plain(AnyResource),
    Async(Arc<AsyncResource>),
    Pinned(PinnedResource),
    PinnedPool(PinnedPool),
    Pool(PoolResource<AnyResource>),
    FixedSize(FixedSizeResource<AnyResource>),
    Binning(BinningResource<AnyResource>),
    Arena(ArenaResource<AnyResource>),
    Checked(CheckedAdaptor<AnyResource>),
    Limiting(LimitingAdaptor<AnyResource>),
    Logging(LoggingAdaptor<AnyResource>),
    Statistics(StatisticsAdaptor<AnyResource>),
    Tracking(TrackingAdaptor<AnyResource>),
}

impl Built {
    pub(super) fn resource(&self) -> AnyResource {
        match self {
            Self::Plain(resource) => resource.clone(),
            Self::Async(resource) => resource.clone().into_shared(),
            Self::Pinned(resource) => resource.clone().into_shared(),
            Self::PinnedPool(pool) => pool.clone().into_shared(),
            Self::Pool(pool) => pool.clone().into_shared(),
            Self::FixedSize(resource) => resource.clone().into_shared(),
            Self::Binning(resource) => resource.clone().into_shared(),
            Self::Arena(resource) => resource.clone().into_shared(),
            Self::Checked(adaptor) => adaptor.clone().into_shared(),
            Self::Limiting(adaptor) => adaptor.clone().into_shared(),
            Self::Logging(adaptor) => adaptor.clone().into_shared(),
            Self::Statistics(adaptor) => adaptor.clone().into_shared(),
            Self::Tracking(adaptor) => adaptor.clone().into_shared(),
        }
    }

    fn pool_statistics(&self) -> Option<PoolStatistics> {
        match self {
            Self::Pool(pool) => Some(pool.statistics()),
            Self::FixedSize(resource) => Some(resource.statistics()),
            Self::Arena(resource) => Some(resource.statistics()),
            Self::PinnedPool(pool) => {
                let of_pool = pool.statistics();
                let mut statistics = PoolStatistics::default();
                statistics.reserved = of_pool.reserved;
                statistics.peak_reserved = of_pool.peak_reserved;
                statistics.live = of_pool.live;
                statistics.free = of_pool.reserved.saturating_sub(of_pool.live);
                statistics.cached = of_pool.cached;
                statistics.largest_free = of_pool.largest_free;
                statistics.upstream_blocks = of_pool.slabs;
                statistics.records = of_pool.fences;
                statistics.growths = of_pool.growths;
                statistics.returns = of_pool.returns;
                Some(statistics)
            }
            _ => None,
        }
    }

    /// The bytes that went to the layer below, or `None` if this keeps no free memory, or gives none back.
    fn trim(&self, keep: usize) -> Option<Result<usize>> {
        match self {
            Self::Pool(pool) => Some(pool.trim(keep)),
            Self::FixedSize(resource) => Some(resource.trim(keep)),
            Self::Binning(resource) => Some(resource.trim(keep)),
            Self::Async(resource) => Some(resource.trim(keep)),
            _ => None,
        }
    }

    /// Does the work of [`trim`](Self::trim), after a wait.
    fn wait_and_trim(&self, keep: usize) -> Option<Result<usize>> {
        match self {
            Self::Pool(pool) => Some(pool.wait_and_trim(keep)),
            Self::FixedSize(resource) => Some(resource.wait_and_trim(keep)),
            Self::Binning(resource) => Some(resource.wait_and_trim(keep)),
            Self::PinnedPool(pool) if pool.statistics().reserved > keep => Some(pool.trim()),
            Self::Pinned(resource) => Some(resource.trim().map(|()| 0)),
            _ => self.trim(keep),
        }
    }
}

handle!([] ResourceStack { resource, inside });

debug_struct!(ResourceStack { text(), device(), .. });

impl ResourceStack {
    /// `layers` from the inside out, of which `resource` is the last.
    pub(super) fn new(text: Option<StackText>, resource: AnyResource, layers: Vec<Built>) -> Self {
        Self::over(text, resource, layers, &[])
    }

    /// A stack as of [`new`](Self::new), over other stacks.
    pub(super) fn over(
        text: Option<StackText>,
        resource: AnyResource,
        mut layers: Vec<Built>,
        upstreams: &[&Self],
    ) -> Self {
        layers.retain(|layer| !matches!(layer, Built::Plain(_)));
        layers.reverse();
        let mut below: Vec<&Arc<Inside>> = Vec::new();
        for upstream in upstreams {
            // Of one that is given twice a trim asks once.
            if !below.iter().any(|known| Arc::ptr_eq(known, &upstream.inside)) {
                below.push(&upstream.inside);
            }
        }
        let own = layers.len();
        layers.extend(below.into_iter().flat_map(|inside| inside.layers.iter().cloned()));
        Self { resource, inside: Arc::new(Inside { text, layers, own }) }
    }

    /// A stack whose outermost resource is `resource`, of any kind, which is over those of
    /// `upstreams`. The methods reach the layers of these, in their order.
    ///
    /// ```
    /// use aquifer::{Device, mr::{BinningResource, ResourceStack, StackText}};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let pool = "pool(cuda)".parse::<StackText>()?.build(&device)?;
    /// let blocks = pool.with("fixed_size(block_size=4096)")?;
    /// let bins = BinningResource::builder(pool.clone()).bin(4096, blocks.clone()).build()?;
    /// let stack = ResourceStack::compose(bins, &[&blocks, &pool]);
    /// assert!(stack.pool().is_some() && stack.text().is_none());
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn compose(resource: impl DeviceResource + 'static, upstreams: &[&Self]) -> Self {
        Self::over(None, resource.into_shared(), Vec::new(), upstreams)
    }

    /// The stack without the methods' way to those that it is over. For libraries over this crate, whose objects keep
    /// each of these, and end one of them.
    #[doc(hidden)]
    pub fn own(&self) -> Self {
        let Inside { text, layers, own } = &*self.inside;
        let layers = layers.get(..*own).unwrap_or_default().to_vec();
        let inside = Inside { text: text.clone(), layers, own: *own };
        Self { resource: self.resource.clone(), inside: Arc::new(inside) }
    }

    /// The text that the stack was built by. `None` with a resource inside that no text names.
    pub fn text(&self) -> Option<&StackText> {
        self.inside.text.as_ref()
    }

    /// The outermost resource.
    pub fn resource(&self) -> &Arc<dyn DeviceResource> {
        &self.resource
    }

    /// The outermost part that `get` wants.
    fn find<'a, T>(&'a self, get: impl FnMut(&'a Built) -> Option<T>) -> Option<T> {
        self.inside.layers.iter().find_map(get)
    }

    /// The counters of all threads of the outermost `statistics`, or `None` without one.
    pub fn counters(&self) -> Option<Counters> {
        self.statistics().map(StatisticsAdaptor::counters)
    }

    /// The outermost `statistics`, with its counters, and scopes of a thread.
    pub fn statistics(&self) -> Option<&StatisticsAdaptor<Arc<dyn DeviceResource>>> {
        self.find(|layer| if let Built::Statistics(it) = layer { Some(it) } else { None })
    }

    /// The outermost `async` or `async_default`, with its driver pool.
    pub fn driver_pool(&self) -> Option<&AsyncResource> {
        self.find(|layer| if let Built::Async(it) = layer { Some(&**it) } else { None })
    }

    /// The outermost `tracking`, with the outstanding allocations, and its report.
    pub fn tracking(&self) -> Option<&TrackingAdaptor<Arc<dyn DeviceResource>>> {
        self.find(|layer| if let Built::Tracking(it) = layer { Some(it) } else { None })
    }

    /// The outermost `limiting`, which tells the rest of its limit.
    pub fn limiting(&self) -> Option<&LimitingAdaptor<Arc<dyn DeviceResource>>> {
        self.find(|layer| if let Built::Limiting(it) = layer { Some(it) } else { None })
    }

    /// The outermost `checked`, with the number of misuses that it has reported.
    pub fn checked(&self) -> Option<&CheckedAdaptor<Arc<dyn DeviceResource>>> {
        self.find(|layer| if let Built::Checked(it) = layer { Some(it) } else { None })
    }

    /// The outermost `pool`, for [`Stream::capture`] and to change its limits.
    pub fn pool(&self) -> Option<&PoolResource<Arc<dyn DeviceResource>>> {
        self.find(|layer| if let Built::Pool(it) = layer { Some(it) } else { None })
    }

    /// The statistics of the outermost `pool`, `fixed_size`, `arena` or `pinned_pool`, or `None`
    /// without one. A `pinned_pool` does not count blocks, streams, misses, steals and waits, which
    /// are 0. Its records are its fences. Its free memory may still wait for the device.
    pub fn pool_statistics(&self) -> Option<PoolStatistics> {
        self.find(Built::pool_statistics)
    }

    /// Has each pool, from the outermost inwards, give free memory back at once, as far
    /// as the device is past it. Each stops when it has `keep` bytes reserved, those in
    /// use among them. Returns the bytes that the innermost pool gave back to the
    /// driver, or to the resource that it is over. Waits for no work of the device.
    ///
    /// Pools are `pool`, `fixed_size`, `binning` with its fixed-size bins, `async` and `async_default`. An `arena` keeps its
    /// memory. Page-locked memory goes back by [`wait_and_trim`](Self::wait_and_trim).
    ///
    /// # Errors
    ///
    /// The first error of a pool, where the innermost one gave nothing back. Errors are those of
    /// [`PoolResource::trim`] and [`AsyncResource::trim`]. A pool that fails does not keep those below
    /// it from giving their memory back.
    #[track_caller]
    pub fn trim(&self, keep: usize) -> Result<usize> {
        self.trim_layers(|layer| layer.trim(keep))
    }

    /// Waits for the streams that freed memory, or for the device if the memory is page-locked. Then
    /// gives free memory back as [`trim`](Self::trim) does.
    ///
    /// Beside the pools of `trim`, a `pinned_pool` gives back all that it can or nothing. `pinned`
    /// unpins the memory that was freed, and counts nothing.
    ///
    /// # Errors
    ///
    /// The first error of a pool, as for [`trim`](Self::trim). Errors are those of
    /// [`PoolResource::wait_and_trim`], [`AsyncResource::trim`] and [`PinnedPool::trim`].
    #[track_caller]
    pub fn wait_and_trim(&self, keep: usize) -> Result<usize> {
        self.trim_layers(|layer| layer.wait_and_trim(keep))
    }

    #[track_caller]
    fn trim_layers(&self, trim: impl Fn(&Built) -> Option<Result<usize>>) -> Result<usize> {
        let mut given = 0;
        let mut failed: Option<Error> = None;
        for trimmed in self.inside.layers.iter().filter_map(trim) {
            given = trimmed.unwrap_or_else(|error| {
                failed.get_or_insert(error);
                0
            });
        }
        match failed {
            Some(error) if given == 0 => Err(error),
            _ => Ok(given),
        }
    }

    /// The pool that sleeps: the one layer that keeps memory.
    fn sleeping_pool(&self) -> Result<&PoolResource<AnyResource>> {
        let keeps = |layer: &&Built| {
            matches!(
                layer,
                Built::Pool(_) | Built::FixedSize(_) | Built::Binning(_) | Built::Arena(_)
            )
        };
        let mut keeping = self.inside.layers.iter().filter(keeps);
        // What keeps memory above another one would go on to hand out what sleeps.
        let pool = match (keeping.next(), keeping.next()) {
            (Some(Built::Pool(pool)), None) => Some(pool),
            _ => None,
        };
        pool.ok_or_else(|| {
            let what =
                "a stack was to sleep or to wake that has not one pool alone which keeps memory";
            Error::new(ErrorKind::Unsupported, what).with_advice("use the stack pool(virtual)")
        })
    }

    /// Puts the contents of the `pool` that maps its memory aside, and gives that memory back
    /// ([`PoolResource::sleep`]).
    ///
    /// # Errors
    ///
    /// Those of [`PoolResource::sleep`], and [`ErrorKind::Unsupported`] where not one `pool` alone keeps memory.
    ///
    /// # Safety
    ///
    /// That of [`PoolResource::sleep`].
    #[track_caller]
    pub unsafe fn sleep(&self, options: impl Into<SleepOptions>) -> Result<SleepReport> {
        // SAFETY: the caller's promise.
        unsafe { self.sleeping_pool()?.sleep(options) }
    }

    /// Brings the memory of a pool that [slept](Self::sleep) back ([`PoolResource::wake`]).
    ///
    /// # Errors
    ///
    /// Those of [`PoolResource::wake`], and [`ErrorKind::Unsupported`] as for [`sleep`](Self::sleep).
    #[track_caller]
    pub fn wake(&self) -> Result<Woken> {
        self.sleeping_pool()?.wake()
    }

    /// Whether the pool that maps its memory sleeps.
    pub fn is_asleep(&self) -> bool {
        self.sleeping_pool().is_ok_and(PoolResource::is_asleep)
    }

    /// Waits until the rows of all calls that returned before are written, in each `logging` of the stack.
    /// Does nothing without one.
    ///
    /// # Errors
    ///
    /// The first of [`LoggingAdaptor::flush`], after all logs were asked.
    pub fn flush(&self) -> Result<()> {
        let mut flushed = Ok(());
        for layer in &self.inside.layers {
            if let Built::Logging(log) = layer {
                flushed = flushed.and(log.flush());
            }
        }
        flushed
    }
}

// SAFETY: every block is the outermost resource's, and goes back to it unchanged. Blocks stay valid while
// a handle on that lives, which each handle of the stack has.
unsafe impl DeviceResource for ResourceStack {
    #[inline]
    fn device(&self) -> &Device {
        self.resource.device()
    }

    /// The outermost resource itself, so a container's calls do not go by way of the stack.
    fn into_shared(self) -> Arc<dyn DeviceResource> {
        self.resource
    }

    #[inline]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.resource.allocate(stream, layout)
    }

    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        self.resource.allocate_growable(stream, layout)
    }

    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        // SAFETY: the caller's promise, unchanged.
        unsafe { self.resource.resize_in_place(stream, block, bytes) }
    }

    fn identity(&self) -> ResourceId {
        self.resource.identity()
    }

    fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        self.resource.enable_peer_access(peer)
    }

    fn has_peer_access(&self, peer: &Device) -> bool {
        self.resource.has_peer_access(peer)
    }

    fn frees_with_driver(&self, block: &DeviceBlock) -> bool {
        self.resource.frees_with_driver(block)
    }

    #[inline]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller's promise, unchanged.
        unsafe { self.resource.deallocate(stream, block) }
    }
}

//! A pool's options.

use crate::error::{Result, ensure};
use crate::impls::Count;
use crate::layout::DEFAULT_ALIGNMENT;
use crate::pool::{MissStep, Settings, SizeLimits};
use crate::resource::failure::{Failure, OnFailure};
use crate::resource::impls::setters;
use crate::sync::Arc;
use std::borrow::Cow;

/// The maximum of a pool that has none, to a multiple of its alignment.
pub(super) const UNLIMITED: usize = isize::MAX as usize & !0xfff;

/// The maximum and the default of [`PoolOptions::magazine_entries`].
const MAGAZINE_ENTRIES: usize = crate::pool::magazine::CLASS_CAPACITY;

/// The steps, in their order, that a pool takes when the calling stream's own free memory does not serve.
///
/// The default takes memory that is complete or ordered already, grows, makes the stream wait for one block of another,
/// and only then moves and trims. Growth costs the host time once, but a wait serialises streams each time. If an
/// eighth of live memory is free already, and at least the requested bytes are, [`MissStep::Grow`] leaves the turn to
/// [`MissStep::Wait`] if the policy has it. So reserved memory follows live memory. For requests below 1 MiB, and with
/// a growth step of the user's, more than 2 MiB have to be free. A pool on [handles](Handles) leaves the turn to later
/// steps, which move free memory, in parts, before they grow. For it, 2 MiB are enough in place of the requested bytes,
/// and a 64th in place of the eighth if one stream has all memory.
///
/// ```
/// use aquifer::mr::{MissPolicy, MissStep};
///
/// let patient = MissPolicy::new([MissStep::Complete, MissStep::Grow, MissStep::GrowToMaximum]);
/// assert!(!patient.steps().contains(&MissStep::Wait)); // streams are never made to wait
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissPolicy {
    steps: Cow<'static, [MissStep]>,
}

impl Default for MissPolicy {
    fn default() -> Self {
        use MissStep::*;
        let steps =
            Cow::Borrowed(&[Complete, Ordered, Grow, Wait, GrowToMaximum, Gather, Trim][..]);
        Self { steps }
    }
}

impl MissPolicy {
    /// These steps, in this order. A pool without [`MissStep::Gather`] and [`MissStep::Trim`] may run out of
    /// memory while it has enough in pieces, or in blocks of upstream that are too small.
    pub fn new(steps: impl IntoIterator<Item = MissStep>) -> Self {
        Self { steps: steps.into_iter().collect() }
    }

    /// The order of RMM, in which other streams are made to wait before the pool grows.
    pub fn rmm() -> Self {
        use MissStep::*;
        Self::new([Wait, Gather, Grow, GrowToMaximum, Trim])
    }

    /// The steps.
    pub fn steps(&self) -> &[MissStep] {
        &self.steps
    }
}

/// The resource that a user made, of which the pool is a part or all, by its words in errors.
#[derive(Clone, Copy, Debug)]
pub enum PoolOwner {
    Pool,
    /// A pool that is the default of its device.
    Default,
    Arena,
    FixedSize,
}

/// Whether a pool maps handles of memory by itself, or takes blocks of its upstream.
///
/// A handle is memory without an address (`cuMemCreate`, `cuMemMap`). It moves to where it is wanted and goes back
/// without a wait, so a pool on handles holds little more than it uses. [`VirtualResource`](crate::mr::VirtualResource)
/// says more. A block stays where it is. Only blocks are shared by `cuIpcGetMemHandle`, by which PyTorch, CuPy, Numba
/// and `ipc_handle` share memory with other processes.
///
/// ```
/// use aquifer::{CudaResource, Device, PoolResource, mr::Handles, sim::SimConfig};
///
/// let device = Device::simulated(SimConfig::default());
/// let shared = PoolResource::builder(CudaResource::new(&device)).handles(Handles::Off).build()?;
/// assert!(!shared.maps_handles());
/// # #[cfg(target_os = "linux")]
/// assert!(PoolResource::builder(CudaResource::new(&device)).handles(Handles::On).build()?.maps_handles());
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Handles {
    /// The pool takes handles over [`VirtualResource`](crate::mr::VirtualResource). Over any other resource it takes
    /// blocks.
    #[default]
    Auto,
    /// The pool takes handles over [`CudaResource`](crate::CudaResource) and `VirtualResource`.
    /// [`build`](PoolOptions::build) fails if the pool cannot map any.
    On,
    /// The pool takes blocks of the upstream. A block of a [`VirtualResource`](crate::mr::VirtualResource) takes whole
    /// granules.
    Off,
}

/// The options of a pool, from [`PoolResource::builder`](crate::PoolResource::builder).
///
/// ```
/// use aquifer::{CudaResource, Device, PoolResource, mr::MissPolicy};
///
/// let pool = PoolResource::builder(CudaResource::new(&Device::detect_or_simulate()?))
///     .initial_size(1 << 20) // taken at once
///     .maximum_size(64 << 20) // and never more than this
///     .soft_limit(32 << 20) // from here on streams wait for each other first
///     .miss_policy(MissPolicy::default())
///     .build()?;
/// assert_eq!(pool.statistics().reserved, 1 << 20);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolOptions<U> {
    pub(super) upstream: U,
    pub(super) initial_size: usize,
    pub(super) handles: Handles,
    pub(super) maximum_size: Option<usize>,
    soft_limit: Option<usize>,
    release_threshold: Option<usize>,
    growth_step: Option<usize>,
    pub(super) alignment: usize,
    pub(super) owner: PoolOwner,
    miss_policy: MissPolicy,
    magazine_entries: usize,
    magazine_bytes: usize,
    pub(super) failure_callback: Option<OnFailure>,
}

impl<U> PoolOptions<U> {
    pub(super) fn new(upstream: U) -> Self {
        Self {
            upstream,
            handles: Handles::Auto,
            initial_size: 0,
            maximum_size: None,
            soft_limit: None,
            release_threshold: None,
            growth_step: None,
            alignment: DEFAULT_ALIGNMENT,
            owner: PoolOwner::Pool,
            miss_policy: MissPolicy::default(),
            magazine_entries: MAGAZINE_ENTRIES,
            magazine_bytes: 32 << 20,
            failure_callback: None,
        }
    }

    setters! {
        /// Whether the pool maps handles of memory, or takes blocks of its upstream. The default is [`Handles::Auto`],
        /// which maps over [`VirtualResource`](crate::mr::VirtualResource) alone.
        handles: Handles;

        /// Bytes to take from upstream when the pool is built, a multiple of the alignment. By default 0. A pool on
        /// [handles](Handles) rounds them up to whole granules.
        initial_size: usize;

        /// The most bytes that the pool ever holds, a multiple of the alignment. A pool on [handles](Handles) uses
        /// whole granules of them. By default there is no maximum.
        maximum_size: usize => Some;

        /// Bytes up to which the pool grows ([`MissStep::Grow`]) before it makes streams wait for each other
        /// ([`MissStep::Wait`]). They are rounded down to the alignment. The default is the maximum, and so is any
        /// larger number.
        soft_limit: usize => Some;

        /// Bytes up to which the pool keeps free memory, those in use included. Set it to the program's peak. Free
        /// memory
        /// that the device is past goes back, until no more than that is reserved, each time that the program calls
        /// [`Stream::synchronize`](crate::Stream::synchronize), `synchronize_async` or
        /// [`Device::synchronize`](crate::Device::synchronize), without a further wait. Waits for a copy or an event do
        /// not count. Threads keep their caches ([`magazine_bytes`](Self::magazine_bytes)). The same memory goes back
        /// as by [`trim`](crate::PoolResource::trim). By default the pool keeps all until it is trimmed. The word is
        /// CUDA's, whose pools go by other waits ([`AsyncOptions`](crate::mr::AsyncOptions::release_threshold)).
        release_threshold: usize => Some;

        /// Bytes to take from upstream at a time, or the size of the request, if that is more. The pool takes less if
        /// the maximum or upstream has no more. They are rounded up to the alignment. By default they are six times the
        /// request, within a thirty-second and a sixth of live memory, and 1 GiB at most, or the request. For requests
        /// below 1 MiB they are 2 MiB at least. For others they are a whole number of requests, with a little room for
        /// sizes that differ by little unless there is a maximum. A pool on [handles](Handles) takes the bytes that the
        /// request lacks, in whole granules.
        growth_step: usize => Some;

        /// The alignment of every block, in bytes. It is a power of two from 256, the default, to 2^30. Sizes are
        /// rounded up to it. A single block that needs more asks for it in its [layout](crate::DeviceLayout).
        alignment: usize;

        /// The steps of a miss.
        miss_policy: MissPolicy;

        /// Blocks of one size that each thread keeps for each stream, to allocate without a lock. The default is 8,
        /// which is the most, and 0 is for none. There are none while a tool takes NVTX's [memory
        /// extension](crate::debug_log#the-memory-extension). Their use takes a lock if the simulated device follows
        /// the pool.
        magazine_entries: usize;

        /// Bytes that each thread keeps so for each stream. By default 32 MiB.
        magazine_bytes: usize;
    }

    /// Calls `callback` if the host would have to wait for the device for a request, or the request would be refused.
    /// Before that, the pool takes all that is free in it and in others of the device without such a wait. The callback
    /// frees memory, by spilling to the host for example, and returns `true` for another attempt.
    ///
    /// It runs on the thread that allocates, which has no lock of a pool. So it may use this pool and others, trim
    /// them, and wait for other threads that do. It is asked again while its call makes more memory free, in this pool,
    /// in others or on the device, or raises the maximum, but 64 times at most. After a `true` that frees nothing there
    /// is one more attempt. An allocation that the callback itself makes from this pool does not ask it. An allocation
    /// for a resource above this pool does not either, since the outermost pool asks its own. A panic is logged and
    /// counts as `false`.
    ///
    /// The pool keeps the callback, and a vector keeps its pool. So give the callback a `Weak` of a value that holds
    /// vectors. Otherwise neither goes.
    ///
    /// It is the callback of a `FailureCallbackAdaptor`, which is asked after the pool
    /// below it has waited for all streams.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, PoolResource};
    /// use std::sync::{Arc, Mutex};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let stream = device.new_stream()?;
    /// let spare = Arc::new(Mutex::new(None));
    /// let spilled = Arc::downgrade(&spare);
    /// let pool = PoolResource::builder(CudaResource::new(&device))
    ///     .maximum_size(1 << 20)
    ///     .failure_callback(move |_| {
    ///         spilled.upgrade().is_some_and(|spare| spare.lock().unwrap().take().is_some())
    ///     })
    ///     .build()?;
    /// *spare.lock().unwrap() = Some(DeviceVec::<u8>::zeroed_in(&stream, 1 << 20, pool.clone())?);
    /// DeviceVec::<u8>::zeroed_in(&stream, 1 << 20, pool)?;
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn failure_callback(
        mut self,
        callback: impl Fn(&Failure<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.failure_callback = Some(OnFailure(Arc::new(callback)));
        self
    }

    /// The owner of the pool, for errors.
    #[doc(hidden)]
    pub fn owner(self, owner: PoolOwner) -> Self {
        Self { owner, ..self }
    }

    pub(super) fn check(&self) -> Result<Settings> {
        let (alignment, initial_size) = (self.alignment, self.initial_size);
        ensure!(
            alignment.is_power_of_two() && (DEFAULT_ALIGNMENT..=1 << 30).contains(&alignment),
            InvalidArgument,
            "give a power of two between 256 and 2^30",
            "a pool was asked to align to {}",
            Count(alignment, "byte")
        );
        check_aligned("initial", initial_size, alignment)?;
        let maximum = checked_maximum(self.maximum_size, alignment)?;
        let initial = Count(initial_size, "byte");
        ensure!(
            initial_size <= maximum || self.maximum_size.is_some(),
            InvalidArgument,
            "ask for less",
            "a pool's initial size, {initial}, is more than an address space holds"
        );
        ensure!(
            initial_size <= maximum,
            InvalidArgument,
            "make the maximum size larger",
            "a pool's initial size, {initial}, is more than its maximum size, {}",
            Count(maximum, "byte")
        );
        let release_threshold = self.release_threshold.unwrap_or(usize::MAX);
        ensure!(
            initial_size <= release_threshold,
            InvalidArgument,
            "make the release threshold larger",
            "a pool's initial size, {initial}, is more than its release threshold, {}",
            Count(release_threshold, "byte")
        );
        ensure!(
            self.growth_step != Some(0),
            InvalidArgument,
            "leave the growth step out, or give a miss policy without growth",
            "a pool was asked to grow by 0 bytes"
        );
        ensure!(
            self.magazine_entries <= MAGAZINE_ENTRIES,
            InvalidArgument,
            "give 8 at most",
            "a magazine was asked to keep {} of a size",
            Count(self.magazine_entries, "block")
        );
        ensure!(
            initial_size > 0 || self.miss_policy.steps.iter().any(|step| step.asks_upstream()),
            InvalidArgument,
            "give it an initial size, or a miss policy that grows",
            "a pool was asked to start empty and to take nothing from upstream on a miss"
        );
        let limits = SizeLimits::new(maximum, rounded_soft_limit(self.soft_limit, alignment));
        limits.set_release_threshold(release_threshold);
        Ok(Settings {
            limits,
            growth_step: self.growth_step.unwrap_or(0),
            alignment: alignment as u64,
            steps: self.miss_policy.steps.clone(),
            entries: self.magazine_entries as u8,
            cached_bytes: self.magazine_bytes,
            listed: false,
        })
    }
}

fn check_aligned(name: &str, bytes: usize, alignment: usize) -> Result<()> {
    ensure!(
        bytes.is_multiple_of(alignment),
        InvalidArgument,
        "round it to the pool's alignment",
        "the {name} size of a pool, {}, is no multiple of its alignment, {}",
        Count(bytes, "byte"),
        Count(alignment, "byte")
    );
    Ok(())
}

/// The soft limit of a pool's limits, from the one that its user gave. It is whole blocks, since nothing else can be
/// reserved.
pub(super) fn rounded_soft_limit(bytes: Option<usize>, alignment: usize) -> usize {
    bytes.map_or(UNLIMITED, |bytes| bytes & !(alignment - 1))
}

/// The maximum of a pool's limits, from the one that its user gave.
pub(super) fn checked_maximum(bytes: Option<usize>, alignment: usize) -> Result<usize> {
    let Some(bytes) = bytes else { return Ok(UNLIMITED & !(alignment - 1)) };
    check_aligned("maximum", bytes, alignment)?;
    ensure!(
        bytes > 0,
        InvalidArgument,
        "give no maximum size for a pool without one",
        "a pool was asked to hold no more than 0 bytes"
    );
    Ok(bytes)
}

//! How a pool of page-locked memory is built, and what it says of itself.

use super::miss::LARGEST;
use super::pinned::PinnedResource;
use super::pool::PinnedPool;
use super::slabs::{Core, Settings};
use super::source::PAGE;
use crate::backend::not_forked;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::align_up;
use crate::pool::magazine::SHELF_ROOM;
use crate::sync::trusted::Ordering;

/// How a [`PinnedPool`] is built. From [`PinnedPool::builder`].
///
/// ```
/// use aquifer::{Device, ErrorKind, PinnedPool, PinnedResource};
///
/// let pinned = PinnedResource::new(&Device::detect()?)?;
/// let pool = PinnedPool::builder(pinned.clone())
///     .initial_size(1 << 20)
///     .maximum_size(8 << 20)
///     .build()?;
/// assert_eq!(pool.statistics().reserved, 1 << 20);
/// let wrong = PinnedPool::builder(pinned).initial_size(2 << 20).maximum_size(1 << 20).build();
/// assert_eq!(wrong.unwrap_err().kind(), ErrorKind::InvalidArgument);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PinnedPoolOptions {
    upstream: PinnedResource,
    initial_size: usize,
    maximum_size: Option<usize>,
    settings: Settings,
}

impl PinnedPoolOptions {
    pub(super) fn new(upstream: PinnedResource) -> Self {
        let settings = Settings {
            fenced: true,
            maximum: LARGEST,
            growth_step: 4 << 20,
            quarantine_bytes: 1 << 30,
            magazine_entries: SHELF_ROOM,
            magazine_bytes: 64 << 20,
        };
        Self { upstream, initial_size: 0, maximum_size: None, settings }
    }

    /// Bytes to take from upstream when the pool is built, rounded up to pages of 4096. 0 unless
    /// said otherwise.
    pub fn initial_size(mut self, bytes: usize) -> Self {
        self.initial_size = bytes;
        self
    }

    /// The most bytes that the pool takes from upstream: never passed, and reached to the last page.
    /// A multiple of 4096. No limit unless said otherwise.
    pub fn maximum_size(mut self, bytes: usize) -> Self {
        self.maximum_size = Some(bytes);
        self
    }

    /// Bytes to take from upstream at once, at least. 4 MiB unless said otherwise. As the pool grows
    /// it takes as much again as it has, up to 256 MiB at once; what is left below the maximum where
    /// that is less; and what was asked where that is more, or all that upstream can give.
    pub fn growth_step(mut self, bytes: usize) -> Self {
        self.settings.growth_step = bytes;
        self
    }

    /// Bytes that may wait for the device before an allocation waits with them, on the host. 1 GiB
    /// unless said otherwise. What each thread freed last, up to 64 blocks or
    /// [`magazine_bytes`](Self::magazine_bytes), comes on top. While a stream may be in capture
    /// nothing can be waited for, and the pool grows.
    pub fn quarantine_bytes(mut self, bytes: usize) -> Self {
        self.settings.quarantine_bytes = bytes;
        self
    }

    /// Blocks of one size that a thread keeps ready in an unfenced pool: 8 at most, which is what it
    /// is unless said otherwise.
    pub fn magazine_entries(mut self, entries: usize) -> Self {
        self.settings.magazine_entries = entries;
        self
    }

    /// Bytes that one thread keeps ready at most, and as many that it freed and has not handed to the
    /// pool. 64 MiB unless said otherwise; 0 keeps nothing, and makes every free cost a lock.
    pub fn magazine_bytes(mut self, bytes: usize) -> Self {
        self.settings.magazine_bytes = bytes;
        self
    }

    /// Hands freed blocks out again at once, without waiting for the device: for programs that copy
    /// through Aquifer alone, which owns or borrows a buffer until its copy is complete.
    ///
    /// ```
    /// use aquifer::{Device, PinnedPool, PinnedResource};
    ///
    /// let device = Device::detect()?;
    /// let options = PinnedPool::builder(PinnedResource::new(&device)?);
    /// // SAFETY: this program gives pinned memory to transfers and scopes of Aquifer alone.
    /// let pool = unsafe { options.unfenced() }.build()?;
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Safety
    ///
    /// Whoever frees a block of the pool, by dropping a `Vec` say, does so when all device work that
    /// uses the block is complete. Aquifer's own safe calls keep this: owned transfers, scopes,
    /// mapped guards, blocking copies, and blocks handed out as a
    /// [`DeviceResource`](crate::DeviceResource), which wait for a fence in such a pool too. So it is
    /// enough that no memory of the pool is used in the asynchronous copies or launches of another
    /// library, in `unsafe` asynchronous calls of this one, or by its
    /// [address](crate::MappedAlloc::device_address), unless that work was waited for before the
    /// free. If the pool becomes the [current](crate::set_current_pinned_resource) one, this holds of
    /// all memory of `PinnedAlloc` and `MappedAlloc` in the process.
    pub unsafe fn unfenced(mut self) -> Self {
        self.settings.fenced = false;
        self
    }

    /// The pool.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if an option cannot be kept: a maximum of 0 or of no whole
    /// pages, an initial size above it, a growth step of 0, more than 8 entries;
    /// [`ErrorKind::OutOfMemory`] if there is no room for the initial size;
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn build(self) -> Result<PinnedPool> {
        let Self { upstream, initial_size, maximum_size, mut settings } = self;
        let refuse = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        not_forked("page-locked memory")?;
        if let Some(maximum) = maximum_size {
            if maximum == 0 || !maximum.is_multiple_of(PAGE) {
                return refuse(format!(
                    "a maximum size of {maximum} bytes is no whole pages of {PAGE}"
                ));
            }
            settings.maximum = maximum;
        }
        let initial = match align_up(initial_size, PAGE) {
            Some(rounded) if rounded <= settings.maximum => rounded,
            _ => {
                let maximum = settings.maximum;
                return refuse(format!(
                    "an initial size of {initial_size} bytes is more than the maximum of {maximum}"
                ));
            }
        };
        if settings.growth_step == 0 {
            return refuse("a growth step of 0 bytes would never grow".into());
        }
        if settings.magazine_entries > SHELF_ROOM {
            let entries = settings.magazine_entries;
            return refuse(format!(
                "{entries} blocks of a size were to be kept, where a magazine has {SHELF_ROOM} places"
            ));
        }
        PinnedPool::open(upstream, settings, initial)
    }
}

/// What a [`PinnedPool`] holds and what it has done. Sizes in bytes, blocks at their rounded sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedPoolStatistics {
    /// Taken from upstream now.
    pub reserved: usize,
    /// The most that was ever reserved at once.
    pub peak_reserved: usize,
    /// In blocks that users hold. What a block gave up when it was shrunk where it lies counts until
    /// the block is free.
    pub live: usize,
    /// Ready in the magazines of threads.
    pub cached: usize,
    /// Freed, and waiting for the device.
    pub waiting: usize,
    /// The largest free block that is in no magazine and waits for nothing.
    pub largest_free: usize,
    /// Slabs taken from upstream now.
    pub slabs: usize,
    /// Slabs ever taken from upstream.
    pub growths: usize,
    /// Slabs given back to upstream.
    pub returns: usize,
    /// Fences recorded.
    pub fences: usize,
}

impl PinnedPoolStatistics {
    pub(super) fn of(core: &Core) -> Self {
        let counts = core.counts();
        Self {
            reserved: counts.reserved,
            peak_reserved: counts.peak_reserved,
            live: counts.live,
            cached: counts.cached,
            waiting: counts.waiting,
            largest_free: counts.largest_free,
            slabs: counts.slabs,
            growths: counts.growths,
            returns: counts.returns,
            fences: core.fences.load(Ordering::Relaxed),
        }
    }
}

//! How a pool of page-locked memory is built.

use super::pinned_resource::PinnedResource;
use super::pool_core::Settings;
use super::source::PAGE;
use crate::driver::not_forked;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::align_up;
use crate::pool::magazine::CLASS_CAPACITY;

/// The largest maximum: the whole pages of an address space.
const LARGEST: usize = !(PAGE - 1);

/// How a [`PinnedPool`](crate::PinnedPool) is built. From
/// [`PinnedPool::builder`](crate::PinnedPool::builder).
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
    settings: Settings,
}

impl PinnedPoolOptions {
    pub(super) fn new(upstream: PinnedResource) -> Self {
        let settings = Settings {
            fenced: true,
            maximum: LARGEST,
            growth_step: 4 << 20,
            quarantine_bytes: 1 << 30,
            magazine_entries: CLASS_CAPACITY,
            magazine_bytes: 64 << 20,
        };
        Self { upstream, initial_size: 0, settings }
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
        self.settings.maximum = bytes;
        self
    }

    /// The least bytes to take from upstream at once: 4 MiB unless said otherwise. A pool that grows
    /// doubles its size, by up to 256 MiB at once. It takes less where the maximum leaves less, more
    /// where one block needs more, and no more than that block where upstream has no room.
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

    /// Blocks of one size that a thread keeps ready in an unfenced pool: 8 unless said otherwise, which
    /// is the most.
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
    /// A block of the pool is freed, as by dropping a `Vec`, when all device work that uses the block
    /// is complete. Aquifer's own safe calls keep this: owned transfers, scopes,
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

    /// Checks the options. Returns upstream, the settings, and the initial size in whole pages.
    pub(super) fn check(self) -> Result<(PinnedResource, Settings, usize)> {
        let Self { upstream, initial_size, settings } = self;
        let refuse = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        not_forked("page-locked memory")?;
        let maximum = settings.maximum;
        if maximum == 0 || !maximum.is_multiple_of(PAGE) {
            return refuse(format!(
                "a maximum size of {maximum} bytes is no whole pages of {PAGE}"
            ));
        }
        let Some(initial) = align_up(initial_size, PAGE).filter(|bytes| *bytes <= maximum) else {
            return refuse(format!(
                "an initial size of {initial_size} bytes is more than the maximum of {maximum}"
            ));
        };
        if settings.growth_step == 0 {
            return refuse("a growth step of 0 bytes would never grow".into());
        }
        if settings.magazine_entries > CLASS_CAPACITY {
            let entries = settings.magazine_entries;
            return refuse(format!(
                "{entries} blocks of a size were to be kept, where a magazine has {CLASS_CAPACITY} places"
            ));
        }
        Ok((upstream, settings, initial))
    }
}

//! The options of a pool of page-locked memory.

use super::pinned_resource::PinnedResource;
use super::source::PAGE;
use crate::driver::not_forked;
use crate::error::{Result, ensure};
use crate::impls::Count;
use crate::layout::align_up;
use crate::pool::magazine::CLASS_CAPACITY;
use crate::resource::Failure;
use crate::resource::failure::OnFailure;
use crate::resource::setters;
use crate::sync::Arc;

/// A quarter of the machine's memory. So much may wait for the device where it does for long, and leaves room for
/// others.
fn quarter_of_memory() -> usize {
    memory_of_the_machine().map_or(1 << 30, |bytes| bytes / 4)
}

#[cfg(unix)]
fn memory_of_the_machine() -> Option<usize> {
    // SAFETY: asks for numbers.
    let [pages, page] =
        unsafe { [libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)] };
    usize::try_from(pages).ok()?.checked_mul(usize::try_from(page).ok()?)
}

#[cfg(not(unix))]
fn memory_of_the_machine() -> Option<usize> {
    None
}

/// The largest maximum, which is the whole pages of an allocation.
pub(super) const NO_MAXIMUM: usize = isize::MAX as usize & !(PAGE - 1);

pub(super) fn require_maximum(bytes: usize) -> Result<()> {
    ensure!(
        bytes > 0,
        InvalidArgument,
        "give no maximum size for a pool without one",
        "a page-locked pool was asked to hold no more than 0 bytes"
    );
    ensure!(
        bytes.is_multiple_of(PAGE),
        InvalidArgument,
        "give whole pages",
        "a maximum size of {} is no multiple of a page, {PAGE} bytes",
        Count(bytes, "byte")
    );
    Ok(())
}

/// The options of a [`PinnedPool`](crate::pinned::PinnedPool), from
/// [`PinnedPool::builder`](crate::pinned::PinnedPool::builder).
///
/// ```
/// use aquifer::{Device, ErrorKind, pinned::{PinnedPool, PinnedResource}};
///
/// let pinned = PinnedResource::new(&Device::detect_or_simulate()?)?;
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
    pub(super) upstream: PinnedResource,
    initial_size: usize,
    /// The maximum, which is a multiple of the page once it was checked.
    pub(super) maximum_size: usize,
    /// The growth step, which is not 0 once it was checked.
    pub(super) growth_step: usize,
    pub(super) release_threshold: usize,
    pub(super) quarantine_bytes: usize,
    pub(super) wait_for_device: bool,
    pub(super) magazine_entries: usize,
    pub(super) magazine_bytes: usize,
    pub(super) fenced: bool,
    pub(super) failure_callback: Option<OnFailure>,
}

impl PinnedPoolOptions {
    pub(super) fn new(upstream: PinnedResource) -> Self {
        Self {
            upstream,
            initial_size: 0,
            maximum_size: NO_MAXIMUM,
            growth_step: 4 << 20,
            release_threshold: usize::MAX,
            quarantine_bytes: quarter_of_memory(),
            wait_for_device: false,
            magazine_entries: CLASS_CAPACITY,
            magazine_bytes: 64 << 20,
            fenced: true,
            failure_callback: None,
        }
    }

    setters! {
        /// Bytes to take from upstream when the pool is built, rounded up to pages of 4096. The default is 0.
        initial_size: usize;

        /// The most bytes that the pool takes from upstream, a multiple of 4096. The pool never passes it, and reaches
        /// it to the last page. By default there is no limit.
        maximum_size: usize;

        /// The least bytes to take from upstream at once, by default 4 MiB. A pool that grows doubles its size, by up
        /// to 256 MiB at once. It takes less if the maximum leaves less, more if one block needs more, and no more than
        /// that block if upstream has no room.
        growth_step: usize;

        /// Bytes that the pool keeps when more is free, those in use included. By default it keeps all.
        ///
        /// A free unpins whole slabs above it, if the devices have nothing to do. So a free waits for no kernel, and
        /// memory that was freed beside one goes back behind a later free, or by a
        /// [trim](crate::pinned::PinnedPool::trim).
        release_threshold: usize;

        /// Freed bytes that may wait for the device, by default a quarter of the machine's memory. While as many wait,
        /// the pool does not grow, so an allocation that finds no free memory is refused. The last blocks that each
        /// thread freed, up to 64 or [`magazine_bytes`](Self::magazine_bytes), come on top. While a stream may be in
        /// capture nothing can be asked, and the pool grows.
        quarantine_bytes: usize;

        /// Whether an allocation waits for the device, on the host, when it would be refused because freed memory
        /// waits. It is off by default, since one stream that is busy for long would stop every thread that allocates.
        wait_for_device: bool;

        /// Blocks of one size that a thread keeps ready in an unfenced pool. The default is 8, which is the most.
        magazine_entries: usize;

        /// Bytes that one thread keeps ready at most, and as many that it freed and has not handed to the pool. The
        /// default is 64 MiB. With 0 it keeps nothing, and every free costs a lock.
        magazine_bytes: usize;
    }

    /// Calls `callback` before a request waits for the device or is refused, as
    /// [`PoolOptions::failure_callback`](crate::mr::PoolOptions::failure_callback) does. Before that, the pool takes
    /// all that is free in it and, if the machine has no more, in other pools of page-locked memory.
    pub fn failure_callback(
        mut self,
        callback: impl Fn(&Failure<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.failure_callback = Some(OnFailure(Arc::new(callback)));
        self
    }

    /// Hands freed blocks out again at once, without waiting for the device. It is for programs that copy through
    /// Aquifer alone, which owns or borrows a buffer until its copy is complete.
    ///
    /// ```
    /// use aquifer::{Device, pinned::{PinnedPool, PinnedResource}};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let options = PinnedPool::builder(PinnedResource::new(&device)?);
    /// // SAFETY: this program gives pinned memory to transfers and scopes of Aquifer alone.
    /// let pool = unsafe { options.unfenced() }.build()?;
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Safety
    ///
    /// A block of the pool is freed, as by dropping a `Vec`, when all device work that uses the block is complete.
    /// Aquifer's own safe calls keep this. They are owned transfers, scopes, mapped guards, blocking copies, and blocks
    /// handed out as a [`DeviceResource`](crate::DeviceResource), which wait for a fence in such a pool too. So it is
    /// enough that no memory of the pool is used in these, unless that work was waited for before the free:
    ///
    /// - the asynchronous copies or launches of another library
    /// - `unsafe` asynchronous calls of this one
    /// - work by the memory's [address](crate::MappedAlloc::device_address)
    ///
    /// If the pool becomes the [current](crate::pinned::set_current_pinned_resource) one, this holds of all memory of
    /// `PinnedAlloc` and `MappedAlloc` in the process.
    pub unsafe fn unfenced(mut self) -> Self {
        self.fenced = false;
        self
    }

    /// Checks all options, and that this is no child of a fork. Returns the initial size in bytes, up to
    /// a whole page.
    pub(super) fn validate(&self) -> Result<usize> {
        not_forked("page-locked memory")?;
        let (maximum, initial) = (self.maximum_size, self.initial_size);
        require_maximum(maximum)?;
        let rounded = align_up(initial, PAGE).unwrap_or(usize::MAX);
        ensure!(
            rounded <= NO_MAXIMUM,
            InvalidArgument,
            "ask for less",
            "an initial size of {} is more than an address space holds",
            Count(initial, "byte")
        );
        ensure!(
            rounded <= maximum,
            InvalidArgument,
            "ask for less, or give a larger maximum_size",
            "an initial size of {} is more than the maximum size, {}",
            Count(initial, "byte"),
            Count(maximum, "byte")
        );
        ensure!(
            self.growth_step > 0,
            InvalidArgument,
            "give at least one byte",
            "a growth step of 0 bytes would never grow"
        );
        let entries = self.magazine_entries;
        ensure!(
            entries <= CLASS_CAPACITY,
            InvalidArgument,
            "ask for no more than that",
            "{} of a size were to be kept, where a magazine has {CLASS_CAPACITY} places",
            Count(entries, "block")
        );
        Ok(rounded)
    }
}

//! One range of memory for all streams and threads, which never grows.

use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::driver::not_forked;
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::Count;
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::pool::MissStep;
use crate::resource::block::DeviceBlock;
use crate::resource::cuda::CudaResource;
use crate::resource::device_resource::DeviceResource;
use crate::resource::identity::ResourceId;
use crate::resource::impls::{debug_struct, forward, handle, setters};
use crate::resource::pool::{MissPolicy, PoolOwner, PoolResource, PoolStatistics};
use crate::stream::Stream;
use crate::sync::Arc;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The size of the smallest arena, 1 MiB as in RMM.
const MINIMUM_SIZE: usize = 1 << 20;

/// Memory that is taken from upstream once, for arenas of each stream and thread. RMM
/// calls it `arena_memory_resource`.
///
/// Clones are the same arena. Each stream has a part of its own, and each thread keeps a few
/// blocks of it ready. A part that runs short takes more from the shared rest. Before an out-of-memory
/// error, all free memory is merged again. The arena asks upstream for nothing more, and gives its
/// memory back when the arena and the last of its blocks are gone. It is a [`PoolResource`] whose
/// initial size is its maximum. It cannot be declared to [`Stream::capture`]. On a stream in capture
/// it serves memory that the stream freed before, or refuses.
///
/// The largest block is the whole arena. With no other block live, the arena hands out
/// all of its [`arena_size`](ArenaOptions::arena_size). A larger request is an
/// [`OutOfMemory`](ErrorKind::OutOfMemory) error, and so is one for which no free
/// range is long enough, since live blocks do not move.
/// [`PoolStatistics::largest_free`] is the longest free range outside of threads'
/// caches. A block takes whole multiples of 256 bytes. A larger alignment leaves fewer places for a block.
///
/// No allocation and no free waits for the device. RMM's arena makes the host wait for the stream on
/// each free above 1 MiB, and for the whole device when memory is short. It ignores alignments, and
/// ends the process on a free that it does not know. It has two data races. One of them hands out
/// memory of a thread that exits while the device still uses it.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, mr::ArenaResource};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let arena = ArenaResource::builder(CudaResource::new(&device)).arena_size(64 << 20).build()?;
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, arena.clone())?;
/// assert_eq!((arena.statistics().live, arena.statistics().reserved), (4096, 64 << 20));
/// drop(vec);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct ArenaResource<U: DeviceResource + 'static = CudaResource> {
    pool: PoolResource<U>,
    dump_on_failure: Option<Arc<Path>>,
}

handle!([U: DeviceResource + 'static] ArenaResource<U> { pool, dump_on_failure });

debug_struct!([U: DeviceResource + 'static] ArenaResource<U> { upstream(), statistics() });

impl<U: DeviceResource + 'static> ArenaResource<U> {
    /// An arena of half of the memory that is free on the device now.
    ///
    /// # Errors
    ///
    /// The errors of [`ArenaOptions::build`].
    pub fn new(upstream: U) -> Result<Self> {
        Self::builder(upstream).build()
    }

    /// The options.
    pub fn builder(upstream: U) -> ArenaOptions<U> {
        ArenaOptions { upstream, arena_size: None, dump_on_failure: None }
    }

    /// The resource that the arena took its memory from.
    pub fn upstream(&self) -> &U {
        self.pool.upstream()
    }

    /// The bytes in use and free. They are exact while no other thread uses the arena.
    pub fn statistics(&self) -> PoolStatistics {
        self.pool.statistics()
    }

    /// The rest of [`allocate`](DeviceResource::allocate), if the thread's cache has no block.
    #[inline(never)]
    fn allocate_cold(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.pool.allocate_cold(stream, layout).map_err(|error| self.failed(stream, layout, error))
    }

    /// Passes the error on, after the report on an out-of-memory error.
    #[cold]
    fn failed(&self, stream: &Stream, layout: DeviceLayout, error: Error) -> Error {
        if let Some(path) = &self.dump_on_failure
            && error.kind() == ErrorKind::OutOfMemory
        {
            let report = self.report(stream, layout, &error);
            let file = OpenOptions::new().append(true).create(true).open(path);
            // One write: reports of several threads do not mix.
            if let Err(why) = file.and_then(|mut file| file.write_all(report.as_bytes())) {
                let path = path.display().to_string();
                // Deferred: a pool above may have its locks.
                deferred_event!(warn, path, %why, "an arena's report was not written");
            }
        }
        error
    }

    fn report(&self, stream: &Stream, layout: DeviceLayout, error: &Error) -> String {
        let PoolStatistics {
            reserved,
            live,
            live_blocks,
            free,
            cached,
            held,
            largest_free,
            streams,
            ..
        } = self.statistics();
        let fragmentation = match free {
            0 => 0.0,
            free => (1.0 - largest_free as f64 / free as f64) * 100.0,
        };
        format!(
            "out of memory: {error}\n\
             request: {} bytes, aligned to {}, on {stream}\n\
             reserved: {reserved}\n\
             live: {live} in {live_blocks} blocks\n\
             held by graphs: {held}\n\
             total free: {free}\n\
             kept ready by threads: {cached}\n\
             largest free: {largest_free}\n\
             fragmentation: {fragmentation:.2} %\n\
             streams: {streams}\n\n",
            layout.bytes(),
            layout.alignment(),
        )
    }
}

// SAFETY: every block is the pool's, and goes back to it unchanged.
unsafe impl<U: DeviceResource + 'static> DeviceResource for ArenaResource<U> {
    forward!(device, peer_access);

    fn identity(&self) -> ResourceId {
        ResourceId::of_state::<Self, _>(self.pool.state())
    }

    #[inline(always)]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        match self.pool.allocate_cached(stream, layout.bytes(), layout.alignment()) {
            Some(block) => Ok(block),
            None => self.allocate_cold(stream, layout),
        }
    }

    #[inline(always)]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the block is the pool's; our caller vouches for the rest.
        unsafe { self.pool.deallocate(stream, block) }
    }
}

/// The options of an [`ArenaResource`], from [`ArenaResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ArenaOptions<U> {
    upstream: U,
    arena_size: Option<usize>,
    dump_on_failure: Option<PathBuf>,
}

impl<U: DeviceResource + 'static> ArenaOptions<U> {
    setters! {
        /// The bytes of the arena, a multiple of 256 and 1 MiB at least. The default is half of the
        /// memory that is free on the device when the arena is built.
        arena_size: usize => Some;
    }

    /// Adds a report to the end of this file on each out-of-memory error. The file is made if it does
    /// not exist. The report has the total free bytes, the largest free block, and how fragmented the
    /// free memory is, which is `(1 - largest / total) * 100` per cent. A report that cannot be
    /// written is a [`tracing`](https://docs.rs/tracing) warning, and the error is the same. RMM's
    /// `dump_log_on_failure` writes to a file whose name is fixed.
    pub fn dump_on_failure(mut self, path: impl Into<PathBuf>) -> Self {
        self.dump_on_failure = Some(path.into());
        self
    }

    /// Takes the memory and makes the arena.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`] for a size below 1 MiB or not a multiple of 256.
    /// - [`ErrorKind::OutOfMemory`] if upstream has not so much, or half of the free
    ///   memory is less than 1 MiB.
    /// - [`ErrorKind::Unsupported`] if upstream gives less than it was asked for, or keeps no alignment.
    /// - [`ErrorKind::Forked`] in the child of a fork.
    /// - The errors of upstream and the driver.
    pub fn build(self) -> Result<ArenaResource<U>> {
        let size = self.arena_size.map_or_else(|| half_of_free(self.upstream.device()), Ok)?;
        ensure!(
            size >= MINIMUM_SIZE && size.is_multiple_of(DEFAULT_ALIGNMENT),
            InvalidArgument,
            "give a multiple of 256, 1 MiB at least",
            "an arena of {} was asked for",
            Count(size, "byte")
        );
        // None of these asks upstream, which gives an arena nothing more.
        let steps = [MissStep::Complete, MissStep::Ordered, MissStep::Wait, MissStep::Gather];
        let pool = PoolResource::builder(self.upstream)
            .owner(PoolOwner::Arena)
            .initial_size(size)
            .maximum_size(size)
            .miss_policy(MissPolicy::new(steps));
        let dump_on_failure = self.dump_on_failure.map(Arc::from);
        Ok(ArenaResource { pool: pool.build()?, dump_on_failure })
    }
}

fn half_of_free(device: &Device) -> Result<usize> {
    not_forked("an arena")?;
    let free = device.memory_info()?.free;
    let half = (free / 2) & !(DEFAULT_ALIGNMENT - 1);
    ensure!(
        half >= MINIMUM_SIZE,
        OutOfMemory,
        "free memory: no arena is smaller",
        "half of the {} that {device} has free is less than 1 MiB, the least arena",
        Count(free, "byte")
    );
    Ok(half)
}

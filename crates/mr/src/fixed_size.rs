//! Blocks of one size.

use crate::error::{Result, ensure};
use crate::impls::Count;
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::resource::block::DeviceBlock;
use crate::resource::cuda::CudaResource;
use crate::resource::device_resource::DeviceResource;
use crate::resource::identity::ResourceId;
use crate::resource::impls::{debug_struct, forward, handle, setters};
use crate::resource::pool::{PoolOwner, PoolResource, PoolStatistics};
use crate::stream::Stream;

/// The default of [`FixedSizeOptions::block_size`], 1 MiB as in RMM.
const BLOCK_SIZE: usize = 1 << 20;

/// The default of [`FixedSizeOptions::blocks_per_chunk`], as in RMM.
const BLOCKS_PER_CHUNK: usize = 128;

/// The largest block of a heap.
const LARGEST_BLOCK: usize = (u32::MAX as usize - 1) * DEFAULT_ALIGNMENT;

/// Blocks of one size in stream order, each in constant time. RMM calls it
/// `fixed_size_memory_resource`.
///
/// Clones are the same resource. A request up to the block size gets a whole block. A larger one is an
/// error. Blocks are taken from upstream in chunks, and [`trim`](Self::trim) returns chunks
/// without a block in use. It is a [`PoolResource`] of one size, so streams reuse each other's memory
/// by its rules, at its costs. It cannot be declared to [`Stream::capture`]. On a stream in capture it
/// serves memory that the stream freed before, or refuses.
///
/// An alignment above 256 bytes is kept. RMM's resource ignores it. That resource takes the memory of
/// 128 blocks when it is made, used or not, and never returns any. Over an upstream in stream order it
/// hands out blocks that another stream may still be waiting for.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceLayout, DeviceResource, mr::FixedSizeResource};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let tiles = FixedSizeResource::builder(CudaResource::new(&device))
///     .block_size(64 << 10)
///     .blocks_per_chunk(16)
///     .build()?;
/// let block = tiles.allocate(&stream, DeviceLayout::new(1000)?)?;
/// assert_eq!(block.bytes(), 64 << 10);
/// // SAFETY: the block is this resource's, and no work uses it.
/// unsafe { tiles.deallocate(&stream, block) };
/// assert_eq!(tiles.wait_and_trim(0)?, 1 << 20);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct FixedSizeResource<U: DeviceResource + 'static = CudaResource> {
    /// The pool is private to this resource, so it serves whole blocks alone.
    pool: PoolResource<U>,
    block_size: usize,
    /// The block size in the pool's units.
    units: u32,
}

handle!([U: DeviceResource + 'static] FixedSizeResource<U> { pool, block_size, units });

debug_struct!([U: DeviceResource + 'static] FixedSizeResource<U> { upstream(), block_size, statistics() });

impl<U: DeviceResource + 'static> FixedSizeResource<U> {
    /// Blocks of 1 MiB, taken from upstream 128 at a time when the first is asked for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn new(upstream: U) -> Result<Self> {
        Self::builder(upstream).build()
    }

    /// The options.
    pub fn builder(upstream: U) -> FixedSizeOptions<U> {
        FixedSizeOptions {
            upstream,
            block_size: BLOCK_SIZE,
            blocks_per_chunk: BLOCKS_PER_CHUNK,
            initial_blocks: 0,
        }
    }

    /// The resource that the chunks come from.
    pub fn upstream(&self) -> &U {
        self.pool.upstream()
    }

    /// The size of every block, in bytes.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Gives free chunks back to upstream at once, as far as the device is past them, until `keep` bytes are
    /// reserved. Returns how many bytes went back. As [`PoolResource::trim`].
    ///
    /// # Errors
    ///
    /// The errors of [`PoolResource::trim`].
    #[track_caller]
    pub fn trim(&self, keep: usize) -> Result<usize> {
        self.pool.trim(keep)
    }

    /// Waits for the streams that used chunks, and gives free chunks back to upstream until `keep` bytes are reserved.
    /// Returns how many bytes went back.
    ///
    /// # Errors
    ///
    /// The errors of [`PoolResource::wait_and_trim`].
    #[track_caller]
    pub fn wait_and_trim(&self, keep: usize) -> Result<usize> {
        self.pool.wait_and_trim(keep)
    }

    /// The bytes and blocks that are reserved and in use. They are exact while no
    /// other thread uses the resource.
    pub fn statistics(&self) -> PoolStatistics {
        self.pool.statistics()
    }

    /// A block that the calling thread keeps ready, if there is one.
    #[inline(always)]
    pub(super) fn allocate_cached(&self, stream: &Stream, alignment: usize) -> Option<DeviceBlock> {
        self.pool.allocate_cached_units(stream, self.units, alignment)
    }

    /// The rest of [`allocate`](DeviceResource::allocate), if the thread's cache has no block or the
    /// size is not one for a block.
    #[inline(never)]
    pub(super) fn allocate_cold(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<DeviceBlock> {
        let (bytes, alignment) = (layout.bytes(), layout.alignment());
        ensure!(
            bytes <= self.block_size,
            OutOfMemory,
            "build it with a larger block size, or send large requests elsewhere by bins",
            "allocating {} from a resource on {} whose blocks have {} each",
            Count(bytes, "byte"),
            self.device(),
            Count(self.block_size, "byte")
        );
        let whole = if bytes == 0 { 0 } else { self.block_size };
        let block = DeviceLayout::with_alignment(whole, alignment)?;
        self.pool.allocate_cold(stream, block).map_err(|error| match bytes < whole {
            true => {
                error.within(format_args!("allocating {}, by a whole block", Count(bytes, "byte")))
            }
            false => error,
        })
    }
}

// SAFETY: every block is the pool's, and goes back to it unchanged.
unsafe impl<U: DeviceResource + 'static> DeviceResource for FixedSizeResource<U> {
    forward!(device, peer_access);

    fn identity(&self) -> ResourceId {
        ResourceId::of_state::<Self, _>(self.pool.state())
    }

    #[inline(always)]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        // Checks both bounds: 0 wraps.
        if layout.bytes().wrapping_sub(1) < self.block_size
            && let Some(block) = self.allocate_cached(stream, layout.alignment())
        {
            return Ok(block);
        }
        self.allocate_cold(stream, layout)
    }

    #[inline(always)]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the block is the pool's; our caller vouches for the rest.
        unsafe { self.pool.deallocate(stream, block) }
    }
}

/// The options of a [`FixedSizeResource`], from [`FixedSizeResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct FixedSizeOptions<U> {
    upstream: U,
    block_size: usize,
    blocks_per_chunk: usize,
    initial_blocks: usize,
}

impl<U: DeviceResource + 'static> FixedSizeOptions<U> {
    setters! {
        /// The bytes of every block, a multiple of 256. The default is 1 MiB. RMM rounds it up.
        block_size: usize;

        /// Blocks that are taken from upstream at a time, by default 128. Fewer where upstream has no
        /// more.
        blocks_per_chunk: usize;

        /// Blocks to take from upstream when the resource is built, in one chunk. By default none, where
        /// RMM takes the first 128.
        initial_blocks: usize;
    }

    /// The resource.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a block size of 0,
    ///   above 2^40 - 512 bytes, or not a multiple of 256.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for chunks of no blocks,
    ///   and for more blocks than an address space holds.
    /// - [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if upstream has not the initial blocks.
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if upstream gives less than it was
    ///   asked for, or keeps no alignment.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    /// - The errors of upstream.
    pub fn build(self) -> Result<FixedSizeResource<U>> {
        let Self { block_size, blocks_per_chunk, initial_blocks, upstream } = self;
        ensure!(
            (1..=LARGEST_BLOCK).contains(&block_size)
                && block_size.is_multiple_of(DEFAULT_ALIGNMENT),
            InvalidArgument,
            "give a multiple of 256 between 256 and 2^40 - 512",
            "blocks of {} were asked for",
            Count(block_size, "byte")
        );
        ensure!(
            blocks_per_chunk > 0,
            InvalidArgument,
            "give 1 at least, which takes each block from upstream by itself",
            "chunks of no blocks were asked for"
        );
        let most = blocks_per_chunk.max(initial_blocks);
        ensure!(
            most.checked_mul(block_size).is_some_and(|bytes| bytes <= isize::MAX as usize / 2),
            InvalidArgument,
            "give smaller blocks, or fewer blocks_per_chunk or initial_blocks",
            "no address space holds {} of {} each",
            Count(most, "block"),
            Count(block_size, "byte")
        );
        let pool = PoolResource::builder(upstream)
            .owner(PoolOwner::FixedSize)
            .growth_step(blocks_per_chunk * block_size)
            .initial_size(initial_blocks * block_size)
            .build()?;
        // Without a unit count no block is ever cached, and the pool's own error says why.
        let units = pool.units(block_size).unwrap_or(0);
        Ok(FixedSizeResource { pool, block_size, units })
    }
}

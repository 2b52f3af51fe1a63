//! Blocks of one size.

use super::pool::{PoolResource, PoolStatistics};
use super::{CudaResource, DeviceBlock, DeviceResource, ResourceId};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::stream::Stream;
use std::fmt;

/// A block's size unless said otherwise: 1 MiB, as in RMM.
const BLOCK_SIZE: usize = 1 << 20;

/// Blocks that are taken from upstream at once unless said otherwise, as in RMM.
const BLOCKS_PER_CHUNK: usize = 128;

/// No heap has larger blocks.
const LARGEST_BLOCK: usize = (u32::MAX as usize - 1) * DEFAULT_ALIGNMENT;

/// Blocks of one size in stream order, each in constant time: RMM's `fixed_size_memory_resource`.
///
/// A handle: clones are the same resource. Whatever is asked, up to the block size, gets a whole
/// block; more is an error. Blocks are taken from upstream in chunks, and [`trim`](Self::trim) gives
/// chunks back of which no block is in use. Between streams, memory changes hands as in a
/// [`PoolResource`], which this is with its sizes fixed; its costs are that pool's too. It cannot be
/// declared to [`Stream::capture`]: there it serves what the stream freed before, or refuses.
///
/// An alignment above 256 bytes is kept, by a block that is cut where it fits. RMM's resource ignores
/// it; takes the memory of 128 blocks when it is made, whether they are used or not, and never gives
/// any back; and over an upstream in stream order it hands out blocks that another stream may still
/// be waiting for.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceLayout, DeviceResource, FixedSizeResource};
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let tiles = FixedSizeResource::builder(CudaResource::new(&device))
///     .block_size(64 << 10)
///     .blocks_per_chunk(16)
///     .build()?;
/// let block = tiles.allocate(&stream, DeviceLayout::new(1000)?)?;
/// assert_eq!(block.bytes(), 64 << 10);
/// // SAFETY: the block is this resource's, and no work uses it.
/// unsafe { tiles.deallocate(&stream, block) };
/// assert_eq!(tiles.trim(0)?, 1 << 20);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct FixedSizeResource<U: DeviceResource + 'static = CudaResource> {
    /// Never handed out itself: so all that it serves are whole blocks.
    pool: PoolResource<U>,
    block: usize,
    /// The same, in the pool's units.
    units: u32,
}

impl<U: DeviceResource + 'static> Clone for FixedSizeResource<U> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), block: self.block, units: self.units }
    }
}

impl<U: DeviceResource + 'static> PartialEq for FixedSizeResource<U> {
    fn eq(&self, other: &Self) -> bool {
        self.pool == other.pool
    }
}

impl<U: DeviceResource + 'static> Eq for FixedSizeResource<U> {}

impl<U: DeviceResource + 'static> fmt::Debug for FixedSizeResource<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedSizeResource")
            .field("upstream", self.upstream())
            .field("block_size", &self.block)
            .field("statistics", &self.statistics())
            .finish()
    }
}

impl<U: DeviceResource + 'static> FixedSizeResource<U> {
    /// Blocks of 1 MiB, taken from upstream 128 at a time when the first is asked for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in the child of a fork.
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
        self.block
    }

    /// Gives free chunks back to upstream until `keep` bytes are reserved. The host waits for the
    /// streams that used them. Returns how many bytes went back.
    ///
    /// # Errors
    ///
    /// As [`PoolResource::trim`].
    pub fn trim(&self, keep: usize) -> Result<usize> {
        self.pool.trim(keep)
    }

    /// What is reserved and in use, in bytes and blocks. Exact while no other thread uses it.
    pub fn statistics(&self) -> PoolStatistics {
        self.pool.statistics()
    }

    /// A block that the calling thread keeps ready, if it does.
    #[inline(always)]
    pub(super) fn allocate_warm(&self, stream: &Stream, alignment: usize) -> Option<DeviceBlock> {
        self.pool.allocate_warm_units(stream, self.units, alignment)
    }

    /// No block is ready, or this is no size of one: nothing, or too much.
    #[inline(never)]
    pub(super) fn allocate_cold(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<DeviceBlock> {
        if layout.bytes() == 0 {
            return self.pool.allocate_cold(stream, layout);
        }
        if layout.bytes() <= self.block {
            let whole = DeviceLayout::with_alignment(self.block, layout.alignment())?;
            return self.pool.allocate_cold(stream, whole);
        }
        Err(Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "allocating {} bytes from a resource on {} whose blocks have {}",
                layout.bytes(),
                self.device(),
                self.block
            ),
        )
        .advise("build it with a larger block size, or send large requests elsewhere by bins"))
    }
}

// SAFETY: every block is the pool's, and goes back to it unchanged.
unsafe impl<U: DeviceResource + 'static> DeviceResource for FixedSizeResource<U> {
    #[inline]
    fn device(&self) -> &Device {
        self.pool.device()
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_state::<Self, _>(self.pool.state())
    }

    #[inline(always)]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        // Both ends at once: 0 wraps.
        if layout.bytes().wrapping_sub(1) < self.block
            && let Some(block) = self.allocate_warm(stream, layout.alignment())
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

/// How a [`FixedSizeResource`] is built. From [`FixedSizeResource::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct FixedSizeOptions<U> {
    upstream: U,
    block_size: usize,
    blocks_per_chunk: usize,
    initial_blocks: usize,
}

impl<U: DeviceResource + 'static> FixedSizeOptions<U> {
    /// Bytes of every block: a multiple of 256, 1 MiB unless said otherwise. RMM rounds it up.
    pub fn block_size(mut self, bytes: usize) -> Self {
        self.block_size = bytes;
        self
    }

    /// Blocks that are taken from upstream at a time, 128 unless said otherwise. Fewer where
    /// upstream has no more.
    pub fn blocks_per_chunk(mut self, blocks: usize) -> Self {
        self.blocks_per_chunk = blocks;
        self
    }

    /// Blocks to take from upstream when the resource is built, in one chunk. None unless said
    /// otherwise, where RMM takes the first 128.
    pub fn initial_blocks(mut self, blocks: usize) -> Self {
        self.initial_blocks = blocks;
        self
    }

    /// The resource.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a block size of 0, above 2^40 - 512 bytes, or not a multiple of
    /// 256, for chunks of no blocks, and for more blocks than an address space holds;
    /// [`ErrorKind::OutOfMemory`] if upstream has not the initial blocks; [`ErrorKind::Unsupported`] if
    /// it gives less than it was asked for, or keeps no alignment; [`ErrorKind::Forked`] in the child of
    /// a fork; those of upstream.
    pub fn build(self) -> Result<FixedSizeResource<U>> {
        let wrong = |what: String, advice: &'static str| {
            Err(Error::new(ErrorKind::InvalidArgument, what).advise(advice))
        };
        let Self { block_size: block, blocks_per_chunk, initial_blocks, .. } = self;
        if block == 0 || block > LARGEST_BLOCK || !block.is_multiple_of(DEFAULT_ALIGNMENT) {
            return wrong(
                format!("blocks of {block} bytes were asked for"),
                "give a multiple of 256 between 256 and 2^40 - 512",
            );
        }
        if blocks_per_chunk == 0 {
            return wrong(
                String::from("chunks of no blocks were asked for"),
                "give 1 at least, which takes each block from upstream by itself",
            );
        }
        let whole = |blocks: usize| {
            let bytes = blocks.checked_mul(block);
            bytes.filter(|bytes| *bytes <= isize::MAX as usize / 2)
        };
        let (Some(step), Some(initial)) = (whole(blocks_per_chunk), whole(initial_blocks)) else {
            return wrong(
                format!(
                    "{} blocks of {block} bytes are more than an address space holds",
                    blocks_per_chunk.max(initial_blocks)
                ),
                "",
            );
        };
        let pool = PoolResource::builder(self.upstream).growth_step(step).initial_size(initial);
        let pool = pool.build()?;
        // No heap has 0 units: the cold way says what is wrong.
        let units = pool.units(block).unwrap_or(0);
        Ok(FixedSizeResource { pool, block, units })
    }
}

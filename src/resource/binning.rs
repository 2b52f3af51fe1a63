//! A resource for each range of sizes.

use super::fixed_size::FixedSizeResource;
use super::{CudaResource, DeviceBlock, DeviceResource, ResourceId};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::stream::Stream;
use crate::sync::Arc;
use std::fmt;

/// The bins of [`BinningResource::new`]: 256 KiB to 4 MiB, those of RMM's benchmarks.
const MIN_EXPONENT: u32 = 18;
const MAX_EXPONENT: u32 = 22;

/// Sends each request to the resource of its size, and those above the largest bin upstream: RMM's
/// `binning_memory_resource`.
///
/// A handle: clones are the same resource. A bin of size `n` serves requests of more bytes than the
/// next smaller bin, up to `n`, and is asked for exactly `n`; alignments are passed on. A fixed-size bin
/// among the first eight is found by a few comparisons: a warm allocation costs about what that of a
/// [`PoolResource`](crate::PoolResource) does. The others are found by a binary search.
///
/// The bins are fixed when it is built: RMM adds them to a resource that is in use, where a block that
/// was allocated before is freed to the wrong bin. Its own fixed-size bins take 992 MiB when they are
/// made; these take a chunk of 128 blocks when the first is asked for.
///
/// ```
/// use aquifer::{BinningResource, CudaResource, Device, DeviceLayout, DeviceResource, PoolResource};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let pool = PoolResource::new(CudaResource::new(&device))?;
/// let small = PoolResource::new(CudaResource::new(&device))?;
/// let bins = BinningResource::builder(pool)
///     .bin(64 << 10, Arc::new(small.clone()))
///     .fixed_size_bins(18, 20)
///     .build()?;
/// let block = bins.allocate(&stream, DeviceLayout::new(1000)?)?;
/// assert_eq!((block.bytes(), small.statistics().live), (64 << 10, 64 << 10));
/// // SAFETY: the block is this resource's, and no work uses it.
/// unsafe { bins.deallocate(&stream, block) };
/// assert_eq!(small.statistics().live, 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct BinningResource<U: DeviceResource + 'static = CudaResource> {
    state: Arc<State<U>>,
}

struct State<U: DeviceResource + 'static> {
    /// Of the first bins; 0, which nothing fits, where there are fewer. Apart from the rest, and in
    /// the state itself: what every call reads is next to each other.
    sizes: [usize; NEAR],
    /// Of those, the resources that are known by their type.
    fixed: [Option<FixedSizeResource<U>>; NEAR],
    /// All, by size, which differ.
    bins: Box<[Bin<U>]>,
    upstream: U,
}

/// Bins that are looked through one by one, if their type is known.
const NEAR: usize = 8;

struct Bin<U: DeviceResource + 'static> {
    /// A multiple of 256 bytes.
    size: usize,
    source: Source<U>,
}

enum Source<U: DeviceResource + 'static> {
    /// Its blocks have the bin's size. By its type, so that the compiler sees through it.
    Fixed(FixedSizeResource<U>),
    Given(Arc<dyn DeviceResource>),
}

impl<U: DeviceResource + 'static> State<U> {
    /// The smallest bin that a size fits. None for 0.
    fn bin(&self, bytes: usize) -> Option<&Bin<U>> {
        self.bins.get(self.bins.partition_point(|bin| bin.size < bytes)).filter(|_| bytes > 0)
    }

    /// The same, if it is one of the first and known by its type.
    #[inline(always)]
    fn fixed_bin(&self, bytes: usize) -> Option<&FixedSizeResource<U>> {
        // Compared, not calculated: the processor goes ahead on the bin that it predicts, where it
        // would wait for an index. No bytes wrap, and fit none.
        let fits = |size: &usize| bytes.wrapping_sub(1) < *size;
        self.fixed.get(self.sizes.iter().position(fits)?)?.as_ref()
    }

    fn largest(&self) -> usize {
        self.bins.last().map_or(0, |bin| bin.size)
    }
}

impl<U: DeviceResource + 'static> Clone for BinningResource<U> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone() }
    }
}

impl<U: DeviceResource + 'static> PartialEq for BinningResource<U> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

impl<U: DeviceResource + 'static> Eq for BinningResource<U> {}

impl<U: DeviceResource + 'static> fmt::Debug for BinningResource<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BinningResource")
            .field("upstream", self.upstream())
            .field("sizes", &self.sizes().collect::<Vec<_>>())
            .finish()
    }
}

impl<U: DeviceResource + 'static> BinningResource<U> {
    /// Bins of 256 KiB, 512 KiB, 1 MiB, 2 MiB and 4 MiB, each a [`FixedSizeResource`] over `upstream`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn new(upstream: U) -> Result<Self>
    where
        U: Clone,
    {
        Self::builder(upstream).fixed_size_bins(MIN_EXPONENT, MAX_EXPONENT).build()
    }

    /// Bins of one's own: none, to begin with.
    pub fn builder(upstream: U) -> BinningOptions<U> {
        BinningOptions { upstream, bins: Vec::new(), failed: None }
    }

    /// The resource of what no bin fits.
    pub fn upstream(&self) -> &U {
        &self.state.upstream
    }

    /// The sizes of the bins in bytes, the smallest first.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.state.bins.iter().map(|bin| bin.size)
    }

    /// No block is ready, or this is not for one of the first bins.
    #[inline(never)]
    fn allocate_cold(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        match self.state.bin(layout.bytes()) {
            Some(Bin { source: Source::Fixed(fixed), .. }) => fixed.allocate(stream, layout),
            Some(Bin { source: Source::Given(given), size }) => {
                self.allocate_given(stream, layout, *size, &**given)
            }
            None => self.allocate_large(stream, layout),
        }
    }

    /// # Safety
    ///
    /// As [`DeviceResource::deallocate`].
    #[inline(never)]
    unsafe fn deallocate_elsewhere(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: as in `deallocate`, whose caller vouches for it.
        unsafe {
            match self.state.bin(block.bytes()) {
                Some(Bin { source: Source::Fixed(fixed), .. }) => fixed.deallocate(stream, block),
                Some(Bin { source: Source::Given(given), .. }) => given.deallocate(stream, block),
                None if block.is_empty() => {}
                None => self.upstream().deallocate(stream, block),
            }
        }
    }

    fn allocate_given(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
        bin: usize,
        given: &dyn DeviceResource,
    ) -> Result<DeviceBlock> {
        let layout = DeviceLayout::with_alignment(bin, layout.alignment())?;
        let block = given.allocate(stream, layout)?;
        if block.bytes() == bin {
            return Ok(block);
        }
        Err(refuse(given, stream, block, format!("of {bin} bytes")))
    }

    fn allocate_large(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let upstream = self.upstream();
        if layout.bytes() == 0 {
            upstream.device().require(stream.device(), "the stream")?;
            return Ok(DeviceBlock::empty(layout));
        }
        let block = upstream.allocate(stream, layout)?;
        if block.bytes() > self.state.largest() {
            return Ok(block);
        }
        let largest = self.state.largest();
        Err(refuse(upstream, stream, block, format!("of more than {largest} bytes")))
    }
}

/// Gives back a block whose size would not lead back to where it came from.
#[cold]
fn refuse(
    from: &(impl DeviceResource + ?Sized),
    stream: &Stream,
    block: DeviceBlock,
    wanted: String,
) -> Error {
    let bytes = block.bytes();
    // SAFETY: allocated just now from this resource, and given to nobody.
    unsafe { from.deallocate(stream, block) };
    Error::new(
        ErrorKind::Unsupported,
        format!("{from:?} was asked for a block {wanted} and gave one of {bytes}"),
    )
    .advise("give bins resources whose blocks have the size that was asked")
}

// SAFETY: every block is a bin's or upstream's. Its size was checked to lead back to where it came
// from, so it goes back there, unchanged.
unsafe impl<U: DeviceResource + 'static> DeviceResource for BinningResource<U> {
    #[inline]
    fn device(&self) -> &Device {
        self.upstream().device()
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_state::<Self, _>(Arc::as_ptr(&self.state))
    }

    #[inline(always)]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        if let Some(fixed) = self.state.fixed_bin(layout.bytes())
            && let Some(block) = fixed.allocate_warm(stream, layout.alignment())
        {
            return Ok(block);
        }
        self.allocate_cold(stream, layout)
    }

    #[inline(always)]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the size of a block of ours leads to where it came from; our caller vouches for the
        // rest.
        unsafe {
            match self.state.fixed_bin(block.bytes()) {
                Some(fixed) => fixed.deallocate(stream, block),
                None => self.deallocate_elsewhere(stream, block),
            }
        }
    }
}

/// How a [`BinningResource`] is built. From [`BinningResource::builder`].
#[must_use]
pub struct BinningOptions<U: DeviceResource + 'static> {
    upstream: U,
    bins: Vec<Bin<U>>,
    /// What went wrong first; `build` says it.
    failed: Option<Error>,
}

impl<U: DeviceResource + 'static> fmt::Debug for BinningOptions<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<_> = self.bins.iter().map(|bin| bin.size).collect();
        f.debug_struct("BinningOptions")
            .field("upstream", &self.upstream)
            .field("sizes", &sizes)
            .field("failed", &self.failed)
            .finish()
    }
}

impl<U: DeviceResource + 'static> BinningOptions<U> {
    /// A bin of `size` bytes, a multiple of 256, over `resource`, whose blocks are to have the size
    /// that is asked of it. Another bin of this size is an error, where RMM keeps the first in silence.
    pub fn bin(mut self, size: usize, resource: Arc<dyn DeviceResource>) -> Self {
        self.bins.push(Bin { size, source: Source::Given(resource) });
        self
    }

    /// A [`FixedSizeResource`] over upstream, with its default chunks, for each power of two from
    /// `2^min_exponent` to `2^max_exponent` bytes, both included: 8 to 39.
    pub fn fixed_size_bins(mut self, min_exponent: u32, max_exponent: u32) -> Self
    where
        U: Clone,
    {
        if let Err(error) = self.add_fixed(min_exponent, max_exponent) {
            self.failed.get_or_insert(error);
        }
        self
    }

    fn add_fixed(&mut self, min: u32, max: u32) -> Result<()>
    where
        U: Clone,
    {
        if min < 8 || max > 39 || min > max {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("bins of 2^{min} to 2^{max} bytes were asked for"),
            )
            .advise("give two exponents between 8 and 39, the smaller first"));
        }
        for exponent in min..=max {
            let size = 1 << exponent;
            let fixed =
                FixedSizeResource::builder(self.upstream.clone()).block_size(size).build()?;
            self.bins.push(Bin { size, source: Source::Fixed(fixed) });
        }
        Ok(())
    }

    /// The resource.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for a bin whose size is 0 or not a multiple of 256, for two of
    /// one size, and for exponents out of range; [`ErrorKind::WrongDevice`] for a bin over a resource
    /// of another device than upstream's; [`ErrorKind::Forked`] in the child of a fork, if there are
    /// fixed-size bins.
    pub fn build(self) -> Result<BinningResource<U>> {
        let Self { upstream, mut bins, failed } = self;
        if let Some(error) = failed {
            return Err(error);
        }
        let wrong = |what: String, advice: &'static str| {
            Err(Error::new(ErrorKind::InvalidArgument, what).advise(advice))
        };
        bins.sort_by_key(|bin| bin.size);
        for Bin { size, source } in &bins {
            if *size == 0 || !size.is_multiple_of(DEFAULT_ALIGNMENT) || *size > isize::MAX as usize
            {
                return wrong(
                    format!("a bin of {size} bytes was asked for"),
                    "give a multiple of 256 that an address space holds",
                );
            }
            if let Source::Given(resource) = source {
                upstream.device().require(resource.device(), "the resource of a bin")?;
            }
        }
        if let Some(pair) = bins.windows(2).find(|pair| pair[0].size == pair[1].size) {
            return wrong(
                format!("two bins of {} bytes were asked for", pair[0].size),
                "leave one of them out: no bin replaces another",
            );
        }
        let bins = bins.into_boxed_slice();
        let near = |index| bins.get(index);
        let state = State {
            sizes: std::array::from_fn(|index| near(index).map_or(0, |bin| bin.size)),
            fixed: std::array::from_fn(|index| match &near(index)?.source {
                Source::Fixed(fixed) => Some(fixed.clone()),
                Source::Given(_) => None,
            }),
            bins,
            upstream,
        };
        Ok(BinningResource { state: Arc::new(state) })
    }
}

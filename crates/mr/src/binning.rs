//! A resource for each range of sizes.

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::fixed_size::FixedSizeResource;
use crate::impls::Count;
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::resource::block::DeviceBlock;
use crate::resource::cuda::CudaResource;
use crate::resource::device_resource::DeviceResource;
use crate::resource::impls::{debug_struct, forward, handle};
use crate::stream::Stream;
use crate::sync::Arc;
use std::fmt;

/// The bins of [`BinningResource::new`], from 256 KiB to 4 MiB, as in RMM's benchmarks.
const MIN_EXPONENT: u32 = 18;
const MAX_EXPONENT: u32 = 22;

/// A resource that sends each request to the resource of its size, and those above the largest bin
/// upstream. RMM calls it `binning_memory_resource`.
///
/// Clones are the same resource. A bin of size `n` serves requests above the size of the next
/// smaller bin and up to `n`. Its resource is asked for exactly `n` bytes, at the request's alignment.
/// A few comparisons find a fixed-size bin among the first eight, so a warm allocation costs about as
/// much as that of a [`PoolResource`](crate::PoolResource). A binary search finds the others.
///
/// The bins are fixed when the resource is built. RMM adds bins to a resource in use, which then frees
/// earlier blocks to the wrong bin. RMM's fixed-size bins take 992 MiB when they are made. These take a
/// chunk of 128 blocks at the first request. A bin of [`fixed_size_bins`](BinningOptions::fixed_size_bins)
/// keeps its chunks for its own size. A request that would be out of memory has them give their free chunks
/// back first, for which the host waits for the streams that used them. RMM's never give any back.
///
/// ```
/// use aquifer::{
///     CudaResource, Device, DeviceLayout, DeviceResource, PoolResource, mr::BinningResource,
/// };
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let pool = PoolResource::new(CudaResource::new(&device))?;
/// let small = PoolResource::new(CudaResource::new(&device))?;
/// let bins = BinningResource::builder(pool)
///     .bin(64 << 10, small.clone())
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
    state: Arc<BinningState<U>>,
}

struct BinningState<U: DeviceResource + 'static> {
    /// Sizes of the first bins, padded with 0, which fits nothing. They are apart from `bins`, and not
    /// boxed, since each call reads these, and they share cache lines.
    sizes: [usize; FIRST_BINS],
    /// Resources of the first bins, if these are of
    /// [`fixed_size_bins`](BinningOptions::fixed_size_bins).
    fixed: [Option<FixedSizeResource<U>>; FIRST_BINS],
    /// All bins, by size. No two have one size.
    bins: Box<[Bin<U>]>,
    upstream: U,
}

/// Bins that a linear search finds.
const FIRST_BINS: usize = 8;

struct Bin<U: DeviceResource + 'static> {
    /// A multiple of 256 bytes.
    size: usize,
    /// The caller's resource, or `fixed`.
    resource: Arc<dyn DeviceResource>,
    /// Its blocks have the bin's size. The type is concrete, so that the compiler inlines its calls.
    fixed: Option<FixedSizeResource<U>>,
}

impl<U: DeviceResource + 'static> fmt::Debug for Bin<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.size.fmt(f)
    }
}

impl<U: DeviceResource + 'static> BinningState<U> {
    /// The smallest bin that a size fits. `None` for 0.
    fn bin(&self, bytes: usize) -> Option<&Bin<U>> {
        self.bins.get(self.bins.partition_point(|bin| bin.size < bytes)).filter(|_| bytes > 0)
    }

    /// The fixed-size resource of [`bin`](Self::bin), if that is one of the first bins.
    #[inline(always)]
    fn fixed_bin(&self, bytes: usize) -> Option<&FixedSizeResource<U>> {
        // Comparisons, not arithmetic: the processor speculates on the predicted bin, where it would
        // wait for a computed index. 0 wraps, and fits no bin.
        let fits = |size: &usize| bytes.wrapping_sub(1) < *size;
        self.fixed.get(self.sizes.iter().position(fits)?)?.as_ref()
    }

    fn largest(&self) -> usize {
        self.bins.last().map_or(0, |bin| bin.size)
    }
}

handle!([U: DeviceResource + 'static] BinningResource<U> { state });

debug_struct!([U: DeviceResource + 'static] BinningResource<U> { upstream(), bins() });

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

    /// Options for bins of the caller's choice, with none to begin with.
    pub fn builder(upstream: U) -> BinningOptions<U> {
        BinningOptions { upstream, bins: Vec::new(), error: None }
    }

    /// The resource of requests that no bin fits.
    pub fn upstream(&self) -> &U {
        &self.state.upstream
    }

    /// The sizes of the bins in bytes, the smallest first.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.bins().iter().map(|bin| bin.size)
    }

    /// Has the fixed-size bins give free chunks back to upstream at once, as far as the device is past
    /// them. It stops when `keep` bytes are reserved in all of them. The bins of the largest blocks
    /// come first. Returns how many bytes went back.
    ///
    /// # Errors
    ///
    /// The errors of [`PoolResource::trim`](crate::PoolResource::trim), of the first bin that fails.
    #[track_caller]
    pub fn trim(&self, keep: usize) -> Result<usize> {
        self.trim_bins(keep, FixedSizeResource::trim)
    }

    /// Waits for the streams that used chunks, and has the fixed-size bins give free chunks back as [`trim`](Self::trim)
    /// does. Returns how many bytes went back.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, mr::BinningResource};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let bins = BinningResource::builder(CudaResource::new(&device)).fixed_size_bins(8, 10).build()?;
    /// drop(DeviceVec::<u8>::zeroed_in(&device.new_stream()?, 300, bins.clone())?);
    /// assert_eq!(bins.wait_and_trim(0)?, 128 * 512); // a chunk of the bin of 512 bytes
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`PoolResource::wait_and_trim`](crate::PoolResource::wait_and_trim), of the first bin that fails.
    #[track_caller]
    pub fn wait_and_trim(&self, keep: usize) -> Result<usize> {
        self.trim_bins(keep, FixedSizeResource::wait_and_trim)
    }

    #[track_caller]
    fn trim_bins(
        &self,
        keep: usize,
        trim: impl Fn(&FixedSizeResource<U>, usize) -> Result<usize>,
    ) -> Result<usize> {
        let fixed = || self.bins().iter().rev().filter_map(|bin| bin.fixed.as_ref());
        let reserved: usize = fixed().map(|fixed| fixed.statistics().reserved).sum();
        let mut excess = reserved.saturating_sub(keep);
        let mut given = 0;
        for fixed in fixed() {
            if excess == 0 {
                break;
            }
            let bytes = trim(fixed, fixed.statistics().reserved.saturating_sub(excess))?;
            excess = excess.saturating_sub(bytes);
            given += bytes;
        }
        Ok(given)
    }

    fn bins(&self) -> &[Bin<U>] {
        &self.state.bins
    }

    /// The rest of [`allocate`](DeviceResource::allocate), if the thread's cache has no block or the
    /// size is not for one of the first bins.
    #[inline(never)]
    fn allocate_cold(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let mut result = self.allocate_once(stream, layout);
        if let Err(error) = &result
            && error.kind() == ErrorKind::OutOfMemory
        {
            self.trim_and_allocate(stream, layout, &mut result);
        }
        result
    }

    #[inline(always)]
    fn allocate_once(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        match self.state.bin(layout.bytes()) {
            Some(Bin { fixed: Some(fixed), .. }) => fixed.allocate(stream, layout),
            Some(Bin { size, resource, .. }) => {
                let layout = DeviceLayout::with_alignment(*size, layout.alignment())?;
                let block = resource.allocate(stream, layout)?;
                if block.bytes() == *size {
                    return Ok(block);
                }
                Err(refuse(&**resource, stream, block, format!("of {}", Count(*size, "byte"))))
            }
            None => self.allocate_large(stream, layout),
        }
    }

    /// Has the fixed-size bins give their free chunks back, one bin after the other, until the request
    /// is served. Chunks stay with a bin from the time when it needed most. So the chunks of all bins
    /// together can have more memory than was ever in use.
    #[cold]
    #[inline(never)]
    fn trim_and_allocate(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
        result: &mut Result<DeviceBlock>,
    ) {
        // The largest chunks first.
        for fixed in self.bins().iter().rev().filter_map(|bin| bin.fixed.as_ref()) {
            // A bin that cannot give anything back says why, and the request's error says more.
            if fixed.wait_and_trim(0).is_ok_and(|bytes| bytes > 0) {
                *result = self.allocate_once(stream, layout);
                if !matches!(result, Err(error) if error.kind() == ErrorKind::OutOfMemory) {
                    return;
                }
            }
        }
        // What another thread's trim has given back meanwhile was not this one's to count.
        *result = self.allocate_once(stream, layout);
    }

    /// # Safety
    ///
    /// The conditions of [`DeviceResource::deallocate`] hold.
    #[inline(never)]
    unsafe fn deallocate_cold(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: as in `deallocate`, whose caller vouches for it.
        unsafe {
            match self.state.bin(block.bytes()) {
                Some(Bin { fixed: Some(fixed), .. }) => fixed.deallocate(stream, block),
                Some(bin) => bin.resource.deallocate(stream, block),
                None if block.is_empty() => {}
                None => self.upstream().deallocate(stream, block),
            }
        }
    }

    #[inline(always)]
    fn allocate_large(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let (upstream, largest) = (self.upstream(), self.state.largest());
        if layout.bytes() == 0 {
            upstream.device().require(stream.device(), "the stream")?;
            return Ok(DeviceBlock::empty(layout));
        }
        let block = upstream.allocate(stream, layout)?;
        if block.bytes() > largest {
            return Ok(block);
        }
        Err(refuse(upstream, stream, block, format!("of more than {}", Count(largest, "byte"))))
    }
}

/// Frees a block whose size would lead [`BinningState::bin`] to another resource, and makes the error.
#[cold]
fn refuse(
    from: &(impl DeviceResource + ?Sized),
    stream: &Stream,
    block: DeviceBlock,
    wanted: String,
) -> Error {
    let bytes = block.bytes();
    // SAFETY: allocated just now from this resource, and not used.
    unsafe { from.deallocate(stream, block) };
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "{} was asked for a block {wanted} and gave one of {}",
            from.identity().name(),
            Count(bytes, "byte")
        ),
    )
    .with_advice("give bins resources whose blocks have the size that was asked")
}

// SAFETY: every block is a bin's or upstream's. Its size leads back to the same resource, which
// `allocate_cold` checks, and it goes back unchanged.
unsafe impl<U: DeviceResource + 'static> DeviceResource for BinningResource<U> {
    forward!(device, identity);

    fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        self.state.bins.iter().try_for_each(|bin| bin.resource.enable_peer_access(peer))?;
        self.upstream().enable_peer_access(peer)
    }

    fn has_peer_access(&self, peer: &Device) -> bool {
        let bins = || self.state.bins.iter().all(|bin| bin.resource.has_peer_access(peer));
        self.upstream().has_peer_access(peer) && bins()
    }

    #[inline(always)]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        if let Some(fixed) = self.state.fixed_bin(layout.bytes())
            && let Some(block) = fixed.allocate_cached(stream, layout.alignment())
        {
            return Ok(block);
        }
        self.allocate_cold(stream, layout)
    }

    #[inline(always)]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the block's size leads to the resource that it came from; the caller vouches for the
        // rest.
        unsafe {
            match self.state.fixed_bin(block.bytes()) {
                Some(fixed) => fixed.deallocate(stream, block),
                None => self.deallocate_cold(stream, block),
            }
        }
    }
}

/// The options of a [`BinningResource`], from [`BinningResource::builder`].
#[derive(Debug)]
#[must_use]
pub struct BinningOptions<U: DeviceResource + 'static> {
    upstream: U,
    bins: Vec<Bin<U>>,
    /// The first error of a setter, for `build`.
    error: Option<Error>,
}

impl<U: DeviceResource + 'static> BinningOptions<U> {
    /// Adds a bin of `size` bytes, a multiple of 256, over `resource`, whose blocks are to have exactly
    /// the size that is asked. A second bin of one size is an error, where RMM silently keeps the first.
    pub fn bin(mut self, size: usize, resource: impl DeviceResource + 'static) -> Self {
        self.bins.push(Bin { size, resource: resource.into_shared(), fixed: None });
        self
    }

    /// Adds a [`FixedSizeResource`] over upstream, with its default chunks, for each power of two from
    /// `2^min_exponent` to `2^max_exponent` bytes, both included. The exponents are 8 to 39.
    pub fn fixed_size_bins(mut self, min_exponent: u32, max_exponent: u32) -> Self
    where
        U: Clone,
    {
        if let Err(error) = self.add_fixed(min_exponent, max_exponent) {
            self.error.get_or_insert(error);
        }
        self
    }

    fn add_fixed(&mut self, min: u32, max: u32) -> Result<()>
    where
        U: Clone,
    {
        ensure!(
            8 <= min && min <= max && max <= 39,
            InvalidArgument,
            "give two exponents between 8 and 39, the smaller first",
            "bins of 2^{min} to 2^{max} bytes were asked for"
        );
        for exponent in min..=max {
            let size = 1 << exponent;
            let fixed =
                FixedSizeResource::builder(self.upstream.clone()).block_size(size).build()?;
            self.bins.push(Bin { size, resource: Arc::new(fixed.clone()), fixed: Some(fixed) });
        }
        Ok(())
    }

    /// The resource.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`] for a bin whose size is 0 or not a multiple of 256, for two of
    ///   one size, and for exponents out of range.
    /// - [`ErrorKind::WrongDevice`] for a bin over a resource of another device than upstream's.
    /// - [`ErrorKind::Forked`] in the child of a fork, if there are fixed-size bins.
    pub fn build(self) -> Result<BinningResource<U>> {
        let Self { upstream, mut bins, error } = self;
        if let Some(error) = error {
            return Err(error);
        }
        bins.sort_by_key(|bin| bin.size);
        for Bin { size, resource, .. } in &bins {
            ensure!(
                (1..=isize::MAX as usize).contains(size) && size.is_multiple_of(DEFAULT_ALIGNMENT),
                InvalidArgument,
                "give a multiple of 256 that an address space holds",
                "a bin of {} was asked for",
                Count(*size, "byte")
            );
            let required = upstream.device().require(resource.device(), "the resource of a bin");
            required.map_err(|error| error.with_advice("give bins of the upstream's device"))?;
        }
        for pair in bins.windows(2) {
            ensure!(
                pair[0].size != pair[1].size,
                InvalidArgument,
                "leave one of them out: no bin replaces another",
                "two bins of {} were asked for",
                Count(pair[0].size, "byte")
            );
        }
        let bins = bins.into_boxed_slice();
        let size = |index: usize| bins.get(index).map_or(0, |bin| bin.size);
        let fixed = |index: usize| bins.get(index)?.fixed.clone();
        let (sizes, fixed) = (std::array::from_fn(size), std::array::from_fn(fixed));
        Ok(BinningResource { state: Arc::new(BinningState { sizes, fixed, bins, upstream }) })
    }
}

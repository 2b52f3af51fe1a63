//! Larger alignment for larger blocks.

use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::resource::impls::{adaptor, forward};
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;

/// A resource that aligns its larger blocks further than the others. RMM calls it
/// `aligned_resource_adaptor`.
///
/// A request of at least the threshold reaches the upstream with at least the alignment of the
/// adaptor. A larger alignment of the request stays. Smaller requests pass through untouched.
///
/// The upstream aligns the block. A resource over the driver asks it for as many more bytes as the
/// alignment may take. A pool picks a cached block of the size by its address, so large alignments
/// that come again and again take no lock. The adaptor checks each address, and refuses a block of
/// an upstream that ignores alignments.
///
/// RMM's adaptor asks the upstream for more bytes. It maps the addresses that it moved to those of the
/// upstream, under one lock, and ignores the alignment of a single call.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceLayout, DeviceResource, mr::AlignedAdaptor};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let pages = AlignedAdaptor::new(CudaResource::new(&device), 4096, 65_536)?;
/// let block = pages.allocate(&stream, DeviceLayout::new(65_536)?)?;
/// assert_eq!(block.address() % 4096, 0);
/// // SAFETY: the block is the resource's, and no work uses it.
/// unsafe { pages.deallocate(&stream, block) };
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct AlignedAdaptor<U> {
    state: Arc<AlignedState<U>>,
}

struct AlignedState<U> {
    upstream: U,
    alignment: usize,
    threshold_bytes: usize,
}

adaptor!(AlignedAdaptor, state.upstream, alignment, threshold_bytes);

impl<U> AlignedAdaptor<U> {
    /// Requests of `threshold_bytes` bytes and more reach `upstream` with an alignment of at least
    /// `alignment` bytes, and of at least [`DEFAULT_ALIGNMENT`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `alignment` is not a power of two.
    pub fn new(upstream: U, alignment: usize, threshold_bytes: usize) -> Result<Self> {
        // A layout checks the alignment.
        let layout = DeviceLayout::with_alignment(0, alignment)?;
        let alignment = layout.alignment().max(DEFAULT_ALIGNMENT);
        Ok(Self { state: Arc::new(AlignedState { upstream, alignment, threshold_bytes }) })
    }

    /// The alignment in bytes of blocks that reach the threshold.
    pub fn alignment(&self) -> usize {
        self.state.alignment
    }

    /// The size in bytes from which on requests are aligned.
    pub fn threshold_bytes(&self) -> usize {
        self.state.threshold_bytes
    }
}

// SAFETY: every block is the upstream's, of a layout no smaller than asked, and goes back unchanged.
unsafe impl<U: DeviceResource> DeviceResource for AlignedAdaptor<U> {
    forward!(device, peer_access, identity, frees_with_driver, deallocate);

    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        let AlignedState { upstream, alignment, threshold_bytes } = &*self.state;
        let is_aligned = layout.bytes() >= *threshold_bytes;
        let alignment = layout.alignment().max(if is_aligned { *alignment } else { 1 });
        let aligned = DeviceLayout::with_alignment(layout.bytes(), alignment)?;
        match upstream.allocate_growable(stream, aligned)? {
            Some(block) if !block.address().is_multiple_of(alignment as u64) => {
                Err(refuse_misaligned(upstream, stream, block, alignment))
            }
            block => Ok(block),
        }
    }

    /// A block that reaches the threshold grows in place where it is aligned, as new ones are.
    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        let AlignedState { upstream, alignment, threshold_bytes } = &*self.state;
        if bytes >= *threshold_bytes && !block.address().is_multiple_of(*alignment as u64) {
            return Ok(false);
        }
        // SAFETY: the block is the upstream's; the caller vouches for the rest.
        unsafe { upstream.resize_in_place(stream, block, bytes) }
    }

    /// # Errors
    ///
    /// - The errors of the upstream.
    /// - [`ErrorKind::Unsupported`] if the upstream ignored the alignment. The block then goes back.
    /// - [`ErrorKind::InvalidArgument`] if the size does not fit in `isize` when it is
    ///   rounded up to the alignment.
    #[inline]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let AlignedState { upstream, alignment, threshold_bytes } = &*self.state;
        if layout.bytes() < *threshold_bytes {
            return upstream.allocate(stream, layout);
        }
        let alignment = layout.alignment().max(*alignment);
        let block =
            upstream.allocate(stream, DeviceLayout::with_alignment(layout.bytes(), alignment)?)?;
        // An empty block has no memory to align.
        if block.is_empty() || block.address().is_multiple_of(alignment as u64) {
            return Ok(block);
        }
        Err(refuse_misaligned(upstream, stream, block, alignment))
    }
}

/// Frees a new block that lacks the alignment.
#[cold]
#[inline(never)]
fn refuse_misaligned<U: DeviceResource>(
    upstream: &U,
    stream: &Stream,
    block: DeviceBlock,
    alignment: usize,
) -> Error {
    let address = block.address();
    // SAFETY: the caller has just allocated it, and enqueued no work that uses it.
    unsafe { upstream.deallocate(stream, block) };
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "an alignment of {} was asked, and upstream gave {address:#x}",
            Count(alignment, "byte")
        ),
    )
    .with_advice("put the adaptor over a resource that keeps alignments")
}

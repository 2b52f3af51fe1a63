//! A resource whose larger blocks are aligned further.

use super::handles::{handles, identity_by};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout};
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible};
use crate::stream::Stream;
use crate::sync::Arc;
use std::fmt;
use std::ptr::NonNull;

/// A resource whose larger blocks are aligned further than others': RMM's
/// `aligned_resource_adaptor`.
///
/// A request of at least the threshold is passed on with at least the alignment of the adaptor; one
/// that asks for more keeps what it asks. Smaller requests pass through untouched.
///
/// RMM asks upstream for more bytes and keeps a map from the addresses it moved to those upstream
/// gave, under one lock; the alignment of a single call is ignored. Resources here keep the alignment
/// they are asked for, so nothing is moved and there is no map; a resource that does not keep them is
/// found out. What asks the driver asks for as much more as the alignment may cost; a pool keeps freed
/// blocks ready by size and looks at where they lie: one that serves large alignments again and again
/// takes no lock.
///
/// ```
/// use aquifer::{AlignedAdaptor, CudaResource, Device, DeviceLayout, DeviceResource};
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let pages = AlignedAdaptor::new(CudaResource::new(&device), 4096, 65_536)?;
/// let block = pages.allocate(&stream, DeviceLayout::new(65_536)?)?;
/// assert_eq!(block.address() % 4096, 0);
/// // SAFETY: the block is the resource's, and no work uses it.
/// unsafe { pages.deallocate(&stream, block) };
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct AlignedAdaptor<U> {
    state: Arc<State<U>>,
}

struct State<U> {
    upstream: U,
    alignment: usize,
    threshold: usize,
}

handles!(AlignedAdaptor, state);

impl<U: fmt::Debug> fmt::Debug for AlignedAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedAdaptor")
            .field("upstream", &self.state.upstream)
            .field("alignment", &self.state.alignment)
            .field("threshold_bytes", &self.state.threshold)
            .finish()
    }
}

impl<U> AlignedAdaptor<U> {
    /// Requests of `threshold_bytes` bytes and more reach `upstream` with an alignment of at least
    /// `alignment` bytes, and of at least [`DEFAULT_ALIGNMENT`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `alignment` is not a power of two.
    pub fn new(upstream: U, alignment: usize, threshold_bytes: usize) -> Result<Self> {
        // Asks a layout, which knows what an alignment is.
        let layout = DeviceLayout::with_alignment(0, alignment)?;
        let alignment = layout.alignment().max(DEFAULT_ALIGNMENT);
        Ok(Self { state: Arc::new(State { upstream, alignment, threshold: threshold_bytes }) })
    }

    /// The resource that is asked.
    pub fn upstream(&self) -> &U {
        &self.state.upstream
    }

    /// The alignment in bytes of blocks that reach the threshold.
    pub fn alignment(&self) -> usize {
        self.state.alignment
    }

    /// The size in bytes from which on requests are aligned.
    pub fn threshold_bytes(&self) -> usize {
        self.state.threshold
    }
}

// SAFETY: every block is upstream's, of a layout no smaller than asked, and goes back unchanged.
unsafe impl<U: DeviceResource> DeviceResource for AlignedAdaptor<U> {
    fn device(&self) -> &Device {
        self.state.upstream.device()
    }

    /// # Errors
    ///
    /// Those of upstream; [`ErrorKind::Unsupported`] if upstream gave a block that is not aligned as
    /// it was asked, which then goes back; [`ErrorKind::InvalidArgument`] if the size does not fit
    /// in `isize` when it is rounded up to the alignment.
    #[inline]
    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let State { upstream, alignment, threshold } = &*self.state;
        if layout.bytes() < *threshold {
            return upstream.allocate(stream, layout);
        }
        let alignment = layout.alignment().max(*alignment);
        let block =
            upstream.allocate(stream, DeviceLayout::with_alignment(layout.bytes(), alignment)?)?;
        // An empty block has no memory that could be out of place.
        if block.is_empty() || block.address().is_multiple_of(alignment as u64) {
            return Ok(block);
        }
        Err(give_back(upstream, stream, block, alignment))
    }

    identity_by!(state);

    fn frees_with_driver(&self, block: &DeviceBlock) -> bool {
        self.state.upstream.frees_with_driver(block)
    }

    #[inline]
    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the block is upstream's; the caller vouches for the rest.
        unsafe { self.state.upstream.deallocate(stream, block) }
    }
}

/// Of a block that was just allocated, and has not the alignment that was asked.
#[cold]
#[inline(never)]
fn give_back<U: DeviceResource>(
    upstream: &U,
    stream: &Stream,
    block: DeviceBlock,
    alignment: usize,
) -> Error {
    let address = block.address();
    // SAFETY: the caller has just allocated it, and given it no work.
    unsafe { upstream.deallocate(stream, block) };
    misaligned(address, alignment)
}

fn misaligned(address: u64, alignment: usize) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("an alignment of {alignment} bytes was asked, and upstream gave {address:#x}"),
    )
    .advise("put the adaptor over a resource that keeps alignments")
}

// SAFETY: the blocks are upstream's, unchanged.
unsafe impl<U: HostAccessible> HostAccessible for AlignedAdaptor<U> {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        self.state.upstream.host_pointer(block)
    }
}

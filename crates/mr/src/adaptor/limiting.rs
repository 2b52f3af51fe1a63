//! A limit on the memory of a resource.

use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout, align_up};
use crate::resource::impls::{adaptor, forward};
use crate::resource::resizing::Purpose;
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::{AtomicUsize, Ordering};

/// A resource that hands out no more than a limit of another one's memory. RMM calls it
/// `limiting_resource_adaptor`.
///
/// A block counts with its size, rounded up to the [alignment](Self::with_alignment). It counts from
/// before the call of the upstream until its free begins. A request that does not fit is refused
/// without a call of the upstream. A request that the upstream refuses does not count.
///
/// The limit is exact across threads, and the sum never passes it. A request is refused only if live
/// blocks and requests under way leave no room for it.
///
/// The upstream may give more bytes than were asked. The block then counts with its own size, and is
/// freed at once if that passes the limit. Until then the bytes asked count.
///
/// The count falls before the upstream frees the block, so a thread that learns of the free finds the
/// room. The upstream's live blocks may therefore pass the limit by blocks whose free is under way.
///
/// RMM's adaptor adds first and subtracts the excess. If two threads race for the last room, both
/// may be refused. Its sums may wrap.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, ErrorKind, mr::LimitingAdaptor};
/// use std::sync::Arc;
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let limited = Arc::new(LimitingAdaptor::new(CudaResource::new(&device), 1024));
/// let vec = DeviceVec::<u8>::zeroed_in(&stream, 700, limited.clone())?;
/// assert_eq!((limited.allocated(), limited.remaining()), (768, 256));
/// let refused = DeviceVec::<u8>::zeroed_in(&stream, 257, limited.clone()).unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
/// drop(vec);
/// assert_eq!(limited.allocated(), 0);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct LimitingAdaptor<U> {
    state: Arc<LimitingState<U>>,
}

struct LimitingState<U> {
    upstream: U,
    limit: usize,
    alignment: usize,
    /// INV-1: at most `limit`, unless blocks of others are freed here. Accesses are
    /// relaxed throughout, since the number orders no other memory. A thread reads
    /// a value no older than its own last change, so its own freed block is never in its way.
    allocated: AtomicUsize,
}

adaptor!(LimitingAdaptor, state.upstream, limit, alignment, allocated);

impl<U> LimitingAdaptor<U> {
    /// At most `limit` bytes of `upstream`, where each block counts in multiples of
    /// [`DEFAULT_ALIGNMENT`] bytes.
    pub fn new(upstream: U, limit: usize) -> Self {
        Self::with_valid_alignment(upstream, limit, DEFAULT_ALIGNMENT)
    }

    /// As [`new`](Self::new), but each block counts in multiples of `alignment` bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `alignment` is not a power of two.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, mr::LimitingAdaptor};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let stream = device.new_stream()?;
    /// let exact = LimitingAdaptor::with_alignment(CudaResource::new(&device), 1000, 1)?;
    /// let _vec = DeviceVec::<u8>::zeroed_in(&stream, 999, exact.clone())?;
    /// assert_eq!(exact.remaining(), 1);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn with_alignment(upstream: U, limit: usize, alignment: usize) -> Result<Self> {
        if alignment.is_power_of_two() {
            return Ok(Self::with_valid_alignment(upstream, limit, alignment));
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "a limit was to count in multiples of {}, which is not a power of two",
                Count(alignment, "byte")
            ),
        )
        .with_advice("give 1, 2, 4 or another power of two"))
    }

    fn with_valid_alignment(upstream: U, limit: usize, alignment: usize) -> Self {
        let allocated = AtomicUsize::new(0);
        Self { state: Arc::new(LimitingState { upstream, limit, alignment, allocated }) }
    }

    /// The bytes of live blocks, each rounded up. Never above the limit.
    pub fn allocated(&self) -> usize {
        self.state.allocated.load(Ordering::Relaxed)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.state.limit
    }

    /// The bytes left of the limit.
    pub fn remaining(&self) -> usize {
        self.limit().saturating_sub(self.allocated())
    }

    /// The bytes that a block of `bytes` counts. `usize::MAX` fits no limit of real memory.
    fn rounded(&self, bytes: usize) -> usize {
        align_up(bytes, self.state.alignment).unwrap_or(usize::MAX)
    }

    /// Adds `bytes` if INV-1 allows it. The error is the sum that left no room.
    fn reserve(&self, bytes: usize) -> std::result::Result<(), usize> {
        let LimitingState { allocated, limit, .. } = &*self.state;
        let fits = |now: usize| now.checked_add(bytes).filter(|sum| sum <= limit);
        allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map(drop)
    }

    fn release(&self, bytes: usize) {
        // Saturates only after a free of a block that was never allocated here.
        let less = |now: usize| Some(now.saturating_sub(bytes));
        let _ = self.state.allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// The bytes that an allocation under way counts. Its drop subtracts them, since the upstream may
/// refuse, or may panic against its contract.
struct Charge<'a, U> {
    adaptor: &'a LimitingAdaptor<U>,
    bytes: usize,
}

impl<U> Drop for Charge<'_, U> {
    fn drop(&mut self) {
        self.adaptor.release(self.bytes);
    }
}

#[cold]
fn refusal(
    limit: usize,
    allocated: usize,
    asked: usize,
    counted: usize,
    got: Option<usize>,
) -> Error {
    let bytes = |bytes| Count(bytes, "byte");
    let got = got.map(|got| format!(" (upstream gave {})", bytes(got))).unwrap_or_default();
    let counted_as = match counted > asked && counted < usize::MAX {
        true if asked == 1 => format!(", which counts as {},", bytes(counted)),
        true => format!(", which count as {},", bytes(counted)),
        false => String::new(),
    };
    let message = format!(
        "allocating {}{got}{counted_as} under a limit of {}, with {} allocated",
        bytes(asked),
        bytes(limit),
        bytes(allocated)
    );
    let advice = match counted > limit {
        true => "ask for less, or build the adaptor with a larger limit",
        false => "free some memory, or build the adaptor with a larger limit",
    };
    Error::new(ErrorKind::OutOfMemory, message).with_advice(advice)
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for LimitingAdaptor<U> {
    forward!(device, peer_access, identity);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let block = self
            .allocate_by(stream, layout, |upstream| upstream.allocate(stream, layout).map(Some))?;
        // The upstream's call gives one.
        Ok(block.unwrap_or_else(|| DeviceBlock::empty(layout)))
    }

    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        self.allocate_by(stream, layout, |upstream| upstream.allocate_growable(stream, layout))
    }

    /// If the limit leaves no room for the bytes that the upstream added, the block
    /// gets its former size again.
    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        let (upstream, before) = (&self.state.upstream, block.bytes());
        let counted = self.rounded(before);
        let charged = self.rounded(bytes).saturating_sub(counted);
        if charged > 0 && self.reserve(charged).is_err() {
            return Ok(false);
        }
        let charge = Charge { adaptor: self, bytes: charged };
        // SAFETY: the block is the upstream's; the caller vouches for the rest.
        if !unsafe { upstream.resize_in_place(stream, block, bytes) }? {
            return Ok(false);
        }
        let more = self.rounded(block.bytes()).saturating_sub(counted + charged);
        if more > 0 && self.reserve(more).is_err() {
            // SAFETY: the same; what is given up was just added, and no work uses it.
            let undo = || unsafe { upstream.resize_in_place(stream, block, before) };
            let _ = Purpose::Undo.of(undo);
            if block.bytes() <= before {
                return Ok(false);
            }
            // An upstream that cannot undo it: what the block has counts.
            self.state.allocated.fetch_add(more, Ordering::Relaxed);
        }
        // From here on it is the block's free that subtracts.
        std::mem::forget(charge);
        // What is given up, after the call: an upstream that keeps it may have no room under the limit to count it again.
        self.release((counted + charged + more).saturating_sub(self.rounded(block.bytes())));
        Ok(true)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        self.release(self.rounded(block.bytes()));
        // SAFETY: the block is the upstream's; the caller vouches for the rest.
        unsafe { self.state.upstream.deallocate(stream, block) }
    }
}

impl<U: DeviceResource> LimitingAdaptor<U> {
    /// A block of one of the upstream's calls, which may have none.
    #[inline]
    fn allocate_by(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
        call: impl FnOnce(&U) -> Result<Option<DeviceBlock>>,
    ) -> Result<Option<DeviceBlock>> {
        let (limit, asked) = (self.limit(), layout.bytes());
        let charged = self.rounded(asked);
        if let Err(allocated) = self.reserve(charged) {
            self.device().require(stream.device(), "the stream")?;
            return Err(refusal(limit, allocated, asked, charged, None));
        }
        let charge = Charge { adaptor: self, bytes: charged };
        let Some(block) = call(&self.state.upstream)? else { return Ok(None) };
        // The free knows the block alone, not the request: the block's size is what counts.
        let (got, size) = (block.bytes(), self.rounded(block.bytes()));
        if size > charged
            && let Err(allocated) = self.reserve(size - charged)
        {
            drop(charge);
            // SAFETY: allocated above, and no work uses it.
            unsafe { self.state.upstream.deallocate(stream, block) };
            return Err(refusal(limit, allocated.saturating_sub(charged), asked, size, Some(got)));
        }
        // From here on it is the block's free that subtracts.
        std::mem::forget(charge);
        if size < charged {
            self.release(charged - size);
        }
        Ok(Some(block))
    }
}

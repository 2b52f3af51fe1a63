//! A resource that hands out no more than a limit.

use super::handles::{handles, identity_by};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{DEFAULT_ALIGNMENT, DeviceLayout, align_up};
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::{AtomicUsize, Ordering};
use std::fmt;
use std::ptr::NonNull;

/// A resource that hands out no more than a limit of another one's memory: RMM's
/// `limiting_resource_adaptor`.
///
/// A block counts with its size, rounded up to the [alignment](Self::with_alignment), from before
/// upstream is asked until it comes back. A request that does not fit is refused without a call of
/// upstream, and what upstream refuses is not counted. Threads share the limit exactly: what is
/// counted never passes it, and a request is refused only if what others hold or are being given
/// leaves no room for it.
///
/// Upstream may give more than was asked. The block then counts with what it has, and goes back at
/// once if that passes the limit; while this is under way, the limit is short of the bytes asked.
///
/// A block stops to count as [`deallocate`](DeviceResource::deallocate) begins, so that who is told
/// of the free finds the room: what upstream has in its hands may pass the limit by the blocks which
/// are on their way back.
///
/// RMM adds first and takes back what was too much, so of two threads that race for room of one both
/// may be refused, and sums may wrap.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, ErrorKind, LimitingAdaptor};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
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
    state: Arc<State<U>>,
}

struct State<U> {
    upstream: U,
    limit: usize,
    alignment: usize,
    /// At most `limit`. Relaxed throughout: it is a number, and orders nothing else. A thread reads
    /// at least as late a value as its own last change, so its own block never stands in its way.
    allocated: AtomicUsize,
}

handles!(LimitingAdaptor, state);

impl<U: fmt::Debug> fmt::Debug for LimitingAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitingAdaptor")
            .field("upstream", &self.state.upstream)
            .field("limit", &self.state.limit)
            .field("alignment", &self.state.alignment)
            .field("allocated", &self.allocated())
            .finish()
    }
}

impl<U> LimitingAdaptor<U> {
    /// At most `limit` bytes of `upstream`, where each block counts in multiples of
    /// [`DEFAULT_ALIGNMENT`] bytes.
    pub fn new(upstream: U, limit: usize) -> Self {
        Self::made(upstream, limit, DEFAULT_ALIGNMENT)
    }

    /// As [`new`](Self::new), but each block counts in multiples of `alignment` bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `alignment` is not a power of two.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, LimitingAdaptor};
    /// use std::sync::Arc;
    ///
    /// let device = Device::detect()?;
    /// let stream = device.new_stream()?;
    /// let exact = LimitingAdaptor::with_alignment(CudaResource::new(&device), 1000, 1)?;
    /// let _vec = DeviceVec::<u8>::zeroed_in(&stream, 999, Arc::new(exact.clone()))?;
    /// assert_eq!(exact.remaining(), 1);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn with_alignment(upstream: U, limit: usize, alignment: usize) -> Result<Self> {
        if alignment.is_power_of_two() {
            return Ok(Self::made(upstream, limit, alignment));
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("a limit that counts in multiples of {alignment}, which is not a power of two"),
        ))
    }

    fn made(upstream: U, limit: usize, alignment: usize) -> Self {
        let allocated = AtomicUsize::new(0);
        Self { state: Arc::new(State { upstream, limit, alignment, allocated }) }
    }

    /// The resource whose memory is limited.
    pub fn upstream(&self) -> &U {
        &self.state.upstream
    }

    /// Bytes that count now, each block rounded up. Never above the limit.
    pub fn allocated(&self) -> usize {
        self.state.allocated.load(Ordering::Relaxed)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.state.limit
    }

    /// Bytes that are left of the limit.
    pub fn remaining(&self) -> usize {
        // Below zero only after a free of what was never allocated here.
        self.limit().saturating_sub(self.allocated())
    }

    /// What a block of `bytes` counts. No block of `usize::MAX` bytes fits in an address space.
    fn charge(&self, bytes: usize) -> usize {
        align_up(bytes, self.state.alignment).unwrap_or(usize::MAX)
    }

    /// Counts `bytes` if they fit; else says what counted.
    fn reserve(&self, bytes: usize) -> std::result::Result<(), usize> {
        let State { allocated, limit, .. } = &*self.state;
        let fits = |now: usize| now.checked_add(bytes).filter(|sum| sum <= limit);
        allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map(drop)
    }

    fn release(&self, bytes: usize) {
        self.state.allocated.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What an allocation under way counts. Taken back unless the block is handed out: upstream may
/// refuse, and one that breaks its contract may panic.
struct Charge<'a, U> {
    of: &'a LimitingAdaptor<U>,
    bytes: usize,
}

impl<'a, U> Charge<'a, U> {
    fn new(of: &'a LimitingAdaptor<U>, bytes: usize) -> std::result::Result<Self, usize> {
        of.reserve(bytes).map(|()| Self { of, bytes })
    }

    /// Counts `bytes` from here on; else says what else counted.
    fn resize(&mut self, bytes: usize) -> std::result::Result<(), usize> {
        if bytes < self.bytes {
            self.of.release(self.bytes - bytes);
        } else if bytes > self.bytes {
            let reserved = self.of.reserve(bytes - self.bytes);
            reserved.map_err(|allocated| allocated - self.bytes)?;
        }
        self.bytes = bytes;
        Ok(())
    }

    fn keep(self) {
        std::mem::forget(self);
    }
}

impl<U> Drop for Charge<'_, U> {
    fn drop(&mut self) {
        self.of.release(self.bytes);
    }
}

#[cold]
fn refusal(limit: usize, allocated: usize, asked: usize, got: Option<usize>) -> Error {
    let got = got.map(|got| format!(", for which upstream gave {got}")).unwrap_or_default();
    Error::new(
        ErrorKind::OutOfMemory,
        format!(
            "{asked} bytes were asked{got}; of a limit of {limit} bytes {allocated} are allocated"
        ),
    )
    .advise("free some memory, or raise the limit")
}

// SAFETY: every block is upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for LimitingAdaptor<U> {
    fn device(&self) -> &Device {
        self.state.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let (limit, asked) = (self.limit(), layout.bytes());
        let mut charge = Charge::new(self, self.charge(asked))
            .map_err(|allocated| refusal(limit, allocated, asked, None))?;
        let block = self.state.upstream.allocate(stream, layout)?;
        // Only the block is known when it comes back, so it is the block that counts.
        if let Err(others) = charge.resize(self.charge(block.bytes())) {
            let got = block.bytes();
            drop(charge);
            // SAFETY: allocated above, and no work was given it.
            unsafe { self.state.upstream.deallocate(stream, block) };
            return Err(refusal(limit, others, asked, Some(got)));
        }
        charge.keep();
        Ok(block)
    }

    identity_by!(state);

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        self.release(self.charge(block.bytes()));
        // SAFETY: the block is upstream's; the caller vouches for the rest.
        unsafe { self.state.upstream.deallocate(stream, block) }
    }
}

// SAFETY: the blocks are upstream's, unchanged.
unsafe impl<U: HostAccessible> HostAccessible for LimitingAdaptor<U> {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        self.state.upstream.host_pointer(block)
    }
}

//! The memory that a memory manager hands out, which is counted and has a finalizer, and views of it.

use super::ipc::IpcHandle;
use crate::debug_log::deferred_event;
use crate::driver::{is_forked_child, is_in_host_function};
use crate::error::{Error, ErrorKind, Result, catch_panic};
use crate::impls::{Count, debug_struct};
use crate::inside::deferred;
use crate::resource::{DeviceBlock, external};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::Mutex;
use std::ops::Range;
use std::ptr::NonNull;

type DeviceFinalizer = Box<dyn FnOnce(&Stream) + Send>;
type HostFinalizer = Box<dyn FnOnce() + Send>;

/// Device memory of a [`MemoryManager`](crate::nbep7::MemoryManager), which is NBEP 7's `MemoryPointer`.
///
/// Clones and [slices](Self::slice) are views of one allocation, which they keep. When the last
/// of them goes, its finalizer runs. It runs once, on the thread that drops the view, even
/// after the manager was reset. A finalizer that panics leaks the memory, and is an error of
/// the log. In the child of a fork none runs.
///
/// A view gives no access to the memory, so any number of views may exist.
///
/// ```
/// use aquifer::{Device, nbep7::MemoryPointer};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let stream = Device::detect_or_simulate()?.new_stream()?;
/// let freed = Arc::new(AtomicUsize::new(0));
/// let count = freed.clone();
/// let whole = MemoryPointer::new(&stream, 0x1000, 80, move |_stream| {
///     count.fetch_add(1, Ordering::Relaxed);
/// });
/// let half = whole.slice(40..80)?;
/// drop(whole);
/// assert_eq!((half.address(), half.bytes()), (0x1028, 40));
/// assert_eq!(freed.load(Ordering::Relaxed), 0, "the slice keeps the memory");
/// drop(half);
/// assert_eq!(freed.load(Ordering::Relaxed), 1);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct MemoryPointer {
    owner: Arc<DeviceOwner>,
    address: u64,
    bytes: usize,
}

struct DeviceOwner {
    /// The stream in whose order the memory is freed.
    stream: Mutex<Stream>,
    /// It is in a mutex so that owners are `Sync`, and the drop alone reads it.
    finalizer: Mutex<Option<DeviceFinalizer>>,
}

impl Drop for DeviceOwner {
    fn drop(&mut self) {
        let Some(finalizer) = self.finalizer.get_mut().take() else { return };
        if is_forked_child() {
            // The memory is the parent's, and a thread of the parent may hold the locks on the way.
            return std::mem::forget(finalizer);
        }
        let stream = self.stream.get_mut();
        if is_in_host_function() {
            let stream = stream.clone();
            return deferred::defer_to_program(move || finalize(finalizer, &stream));
        }
        finalize(finalizer, stream);
    }
}

fn finalize(finalizer: DeviceFinalizer, stream: &Stream) {
    if external::inside(|| catch_panic(|| finalizer(stream))).is_none() {
        let device = stream.device().to_string();
        deferred_event!(error, %device, "leaked device memory: a memory manager's finalizer panicked");
    }
}

impl MemoryPointer {
    /// `bytes` bytes at `address`, for work on `stream` from now on. `finalizer` gives them back, in
    /// the order of the stream that it is called with. That is the one of
    /// [`free_on`](Self::free_on), or else this one.
    pub fn new(
        stream: &Stream,
        address: u64,
        bytes: usize,
        finalizer: impl FnOnce(&Stream) + Send + 'static,
    ) -> Self {
        let owner = DeviceOwner {
            stream: Mutex::new(stream.clone()),
            finalizer: Mutex::new(Some(Box::new(finalizer))),
        };
        Self { owner: Arc::new(owner), address, bytes }
    }

    /// The device's address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size of this view in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The stream in whose order the memory is freed.
    pub fn stream(&self) -> Stream {
        self.owner.stream.lock().clone()
    }

    /// The driver's handle by which another process opens this view. It blocks until the stream has done all that it was
    /// given.
    ///
    /// # Errors
    ///
    /// The errors of [`IpcHandle::of_block`].
    pub fn ipc_handle(&self) -> Result<IpcHandle> {
        let block = DeviceBlock::new(self.address, self.bytes, 0);
        IpcHandle::of_block(&self.stream(), &block)
    }

    /// A view of a part, which keeps the whole allocation.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] for a range that is not in this view.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        let offset = within(&range, self.bytes)?;
        Ok(Self {
            owner: self.owner.clone(),
            address: self.address.wrapping_add(offset as u64),
            bytes: range.len(),
        })
    }

    /// Drops this view. The memory is freed in the order of `stream`, if that is the last
    /// stream that was named.
    ///
    /// # Safety
    ///
    /// `stream` is of the memory's device. It was made to wait for the stream that was named before, which is that of
    /// [`new`](Self::new) at first, and for all work on the memory, also where there was none: the memory's former user
    /// is ordered before that stream alone.
    pub unsafe fn free_on(self, stream: &Stream) {
        self.owner.set_stream(stream);
    }

    /// This view's share of the memory, as a block's token.
    pub(super) fn into_token(self) -> u64 {
        Arc::into_raw(self.owner).expose_provenance() as u64
    }

    /// Does the work of [`free_on`](Self::free_on) for a token.
    ///
    /// # Safety
    ///
    /// The token came from [`into_token`](Self::into_token) in this process, and is given back once.
    /// The conditions of [`free_on`](Self::free_on) hold, too.
    pub(super) unsafe fn free_token_on(token: u64, stream: &Stream) {
        let owner = std::ptr::with_exposed_provenance::<DeviceOwner>(token as usize);
        // SAFETY: the caller's promise: a share that `into_token` let go of.
        let owner = unsafe { Arc::from_raw(owner) };
        owner.set_stream(stream);
    }
}

impl DeviceOwner {
    fn set_stream(&self, stream: &Stream) {
        let before = std::mem::replace(&mut *self.stream.lock(), stream.clone());
        // Not under the lock: it may be the last handle of its stream, which calls the driver.
        drop(before);
    }
}

debug_struct!(MemoryPointer { address, bytes, .. });

/// Page-locked host memory of a [`MemoryManager`](crate::nbep7::MemoryManager). It is NBEP 7's
/// `PinnedMemory`, and its `MappedMemory` where the device can address it.
///
/// Views are counted as those of a [`MemoryPointer`]. When the last view goes, the finalizer
/// runs, once. It unlocks the memory, and frees the memory that the manager allocated. The
/// device must be past all use of it by then.
#[derive(Clone)]
pub struct PinnedMemory {
    owner: Arc<HostOwner>,
    pointer: NonNull<u8>,
    bytes: usize,
}

struct HostOwner {
    finalizer: Mutex<Option<HostFinalizer>>,
}

// SAFETY: the pointer is a number here: nothing reads or writes through it.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl Drop for HostOwner {
    fn drop(&mut self) {
        let Some(finalizer) = self.finalizer.get_mut().take() else { return };
        if is_forked_child() {
            return std::mem::forget(finalizer);
        }
        let finalize = move || {
            if external::inside(|| catch_panic(finalizer)).is_none() {
                deferred_event!(
                    error,
                    "leaked page-locked memory: a memory manager's finalizer panicked"
                );
            }
        };
        if is_in_host_function() { deferred::defer_to_program(finalize) } else { finalize() }
    }
}

impl PinnedMemory {
    /// Memory that is page-locked until `finalizer` runs.
    pub fn new(memory: NonNull<[u8]>, finalizer: impl FnOnce() + Send + 'static) -> Self {
        let owner = HostOwner { finalizer: Mutex::new(Some(Box::new(finalizer))) };
        Self { owner: Arc::new(owner), pointer: memory.cast(), bytes: memory.len() }
    }

    /// The first byte.
    pub fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// The size of this view in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A view of a part, which keeps the whole.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] for a range that is not in this view.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        let offset = within(&range, self.bytes)?;
        // The range lies in the memory, so the sum is an address of it.
        let address = self.pointer.addr().saturating_add(offset);
        let pointer = self.pointer.with_addr(address);
        Ok(Self { owner: self.owner.clone(), pointer, bytes: range.len() })
    }
}

debug_struct!(PinnedMemory { pointer, bytes, .. });

/// The start of a range of bytes that lies in `bytes` bytes.
fn within(range: &Range<usize>, bytes: usize) -> Result<usize> {
    if range.start <= range.end && range.end <= bytes {
        return Ok(range.start);
    }
    if range.start > range.end {
        let what = format!("the range {}..{} ends before it begins", range.start, range.end);
        return Err(
            Error::new(ErrorKind::OutOfBounds, what).with_advice("give the smaller index first")
        );
    }
    let what = format!(
        "bytes {}..{} were to be taken of memory of {}",
        range.start,
        range.end,
        Count(bytes, "byte")
    );
    Err(Error::new(ErrorKind::OutOfBounds, what).with_advice("take a range that lies in it"))
}

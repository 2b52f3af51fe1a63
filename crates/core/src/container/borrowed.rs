//! Device memory of another owner, lent for a while.

use super::accessors::host_copies;
use super::buffer::Buffer;
use super::device_vec::refuse_zero_sized;
use super::on::{On, OnMut};
use super::stopped::abort_unless_stopped;
use super::view::{DeviceRead, DeviceSlice, DeviceSliceMut, DeviceWrite, Sealed, lengths};
use crate::device::Device;
use crate::driver::{CallSite, DeviceCopy, not_forked};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::layout::DeviceLayout;
use crate::order::StreamRef;
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use bytemuck::{AnyBitPattern, NoUninit};
use std::fmt;
use std::marker::PhantomData;

/// Device memory of another owner, such as a tensor of another library or a buffer of a C program, lent to this crate.
///
/// It has the views, guards, copies and launches of a [`DeviceVec`](crate::DeviceVec), and neither grows nor frees the
/// memory. Its home stream is the one on which the owner uses the memory. When it is dropped, that stream comes after all
/// use elsewhere, and the owner goes on there.
///
/// `interop::lend` lends a slice of cudarc's without `unsafe`.
///
/// ```
/// use aquifer::{Device, DeviceVec, container::BorrowedVec};
///
/// let device = Device::detect_or_simulate()?;
/// let (theirs, ours) = (device.new_stream()?, device.new_stream()?);
/// // The memory of another library, which it uses on the stream `theirs`.
/// let tensor = DeviceVec::from_slice(&theirs, &[1_u32, 2, 3, 4])?;
/// // SAFETY: the tensor outlives the loan, and is left alone meanwhile.
/// let mut lent = unsafe { BorrowedVec::<u32>::new(&theirs, tensor.as_device_ptr(), 4)? };
/// drop(lent.on_mut(&ours)?); // a kernel on `ours` would go here
/// lent.as_mut_slice().slice_mut(1..3)?.fill(7)?;
/// lent.end()?;
/// assert_eq!(tensor.to_vec()?, [1, 7, 7, 4]);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct BorrowedVec<'a, T: DeviceCopy> {
    buffer: Buffer,
    length: usize,
    elements: PhantomData<&'a mut [T]>,
}

/// The resource of memory that is another owner's.
#[derive(Debug)]
struct Lent {
    device: Device,
}

// SAFETY: it hands out nothing, and frees nothing.
unsafe impl DeviceResource for Lent {
    fn device(&self) -> &Device {
        &self.device
    }

    fn allocate(&self, _: &Stream, _: DeviceLayout) -> Result<DeviceBlock> {
        let what = "memory was asked of what another owner lends";
        Err(Error::new(ErrorKind::Unsupported, what).with_advice("copy it into a DeviceVec"))
    }

    unsafe fn deallocate(&self, _: &Stream, _: DeviceBlock) {}
}

lengths!(['a, T: DeviceCopy] BorrowedVec<'a, T>, T, length);
host_copies!([T: DeviceCopy + NoUninit] [T: DeviceCopy + AnyBitPattern] BorrowedVec<'_, T>, T);

impl<'a, T: DeviceCopy> BorrowedVec<'a, T> {
    /// `length` elements at `address`, whose owner uses them on `stream`.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`] for an address that is not aligned for `T`, or 0 for elements, for a size that
    ///   overflows, and for a `T` without a size.
    /// - [`ErrorKind::Forked`] in the child of a fork, and [`ErrorKind::NotPermitted`] inside of a host function.
    ///
    /// # Safety
    ///
    /// - `length` elements lie at `address` in memory of the stream's device, which is not managed, and are written.
    /// - Until this is dropped, their owner does not free them, and gives no stream work on them. It only reads, where
    ///   they are only read here.
    /// - `stream` is ordered after what the owner gave other streams before.
    /// - If this is forgotten, or dropped inside of a host function, the first two hold until the device has passed all
    ///   work that was given here.
    #[track_caller]
    pub unsafe fn new(stream: &'a Stream, address: u64, length: usize) -> Result<Self> {
        let _site = CallSite::enter();
        Self::lent(stream, address, length)
    }

    /// An error names the place in the crate, not the caller's.
    fn lent(stream: &Stream, address: u64, length: usize) -> Result<Self> {
        not_forked("memory of another owner")?;
        refuse_zero_sized::<T>()?;
        let layout = DeviceLayout::array::<T>(length)?;
        let bytes = layout.bytes();
        ensure!(
            bytes == 0 || (address != 0 && address.is_multiple_of(align_of::<T>() as u64)),
            InvalidArgument,
            "give the address of the first element",
            "the address {address:#x} was lent as one of `{}`",
            std::any::type_name::<T>()
        );
        let resource: Arc<dyn DeviceResource> = Arc::new(Lent { device: stream.device().clone() });
        let block = DeviceBlock::new(address, bytes, 0);
        let buffer = Buffer::from_block(stream, block, layout.alignment(), resource.into());
        Ok(Self { buffer, length, elements: PhantomData })
    }

    /// The home stream, on which the owner goes on.
    pub fn stream(&self) -> &Stream {
        self.buffer.home()
    }

    /// The device's address of the first element, as that of [`DeviceVec::as_device_ptr`](crate::DeviceVec::as_device_ptr).
    pub fn as_device_ptr(&self) -> u64 {
        self.buffer.address()
    }

    /// The whole of it, to read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::new(&self.buffer, self.length)
    }

    /// The whole of it, to read and write.
    pub fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::new(&self.buffer, self.length)
    }

    /// The memory, to be read on `stream`, as by [`DeviceVec::on`](crate::DeviceVec::on).
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceVec::on`](crate::DeviceVec::on). No other device reaches the memory.
    #[track_caller]
    pub fn on<'b, S: StreamRef>(&'b self, stream: &'b S) -> Result<On<'b, T, S>> {
        let _site = CallSite::enter();
        On::new(self.as_slice(), stream)
    }

    /// The memory, to be read and written on `stream`, as by [`DeviceVec::on_mut`](crate::DeviceVec::on_mut).
    ///
    /// # Errors
    ///
    /// The errors of [`on`](Self::on).
    #[track_caller]
    pub fn on_mut<'b, S: StreamRef>(&'b mut self, stream: &'b S) -> Result<OnMut<'b, T, S>> {
        let _site = CallSite::enter();
        OnMut::new(self.as_mut_slice(), stream)
    }

    /// Gives the memory back. The home stream comes after all use of it elsewhere. The host waits for a use that the home
    /// stream cannot wait for, as where one of the two is in a capture. A drop does the same.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ContextLost`] and others, if no wait is possible and the device has stopped. The memory is lost with
    /// it. [`ErrorKind::Forked`] and [`ErrorKind::NotPermitted`] as for [`new`](Self::new).
    ///
    /// # Aborts
    ///
    /// If no wait is possible and the device may still use the memory, which its owner is about to use or free:
    ///
    /// - a stream that uses it is in a capture that Aquifer was not told of
    /// - it was used on a stream that Aquifer does not know, and a capture of the device lasts longer than 10 seconds, or is
    ///   this thread's own
    #[track_caller]
    pub fn end(mut self) -> Result<()> {
        let _site = CallSite::enter();
        self.give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        // A lock on the way may be held by a thread of the parent, or over a call of the driver.
        not_forked("memory of another owner")?;
        let ended = self.buffer.end_loan();
        if let Err(error) = &ended {
            abort_unless_stopped(self.buffer.home(), error);
            // Nothing uses it any more, and it is not ours to report as leaked.
            self.buffer.forget();
        }
        ended
    }
}

impl<T: DeviceCopy> Drop for BorrowedVec<'_, T> {
    fn drop(&mut self) {
        // Of a lost device: the owner finds out by its own next call.
        let _ = self.give_back();
    }
}

impl<T: DeviceCopy> Sealed for BorrowedVec<'_, T> {}

impl<T: DeviceCopy> DeviceRead<T> for BorrowedVec<'_, T> {
    fn as_device_slice(&self) -> DeviceSlice<'_, T> {
        self.as_slice()
    }
}

impl<T: DeviceCopy> DeviceWrite<T> for BorrowedVec<'_, T> {
    fn as_device_slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        self.as_mut_slice()
    }
}

impl<T: DeviceCopy> fmt::Debug for BorrowedVec<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BorrowedVec").field(&self.as_slice()).finish()
    }
}

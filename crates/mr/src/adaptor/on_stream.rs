//! A resource bound to a stream.

use crate::driver::CallSite;
use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::inside::allocator::{HostAllocator, implement_allocators};
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible};
use crate::stream::Stream;
use std::alloc::Layout;
use std::ptr::NonNull;

/// A resource bound to a stream. RMM calls it `stream_allocator_adaptor`.
///
/// [`allocate`](Self::allocate) and [`deallocate`](Self::deallocate) need no stream. Two are equal
/// only if resource *and* stream are equal, since memory that was allocated on one stream and freed on
/// another is a race. Over a [`HostAccessible`] resource it is an
/// [`allocator_api2::alloc::Allocator`](https://docs.rs/allocator-api2/0.2). The host's collections
/// then live in memory which kernels of that stream reach.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{Device, mr::OnStream, pinned::PinnedResource};
///
/// let device = Device::detect_or_simulate()?;
/// let pinned = PinnedResource::new(&device)?;
/// let on_stream = OnStream::new(pinned, &device.new_stream()?)?;
/// let mut vec = Vec::new_in(on_stream);
/// vec.extend([1, 2, 3]);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnStream<R> {
    resource: R,
    stream: Stream,
}

impl<R: DeviceResource> OnStream<R> {
    /// `resource`, bound to `stream`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] if they belong to two devices.
    pub fn new(resource: R, stream: &Stream) -> Result<Self> {
        resource.device().require(stream.device(), "the stream")?;
        Ok(Self { resource, stream: stream.clone() })
    }

    /// The resource.
    pub fn resource(&self) -> &R {
        &self.resource
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Memory of `layout` for work on the stream.
    ///
    /// # Errors
    ///
    /// The errors of the resource.
    #[track_caller]
    pub fn allocate(&self, layout: DeviceLayout) -> Result<DeviceBlock> {
        let _site = CallSite::enter();
        self.resource.allocate(&self.stream, layout)
    }

    /// Takes a block back in the stream's order.
    ///
    /// # Safety
    ///
    /// The conditions of [`DeviceResource::deallocate`] hold for the stream of this adaptor.
    #[track_caller]
    pub unsafe fn deallocate(&self, block: DeviceBlock) {
        let _site = CallSite::enter();
        // SAFETY: the caller's promise.
        unsafe { self.resource.deallocate(&self.stream, block) }
    }
}

// SAFETY: `R: HostAccessible` hands out memory that no device work touches and keeps freed blocks until
// the device is complete; blocks stay valid while a handle on the resource lives, and each clone holds
// one.
unsafe impl<R: HostAccessible> HostAllocator for OnStream<R> {
    fn allocate_slow(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        let device_layout = DeviceLayout::with_alignment(layout.size(), layout.align())?;
        let block = self.allocate(device_layout)?;
        let pointer = self.resource.host_pointer(&block);
        if !pointer.addr().get().is_multiple_of(layout.align()) || block.bytes() < layout.size() {
            let (name, bytes) = (self.resource.identity().name(), Count(block.bytes(), "byte"));
            // SAFETY: allocated above and given to nobody.
            unsafe { self.deallocate(block) };
            let message = format!(
                "{name} gave {bytes} at {pointer:p} of the host, where {} aligned to {} were asked",
                Count(layout.size(), "byte"),
                layout.align()
            );
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_advice("use a resource that keeps sizes and alignments"));
        }
        Ok(NonNull::slice_from_raw_parts(pointer, layout.size()))
    }

    #[inline(always)]
    unsafe fn free_fast(&self, _pointer: NonNull<u8>, _layout: Layout) -> bool {
        false
    }

    unsafe fn free_slow(&self, pointer: NonNull<u8>, layout: Layout) {
        if let Ok(layout) = DeviceLayout::with_alignment(layout.size(), layout.align()) {
            // SAFETY: the block is live and of this resource, asked with this layout or a larger
            // one; the caller gives it up. The stream's later work is the resource's to wait for.
            unsafe {
                let block = self.resource.block_at(pointer, layout);
                self.deallocate(block);
            }
        }
    }

    unsafe fn resize(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>> {
        let smaller = new.size() != 0 && new.size() <= old.size();
        if smaller && pointer.addr().get().is_multiple_of(new.align()) {
            // In place: a block is found again by its address, whatever its size is said to be.
            return Ok(NonNull::slice_from_raw_parts(pointer, new.size()));
        }
        let target = self.allocate_slow_or_empty(new)?;
        let bytes = old.size().min(new.size());
        // SAFETY: both blocks are live, disjoint and hold `bytes` bytes; the old one is given up by
        // the caller on success.
        unsafe {
            std::ptr::copy_nonoverlapping(pointer.as_ptr(), target.as_ptr().cast(), bytes);
            self.free_slow_or_empty(pointer, old);
        }
        Ok(target)
    }
}

implement_allocators!([R: HostAccessible] OnStream<R>);

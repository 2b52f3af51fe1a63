//! A typed allocator over any resource.

use crate::device::Device;
use crate::driver::CallSite;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, current_device_resource};
use crate::stream::Stream;
use crate::sync::Arc;
use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

/// An allocator of device memory by the element, for a stream that each call names. RMM
/// calls it `polymorphic_allocator`.
///
/// The allocator is a handle on a resource of any type. Two are equal if their resources take back
/// each other's blocks ([`DeviceResource::identity`]), whatever their element types are. For an
/// allocator that is bound to a stream, see [`OnStream`](crate::mr::OnStream).
///
/// RMM's takes the number of elements again at the free, and corrupts its pool if it differs. Here the
/// block has its size. RMM's default is the resource of the thread's current device.
///
/// ```
/// use aquifer::{Device, mr::PolymorphicAllocator};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let floats = PolymorphicAllocator::<f32>::new(&device)?;
/// let block = floats.allocate(1000, &stream)?;
/// assert!(block.bytes() >= 4000);
/// let bytes = floats.of_type::<u8>();
/// assert_eq!(bytes, floats);
/// // SAFETY: allocated above from an equal resource; no work uses it.
/// unsafe { bytes.deallocate(block, &stream) };
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct PolymorphicAllocator<T> {
    resource: Arc<dyn DeviceResource>,
    element: PhantomData<fn() -> T>,
}

impl<T> PolymorphicAllocator<T> {
    /// An allocator over the resource that is [current](current_device_resource) on `device` now. A later change
    /// has no effect on it.
    ///
    /// # Errors
    ///
    /// The errors of [`current_device_resource`].
    pub fn new(device: &Device) -> Result<Self> {
        current_device_resource(device).map(Self::new_in)
    }

    /// An allocator over `resource`.
    pub fn new_in(resource: impl DeviceResource + 'static) -> Self {
        Self { resource: resource.into_shared(), element: PhantomData }
    }

    /// The resource.
    pub fn resource(&self) -> &Arc<dyn DeviceResource> {
        &self.resource
    }

    /// An allocator of elements of another type over the same resource, as C++'s `rebind` makes.
    pub fn of_type<U>(&self) -> PolymorphicAllocator<U> {
        PolymorphicAllocator::new_in(self.resource.clone())
    }

    /// Memory for `count` elements, for work on `stream`, at the larger of `T`'s alignment and
    /// [`DEFAULT_ALIGNMENT`](crate::mr::DEFAULT_ALIGNMENT) bytes. No elements, or elements without a
    /// size, give an empty block.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the size in bytes
    /// overflows, and the errors of [`DeviceResource::allocate`].
    #[track_caller]
    pub fn allocate(&self, count: usize, stream: &Stream) -> Result<DeviceBlock> {
        let _site = CallSite::enter();
        self.resource.allocate(stream, DeviceLayout::array::<T>(count)?)
    }

    /// Takes a block back, in the order of `stream`.
    ///
    /// # Safety
    ///
    /// `block` came from an allocator that equals this one, and all work that uses it is ordered
    /// before this call on `stream`.
    #[track_caller]
    pub unsafe fn deallocate(&self, block: DeviceBlock, stream: &Stream) {
        let _site = CallSite::enter();
        // SAFETY: the caller's promise; allocators are equal if their resources are.
        unsafe { self.resource.deallocate(stream, block) }
    }
}

impl<T> From<Arc<dyn DeviceResource>> for PolymorphicAllocator<T> {
    fn from(resource: Arc<dyn DeviceResource>) -> Self {
        Self::new_in(resource)
    }
}

impl<T> Clone for PolymorphicAllocator<T> {
    fn clone(&self) -> Self {
        self.of_type()
    }
}

impl<T, U> PartialEq<PolymorphicAllocator<U>> for PolymorphicAllocator<T> {
    fn eq(&self, other: &PolymorphicAllocator<U>) -> bool {
        *self.resource == *other.resource
    }
}

impl<T> Eq for PolymorphicAllocator<T> {}

impl<T> fmt::Debug for PolymorphicAllocator<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolymorphicAllocator")
            .field("element", &format_args!("{}", type_name::<T>()))
            .field("resource", &format_args!("{}", self.resource.identity().name()))
            .finish()
    }
}

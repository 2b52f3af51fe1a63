//! Buffers of the host that transfers own and write, and that can be page-locked.

use super::host_read::HostRead;
use crate::driver::DeviceCopy;
use std::ptr::NonNull;

/// Memory on the host that downloads write, and that can be page-locked where it lies.
///
/// `Vec` and `Box<[T]>` of any allocator implement it. An owner of memory of another kind, such as a mapped file,
/// implements it by the address and the length of the memory that it owns:
///
/// ```
/// use aquifer::{Device, pinned::{HostBuffer, HostRead, Registered}};
/// use std::ptr::NonNull;
///
/// /// Pages of the system, which its drop gives back.
/// struct Pages {
///     start: NonNull<u8>,
///     bytes: usize,
/// }
/// # impl Pages {
/// #     fn map(bytes: usize) -> Self {
/// #         let start = Box::leak(vec![0_u8; bytes].into_boxed_slice());
/// #         Self { start: NonNull::from(start).cast(), bytes }
/// #     }
/// # }
/// # impl Drop for Pages {
/// #     fn drop(&mut self) {
/// #         let slice = NonNull::slice_from_raw_parts(self.start, self.bytes);
/// #         // SAFETY: the box that `map` leaked.
/// #         drop(unsafe { Box::from_raw(slice.as_ptr()) });
/// #     }
/// # }
///
/// // SAFETY: the pages are this value's alone, on whatever thread.
/// unsafe impl Send for Pages {}
///
/// // SAFETY: the pages stay mapped, in place and readable until the drop.
/// unsafe impl HostRead for Pages {
///     type Item = u8;
///
///     fn parts(&mut self) -> (NonNull<u8>, usize) {
///         (self.start, self.bytes)
///     }
/// }
///
/// // SAFETY: they are writable, too.
/// unsafe impl HostBuffer for Pages {}
///
/// let device = Device::detect_or_simulate()?;
/// let mut pages = Registered::new(&device, Pages::map(8192))?;
/// pages[0] = 7;
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// # Safety
///
/// [`parts`](HostRead::parts) is valid for writes, too, and nothing else reads or writes it while the owner lives.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no host memory that a download can own and write",
    note = "a slice that is borrowed goes by `Stream::scope`, or by `DeviceVec::copy_to_slice`"
)]
pub unsafe trait HostBuffer: HostRead {}

macro_rules! implement_host_buffer {
    ([$($generics:tt)*] $vec:ty, $boxed:ty) => {
        // SAFETY: a vector's elements lie in its allocation, which moving the vector leaves in
        // place; an allocator that is `'static` keeps its blocks while the vector lives.
        unsafe impl<T: DeviceCopy + Send, $($generics)*> HostRead for $vec {
            type Item = T;

            fn parts(&mut self) -> (NonNull<T>, usize) {
                (NonNull::from(self.as_mut_slice()).cast(), self.len())
            }
        }

        // SAFETY: a vector owns its elements.
        unsafe impl<T: DeviceCopy + Send, $($generics)*> HostBuffer for $vec {}

        // SAFETY: as for `Vec`.
        unsafe impl<T: DeviceCopy + Send, $($generics)*> HostRead for $boxed {
            type Item = T;

            fn parts(&mut self) -> (NonNull<T>, usize) {
                (NonNull::from(&mut **self).cast(), self.len())
            }
        }

        // SAFETY: as for `Vec`.
        unsafe impl<T: DeviceCopy + Send, $($generics)*> HostBuffer for $boxed {}
    };
}

#[cfg(not(aquifer_std_allocator))]
implement_host_buffer!([] Vec<T>, Box<[T]>);
#[cfg(aquifer_std_allocator)]
implement_host_buffer!([A: std::alloc::Allocator + Send + 'static] Vec<T, A>, Box<[T], A>);
implement_host_buffer!(
    [A: allocator_api2::alloc::Allocator + Send + 'static]
    allocator_api2::vec::Vec<T, A>,
    allocator_api2::boxed::Box<[T], A>
);

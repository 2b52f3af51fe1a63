//! Memory of the host that transfers own and only read.

use crate::driver::DeviceCopy;
use std::ptr::NonNull;

/// Memory on the host that an upload owns while the device reads it.
///
/// | source | |
/// | --- | --- |
/// | `Vec<T>`, `Box<[T]>` of any allocator, [`HostChunk`](super::HostChunk), [`Registered`](super::Registered) | owned, and a [`HostBuffer`](super::HostBuffer) too |
/// | `Arc<[T]>`, `Arc<Vec<T>>`, `Arc<Box<[T]>>` of any allocator, `Arc<HostChunk<B>>` | shared, and not copied |
/// | `&'static [T]` | a constant or a leaked slice |
/// | `bytes::Bytes` (feature `bytes`) | |
/// | `Buffer` and `ScalarBuffer<T>` of arrow (feature `arrow`) | columns of Arrow batches |
/// | `memmap2::Mmap`, `Arc<Mmap>` (feature `memmap2`) | a file |
///
/// Memory that is not page-locked is staged by the driver, as [`Stream::upload`](crate::Stream::upload) says.
/// [`Registered::read_only`](super::Registered::read_only) page-locks any of them where it lies.
///
/// ```
/// use aquifer::Device;
/// use std::sync::Arc;
///
/// let stream = Device::detect_or_simulate()?.new_stream()?;
/// let table: Arc<[u32]> = Arc::from([1, 2, 3]);
/// let upload = stream.upload_new(table.clone())?; // the copy has an owner of its own
/// assert_eq!(table[0], 1);                        // and others go on reading
/// let (_table, vec) = upload.wait()?;
/// assert_eq!(vec.to_vec()?, [1, 2, 3]);
/// let (_primes, vec) = stream.upload_new(&[2_u64, 3, 5][..])?.wait()?;
/// assert_eq!(vec.len(), 3);
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// A slice that is borrowed for less goes by [`Stream::scope`](crate::Stream::scope). This does not compile, since the
/// array ends before the copy does:
///
/// ```compile_fail
/// # let stream = aquifer::Device::detect_or_simulate().unwrap().new_stream().unwrap();
/// let local = [1_u32, 2, 3];
/// let upload = stream.upload_new(&local[..]);
/// ```
///
/// # Safety
///
/// - [`parts`](Self::parts) is valid for reads as a `[Item]`, and nothing writes it while the owner lives, unless through
///   the owner.
/// - It does not move or change in length while the owner is only moved (not otherwise used).
/// - It stays allocated until the owner is dropped.
/// - The owner is `'static`, since a borrowed slice may end before the device is done with it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no host memory that an upload can own",
    note = "a slice that is borrowed goes by `Stream::scope`, or by `DeviceVec::copy_from_slice`"
)]
pub unsafe trait HostRead: Send + 'static {
    /// The type of the elements.
    type Item: DeviceCopy + Send;

    /// Address and length, in elements.
    fn parts(&mut self) -> (NonNull<Self::Item>, usize);
}

/// The address and the length of a slice.
pub(super) fn parts_of<T>(slice: &[T]) -> (NonNull<T>, usize) {
    (NonNull::from(slice).cast(), slice.len())
}

// SAFETY: the slice lives as long as the program, and is only read while it is borrowed.
unsafe impl<T: DeviceCopy + Send + Sync> HostRead for &'static [T] {
    type Item = T;

    fn parts(&mut self) -> (NonNull<T>, usize) {
        parts_of(self)
    }
}

macro_rules! implement_for_arc {
    ($($(#[$attribute:meta])* [$($generics:tt)*] $owner:ty, $element:ty;)+) => {$(
        $(#[$attribute])*
        // SAFETY: the elements lie behind the `Arc`, which keeps them, and which moving leaves in place. While there are two
        // owners, all of them only read. With one, nobody else reads or writes.
        unsafe impl<$($generics)*> HostRead for $crate::sync::Arc<$owner> {
            type Item = $element;

            fn parts(&mut self) -> (std::ptr::NonNull<$element>, usize) {
                $crate::pinned::host_read::parts_of(&self[..])
            }
        }
    )+};
}

pub(super) use implement_for_arc;

implement_for_arc! {
    [T: DeviceCopy + Send + Sync] [T], T;
    [T: DeviceCopy + Send + Sync, A: allocator_api2::alloc::Allocator + Send + Sync + 'static]
        allocator_api2::vec::Vec<T, A>, T;
    [T: DeviceCopy + Send + Sync, A: allocator_api2::alloc::Allocator + Send + Sync + 'static]
        allocator_api2::boxed::Box<[T], A>, T;
}
#[cfg(not(aquifer_std_allocator))]
implement_for_arc! {
    [T: DeviceCopy + Send + Sync] Vec<T>, T;
    [T: DeviceCopy + Send + Sync] Box<[T]>, T;
}
#[cfg(aquifer_std_allocator)]
implement_for_arc! {
    [T: DeviceCopy + Send + Sync, A: std::alloc::Allocator + Send + Sync + 'static] Vec<T, A>, T;
    [T: DeviceCopy + Send + Sync, A: std::alloc::Allocator + Send + Sync + 'static] Box<[T], A>, T;
}

#[cfg(feature = "bytes")]
// SAFETY: bytes that are never written, which the handle keeps and which do not lie in it.
unsafe impl HostRead for bytes::Bytes {
    type Item = u8;

    fn parts(&mut self) -> (NonNull<u8>, usize) {
        parts_of(self)
    }
}

#[cfg(feature = "arrow")]
// SAFETY: bytes that are never written while there are handles, which keep them, and which do not lie in a handle.
unsafe impl HostRead for arrow_buffer::Buffer {
    type Item = u8;

    fn parts(&mut self) -> (NonNull<u8>, usize) {
        parts_of(self.as_slice())
    }
}

#[cfg(feature = "arrow")]
// SAFETY: as for `Buffer`, of which it is a typed view.
unsafe impl<T: arrow_buffer::ArrowNativeType + DeviceCopy> HostRead
    for arrow_buffer::ScalarBuffer<T>
{
    type Item = T;

    fn parts(&mut self) -> (NonNull<T>, usize) {
        parts_of(self)
    }
}

#[cfg(feature = "memmap2")]
// SAFETY: pages that the map keeps, and which moving it leaves in place. The maker of the map has promised that the
// file does not change.
unsafe impl HostRead for memmap2::Mmap {
    type Item = u8;

    fn parts(&mut self) -> (NonNull<u8>, usize) {
        parts_of(self)
    }
}

#[cfg(feature = "memmap2")]
implement_for_arc!(#[diagnostic::do_not_recommend] [] memmap2::Mmap, u8;);

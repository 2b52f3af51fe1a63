//! Buffers of the host that transfers own and that can be page-locked.

use bytemuck::Pod;
use std::ptr::NonNull;

/// Memory on the host that can be page-locked where it lies.
///
/// # Safety
///
/// [`parts`](Self::parts) is valid for reads and writes as a `[Item]`, does not move or change in
/// length while the owner is only moved (not otherwise used), and stays allocated until the owner
/// is dropped. It is `'static`: a borrowed slice may end before the device is done with it.
pub unsafe trait HostBuffer: Send + 'static {
    /// The type of the elements.
    type Item: Pod + Send;

    /// Address and length, in elements.
    fn parts(&mut self) -> (NonNull<Self::Item>, usize);
}

macro_rules! implement_host_buffer {
    ([$($generics:tt)*] $vec:ty, $boxed:ty) => {
        // SAFETY: a vector's elements lie in its allocation, which moving the vector leaves in
        // place; an allocator that is `'static` keeps its blocks while the vector lives.
        unsafe impl<T: Pod + Send, $($generics)*> HostBuffer for $vec {
            type Item = T;

            fn parts(&mut self) -> (NonNull<T>, usize) {
                (NonNull::from(self.as_mut_slice()).cast(), self.len())
            }
        }

        // SAFETY: as for `Vec`.
        unsafe impl<T: Pod + Send, $($generics)*> HostBuffer for $boxed {
            type Item = T;

            fn parts(&mut self) -> (NonNull<T>, usize) {
                (NonNull::from(&mut **self).cast(), self.len())
            }
        }
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

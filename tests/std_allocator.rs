//! The standard library's own `Allocator`, where the feature `std-allocator` has found it.

#![cfg_attr(aquifer_nightly, feature(allocator_api))]
#![cfg(feature = "std-allocator")]

#[path = "support/contract.rs"]
mod contract;
mod support;
#[path = "support/threads.rs"]
mod threads;

use allocator_api2::alloc::AllocError as OurError;
use aquifer::{
    DeviceVec, MappedAlloc, PinnedAlloc,
    mr::OnStream,
    nep49::DataAlloc,
    pinned::{PinnedResource, last_error},
};
use std::alloc::{Allocator, Layout};
use std::ptr::NonNull;

/// Lets the contract ask through the standard trait.
#[derive(Clone)]
struct Through<A>(A);

// SAFETY: forwards every method to an allocator.
unsafe impl<A: Allocator> allocator_api2::alloc::Allocator for Through<A> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, OurError> {
        self.0.allocate(layout).map_err(|_| OurError)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, OurError> {
        self.0.allocate_zeroed(layout).map_err(|_| OurError)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.0.deallocate(pointer, layout) }
    }

    unsafe fn grow(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, OurError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.grow(pointer, old, new) }.map_err(|_| OurError)
    }

    unsafe fn grow_zeroed(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, OurError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.grow_zeroed(pointer, old, new) }.map_err(|_| OurError)
    }

    unsafe fn shrink(
        &self,
        pointer: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, OurError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.shrink(pointer, old, new) }.map_err(|_| OurError)
    }
}

#[test]
fn the_process_wide_allocators_keep_the_contract_through_the_standard_trait() {
    // Without a GPU, of a simulated one.
    aquifer::Device::detect_or_simulate().unwrap();
    contract::check(|| Through(PinnedAlloc));
    contract::check(|| Through(MappedAlloc));
    contract::check(|| Through(DataAlloc::current()));
}

#[test]
fn resources_keep_the_contract_through_the_standard_trait() {
    let device = support::device();
    let pinned = PinnedResource::new(&device).unwrap();
    contract::check(|| Through(pinned.clone()));
    let on_stream = OnStream::new(pinned, &device.new_stream().unwrap()).unwrap();
    contract::check(|| Through(on_stream.clone()));
}

fn collections<A: Allocator + Clone + Send + 'static>(allocator: A) {
    let mut vec = Vec::new_in(allocator.clone());
    vec.extend(0..10_000_u32);
    vec.retain(|n| n % 2 == 0);
    vec.shrink_to_fit();
    let vec = std::thread::spawn(move || vec).join().unwrap();
    assert!(vec.iter().copied().eq((0..10_000).step_by(2)));
    let boxed: Box<dyn Fn() -> usize, A> = Box::new_in(move || vec.len(), allocator);
    assert_eq!(boxed(), 5000);
}

#[test]
fn collections_of_the_standard_library_live_in_page_locked_memory() {
    let device = support::device();
    let pinned = PinnedResource::new(&device).unwrap();
    collections(PinnedAlloc);
    collections(MappedAlloc);
    collections(pinned.clone());
    collections(OnStream::new(pinned, &device.new_stream().unwrap()).unwrap());
}

#[test]
fn a_standard_vector_in_pinned_memory_goes_over_and_back() {
    // Without a GPU, of a simulated one.
    aquifer::Device::detect_or_simulate().unwrap();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut host = Vec::new_in(PinnedAlloc);
    host.extend(0..1000_u32);
    let address = host.as_ptr();
    // SAFETY: written whole by the upload.
    let vec = unsafe { DeviceVec::<u32>::uninit(&stream, host.len()) }.unwrap();
    let (mut host, vec) = stream.upload(host, vec).unwrap().wait().unwrap();
    host.fill(0);
    let (host, _vec) = stream.download(vec, host).unwrap().wait().unwrap();
    assert_eq!((host.as_ptr(), host[999]), (address, 999));
    assert!(MappedAlloc::device_address(&host).is_ok());
}

#[test]
fn a_failure_has_its_reason_through_the_standard_trait() {
    // Without a GPU, of a simulated one.
    aquifer::Device::detect_or_simulate().unwrap();
    let mut vec: Vec<u8, PinnedAlloc> = Vec::new_in(PinnedAlloc);
    assert!(vec.try_reserve_exact(isize::MAX as usize).is_err());
    assert!(last_error().unwrap().to_string().contains("address space"));
}

//! Any host allocator behind one type.

use allocator_api2::alloc::Allocator;
use std::alloc::Layout;
use std::any::{TypeId, type_name};
use std::fmt;
use std::ptr::NonNull;

use crate::sync::Arc;

/// A handle on any allocator of host memory, chosen when the program runs: the heap, page-locked
/// memory, a pool of it. Clones are the same allocator.
///
/// Two are equal, so that each frees what the other allocated, if they are handles on one object,
/// or on values of one type that has no bytes, such as [`Global`](allocator_api2::alloc::Global)
/// and [`PinnedAlloc`](crate::PinnedAlloc). It costs a call through a pointer for each allocation.
///
/// RMM: `polymorphic_allocator` and `host_resource_ref`; the latter borrows what it stands for, and
/// nothing keeps that alive.
///
/// ```
/// use allocator_api2::alloc::Global;
/// use allocator_api2::vec::Vec;
/// use aquifer::{PinnedAlloc, PolymorphicHostAllocator};
///
/// fn numbers(pinned: bool) -> Vec<u32, PolymorphicHostAllocator> {
///     let allocator = if pinned {
///         PolymorphicHostAllocator::new(PinnedAlloc)
///     } else {
///         PolymorphicHostAllocator::new(Global)
///     };
///     let mut vec = Vec::new_in(allocator);
///     vec.extend(0..100);
///     vec
/// }
///
/// assert_eq!(numbers(true), numbers(false));
/// assert_ne!(numbers(true).allocator(), numbers(false).allocator());
/// assert_eq!(numbers(true).allocator(), numbers(true).allocator());
/// ```
#[derive(Clone)]
pub struct PolymorphicHostAllocator {
    allocator: Arc<dyn Erased>,
}

type Block = Option<NonNull<[u8]>>;

/// [`Allocator`] without its error, and what equality asks.
///
/// # Safety
///
/// As [`Allocator`], each method as the one of its name there.
unsafe trait Erased: Send + Sync {
    fn obtain(&self, layout: Layout) -> Block;

    fn obtain_zeroed(&self, layout: Layout) -> Block;

    /// # Safety
    ///
    /// As `Allocator::deallocate`.
    unsafe fn give_back(&self, pointer: NonNull<u8>, layout: Layout);

    /// # Safety
    ///
    /// As `Allocator::grow`.
    unsafe fn enlarge(&self, pointer: NonNull<u8>, old: Layout, new: Layout) -> Block;

    /// # Safety
    ///
    /// As `Allocator::grow_zeroed`.
    unsafe fn enlarge_zeroed(&self, pointer: NonNull<u8>, old: Layout, new: Layout) -> Block;

    /// # Safety
    ///
    /// As `Allocator::shrink`.
    unsafe fn reduce(&self, pointer: NonNull<u8>, old: Layout, new: Layout) -> Block;

    /// The type of an allocator that has no bytes: all its values are one.
    fn unit(&self) -> Option<TypeId>;

    fn name(&self) -> &'static str;
}

// SAFETY: each method is the allocator's own.
unsafe impl<A: Allocator + Send + Sync + 'static> Erased for A {
    fn obtain(&self, layout: Layout) -> Block {
        self.allocate(layout).ok()
    }

    fn obtain_zeroed(&self, layout: Layout) -> Block {
        self.allocate_zeroed(layout).ok()
    }

    unsafe fn give_back(&self, pointer: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.deallocate(pointer, layout) }
    }

    unsafe fn enlarge(&self, pointer: NonNull<u8>, old: Layout, new: Layout) -> Block {
        // SAFETY: the caller's promise.
        unsafe { self.grow(pointer, old, new) }.ok()
    }

    unsafe fn enlarge_zeroed(&self, pointer: NonNull<u8>, old: Layout, new: Layout) -> Block {
        // SAFETY: the caller's promise.
        unsafe { self.grow_zeroed(pointer, old, new) }.ok()
    }

    unsafe fn reduce(&self, pointer: NonNull<u8>, old: Layout, new: Layout) -> Block {
        // SAFETY: the caller's promise.
        unsafe { self.shrink(pointer, old, new) }.ok()
    }

    fn unit(&self) -> Option<TypeId> {
        (size_of::<A>() == 0).then(TypeId::of::<A>)
    }

    fn name(&self) -> &'static str {
        type_name::<A>()
    }
}

impl PolymorphicHostAllocator {
    /// `allocator`, whatever it is. A failure of a page-locked one is in
    /// [`last_error`](crate::last_error).
    pub fn new<A: Allocator + Send + Sync + 'static>(allocator: A) -> Self {
        Self { allocator: Arc::new(allocator) }
    }
}

impl PartialEq for PolymorphicHostAllocator {
    fn eq(&self, other: &Self) -> bool {
        let unit = self.allocator.unit();
        Arc::ptr_eq(&self.allocator, &other.allocator)
            || (unit.is_some() && unit == other.allocator.unit())
    }
}

impl Eq for PolymorphicHostAllocator {}

impl fmt::Debug for PolymorphicHostAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PolymorphicHostAllocator")
            .field(&format_args!("{}", self.allocator.name()))
            .finish()
    }
}

/// Implements an allocator trait, of the module `$api`, by the object behind.
macro_rules! forward {
    ($api:path) => {
        const _: () = {
            use $api as api;

            // SAFETY: each method is the one of the allocator behind, which lives as long as any
            // clone does.
            unsafe impl api::Allocator for PolymorphicHostAllocator {
                fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, api::AllocError> {
                    self.allocator.obtain(layout).ok_or(api::AllocError)
                }

                fn allocate_zeroed(
                    &self,
                    layout: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    self.allocator.obtain_zeroed(layout).ok_or(api::AllocError)
                }

                unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
                    // SAFETY: the caller's promise.
                    unsafe { self.allocator.give_back(pointer, layout) }
                }

                unsafe fn grow(
                    &self,
                    pointer: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: the caller's promise.
                    unsafe { self.allocator.enlarge(pointer, old, new) }.ok_or(api::AllocError)
                }

                unsafe fn grow_zeroed(
                    &self,
                    pointer: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: the caller's promise.
                    unsafe { self.allocator.enlarge_zeroed(pointer, old, new) }
                        .ok_or(api::AllocError)
                }

                unsafe fn shrink(
                    &self,
                    pointer: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: the caller's promise.
                    unsafe { self.allocator.reduce(pointer, old, new) }.ok_or(api::AllocError)
                }
            }
        };
    };
}

forward!(allocator_api2::alloc);
#[cfg(aquifer_std_allocator)]
forward!(std::alloc);

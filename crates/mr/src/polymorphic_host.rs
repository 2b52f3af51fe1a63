//! Any host allocator behind one type.

use crate::sync::Arc;
use allocator_api2::alloc::Allocator;
use std::alloc::Layout;
use std::any::{TypeId, type_name};
use std::fmt;
use std::ptr::NonNull;

/// A handle on any allocator of host memory, chosen when the program runs. The allocator may be the heap, page-locked
/// memory, or a pool of it. Clones are the same allocator.
///
/// Two are equal, so that each frees the blocks of the other, if they are handles on one object. They are equal as well
/// if they are on values of one type that has no bytes, such as
/// [`Global`](https://docs.rs/allocator-api2/0.2/allocator_api2/alloc/struct.Global.html) and
/// [`PinnedAlloc`](crate::PinnedAlloc). It costs a call through a pointer for each allocation.
///
/// RMM has `polymorphic_allocator` and `host_resource_ref`. The latter borrows its resource, which is not kept alive.
///
/// ```
/// use allocator_api2::alloc::Global;
/// use allocator_api2::vec::Vec;
/// use aquifer::{PinnedAlloc, pinned::PolymorphicHostAllocator};
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
    allocator: Arc<dyn ErasedAllocator>,
}

/// An allocator of a type that is not known here, with the facts that equality asks for.
trait ErasedAllocator: Allocator + Send + Sync {
    /// The type of an allocator that has no bytes, so that all its values are one.
    fn zero_sized_type_id(&self) -> Option<TypeId>;

    fn name(&self) -> &'static str;
}

impl<A: Allocator + Send + Sync + 'static> ErasedAllocator for A {
    fn zero_sized_type_id(&self) -> Option<TypeId> {
        (size_of::<A>() == 0).then(TypeId::of::<A>)
    }

    fn name(&self) -> &'static str {
        type_name::<A>()
    }
}

impl PolymorphicHostAllocator {
    /// A handle on `allocator`, whatever it is. A failure of a page-locked one is in
    /// [`last_error`](crate::pinned::last_error).
    pub fn new<A: Allocator + Send + Sync + 'static>(allocator: A) -> Self {
        Self { allocator: Arc::new(allocator) }
    }
}

impl PartialEq for PolymorphicHostAllocator {
    fn eq(&self, other: &Self) -> bool {
        let unit = self.allocator.zero_sized_type_id();
        Arc::ptr_eq(&self.allocator, &other.allocator)
            || (unit.is_some() && unit == other.allocator.zero_sized_type_id())
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

/// Methods of an allocator trait that take two layouts, by the allocator behind.
macro_rules! forward_resizes {
    ($api:ident, $($name:ident),+) => {$(
        unsafe fn $name(
            &self,
            pointer: NonNull<u8>,
            old: Layout,
            new: Layout,
        ) -> Result<NonNull<[u8]>, $api::AllocError> {
            // SAFETY: the caller's promise.
            unsafe { self.allocator.$name(pointer, old, new) }.map_err(|_| $api::AllocError)
        }
    )+};
}

/// Implements an allocator trait, of the module `$api`, by the allocator behind.
macro_rules! forward {
    ($api:path) => {
        const _: () = {
            use $api as api;

            // SAFETY: each method is the one of the allocator behind, which lives as long as any
            // clone does.
            unsafe impl api::Allocator for PolymorphicHostAllocator {
                fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, api::AllocError> {
                    self.allocator.allocate(layout).map_err(|_| api::AllocError)
                }

                fn allocate_zeroed(
                    &self,
                    layout: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    self.allocator.allocate_zeroed(layout).map_err(|_| api::AllocError)
                }

                unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
                    // SAFETY: the caller's promise.
                    unsafe { self.allocator.deallocate(pointer, layout) }
                }

                forward_resizes!(api, grow, grow_zeroed, shrink);
            }
        };
    };
}

forward!(allocator_api2::alloc);
#[cfg(feature = "std-allocator")]
forward!(std::alloc);

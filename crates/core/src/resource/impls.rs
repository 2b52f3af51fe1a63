//! Code that resources and adaptors repeat, beside the code of all layers ([`crate::impls`]).
//!
//! | macro | writes |
//! |---|---|
//! | `equal_by_identity!(X)` | `PartialEq` and `Eq`: values are equal if their identities are |
//! | `handle!(X { field, .. })` | the same, and `Clone`, of a handle on shared state |
//! | `adaptor!(X, state.upstream, field, ..)` | the same of `X<U>`, `upstream`, `Debug` |
//! | `forward!(device, ..)`, in `impl DeviceResource for X<U>` | the methods that it names |
//!
//! A generic type has its parameters before it, as in `handle!([U: DeviceResource] X<U> { state })`.

pub use crate::impls::{debug_struct, getters, setters};

/// Makes two values of a resource type equal if their identities are.
#[macro_export]
#[doc(hidden)]
macro_rules! equal_by_identity {
    ([$($generics:tt)*] $resource:ty) => {
        impl<$($generics)*> PartialEq for $resource {
            fn eq(&self, other: &Self) -> bool {
                self.identity() == other.identity()
            }
        }

        impl<$($generics)*> Eq for $resource {}
    };
    ($resource:ty) => {
        $crate::resource::impls::equal_by_identity!([] $resource);
    };
}

/// Makes a resource of all these fields a handle, whose clones are equal. The traits are not derived, since a parameter
/// may not be `Clone` or `Eq`.
#[macro_export]
#[doc(hidden)]
macro_rules! handle {
    ([$($generics:tt)*] $resource:ty { $($field:ident),+ }) => {
        impl<$($generics)*> Clone for $resource {
            fn clone(&self) -> Self {
                Self { $($field: self.$field.clone()),+ }
            }
        }

        $crate::resource::impls::equal_by_identity!([$($generics)*] $resource);
    };
}

/// Makes `X<U>` an adaptor, which is a handle with `upstream()`. `Debug` shows the
/// upstream and the named fields of the state.
#[macro_export]
#[doc(hidden)]
macro_rules! adaptor {
    ($adaptor:ident, $state:ident $(. $upstream:ident)? $(, $field:ident)*) => {
        $crate::resource::impls::handle!(
            [U: $crate::resource::DeviceResource] $adaptor<U> { $state }
        );

        impl<U> $adaptor<U> {
            /// The resource below.
            pub fn upstream(&self) -> &U {
                &self.$state $(. $upstream)?
            }
        }

        impl<U: std::fmt::Debug> std::fmt::Debug for $adaptor<U> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($adaptor))
                    .field("upstream", self.upstream())
                    $(.field(stringify!($field), &self.$state.$field))*
                    .finish()
            }
        }
    };
}

/// Methods of `DeviceResource`, by name. `identity` is that of the `Arc` in the field `state`, and others are as the
/// upstream has them. An adaptor that counts or checks frees leaves `frees_with_driver` at `false`, since memory that
/// the driver frees would pass it by.
#[macro_export]
#[doc(hidden)]
macro_rules! forward {
    (device) => {
        #[inline]
        fn device(&self) -> &$crate::device::Device {
            self.upstream().device()
        }
    };
    (identity) => {
        fn identity(&self) -> $crate::resource::ResourceId {
            let state = $crate::sync::Arc::as_ptr(&self.state);
            $crate::resource::ResourceId::of_state::<Self, _>(state)
        }
    };
    (peer_access) => {
        fn enable_peer_access(&self, peer: &$crate::device::Device) -> $crate::error::Result<()> {
            self.upstream().enable_peer_access(peer)
        }

        fn has_peer_access(&self, peer: &$crate::device::Device) -> bool {
            self.upstream().has_peer_access(peer)
        }
    };
    (frees_with_driver) => {
        fn frees_with_driver(&self, block: &$crate::resource::DeviceBlock) -> bool {
            self.upstream().frees_with_driver(block)
        }
    };
    (deallocate) => {
        #[inline]
        unsafe fn deallocate(
            &self,
            stream: &$crate::stream::Stream,
            block: $crate::resource::DeviceBlock,
        ) {
            // SAFETY: the block is the upstream's; the caller vouches for the rest.
            unsafe { self.upstream().deallocate(stream, block) }
        }
    };
    ($first:ident, $($rest:ident),+) => {
        $crate::resource::impls::forward!($first);
        $crate::resource::impls::forward!($($rest),+);
    };
}

pub use crate::{adaptor, equal_by_identity, forward, handle};

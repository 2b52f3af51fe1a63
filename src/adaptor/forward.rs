//! What the adaptors repeat: handles on one state, and the calls that reach the upstream unchanged.
//!
//! | macro | writes |
//! |---|---|
//! | `handle!(X, state)` | `Clone`, `PartialEq` and `Eq` of `X<T>`, by the `Arc` in its field `state` |
//! | `adaptor!(X, state.upstream, field, ..)` | the same, `upstream()`, `HostAccessible`, `Debug` |
//! | `forward!(device, ..)`, inside `impl DeviceResource for X<U>` | the methods that it names |

/// Makes `$adaptor` a handle: clones share the `Arc` in `$state`.
macro_rules! handle {
    ($adaptor:ident, $state:ident) => {
        impl<T> Clone for $adaptor<T> {
            fn clone(&self) -> Self {
                Self { $state: self.$state.clone() }
            }
        }

        /// Equal if they are handles on one state.
        impl<T> PartialEq for $adaptor<T> {
            fn eq(&self, other: &Self) -> bool {
                $crate::sync::Arc::ptr_eq(&self.$state, &other.$state)
            }
        }

        impl<T> Eq for $adaptor<T> {}

        impl<T> $adaptor<T> {
            fn resource_id(&self) -> $crate::resource::ResourceId {
                let state = $crate::sync::Arc::as_ptr(&self.$state);
                $crate::resource::ResourceId::of_state::<Self, _>(state)
            }
        }
    };
}

/// [`handle!`] of an adaptor that hands out its upstream's blocks as they are. `Debug` shows the
/// upstream and the fields of the state that are named.
macro_rules! adaptor {
    ($adaptor:ident, $state:ident $(. $upstream:ident)? $(, $field:ident)*) => {
        $crate::adaptor::forward::handle!($adaptor, $state);

        impl<U> $adaptor<U> {
            /// The resource below, from which the memory comes.
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

        // SAFETY: the blocks are the upstream's, unchanged, as the adaptor's `DeviceResource` vouches.
        unsafe impl<U: $crate::resource::HostAccessible> $crate::resource::HostAccessible
            for $adaptor<U>
        {
            fn host_pointer(
                &self,
                block: &$crate::resource::DeviceBlock,
            ) -> std::ptr::NonNull<u8> {
                self.upstream().host_pointer(block)
            }
        }
    };
}

/// Methods of `DeviceResource`, by name: `identity` of the handle, and others as the upstream has
/// them. An adaptor that counts or checks frees leaves `frees_with_driver` at `false`: memory that
/// the driver frees would pass it by.
macro_rules! forward {
    (device) => {
        fn device(&self) -> &$crate::device::Device {
            self.upstream().device()
        }
    };
    (identity) => {
        fn identity(&self) -> $crate::resource::ResourceId {
            self.resource_id()
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
        $crate::adaptor::forward::forward!($first);
        $crate::adaptor::forward::forward!($($rest),+);
    };
}

pub(super) use {adaptor, forward, handle};

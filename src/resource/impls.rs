//! What resources and adaptors repeat.
//!
//! | macro | writes |
//! |---|---|
//! | `setters! { field: Type; .. }`, in `impl XOptions` | methods that set a field and return the options |
//! | `getters! { field: Type; .. }`, in `impl X` | methods that return a copy of a field |
//! | `debug_struct!(X { field, method(), .. })` | `Debug`, of the fields and methods named |
//! | `equal_by_identity!(X)` | `PartialEq` and `Eq`: values are equal if their identities are |
//! | `handle!(X { field, .. })` | the same, and `Clone`, of a handle on shared state |
//! | `adaptor!(X, state.upstream, field, ..)` | the same of `X<U>`, `upstream`, `HostAccessible`, `Debug` |
//! | `forward!(device, ..)`, in `impl DeviceResource for X<U>` | the methods that it names |
//!
//! A generic type has its parameters before it: `handle!([U: DeviceResource] X<U> { state })`.

/// Makes a setter for each field named: it sets the field and returns the options. `=> Some` wraps the
/// value.
macro_rules! setters {
    ($($(#[$attribute:meta])* $field:ident: $value:ty $(=> $wrap:path)?;)+) => {
        $($(#[$attribute])*
        pub fn $field(mut self, $field: $value) -> Self {
            self.$field = $($wrap)?($field);
            self
        })+
    };
}

/// Makes a method for each field named, which returns a copy of it.
macro_rules! getters {
    ($($(#[$attribute:meta])* $field:ident: $value:ty;)+) => {
        $($(#[$attribute])*
        pub fn $field(&self) -> $value {
            self.$field
        })+
    };
}

/// Writes `Debug` for a type that cannot derive it. With `..` at the end there are fields that are not
/// shown.
macro_rules! debug_struct {
    ($name:ident $rest:tt) => {
        $crate::resource::impls::debug_struct!([] $name<> $rest);
    };
    ([$($generics:tt)*] $name:ident<$($parameter:ident)?> { $($shown:tt)+ }) => {
        impl<$($generics)*> std::fmt::Debug for $name<$($parameter)?> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut debug = f.debug_struct(stringify!($name));
                $crate::resource::impls::debug_struct!(@field self, debug, $($shown)+)
            }
        }
    };
    (@field $this:ident, $debug:ident, ..) => {
        $debug.finish_non_exhaustive()
    };
    (@field $this:ident, $debug:ident, $field:ident $(($($none:tt)*))? $(, $($rest:tt)+)?) => {{
        $debug.field(stringify!($field), &$this.$field $(($($none)*))?);
        $crate::resource::impls::debug_struct!(@field $this, $debug $(, $($rest)+)?)
    }};
    (@field $this:ident, $debug:ident) => {
        $debug.finish()
    };
}

/// Makes two values of a resource type equal if their identities are.
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

/// Makes a resource of all these fields a handle: clones are equal. Not derived, since a parameter may
/// be neither `Clone` nor `Eq`.
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

/// Makes `X<U>` an adaptor: a handle, `upstream()`, host addresses as the upstream's. `Debug` shows the
/// upstream and the fields of the state that are named.
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

/// Methods of `DeviceResource`, by name: `identity` of the `Arc` in the field `state`, and others as the
/// upstream has them. An adaptor that counts or checks frees leaves `frees_with_driver` at `false`:
/// memory that the driver frees would pass it by.
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

pub(crate) use {adaptor, debug_struct, equal_by_identity, forward, getters, handle, setters};

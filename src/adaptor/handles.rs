//! What all adaptors that are handles on a shared state have in common.

/// Clones share the field, an `Arc`; two are equal if they share it.
macro_rules! handles {
    ($(#[$equal:meta])* $adaptor:ident, $field:ident) => {
        impl<U> Clone for $adaptor<U> {
            fn clone(&self) -> Self {
                Self { $field: self.$field.clone() }
            }
        }

        $(#[$equal])*
        impl<U> PartialEq for $adaptor<U> {
            fn eq(&self, other: &Self) -> bool {
                $crate::sync::Arc::ptr_eq(&self.$field, &other.$field)
            }
        }

        impl<U> Eq for $adaptor<U> {}
    };
}

/// The method of `DeviceResource` that says the same.
macro_rules! identity_by {
    ($field:ident) => {
        fn identity(&self) -> $crate::resource::ResourceId {
            let state = $crate::sync::Arc::as_ptr(&self.$field);
            $crate::resource::ResourceId::of_state::<Self, _>(state)
        }
    };
}

pub(super) use {handles, identity_by};

//! What types of all layers repeat.
//!
//! | macro | writes |
//! |---|---|
//! | `setters! { field: Type; .. }`, in `impl XOptions` | methods that set a field and return the options |
//! | `getters! { field: Type; .. }`, in `impl X` | methods that return a copy of a field |
//! | `debug_struct!(X { field, method(), .. })` | `Debug`, of the fields and methods named |
//!
//! A generic type has its parameters before it: `debug_struct!([T] X<T> { field })`.

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
        $crate::impls::debug_struct!([] $name<> $rest);
    };
    ([$($generics:tt)*] $name:ident<$($parameter:ident)?> { $($shown:tt)+ }) => {
        impl<$($generics)*> std::fmt::Debug for $name<$($parameter)?> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut debug = f.debug_struct(stringify!($name));
                $crate::impls::debug_struct!(@field self, debug, $($shown)+)
            }
        }
    };
    (@field $this:ident, $debug:ident, ..) => {
        $debug.finish_non_exhaustive()
    };
    (@field $this:ident, $debug:ident, $field:ident $(($($none:tt)*))? $(, $($rest:tt)+)?) => {{
        $debug.field(stringify!($field), &$this.$field $(($($none)*))?);
        $crate::impls::debug_struct!(@field $this, $debug $(, $($rest)+)?)
    }};
    (@field $this:ident, $debug:ident) => {
        $debug.finish()
    };
}

pub(crate) use {debug_struct, getters, setters};

//! What types of all layers repeat.
//!
//! | macro | writes |
//! |---|---|
//! | `setters! { field: Type; .. }`, in `impl XOptions` | methods that set a field and return the options |
//! | `getters! { field: Type; .. }`, in `impl X` | methods that return a copy of a field |
//! | `debug_struct!(X { field, method(), .. })` | `Debug`, of the fields and methods named |
//!
//! And how numbers of things read, and what the environment says.
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

use std::ffi::OsString;
use std::fmt;

/// How many there are of a thing: `1 byte`, `2 bytes`.
pub(crate) struct Count<N>(pub(crate) N, pub(crate) &'static str);

impl<N: fmt::Display + PartialEq + From<u8>> fmt::Display for Count<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, noun) = self;
        write!(f, "{number} {noun}{}", if *number == N::from(1) { "" } else { "s" })
    }
}

/// A type's name without its modules and its parameters.
pub(crate) fn short_name(name: &str) -> &str {
    let path = name.split('<').next().unwrap_or(name);
    path.rsplit("::").next().unwrap_or(path)
}

/// What a variable of the environment says. One that is empty says nothing.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

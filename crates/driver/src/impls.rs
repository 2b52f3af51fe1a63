//! Macros and functions that types of all layers share.
//!
//! | macro | writes |
//! |---|---|
//! | `setters! { field: Type; .. }`, in `impl XOptions` | methods that set a field and return the options |
//! | `getters! { field: Type; .. }`, in `impl X` | methods that return a copy of a field |
//! | `debug_struct!(X { field, method(), .. })` | `Debug`, of the fields and methods named |
//!
//! Functions here say how numbers of things read, and what the environment says.
//!
//! A generic type has its parameters before it: `debug_struct!([T] X<T> { field })`.

/// Makes a setter for each field named, which sets the field and returns the options. `=> Some` wraps the value.
#[macro_export]
#[doc(hidden)]
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
#[macro_export]
#[doc(hidden)]
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
#[macro_export]
#[doc(hidden)]
macro_rules! debug_struct {
    ($name:ident $rest:tt) => {
        $crate::impls::debug_struct!([] $name<> $rest);
    };
    ([$($generics:tt)*] $name:ident<$($parameter:ident),*> { $($shown:tt)+ }) => {
        impl<$($generics)*> std::fmt::Debug for $name<$($parameter),*> {
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

pub use crate::{debug_struct, getters, setters};

pub use aquifer_events::variable;
use std::fmt;

/// The number of a thing with its noun, as `1 byte` and `2 bytes`.
#[derive(Debug)]
pub struct Count<N>(pub N, pub &'static str);

impl<N: fmt::Display + PartialEq + From<u8>> fmt::Display for Count<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, noun) = self;
        write!(f, "{number} {noun}{}", if *number == N::from(1) { "" } else { "s" })
    }
}

/// A path as it reads in an error. It is in quotes if it is empty or has control characters.
pub fn shown_path(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    let is_plain = !text.is_empty() && !text.contains(char::is_control);
    if is_plain { text } else { format!("{text:?}") }
}

/// A type's name without its modules and its parameters. That is the last part of its path, up to the parameters. A
/// part may be `<Type as Trait>`.
pub fn short_name(name: &str) -> &str {
    let (mut depth, mut start, mut end) = (0_usize, 0, name.len());
    for (index, byte) in name.bytes().enumerate() {
        match byte {
            b':' if depth == 0 => (start, end) = (index + 1, name.len()),
            b'<' => {
                if depth == 0 && index > start {
                    end = index;
                }
                depth += 1;
            }
            b'>' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    &name[start..end]
}

#[cfg(test)]
mod tests {
    use super::short_name;

    #[test]
    fn a_short_name_is_the_last_part_without_its_parameters() {
        for (name, short) in [
            ("aquifer::resource::PoolResource<aquifer::CudaResource>", "PoolResource"),
            ("f32", "f32"),
            ("<app::A as app::Trait>::method::Mine", "Mine"),
            ("<app::A<u8> as app::Trait<u8>>::method::Mine<app::B<u8>, app::C>", "Mine"),
            ("dyn app::Trait", "Trait"),
        ] {
            assert_eq!(short_name(name), short);
        }
    }
}

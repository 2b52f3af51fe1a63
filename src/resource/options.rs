//! The setters of options types.

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

pub(crate) use setters;

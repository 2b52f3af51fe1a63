//! Tables of the functions of a C library that is opened when the program runs.

/// Declares a library of C functions, each as `method = symbol(argument: type, ...);`. A function returns a number, which
/// is 0 for success.
///
/// The library stays open for the rest of the process. A function that it lacks is an error when it is called. Results are
/// numbers, so a code that no header knows yet is no undefined behaviour.
///
/// The crate gives the type two methods. `may_call(&self, name, Option<function>)` returns the function or an error, and
/// `failed(&self, name, code)` makes the error of a number.
#[doc(hidden)]
#[macro_export]
macro_rules! symbols {
    (
        $(#[$doc:meta])*
        $visibility:vis struct $library:ident: $error:ty;
        $($method:ident = $symbol:ident($($argument:ident: $kind:ty),* $(,)?);)*
    ) => {
        $(#[$doc])*
        $visibility struct $library {
            $($method: Option<unsafe extern "C" fn($($kind),*) -> u32>,)*
            $visibility handle: $crate::libloading::Library,
        }

        impl $library {
            /// The first library of these names that is installed.
            fn open(names: impl IntoIterator<Item = String>) -> Option<Self> {
                names.into_iter().find_map(|name| {
                    // SAFETY: the library's initialisers run, as in every program that uses it.
                    let handle = unsafe { $crate::libloading::Library::new(name) }.ok()?;
                    Some(Self {
                        $($method: {
                            // SAFETY: the type is that of this symbol in the library's header; the address
                            // stays valid because `handle` is never closed.
                            unsafe { handle.get(concat!(stringify!($symbol), "\0").as_bytes()) }
                                .ok()
                                .map(|symbol| *symbol)
                        },)*
                        handle,
                    })
                })
            }

            $(
                /// # Safety
                ///
                /// As the library's manual says of this function.
                #[allow(clippy::too_many_arguments, reason = "so the library has it")]
                #[inline]
                $visibility unsafe fn $method(&self, $($argument: $kind),*) -> Result<(), $error> {
                    const NAME: &str = stringify!($symbol);
                    let function = self.may_call(NAME, self.$method)?;
                    // SAFETY: the caller keeps the contract of this function.
                    match unsafe { function($($argument),*) } {
                        0 => Ok(()),
                        code => Err(self.failed(NAME, code)),
                    }
                }
            )*
        }
    };
}

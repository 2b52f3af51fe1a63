//! The one error type of the crate.

mod advice;
mod driver;
mod kind;

use crate::sync::Arc;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::panic::Location;

pub use advice::{FORKED_ADVICE, HOST_FUNCTION_ADVICE, SPLIT_ADVICE};
pub use aquifer_events::{catch_panic, catch_panic_text};

pub use driver::DriverError;
pub use kind::ErrorKind;

/// A result whose error is Aquifer's.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The crate's one error, which says what failed, why, and what to do about it.
///
/// [`kind`](Self::kind) is for programs and [`Display`](fmt::Display) for people. `Display` writes one sentence that
/// says what was asked and what was there. Another says what to do, where there is something to do.
/// [`driver`](Self::driver) names the driver call and its number where one failed. Where a
/// `StackTextError` is the source, the text and a caret stand between the sentences.
///
/// ```
/// use aquifer::{DeviceLayout, ErrorKind};
///
/// let error = DeviceLayout::with_alignment(64, 3).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidArgument);
/// assert!(error.to_string().contains("not a power of two"));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Error {
    repr: Box<Repr>,
}

#[derive(Clone)]
struct Repr {
    kind: ErrorKind,
    message: String,
    advice: Cow<'static, str>,
    driver: Option<DriverError>,
    /// The error behind this one, where that is no driver call.
    cause: Option<Arc<dyn StdError + Send + Sync>>,
    /// The place in the source where the error was made.
    at: &'static Location<'static>,
}

/// Returns an [`Error`] from the function unless `$condition` holds. The other arguments are its kind, what the reader
/// can do about it, and the message.
#[macro_export]
#[doc(hidden)]
macro_rules! ensure {
    ($condition:expr, $kind:ident, $advice:expr, $($message:tt)+) => {
        if !$condition {
            let error = $crate::error::Error::new($crate::error::ErrorKind::$kind, format!($($message)+));
            return Err(error.with_advice($advice));
        }
    };
}
pub use crate::ensure;

impl Error {
    /// An error of your own, for a `DeviceResource` or a kernel's host form. It has a kind,
    /// and one sentence that says what was asked and what was there.
    ///
    /// ```
    /// use aquifer::{Error, ErrorKind};
    ///
    /// let full = Error::new(ErrorKind::OutOfMemory, "64 bytes were asked, where 10 are left");
    /// assert_eq!(full.kind(), ErrorKind::OutOfMemory);
    /// ```
    #[track_caller]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::of(kind, message.into(), "", None)
    }

    #[track_caller]
    fn of(
        kind: ErrorKind,
        message: String,
        advice: &'static str,
        driver: Option<DriverError>,
    ) -> Self {
        let (advice, at) = (advice.into(), Location::caller());
        let cause = None;
        Self { repr: Box::new(Repr { kind, message, advice, driver, cause, at }) }
    }

    /// A failed driver call, and what the caller wanted of it.
    #[track_caller]
    #[doc(hidden)]
    pub fn driver_call(wanted: impl Into<String>, driver: DriverError) -> Self {
        Self::of(driver.kind(), wanted.into(), advice::advice(&driver), Some(driver))
    }

    /// Says what to do about the error. The advice is a clause without a full stop, and replaces former
    /// advice.
    ///
    /// ```
    /// use aquifer::{Error, ErrorKind};
    ///
    /// let full = Error::new(ErrorKind::OutOfMemory, "64 bytes were asked, where 10 are left")
    ///     .with_advice("drop a buffer");
    /// assert_eq!(full.to_string(), "64 bytes were asked, where 10 are left (drop a buffer)");
    /// ```
    #[must_use]
    pub fn with_advice(mut self, advice: impl Into<Cow<'static, str>>) -> Self {
        self.repr.advice = advice.into();
        self
    }

    /// The sentence that says what was asked and what was there, without the advice and the driver's
    /// call.
    #[doc(hidden)]
    pub fn message(&self) -> &str {
        &self.repr.message
    }

    /// Names the driver's call behind the error.
    #[doc(hidden)]
    pub fn with_driver(mut self, driver: DriverError) -> Self {
        self.repr.driver = Some(driver);
        self
    }

    /// Names the error behind this one, for [`source`](StdError::source). It may be one of another library, which a
    /// callback met. A driver call stays the source.
    ///
    /// ```
    /// use aquifer::{Error, ErrorKind};
    /// use std::error::Error as _;
    ///
    /// let cause = "nine".parse::<u32>().unwrap_err();
    /// let error = Error::new(ErrorKind::Unsupported, "no such allocator").with_cause(cause);
    /// assert!(error.source().unwrap().is::<std::num::ParseIntError>());
    /// ```
    pub fn with_cause(mut self, cause: impl StdError + Send + Sync + 'static) -> Self {
        self.repr.cause = Some(Arc::new(cause));
        self
    }

    /// Puts before the message what it is a part of.
    #[doc(hidden)]
    pub fn within(mut self, whole: impl fmt::Display) -> Self {
        self.repr.message = format!("{whole}: {}", self.repr.message);
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.repr.kind
    }

    /// The advice on what to do, if the error has one.
    pub fn advice(&self) -> Option<&str> {
        Some(&*self.repr.advice).filter(|advice| !advice.is_empty())
    }

    /// The driver call behind it, its number and its name, where there is one.
    pub fn driver(&self) -> Option<&DriverError> {
        self.repr.driver.as_ref()
    }
}

/// The kind and the sentences of [`Display`](fmt::Display), which `main`, `unwrap` and `expect` print. `{:#?}` shows
/// the parts by name, and where in the source the error was made.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { kind, message, advice, driver, at, .. } = &*self.repr;
        if !f.alternate() {
            return write!(f, "{kind:?}: {self}");
        }
        f.debug_struct("Error")
            .field("kind", kind)
            .field("message", message)
            .field("advice", advice)
            .field("driver", driver)
            .field("at", &format_args!("{at}"))
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repr.message)?;
        if let Some(driver) = &self.repr.driver {
            write!(f, ": {driver}")?;
        }
        if !self.repr.advice.is_empty() {
            write!(f, " ({})", self.repr.advice)?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let Repr { driver, cause, .. } = &*self.repr;
        match driver {
            Some(driver) => Some(driver),
            None => cause.as_deref().map(|cause| cause as &(dyn StdError + 'static)),
        }
    }
}

/// Implements the traits of an error that gives a value back with its [`Error`]. Its text and source are those of the
/// `Error`. `Debug` says whether the value is there, and shows nothing of it, since it may be a whole buffer.
#[macro_export]
#[doc(hidden)]
macro_rules! error_with_value {
    ([$($generics:tt)*] $name:ident<$parameter:ident>, $there:expr, $gone:expr, |$this:ident| $is_there:expr) => {
        impl<$($generics)*> std::fmt::Debug for $name<$parameter> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let ($this, error) = (self, &self.error);
                if f.alternate() {
                    let mut shown = f.debug_struct(stringify!($name));
                    return shown.field("error", error).field("gives_back", &$is_there).finish();
                }
                write!(f, "{error:?}; {}", if $is_there { $there } else { $gone })
            }
        }

        impl<$($generics)*> std::fmt::Display for $name<$parameter> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.error, f)
            }
        }

        impl<$($generics)*> std::error::Error for $name<$parameter> {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                self.error.source()
            }
        }

        impl<$($generics)*> From<$name<$parameter>> for $crate::error::Error {
            fn from(failed: $name<$parameter>) -> Self {
                failed.error
            }
        }
    };
}
pub use crate::error_with_value;

/// The refusal of a call that consumes a value, with the reason and the value.
///
/// `?` turns it into the [`Error`] alone, and drops the value.
pub struct Refused<V> {
    /// The reason.
    pub error: Error,
    /// The value.
    pub value: V,
}

impl<V> Refused<V> {
    #[doc(hidden)]
    pub fn new(error: Error, value: V) -> Self {
        Self { error, value }
    }
}

error_with_value!([V] Refused<V>, "the error has the value", "", |_refused| true);

#[cfg(test)]
mod tests;

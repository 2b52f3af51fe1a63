//! The one error type of the crate, and the driver's codes by name.

mod catch;

use crate::impls::debug_struct;
use crate::sync::Arc;
use std::error::Error as StdError;
use std::fmt;

pub(crate) use catch::{catch_panic, catch_panic_text};

/// A result whose error is Aquifer's.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an [`Error`]. More kinds may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No CUDA driver is installed, or the crate was built without the `cuda` feature.
    NoDriver,
    /// A driver is there, the device that was asked for is not.
    NoDevice,
    /// The driver is too old: it lacks a function that this call needs.
    MissingSymbol,
    /// The device, the host or a configured limit has no room for the request.
    OutOfMemory,
    /// An argument can never be right: an alignment that is no power of two, a size that overflows.
    InvalidArgument,
    /// An index or a range lies outside a vector.
    OutOfBounds,
    /// Two buffers of a copy differ in length, or a cast leaves a remainder.
    LengthMismatch,
    /// A stream, a vector or a resource belongs to another device than the call.
    WrongDevice,
    /// The device or the backend cannot do this.
    Unsupported,
    /// The stream is in capture, where this call would invalidate the graph; or the capture was
    /// invalidated before, and there is no graph.
    Capture,
    /// The context or the driver is gone or broken; everything on this device fails from here on.
    ContextLost,
    /// The process was forked after the driver was opened; the child cannot use it.
    Forked,
    /// The simulated device saw an access that no stream order allows. The source is the
    /// [`Report`](crate::sim::Report).
    Simulation,
    /// A resource that serves one call at a time was called from inside of its own call.
    Reentered,
    /// An environment variable holds a value that means nothing.
    Environment,
    /// A file, or another place that a log goes to, could not be written.
    Io,
    /// Any other failure of a driver call; [`Error::driver`] has its number.
    Driver,
}

/// A failed driver call: its name, the number it returned, and for the simulated device the report
/// behind it.
#[derive(Clone)]
pub struct DriverError {
    call: &'static str,
    code: u32,
    detail: Option<Arc<dyn StdError + Send + Sync>>,
    /// The driver's own text: a compiler's log.
    log: Option<Arc<str>>,
}

/// Declares the driver's codes: a constant of [`DriverError`] for each, and [`known`].
macro_rules! driver_codes {
    ($($name:ident = $code:literal: $kind:ident;)*) => {
        #[allow(dead_code, reason = "the crate asks for some of the codes that it can name")]
        impl DriverError {
            $(pub(crate) const $name: u32 = $code;)*
        }

        /// The name of a code in `cuda.h`, and the kind of its error.
        fn known(code: u32) -> Option<(&'static str, ErrorKind)> {
            match code {
                $($code => Some((concat!("CUDA_ERROR_", stringify!($name)), ErrorKind::$kind)),)*
                _ => None,
            }
        }
    };
}

driver_codes! {
    INVALID_VALUE = 1: Driver;
    OUT_OF_MEMORY = 2: OutOfMemory;
    NOT_INITIALIZED = 3: ContextLost;
    DEINITIALIZED = 4: ContextLost;
    STUB_LIBRARY = 34: NoDriver;
    DEVICE_UNAVAILABLE = 46: Driver;
    NO_DEVICE = 100: NoDevice;
    INVALID_DEVICE = 101: NoDevice;
    INVALID_IMAGE = 200: Driver;
    INVALID_CONTEXT = 201: Driver;
    ALREADY_MAPPED = 208: Driver;
    NO_BINARY_FOR_GPU = 209: Driver;
    INVALID_PTX = 218: Driver;
    UNSUPPORTED_PTX_VERSION = 222: Driver;
    OPERATING_SYSTEM = 304: Driver;
    INVALID_HANDLE = 400: Driver;
    ILLEGAL_STATE = 401: Driver;
    NOT_FOUND = 500: Driver;
    NOT_READY = 600: Driver;
    LAUNCH_OUT_OF_RESOURCES = 701: Driver;
    HOST_MEMORY_ALREADY_REGISTERED = 712: Driver;
    HOST_MEMORY_NOT_REGISTERED = 713: Driver;
    NOT_PERMITTED = 800: Driver;
    NOT_SUPPORTED = 801: Unsupported;
    SYSTEM_NOT_READY = 802: Driver;
    SYSTEM_DRIVER_MISMATCH = 803: Driver;
    UNKNOWN = 999: Driver;

    // By the manual the context cannot be used after these: uncorrectable memory and link errors, a
    // kernel that ran too long, asserted or faulted.
    ECC_UNCORRECTABLE = 214: ContextLost;
    NVLINK_UNCORRECTABLE = 220: ContextLost;
    CONTAINED = 226: ContextLost;
    ILLEGAL_ADDRESS = 700: ContextLost;
    LAUNCH_TIMEOUT = 702: ContextLost;
    CONTEXT_IS_DESTROYED = 709: ContextLost;
    ASSERT = 710: ContextLost;
    HARDWARE_STACK_ERROR = 714: ContextLost;
    ILLEGAL_INSTRUCTION = 715: ContextLost;
    MISALIGNED_ADDRESS = 716: ContextLost;
    INVALID_ADDRESS_SPACE = 717: ContextLost;
    INVALID_PC = 718: ContextLost;
    LAUNCH_FAILED = 719: ContextLost;
    TENSOR_MEMORY_LEAK = 721: ContextLost;

    STREAM_CAPTURE_UNSUPPORTED = 900: Capture;
    STREAM_CAPTURE_INVALIDATED = 901: Capture;
    STREAM_CAPTURE_MERGE = 902: Capture;
    STREAM_CAPTURE_UNMATCHED = 903: Capture;
    STREAM_CAPTURE_UNJOINED = 904: Capture;
    STREAM_CAPTURE_ISOLATION = 905: Capture;
    STREAM_CAPTURE_IMPLICIT = 906: Capture;
    CAPTURED_EVENT = 907: Capture;
    STREAM_CAPTURE_WRONG_THREAD = 908: Capture;
}

impl DriverError {
    /// This crate's, above every number of the driver: the library has no such function.
    pub(crate) const MISSING_SYMBOL: u32 = 1_000_001;
    /// This crate's: the process is a fork of the one that opened the driver.
    pub(crate) const FORKED: u32 = 1_000_002;

    pub(crate) fn new(call: &'static str, code: u32) -> Self {
        Self { call, code, detail: None, log: None }
    }

    pub(crate) fn with_detail(
        call: &'static str,
        code: u32,
        detail: Arc<dyn StdError + Send + Sync>,
    ) -> Self {
        Self { call, code, detail: Some(detail), log: None }
    }

    /// Adds the driver's own text.
    #[cfg(feature = "cuda")]
    pub(crate) fn with_log(mut self, log: &str) -> Self {
        self.log = Some(log.into());
        self
    }

    /// The driver function that failed, such as `cuMemAlloc_v2`.
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// The `CUresult` that it returned.
    pub fn code(&self) -> u32 {
        self.code
    }

    /// The name of [`code`](Self::code) in `cuda.h`, or `"an error without a name here"`. A table
    /// of this crate: asking the driver for the name would need a driver.
    pub fn name(&self) -> &'static str {
        match self.code {
            Self::MISSING_SYMBOL => "the driver has no such function",
            Self::FORKED => "the process was forked after the driver was opened",
            code => known(code).map_or("an error without a name here", |known| known.0),
        }
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        match self.code {
            _ if self.detail.is_some() => ErrorKind::Simulation,
            Self::MISSING_SYMBOL => ErrorKind::MissingSymbol,
            Self::FORKED => ErrorKind::Forked,
            code => known(code).map_or(ErrorKind::Driver, |known| known.1),
        }
    }

    /// Whether the driver, the context or the process that owned them is gone, so that there is
    /// nothing left to free.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(
            self.code,
            Self::NOT_INITIALIZED | Self::DEINITIALIZED | Self::CONTEXT_IS_DESTROYED | Self::FORKED
        )
    }
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DriverError");
        shown.field("call", &self.call).field("code", &self.code).field("name", &self.name());
        if let Some(detail) = &self.detail {
            shown.field("detail", &format_args!("{detail}"));
        }
        shown.finish()
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code;
        match &self.detail {
            Some(detail) => write!(f, "{}: {detail}", self.call),
            None if code < Self::MISSING_SYMBOL => {
                write!(f, "{} returned {code}, {}", self.call, self.name())
            }
            None => write!(f, "{}: {}", self.call, self.name()),
        }?;
        match &self.log {
            Some(log) => write!(f, ": {log}"),
            None => Ok(()),
        }
    }
}

impl StdError for DriverError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.detail.as_deref().map(|detail| detail as &(dyn StdError + 'static))
    }
}

/// The crate's one error: what failed, why, and what to do about it.
///
/// [`kind`](Self::kind) is for programs, [`Display`](fmt::Display) for people: one sentence that
/// says what was asked and what was there, and often one that says what to do.
/// [`driver`](Self::driver) names the driver call and its number where one failed.
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
    advice: &'static str,
    driver: Option<DriverError>,
}

/// Returns an [`Error`] from the function unless `$condition` holds: its kind, what the reader can do
/// about it, and the message.
macro_rules! ensure {
    ($condition:expr, $kind:ident, $advice:expr, $($message:tt)+) => {
        if !$condition {
            let error = $crate::error::Error::new($crate::error::ErrorKind::$kind, format!($($message)+));
            return Err(error.advise($advice));
        }
    };
}
pub(crate) use ensure;

impl Error {
    /// An error of your own, for a [`DeviceResource`](crate::DeviceResource) or a kernel's host form:
    /// its kind, and one sentence that says what was asked and what was there.
    ///
    /// ```
    /// use aquifer::{Error, ErrorKind};
    ///
    /// let full = Error::new(ErrorKind::OutOfMemory, "64 bytes were asked, where 10 are left");
    /// assert_eq!(full.kind(), ErrorKind::OutOfMemory);
    /// ```
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { repr: Box::new(Repr { kind, message: message.into(), advice: "", driver: None }) }
    }

    /// A failed driver call, and what the caller wanted of it.
    pub(crate) fn driver_call(wanted: impl Into<String>, driver: DriverError) -> Self {
        let advice = match driver.kind() {
            ErrorKind::OutOfMemory => "free memory, ask for less, or use a device with more of it",
            ErrorKind::MissingSymbol => "install a newer CUDA driver",
            ErrorKind::Forked => "start the child with exec, or open the device after the fork",
            ErrorKind::ContextLost => {
                "the context is broken; restart the process, and look for a kernel that faults"
            }
            _ => "",
        };
        let kind = driver.kind();
        Self { repr: Box::new(Repr { kind, message: wanted.into(), advice, driver: Some(driver) }) }
    }

    /// Adds advice: a clause without a full stop.
    pub(crate) fn advise(mut self, advice: &'static str) -> Self {
        self.repr.advice = advice;
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.repr.kind
    }

    /// The driver call behind it, its number and its name, where there is one.
    pub fn driver(&self) -> Option<&DriverError> {
        self.repr.driver.as_ref()
    }
}

impl From<DriverError> for Error {
    fn from(driver: DriverError) -> Self {
        Self::driver_call("a driver call failed", driver)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.repr.kind)
            .field("message", &self.repr.message)
            .field("driver", &self.repr.driver)
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
        self.repr.driver.as_ref().map(|driver| driver as &(dyn StdError + 'static))
    }
}

/// A call that consumes a value was refused: why, and the value.
///
/// `?` turns it into the [`Error`] alone, and drops the value.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<V> {
    /// Why it was refused.
    #[source]
    pub error: Error,
    /// The value.
    pub value: V,
}

impl<V> Refused<V> {
    pub(crate) fn new(error: Error, value: V) -> Self {
        Self { error, value }
    }
}

debug_struct!([V] Refused<V> { error, .. });

impl<V> From<Refused<V>> for Error {
    fn from(refused: Refused<V>) -> Self {
        refused.error
    }
}

#[cfg(test)]
mod tests;

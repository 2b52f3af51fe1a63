//! The one error type of the crate, and the driver's codes by name.

use crate::sync::Arc;
use std::error::Error as StdError;
use std::fmt;

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

impl DriverError {
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const NOT_INITIALIZED: u32 = 3;
    pub(crate) const DEINITIALIZED: u32 = 4;
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const INVALID_DEVICE: u32 = 101;

    pub(crate) const INVALID_HANDLE: u32 = 400;
    pub(crate) const ILLEGAL_STATE: u32 = 401;

    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
    pub(crate) const CONTEXT_IS_DESTROYED: u32 = 709;
    pub(crate) const LAUNCH_FAILED: u32 = 719;
    pub(crate) const NOT_SUPPORTED: u32 = 801;
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: u32 = 900;
    pub(crate) const STREAM_CAPTURE_INVALIDATED: u32 = 901;
    pub(crate) const STREAM_CAPTURE_UNMATCHED: u32 = 903;
    pub(crate) const STREAM_CAPTURE_UNJOINED: u32 = 904;
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
            1 => "CUDA_ERROR_INVALID_VALUE",
            2 => "CUDA_ERROR_OUT_OF_MEMORY",
            3 => "CUDA_ERROR_NOT_INITIALIZED",
            4 => "CUDA_ERROR_DEINITIALIZED",
            34 => "CUDA_ERROR_STUB_LIBRARY",
            46 => "CUDA_ERROR_DEVICE_UNAVAILABLE",
            100 => "CUDA_ERROR_NO_DEVICE",
            101 => "CUDA_ERROR_INVALID_DEVICE",
            200 => "CUDA_ERROR_INVALID_IMAGE",
            201 => "CUDA_ERROR_INVALID_CONTEXT",
            208 => "CUDA_ERROR_ALREADY_MAPPED",
            209 => "CUDA_ERROR_NO_BINARY_FOR_GPU",
            214 => "CUDA_ERROR_ECC_UNCORRECTABLE",
            218 => "CUDA_ERROR_INVALID_PTX",
            220 => "CUDA_ERROR_NVLINK_UNCORRECTABLE",
            222 => "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            226 => "CUDA_ERROR_CONTAINED",
            304 => "CUDA_ERROR_OPERATING_SYSTEM",
            400 => "CUDA_ERROR_INVALID_HANDLE",
            401 => "CUDA_ERROR_ILLEGAL_STATE",
            500 => "CUDA_ERROR_NOT_FOUND",
            600 => "CUDA_ERROR_NOT_READY",
            700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
            701 => "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
            702 => "CUDA_ERROR_LAUNCH_TIMEOUT",
            709 => "CUDA_ERROR_CONTEXT_IS_DESTROYED",
            710 => "CUDA_ERROR_ASSERT",
            712 => "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
            713 => "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
            714 => "CUDA_ERROR_HARDWARE_STACK_ERROR",
            715 => "CUDA_ERROR_ILLEGAL_INSTRUCTION",
            716 => "CUDA_ERROR_MISALIGNED_ADDRESS",
            717 => "CUDA_ERROR_INVALID_ADDRESS_SPACE",
            718 => "CUDA_ERROR_INVALID_PC",
            719 => "CUDA_ERROR_LAUNCH_FAILED",
            721 => "CUDA_ERROR_TENSOR_MEMORY_LEAK",
            800 => "CUDA_ERROR_NOT_PERMITTED",
            801 => "CUDA_ERROR_NOT_SUPPORTED",
            802 => "CUDA_ERROR_SYSTEM_NOT_READY",
            803 => "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            900 => "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            901 => "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            902 => "CUDA_ERROR_STREAM_CAPTURE_MERGE",
            903 => "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
            904 => "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
            905 => "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
            906 => "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
            907 => "CUDA_ERROR_CAPTURED_EVENT",
            908 => "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
            999 => "CUDA_ERROR_UNKNOWN",
            Self::MISSING_SYMBOL => "the driver has no such function",
            Self::FORKED => "the process was forked after the driver was opened",
            _ => "an error without a name here",
        }
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        match self.code {
            _ if self.detail.is_some() => ErrorKind::Simulation,
            Self::OUT_OF_MEMORY => ErrorKind::OutOfMemory,
            Self::NO_DEVICE | Self::INVALID_DEVICE => ErrorKind::NoDevice,
            34 => ErrorKind::NoDriver,
            Self::NOT_SUPPORTED => ErrorKind::Unsupported,
            Self::MISSING_SYMBOL => ErrorKind::MissingSymbol,
            Self::FORKED => ErrorKind::Forked,
            900..=908 => ErrorKind::Capture,
            Self::NOT_INITIALIZED
            | Self::DEINITIALIZED
            | Self::ILLEGAL_ADDRESS
            | Self::CONTEXT_IS_DESTROYED
            // By the manual the context cannot be used after these: uncorrectable
            // memory and link errors, a kernel that ran too long, asserted or faulted.
            | 214
            | 220
            | 226
            | 702
            | 710
            | 714..=719
            | 721 => ErrorKind::ContextLost,
            _ => ErrorKind::Driver,
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
        match &self.detail {
            Some(detail) => Some(&**detail),
            None => None,
        }
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

impl<V> fmt::Debug for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<V> From<Refused<V>> for Error {
    fn from(refused: Refused<V>) -> Self {
        refused.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_the_call_its_number_and_advice() {
        let error = Error::driver_call(
            "allocating 4096 bytes",
            DriverError::new("cuMemAlloc_v2", DriverError::OUT_OF_MEMORY),
        );
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        let driver = error.driver().unwrap();
        assert_eq!((driver.call(), driver.code()), ("cuMemAlloc_v2", 2));
        assert_eq!(
            error.to_string(),
            "allocating 4096 bytes: cuMemAlloc_v2 returned 2, CUDA_ERROR_OUT_OF_MEMORY \
             (free memory, ask for less, or use a device with more of it)"
        );
        assert!(error.source().is_some());
    }

    #[test]
    fn context_loss_is_told_from_other_errors() {
        for code in [3, 4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721] {
            let error = DriverError::new("cuStreamSynchronize", code);
            assert_eq!(error.kind(), ErrorKind::ContextLost, "{error}");
        }
        for code in [1, 2, 201, 400, 500, 600, 701, 712, 713, 801, 900, 901, 907, 999] {
            let error = DriverError::new("cuStreamSynchronize", code);
            assert_ne!(error.kind(), ErrorKind::ContextLost, "{error}");
        }
    }

    #[test]
    fn codes_without_a_name_still_print() {
        let text = DriverError::new("cuFuture", 998).to_string();
        assert_eq!(text, "cuFuture returned 998, an error without a name here");
    }
}

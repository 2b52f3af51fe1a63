//! A failed call of the driver, and its codes by name.

use super::kind::ErrorKind;
use crate::sync::Arc;
use aquifer_ptx::CubinError;
use std::error::Error as StdError;
use std::fmt;

/// A failed driver call. It has a name and the number that it returned. On the simulated device it may also have the
/// report behind it.
#[derive(Clone)]
pub struct DriverError {
    call: &'static str,
    code: u32,
    detail: Option<Arc<dyn StdError + Send + Sync>>,
    /// The call failed for `detail`, which is an earlier failure and not the call's own. The code says
    /// the kind.
    is_cause: bool,
    /// The driver's own text, such as a compiler's log.
    log: Option<Arc<str>>,
}

/// Declares the driver's codes, with a constant of [`DriverError`] for each, and [`known`].
macro_rules! driver_codes {
    ($($name:ident = $code:literal: $kind:ident;)*) => {
        #[allow(dead_code, reason = "the crate asks for some of the codes that it can name")]
        impl DriverError {
            $(#[doc(hidden)]
            #[allow(missing_docs)]
            pub const $name: u32 = $code;)*
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
    PEER_ACCESS_UNSUPPORTED = 217: Unsupported;
    UNSUPPORTED_PTX_VERSION = 222: Driver;
    OPERATING_SYSTEM = 304: Driver;
    INVALID_HANDLE = 400: Driver;
    ILLEGAL_STATE = 401: Driver;
    NOT_FOUND = 500: Driver;
    NOT_READY = 600: Driver;
    LAUNCH_OUT_OF_RESOURCES = 701: Driver;
    PEER_ACCESS_ALREADY_ENABLED = 704: Driver;
    TOO_MANY_PEERS = 711: Driver;
    HOST_MEMORY_ALREADY_REGISTERED = 712: Driver;
    HOST_MEMORY_NOT_REGISTERED = 713: Driver;
    NOT_PERMITTED = 800: NotPermitted;
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
    /// This crate's own code for a function that the library lacks. It is above every number of the
    /// driver.
    #[doc(hidden)]
    pub const MISSING_SYMBOL: u32 = 1_000_001;
    /// This crate's own code for a process that is a fork of the one that opened the driver.
    #[doc(hidden)]
    pub const FORKED: u32 = 1_000_002;

    /// Whether the driver refuses a pool, or memory of one, since that was not made to be shared. The code is that of a
    /// wrong argument or of what is not supported.
    #[doc(hidden)]
    pub fn is_not_shareable(&self) -> bool {
        matches!(self.code, Self::INVALID_VALUE | Self::NOT_SUPPORTED)
    }

    #[doc(hidden)]
    pub fn new(call: &'static str, code: u32) -> Self {
        Self { call, code, detail: None, is_cause: false, log: None }
    }

    #[doc(hidden)]
    pub fn with_detail(
        call: &'static str,
        code: u32,
        detail: Arc<dyn StdError + Send + Sync>,
    ) -> Self {
        Self { detail: Some(detail), ..Self::new(call, code) }
    }

    /// A call that failed for what happened before it, which is its source. The code says the kind.
    #[doc(hidden)]
    pub fn with_cause(
        call: &'static str,
        code: u32,
        cause: Arc<dyn StdError + Send + Sync>,
    ) -> Self {
        Self { detail: Some(cause), is_cause: true, ..Self::new(call, code) }
    }

    /// Adds the driver's own text.
    #[doc(hidden)]
    pub fn with_log(mut self, log: &str) -> Self {
        self.log = Some(log.into());
        self
    }

    pub(super) fn log(&self) -> Option<&str> {
        self.log.as_deref()
    }

    /// The driver function that failed, by its name in CUDA's manual. That is `cuMemAlloc`, and not the library's
    /// symbol `cuMemAlloc_v2`. The simulated device names itself where a GPU makes no call of one name.
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// The `CUresult` that the call returned.
    pub fn code(&self) -> u32 {
        self.code
    }

    /// The name of [`code`](Self::code) in `cuda.h`, or a text that says that there is none here. It is
    /// from a table of this crate, since asking the driver for the name would need a driver.
    pub fn name(&self) -> &'static str {
        match self.code {
            Self::MISSING_SYMBOL => "the driver has no such function",
            Self::FORKED => "the process was forked after a device was opened",
            code => known(code)
                .map_or("a number without a name here, see CUresult in cuda.h", |known| known.0),
        }
    }

    /// Whether the call failed for what happened before it, which is its source.
    pub(super) fn is_consequence(&self) -> bool {
        self.is_cause
    }

    #[doc(hidden)]
    pub fn kind(&self) -> ErrorKind {
        match self.code {
            _ if self.detail.is_some() && !self.is_cause => ErrorKind::Simulation,
            Self::MISSING_SYMBOL => ErrorKind::MissingSymbol,
            Self::FORKED => ErrorKind::Forked,
            code => known(code).map_or(ErrorKind::Driver, |known| known.1),
        }
    }

    /// Whether the driver, the context or the process that owned them is gone, so that there is
    /// nothing left to free.
    #[doc(hidden)]
    pub fn is_gone(&self) -> bool {
        matches!(
            self.code,
            Self::NOT_INITIALIZED | Self::DEINITIALIZED | Self::CONTEXT_IS_DESTROYED | Self::FORKED
        )
    }
}

/// The text of [`Display`](fmt::Display). `{:#?}` shows the parts by name.
impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        let mut shown = f.debug_struct("DriverError");
        shown.field("call", &self.call).field("code", &self.code).field("name", &self.name());
        if let Some(detail) = &self.detail {
            shown.field("detail", &format_args!("{detail}"));
        }
        if let Some(log) = &self.log {
            shown.field("log", log);
        }
        shown.finish()
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code;
        match &self.detail {
            Some(detail) if !self.is_cause => write!(f, "{detail}"),
            Some(cause) => {
                write!(f, "{} returned {code}, {}, after: {cause}", self.call, self.name())
            }
            None if !matches!(code, Self::MISSING_SYMBOL | Self::FORKED) => {
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

/// The error of the driver's call that refuses such an image.
impl From<CubinError> for DriverError {
    fn from(error: CubinError) -> Self {
        let refused = match error {
            CubinError::NotCubin | CubinError::Malformed => {
                Self::new("cuModuleLoadDataEx", Self::INVALID_IMAGE)
            }
            CubinError::NoEntry(_) => Self::new("cuModuleGetFunction", Self::NOT_FOUND),
        };
        refused.with_log(&error.to_string())
    }
}

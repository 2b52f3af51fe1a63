//! What a call returns: a code, and the message of the thread's last error.

use aquifer_rs::{Error, ErrorKind};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a call returns. More codes may come; each but `AQUIFER_OK` has a message in `last_error`.
#[allow(non_camel_case_types, reason = "a name of C")]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum aquifer_status {
    /// Done.
    AQUIFER_OK = 0,
    /// An argument can never be right, or a pointer for a result is null.
    AQUIFER_ERROR_INVALID_ARGUMENT = 1,
    /// The device, the host or a limit has no room.
    AQUIFER_ERROR_OUT_OF_MEMORY = 2,
    /// The device, the resource or this build cannot do this.
    AQUIFER_ERROR_UNSUPPORTED = 3,
    /// No driver, or no such device.
    AQUIFER_ERROR_NO_DEVICE = 4,
    /// A stream or a pointer belongs to another device.
    AQUIFER_ERROR_WRONG_DEVICE = 5,
    /// A pointer or a handle that this library did not give out, or gave out for something else.
    AQUIFER_ERROR_NOT_OURS = 6,
    /// A block that was freed before.
    AQUIFER_ERROR_FREED_BEFORE = 7,
    /// A stack or a stream that was released or closed.
    AQUIFER_ERROR_CLOSED = 8,
    /// The stream is in capture, where this call would cost the graph.
    AQUIFER_ERROR_CAPTURE = 9,
    /// The context is lost: everything on this device fails from here on.
    AQUIFER_ERROR_CONTEXT_LOST = 10,
    /// The process was forked after a device was opened.
    AQUIFER_ERROR_FORKED = 11,
    /// The simulated device found an access that no order of streams allows.
    AQUIFER_ERROR_SIMULATION = 12,
    /// An environment variable holds a value that means nothing.
    AQUIFER_ERROR_ENVIRONMENT = 13,
    /// A file could not be written.
    AQUIFER_ERROR_IO = 14,
    /// Any other failure of a call of the driver.
    AQUIFER_ERROR_DRIVER = 15,
    /// A bug of this library: it panicked, and went no further.
    AQUIFER_ERROR_PANIC = 16,
    /// The stack of this memory sleeps.
    AQUIFER_ERROR_ASLEEP = 17,
}

use aquifer_status as Status;

impl Status {
    pub(crate) fn name(self) -> &'static std::ffi::CStr {
        match self {
            Self::AQUIFER_OK => c"AQUIFER_OK",
            Self::AQUIFER_ERROR_INVALID_ARGUMENT => c"AQUIFER_ERROR_INVALID_ARGUMENT",
            Self::AQUIFER_ERROR_OUT_OF_MEMORY => c"AQUIFER_ERROR_OUT_OF_MEMORY",
            Self::AQUIFER_ERROR_UNSUPPORTED => c"AQUIFER_ERROR_UNSUPPORTED",
            Self::AQUIFER_ERROR_NO_DEVICE => c"AQUIFER_ERROR_NO_DEVICE",
            Self::AQUIFER_ERROR_WRONG_DEVICE => c"AQUIFER_ERROR_WRONG_DEVICE",
            Self::AQUIFER_ERROR_NOT_OURS => c"AQUIFER_ERROR_NOT_OURS",
            Self::AQUIFER_ERROR_FREED_BEFORE => c"AQUIFER_ERROR_FREED_BEFORE",
            Self::AQUIFER_ERROR_CLOSED => c"AQUIFER_ERROR_CLOSED",
            Self::AQUIFER_ERROR_CAPTURE => c"AQUIFER_ERROR_CAPTURE",
            Self::AQUIFER_ERROR_CONTEXT_LOST => c"AQUIFER_ERROR_CONTEXT_LOST",
            Self::AQUIFER_ERROR_FORKED => c"AQUIFER_ERROR_FORKED",
            Self::AQUIFER_ERROR_SIMULATION => c"AQUIFER_ERROR_SIMULATION",
            Self::AQUIFER_ERROR_ENVIRONMENT => c"AQUIFER_ERROR_ENVIRONMENT",
            Self::AQUIFER_ERROR_IO => c"AQUIFER_ERROR_IO",
            Self::AQUIFER_ERROR_DRIVER => c"AQUIFER_ERROR_DRIVER",
            Self::AQUIFER_ERROR_PANIC => c"AQUIFER_ERROR_PANIC",
            Self::AQUIFER_ERROR_ASLEEP => c"AQUIFER_ERROR_ASLEEP",
        }
    }

    fn of_kind(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::OutOfMemory => Self::AQUIFER_ERROR_OUT_OF_MEMORY,
            ErrorKind::Unsupported | ErrorKind::MissingSymbol | ErrorKind::Reentered => {
                Self::AQUIFER_ERROR_UNSUPPORTED
            }
            ErrorKind::NoDriver | ErrorKind::NoDevice => Self::AQUIFER_ERROR_NO_DEVICE,
            ErrorKind::WrongDevice => Self::AQUIFER_ERROR_WRONG_DEVICE,
            ErrorKind::Capture => Self::AQUIFER_ERROR_CAPTURE,
            ErrorKind::ContextLost => Self::AQUIFER_ERROR_CONTEXT_LOST,
            ErrorKind::Forked => Self::AQUIFER_ERROR_FORKED,
            ErrorKind::Simulation => Self::AQUIFER_ERROR_SIMULATION,
            ErrorKind::Environment => Self::AQUIFER_ERROR_ENVIRONMENT,
            ErrorKind::Io => Self::AQUIFER_ERROR_IO,
            ErrorKind::Asleep => Self::AQUIFER_ERROR_ASLEEP,
            ErrorKind::InvalidArgument | ErrorKind::OutOfBounds | ErrorKind::LengthMismatch => {
                Self::AQUIFER_ERROR_INVALID_ARGUMENT
            }
            _ => Self::AQUIFER_ERROR_DRIVER,
        }
    }
}

/// A call that failed.
#[derive(Debug)]
pub struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
    /// What a call of Rust failed of.
    error: Option<Box<Error>>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// What C gets of it.
    pub fn status(&self) -> Status {
        self.status
    }

    /// What was asked, what was there, and what to do.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The error of the crate, with its source.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_deref()
    }

    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), error: None }
    }

    /// A pointer for a result that is null.
    pub(crate) fn null(what: &str) -> Self {
        let message = format!("{what} is null (give the address of a variable)");
        Self::new(Status::AQUIFER_ERROR_INVALID_ARGUMENT, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let made = Self::new(Status::of_kind(error.kind()), error.to_string());
        Self { error: Some(Box::new(error)), ..made }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Remembers a failure as the thread's last one.
#[cold]
pub(crate) fn remember(failure: Failure) -> Status {
    let message = failure.message.replace('\0', "\\0");
    // A thread that ends may have dropped its own.
    let _ = LAST.try_with(|last| {
        if let (Ok(mut last), Ok(message)) = (last.try_borrow_mut(), CString::new(message)) {
            *last = message;
        }
    });
    failure.status
}

/// The thread's last message, until its next failure.
pub(crate) fn last_error() -> *const c_char {
    LAST.try_with(|last| last.try_borrow().map(|last| last.as_ptr()).ok())
        .ok()
        .flatten()
        .unwrap_or(c"the thread is ending".as_ptr())
}

/// Runs a call: what it returns, and no panic, leaves the library.
#[inline]
pub(crate) fn guard(call: impl FnOnce() -> Result<()>) -> Status {
    match guarded(call) {
        Ok(()) => Status::AQUIFER_OK,
        Err(failure) => remember(failure),
    }
}

/// As [`guard`], with a value.
#[inline]
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| Err(panicked(&payload)))
}

#[cold]
fn panicked(payload: &Box<dyn std::any::Any + Send>) -> Failure {
    let text = payload.downcast_ref::<&str>().map(|text| String::from(*text));
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| String::from("it threw no text"));
    let message = format!("aquifer panicked, which is a bug of it: {text}");
    Failure::new(Status::AQUIFER_ERROR_PANIC, message)
}

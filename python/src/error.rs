//! Exceptions.

use crate::interpreter::try_attach;
use aquifer_capi::aquifer_status as Status;
use aquifer_capi::embedded::{self, Failure};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use std::error::Error as _;

pyo3::create_exception!(
    aquifer,
    Error,
    PyRuntimeError,
    "A call failed for what is not the caller's argument and not memory: of the driver, the device or the process.

>>> import aquifer
>>> try:
...     aquifer.device_name(1000)
... except aquifer.Error:
...     print('there is no such device')
there is no such device"
);
pyo3::create_exception!(
    aquifer,
    OutOfMemoryError,
    PyMemoryError,
    "The device, the host or a limit has no room. A MemoryError, as the standard library's and RMM's are.

>>> import aquifer
>>> try:
...     aquifer.DeviceBuffer(size=2**60)
... except MemoryError as error:
...     print(type(error).__name__)
OutOfMemoryError"
);

/// An allocation that a driver refused for another reason than room: an [`Error`] that is a `MemoryError` as well, since RMM
/// has no other for a failed allocation.
pub(crate) fn allocation_error(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.get_or_try_init(py, || {
        let bases = (py.get_type::<Error>(), py.get_type::<PyMemoryError>());
        let document = "The driver refused an allocation, for another reason than room. A MemoryError, as RMM's is.

>>> import aquifer
>>> issubclass(aquifer.AllocationError, aquifer.Error), issubclass(aquifer.AllocationError, MemoryError)
(True, True)";
        let members = PyDict::new(py);
        members.set_item("__module__", "aquifer")?;
        members.set_item("__doc__", document)?;
        let made = py.get_type::<PyType>().call1(("AllocationError", bases, members))?;
        Ok::<_, PyErr>(made.cast_into::<PyType>()?.unbind())
    })?;
    Ok(class.bind(py))
}

/// As `?` makes exceptions of errors.
pub(crate) struct Raised(PyErr);

pub(crate) type Result<T> = std::result::Result<T, Raised>;

impl Raised {
    /// Of an allocation.
    pub(crate) fn of_allocation(failure: impl Into<Failure>) -> Self {
        let failure = failure.into();
        if let Some(raised) = failure.error().and_then(python_cause) {
            return Self(raised);
        }
        match failure.status() {
            // A size that no memory has. RMM's is a MemoryError, too.
            Status::AQUIFER_ERROR_INVALID_ARGUMENT => {
                Self(OutOfMemoryError::new_err(failure.message().to_owned()))
            }
            Status::AQUIFER_ERROR_DRIVER => {
                let made = try_attach(|py| {
                    let class = allocation_error(py)?;
                    Ok(PyErr::from_type(class.clone(), failure.message().to_owned()))
                });
                made.map_or_else(|| failure.into(), |made| Self(made.unwrap_or_else(|error| error)))
            }
            _ => failure.into(),
        }
    }
}

impl From<PyErr> for Raised {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}

impl From<Raised> for PyErr {
    fn from(raised: Raised) -> Self {
        raised.0
    }
}

/// Advice of the crate that names a call of Rust, and the same for Python.
const ADVICE: [(&str, &str); 2] = [
    ("Device::detect_or_simulate", "aquifer.simulate()"),
    ("give LoggingAdaptor::builder a path", "name it, as in logging(FILE)"),
];

impl From<Failure> for Raised {
    fn from(failure: Failure) -> Self {
        if let Some(raised) = failure.error().and_then(python_cause) {
            return Self(raised);
        }
        let mut message = failure.message().to_owned();
        for (rust, python) in ADVICE {
            message = message.replace(rust, python);
        }
        if failure.status() == Status::AQUIFER_ERROR_SIMULATION {
            add_other_reports(&mut message);
        }
        Self(match failure.status() {
            Status::AQUIFER_ERROR_OUT_OF_MEMORY => OutOfMemoryError::new_err(message),
            Status::AQUIFER_ERROR_INVALID_ARGUMENT
            | Status::AQUIFER_ERROR_NOT_OURS
            | Status::AQUIFER_ERROR_FREED_BEFORE
            | Status::AQUIFER_ERROR_WRONG_DEVICE => PyValueError::new_err(message),
            _ => Error::new_err(message),
        })
    }
}

impl From<aquifer_rs::Error> for Raised {
    fn from(error: aquifer_rs::Error) -> Self {
        Failure::from(error).into()
    }
}

/// Takes the reports of the simulated device, so that each is told once and not by every later call. The message has the
/// first.
fn add_other_reports(message: &mut String) {
    let simulator = embedded::device(0).ok().and_then(|device| device.simulator());
    for report in simulator.iter().flat_map(|it| it.take_reports()).skip(1) {
        message.push_str(&format!("\n{report}"));
    }
}

/// The exception of a callback, if an error came of one.
pub(crate) fn python_cause(error: &aquifer_rs::Error) -> Option<PyErr> {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(raised) = cause.downcast_ref::<PyErr>() {
            return try_attach(|py| raised.clone_ref(py));
        }
        source = cause.source();
    }
    None
}

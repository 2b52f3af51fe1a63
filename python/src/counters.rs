//! The counters of a resource, as objects of Python.

use crate::error::{Raised, Result};
use crate::interpreter::guard_thread;
use aquifer_rs::mr::{Counters, StatisticsAdaptor};
use aquifer_rs::{DeviceResource, ErrorKind};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use std::sync::Arc;

/// As RMM's `Statistics` has them: bytes and counts, current, peak and total.
pub(crate) type CounterValues = (i64, i64, i64, i64, i64, i64);

type Statistics = StatisticsAdaptor<Arc<dyn DeviceResource>>;

fn values(counters: Counters) -> CounterValues {
    let Counters { bytes, allocations, .. } = counters;
    (
        bytes.current,
        allocations.current,
        bytes.peak,
        allocations.peak,
        bytes.total,
        allocations.total,
    )
}

/// Of the innermost scope, or of all calls.
pub(crate) fn read(statistics: &Statistics) -> CounterValues {
    values(statistics.shared_scope_counters().unwrap_or_else(|| statistics.counters()))
}

/// Opens a scope: the counters of what is around it.
pub(crate) fn push(statistics: &Statistics) -> Result<CounterValues> {
    Ok(values(statistics.push_shared_counters()?))
}

/// Ends the innermost scope: its counters.
pub(crate) fn pop(statistics: &Statistics) -> Result<CounterValues> {
    match statistics.pop_shared_counters() {
        Ok(counters) => Ok(values(counters)),
        // The crate's text has a name that is not Python's.
        Err(error) if error.kind() == ErrorKind::OutOfBounds => {
            Err(PyIndexError::new_err("cannot pop the last counter pair (push_counters opens one)")
                .into())
        }
        Err(error) => Err(Raised::from(error)),
    }
}

/// An object of `aquifer.statistics.Statistics`.
pub(crate) fn object(py: Python<'_>, values: CounterValues) -> PyResult<Bound<'_, PyAny>> {
    guard_thread();
    py.import("aquifer._statistics")?.getattr("Statistics")?.call1(values)
}

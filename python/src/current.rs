//! The current resource of each device, from which buffers and hosts allocate unless they are told otherwise.

use crate::device::{current_ordinal, device};
use crate::error::Result;
use crate::resource::DeviceMemoryResource;
use aquifer_capi::embedded::OwnStack;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::LazyLock;

static CURRENT: LazyLock<Mutex<HashMap<i32, Py<DeviceMemoryResource>>>> =
    LazyLock::new(Mutex::default);

/// The current resource of a device: what was set, or what `AQUIFER_STACK` describes, or a pool.
pub(crate) fn current(py: Python<'_>, ordinal: i32) -> Result<Py<DeviceMemoryResource>> {
    if let Some(known) = CURRENT.lock().get(&ordinal) {
        return Ok(known.clone_ref(py));
    }
    device(py, ordinal)?;
    let stack = py.detach(|| OwnStack::default_of(ordinal))?;
    let made = Py::new(py, DeviceMemoryResource::of(stack))?;
    Ok(CURRENT.lock().entry(ordinal).or_insert(made).clone_ref(py))
}

/// The current resource of a device, by default the current one.
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn get_per_device_resource(
    py: Python<'_>,
    device: Option<i32>,
) -> PyResult<Py<DeviceMemoryResource>> {
    Ok(current(py, device.unwrap_or_else(current_ordinal))?)
}

/// Sets the current resource of a device, by default the current one, for buffers and for all hosts. What was allocated
/// before stays valid, and goes back to where it came from.
#[pyfunction]
#[pyo3(signature = (device, mr))]
pub(crate) fn set_per_device_resource(
    py: Python<'_>,
    device: Option<i32>,
    mr: &Bound<'_, DeviceMemoryResource>,
) -> PyResult<()> {
    let built = mr.get().built()?;
    let ordinal = device.unwrap_or_else(current_ordinal);
    if built.ordinal() != ordinal {
        let message = format!(
            "a resource of device {} was set for device {ordinal} (make it while that device is current)",
            built.ordinal()
        );
        return Err(PyValueError::new_err(message));
    }
    py.detach(|| -> Result<()> { Ok(built.stack()?.set_default()?) })?;
    let before = CURRENT.lock().insert(ordinal, mr.clone().unbind());
    // Not under the lock: the drop may run code of Python.
    drop(before);
    Ok(())
}

/// The devices whose resource was set or asked for.
#[pyfunction]
pub(crate) fn _devices_with_resource() -> Vec<i32> {
    CURRENT.lock().keys().copied().collect()
}

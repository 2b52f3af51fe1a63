//! The current resource of each device, from which buffers and hosts allocate unless they are told otherwise.

use crate::device::{current_ordinal, device};
use crate::error::Result;
use crate::interpreter::{argument, detach, guard_thread};
use crate::resource::DeviceMemoryResource;
use aquifer_capi::embedded::OwnStack;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::LazyLock;

static CURRENT: LazyLock<Mutex<HashMap<i32, Py<DeviceMemoryResource>>>> =
    LazyLock::new(Mutex::default);

/// Held while a stack becomes the process's own and its object the current one, or is asked for. Taken detached.
static SETTING: Mutex<()> = Mutex::new(());

/// The current resource of a device: what was set, or what `AQUIFER_STACK` describes, or a pool.
pub(crate) fn current(py: Python<'_>, ordinal: i32) -> Result<Py<DeviceMemoryResource>> {
    if let Some(known) = CURRENT.lock().get(&ordinal) {
        return Ok(known.clone_ref(py));
    }
    device(py, ordinal)?;
    let stack = detach(py, || {
        let _setting = SETTING.lock();
        OwnStack::default_of(ordinal)
    })?;
    let made = Py::new(py, DeviceMemoryResource::of(stack))?;
    let mut current = CURRENT.lock();
    if let Some(known) = current.get(&ordinal) {
        let known = known.clone_ref(py);
        drop(current);
        // Not under the lock: the drop runs detached, and another thread may ask for the lock then.
        drop(made);
        return Ok(known);
    }
    current.insert(ordinal, made.clone_ref(py));
    Ok(made)
}

/// The current resource of a device: what was set, or what ``AQUIFER_STACK`` describes, or a pool.
///
/// :param device: the number of the device. None is the current one.
/// :raises ValueError: for a negative number, and for a wrong text in ``AQUIFER_STACK``.
/// :raises aquifer.Error: for a device that is not there.
///
/// >>> import aquifer
/// >>> aquifer.mr.get_per_device_resource(0).device
/// 0
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn get_per_device_resource(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] device: Option<i32>,
) -> PyResult<Py<DeviceMemoryResource>> {
    Ok(current(py, device.unwrap_or_else(current_ordinal))?)
}

/// Sets the current resource of a device, for buffers and for the libraries whose allocators are set. What was allocated
/// before stays valid, and goes back to where it came from.
///
/// :param device: the number of the device. None is the current one.
/// :param mr: the resource. It was made on that device.
/// :raises TypeError: for what is no resource.
/// :raises ValueError: for a resource of another device.
/// :raises aquifer.Error: in the child of a fork.
///
/// >>> import aquifer
/// >>> pool = aquifer.mr.PoolMemoryResource(aquifer.mr.CudaMemoryResource())
/// >>> aquifer.mr.set_per_device_resource(0, pool)
/// >>> aquifer.mr.get_per_device_resource(0) is pool
/// True
#[pyfunction]
#[pyo3(signature = (device, mr))]
pub(crate) fn set_per_device_resource(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] device: Option<i32>,
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
    // An error in the child of a fork, where another thread may have had the lock.
    self::device(py, ordinal)?;
    let object = mr.clone().unbind();
    let set = detach(py, || -> Result<_> {
        let _setting = SETTING.lock();
        built.stack()?.set_default()?;
        Ok(CURRENT.lock().insert(ordinal, object))
    });
    // Not under the locks: the drop may run code of Python.
    drop(set?);
    Ok(())
}

/// The devices whose resource was set or asked for.
#[pyfunction]
pub(crate) fn _devices_with_resource() -> Vec<i32> {
    guard_thread();
    CURRENT.lock().keys().copied().collect()
}

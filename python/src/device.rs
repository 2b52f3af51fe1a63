//! Devices by their numbers, and the calling thread's current one.

use crate::error::{Raised, Result};
use crate::interpreter::{argument, detach};
use aquifer_capi::{aquifer_status as Status, embedded};
use aquifer_rs::Device;
use aquifer_rs::cudarc::driver::result::ctx;
use pyo3::prelude::*;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;

/// A device by its number.
pub(crate) fn device(py: Python<'_>, ordinal: i32) -> Result<Device> {
    // It may make a context, which takes a while.
    detach(py, || embedded::device(ordinal)).map_err(Raised::from)
}

thread_local! {
    /// The thread has a context that is current, or was given one.
    static HAS_CONTEXT: Cell<bool> = const { Cell::new(false) };
}

/// Leaves the context of device 0 current on a thread that has none, as CUDA's runtime does: a library that calls the driver
/// after this package finds the device ready.
pub(crate) fn leave_context(device: &Device) {
    if HAS_CONTEXT.get() || device.ordinal() != 0 || CHOSEN.get().is_some() {
        return;
    }
    HAS_CONTEXT.set(true);
    let Ok(context) = device.cuda_context() else { return };
    if let Ok(None) = ctx::get_current() {
        // SAFETY: the primary context, which the process keeps.
        let _ = unsafe { ctx::set_current(context.cu_ctx()) };
    }
}

type CtxGetDevice = unsafe extern "C" fn(*mut c_int) -> c_int;

/// `cuCtxGetDevice`, where there are several devices to tell apart.
fn ctx_get_device() -> Option<CtxGetDevice> {
    static FOUND: OnceLock<Option<CtxGetDevice>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if Device::count().unwrap_or(0) < 2 {
            return None;
        }
        // SAFETY: the driver, which the process has loaded when there are devices.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }.ok()?;
        // SAFETY: the type is that of this function: CUdevice is an int.
        let found = *unsafe { library.get::<CtxGetDevice>(b"cuCtxGetDevice\0") }.ok()?;
        // It stays loaded: the function is called later.
        std::mem::forget(library);
        Some(found)
    })
}

thread_local! {
    /// The device that the thread has chosen here, whatever context is current.
    static CHOSEN: Cell<Option<i32>> = const { Cell::new(None) };
}

/// The number of the device that the calling thread has chosen, or whose context is current on it. 0 without either.
pub(crate) fn current_ordinal() -> i32 {
    if let Some(chosen) = CHOSEN.get() {
        return chosen;
    }
    let Some(get) = ctx_get_device() else { return 0 };
    let mut ordinal = 0;
    // SAFETY: a place for a number. Without a context it returns a code, and leaves the place.
    match unsafe { get(&raw mut ordinal) } {
        0 => ordinal,
        _ => 0,
    }
}

/// How many devices there are: 1 where that is the simulated one, 0 without a GPU.
///
/// :raises aquifer.Error: where the driver fails.
///
/// >>> import aquifer
/// >>> aquifer.device_count() >= 1
/// True
#[pyfunction]
pub(crate) fn device_count(py: Python<'_>) -> PyResult<usize> {
    match detach(py, || embedded::device(0)) {
        Ok(device) if device.simulator().is_some() => return Ok(1),
        // No GPU is no error here.
        Err(failure) if failure.status() != Status::AQUIFER_ERROR_NO_DEVICE => {
            return Err(Raised::from(failure).into());
        }
        _ => {}
    }
    Ok(Device::count().map_err(Raised::from)?)
}

/// The number of the calling thread's current device: 0 unless a library has chosen another.
///
/// >>> import aquifer
/// >>> aquifer.current_device()
/// 0
#[pyfunction]
pub(crate) fn current_device() -> i32 {
    current_ordinal()
}

/// A device's name.
///
/// :param device: the number of the device. None is the current one.
/// :raises ValueError: for a negative number.
/// :raises aquifer.Error: for a device that is not there.
///
/// >>> import aquifer
/// >>> len(aquifer.device_name(0)) > 0
/// True
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn device_name(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] device: Option<i32>,
) -> PyResult<String> {
    Ok(self::device(py, device.unwrap_or_else(current_ordinal))?.name().to_owned())
}

/// The version of CUDA that the driver is for, such as 13000 for CUDA 13.0. The simulated device has none.
#[pyfunction]
pub(crate) fn _driver_version(py: Python<'_>) -> PyResult<Option<u32>> {
    let version = device(py, current_ordinal())?.properties().driver_version;
    Ok(Some(version).filter(|version| *version != 0))
}

/// From now on device 0 is a simulated one where there is no GPU. Call it before anything else asks for a device.
///
/// :raises aquifer.Error: where a GPU is there and its driver fails.
///
/// >>> import aquifer
/// >>> aquifer.simulate()
/// >>> aquifer.device_count() >= 1
/// True
#[pyfunction]
pub(crate) fn simulate(py: Python<'_>) -> PyResult<()> {
    detach(py, embedded::simulate).map_err(Raised::from)?;
    Ok(())
}

/// Whether device 0 is the simulated one, whose memory is the host's and on which no kernel runs.
///
/// :raises aquifer.Error: where there is no device.
///
/// >>> import aquifer
/// >>> aquifer.is_simulated() in (True, False)
/// True
#[pyfunction]
pub(crate) fn is_simulated(py: Python<'_>) -> PyResult<bool> {
    Ok(device(py, 0)?.simulator().is_some())
}

/// The free and the total memory of a device, in bytes. What a pool has free is not in the first.
///
/// :param device: the number of the device. None is the current one.
/// :raises ValueError: for a negative number.
/// :raises aquifer.Error: for a device that is not there.
///
/// >>> import aquifer
/// >>> free, total = aquifer.memory_info()
/// >>> 0 < free <= total
/// True
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn memory_info(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] device: Option<i32>,
) -> PyResult<(u64, u64)> {
    let device = self::device(py, device.unwrap_or_else(current_ordinal))?;
    let info = detach(py, || device.memory_info()).map_err(Raised::from)?;
    Ok((info.free as u64, info.total as u64))
}

/// Chooses the calling thread's device, or leaves it to the current context (None); the one that was chosen before.
#[pyfunction]
#[pyo3(signature = (number))]
pub(crate) fn _choose_device(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] number: Option<i32>,
) -> PyResult<Option<i32>> {
    if let Some(number) = number {
        device(py, number)?;
    }
    Ok(CHOSEN.replace(number))
}

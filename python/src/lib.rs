//! The native part of the Python package `aquifer`: device memory, its resources and streams as objects, and the handler
//! of NumPy's arrays. What a host allocates through the C functions of `aquifer-capi`, which this library has as well,
//! comes from the same stacks.
//!
//! | file | what it is |
//! | --- | --- |
//! | `interpreter` | the gate that all calls into the interpreter pass |
//! | `error` | exceptions |
//! | `debug_log` | the crate's events, in a file |
//! | `host_bytes` | the bytes of a host's object, by the buffer protocol |
//! | `device` | devices by their numbers, and the calling thread's current one |
//! | `detached` | ends that run without the interpreter |
//! | `stream` | streams, of this package and of others |
//! | `resource`, `callback` | memory resources; those that call functions of Python |
//! | `counters` | what a resource has counted |
//! | `current` | the current resource of each device |
//! | `buffer` | a block of device memory |
//! | `host_memory` | a block of page-locked memory, and the pool of all |
//! | `dlpack` | such a block for other libraries, and theirs |
//! | `numpy`, `page_locked` | page-locked memory for NumPy's arrays; the blocks of it, by address |

// The entry points of the C library, for hosts.
extern crate aquifer_capi as _;

mod buffer;
mod callback;
mod counters;
mod current;
mod debug_log;
mod detached;
mod device;
mod dlpack;
mod error;
mod host_bytes;
mod host_memory;
mod interpreter;
mod numpy;
mod page_locked;
mod resource;
mod stream;

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use std::ffi::CString;

/// The native part of `aquifer`.
#[pymodule(gil_used = false)]
fn _aquifer(module: &Bound<'_, PyModule>) -> PyResult<()> {
    interpreter::guard_thread();
    let py = module.py();
    if let Err(error) = debug_log::begin_from_env() {
        // A log that cannot be written keeps nobody from importing the package.
        let message = CString::new(error.to_string()).unwrap_or_default();
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 1)?;
    }
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", py.get_type::<error::Error>())?;
    module.add("OutOfMemoryError", py.get_type::<error::OutOfMemoryError>())?;
    module.add("AllocationError", error::allocation_error(py)?)?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<resource::DeviceMemoryResource>()?;
    module.add_class::<buffer::DeviceBuffer>()?;
    module.add_class::<host_memory::HostMemory>()?;
    module.add_function(wrap_pyfunction!(debug_log::_set_logging_level, module)?)?;
    module.add_function(wrap_pyfunction!(debug_log::_logging_level, module)?)?;
    module.add_function(wrap_pyfunction!(device::device_count, module)?)?;
    module.add_function(wrap_pyfunction!(device::_choose_device, module)?)?;
    module.add_function(wrap_pyfunction!(device::current_device, module)?)?;
    module.add_function(wrap_pyfunction!(device::_driver_version, module)?)?;
    module.add_function(wrap_pyfunction!(device::device_name, module)?)?;
    module.add_function(wrap_pyfunction!(device::is_simulated, module)?)?;
    module.add_function(wrap_pyfunction!(device::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(device::memory_info, module)?)?;
    module.add_function(wrap_pyfunction!(stream::default_stream, module)?)?;
    module.add_function(wrap_pyfunction!(current::get_per_device_resource, module)?)?;
    module.add_function(wrap_pyfunction!(current::set_per_device_resource, module)?)?;
    module.add_function(wrap_pyfunction!(current::_devices_with_resource, module)?)?;
    module.add_function(wrap_pyfunction!(resource::_flush_logs, module)?)?;
    module.add_function(wrap_pyfunction!(buffer::copy_ptr_to_host, module)?)?;
    module.add_function(wrap_pyfunction!(buffer::copy_host_to_ptr, module)?)?;
    module.add_function(wrap_pyfunction!(buffer::copy_device_to_ptr, module)?)?;
    module.add_function(wrap_pyfunction!(host_memory::pinned_trim, module)?)?;
    module.add_function(wrap_pyfunction!(host_memory::pinned_statistics, module)?)?;
    module.add_function(wrap_pyfunction!(host_memory::pinned_limits, module)?)?;
    module.add_function(wrap_pyfunction!(host_memory::pinned_set_limits, module)?)?;
    module.add_function(wrap_pyfunction!(numpy::numpy_data_handler, module)?)?;
    module.add_function(wrap_pyfunction!(numpy::numpy_set_handler, module)?)?;
    module.add_function(wrap_pyfunction!(numpy::numpy_page_locked_blocks, module)?)?;
    Ok(())
}

//! Page-locked host memory as an object.

use crate::error::Raised;
use crate::interpreter::{argument, detach};
use aquifer_rs::PinnedAlloc;
use aquifer_rs::allocator_api2::boxed::Box as HostBox;
use aquifer_rs::allocator_api2::vec::Vec as HostVec;
use pyo3::prelude::*;
use std::mem::MaybeUninit;

const ALIGNMENT: usize = 256;

/// A piece of page-locked memory with the alignment of the device's.
#[repr(C, align(256))]
struct Piece([u8; ALIGNMENT]);

/// Page-locked host memory, which the device copies from and to at the full speed of the bus. What was freed is handed out
/// again when the device is past its work.
#[pyclass(frozen, weakref, module = "aquifer")]
pub(crate) struct HostMemory {
    memory: HostBox<[MaybeUninit<Piece>], PinnedAlloc>,
    bytes: usize,
}

#[pymethods]
impl HostMemory {
    #[new]
    fn new(py: Python<'_>, #[pyo3(from_py_with = argument)] nbytes: usize) -> PyResult<Self> {
        let memory = detach(py, || {
            let count = nbytes.div_ceil(ALIGNMENT);
            let mut pieces = HostVec::<MaybeUninit<Piece>, _>::new_in(PinnedAlloc);
            pieces.try_reserve_exact(count).ok()?;
            // SAFETY: so many were reserved, and are not written yet, as their type says.
            unsafe { pieces.set_len(count) };
            Some(pieces.into_boxed_slice())
        });
        match memory {
            Some(memory) => Ok(Self { memory, bytes: nbytes }),
            None => Err(no_memory(nbytes).into()),
        }
    }

    /// The address, for the host and for devices.
    #[getter]
    fn ptr(&self) -> usize {
        self.memory.as_ptr().expose_provenance()
    }

    /// The size in bytes.
    #[getter]
    fn size(&self) -> usize {
        self.bytes
    }
}

/// Why the calling thread's last allocation failed.
fn no_memory(bytes: usize) -> Raised {
    let error = aquifer_rs::pinned::last_error();
    match error {
        Some(error) => error.into(),
        None => {
            let message = format!("{bytes} bytes of page-locked memory were asked for");
            crate::error::OutOfMemoryError::new_err(message).into()
        }
    }
}

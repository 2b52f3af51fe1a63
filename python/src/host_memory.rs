//! Page-locked host memory as an object, and the pool of all such memory.

use crate::error::{Raised, Result};
use crate::interpreter::{argument, detach};
use aquifer_capi::embedded;
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
        // It is the current one from then on.
        detach(py, embedded::host_pool).map_err(Raised::from)?;
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

/// Waits for the devices, and gives free memory back, as long as the pool keeps `keep` bytes: how many bytes went.
#[pyfunction]
#[pyo3(signature = (keep))]
pub(crate) fn pinned_trim(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] keep: usize,
) -> Result<usize> {
    let pool = detach(py, embedded::host_pool)?;
    Ok(detach(py, || pool.trim_to(keep))?)
}

/// The bytes that are reserved, that were at most, that are in use, and the largest free block's.
#[pyfunction]
pub(crate) fn pinned_statistics(py: Python<'_>) -> Result<(usize, usize, usize, usize)> {
    let pool = detach(py, embedded::host_pool)?;
    let now = detach(py, || pool.statistics());
    Ok((now.reserved, now.peak_reserved, now.live, now.largest_free))
}

/// The maximum size and the release threshold. None is for no limit.
#[pyfunction]
pub(crate) fn pinned_limits(py: Python<'_>) -> Result<(Option<usize>, Option<usize>)> {
    let pool = detach(py, embedded::host_pool)?;
    Ok((pool.maximum_size(), pool.release_threshold()))
}

/// Changes limits: 2 to the power of 64 less 1 stands for none. None leaves one as it is.
#[pyfunction]
#[pyo3(signature = (maximum_size, release_threshold, touch_threads))]
pub(crate) fn pinned_set_limits(
    py: Python<'_>,
    maximum_size: Option<usize>,
    release_threshold: Option<usize>,
    touch_threads: Option<usize>,
) -> Result<()> {
    let limit = |bytes: usize| Some(bytes).filter(|bytes| *bytes != usize::MAX);
    let pool = detach(py, embedded::host_pool)?;
    let set = || {
        maximum_size.map_or(Ok(()), |bytes| pool.set_maximum_size(limit(bytes)))?;
        release_threshold.map_or(Ok(()), |bytes| pool.set_release_threshold(limit(bytes)))
    };
    detach(py, set)?;
    if let Some(threads) = touch_threads {
        pool.upstream().set_touch_threads(threads);
    }
    Ok(())
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

//! The bytes of a host's object, by the buffer protocol.
//!
//! PyO3 has this from Python 3.11 on, where the stable ABI has it. The functions and the structure are the same in 3.10.

use crate::error::Result;
use crate::interpreter::guard_thread;
use pyo3::exceptions::PyValueError;
use pyo3::ffi::{self, Py_ssize_t};
use pyo3::prelude::*;
use std::ffi::{CStr, c_char, c_int, c_void};

/// `Py_buffer`.
#[repr(C)]
struct RawBuffer {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

const PYBUF_SIMPLE: c_int = 0;
const PYBUF_WRITABLE: c_int = 1;
/// With its format, its shape and its strides.
const PYBUF_RECORDS_RO: c_int = 0x1c;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut RawBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawBuffer);
}

/// The bytes of an object, which stay in place as long as this is there.
pub(crate) struct HostBytes<'py> {
    // In a box, as the exporter may point into it.
    raw: Box<RawBuffer>,
    _py: Python<'py>,
}

impl<'py> HostBytes<'py> {
    /// Bytes to read.
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> Result<Self> {
        refuse_objects(object)?;
        Self::get(object, PYBUF_SIMPLE)
    }

    /// Bytes to read, of an object that has nothing else: `bytes`, or a one-dimensional array of unsigned bytes.
    pub(crate) fn new_of_bytes(object: &Bound<'py, PyAny>) -> Result<Self> {
        let found = Self::get(object, PYBUF_RECORDS_RO)?;
        let raw = &*found.raw;
        // SAFETY: null, or a text of the exporter's that ends in a zero.
        let format = (!raw.format.is_null()).then(|| unsafe { CStr::from_ptr(raw.format) });
        // With an order of bytes, which a byte has none of.
        let is_format = format.is_none_or(|it| {
            matches!(it.to_bytes(), b"B" | [b'@' | b'=' | b'<' | b'>' | b'!', b'B'])
        });
        // SAFETY: null, or an array of as many numbers as the view has dimensions.
        let is_dense = raw.strides.is_null() || raw.len < 2 || unsafe { *raw.strides } == 1;
        if raw.ndim != 1 || raw.itemsize != 1 || !is_format || !is_dense {
            let message = "a one-dimensional array of bytes was expected (give its bytes, as array.view('u1').ravel(), or \
                           take aquifer.to_device, which takes any contiguous array)";
            return Err(PyValueError::new_err(message).into());
        }
        Ok(found)
    }

    /// Bytes to write.
    pub(crate) fn new_writable(object: &Bound<'py, PyAny>) -> Result<Self> {
        refuse_objects(object)?;
        Self::get(object, PYBUF_WRITABLE)
    }

    fn get(object: &Bound<'py, PyAny>, flags: c_int) -> Result<Self> {
        guard_thread();
        let mut raw = Box::new(RawBuffer {
            buf: std::ptr::null_mut(),
            obj: std::ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: std::ptr::null_mut(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        });
        // SAFETY: an object, and a place for a view; the thread is attached.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *raw, flags) } != 0 {
            return Err(PyErr::fetch(object.py()).into());
        }
        Ok(Self { raw, _py: object.py() })
    }

    fn parts(&self) -> (*mut u8, usize) {
        match usize::try_from(self.raw.len) {
            Ok(length) if length > 0 => (self.raw.buf.cast(), length),
            _ => (std::ptr::dangling_mut(), 0),
        }
    }

    /// The bytes.
    ///
    /// # Safety
    ///
    /// No other thread writes them while they are read.
    pub(crate) unsafe fn as_slice(&self) -> &[u8] {
        let (start, length) = self.parts();
        // SAFETY: the exporter keeps so many bytes in place until the view is released; the caller's promise.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// The bytes of a view from [`new_writable`](Self::new_writable).
    ///
    /// # Safety
    ///
    /// No other thread reads or writes them meanwhile.
    pub(crate) unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        let (start, length) = self.parts();
        // SAFETY: as `as_slice`; the exporter allowed writing.
        unsafe { std::slice::from_raw_parts_mut(start, length) }
    }
}

/// An error for an array of NumPy's whose bytes are references to objects.
fn refuse_objects(object: &Bound<'_, PyAny>) -> Result<()> {
    guard_thread();
    let has_objects = object.getattr("dtype").and_then(|dtype| dtype.getattr("hasobject"));
    if has_objects.is_ok_and(|has| has.is_truthy().unwrap_or(false)) {
        let message = "an array of Python's objects has references, which are no bytes to copy";
        return Err(PyValueError::new_err(message).into());
    }
    Ok(())
}

impl Drop for HostBytes<'_> {
    fn drop(&mut self) {
        // SAFETY: a view that `PyObject_GetBuffer` filled, released once; the thread is attached.
        unsafe { PyBuffer_Release(&raw mut *self.raw) }
    }
}

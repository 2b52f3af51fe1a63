//! DLPack: a buffer for other libraries, and their memory for a buffer.

use crate::buffer::{DeviceBuffer, State};
use crate::error::Result;
use crate::interpreter::{detach, guard_thread, try_attach};
use crate::stream::Opened;
use aquifer_capi::embedded;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

/// `kDLCUDA`.
pub(crate) const CUDA: i32 = 2;

/// `kDLCPU`, and its only device.
pub(crate) const HOST: (i32, i32) = (1, 0);

/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
const IS_COPIED: u64 = 2;

/// The version of `ManagedVersioned`.
const MAJOR: u32 = 1;

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const USED: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device: i32,
    dimensions: i32,
    type_code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}

/// What a consumer keeps of a buffer.
struct Exported {
    /// The buffer's state, or a copy.
    _memory: Box<dyn Send>,
    shape: [i64; 1],
    strides: [i64; 1],
}

impl Exported {
    fn tensor(&mut self, address: u64, (device_type, device): (i32, i32)) -> Tensor {
        Tensor {
            data: std::ptr::with_exposed_provenance_mut(address as usize),
            device_type,
            device,
            dimensions: 1,
            type_code: 1,
            bits: 8,
            lanes: 1,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }
}

/// Both of DLPack's structures, which end alike.
trait Shared: Sized {
    const NAME: &'static CStr;

    fn context(&self) -> *mut c_void;

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
}

impl Shared for Managed {
    const NAME: &'static CStr = PLAIN;

    fn context(&self) -> *mut c_void {
        self.context
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

impl Shared for ManagedVersioned {
    const NAME: &'static CStr = VERSIONED;

    fn context(&self) -> *mut c_void {
        self.context
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

/// Of a consumer that is done, on any thread, with or without the interpreter.
unsafe extern "C" fn delete<M: Shared>(managed: *mut M) {
    // SAFETY: `export` made both boxes, and a consumer calls this once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context().cast::<Exported>()));
    }
}

/// Of a capsule that no consumer took.
unsafe extern "C" fn end_capsule<M: Shared>(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule of `capsule`, which has this name until a consumer renames it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) != 0 {
            let managed = ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast::<M>();
            // Dropped as a tensor is: the driver may wait for work that calls Python.
            let unused = Unused(managed);
            detach(Python::assume_attached(), || drop(unused));
        }
    }
}

/// A tensor that no consumer took.
struct Unused<M: Shared>(*mut M);

// SAFETY: DLPack's deleters may be called on any thread.
unsafe impl<M: Shared> Send for Unused<M> {}

impl<M: Shared> Drop for Unused<M> {
    fn drop(&mut self) {
        // SAFETY: `export` made it, and no consumer has it.
        unsafe { delete(self.0) }
    }
}

fn capsule<M: Shared>(py: Python<'_>, managed: M) -> Result<Bound<'_, PyAny>> {
    let managed = Box::into_raw(Box::new(managed));
    // SAFETY: the pointer is not null, and the name lives for good; the thread is attached.
    let capsule = unsafe {
        let made = ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(end_capsule::<M>));
        Bound::from_owned_ptr_or_err(py, made)
    };
    capsule.map_err(|error| {
        // SAFETY: no capsule has it.
        unsafe { delete(managed) };
        error.into()
    })
}

/// A capsule of a buffer's memory, whose consumer works on `stream`, which is DLPack's number of one.
pub(crate) fn export<'py>(
    py: Python<'py>,
    state: Arc<State>,
    stream: Option<i64>,
    max_version: Option<(u32, u32)>,
    is_copied: bool,
) -> Result<Bound<'py, PyAny>> {
    state.require_awake()?;
    let (opened, device) = (state.stream(), (CUDA, state.ordinal()));
    order_consumer(py, &opened, stream)?;
    state.set_exported();
    let (address, bytes) = state.parts_to_keep(py)?;
    let exported = Exported { _memory: Box::new(state), shape: [bytes as i64], strides: [1] };
    capsule_of(py, exported, address, device, max_version, is_copied)
}

/// A capsule of a copy in the host's memory.
pub(crate) fn export_host<'py>(
    py: Python<'py>,
    mut bytes: Vec<u8>,
    max_version: Option<(u32, u32)>,
) -> Result<Bound<'py, PyAny>> {
    let address = if bytes.is_empty() { 0 } else { bytes.as_mut_ptr().expose_provenance() as u64 };
    let shape = [bytes.len() as i64];
    let exported = Exported { _memory: Box::new(bytes), shape, strides: [1] };
    capsule_of(py, exported, address, HOST, max_version, true)
}

fn capsule_of(
    py: Python<'_>,
    exported: Exported,
    address: u64,
    device: (i32, i32),
    max_version: Option<(u32, u32)>,
    is_copied: bool,
) -> Result<Bound<'_, PyAny>> {
    let mut exported = Box::new(exported);
    let tensor = exported.tensor(address, device);
    let context = Box::into_raw(exported).cast();
    if max_version.is_some_and(|(major, _)| major >= MAJOR) {
        let (major, minor, flags) = (MAJOR, 0, if is_copied { IS_COPIED } else { 0 });
        let deleter = Some(delete as unsafe extern "C" fn(*mut ManagedVersioned));
        return capsule(py, ManagedVersioned { major, minor, context, deleter, flags, tensor });
    }
    let deleter = Some(delete as unsafe extern "C" fn(*mut Managed));
    capsule(py, Managed { tensor, context, deleter })
}

/// Has the consumer's stream come after the buffer's.
fn order_consumer(py: Python<'_>, opened: &Arc<Opened>, stream: Option<i64>) -> Result<()> {
    let home = opened.stream();
    let device = home.device();
    detach(py, || match stream {
        // The consumer orders its own.
        Some(-1) => Ok(()),
        None | Some(0 | 1) => Ok(device.default_stream().wait_for(home)?),
        Some(2) => Ok(device.per_thread_stream()?.wait(&home.record()?)?),
        Some(handle) => {
            // SAFETY: the consumer's stream, which lives as long as this call, and which nothing keeps longer.
            let theirs = unsafe { aquifer_rs::Stream::from_handle(device, handle as u64)? };
            let waited = theirs.wait_for(home);
            Ok(waited?)
        }
    })
}

/// Another library's tensor, until its memory is needed no more.
struct Imported<M: Shared>(*mut M);

// SAFETY: DLPack's deleters may be called on any thread.
unsafe impl<M: Shared> Send for Imported<M> {}

impl<M: Shared> Drop for Imported<M> {
    fn drop(&mut self) {
        // SAFETY: a tensor that its capsule gave to this value, and whose deleter is called once.
        unsafe {
            if let Some(deleter) = (*self.0).deleter() {
                // Some deleters touch Python's objects without attaching.
                try_attach(|_| deleter(self.0));
            }
        }
    }
}

/// A buffer of another library's memory.
pub(crate) fn import(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
) -> Result<DeviceBuffer> {
    guard_thread();
    if !object.hasattr("__dlpack_device__")? {
        let message = format!(
            "a {} has no __dlpack__ (give an array on the device)",
            object.get_type().name()?
        );
        return Err(PyTypeError::new_err(message).into());
    }
    let (kind, ordinal) = object.call_method0("__dlpack_device__")?.extract::<(i32, i32)>()?;
    if kind != CUDA {
        let message = format!(
            "memory of DLPack's device type {kind} was given, where CUDA's, {CUDA}, was expected (copy what is the host's \
             by to_device)"
        );
        return Err(PyBufferError::new_err(message).into());
    }
    let opened = match stream {
        Some(stream) => Opened::of_argument(py, Some(stream))?,
        None => Opened::default_of(py, ordinal)?,
    };
    embedded::device(ordinal)?;
    let arguments = PyDict::new(py);
    let home = opened.stream();
    let is_default = *home == home.device().default_stream();
    arguments.set_item("stream", if is_default { 1 } else { home.handle() })?;
    arguments.set_item("max_version", (MAJOR, 0))?;
    let asked = object.call_method("__dlpack__", (), Some(&arguments));
    let capsule = match asked {
        // Of before version 1.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            arguments.del_item("max_version")?;
            object.call_method("__dlpack__", (), Some(&arguments))?
        }
        asked => asked?,
    };
    // SAFETY: a capsule is looked at under the names that DLPack has for it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), VERSIONED.as_ptr()) != 0 {
            let managed: Imported<ManagedVersioned> = take(&capsule, USED_VERSIONED)?;
            let major = (*managed.0).major;
            if major > MAJOR {
                // Nothing but the deleter is known to be where it is looked for.
                let message = format!(
                    "a tensor of DLPack's version {major} was given, where version {MAJOR} was asked for"
                );
                return Err(PyBufferError::new_err(message).into());
            }
            let tensor = &raw const (*managed.0).tensor;
            return buffer(opened, &*tensor, managed);
        }
        let managed: Imported<Managed> = take(&capsule, USED)?;
        let tensor = &raw const (*managed.0).tensor;
        buffer(opened, &*tensor, managed)
    }
}

/// Takes the tensor of a capsule.
///
/// # Safety
///
/// The capsule is one of DLPack's under this name, if it is valid under it.
unsafe fn take<M: Shared>(capsule: &Bound<'_, PyAny>, used: &'static CStr) -> Result<Imported<M>> {
    // SAFETY: an object; the names live for good; the thread is attached.
    unsafe {
        let managed = ffi::PyCapsule_GetPointer(capsule.as_ptr(), M::NAME.as_ptr());
        if managed.is_null() || ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) != 0 {
            return Err(PyErr::fetch(capsule.py()).into());
        }
        Ok(Imported(managed.cast()))
    }
}

/// # Safety
///
/// The tensor is `managed`'s, whose producer has ordered the stream after its work.
unsafe fn buffer<M: Shared + 'static>(
    opened: Arc<Opened>,
    tensor: &Tensor,
    managed: Imported<M>,
) -> Result<DeviceBuffer> {
    let ordinal = opened.stream().device().ordinal() as i32;
    if (tensor.device_type, tensor.device) != (CUDA, ordinal) {
        let message = format!(
            "a tensor of DLPack's device ({}, {}) was given, where ({CUDA}, {ordinal}) was expected",
            tensor.device_type, tensor.device
        );
        return Err(PyBufferError::new_err(message).into());
    }
    let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
    // SAFETY: of a tensor as many lengths, and strides unless that is null.
    let (shape, strides) = unsafe {
        let list = |start: *mut i64| match start.is_null() || dimensions == 0 {
            true => None,
            false => Some(std::slice::from_raw_parts(start, dimensions)),
        };
        (list(tensor.shape).unwrap_or(&[]), list(tensor.strides))
    };
    let element = (usize::from(tensor.bits) * usize::from(tensor.lanes)).div_ceil(8);
    let lengths = || shape.iter().map(|length| usize::try_from(*length).unwrap_or(0));
    let elements = lengths().try_fold(1_usize, usize::checked_mul);
    let Some(bytes) = elements.and_then(|elements| elements.checked_mul(element)) else {
        return Err(PyBufferError::new_err("a tensor has more bytes than an address space").into());
    };
    let mut wanted = 1_i64;
    for (length, stride) in lengths().zip(strides.unwrap_or(&[])).rev() {
        if length > 1 && bytes > 0 && *stride != wanted {
            let message = "a tensor that is not contiguous was given (make a contiguous copy)";
            return Err(PyBufferError::new_err(message).into());
        }
        // Of a tensor with bytes this is no more than those.
        wanted = wanted.wrapping_mul(length as i64);
    }
    let address = (tensor.data.addr() as u64).wrapping_add(tensor.byte_offset);
    // SAFETY: memory of the tensor, which its deleter frees, and which the stream comes after: the protocol.
    unsafe { DeviceBuffer::of_foreign(opened, address, bytes, move || drop(managed)) }
}

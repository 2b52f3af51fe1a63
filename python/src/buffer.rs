//! A block of device memory as an object.

use crate::current::current;
use crate::device::current_ordinal;
use crate::error::{Raised, Result};
use crate::host_bytes::HostBytes;
use crate::interpreter::{argument, detach, guard_thread, try_attach};
use crate::resource::{DeviceMemoryResource, size};
use crate::stream::{Given, Opened, Stream};
use aquifer_capi::embedded;
use aquifer_rs::{
    DeviceBlock, DeviceBuffer as Memory, DeviceVec, Error, ErrorKind, container::MemoryLocation,
    mr::CallbackResource,
};
use parking_lot::{Mutex, ReentrantMutex};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Device memory of a size in bytes, not written yet.
///
/// Memory is allocated and freed in the order of a stream. It goes back to the resource that it came from. Copies from and to
/// the host are complete when they return.
///
/// :param ptr: the address of memory to copy, of the device or the host, of ``size`` bytes. 0 copies nothing.
/// :param size: the size in bytes.
/// :param stream: the stream. Left out, it is the legacy default stream.
/// :param mr: the resource that the memory comes from. None is the current one of the stream's device.
/// :raises TypeError: for ``stream=None``, and for what is no stream.
/// :raises OverflowError: for a negative size.
/// :raises MemoryError: where there is no memory.
/// :raises aquifer.Error: where there is no device.
///
/// >>> import aquifer
/// >>> buffer = aquifer.DeviceBuffer(size=4)
/// >>> buffer.copy_from_host(b"abcd")
/// >>> buffer.tobytes(), buffer.size, buffer.nbytes, len(buffer)
/// (b'abcd', 4, 4, 4)
/// >>> buffer.reserve(1000)
/// >>> buffer.resize(2)
/// >>> buffer.capacity() >= 1000, bytes(buffer.copy())
/// (True, b'ab')
#[pyclass(frozen, weakref, module = "aquifer")]
pub(crate) struct DeviceBuffer {
    state: Arc<State>,
}

/// What a buffer and other libraries' views of it share.
pub(crate) struct State {
    /// A call that has it may call a function of Python, which may use this buffer.
    memory: ReentrantMutex<Held>,
    stream: Mutex<Arc<Opened>>,
    /// The resource's object. `None` for another library's memory.
    resource: Option<Py<DeviceMemoryResource>>,
    /// Another library knows the address, and may use the memory on streams that nobody tells of.
    is_exported: AtomicBool,
}

struct Held {
    /// `None` for a moment, while it is freed.
    memory: RefCell<Option<Memory>>,
    /// As the call found it that has the memory.
    place: Cell<Place>,
}

/// Where memory is.
#[derive(Clone, Copy, Default)]
struct Place {
    address: u64,
    bytes: usize,
    capacity: usize,
}

impl Place {
    fn of(memory: &Memory) -> Self {
        let bytes = memory.len();
        let address = if bytes == 0 { 0 } else { memory.as_device_ptr() };
        Self { address, bytes, capacity: memory.capacity() }
    }
}

impl State {
    fn with<T>(&self, body: impl FnOnce(&mut Memory) -> aquifer_rs::Result<T>) -> Result<T> {
        self.with_raising(|memory| Ok(body(memory)?))
    }

    /// Of a thread that has let go of the interpreter: a call that has the memory may need that for its end.
    fn with_raising<T>(&self, body: impl FnOnce(&mut Memory) -> Result<T>) -> Result<T> {
        let held = self.memory.lock();
        let Ok(mut memory) = held.memory.try_borrow_mut() else {
            let message = "the buffer is changed by the call that this one is part of";
            return Err(PyValueError::new_err(message).into());
        };
        let Some(memory) = &mut *memory else {
            return Err(PyValueError::new_err("the buffer was freed").into());
        };
        held.place.set(Place::of(memory));
        body(memory)
    }

    fn place(&self) -> Place {
        let read = |held: &Held| match held.memory.try_borrow() {
            Ok(memory) => memory.as_ref().map_or_else(Place::default, Place::of),
            // This thread's own call has it.
            Err(_) => held.place.get(),
        };
        match self.memory.try_lock() {
            Some(held) => read(&held),
            None => try_attach(|py| detach(py, || read(&self.memory.lock()))).unwrap_or_default(),
        }
    }

    /// Address and bytes.
    pub(crate) fn parts(&self) -> (u64, usize) {
        let Place { address, bytes, .. } = self.place();
        (address, bytes)
    }

    /// As [`parts`](Self::parts), for a library that keeps the address: not in a call that changes it.
    pub(crate) fn parts_to_keep(&self, py: Python<'_>) -> Result<(u64, usize)> {
        let place = detach(py, || self.with(|memory| Ok(Place::of(memory))))?;
        Ok((place.address, place.bytes))
    }

    /// An error while the memory sleeps, which no library finds at its address then.
    pub(crate) fn require_awake(&self) -> Result<()> {
        let built = self.resource.as_ref().and_then(|resource| resource.get().built().ok());
        if built.is_some_and(|built| built.resources().is_asleep()) {
            let error = Error::new(ErrorKind::Asleep, "the pool of this buffer is asleep");
            return Err(error.with_advice("call its wake first").into());
        }
        Ok(())
    }

    pub(crate) fn stream(&self) -> Arc<Opened> {
        self.stream.lock().clone()
    }

    pub(crate) fn set_exported(&self) {
        self.is_exported.store(true, Ordering::Relaxed);
    }

    pub(crate) fn ordinal(&self) -> i32 {
        self.stream().stream().device().ordinal() as i32
    }
}

impl State {
    /// Gives the memory back.
    fn free(&mut self) {
        let Some(memory) = self.memory.get_mut().memory.get_mut().take() else { return };
        // In the child of a fork the memory is the parent's, and another thread may have had the lock.
        let is_own = !embedded::is_forked_child();
        if is_own && *self.is_exported.get_mut() && come_after_all(&memory).is_err() {
            HELD_BACK.lock().push(memory);
        }
    }
}

/// Has the memory's next work come after all that the device was given, on any stream.
fn come_after_all(memory: &Memory) -> aquifer_rs::Result<()> {
    let home = memory.stream();
    match home.device().record().and_then(|event| home.wait(&event)) {
        // Of a driver that has no such event. In a capture either would cost the graph.
        Err(error) if error.kind() != ErrorKind::Capture => home.device().synchronize(),
        done => done,
    }
}

/// Memory that another library may use still, which no order could be told of: freed by a later allocation.
static HELD_BACK: Mutex<Vec<Memory>> = Mutex::new(Vec::new());

fn free_held_back() {
    if embedded::is_forked_child() {
        return;
    }
    let tried = std::mem::take(&mut *HELD_BACK.lock());
    let left: Vec<_> = tried.into_iter().filter(|memory| come_after_all(memory).is_err()).collect();
    HELD_BACK.lock().extend(left);
}

impl Drop for State {
    fn drop(&mut self) {
        guard_thread();
        self.free();
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if let Some(state) = Arc::get_mut(&mut self.state) {
            // The driver may wait for work that calls Python: not with the interpreter held.
            try_attach(|py| detach(py, || state.free()));
        }
    }
}

impl DeviceBuffer {
    fn of(memory: Memory, opened: Arc<Opened>, resource: Option<Py<DeviceMemoryResource>>) -> Self {
        Self {
            state: Arc::new(State {
                memory: ReentrantMutex::new(Held {
                    place: Cell::new(Place::of(&memory)),
                    memory: RefCell::new(Some(memory)),
                }),
                stream: Mutex::new(opened),
                resource,
                is_exported: AtomicBool::new(false),
            }),
        }
    }

    /// Another library's memory, for work on a stream; `release` is called when the device is past all that the stream was
    /// given.
    ///
    /// # Safety
    ///
    /// As [`foreign`].
    pub(crate) unsafe fn of_foreign(
        opened: Arc<Opened>,
        address: u64,
        bytes: usize,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        let memory = unsafe { foreign(opened.stream(), address, bytes, release)? };
        let made = Self::of(Memory::from(memory), opened, None);
        made.state.set_exported();
        Ok(made)
    }

    /// Memory that is not written yet.
    pub(crate) fn allocate(
        py: Python<'_>,
        bytes: usize,
        opened: Arc<Opened>,
        resource: Option<&Bound<'_, DeviceMemoryResource>>,
    ) -> Result<Self> {
        let resource = match resource {
            Some(resource) => resource.clone().unbind(),
            None => current(py, opened.stream().device().ordinal() as i32)?,
        };
        let built = resource.get().built()?;
        let upstream = built.resources().resource().clone();
        let stream = opened.stream();
        // SAFETY: bytes of a device, of which a program of Python may read any; the simulated device tells of it.
        let memory = detach(py, || unsafe {
            free_held_back();
            Memory::uninit_in(stream, bytes, upstream)
        })
        .map_err(Raised::of_allocation)?;
        Ok(Self::of(memory, opened, Some(resource)))
    }
}

/// Another library's memory as a vector, whose end calls `release` after the device is past all that `stream` was given.
///
/// # Safety
///
/// `bytes` bytes of memory of the stream's device lie at `address`, and stay there until `release` is called. The stream is
/// ordered after all work that writes them.
unsafe fn foreign(
    stream: &aquifer_rs::Stream,
    address: u64,
    bytes: usize,
    release: impl FnOnce() + Send + 'static,
) -> Result<DeviceVec<u8>> {
    let release = Mutex::new(Some(release));
    let refuse = |_: &aquifer_rs::Stream, _| {
        Err(Error::new(ErrorKind::Unsupported, "another library's memory was to grow"))
    };
    let released = move |stream: &aquifer_rs::Stream, _: DeviceBlock| {
        let release = release.lock().take();
        // Its owner knows nothing of this stream. Memory that may be in use is not let go.
        match (stream.synchronize(), release) {
            (Ok(()), Some(release)) => release(),
            (_, release) => std::mem::forget(release),
        }
    };
    // SAFETY: it hands out nothing but the block below.
    let resource = unsafe { CallbackResource::new(stream.device(), refuse, released) };
    let block = DeviceBlock::new(address, bytes, 0);
    // SAFETY: the caller's promise; the resource is this block's alone.
    Ok(unsafe { DeviceVec::from_raw_parts(stream.clone(), block, bytes, resource)? })
}

/// Device memory that an object shows by the CUDA array interface: its address, its bytes and the stream that it names.
fn cuda_array(object: &Bound<'_, PyAny>) -> Result<(u64, usize, Option<u64>)> {
    guard_thread();
    let Ok(interface) = object.getattr("__cuda_array_interface__") else {
        let name = object.get_type().name()?;
        let message =
            format!("a {name} has no __cuda_array_interface__ (give an array on the device)");
        return Err(PyTypeError::new_err(message).into());
    };
    let interface = interface.cast_into::<PyDict>().map_err(PyErr::from)?;
    let item = |name: &str| -> Result<Bound<'_, PyAny>> { Ok(interface.as_any().get_item(name)?) };
    let (address, _) = item("data")?.extract::<(u64, bool)>()?;
    let shape = item("shape")?.extract::<Vec<usize>>()?;
    let type_text = item("typestr")?.extract::<String>()?;
    let element = type_text.get(2..).and_then(|digits| digits.parse::<usize>().ok());
    let bytes = element
        .and_then(|element| shape.iter().try_fold(element, |all, one| all.checked_mul(*one)));
    let Some((element, bytes)) = element.zip(bytes) else {
        let message =
            format!("an array of shape {shape:?} and type {type_text:?} has no size in bytes");
        return Err(PyValueError::new_err(message).into());
    };
    if let Some(strides) = interface.get_item("strides")?.filter(|it| !it.is_none()) {
        let mut wanted = element;
        for (stride, length) in strides.extract::<Vec<isize>>()?.iter().zip(&shape).rev() {
            if *length > 1 && bytes > 0 && *stride != wanted as isize {
                let message = "an array that is not contiguous was given (make a contiguous copy)";
                return Err(PyValueError::new_err(message).into());
            }
            // Of an array with bytes this is no more than those.
            wanted = wanted.wrapping_mul(*length);
        }
    }
    let stream = interface.get_item("stream")?.filter(|it| !it.is_none());
    Ok((address, bytes, stream.map(|it| it.extract()).transpose()?))
}

#[pymethods]
impl DeviceBuffer {
    /// `ptr`: the address of memory to copy, of the device or the host, of `size` bytes.
    #[new]
    #[pyo3(signature = (*, ptr=0, size=0, stream=Given::NONE, mr=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = argument)] ptr: u64,
        #[pyo3(from_py_with = argument)] size: usize,
        stream: Given<'_>,
        mr: Option<&Bound<'_, DeviceMemoryResource>>,
    ) -> PyResult<Self> {
        let opened = Opened::of_argument(py, stream.get())?;
        let made = Self::allocate(py, size, opened, mr)?;
        if ptr == 0 || size == 0 {
            return Ok(made);
        }
        let opened = made.state.stream();
        if opened.stream().device().knows_address(ptr).map_err(Raised::from)? {
            made.copy_from_address(py, ptr, size)?;
        } else {
            detach(py, || {
                let source = std::ptr::with_exposed_provenance(ptr as usize);
                // SAFETY: the host's memory by an address that the caller names, as in any library of Python.
                let source = unsafe { std::slice::from_raw_parts(source, size) };
                made.state.with(|memory| memory.copy_from_slice(source))
            })?;
        }
        Ok(made)
    }

    /// A copy of the bytes of a host's object. ``aquifer.to_device`` takes any contiguous array.
    ///
    /// :param b: ``bytes``, or a one-dimensional array of unsigned bytes.
    /// :param stream: the stream in whose order the memory is allocated and freed. Left out, it is the legacy default stream.
    /// :param mr: the resource that the memory comes from. None is the current one of the stream's device.
    /// :raises TypeError: for what has no bytes, and for ``stream=None``.
    /// :raises ValueError: for another array.
    /// :raises MemoryError: where there is no memory.
    /// :raises aquifer.Error: where there is no device.
    ///
    /// >>> import aquifer
    /// >>> aquifer.DeviceBuffer.to_device(b"some bytes").size
    /// 10
    #[staticmethod]
    #[pyo3(signature = (b, stream=Given::NONE, mr=None))]
    fn to_device(
        py: Python<'_>,
        b: &Bound<'_, PyAny>,
        stream: Given<'_>,
        mr: Option<&Bound<'_, DeviceMemoryResource>>,
    ) -> PyResult<Self> {
        Self::of_host_bytes(py, &HostBytes::new_of_bytes(b)?, stream, mr)
    }

    /// As `to_device`, of the bytes of any array that is contiguous.
    #[staticmethod]
    #[pyo3(signature = (array, stream=Given::NONE, mr=None))]
    fn _of_array(
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        stream: Given<'_>,
        mr: Option<&Bound<'_, DeviceMemoryResource>>,
    ) -> PyResult<Self> {
        Self::of_host_bytes(py, &HostBytes::new(array)?, stream, mr)
    }

    /// Memory for a library that names no stream: handed out again after all work that the device had by its end.
    #[staticmethod]
    fn _for_any_stream(
        py: Python<'_>,
        #[pyo3(from_py_with = argument)] size: usize,
    ) -> PyResult<Self> {
        let made = Self::allocate(py, size, Opened::default_of(py, current_ordinal())?, None)?;
        made.state.set_exported();
        Ok(made)
    }

    /// Another library's memory without a copy, by DLPack. It is held until this buffer and all views of it are gone, which
    /// then waits for the stream.
    ///
    /// :param obj: an array on the device, of any library that has DLPack.
    /// :param stream: the stream of the later work on it. None is the legacy default stream.
    /// :raises TypeError: for what has no ``__dlpack__``, and for what is no stream.
    /// :raises BufferError: for the host's memory, another device's, and an array that is not contiguous.
    /// :raises aquifer.Error: where there is no device.
    ///
    /// >>> import aquifer
    /// >>> view = aquifer.DeviceBuffer.from_dlpack(aquifer.to_device(b"some bytes"))
    /// >>> view.tobytes()
    /// b'some bytes'
    #[staticmethod]
    #[pyo3(signature = (obj, stream=None))]
    fn from_dlpack(
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(crate::dlpack::import(py, obj, stream)?)
    }

    /// The address on the device, as a number. It is 0 of an empty buffer.
    #[getter]
    fn ptr(&self) -> u64 {
        self.state.parts().0
    }

    /// The size in bytes.
    #[getter]
    fn size(&self) -> usize {
        self.state.parts().1
    }

    /// The size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.size()
    }

    /// The stream in whose order the memory is used and freed. Another one comes after all use so far, and None is the legacy
    /// default stream.
    #[getter]
    fn stream(&self) -> Stream {
        Stream::new_of(self.state.stream())
    }

    /// Has the memory be used and freed in another stream's order, after all use of it so far. None is the default stream.
    #[setter(stream)]
    fn set_stream(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let opened = Opened::of_argument(py, stream)?;
        Ok(self.move_to_opened(py, opened)?)
    }

    /// The resource that the memory came from. It is None of another library's memory.
    #[getter]
    fn mr(&self, py: Python<'_>) -> Option<Py<DeviceMemoryResource>> {
        self.state.resource.as_ref().map(|resource| resource.clone_ref(py))
    }

    /// The number of its device.
    #[getter]
    fn device(&self) -> i32 {
        self.state.ordinal()
    }

    fn __len__(&self) -> usize {
        self.size()
    }

    fn __sizeof__(&self) -> usize {
        self.size()
    }

    /// How many bytes the memory has room for without moving.
    fn capacity(&self) -> usize {
        self.state.place().capacity
    }

    /// Makes room for a later ``resize``. The memory may move.
    ///
    /// :param new_capacity: how many bytes there is room for at least.
    /// :param stream: the stream in whose order the memory is used and freed from now on. Left out, it stays the same.
    /// :raises BufferError: while another library has the memory by DLPack.
    /// :raises MemoryError: where there is no memory. The buffer is as before.
    /// :raises aquifer.Error: while the memory sleeps.
    #[pyo3(signature = (new_capacity, stream=Given::NONE))]
    fn reserve(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument)] new_capacity: usize,
        stream: Given<'_>,
    ) -> PyResult<()> {
        self.move_to(py, stream.get())?;
        self.change(py, |memory| memory.reserve(new_capacity.saturating_sub(memory.len())))
    }

    /// Changes the size. Bytes that come to it are not written yet. The memory may move.
    ///
    /// :param new_size: the size in bytes.
    /// :param stream: the stream in whose order the memory is used and freed from now on. Left out, it stays the same.
    /// :raises BufferError: while another library has the memory by DLPack.
    /// :raises MemoryError: where there is no memory. The buffer is as before.
    /// :raises aquifer.Error: while the memory sleeps.
    #[pyo3(signature = (new_size, stream=Given::NONE))]
    fn resize(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument)] new_size: usize,
        stream: Given<'_>,
    ) -> PyResult<()> {
        self.move_to(py, stream.get())?;
        // SAFETY: as in `allocate`.
        self.change(py, |memory| unsafe { memory.resize_uninit(new_size) })
    }

    /// A copy in new memory of the same resource and stream. Of another library's memory, in the current resource's.
    ///
    /// :raises MemoryError: where there is no memory.
    /// :raises aquifer.Error: while the memory sleeps.
    fn copy(&self, py: Python<'_>) -> PyResult<Self> {
        let opened = self.state.stream();
        let Some(resource) = &self.state.resource else {
            let (address, bytes) = self.state.parts();
            let made = Self::allocate(py, bytes, opened, None)?;
            made.copy_from_address(py, address, bytes)?;
            return Ok(made);
        };
        let copy = detach(py, || self.state.with(|memory| memory.try_clone()))?;
        Ok(Self::of(copy, opened, Some(resource.clone_ref(py))))
    }

    fn __copy__(&self, py: Python<'_>) -> PyResult<Self> {
        self.copy(py)
    }

    #[pyo3(signature = (_memo))]
    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.copy(py)
    }

    /// Copies the bytes to a host's object.
    ///
    /// :param ary: an object that may be written and has as many bytes at least, of which the first are overwritten. None makes a
    ///     NumPy array of unsigned bytes.
    /// :param stream: a stream whose work so far the copy comes after, beside the buffer's own.
    /// :returns: ``ary``, or the new array.
    /// :raises TypeError: for what has no bytes.
    /// :raises BufferError: for what cannot be written, and for bytes that are not contiguous.
    /// :raises ValueError: for an object with fewer bytes, and for an array of NumPy's that is not contiguous.
    /// :raises ImportError: without ``ary`` and without NumPy.
    /// :raises aquifer.Error: while the memory sleeps, and on the simulated device for bytes that were never written.
    ///
    /// >>> import aquifer
    /// >>> target = bytearray(4)
    /// >>> aquifer.to_device(b"abcd").copy_to_host(target)
    /// bytearray(b'abcd')
    #[pyo3(signature = (ary=None, stream=Given::NONE))]
    fn copy_to_host(
        &self,
        py: Python<'_>,
        ary: Option<Py<PyAny>>,
        stream: Given<'_>,
    ) -> PyResult<Py<PyAny>> {
        guard_thread();
        let ary = match ary {
            Some(ary) => ary,
            None => {
                let numpy = crate::numpy::import(py, "copy_to_host() without a target")?;
                numpy.call_method1("empty", (self.size(), "u1"))?.unbind()
            }
        };
        let mut bytes = HostBytes::new_writable(ary.bind(py))?;
        // SAFETY: as in `of_host_bytes`.
        let target = unsafe { bytes.as_mut_slice() };
        let (room, size) = (target.len(), self.size());
        let target = target.get_mut(..size).ok_or_else(|| too_many(size, room))?;
        self.come_after(py, stream.get())?;
        detach(py, || self.state.with(|memory| memory.copy_to_slice(target)))?;
        drop(bytes);
        Ok(ary)
    }

    /// Overwrites the first bytes with those of a host's object.
    ///
    /// :param ary: ``bytes``, or a contiguous array of any numbers.
    /// :param stream: a stream whose work so far the copy comes after, beside the buffer's own.
    /// :raises TypeError: for what has no bytes.
    /// :raises BufferError: for bytes that are not contiguous.
    /// :raises ValueError: for more bytes than the buffer has, and for an array of NumPy's that is not contiguous.
    /// :raises aquifer.Error: while the memory sleeps.
    #[pyo3(signature = (ary, stream=Given::NONE))]
    fn copy_from_host(
        &self,
        py: Python<'_>,
        ary: &Bound<'_, PyAny>,
        stream: Given<'_>,
    ) -> PyResult<()> {
        let bytes = HostBytes::new(ary)?;
        // SAFETY: as in `of_host_bytes`.
        let source = unsafe { bytes.as_slice() };
        self.require_room(source.len())?;
        self.come_after(py, stream.get())?;
        let copy = |memory: &mut Memory| {
            memory.view_mut::<u8>()?.into_slice_mut(..source.len())?.copy_from_slice(source)
        };
        Ok(detach(py, || self.state.with(copy))?)
    }

    /// Overwrites the first bytes with those of an array on the device.
    ///
    /// :param cuda_ary: a contiguous array of any library that has ``__cuda_array_interface__``.
    /// :param stream: a stream whose work so far the copy comes after, beside the buffer's own and the array's.
    /// :raises TypeError: for what is no array on a device.
    /// :raises ValueError: for more bytes than the buffer has, and for an array that is not contiguous.
    /// :raises aquifer.Error: while the memory sleeps.
    ///
    /// >>> import aquifer
    /// >>> buffer = aquifer.to_device(b"abcd")
    /// >>> buffer.copy_from_device(aquifer.to_device(b"xy"))
    /// >>> buffer.tobytes()
    /// b'xycd'
    #[pyo3(signature = (cuda_ary, stream=Given::NONE))]
    fn copy_from_device(
        &self,
        py: Python<'_>,
        cuda_ary: &Bound<'_, PyAny>,
        stream: Given<'_>,
    ) -> PyResult<()> {
        let (address, bytes, theirs) = cuda_array(cuda_ary)?;
        self.require_room(bytes)?;
        if let Some(theirs) = theirs {
            self.come_after_handle(py, theirs)?;
        }
        self.come_after(py, stream.get())?;
        if address == self.state.parts().0 {
            // The bytes are there.
            return Ok(());
        }
        Ok(self.copy_from_address(py, address, bytes)?)
    }

    /// The bytes, as the host's.
    ///
    /// :param stream: a stream whose work so far the copy comes after, beside the buffer's own.
    /// :raises TypeError: for what is no stream.
    /// :raises aquifer.Error: while the memory sleeps, and on the simulated device for bytes that were never written.
    #[pyo3(signature = (stream=Given::NONE))]
    fn tobytes<'py>(&self, py: Python<'py>, stream: Given<'_>) -> PyResult<Bound<'py, PyBytes>> {
        self.come_after(py, stream.get())?;
        PyBytes::new_with(py, self.size(), |target| {
            detach(py, || self.state.with(|memory| memory.copy_to_slice(target)))?;
            Ok(())
        })
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.tobytes(py, Given::NONE)
    }

    /// From protocol 5 on the bytes are a `PickleBuffer`, which a pickler with `buffer_callback` hands over as it is.
    fn __reduce_ex__<'py>(
        slf: &Bound<'py, Self>,
        protocol: i32,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let py = slf.py();
        let mut bytes = slf.get().tobytes(py, Given::NONE)?.into_any();
        if protocol >= 5 {
            bytes = py.import("pickle")?.getattr("PickleBuffer")?.call1((bytes,))?;
        }
        Ok((slf.get_type().getattr("to_device")?, PyTuple::new(py, [bytes])?))
    }

    /// How Numba, CuPy and others see the memory: an array of bytes. Where ``stream`` has work to do, it is named, and they
    /// order their work after it.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guard_thread();
        self.state.require_awake()?;
        self.state.set_exported();
        let (address, bytes) = self.state.parts();
        let interface = PyDict::new(py);
        interface.set_item("data", (address, false))?;
        interface.set_item("shape", (bytes,))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("typestr", "|u1")?;
        let stream = self.state.stream();
        // In a capture, and of a stream that has failed, there is no answer.
        let is_idle = detach(py, || stream.stream().is_idle()).unwrap_or(false);
        interface.set_item("version", if is_idle { 0 } else { 3 })?;
        if !is_idle {
            interface.set_item("stream", Stream::new_of(stream).__cuda_stream__().1)?;
        }
        Ok(interface)
    }

    /// Moves managed memory to its device or to the host. Nothing happens to other memory.
    ///
    /// :param device: the number of the buffer's device, or -1 (``cudaCpuDeviceId``) for the host. None is the buffer's device.
    /// :param stream: a stream whose work so far the move comes after, beside the buffer's own.
    /// :raises ValueError: for another device.
    /// :raises aquifer.Error: where the driver refuses it.
    ///
    /// >>> import aquifer
    /// >>> buffer = aquifer.DeviceBuffer(size=1024, mr=aquifer.mr.ManagedMemoryResource())
    /// >>> buffer.prefetch()
    #[pyo3(signature = (device=None, stream=None))]
    fn prefetch(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument)] device: Option<i32>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let own = self.state.ordinal();
        let to = match device.unwrap_or(own) {
            -1 => MemoryLocation::Host,
            device if device == own => MemoryLocation::Device,
            other => {
                let message = format!(
                    "memory of device {own} was to be prefetched to device {other} (give {own}, or -1 for the host)"
                );
                return Err(PyValueError::new_err(message));
            }
        };
        self.come_after(py, stream)?;
        Ok(detach(py, || self.state.with(|memory| memory.prefetch(to)))?)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        guard_thread();
        (crate::dlpack::CUDA, self.state.ordinal())
    }

    /// The memory for another library, by DLPack: an array of bytes. The library's stream comes after this buffer's. For the
    /// host, ``dl_device=(1, 0)``, it is a copy.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument)] stream: Option<i64>,
        #[pyo3(from_py_with = argument)] max_version: Option<(u32, u32)>,
        #[pyo3(from_py_with = argument)] dl_device: Option<(i32, i32)>,
        #[pyo3(from_py_with = argument)] copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let device = self.__dlpack_device__();
        let is_copied = copy == Some(true);
        match dl_device.filter(|wanted| *wanted != device) {
            None => {
                let copied = if is_copied { Some(self.copy(py)?.state.clone()) } else { None };
                let state = copied.unwrap_or_else(|| self.state.clone());
                Ok(crate::dlpack::export(py, state, stream, max_version, is_copied)?)
            }
            Some(crate::dlpack::HOST) if copy != Some(false) => {
                let mut bytes = vec![0; self.size()];
                detach(py, || self.state.with(|memory| memory.copy_to_slice(&mut bytes)))?;
                Ok(crate::dlpack::export_host(py, bytes, max_version)?)
            }
            Some(crate::dlpack::HOST) => {
                let message =
                    "the host's memory was asked of a buffer without a copy (leave copy out)";
                Err(PyBufferError::new_err(message))
            }
            Some(_) => {
                let message = "memory of another device was asked of a buffer (copy it there)";
                Err(PyBufferError::new_err(message))
            }
        }
    }

    fn __repr__(&self) -> String {
        let (address, bytes) = self.state.parts();
        let whose = if self.state.resource.is_some() { "" } else { ", another library's" };
        format!(
            "<aquifer.DeviceBuffer of {} at {address:#x}, device {}{whose}>",
            size(bytes),
            self.device()
        )
    }
}

/// Bytes that have no place.
fn too_many(bytes: usize, room: usize) -> PyErr {
    let message =
        format!("{bytes} bytes were to be copied to {room} (give fewer, or a larger target)");
    PyValueError::new_err(message)
}

impl DeviceBuffer {
    fn of_host_bytes(
        py: Python<'_>,
        bytes: &HostBytes<'_>,
        stream: Given<'_>,
        mr: Option<&Bound<'_, DeviceMemoryResource>>,
    ) -> PyResult<Self> {
        // SAFETY: bytes that other threads write meanwhile are the caller's race, as they are of any copy in Python.
        let source = unsafe { bytes.as_slice() };
        let made = Self::allocate(py, source.len(), Opened::of_argument(py, stream.get())?, mr)?;
        detach(py, || made.state.with(|memory| memory.copy_from_slice(source)))?;
        Ok(made)
    }

    /// Changes the size or the place of the memory, which no other library may have by DLPack.
    fn change(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut Memory) -> aquifer_rs::Result<()> + Send,
    ) -> PyResult<()> {
        let changed = |memory: &mut Memory| {
            // Under the lock, under which another library is told of the address after it is counted.
            if Arc::strong_count(&self.state) > 1 {
                let message = "another library has the memory by DLPack, so its size cannot change (drop what was made of it)";
                return Err(PyBufferError::new_err(message).into());
            }
            if self.state.is_exported.load(Ordering::Relaxed) {
                come_after_all(memory)?;
            }
            Ok(change(memory)?)
        };
        Ok(detach(py, || self.state.with_raising(changed))?)
    }

    fn require_room(&self, bytes: usize) -> PyResult<()> {
        let room = self.size();
        if bytes <= room { Ok(()) } else { Err(too_many(bytes, room)) }
    }

    /// Has the buffer's next work come after what a stream was given, if one is named.
    fn come_after(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> Result<()> {
        let Some(stream) = stream.filter(|stream| !stream.is_none()) else { return Ok(()) };
        let (other, own) = (Opened::of_argument(py, Some(stream))?, self.state.stream());
        Ok(detach(py, || own.stream().wait_for(other.stream()))?)
    }

    /// As [`come_after`](Self::come_after), of a stream that is there for the time of the call.
    fn come_after_handle(&self, py: Python<'_>, handle: u64) -> Result<()> {
        let own = self.state.stream();
        let device = own.stream().device();
        detach(py, || {
            if handle == 2 {
                return Ok(own.stream().wait(&device.record()?)?);
            }
            // SAFETY: the array's stream, which lives as its owner says by naming it, and is kept no longer than this.
            let theirs = unsafe { aquifer_rs::Stream::from_handle(device, handle)? };
            Ok(own.stream().wait_for(&theirs)?)
        })
    }

    /// Has the memory be a stream's from now on, if one is named.
    fn move_to(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> Result<()> {
        let Some(stream) = stream.filter(|stream| !stream.is_none()) else { return Ok(()) };
        self.move_to_opened(py, Opened::of_argument(py, Some(stream))?)
    }

    fn move_to_opened(&self, py: Python<'_>, opened: Arc<Opened>) -> Result<()> {
        // Both under the memory's lock: of several threads, the one that is last sets both.
        let moved = |memory: &mut Memory| {
            memory.set_stream(opened.stream())?;
            Ok(std::mem::replace(&mut *self.state.stream.lock(), opened))
        };
        let before = detach(py, || self.state.with(moved))?;
        // Not under the locks: the drop may run code of Python.
        drop(before);
        Ok(())
    }

    fn copy_from_address(&self, py: Python<'_>, address: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let own = self.state.stream();
        detach(py, || {
            // SAFETY: device memory by an address that the caller names, as in any library of Python. It is kept until the
            // copy is done.
            let source = unsafe { foreign(own.stream(), address, bytes, || ())? };
            self.state.with(|memory| {
                memory.view_mut::<u8>()?.into_slice_mut(..bytes)?.copy_from(&source)
            })?;
            Ok(own.stream().synchronize()?)
        })
    }
}

/// Copies device memory at an address to a host's object.
///
/// :param db: the address.
/// :param hb: an object that may be written. As many bytes as it has are copied.
/// :param stream: the stream that copies. Left out, it is the legacy default stream.
/// :raises TypeError: for what has no bytes, and for ``stream=None``.
/// :raises BufferError: for what cannot be written.
/// :raises aquifer.Error: where the driver finds no such memory.
///
/// >>> import aquifer
/// >>> buffer = aquifer.to_device(b"abcd")
/// >>> target = bytearray(4)
/// >>> aquifer.copy_ptr_to_host(buffer.ptr, target)
/// >>> target
/// bytearray(b'abcd')
#[pyfunction]
#[pyo3(signature = (db, hb, stream=Given::NONE))]
pub(crate) fn copy_ptr_to_host(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] db: u64,
    hb: &Bound<'_, PyAny>,
    stream: Given<'_>,
) -> PyResult<()> {
    let mut bytes = HostBytes::new_writable(hb)?;
    // SAFETY: as in `of_host_bytes`.
    let target = unsafe { bytes.as_mut_slice() };
    let opened = Opened::of_argument(py, stream.get())?;
    let copied = detach(py, || -> Result<()> {
        // SAFETY: as in `copy_from_address`.
        let source = unsafe { foreign(opened.stream(), db, target.len(), || ())? };
        Ok(source.copy_to_slice(target)?)
    });
    Ok(copied?)
}

/// Copies the bytes of a host's object to device memory at an address.
///
/// :param hb: ``bytes``, or a contiguous array of any numbers. All its bytes are copied.
/// :param db: the address.
/// :param stream: the stream that copies. Left out, it is the legacy default stream.
/// :raises TypeError: for what has no bytes, and for ``stream=None``.
/// :raises aquifer.Error: where the driver finds no such memory.
///
/// >>> import aquifer
/// >>> buffer = aquifer.to_device(b"abcd")
/// >>> aquifer.copy_host_to_ptr(b"xy", buffer.ptr)
/// >>> buffer.tobytes()
/// b'xycd'
#[pyfunction]
#[pyo3(signature = (hb, db, stream=Given::NONE))]
pub(crate) fn copy_host_to_ptr(
    py: Python<'_>,
    hb: &Bound<'_, PyAny>,
    #[pyo3(from_py_with = argument)] db: u64,
    stream: Given<'_>,
) -> PyResult<()> {
    let bytes = HostBytes::new(hb)?;
    // SAFETY: as in `of_host_bytes`.
    let source = unsafe { bytes.as_slice() };
    let opened = Opened::of_argument(py, stream.get())?;
    let copied = detach(py, || -> Result<()> {
        // SAFETY: as in `copy_from_address`.
        let mut target = unsafe { foreign(opened.stream(), db, source.len(), || ())? };
        Ok(target.copy_from_slice(source)?)
    });
    Ok(copied?)
}

/// Copies device memory from an address to another.
///
/// :param d_src: the address to copy from.
/// :param d_dst: the address to copy to.
/// :param count: how many bytes are copied.
/// :param stream: the stream that copies. Left out, it is the legacy default stream.
/// :raises TypeError: for ``stream=None``, and for what is no stream.
/// :raises OverflowError: for a negative number of bytes.
/// :raises aquifer.Error: where the driver finds no such memory.
///
/// >>> import aquifer
/// >>> source, target = aquifer.to_device(b"abcd"), aquifer.to_device(b"wxyz")
/// >>> aquifer.copy_device_to_ptr(source.ptr, target.ptr, 2)
/// >>> target.tobytes()
/// b'abyz'
#[pyfunction]
#[pyo3(signature = (d_src, d_dst, count, stream=Given::NONE))]
pub(crate) fn copy_device_to_ptr(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] d_src: u64,
    #[pyo3(from_py_with = argument)] d_dst: u64,
    #[pyo3(from_py_with = argument)] count: usize,
    stream: Given<'_>,
) -> PyResult<()> {
    let opened = Opened::of_argument(py, stream.get())?;
    let copied = detach(py, || -> Result<()> {
        // SAFETY: as in `copy_from_address`.
        let source = unsafe { foreign(opened.stream(), d_src, count, || ())? };
        // SAFETY: as in `copy_from_address`.
        let mut target = unsafe { foreign(opened.stream(), d_dst, count, || ())? };
        Ok(target.copy_from(&source)?)
    });
    Ok(copied?)
}

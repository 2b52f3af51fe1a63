//! Streams: those of this package, and those of other libraries.
//!
//! A stream of another library is kept by its object: as long as the pool may name it, the object is referenced, so its
//! owner does not destroy it. When this package alone has the object, the stream is closed, and then the object let go.
//!
//! | table | key | holds | until |
//! |---|---|---|---|
//! | `FOREIGN` | the address of an object | the open stream and the object | a later stream is opened when nothing else has the object |
//! | `OF_PYTORCH` | a device and a handle | nothing: it finds an entry of `FOREIGN` | the same |
//!
//! PyTorch makes an object at each call, as of `torch.cuda.current_stream()`. None of them owns its stream, so the first one
//! serves for all. An object of another library may own it, and is kept itself, whatever handle it has.

use crate::device::{current_ordinal, device, leave_context};
use crate::error::{Raised, Result};
use crate::interpreter::{argument, detach, guard_thread, try_attach};
use aquifer_capi::embedded::{self, OpenStream};
use aquifer_rs::Device;
use parking_lot::Mutex;
use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

/// A stream of CUDA: a queue of work, in whose order memory is allocated and freed.
///
/// ``Stream()`` makes one on the current device. ``Stream(obj)`` is that of another library.
///
/// :param obj: a stream of CuPy, Numba, PyTorch or cuda.core, or any object that has ``__cuda_stream__``. It is kept as long as
///     its stream may be used. None makes a stream.
/// :param flags: how a new stream stands to the legacy default stream, of ``aquifer.CudaStreamFlags``. By default each waits for
///     the other.
/// :raises TypeError: for what is no stream.
/// :raises ValueError: for other flags, for flags beside ``obj``, and for the per-thread default stream.
/// :raises aquifer.Error: where there is no device.
///
/// >>> import aquifer
/// >>> stream = aquifer.Stream()
/// >>> buffer = aquifer.DeviceBuffer(size=1024, stream=stream)
/// >>> stream.wait(aquifer.default_stream())
/// >>> stream.synchronize()
/// >>> stream.is_default(), stream.handle == stream.ptr, stream.device
/// (False, True, 0)
#[pyclass(frozen, weakref, module = "aquifer")]
pub(crate) struct Stream {
    opened: Arc<Opened>,
}

/// A stream that is open, and what keeps it alive. No lock is held where one ends.
pub(crate) struct Opened {
    /// Until the drop.
    open: Option<OpenStream>,
    /// The other library's object, which is let go when the stream is closed.
    owner: Option<Py<PyAny>>,
}

/// The stream that a call names. None is refused, as RMM refuses it: a variable that was meant to hold a stream.
pub(crate) struct Given<'py>(Option<Bound<'py, PyAny>>);

impl Given<'_> {
    /// The call names none.
    pub(crate) const NONE: Self = Self(None);
}

impl<'py> Given<'py> {
    pub(crate) fn get(&self) -> Option<&Bound<'py, PyAny>> {
        self.0.as_ref()
    }
}

impl<'py> FromPyObject<'_, 'py> for Given<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_none() {
            let message = "stream argument cannot be None (leave it out for the default stream)";
            return Err(PyTypeError::new_err(message));
        }
        Ok(Self(Some(object.to_owned())))
    }
}

/// Held while another library's stream is opened, and while one is closed: a stream that is just found by its handle is not
/// closed for its last user before it is counted. Taken detached.
static OPENING: Mutex<()> = Mutex::new(());

/// Streams that could not be closed yet, as they were in capture, and their objects.
static LEFT_OPEN: Mutex<Vec<(OpenStream, Option<Py<PyAny>>)>> = Mutex::new(Vec::new());

/// Closes a stream, and lets its object go; or keeps both, to be closed later.
fn close(py: Python<'_>, open: OpenStream, owner: Option<Py<PyAny>>) {
    if embedded::is_forked_child() {
        // The stream is the parent's, and so is what the object would destroy.
        return std::mem::forget((open, owner));
    }
    let closed = detach(py, || {
        let _opening = OPENING.lock();
        open.close()
    });
    if let Err(open) = closed {
        LEFT_OPEN.lock().push((open, owner));
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let owner = self.owner.take();
        // Without an interpreter the stream is closed, and the object stays.
        if let Some(open) = self.open.take() {
            try_attach(|py| close(py, open, owner));
        }
    }
}

/// `CU_STREAM_DEFAULT` and `CU_STREAM_NON_BLOCKING`.
const SYNC_DEFAULT: u32 = 0;
const NON_BLOCKING: u32 = 1;

static FOREIGN: LazyLock<Mutex<HashMap<usize, Arc<Opened>>>> = LazyLock::new(Mutex::default);

/// Open streams by their device's number and their handle.
type ByHandle = HashMap<(i32, u64), Weak<Opened>>;

static OF_PYTORCH: LazyLock<Mutex<ByHandle>> = LazyLock::new(Mutex::default);

/// The legacy default stream of each device.
static DEFAULTS: LazyLock<Mutex<HashMap<i32, Arc<Opened>>>> = LazyLock::new(Mutex::default);

impl Opened {
    pub(crate) fn open(&self) -> &OpenStream {
        self.open.as_ref().unwrap_or_else(|| unreachable!("it is there until the drop"))
    }

    pub(crate) fn stream(&self) -> &aquifer_rs::Stream {
        self.open().stream()
    }

    /// A stream of the crate's.
    pub(crate) fn of(stream: aquifer_rs::Stream) -> Arc<Self> {
        Arc::new(Self { open: Some(OpenStream::new(stream)), owner: None })
    }

    /// The stream that a resource names to a callback: with the object that keeps it, where it is another library's.
    pub(crate) fn of_callback(stream: &aquifer_rs::Stream) -> Arc<Self> {
        let known = FOREIGN.lock().values().find(|opened| opened.stream() == stream).cloned();
        known.unwrap_or_else(|| Self::of(stream.clone()))
    }

    /// The default stream of a device.
    pub(crate) fn default_of(py: Python<'_>, ordinal: i32) -> Result<Arc<Self>> {
        if let Some(known) = DEFAULTS.lock().get(&ordinal) {
            return Ok(known.clone());
        }
        let made = Self::of(device(py, ordinal)?.default_stream());
        let mut defaults = DEFAULTS.lock();
        let first = defaults.entry(ordinal).or_insert_with(|| made.clone()).clone();
        drop(defaults);
        Ok(first)
    }

    /// The stream of an argument: the current device's default one without one.
    pub(crate) fn of_argument(
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<Arc<Self>> {
        guard_thread();
        let opened = match stream.filter(|stream| !stream.is_none()) {
            None => Self::default_of(py, current_ordinal())?,
            Some(stream) => match stream.cast::<Stream>() {
                Ok(own) => own.get().opened.clone(),
                Err(_) => Self::of_object(stream)?,
            },
        };
        leave_context(opened.stream().device());
        Ok(opened)
    }

    /// The stream of another library's object.
    fn of_object(object: &Bound<'_, PyAny>) -> Result<Arc<Self>> {
        let (py, key) = (object.py(), object.as_ptr().addr());
        // The object lives, so nothing else has its address.
        if let Some(known) = FOREIGN.lock().get(&key) {
            return Ok(known.clone());
        }
        let ordinal = ordinal_of(object);
        let handle = handle_of(object)?;
        if handle < 2 {
            return Self::default_of(py, ordinal);
        }
        let device = device(py, ordinal)?;
        let is_of_pytorch = object.hasattr("cuda_stream")?;
        if is_of_pytorch && let Some(known) = Self::of_pytorch(py, &device, handle)? {
            return Ok(known);
        }
        close_unused(py);
        // SAFETY: a stream that lives, as its object does, which `Opened` keeps until the stream is closed.
        let open = detach(py, || unsafe {
            let _opening = OPENING.lock();
            OpenStream::from_handle(&device, handle)
        })?;
        let opened = Arc::new(Self { open: Some(open), owner: Some(object.clone().unbind()) });
        let mut foreign = FOREIGN.lock();
        let first = foreign.entry(key).or_insert_with(|| opened.clone()).clone();
        drop(foreign);
        if is_of_pytorch {
            let mut of_pytorch = OF_PYTORCH.lock();
            of_pytorch.retain(|_, opened| opened.strong_count() > 0);
            of_pytorch.insert((ordinal, handle), Arc::downgrade(&first));
        }
        Ok(first)
    }

    /// The open stream of an earlier object of PyTorch's with the same handle.
    fn of_pytorch(py: Python<'_>, device: &Device, handle: u64) -> Result<Option<Arc<Self>>> {
        let known =
            OF_PYTORCH.lock().get(&(device.ordinal() as i32, handle)).and_then(Weak::upgrade);
        let Some(known) = known else { return Ok(None) };
        // SAFETY: a stream that lives, as its object does, and is kept no longer than that.
        let stream = detach(py, || unsafe { aquifer_rs::Stream::from_handle(device, handle) })?;
        // Another one if its owner destroyed it, and the driver gave its handle again.
        Ok((stream == *known.stream()).then_some(known))
    }
}

/// Closes the streams whose object nothing else has: before their owner destroys them.
fn close_unused(py: Python<'_>) {
    let is_unused = |opened: &Arc<Opened>| {
        let owner = opened.owner.as_ref();
        Arc::strong_count(opened) == 1 && owner.is_some_and(|owner| references(py, owner) == 1)
    };
    let unused: Vec<_> = {
        let mut foreign = FOREIGN.lock();
        let keys: Vec<usize> =
            foreign.iter().filter(|(_, opened)| is_unused(opened)).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| foreign.remove(&key)).collect()
    };
    // Not under the lock: an object's end runs code of Python.
    drop(unused);
    let left = std::mem::take(&mut *LEFT_OPEN.lock());
    for (open, owner) in left {
        close(py, open, owner);
    }
}

fn references(_py: Python<'_>, object: &Py<PyAny>) -> isize {
    // SAFETY: an object; the thread is attached.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) }
}

/// The number of the device of another library's stream.
fn ordinal_of(object: &Bound<'_, PyAny>) -> i32 {
    // CuPy: `device_id`, which is -1 for a default stream. PyTorch: `device_index`.
    for name in ["device_id", "device_index"] {
        if let Ok(id) = object.getattr(name)
            && let Ok(ordinal) = id.extract::<i32>()
            && ordinal >= 0
        {
            return ordinal;
        }
    }
    current_ordinal()
}

/// The driver's handle of another library's stream.
fn handle_of(object: &Bound<'_, PyAny>) -> Result<u64> {
    let handle = if let Ok(protocol) = object.getattr("__cuda_stream__") {
        let pair = if protocol.is_callable() { protocol.call0()? } else { protocol };
        let version = pair.get_item(0)?;
        if !version.eq(0)? {
            let message = format!(
                "Aquifer does not know the CUDA stream protocol of version: '{version}' (it knows 0)"
            );
            return Err(PyNotImplementedError::new_err(message).into());
        }
        pair.extract::<(i64, u64)>()?.1
    } else {
        let names = ["ptr", "cuda_stream", "handle"];
        let found = names.into_iter().find_map(|name| object.getattr(name).ok());
        let Some(found) = found else {
            let message = format!(
                "a stream was expected, and a {} was given (give an aquifer.Stream, a stream of CuPy, Numba, PyTorch or \
                 cuda.core, or any object that has __cuda_stream__)",
                object.get_type().name()?
            );
            return Err(PyTypeError::new_err(message).into());
        };
        match found.getattr("value") {
            // Numba's is of ctypes, where None is 0.
            Ok(value) if value.is_none() => 0,
            Ok(value) => value.extract::<u64>()?,
            Err(_) => found.call_method0("__int__")?.extract::<u64>()?,
        }
    };
    if handle == 2 {
        let message = "the per-thread default stream is another one on each thread, and memory outlives a thread \
                       (use a stream of your own; the allocators of CuPy and cuda.core take it)";
        return Err(PyValueError::new_err(message).into());
    }
    Ok(handle)
}

impl Stream {
    pub(crate) fn new_of(opened: Arc<Opened>) -> Self {
        Self { opened }
    }
}

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (obj=None, flags=None))]
    fn new(
        py: Python<'_>,
        obj: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] flags: Option<u32>,
    ) -> PyResult<Self> {
        if obj.is_some_and(|obj| !obj.is_none()) {
            if flags.is_some() {
                let message = "flags may only be specified when obj is None (a stream that is there has its own)";
                return Err(PyValueError::new_err(message));
            }
            return Ok(Self { opened: Opened::of_argument(py, obj)? });
        }
        let is_blocking = match flags.unwrap_or(SYNC_DEFAULT) {
            SYNC_DEFAULT => true,
            NON_BLOCKING => false,
            other => {
                let message =
                    format!("{other} is no flag of a stream (give one of CudaStreamFlags)");
                return Err(PyValueError::new_err(message));
            }
        };
        let device = device(py, current_ordinal())?;
        let made = detach(py, || match is_blocking {
            true => device.new_blocking_stream(),
            false => device.new_stream(),
        });
        let stream = made.map_err(Raised::from)?;
        Ok(Self { opened: Opened::of(stream) })
    }

    /// The driver's handle, a ``cudaStream_t``, as a number. That of the legacy default stream is 1.
    #[getter]
    fn handle(&self) -> u64 {
        let stream = self.opened.stream();
        if self.is_default() { 1 } else { stream.handle() }
    }

    /// The driver's handle, as CuPy calls ``handle``.
    #[getter]
    fn ptr(&self) -> u64 {
        self.handle()
    }

    /// The number of its device.
    #[getter]
    fn device(&self) -> usize {
        self.opened.stream().device().ordinal()
    }

    /// The protocol by which libraries take each other's streams: a version, and the handle.
    pub(crate) fn __cuda_stream__(&self) -> (u32, u64) {
        guard_thread();
        (0, self.handle())
    }

    /// Whether it is the legacy default stream, for which all streams wait that are not made non-blocking.
    fn is_default(&self) -> bool {
        let stream = self.opened.stream();
        *stream == stream.device().default_stream()
    }

    /// Blocks until the stream has done all that it was given.
    ///
    /// :raises aquifer.Error: while the stream is in capture, and where its work has failed.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        Ok(detach(py, || self.opened.stream().synchronize()).map_err(Raised::from)?)
    }

    /// Has the stream's later work come after what another one was given so far. Nothing waits on the host.
    ///
    /// :param other: the other stream, of this package or another library. None is the legacy default stream.
    /// :raises TypeError: for what is no stream.
    /// :raises aquifer.Error: where the driver refuses it.
    fn wait(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let other = Opened::of_argument(py, Some(other))?;
        let waited = detach(py, || self.opened.stream().wait_for(other.stream()));
        Ok(waited.map_err(Raised::from)?)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| self.opened.stream() == other.get().opened.stream())
    }

    fn __hash__(&self) -> u64 {
        self.opened.stream().id()
    }

    fn __repr__(&self) -> String {
        let kind = match (self.is_default(), &self.opened.owner) {
            (true, _) => "default",
            (_, Some(_)) => "of another library",
            (_, None) => "own",
        };
        format!("<aquifer.Stream {kind}, device {}, handle {:#x}>", self.device(), self.handle())
    }
}

/// The legacy default stream of a device.
///
/// :param device: the number of the device. None is the current one.
/// :raises ValueError: for a negative number.
/// :raises aquifer.Error: for a device that is not there.
///
/// >>> import aquifer
/// >>> aquifer.default_stream().is_default()
/// True
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn default_stream(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] device: Option<i32>,
) -> PyResult<Stream> {
    let opened = Opened::default_of(py, device.unwrap_or_else(current_ordinal))?;
    Ok(Stream { opened })
}

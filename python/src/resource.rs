//! Memory resources: stacks of the crate's, around which `aquifer.mr` has a class for each of RMM's.

use crate::callback::{self, Functions};
use crate::counters::{self, CounterValues};
use crate::detached::Detached;
use crate::device::{current_ordinal, device};
use crate::error::{Raised, Result, python_cause};
use crate::interpreter::{argument, detach, guard_thread};
use crate::stream::{Given, Opened};
use aquifer_capi::embedded::{self, Callbacks, OwnStack};
use aquifer_rs::{
    DeviceResource, Error,
    mr::{AsyncResource, BinningResource, Keep, ResourceStack, StackText, flush_logs},
};
use parking_lot::Mutex;
use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// What hands out device memory, on the device that was current when it was made. The base of the classes in
/// ``aquifer.mr``, and the class of what ``aquifer.use`` makes.
///
/// A subclass calls ``super().__init__`` first. Without that its methods raise ``RuntimeError``.
///
/// >>> import aquifer
/// >>> resource = aquifer.use("pool(cuda, max=1GiB) | limiting(512MiB) | tracking | statistics")
/// >>> ptr = resource.allocate(1000)
/// >>> resource.get_allocated_bytes(), resource.get_allocation_limit()
/// (1000, 536870912)
/// >>> resource.pool_statistics()["live_blocks"], "1000" in resource.get_outstanding_allocations_str()
/// (1, True)
/// >>> before = resource.push_counters()
/// >>> resource.deallocate(ptr, 1000)
/// >>> resource.pop_counters().current_bytes, resource.allocation_counts.total_bytes
/// (-1000, 1000)
/// >>> resource.trim() > 0
/// True
/// >>> resource.device
/// 0
/// >>> resource.text
/// 'pool(cuda, maximum_size=1GiB, handles=off) | limiting(512MiB) | tracking | statistics'
#[pyclass(subclass, frozen, weakref, module = "aquifer.mr")]
pub(crate) struct DeviceMemoryResource {
    /// Filled by `__init__`, and again where a bin is added.
    built: Mutex<Option<Arc<Built>>>,
}

pub(crate) struct Built {
    native: Detached<Native>,
    has_callbacks: bool,
    /// Of a resource that calls functions of Python itself.
    functions: Option<Arc<Functions>>,
    /// Dropped after the resources over them.
    upstreams: Vec<Py<PyAny>>,
}

struct Native {
    resources: ResourceStack,
    /// Made at its first need.
    stack: OnceLock<OwnStack>,
}

impl Built {
    fn new(resources: ResourceStack, has_callbacks: bool, upstreams: Vec<Py<PyAny>>) -> Self {
        let native = Detached::new(Native { resources, stack: OnceLock::new() });
        Self { native, has_callbacks, functions: None, upstreams }
    }

    /// Of a resource that calls these.
    fn with_functions(
        resources: ResourceStack,
        functions: Arc<Functions>,
        upstreams: Vec<Py<PyAny>>,
    ) -> Self {
        Self { functions: Some(functions), ..Self::new(resources, true, upstreams) }
    }

    pub(crate) fn stack(&self) -> Result<&OwnStack> {
        if let Some(stack) = self.native.stack.get() {
            return Ok(stack);
        }
        // An error in the child of a fork, where another thread may have had the lock of the stacks.
        embedded::device(self.ordinal())?;
        Ok(self.native.stack.get_or_init(|| {
            let callbacks = if self.has_callbacks { Callbacks::Some } else { Callbacks::None };
            OwnStack::new(self.native.resources.clone(), callbacks)
        }))
    }

    pub(crate) fn resources(&self) -> &ResourceStack {
        &self.native.resources
    }

    pub(crate) fn ordinal(&self) -> i32 {
        self.resources().device().ordinal() as i32
    }
}

impl DeviceMemoryResource {
    /// Of a stack that is there.
    pub(crate) fn of(stack: OwnStack) -> Self {
        let (resources, has_callbacks) = (stack.resources().clone(), stack.has_callbacks());
        let native = Detached::new(Native { resources, stack: OnceLock::from(stack) });
        let built = Built { native, has_callbacks, functions: None, upstreams: Vec::new() };
        Self { built: Mutex::new(Some(Arc::new(built))) }
    }

    pub(crate) fn built(&self) -> Result<Arc<Built>> {
        let built = self.built.lock().clone();
        built.ok_or_else(|| {
            let message = "the resource was not made (a subclass calls super().__init__ first)";
            PyRuntimeError::new_err(message).into()
        })
    }

    fn set(&self, built: Built) {
        let before = self.built.lock().replace(Arc::new(built));
        // Not under the lock: the drop may run code of Python.
        drop(before);
    }
}

/// A resource of RMM's classes, or one that `aquifer.use` made.
type Other<'a, 'py> = &'a Bound<'py, DeviceMemoryResource>;

#[pymethods]
impl DeviceMemoryResource {
    /// `__init__` of a class of `aquifer.mr` has the arguments.
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        guard_thread();
        Self { built: Mutex::new(None) }
    }

    /// Builds it by the text of a stack; over another one where that is given.
    #[pyo3(signature = (text, upstream=None))]
    fn _build(slf: &Bound<'_, Self>, text: &str, upstream: Option<Other<'_, '_>>) -> PyResult<()> {
        let py = slf.py();
        let (built, has_callbacks, upstreams) = match upstream {
            Some(upstream) => {
                let below = upstream.get().built()?;
                let built = detach(py, || below.resources().with_shareable(text));
                (built, below.has_callbacks, vec![upstream.clone().into_any().unbind()])
            }
            None => {
                let device = device(py, current_ordinal())?;
                let build = || text.parse::<StackText>()?.shareable().build(&device);
                (detach(py, build), false, Vec::new())
            }
        };
        let class = slf.get_type().name()?.to_string();
        let resources = built.map_err(|error| Raised::from(of_class(&class, error)))?;
        slf.get().set(Built::new(resources, has_callbacks, upstreams));
        Ok(())
    }

    /// Builds it of two functions.
    fn _build_callback(
        &self,
        py: Python<'_>,
        allocate: Py<PyAny>,
        deallocate: Py<PyAny>,
    ) -> PyResult<()> {
        let functions = Functions::new([allocate, deallocate]);
        let resource = callback::resource(&device(py, current_ordinal())?, functions.clone());
        let resources = ResourceStack::compose(resource, &[]);
        self.set(Built::with_functions(resources, functions, Vec::new()));
        Ok(())
    }

    /// Builds it over another one, with a function that is told of failures.
    fn _build_failure_callback(
        &self,
        upstream: Other<'_, '_>,
        callback: Py<PyAny>,
    ) -> PyResult<()> {
        let below = upstream.get().built()?;
        let functions = Functions::new([callback]);
        let resource =
            callback::on_failure(below.resources().resource().clone(), functions.clone());
        let resources = ResourceStack::compose(resource, &[below.resources()]);
        let upstreams = vec![upstream.clone().into_any().unbind()];
        self.set(Built::with_functions(resources, functions, upstreams));
        Ok(())
    }

    /// Builds it over another one, with resources for sizes.
    fn _build_binning(
        &self,
        py: Python<'_>,
        upstream: Other<'_, '_>,
        #[pyo3(from_py_with = argument)] bins: Vec<(usize, Py<DeviceMemoryResource>)>,
    ) -> PyResult<()> {
        let below = upstream.get().built()?;
        let built: Vec<_> = bins.iter().map(|(_, bin)| bin.get().built()).collect::<Result<_>>()?;
        let resource = below.resources().resource().clone();
        let build = || {
            let mut builder = BinningResource::builder(resource);
            for ((bytes, _), bin) in bins.iter().zip(&built) {
                builder = builder.bin(*bytes, bin.resources().clone());
            }
            builder.build()
        };
        // One without bins is its upstream.
        let binning: Arc<dyn DeviceResource> = match bins.is_empty() {
            true => below.resources().resource().clone(),
            false => Arc::new(detach(py, build).map_err(Raised::from)?),
        };
        let inside: Vec<&ResourceStack> =
            built.iter().map(|bin| bin.resources()).chain([below.resources()]).collect();
        let has_callbacks = below.has_callbacks || built.iter().any(|bin| bin.has_callbacks);
        let upstreams = std::iter::once(upstream.clone().into_any().unbind())
            .chain(bins.iter().map(|(_, bin)| bin.clone_ref(py).into_any()))
            .collect();
        self.set(Built::new(ResourceStack::compose(binning, &inside), has_callbacks, upstreams));
        Ok(())
    }

    /// Builds it of a `cudaMemPool_t` that another library made.
    fn _build_pool_view(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument)] handle: u64,
    ) -> PyResult<()> {
        let device = device(py, current_ordinal())?;
        // SAFETY: a pool of the device, which the caller keeps: the contract of the Python class.
        let resource = unsafe { AsyncResource::from_raw_pool(&device, handle) };
        let resource = resource.map_err(Raised::from)?;
        self.set(Built::new(ResourceStack::compose(resource, &[]), false, Vec::new()));
        Ok(())
    }

    /// Memory for work on a stream, from this call on. ``deallocate`` gives it back.
    ///
    /// :param nbytes: the size in bytes.
    /// :param stream: the stream of the first work on it. Left out, it is the legacy default stream.
    /// :returns: the address, a multiple of 256 bytes. It is 0 for 0 bytes.
    /// :raises TypeError: for ``stream=None``, and for what is no stream.
    /// :raises OverflowError: for a negative size.
    /// :raises MemoryError: where there is no memory.
    /// :raises aquifer.Error: while the memory sleeps, and in the child of a fork.
    #[pyo3(signature = (nbytes, stream=Given::NONE))]
    fn allocate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument)] nbytes: usize,
        stream: Given<'_>,
    ) -> PyResult<u64> {
        let built = self.built()?;
        let stream = Opened::of_argument(py, stream.get())?;
        let allocate = || -> Result<u64> {
            let allocated = built.stack()?.allocate(nbytes, stream.open());
            allocated.map_err(Raised::of_allocation)
        };
        Ok(detach(py, allocate)?)
    }

    /// Gives memory back in the order of a stream: work that was given to it before may use the memory.
    ///
    /// The memory goes back to the resource that it came from, which may be another one.
    ///
    /// :param ptr: the address.
    /// :param nbytes: the size in bytes.
    /// :param stream: the stream. Left out, it is the legacy default stream.
    /// :raises TypeError: for ``stream=None``, and for what is no stream.
    /// :raises ValueError: for an address that is no block, or was freed before.
    /// :raises aquifer.Error: in the child of a fork.
    #[pyo3(signature = (ptr, nbytes, stream=Given::NONE))]
    fn deallocate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument)] ptr: u64,
        #[pyo3(from_py_with = argument)] nbytes: usize,
        stream: Given<'_>,
    ) -> PyResult<()> {
        let stream = Opened::of_argument(py, stream.get())?;
        // SAFETY: of this package a wrong address is an error; that work was given before is the method's contract.
        let freed =
            detach(py, || unsafe { embedded::deallocate(ptr, nbytes, Some(stream.open())) });
        Ok(freed.map_err(Raised::from)?)
    }

    /// Gives free memory back to the driver, as far as the device is past its work on it.
    ///
    /// :param keep: how many bytes the pool keeps at least.
    /// :param wait: whether it waits first for the streams that freed memory.
    /// :returns: how many bytes went back.
    /// :raises OverflowError: for a negative number of bytes.
    /// :raises aquifer.Error: where a wait meets a stream in capture, or the driver fails.
    #[pyo3(signature = (keep=0, *, wait=false))]
    fn trim(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument)] keep: usize,
        wait: bool,
    ) -> PyResult<usize> {
        let built = self.built()?;
        let trim = || match wait {
            true => built.resources().wait_and_trim(keep),
            false => built.resources().trim(keep),
        };
        Ok(detach(py, trim).map_err(Raised::from)?)
    }

    /// Puts the contents of its pool aside, and gives the memory back: how many bytes went. `keep` is `page_locked`,
    /// `nothing` or `file`, for which a folder is given.
    #[pyo3(signature = (keep, folder=None))]
    fn _sleep(&self, py: Python<'_>, keep: &str, folder: Option<PathBuf>) -> PyResult<usize> {
        let built = self.built()?;
        let keep = match (keep, folder) {
            ("page_locked", None) => Keep::PageLocked,
            ("nothing", None) => Keep::Nothing,
            ("file", Some(folder)) => Keep::File(folder),
            _ => {
                let message = "keep is 'page_locked', 'nothing', or 'file' with a folder";
                return Err(PyValueError::new_err(message));
            }
        };
        let sleep = || -> Result<usize> {
            if matches!(keep, Keep::PageLocked) {
                // The contents are of the pool that `aquifer.pinned` tells of.
                embedded::host_pool()?;
            }
            // SAFETY: the contract of `aquifer.sleep`: no library gives the device work on the memory meanwhile.
            Ok(unsafe { built.resources().sleep(keep) }?.bytes)
        };
        Ok(detach(py, sleep)?)
    }

    /// Brings the memory back.
    fn _wake(&self, py: Python<'_>) -> PyResult<()> {
        let built = self.built()?;
        detach(py, || built.resources().wake()).map_err(Raised::from)?;
        Ok(())
    }

    #[getter]
    fn _is_asleep(&self) -> PyResult<bool> {
        Ok(self.built()?.resources().is_asleep())
    }

    /// What the outermost pool holds and did, as a dict of numbers. It is empty without a pool.
    ///
    /// The keys that end in ``_bytes`` are bytes: ``reserved_bytes`` is what the pool has of its upstream, ``live_bytes`` what is
    /// in use. The others are counts.
    fn pool_statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guard_thread();
        let dict = PyDict::new(py);
        if let Some(pool) = self.built()?.resources().pool_statistics() {
            for (name, value) in [
                ("reserved_bytes", pool.reserved),
                ("peak_reserved_bytes", pool.peak_reserved),
                ("live_bytes", pool.live),
                ("live_blocks", pool.live_blocks),
                ("asleep_bytes", pool.asleep),
                ("free_bytes", pool.free),
                ("cached_bytes", pool.cached),
                ("largest_free_bytes", pool.largest_free),
                ("upstream_blocks", pool.upstream_blocks),
                ("streams", pool.streams),
                ("misses", pool.misses),
                ("growths", pool.growths),
                ("returns", pool.returns),
            ] {
                dict.set_item(name, value)?;
            }
        }
        Ok(dict)
    }

    /// The text of its stack, as ``aquifer.use`` takes it. It is None with a function of Python inside.
    #[getter]
    fn text(&self) -> PyResult<Option<String>> {
        Ok(self.built()?.resources().text().map(ToString::to_string))
    }

    /// The number of its device.
    #[getter]
    fn device(&self) -> PyResult<i32> {
        Ok(self.built()?.ordinal())
    }

    /// The driver's handle of the outermost pool of the driver's.
    fn _pool_handle(&self) -> PyResult<Option<u64>> {
        guard_thread();
        Ok(self.built()?.resources().driver_pool().map(|pool| pool.as_raw_pool()))
    }

    /// The resources that it is over.
    fn _upstreams(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        guard_thread();
        Ok(self.built()?.upstreams.iter().map(|upstream| upstream.clone_ref(py)).collect())
    }

    /// What the outermost ``statistics`` has counted, in bytes and blocks. The innermost scope of the process counts from its
    /// beginning. A stack without ``statistics`` has no such attribute.
    #[getter]
    fn allocation_counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        counters::object(py, self._counters()?.ok_or_else(|| without("statistics"))?)
    }

    /// Opens a scope of the process, in which the calls of all threads count from zero.
    ///
    /// :returns: the counters before, an ``aquifer.statistics.Statistics``.
    /// :raises AttributeError: of a stack without ``statistics``.
    fn push_counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        counters::object(py, self._push_counters()?.ok_or_else(|| without("statistics"))?)
    }

    /// Ends the innermost scope of the process, whichever thread opened it.
    ///
    /// :returns: its counters, an ``aquifer.statistics.Statistics``.
    /// :raises IndexError: without a scope.
    /// :raises AttributeError: of a stack without ``statistics``.
    fn pop_counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        counters::object(py, self._pop_counters()?.ok_or_else(|| without("statistics"))?)
    }

    /// The bytes in use, of the outermost ``tracking``, or else ``limiting``.
    ///
    /// :raises AttributeError: of a stack without either.
    fn get_allocated_bytes(&self) -> PyResult<usize> {
        let tracked = self._tracked()?.map(|(_, bytes)| bytes);
        let bytes = match tracked {
            None => self._limited()?.map(|(bytes, _)| bytes),
            tracked => tracked,
        };
        bytes.ok_or_else(|| without("tracking"))
    }

    /// The limit of the outermost ``limiting``, in bytes.
    ///
    /// :raises AttributeError: of a stack without ``limiting``.
    fn get_allocation_limit(&self) -> PyResult<usize> {
        Ok(self._limited()?.ok_or_else(|| without("limiting"))?.1)
    }

    /// The blocks in use of the outermost ``tracking``, a line each, with their bytes. It is empty without any.
    ///
    /// :raises AttributeError: of a stack without ``tracking``.
    fn get_outstanding_allocations_str(&self) -> PyResult<String> {
        let (report, bytes) = self._tracked()?.ok_or_else(|| without("tracking"))?;
        Ok(if bytes > 0 { report } else { String::new() })
    }

    /// As `allocation_counts`, without an object of its own. None without a `statistics`, as of the next two.
    fn _counters(&self) -> PyResult<Option<CounterValues>> {
        guard_thread();
        Ok(self.built()?.resources().statistics().map(counters::read))
    }

    fn _push_counters(&self) -> PyResult<Option<CounterValues>> {
        guard_thread();
        Ok(self.built()?.resources().statistics().map(counters::push).transpose()?)
    }

    fn _pop_counters(&self) -> PyResult<Option<CounterValues>> {
        guard_thread();
        Ok(self.built()?.resources().statistics().map(counters::pop).transpose()?)
    }

    /// The report of the outermost `tracking`, and its bytes.
    fn _tracked(&self) -> PyResult<Option<(String, usize)>> {
        guard_thread();
        let built = self.built()?;
        Ok(built.resources().tracking().map(|it| (it.report(), it.allocated_bytes())))
    }

    /// The bytes and the limit of the outermost `limiting`.
    fn _limited(&self) -> PyResult<Option<(usize, usize)>> {
        guard_thread();
        let built = self.built()?;
        Ok(built.resources().limiting().map(|it| (it.allocated(), it.limit())))
    }

    /// The maximum of the outermost `pool`. None without one, and without a maximum.
    fn _pool_maximum(&self) -> PyResult<Option<usize>> {
        guard_thread();
        Ok(self.built()?.resources().pool().and_then(|pool| pool.maximum_size()))
    }

    /// Waits until the rows of the logs are written.
    fn _flush(&self, py: Python<'_>) -> PyResult<()> {
        let built = self.built()?;
        Ok(detach(py, || built.resources().flush()).map_err(Raised::from)?)
    }

    /// The blocks of upstream, and what lies in them, of the outermost pool.
    fn _memory_map(&self, py: Python<'_>) -> PyResult<Option<MapValues>> {
        let built = self.built()?;
        let map = detach(py, || built.resources().pool().map(|pool| pool.memory_map()));
        Ok(map.map(|map| {
            let blocks = map.blocks.iter().map(|it| (it.address, it.bytes, it.is_free));
            (map.upstream_blocks, blocks.collect())
        }))
    }

    // The functions and the resources below are this object's, and of no other.
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        // Attached threads alone have the lock, none of which runs now.
        let Some(built) = self.built.try_lock() else { return Ok(()) };
        let Some(built) = &*built else { return Ok(()) };
        built.upstreams.iter().try_for_each(|upstream| visit.call(upstream))?;
        built.functions.iter().try_for_each(|functions| functions.traverse(&visit))
    }

    fn __clear__(&self) {
        let built = self.built.lock().take();
        if let Some(functions) = built.as_ref().and_then(|built| built.functions.as_ref()) {
            functions.clear();
        }
        // Not under the lock: the drop may run code of Python.
        drop(built);
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        guard_thread();
        let name = slf.get_type().qualname()?;
        let built = slf.get().built.lock().clone();
        let Some(built) = built else { return Ok(format!("<aquifer.mr.{name}, not made>")) };
        let resources = built.resources();
        // As Python shows a text.
        let text = match resources.text() {
            Some(text) => format!(" {}", PyString::new(slf.py(), &text.to_string()).repr()?),
            None => String::new(),
        };
        let held = match resources.pool_statistics() {
            Some(pool) => format!(", {} of {} in use", size(pool.live), size(pool.reserved)),
            None => String::new(),
        };
        Ok(format!("<aquifer.mr.{name}{text}, device {}{held}>", built.ordinal()))
    }
}

/// Waits until the rows of all logs are written, for a process that ends by `_exit`.
#[pyfunction]
pub(crate) fn _flush_logs(py: Python<'_>) {
    detach(py, flush_logs);
}

/// An error of a class's constructor, whose caller wrote no text of a stack.
fn of_class(class: &str, error: Error) -> Error {
    // A callback's exception stays what it is.
    if class == "DeviceMemoryResource" || python_cause(&error).is_some() {
        return error;
    }
    match error.to_string().split_once(" of a stack's text: ") {
        Some((_, what)) => Error::new(error.kind(), format!("making a {class}: {what}")),
        None => error,
    }
}

/// Blocks of upstream: address and bytes. Blocks in them: address, bytes, whether it is free.
type MapValues = (Vec<(u64, usize)>, Vec<(u64, usize, bool)>);

/// Of a stack without a part.
fn without(part: &str) -> PyErr {
    PyAttributeError::new_err(format!("the stack has no {part} (add \"| {part}\" to its text)"))
}

/// Bytes as a person reads them.
pub(crate) fn size(bytes: usize) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = (bytes.max(1).ilog2() / 10).min(5);
    match power {
        0 => format!("{bytes} B"),
        _ => format!(
            "{:.1} {}",
            bytes as f64 / (1_u64 << (10 * power)) as f64,
            units[power as usize]
        ),
    }
}

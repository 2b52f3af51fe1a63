//! Resources that call functions of Python. They attach to the interpreter for the call, and no lock of the library is held
//! meanwhile, so a function may allocate, too.

use crate::interpreter::{Attached, try_attach};
use crate::stream::{Opened, Stream};
use aquifer_capi::embedded;
use aquifer_rs::{
    Device, DeviceBlock, DeviceLayout, DeviceResource, Error, ErrorKind, Result,
    mr::{CallbackResource, Failure, FailureCallbackAdaptor, ResourceId},
};
use parking_lot::Mutex;
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyRuntimeError, PySystemExit};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const AT_EXIT: &str = "a function of Python was to be called, whose interpreter is ending";

/// The exception that is on its way as an object ends, which is so again after a function was called.
struct Pending<'py>(Python<'py>, Option<PyErr>);

impl<'py> Pending<'py> {
    fn take(py: Python<'py>) -> Self {
        Self(py, PyErr::take(py))
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(pending) = self.1.take() {
            pending.restore(self.0);
        }
    }
}

/// Of an exception, which the caller of the allocation gets: as it is, if it is a `MemoryError`, a `RuntimeError`, or one that
/// ends the program. Another one is the cause of a `RuntimeError`, which is what RMM makes of it, so callers know two classes.
fn error_of(py: Python<'_>, raised: PyErr) -> Error {
    let what = format!("a callback raised {raised}");
    if raised.is_instance_of::<PyMemoryError>(py) {
        return Error::new(ErrorKind::OutOfMemory, what).with_cause(raised);
    }
    let passes = raised.is_instance_of::<PyRuntimeError>(py)
        || raised.is_instance_of::<PyKeyboardInterrupt>(py)
        || raised.is_instance_of::<PySystemExit>(py);
    let shown = match passes {
        true => raised,
        false => {
            let shown = crate::error::Error::new_err(what.clone());
            shown.set_cause(py, Some(raised));
            shown
        }
    };
    Error::new(ErrorKind::Unsupported, what).with_cause(shown)
}

/// The functions of a resource. Its object shows them to the collector of garbage, as they may refer to the object.
///
/// The closures of the resource have them, too, and may outlive the object, as the memory that was allocated by its address.
/// So they are not shown while a block is in use. Attached threads alone change what is here.
pub(crate) struct Functions {
    /// Empty when the collector has taken them.
    functions: Mutex<Vec<Attached<PyAny>>>,
    /// Blocks that were allocated and not freed.
    blocks: AtomicUsize,
}

impl Functions {
    pub(crate) fn new(functions: impl IntoIterator<Item = Py<PyAny>>) -> Arc<Self> {
        let functions = Mutex::new(functions.into_iter().map(Attached::new).collect());
        Arc::new(Self { functions, blocks: AtomicUsize::new(0) })
    }

    fn get(&self, py: Python<'_>, number: usize) -> PyResult<Py<PyAny>> {
        let found = self.functions.lock().get(number).map(|function| function.clone_ref(py));
        found.ok_or_else(|| {
            PyRuntimeError::new_err(
                "the functions of the resource were collected as garbage, with its object",
            )
        })
    }

    fn are_shown(&self) -> bool {
        self.blocks.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        match self.functions.try_lock() {
            Some(functions) if self.are_shown() => {
                functions.iter().try_for_each(|function| visit.call(&**function))
            }
            _ => Ok(()),
        }
    }

    /// Lets go of them, if the collector was shown them.
    pub(crate) fn clear(&self) {
        if self.are_shown() {
            let functions = std::mem::take(&mut *self.functions.lock());
            // Not under the lock: the drop may run code of Python.
            drop(functions);
        }
    }
}

/// A resource by two functions, as RMM's `CallbackMemoryResource`: `allocate(nbytes, stream)` returns an address,
/// `deallocate(ptr, nbytes, stream)` frees it.
pub(crate) fn resource(device: &Device, functions: Arc<Functions>) -> CallbackResource {
    let of_frees = functions.clone();
    let allocated = move |stream: &aquifer_rs::Stream, layout: aquifer_rs::DeviceLayout| {
        let bytes = layout.bytes();
        let is_block =
            |address: u64| address != 0 && address.is_multiple_of(layout.alignment() as u64);
        let call = |py: Python<'_>| {
            let _pending = Pending::take(py);
            let stream = Stream::new_of(Opened::of_callback(stream));
            let called = functions
                .get(py, 0)
                .and_then(|allocate| embedded::in_callback(|| allocate.call1(py, (bytes, stream))));
            let called = called.and_then(|it| it.extract::<u64>(py));
            if called.as_ref().is_ok_and(|address| is_block(*address)) {
                functions.blocks.fetch_add(1, Ordering::Relaxed);
            }
            called.map_err(|raised| error_of(py, raised))
        };
        let address =
            try_attach(call).unwrap_or_else(|| Err(Error::new(ErrorKind::Unsupported, AT_EXIT)))?;
        if !is_block(address) {
            let what = format!(
                "a callback returned {address:#x}, where memory at a multiple of {} was asked",
                layout.alignment()
            );
            return Err(Error::new(ErrorKind::Unsupported, what)
                .with_advice("return an address, or raise MemoryError"));
        }
        Ok(DeviceBlock::new(address, bytes, 0))
    };
    let freed = move |stream: &aquifer_rs::Stream, block: DeviceBlock| {
        try_attach(|py| {
            let _pending = Pending::take(py);
            let stream = Stream::new_of(Opened::of_callback(stream));
            let arguments = (block.address(), block.bytes(), stream);
            match of_frees.get(py, 1) {
                Ok(deallocate) => {
                    let called = embedded::in_callback(|| deallocate.call1(py, arguments));
                    if let Err(raised) = called {
                        raised.write_unraisable(py, Some(deallocate.bind(py)));
                    }
                }
                Err(raised) => raised.write_unraisable(py, None),
            }
            // Last: until here the functions are in use.
            of_frees.blocks.fetch_sub(1, Ordering::Relaxed);
        });
    };
    // SAFETY: the functions hand out device memory that stays valid until it is given back: the contract of the Python
    // class, whose documentation says so.
    unsafe { CallbackResource::new(device, allocated, freed) }
}

thread_local! {
    /// What the callback of an [`OnFailure`] raised, in the allocation that the thread is in.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// An adaptor whose callback's exception the caller of the allocation gets, in place of the failure.
#[derive(Debug)]
struct OnFailure(FailureCallbackAdaptor<Arc<dyn DeviceResource>>);

// SAFETY: every block is the adaptor's, and goes back to it unchanged.
unsafe impl DeviceResource for OnFailure {
    fn device(&self) -> &Device {
        self.0.device()
    }

    fn identity(&self) -> ResourceId {
        self.0.identity()
    }

    fn frees_with_driver(&self, block: &DeviceBlock) -> bool {
        self.0.frees_with_driver(block)
    }

    fn allocate(&self, stream: &aquifer_rs::Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let allocated = self.0.allocate(stream, layout);
        if allocated.is_ok() {
            return allocated;
        }
        let Some(raised) = RAISED.take() else { return allocated };
        // An interpreter that is ending raises nothing.
        try_attach(|py| Err(error_of(py, raised))).unwrap_or(allocated)
    }

    unsafe fn deallocate(&self, stream: &aquifer_rs::Stream, block: DeviceBlock) {
        // SAFETY: the caller's promise, unchanged.
        unsafe { self.0.deallocate(stream, block) }
    }
}

/// A resource that asks a function of Python whether to try again: `callback(nbytes)` returns a bool.
pub(crate) fn on_failure(
    upstream: Arc<dyn DeviceResource>,
    functions: Arc<Functions>,
) -> impl DeviceResource + 'static {
    OnFailure(FailureCallbackAdaptor::new(upstream, move |failure: &Failure<'_>| {
        let call = |py: Python<'_>| {
            let _pending = Pending::take(py);
            let bytes = failure.layout().bytes();
            let called = functions.get(py, 0).and_then(|callback| callback.call1(py, (bytes,)));
            let retry = called.and_then(|it| it.bind(py).is_truthy());
            retry.unwrap_or_else(|raised| {
                RAISED.set(Some(raised));
                false
            })
        };
        try_attach(call).unwrap_or(false)
    }))
}

//! Resources that call functions of Python. They attach to the interpreter for the call, and no lock of the library is held
//! meanwhile, so a function may allocate, too.

use crate::interpreter::{Attached, try_attach};
use crate::stream::{Opened, Stream};
use aquifer_capi::embedded;
use aquifer_rs::{
    Device, DeviceBlock, DeviceLayout, DeviceResource, Error, ErrorKind, Result,
    mr::{CallbackResource, Failure, FailureCallbackAdaptor, ResourceId},
};
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyRuntimeError, PySystemExit};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::Arc;

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

/// A resource by two functions, as RMM's `CallbackMemoryResource`: `allocate(nbytes, stream)` returns an address,
/// `deallocate(ptr, nbytes, stream)` frees it.
pub(crate) fn resource(
    device: &Device,
    allocate: Py<PyAny>,
    deallocate: Py<PyAny>,
) -> CallbackResource {
    let (allocate, deallocate) = (Attached::new(allocate), Attached::new(deallocate));
    let allocated = move |stream: &aquifer_rs::Stream, layout: aquifer_rs::DeviceLayout| {
        let bytes = layout.bytes();
        let call = |py: Python<'_>| {
            let _pending = Pending::take(py);
            let stream = Stream::new_of(Opened::of(stream.clone()));
            let called = embedded::in_callback(|| allocate.call1(py, (bytes, stream)));
            let called = called.and_then(|it| it.extract::<u64>(py));
            called.map_err(|raised| error_of(py, raised))
        };
        let address =
            try_attach(call).unwrap_or_else(|| Err(Error::new(ErrorKind::Unsupported, AT_EXIT)))?;
        if address == 0 || !address.is_multiple_of(layout.alignment() as u64) {
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
            let stream = Stream::new_of(Opened::of(stream.clone()));
            let arguments = (block.address(), block.bytes(), stream);
            if let Err(raised) = embedded::in_callback(|| deallocate.call1(py, arguments)) {
                raised.write_unraisable(py, Some(deallocate.bind(py)));
            }
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
    callback: Py<PyAny>,
) -> impl DeviceResource + 'static {
    let callback = Attached::new(callback);
    OnFailure(FailureCallbackAdaptor::new(upstream, move |failure: &Failure<'_>| {
        let call = |py: Python<'_>| {
            let _pending = Pending::take(py);
            let called = callback.call1(py, (failure.layout().bytes(),));
            let retry = called.and_then(|it| it.bind(py).is_truthy());
            retry.unwrap_or_else(|raised| {
                RAISED.set(Some(raised));
                false
            })
        };
        try_attach(call).unwrap_or(false)
    }))
}

//! Resources that call functions of Python. They attach to the interpreter for the call, and no lock of the library is held
//! meanwhile, so a function may allocate, too.

use crate::stream::{Opened, Stream};
use aquifer_rs::{
    CallbackResource, Device, DeviceBlock, DeviceResource, Error, ErrorKind, Failure,
    FailureCallbackAdaptor,
};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use std::sync::Arc;

const AT_EXIT: &str = "a function of Python was to be called, whose interpreter is ending";

/// Of an exception, which the caller of the allocation gets again.
fn error_of(py: Python<'_>, raised: PyErr) -> Error {
    let kind = match raised.is_instance_of::<PyMemoryError>(py) {
        true => ErrorKind::OutOfMemory,
        false => ErrorKind::Unsupported,
    };
    Error::new(kind, format!("a callback raised {raised}")).with_cause(raised)
}

/// A resource by two functions, as RMM's `CallbackMemoryResource`: `allocate(nbytes, stream)` returns an address,
/// `deallocate(ptr, nbytes, stream)` frees it.
pub(crate) fn resource(
    device: &Device,
    allocate: Py<PyAny>,
    deallocate: Py<PyAny>,
) -> CallbackResource {
    let allocated = move |stream: &aquifer_rs::Stream, layout: aquifer_rs::DeviceLayout| {
        let bytes = layout.bytes();
        let call = |py: Python<'_>| {
            let stream = Stream::new_of(Opened::of(stream.clone()));
            let called = allocate.call1(py, (bytes, stream)).and_then(|it| it.extract::<u64>(py));
            called.map_err(|raised| error_of(py, raised))
        };
        let address = Python::try_attach(call)
            .unwrap_or_else(|| Err(Error::new(ErrorKind::Unsupported, AT_EXIT)))?;
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
        Python::try_attach(|py| {
            let stream = Stream::new_of(Opened::of(stream.clone()));
            if let Err(raised) = deallocate.call1(py, (block.address(), block.bytes(), stream)) {
                raised.write_unraisable(py, Some(deallocate.bind(py)));
            }
        });
    };
    // SAFETY: the functions hand out device memory that stays valid until it is given back: the contract of the Python
    // class, whose documentation says so.
    unsafe { CallbackResource::new(device, allocated, freed) }
}

/// A resource that asks a function of Python whether to try again: `callback(nbytes)` returns a bool.
pub(crate) fn on_failure(
    upstream: Arc<dyn DeviceResource>,
    callback: Py<PyAny>,
) -> FailureCallbackAdaptor<Arc<dyn DeviceResource>> {
    FailureCallbackAdaptor::new(upstream, move |failure: &Failure<'_>| {
        let call = |py: Python<'_>| {
            let called = callback.call1(py, (failure.layout().bytes(),));
            let retry = called.and_then(|it| it.bind(py).is_truthy());
            retry.unwrap_or_else(|raised| {
                raised.write_unraisable(py, Some(callback.bind(py)));
                false
            })
        };
        Python::try_attach(call).unwrap_or(false)
    })
}

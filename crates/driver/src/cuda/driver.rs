//! One context of a GPU, and the guards of every call on it.

use super::context::{Current, Relaxed, Restore, RetainedContext, has_context};
use super::context_id::ContextId;
use super::launch::Functions;
use super::library::{Handle, Library};
use super::open::{driver, primary_context};
use super::properties::properties;
use super::stream_numbers::StreamNumbers;
use crate::error::{DriverError, Error, ErrorKind};
use crate::sync::Arc;
use crate::sync::trusted::Mutex;
use crate::{DeviceProperties, DriverResult, ErrorContext, NewStream, RawStream, StreamCalls};
use cudarc::driver::CudaContext;
use std::collections::HashSet;
use std::{fmt, mem};

/// Another context that this one was told to reach.
#[derive(Debug)]
pub(super) struct KnownPeer {
    pub(super) number: u64,
    pub(super) answer: DriverResult<()>,
    /// Whether kernels reach it, and not copies alone.
    pub(super) by_kernels: bool,
}

/// One context of a GPU. It keeps the context alive.
pub struct CudaDriver {
    pub(super) library: &'static Library,
    pub(super) handle: Handle,
    /// It stands before `retained`, so that it is dropped first. The table of ids must not have it any more when the
    /// driver may reuse the handle.
    pub(super) context_id: Arc<ContextId>,
    retained: RetainedContext,
    pub(super) properties: DeviceProperties,
    pub(super) functions: Functions,
    pub(super) peers: Mutex<Vec<KnownPeer>>,
    pub(super) numbers: StreamNumbers,
    /// The streams of `stream_create_blocking`, which this driver destroys.
    pub(super) blocking: Mutex<HashSet<RawStream>>,
}

impl CudaDriver {
    /// The primary context of a GPU, which cudarc and the CUDA runtime use too.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, Error> {
        let (library, context, was_active) = primary_context(ordinal)?;
        let opened = Self::new(library, context)?;
        // A stream that tells from where on the driver's numbers are the crate's own.
        if !was_active && let Ok(NewStream { raw, keep }) = opened.stream_create() {
            if let Ok(first) = opened.stream_number(raw) {
                opened.numbers.begin(first);
            }
            opened.stream_destroy(raw, keep);
        }
        Ok(opened)
    }

    /// A context that the program got from cudarc.
    pub fn from_context(context: Arc<CudaContext>) -> Result<Arc<Self>, Error> {
        match driver() {
            Ok(library) => Self::new(library, context),
            Err(error) => {
                if error.kind() == ErrorKind::Forked {
                    // Its drop would call the driver.
                    mem::forget(context);
                }
                Err(error)
            }
        }
    }

    fn new(library: &'static Library, context: Arc<CudaContext>) -> Result<Arc<Self>, Error> {
        let (ordinal, device) = (context.ordinal(), context.cu_device());
        let handle = context.cu_ctx() as usize as Handle;
        let retained = RetainedContext::new(library, context);
        let properties = properties(library, device)
            .with_context(|| format!("asking what GPU {ordinal} can do"))?;
        Ok(Arc::new(Self {
            library,
            handle,
            context_id: ContextId::of(handle),
            retained,
            properties,
            functions: Functions::default(),
            peers: Mutex::default(),
            numbers: StreamNumbers::default(),
            blocking: Mutex::default(),
        }))
    }

    /// cudarc's own handle.
    pub fn context(&self) -> &Arc<CudaContext> {
        self.retained.context()
    }

    /// The library, with the context current until the guard is dropped.
    #[inline]
    pub(super) fn current(&self) -> DriverResult<Current<'static>> {
        Current::new(self.library, self.handle)
    }

    /// The guard of [`current`](Self::current), for calls that a capture on another thread would
    /// refuse.
    pub(super) fn relaxed(&self) -> DriverResult<Relaxed<Current<'static>>> {
        self.current().map(Relaxed::new)
    }

    /// Whether the thread has some context current, which a library of CUDA makes current again after each call. Without
    /// one, the context of device 0 would stay current, as it does if the thread's program takes its last one away.
    #[inline]
    pub fn thread_has_context(&self) -> DriverResult<bool> {
        has_context(self.library)
    }

    /// Calls a library of CUDA with the context current.
    pub fn in_context<R, E: From<DriverError>>(
        &self,
        call: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        let _current = self.current()?;
        call()
    }

    /// Calls a library of CUDA that makes other contexts current and does not always restore, also where a capture on
    /// another thread would refuse the call.
    pub fn restoring_relaxed<R, E: From<DriverError>>(
        &self,
        call: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        let _restore = Restore::new(self.library)?;
        let _relaxed = self.relaxed()?;
        call()
    }

    /// Makes a call on a stream. A handle names its context, but for 0, 1 and 2, which name a stream of the current
    /// one. So other streams spare the questions to the driver. This was tried on an H100 with driver 580. A driver
    /// that wants a context current all the same says so and has done nothing, and is asked again with the context
    /// current.
    #[inline]
    pub(super) fn on_stream<R>(
        &self,
        stream: RawStream,
        call: impl Fn(&Library) -> DriverResult<R>,
    ) -> DriverResult<R> {
        const LAST_DEFAULT: u64 = 2;
        self.by_handle(stream.0 > LAST_DEFAULT, call)
    }

    /// Makes a call as [`on_stream`](Self::on_stream) does, with a handle that names its context or
    /// not.
    #[inline]
    pub(super) fn by_handle<R>(
        &self,
        names_context: bool,
        call: impl Fn(&Library) -> DriverResult<R>,
    ) -> DriverResult<R> {
        if names_context {
            let result = call(self.library);
            let wants_context = |error: &DriverError| error.code() == DriverError::INVALID_CONTEXT;
            if !result.as_ref().is_err_and(wants_context) {
                return result;
            }
        }
        call(&*self.current()?)
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("ordinal", &self.context().ordinal())
            .field("name", &self.properties.name)
            .field("context_id", &self.context_id.number())
            .finish_non_exhaustive()
    }
}

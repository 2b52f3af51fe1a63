//! One context of a GPU, and what every call on it needs.

use super::context::{Current, Relaxed};
use super::key::ContextKey;
use super::launch::Functions;
use super::lease::Lease;
use super::library::{Handle, Library};
use super::open::{driver, primary_context};
use super::properties::properties;
use crate::backend::{DeviceProperties, DriverResult, Wanted};
use crate::error::{Error, ErrorKind};
use crate::sync::Arc;
use cudarc::driver::CudaContext;
use std::{fmt, mem};

/// One context of a GPU. It lives as long as its driver.
pub(crate) struct CudaDriver {
    pub(super) library: &'static Library,
    pub(super) handle: Handle,
    /// Before `lease`, so that it goes first: nobody may find this key once the handle is free.
    pub(super) key: Arc<ContextKey>,
    lease: Lease,
    pub(super) properties: DeviceProperties,
    pub(super) functions: Functions,
}

impl CudaDriver {
    /// The primary context of a GPU, which cudarc and the CUDA runtime use too.
    pub(crate) fn open(ordinal: usize) -> Result<Arc<Self>, Error> {
        let (library, context) = primary_context(ordinal)?;
        Self::new(library, context)
    }

    /// A context that the program has from cudarc.
    pub(crate) fn from_context(context: Arc<CudaContext>) -> Result<Arc<Self>, Error> {
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
        let lease = Lease::new(library, context);
        let properties =
            properties(library, device).wanted(|| format!("asking what GPU {ordinal} can do"))?;
        Ok(Arc::new(Self {
            library,
            handle,
            key: ContextKey::of(handle),
            lease,
            properties,
            functions: Functions::default(),
        }))
    }

    /// cudarc's own handle.
    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        self.lease.context()
    }

    /// The context is current until the guard is dropped.
    #[inline]
    pub(super) fn current(&self) -> DriverResult<Current<'static>> {
        Current::enter(self.library, self.handle)
    }

    /// As [`current`](Self::current), for calls that a capture on another thread would refuse.
    pub(super) fn relaxed(&self) -> DriverResult<(Relaxed<'static>, Current<'static>)> {
        let current = self.current()?;
        Ok((Relaxed::enter(self.library), current))
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("ordinal", &self.context().ordinal())
            .field("name", &self.properties.name)
            .field("key", &self.key.number())
            .finish_non_exhaustive()
    }
}

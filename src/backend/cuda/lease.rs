//! A reference on a context of cudarc, let go of without a trace on the calling thread.

use super::context::Restore;
use super::library::Library;
use crate::sync::Arc;
use cudarc::driver::CudaContext;
use std::mem::ManuallyDrop;

/// Keeps a context alive.
///
/// cudarc's own drop makes the context current to release it, and leaves it so.
#[derive(Debug)]
pub(super) struct Lease {
    library: &'static Library,
    context: ManuallyDrop<Arc<CudaContext>>,
}

impl Lease {
    pub(super) fn new(library: &'static Library, context: Arc<CudaContext>) -> Self {
        Self { library, context: ManuallyDrop::new(context) }
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a forked child, or when the process ends and the driver went first, nothing is left to
        // release and no call is allowed: the reference is leaked.
        if let Ok(_restore) = Restore::enter(self.library) {
            // SAFETY: nothing uses the field after this; it is dropped here alone.
            unsafe { ManuallyDrop::drop(&mut self.context) };
        }
    }
}

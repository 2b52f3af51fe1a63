//! A reference on a context of cudarc that does not change the current context when it is dropped.

use super::context::Restore;
use super::library::Library;
use crate::sync::Arc;
use cudarc::driver::CudaContext;
use std::mem::ManuallyDrop;

/// Keeps a context alive.
///
/// cudarc's own drop makes the context current to release it, and does not restore.
pub(super) struct RetainedContext {
    library: &'static Library,
    context: ManuallyDrop<Arc<CudaContext>>,
}

impl RetainedContext {
    pub(super) fn new(library: &'static Library, context: Arc<CudaContext>) -> Self {
        Self { library, context: ManuallyDrop::new(context) }
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

impl Drop for RetainedContext {
    fn drop(&mut self) {
        // In a forked child, or after the driver was unloaded at the end of the process, no call is
        // allowed and nothing is left to release: the reference is leaked.
        if let Ok(_restore) = Restore::new(self.library) {
            // SAFETY: the field is not used after this, and dropped here alone.
            unsafe { ManuallyDrop::drop(&mut self.context) };
        }
    }
}

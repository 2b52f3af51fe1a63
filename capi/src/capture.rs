//! The memory of graphs that another library captures.
//!
//! A pool of the stack cannot serve a stream in capture: it would make it wait, or hand its memory to others while the
//! graph may run again. So each stream that allocates in a capture has a pool of its own over the stack, which works in
//! the order of another stream, the *side stream*, that is in no capture.
//!
//! [`Scope`](crate::scope::Scope) says which allocations are a capture's. Memory goes back by its address, on whatever
//! thread and stream, also after the end.
//!
//! | memory | when it may be handed out again |
//! |---|---|
//! | that the pool takes from the stack | at once: the call waits until the side stream has passed all that it waited for |
//! | freed in a capture, on the stream that it was allocated on | at once, to that stream: in the graph's own order |
//! | freed on that stream outside of a capture | at once, to that stream: the side stream waits for it |
//! | freed on another stream, or used on one | at the end |
//! | all of it, when the graphs are gone and the last block is freed: the end | after all work that the device was given by then |

use aquifer_rs::{DeviceBlock, DeviceResource, PoolResource, Stream};
use parking_lot::Mutex;
use std::sync::Arc;

/// What a route of a capture has besides its pool.
pub(crate) struct OfCapture {
    /// The number of the stream that allocates by it.
    pub(crate) stream: u32,
    /// In whose order the pool's memory is.
    pub(crate) side: Stream,
    /// Blocks that were freed where the graph's order does not say after what.
    kept: Mutex<Vec<DeviceBlock>>,
}

impl OfCapture {
    /// A pool over `stack` for one stream, and its side stream: `spare`, or a new one.
    pub(crate) fn new(
        stack: Arc<dyn DeviceResource>,
        stream: u32,
        spare: Option<Stream>,
    ) -> aquifer_rs::Result<(Arc<dyn DeviceResource>, Self)> {
        let side = match spare {
            Some(spare) => spare,
            None => stack.device().new_stream()?,
        };
        let pool = PoolResource::builder(stack).shareable().build()?;
        Ok((Arc::new(pool), Self { stream, side, kept: Mutex::default() }))
    }

    /// Has the side stream come after what its user's was given outside of a capture. `false` where that cannot be.
    pub(crate) fn follow(&self, stream: &Stream) -> bool {
        match stream.is_capturing() {
            Ok(true) => true,
            Ok(false) => self.side.wait_for(stream).is_ok(),
            Err(_) => false,
        }
    }

    /// Keeps a block until the end.
    pub(crate) fn keep(&self, block: DeviceBlock) {
        self.kept.lock().push(block);
    }

    /// The end: has the side stream wait for all work of the device, and frees what was kept. The pool gives its memory
    /// to the stack in the order of the side stream.
    ///
    /// # Errors
    ///
    /// Of the wait, as while a stream of the device is in capture: nothing was done.
    pub(crate) fn end(&self, pool: &dyn DeviceResource) -> aquifer_rs::Result<()> {
        self.side.wait(&self.side.device().record()?)?;
        let kept = std::mem::take(&mut *self.kept.lock());
        for block in kept {
            // SAFETY: a block of this pool, which its user freed, and which was kept; all work that may use it is before
            // the wait above.
            unsafe { pool.deallocate(&self.side, block) };
        }
        Ok(())
    }
}

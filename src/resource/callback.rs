//! Memory that closures hand out.

use super::{DeviceBlock, DeviceResource, ResourceId};
use crate::debug_log::{event, later};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::stream::Stream;
use crate::sync::Arc;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Allocate = dyn Fn(&Stream, DeviceLayout) -> Result<DeviceBlock> + Send + Sync;
type Deallocate = dyn Fn(&Stream, DeviceBlock) + Send + Sync;

/// A resource of two closures, for memory that another allocator manages: RMM's
/// `callback_memory_resource`.
///
/// A handle: clones are the same resource. The closures see the stream and the whole
/// [`DeviceLayout`], where RMM drops the alignment; what they need besides, they capture. Requests for
/// no bytes, and for streams of another device, do not reach them. A panic of the one that allocates
/// is an error ([`ErrorKind::Unsupported`]); a panic of the other is a [`tracing`] error, and its
/// block counts as leaked.
///
/// ```
/// use aquifer::{CallbackResource, CudaResource, Device, DeviceResource, DeviceVec};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let (from, to) = (CudaResource::new(&device), CudaResource::new(&device));
/// // SAFETY: every block is a `CudaResource`'s, which keeps the contract, and goes back unchanged.
/// let resource = unsafe {
///     CallbackResource::new(
///         &device,
///         move |stream, layout| from.allocate(stream, layout),
///         move |stream, block| to.deallocate(stream, block),
///     )
/// };
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, Arc::new(resource))?;
/// assert_eq!(vec.to_vec()?, vec![0.0; 1000]);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct CallbackResource {
    state: Arc<State>,
}

struct State {
    device: Device,
    allocate: Box<Allocate>,
    deallocate: Box<Deallocate>,
}

impl CallbackResource {
    /// A resource on `device` whose blocks `allocate` makes and `deallocate` takes back.
    ///
    /// # Safety
    ///
    /// The two keep the contract of [`DeviceResource`]: `allocate` returns memory of `device`, of at
    /// least the bytes and at the alignment of the layout, that overlaps no other block which is
    /// still allocated, and that work on the stream may use from then on. It stays valid until it is
    /// given to `deallocate`, which may hand it out again once the work that its stream was given
    /// before is done. `deallocate` may rely on what its own caller promises: each block comes from
    /// `allocate`, unchanged, and once.
    pub unsafe fn new(
        device: &Device,
        allocate: impl Fn(&Stream, DeviceLayout) -> Result<DeviceBlock> + Send + Sync + 'static,
        deallocate: impl Fn(&Stream, DeviceBlock) + Send + Sync + 'static,
    ) -> Self {
        let (allocate, deallocate) = (Box::new(allocate), Box::new(deallocate));
        Self { state: Arc::new(State { device: device.clone(), allocate, deallocate }) }
    }
}

impl PartialEq for CallbackResource {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

impl Eq for CallbackResource {}

impl fmt::Debug for CallbackResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallbackResource").field("device", self.device()).finish_non_exhaustive()
    }
}

// SAFETY: who made it keeps the contract for the blocks, as `new` asks; an empty one has no memory.
unsafe impl DeviceResource for CallbackResource {
    fn device(&self) -> &Device {
        &self.state.device
    }

    fn identity(&self) -> ResourceId {
        ResourceId::of_state::<Self, _>(Arc::as_ptr(&self.state))
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.device().require(stream.device(), "the stream")?;
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        let made = catch_unwind(AssertUnwindSafe(|| (self.state.allocate)(stream, layout)));
        made.unwrap_or_else(|thrown| {
            let (bytes, what) = (layout.bytes(), said(thrown));
            Err(Error::new(
                ErrorKind::Unsupported,
                format!("a callback that was to allocate {bytes} bytes panicked: {what}"),
            ))
        })
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if block.is_empty() {
            return;
        }
        let bytes = block.bytes();
        let freed = catch_unwind(AssertUnwindSafe(|| (self.state.deallocate)(stream, block)));
        if let Err(thrown) = freed {
            let (device, what) = (self.device().to_string(), said(thrown));
            // A pool above may have its locks.
            later(move || {
                event!(error, %device, bytes, what, "leaked device memory: a callback panicked");
            });
        }
    }
}

/// The message of a panic. What was thrown is not dropped: that might panic in turn.
fn said(thrown: Box<dyn Any + Send>) -> String {
    let text = match (thrown.downcast_ref::<&str>(), thrown.downcast_ref::<String>()) {
        (Some(text), _) => String::from(*text),
        (None, Some(text)) => text.clone(),
        (None, None) => String::from("it threw no text"),
    };
    if thrown.is::<&str>() || thrown.is::<String>() {
        drop(thrown);
    } else {
        std::mem::forget(thrown);
    }
    text
}

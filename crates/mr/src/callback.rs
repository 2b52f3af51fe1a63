//! Memory that closures hand out.

use crate::debug_log::deferred_event;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result, catch_panic_text};
use crate::impls::Count;
use crate::layout::DeviceLayout;
use crate::resource::block::DeviceBlock;
use crate::resource::device_resource::DeviceResource;
use crate::resource::impls::{debug_struct, equal_by_identity, forward};
use crate::stream::Stream;
use crate::sync::{Arc, assert_unlocked};

/// The words in place of the text of a panic.
const NO_TEXT: &str = "it threw no text";

type AllocateFn = dyn Fn(&Stream, DeviceLayout) -> Result<DeviceBlock> + Send + Sync;
type DeallocateFn = dyn Fn(&Stream, DeviceBlock) + Send + Sync;

/// A resource of two closures, for memory that another allocator manages. RMM calls it
/// `callback_memory_resource`.
///
/// Clones are the same resource. The closures see the stream and the whole
/// [`DeviceLayout`], of which RMM drops the alignment. Requests for no bytes, and for streams of another
/// device, do not reach them. A panic in `allocate` is an error ([`ErrorKind::Unsupported`]). A panic
/// in `deallocate` is a [`tracing`](https://docs.rs/tracing) error, and leaks the block. The closures
/// may wait for whatever a [resource](crate::DeviceResource#what-a-method-may-wait-for) may wait for.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceResource, DeviceVec, mr::CallbackResource};
///
/// let device = Device::detect_or_simulate()?;
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
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, resource)?;
/// assert_eq!(vec.to_vec()?, vec![0.0; 1000]);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct CallbackResource {
    state: Arc<CallbackState>,
}

struct CallbackState {
    device: Device,
    allocate: Box<AllocateFn>,
    deallocate: Box<DeallocateFn>,
}

impl CallbackResource {
    /// A resource on `device` whose blocks `allocate` makes and `deallocate` takes back.
    ///
    /// # Safety
    ///
    /// The two keep the contract of [`DeviceResource`]:
    ///
    /// - `allocate` returns memory of `device`, of at least the bytes and at the alignment of the layout.
    /// - The memory overlaps no other block which is still allocated.
    /// - Work on the stream may use the memory from then on.
    /// - The memory stays valid until it is given to `deallocate`. That may hand it out again once the
    ///   work that its stream was given before is done.
    ///
    /// `deallocate` may rely on the promise of its own caller, that each block comes from
    /// `allocate`, unchanged, and once.
    pub unsafe fn new(
        device: &Device,
        allocate: impl Fn(&Stream, DeviceLayout) -> Result<DeviceBlock> + Send + Sync + 'static,
        deallocate: impl Fn(&Stream, DeviceBlock) + Send + Sync + 'static,
    ) -> Self {
        let (allocate, deallocate) = (Box::new(allocate), Box::new(deallocate));
        Self { state: Arc::new(CallbackState { device: device.clone(), allocate, deallocate }) }
    }
}

equal_by_identity!(CallbackResource);

debug_struct!(CallbackResource { device(), .. });

// SAFETY: the closures keep the contract, by that of `new`; an empty block has no memory.
unsafe impl DeviceResource for CallbackResource {
    fn device(&self) -> &Device {
        &self.state.device
    }

    forward!(identity);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.device().require(stream.device(), "the stream")?;
        if layout.bytes() == 0 {
            return Ok(DeviceBlock::empty(layout));
        }
        assert_unlocked("a callback");
        catch_panic_text(|| (self.state.allocate)(stream, layout)).unwrap_or_else(|text| {
            let bytes = Count(layout.bytes(), "byte");
            let what = text.as_deref().unwrap_or(NO_TEXT);
            Err(Error::new(
                ErrorKind::Unsupported,
                format!("a callback that was to allocate {bytes} panicked: {what}"),
            )
            .with_advice("let the callback return an Error"))
        })
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if block.is_empty() {
            return;
        }
        let bytes = block.bytes();
        assert_unlocked("a callback");
        if let Err(text) = catch_panic_text(|| (self.state.deallocate)(stream, block)) {
            let device = self.device().to_string();
            let what = text.unwrap_or_else(|| String::from(NO_TEXT));
            // Deferred: a pool above may have its locks.
            deferred_event!(error, %device, bytes, what, "leaked device memory: a callback panicked");
        }
    }
}

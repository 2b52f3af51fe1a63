//! Allocations and frees as `tracing` events.

use crate::debug_log::{LEVEL, deferred_event, emit, is_deferring};
use crate::driver::is_forked_child;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::impls::{adaptor, forward};
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use std::time::Instant;
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// A resource that emits allocations and frees as [`tracing`](https://docs.rs/tracing) events, at
/// `TRACE`, with the target `aquifer::memory`. RMM has no counterpart, since its debug log covers
/// its pools alone, in a file of its own.
///
/// The message is `allocate`, `allocate failure`, `resize` (in place, with
/// `former_bytes`) or `free`. The fields are:
///
/// - `address`, hexadecimal, except for a failure
/// - `bytes`
/// - `stream`, the [`id`](Stream::id) of the stream
/// - `device`, the ordinal of the device
/// - `elapsed_ns`, the nanoseconds that the upstream took
/// - `error`, for a failure
///
/// The calling thread emits an event after the upstream has returned. The events of two threads may therefore
/// be out of order. One thread may emit the allocation of an address before the other emits its free.
/// [`LoggingAdaptor`](crate::mr::LoggingAdaptor) keeps the order. Where no subscriber wants such events, a
/// call costs one load.
///
/// Below a pool, the events wait until the pool's locks are released. The feature `log-level-debug`
/// and those below it compile them out. There is no event of an allocation that a subscriber makes
/// through this adaptor. A panic of a subscriber ends its event. The child of a fork emits no event,
/// since a thread of the parent may hold the subscriber's locks. Clones are one adaptor.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, mr::TracedAdaptor};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let traced = TracedAdaptor::new(CudaResource::new(&device));
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, traced.clone())?;
/// # drop(vec);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct TracedAdaptor<U> {
    state: Arc<U>,
}

impl<U: DeviceResource> TracedAdaptor<U> {
    /// Emits an event for each call that reaches `upstream`.
    pub fn new(upstream: U) -> Self {
        Self { state: Arc::new(upstream) }
    }

    fn emit_allocated(&self, begin: Instant, stream: &Stream, block: &DeviceBlock) {
        let elapsed_ns = nanoseconds(begin);
        let (stream, device) = (stream.id(), self.device().ordinal());
        let (address, bytes) = (block.address(), block.bytes());
        deferred_event!(
            trace, target: TARGET, address = %format_args!("{address:#x}"), bytes, stream, device,
            elapsed_ns, "allocate"
        );
    }
}

adaptor!(TracedAdaptor, state);

const TARGET: &str = "aquifer::memory";

#[inline]
fn is_enabled() -> bool {
    // The load of the level first: the only cost where no subscriber wants events.
    LEVEL >= 5 && Level::TRACE <= LevelFilter::current() && is_subscribed()
}

#[cold]
fn is_subscribed() -> bool {
    if is_forked_child() {
        return false;
    }
    // Under a pool's locks no subscriber may run: the deferred event itself asks, after them.
    let mut enabled = is_deferring();
    if !enabled {
        emit(|| enabled = tracing::enabled!(target: TARGET, Level::TRACE));
    }
    enabled
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for TracedAdaptor<U> {
    forward!(device, peer_access, identity);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        if !is_enabled() {
            return self.upstream().allocate(stream, layout);
        }
        let begin = Instant::now();
        let result = self.upstream().allocate(stream, layout);
        match &result {
            Ok(block) => self.emit_allocated(begin, stream, block),
            Err(error) => {
                let elapsed_ns = nanoseconds(begin);
                let (stream, device) = (stream.id(), self.device().ordinal());
                let (bytes, error) = (layout.bytes(), error.to_string());
                deferred_event!(
                    trace, target: TARGET, bytes, stream, device, elapsed_ns, %error,
                    "allocate failure"
                );
            }
        }
        result
    }

    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        let begin = is_enabled().then(Instant::now);
        let block = self.upstream().allocate_growable(stream, layout)?;
        if let (Some(begin), Some(block)) = (begin, &block) {
            self.emit_allocated(begin, stream, block);
        }
        Ok(block)
    }

    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        let begin = is_enabled().then(Instant::now);
        let former_bytes = block.bytes();
        // SAFETY: the block is the upstream's; the caller vouches for the rest.
        let resized = unsafe { self.upstream().resize_in_place(stream, block, bytes) }?;
        if let Some(begin) = begin.filter(|_| resized) {
            let elapsed_ns = nanoseconds(begin);
            let (stream, device) = (stream.id(), self.device().ordinal());
            let (address, bytes) = (block.address(), block.bytes());
            deferred_event!(
                trace, target: TARGET, address = %format_args!("{address:#x}"), bytes, former_bytes,
                stream, device, elapsed_ns, "resize"
            );
        }
        Ok(resized)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if !is_enabled() {
            // SAFETY: the block is the upstream's; the caller vouches for the rest.
            return unsafe { self.upstream().deallocate(stream, block) };
        }
        let (address, bytes) = (block.address(), block.bytes());
        let begin = Instant::now();
        // SAFETY: the block is the upstream's; the caller vouches for the rest.
        unsafe { self.upstream().deallocate(stream, block) };
        let elapsed_ns = nanoseconds(begin);
        let (stream, device) = (stream.id(), self.device().ordinal());
        deferred_event!(
            trace, target: TARGET, address = %format_args!("{address:#x}"), bytes, stream, device,
            elapsed_ns, "free"
        );
    }
}

//! A resource that tells `tracing` what passes through it.

use super::handles::{handles, identity_by};
use crate::backend::is_forked_child;
use crate::debug_log::{LEVEL, event, is_held, later, tell};
use crate::device::Device;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible};
use crate::stream::Stream;
use crate::sync::Arc;
use std::ptr::NonNull;
use std::time::Instant;
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// Allocations and frees as [`tracing`] events, at `TRACE`, with the target `aquifer::memory`. RMM has
/// no counterpart: its debug log says what its pools do, to a file of its own.
///
/// The message is `allocate`, `allocate failure` or `free`; the fields are `address` (hexadecimal; not
/// of a failure), `bytes`, `stream` (its [`id`](Stream::id)), `device` (its ordinal), `elapsed_ns`
/// (nanoseconds that the upstream took) and, of a failure, `error`. An event is told when the upstream
/// has returned, on the calling thread: of two threads, one may tell that it allocated an address before
/// the other tells that it freed it. [`LoggingAdaptor`](crate::LoggingAdaptor) keeps their order. Where
/// no subscriber wants such events, the cost is one look at a flag.
///
/// Below a pool, its events wait until the pool's locks are released. The feature `log-level-debug`
/// and those below it cut them out. What a subscriber allocates through this adaptor is not told.
/// A subscriber that panics costs its event. The child of a fork tells nothing: its
/// subscriber's locks may be held by a thread that is not there. Clones are one adaptor.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, TracedAdaptor};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let traced = TracedAdaptor::new(CudaResource::new(&device));
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, Arc::new(traced.clone()))?;
/// # drop(vec);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Debug)]
pub struct TracedAdaptor<U> {
    upstream: Arc<U>,
}

impl<U: DeviceResource> TracedAdaptor<U> {
    /// Tells what passes through to `upstream`.
    pub fn new(upstream: U) -> Self {
        Self { upstream: Arc::new(upstream) }
    }

    /// The resource that allocates.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }
}

handles!(TracedAdaptor, upstream);

const TARGET: &str = "aquifer::memory";

#[inline]
fn wanted() -> bool {
    // A look at a number first, which is all where nobody wants it.
    LEVEL >= 5 && Level::TRACE <= LevelFilter::current() && asked()
}

#[cold]
fn asked() -> bool {
    if is_forked_child() {
        return false;
    }
    // Below a pool with its locks, the event itself asks, when they are released.
    let mut wanted = is_held();
    if !wanted {
        tell(|| wanted = tracing::enabled!(target: TARGET, Level::TRACE));
    }
    wanted
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for TracedAdaptor<U> {
    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        if !wanted() {
            return self.upstream.allocate(stream, layout);
        }
        let begin = Instant::now();
        let result = self.upstream.allocate(stream, layout);
        let elapsed_ns = nanoseconds(begin);
        let (stream, device) = (stream.id(), self.device().ordinal());
        match &result {
            Ok(block) => {
                let (address, bytes) = (block.address(), block.bytes());
                later(move || {
                    event!(
                        trace, target: TARGET, address = %format_args!("{address:#x}"), bytes, stream,
                        device, elapsed_ns, "allocate"
                    );
                });
            }
            Err(error) => {
                let (bytes, error) = (layout.bytes(), error.to_string());
                later(move || {
                    event!(
                        trace, target: TARGET, bytes, stream, device, elapsed_ns, %error,
                        "allocate failure"
                    );
                });
            }
        }
        result
    }

    identity_by!(upstream);

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        if !wanted() {
            // SAFETY: the block is the upstream's; our caller vouches for the rest.
            return unsafe { self.upstream.deallocate(stream, block) };
        }
        let (address, bytes) = (block.address(), block.bytes());
        let begin = Instant::now();
        // SAFETY: the block is the upstream's; our caller vouches for the rest.
        unsafe { self.upstream.deallocate(stream, block) };
        let elapsed_ns = nanoseconds(begin);
        let (stream, device) = (stream.id(), self.device().ordinal());
        later(move || {
            event!(
                trace, target: TARGET, address = %format_args!("{address:#x}"), bytes, stream, device,
                elapsed_ns, "free"
            );
        });
    }
}

// SAFETY: the upstream's blocks, unchanged.
unsafe impl<U: HostAccessible> HostAccessible for TracedAdaptor<U> {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        self.upstream.host_pointer(block)
    }
}

//! Streams: in-order queues of work on a device, with an identity of their own.

use crate::backend::sim::Simulator;
use crate::backend::{
    BackendKind, CaptureStatus, RawStream, StreamKeeper, Wanted, is_forked_child,
};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::sync::trusted::{AtomicUsize, Mutex, Ordering, fence, unique};
use crate::sync::{Arc, LazyLock, Weak};
use std::collections::HashMap;
use std::fmt;

pub(crate) mod after_capture;
pub(crate) mod graph;
pub(crate) mod graveyard;
mod per_thread;
mod stream_pool;

pub use graph::Graph;
pub use per_thread::PerThreadStream;
pub use stream_pool::StreamPool;

/// An in-order queue of work on one device. A handle: clones are the same stream.
///
/// A stream has a number of its own that is never used twice, unlike the driver's handle. It stays
/// alive while anything that it may still have to order does: a vector at home on it, a vector
/// borrowed to it, a transfer.
///
/// ```
/// use aquifer::{Device, sim::SimConfig};
///
/// let device = Device::simulated(SimConfig::default());
/// let (a, b) = (device.new_stream()?, device.new_stream()?);
/// b.wait_for(&a)?; // what b is given from here on runs after what a was given so far
/// b.synchronize()?;
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct Stream {
    inner: Arc<StreamInner>,
}

struct StreamInner {
    device: Device,
    raw: RawStream,
    id: u64,
    keep: Mutex<StreamKeeper>,
    /// Handles that pools hold: they order their memory by it as long as anybody else uses it.
    pools: AtomicUsize,
    /// cudarc's handle, for its traits.
    #[cfg(feature = "cuda")]
    cudarc: Option<Arc<cudarc::driver::CudaStream>>,
}

/// The streams that are alive, by device and handle, so that one stream of the driver is one here.
static ALIVE: LazyLock<Mutex<HashMap<StreamKey, Weak<StreamInner>>>> =
    LazyLock::new(Mutex::default);

type StreamKey = ((BackendKind, u64), RawStream);

impl Drop for StreamInner {
    fn drop(&mut self) {
        if is_forked_child() {
            // The stream is the parent's, and so may be the locks on the way to let go of it.
            #[cfg(feature = "cuda")]
            std::mem::forget(self.cudarc.take());
            std::mem::forget(self.keep.get_mut().take());
            return;
        }
        let key = (self.device.key(), self.raw);
        let mut alive = ALIVE.lock();
        // The entry may already be a successor's: another handle on a stream that cudarc keeps.
        if alive.get(&key).is_some_and(|entry| entry.strong_count() == 0) {
            alive.remove(&key);
        }
        drop(alive);
        // The keeper is the last of cudarc's handles to go: the backend drops it with the context
        // current and restores the caller's.
        #[cfg(feature = "cuda")]
        drop(self.cudarc.take());
        if self.raw != self.device.driver().legacy_stream() {
            self.device.driver().stream_destroy(self.raw, self.keep.get_mut().take());
        }
    }
}

impl Stream {
    fn alive(key: &StreamKey) -> Option<Self> {
        ALIVE.lock().get(key).and_then(Weak::upgrade).map(|inner| Self { inner })
    }

    /// The one stream behind a driver's handle: the living one, or a new one from `make`.
    fn identify(device: &Device, raw: RawStream, make: impl FnOnce() -> StreamInner) -> Self {
        if is_forked_child() {
            return Self { inner: Arc::new(make()) };
        }
        let mut alive = ALIVE.lock();
        let entry = alive.entry((device.key(), raw)).or_default();
        if let Some(inner) = entry.upgrade() {
            return Self { inner };
        }
        let inner = Arc::new(make());
        *entry = Arc::downgrade(&inner);
        Self { inner }
    }

    /// A stream that was just made. Whoever is still listed under its handle named a stream that
    /// was destroyed behind our back.
    fn enlist(inner: StreamInner) -> Self {
        let inner = Arc::new(inner);
        ALIVE.lock().insert((inner.device.key(), inner.raw), Arc::downgrade(&inner));
        Self { inner }
    }

    /// Takes over a stream of cudarc. The same stream of the driver gives the same `Stream`, which
    /// keeps cudarc's alive.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for the per-thread default stream, which is another stream on
    /// each thread: see [`Device::per_thread_stream`].
    #[cfg(feature = "cuda")]
    pub fn from_cudarc(stream: &Arc<cudarc::driver::CudaStream>) -> Result<Self> {
        let device = Device::from_cudarc(stream.context())?;
        // 1 is the legacy default stream's other name.
        let raw = match stream.cu_stream() as u64 {
            0 | 1 => return Ok(device.default_stream()),
            2 => {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "the per-thread default stream was given as a stream of its own",
                )
                .advise("use Device::per_thread_stream on the thread that wants it"));
            }
            handle => RawStream(handle),
        };
        let keep: StreamKeeper = Some(Box::new(stream.clone()));
        Ok(Self::identify(&device, raw, || StreamInner {
            device: device.clone(),
            raw,
            id: unique(),
            keep: Mutex::new(keep),
            pools: AtomicUsize::new(0),
            cudarc: Some(stream.clone()),
        }))
    }

    /// cudarc's handle on this stream, or `None` on a simulated device.
    #[cfg(feature = "cuda")]
    pub fn cuda_stream(&self) -> Option<&Arc<cudarc::driver::CudaStream>> {
        self.inner.cudarc.as_ref()
    }

    /// The living stream behind a driver's handle, if Aquifer knows it.
    #[cfg(feature = "cuda")]
    pub(crate) fn known(device: &Device, handle: u64) -> Option<Self> {
        if is_forked_child() {
            return None;
        }
        let handle = if handle == 1 { 0 } else { handle };
        Self::alive(&(device.key(), RawStream(handle)))
    }

    /// The device that the stream runs on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The stream's number, never used twice in a process.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Records an event: everything that the stream was given so far.
    ///
    /// # Errors
    ///
    /// Those of the driver call.
    pub fn record(&self) -> Result<Event> {
        self.try_record().wanted(|| format!("recording an event on {self}"))
    }

    fn try_record(&self) -> crate::backend::DriverResult<Event> {
        let event = Event::new(self.device())?;
        self.device().driver().event_record(event.raw(), self.raw())?;
        Ok(event)
    }

    /// Records an event that was made before.
    pub(crate) fn record_into(&self, event: &Event) -> Result<()> {
        self.device()
            .driver()
            .event_record(event.raw(), self.raw())
            .wanted(|| format!("recording an event on {self}"))
    }

    /// Makes the stream wait for `event`, of this device or another, without blocking the host.
    ///
    /// # Errors
    ///
    /// Those of the driver call; [`ErrorKind::WrongDevice`] between a GPU and a simulated device.
    pub fn wait(&self, event: &Event) -> Result<()> {
        wait(self.device(), self.raw(), event)
    }

    /// Makes the stream wait for all that `other` was given so far, without blocking the host.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        if self == other { Ok(()) } else { self.wait(&other.record()?) }
    }

    /// Blocks the calling thread until the stream has done all it was given so far.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ContextLost`] if that work failed, [`ErrorKind::Capture`] if the stream is in
    /// capture, [`ErrorKind::Simulation`] if the simulated device saw an access out of order.
    pub fn synchronize(&self) -> Result<()> {
        let synchronized = self.device().driver().stream_synchronize(self.raw());
        graveyard::reap();
        synchronized.wanted(|| format!("waiting for {self}"))
    }

    /// Whether the stream is recording a graph. Never disturbs it.
    ///
    /// # Errors
    ///
    /// Those of the driver call.
    pub fn is_capturing(&self) -> Result<bool> {
        self.device()
            .driver()
            .capture_status(self.raw())
            .map(|status| status != CaptureStatus::None)
            .wanted(|| format!("asking whether {self} is in capture"))
    }

    /// The error of giving the stream work on host memory while it is in capture. Such work must not
    /// become a node of somebody's graph, which would run it again when the memory is long gone.
    pub(crate) fn refuse_capture(&self, what: &str) -> Result<()> {
        if !self.is_capturing()? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Capture, format!("{self} is in capture, and {what} cannot be"))
            .advise("do it before the capture, or on another stream"))
    }

    /// Whether any living stream that Aquifer knows on `device` is recording a graph. A question to
    /// the driver that fails counts as yes, but for a context that is gone: it has no graph to lose.
    pub(crate) fn any_capturing(device: &Device) -> bool {
        if is_forked_child() {
            return false;
        }
        let key = device.key();
        let streams: Vec<Stream> = {
            let alive = ALIVE.lock();
            let of_device = alive.iter().filter(|((owner, _), _)| *owner == key);
            of_device.filter_map(|(_, entry)| entry.upgrade()).map(|inner| Self { inner }).collect()
        };
        let gone =
            |error: &Error| matches!(error.kind(), ErrorKind::ContextLost | ErrorKind::Forked);
        streams.iter().any(|stream| stream.is_capturing().unwrap_or_else(|error| !gone(&error)))
    }

    pub(crate) fn raw(&self) -> RawStream {
        self.inner.raw
    }

    /// A handle for a pool to keep, given back by [`let_go`](Self::let_go).
    pub(crate) fn keep_for_pool(&self) -> Self {
        let kept = self.clone();
        // Under the lock in which the two counts are compared: read one after the other while this
        // one changes, they would say that a stream is abandoned whose user is here.
        let _alive = ALIVE.lock();
        kept.inner.pools.fetch_add(1, Ordering::Relaxed);
        kept
    }

    /// Drops a handle of [`keep_for_pool`](Self::keep_for_pool).
    pub(crate) fn let_go(self) {
        // As in `keep_for_pool`; the handle goes later, when the lock is free again.
        let alive = ALIVE.lock();
        self.inner.pools.fetch_sub(1, Ordering::Relaxed);
        drop(alive);
    }

    /// Whether pools alone hold this stream. If so it is off the table of the living, so that its
    /// driver's handle, brought again, is another stream.
    pub(crate) fn is_abandoned(&self) -> bool {
        if is_forked_child() {
            return false;
        }
        let mut alive = ALIVE.lock();
        // Under the lock that every new handle from the table takes; whoever clones has one already.
        if Arc::strong_count(&self.inner) > self.inner.pools.load(Ordering::Relaxed) {
            return false;
        }
        // What the others gave to the stream before they let go of it comes before our event.
        fence(Ordering::Acquire);
        let key = (self.inner.device.key(), self.inner.raw);
        if alive.get(&key).is_some_and(|entry| entry.ptr_eq(&Arc::downgrade(&self.inner))) {
            alive.remove(&key);
        }
        true
    }
}

/// A stream's number. The simulated device's handles are never used again, and its reports name them.
fn number(device: &Device, raw: RawStream) -> u64 {
    match device.kind() {
        BackendKind::Simulated => raw.0,
        BackendKind::Cuda => unique(),
    }
}

fn wait(device: &Device, raw: RawStream, event: &Event) -> Result<()> {
    if device.kind() != event.device().kind() {
        device.require(event.device(), "the event")?;
    }
    device
        .driver()
        .stream_wait_event(raw, event.raw())
        .wanted(|| format!("making a stream of {device} wait for an event"))
}

impl Device {
    /// A new stream, which does not wait for the legacy default stream.
    ///
    /// # Errors
    ///
    /// Those of the driver call.
    pub fn new_stream(&self) -> Result<Stream> {
        let new = self.driver().stream_create().wanted(|| format!("making a stream on {self}"))?;
        #[cfg(feature = "cuda")]
        let cudarc = new
            .keep
            .as_ref()
            .and_then(|keep| keep.downcast_ref::<Arc<cudarc::driver::CudaStream>>())
            .cloned();
        Ok(Stream::enlist(StreamInner {
            device: self.clone(),
            raw: new.raw,
            id: number(self, new.raw),
            keep: Mutex::new(new.keep),
            pools: AtomicUsize::new(0),
            #[cfg(feature = "cuda")]
            cudarc,
        }))
    }

    /// The legacy default stream, CUDA's handles 0 and 1: one for the whole device.
    pub fn default_stream(&self) -> Stream {
        let raw = self.driver().legacy_stream();
        Stream::identify(self, raw, || StreamInner {
            device: self.clone(),
            raw,
            id: number(self, raw),
            keep: Mutex::new(None),
            pools: AtomicUsize::new(0),
            #[cfg(feature = "cuda")]
            cudarc: self.cuda_context().map(|context| context.default_stream()),
        })
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Stream {}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of {}", self.id(), self.device())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id()).field("device", self.device()).finish()
    }
}

impl Simulator {
    /// Puts a stream of this simulated device into capture, for tests of code that must not disturb
    /// one: what it is given is kept and not run.
    ///
    /// # Errors
    ///
    /// Those that a driver would give: the stream is in capture already, or is of another device.
    pub fn start_capture(&self, stream: &Stream) -> Result<()> {
        self.begin_capture(stream.raw()).wanted(|| format!("beginning a capture on {stream}"))
    }

    /// Ends the capture; `true` if nothing invalidated it.
    pub fn stop_capture(&self, stream: &Stream) -> bool {
        self.end_capture(stream.raw()) == CaptureStatus::Active
    }
}

#[cfg(test)]
mod tests;

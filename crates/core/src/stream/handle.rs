//! The handle on a stream, and the identity behind it.

use super::capture_state::{Attachment, CaptureState};
use super::deferred;
use super::gate::{Gate, Refused};
use super::host_panics::HostPanics;
use super::pool_handles::PoolHandles;
use crate::device::Device;
use crate::driver::{
    BackendKind, ErrorContext, NewStream, RawStream, StreamKeeper, is_forked_child,
    is_in_host_function,
};
#[cfg(feature = "cuda")]
use crate::error::ensure;
use crate::error::{Error, ErrorKind, Result};
use crate::impls::debug_struct;
use crate::sync::trusted::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, unique};
use crate::sync::{Arc, AtomicUsize, LazyLock, OnceLock, Weak};
use std::collections::HashMap;
use std::fmt;

/// The advice if a capture on another thread has the stream.
pub(crate) const CAPTURED_ELSEWHERE: &str = "call again when that has ended, or use another stream";

/// A declared capture.
pub(crate) type Capture = CaptureState<Stream>;

/// An in-order queue of work on one device. It is a handle, whose clones are the same stream.
///
/// A stream has a number of its own that is never used twice, unlike the driver's handle. It stays alive as long as
/// anything that it may still have to order. That is a vector at home on it, a vector that was used on it, or a
/// transfer.
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
    /// The handle that the stream was made with.
    raw: RawStream,
    id: u64,
    /// The keeper of the stream. On a GPU that is cudarc's handle, for its traits too.
    keep: StreamKeeper,
    /// The gate, with the handle that the stream has now.
    gate: Gate<Capture, RawStream>,
    /// A lock that is held over each launch of a graph and over each wait for an event. The driver loses a wait that
    /// one thread gives a stream while another launches a graph on it. (With 580.159.04, a plain C program lost one in
    /// ten.)
    launch_or_wait: Mutex<()>,
    /// Whether another library may have the driver's handle, and begin a capture that Aquifer is not told of. It is set
    /// once the stream is among the [`EXPOSED`].
    exposed: AtomicBool,
    /// Whether it was given copies of host memory whose end nothing here waits for. It is set like `exposed`.
    copies_unseen: AtomicBool,
    /// The panics of its host functions, which have a share.
    host_panics: Arc<HostPanics>,
    /// The number of handles that are pools'. Pools order their memory by the stream as long as it has a user.
    pools: AtomicUsize,
    /// The driver's number of a stream that its owner may destroy.
    foreign: Option<DriverNumber>,
    /// Those that took the stream over by its handle: guards that are alive, and calls of `from_handle` and `from_cudarc`,
    /// which never let go. Written under the lock of [`STREAMS`].
    takers: AtomicUsize,
    /// The stream of the crate's own that stands for a foreign one, once that is gone.
    replacement: OnceLock<NewStream>,
}

/// The driver's own number of a stream, which is never used again.
pub(super) struct DriverNumber(AtomicU64);

impl DriverNumber {
    /// The value before the driver was asked, which must not happen in a capture.
    const UNKNOWN: u64 = 0;

    /// Whether the driver's number is this one. The first number that is asked is.
    pub(super) fn is(&self, number: u64) -> bool {
        // Relaxed: the number publishes nothing.
        let relaxed = Ordering::Relaxed;
        self.0
            .compare_exchange(Self::UNKNOWN, number, relaxed, relaxed)
            .map_or_else(|known| known == number, |_| true)
    }
}

impl StreamInner {
    fn new(device: &Device, raw: RawStream, keep: StreamKeeper) -> Self {
        let id = match device.kind() {
            // Its handles are never used again, and its reports name them.
            BackendKind::Simulated => raw.0,
            _ => unique(),
        };
        Self {
            device: device.clone(),
            raw,
            id,
            keep,
            gate: Gate::new(raw),
            launch_or_wait: Mutex::new(()),
            exposed: AtomicBool::new(false),
            copies_unseen: AtomicBool::new(false),
            host_panics: Arc::default(),
            pools: AtomicUsize::new(0),
            foreign: None,
            takers: AtomicUsize::new(0),
            replacement: OnceLock::new(),
        }
    }

    /// The keys under which the stream may be among the [`STREAMS`].
    fn keys(&self) -> impl Iterator<Item = StreamKey> {
        let own = self.replacement.get().map(|own| own.raw);
        let device = self.device.key();
        std::iter::once(self.raw).chain(own).map(move |raw| (device, raw))
    }
}

/// The streams that are alive, by device and handle, so that one stream of the driver is one here.
static STREAMS: LazyLock<Mutex<HashMap<StreamKey, Weak<StreamInner>>>> =
    LazyLock::new(Mutex::default);

type StreamKey = ((BackendKind, u64), RawStream);

/// The streams whose handles others have, and those that have copies of host memory whose end nobody here knows. No
/// other stream can be in a capture that Aquifer was not told of. So a call that must not disturb a capture asks these
/// alone.
static EXPOSED: Mutex<Vec<Weak<StreamInner>>> = Mutex::new(Vec::new());

impl Drop for StreamInner {
    fn drop(&mut self) {
        if is_forked_child() {
            // The stream is the parent's, and a thread of the parent may hold the locks on the way.
            std::mem::forget((self.keep.take(), self.replacement.take()));
            return;
        }
        if is_in_host_function() {
            let mut later = Self::new(&self.device, self.raw, self.keep.take());
            later.foreign = self.foreign.take();
            later.replacement = std::mem::take(&mut self.replacement);
            return deferred::defer(None, move || drop(later));
        }
        let mut streams = STREAMS.lock();
        for key in self.keys() {
            // The entry may already be a successor's: another handle on a stream that cudarc keeps.
            if streams.get(&key).is_some_and(|entry| entry.strong_count() == 0) {
                streams.remove(&key);
            }
        }
        drop(streams);
        // The backend drops the keeper with the context current, and restores the caller's.
        let driver = self.device.driver();
        if self.raw != driver.legacy_stream() && self.foreign.is_none() {
            driver.stream_destroy(self.raw, self.keep.take());
        }
        if let Some(own) = self.replacement.take() {
            driver.stream_destroy(own.raw, own.keep);
        }
    }
}

impl Stream {
    /// The one stream behind a driver's handle that others have. It is the living one, or a new one from `make`.
    fn get_or_register_exposed(
        device: &Device,
        raw: RawStream,
        make: impl FnOnce() -> StreamInner,
    ) -> Self {
        if is_forked_child() {
            return Self { inner: Arc::new(make()) };
        }
        let mut streams = STREAMS.lock();
        let entry = streams.entry((device.key(), raw)).or_default();
        let inner = entry.upgrade().unwrap_or_else(|| Arc::new(make()));
        *entry = Arc::downgrade(&inner);
        inner.takers.fetch_add(1, Ordering::Relaxed);
        drop(streams);
        let stream = Self { inner };
        stream.expose();
        stream
    }

    /// The stream of another library that it does not keep for us.
    pub(super) fn register_foreign(device: &Device, raw: RawStream, keep: StreamKeeper) -> Self {
        Self::get_or_register_exposed(device, raw, || {
            let mut inner = StreamInner::new(device, raw, keep);
            inner.foreign = Some(DriverNumber(AtomicU64::new(DriverNumber::UNKNOWN)));
            inner
        })
    }

    /// The driver's number of a stream that its owner may destroy.
    pub(super) fn foreign_number(&self) -> Option<&DriverNumber> {
        self.inner.foreign.as_ref()
    }

    /// Whether a stream of the crate's own stands for it.
    pub(super) fn is_replaced(&self) -> bool {
        self.inner.replacement.get().is_some()
    }

    /// Replaces the stream by `own`. The caller is alone in its gate, which gets the handle that this returns. A stream that
    /// somebody has taken over stays, if `unless_taken`.
    pub(super) fn set_replacement(&self, own: NewStream, unless_taken: bool) -> RawStream {
        let device = self.inner.device.key();
        let (theirs, ours) = ((device, self.inner.raw), (device, own.raw));
        let this = Arc::downgrade(&self.inner);
        let mut streams = STREAMS.lock();
        if unless_taken && self.inner.takers.load(Ordering::Relaxed) > 0 {
            drop(streams);
            self.inner.device.driver().stream_destroy(own.raw, own.keep);
            return self.raw();
        }
        if streams.get(&theirs).is_some_and(|entry| entry.ptr_eq(&this)) {
            streams.remove(&theirs);
        }
        match self.inner.replacement.set(own) {
            // Others get this handle from here on.
            Ok(()) => {
                streams.insert(ours, this);
                ours.1
            }
            Err(second) => {
                drop(streams);
                self.inner.device.driver().stream_destroy(second.raw, second.keep);
                self.raw()
            }
        }
    }

    /// A stream that was just made. An older entry under its handle is of a stream that was destroyed
    /// behind our back.
    fn register_new(inner: StreamInner) -> Self {
        let inner = Arc::new(inner);
        STREAMS.lock().insert((inner.device.key(), inner.raw), Arc::downgrade(&inner));
        Self { inner }
    }

    /// Takes over a stream of cudarc. One stream of the driver always gives the same `Stream`, which keeps cudarc's
    /// alive.
    ///
    /// Another library begins a capture on it only while no other thread is in a call on a pool that has the stream.
    /// Such a call asks first and then records an event. A capture by [`capture`](Self::capture) needs no such care.
    ///
    /// A stream that cudarc does not keep alive, as of another library, comes by its handle
    /// ([`from_handle`](Self::from_handle)).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for the per-thread default stream, which is another stream on each thread.
    /// [`Device::per_thread_stream`] gives that one.
    #[cfg(feature = "cuda")]
    pub fn from_cudarc(stream: &Arc<cudarc::driver::CudaStream>) -> Result<Self> {
        let device = Device::from_cudarc(stream.context())?;
        let raw = RawStream(stream.cu_stream() as u64);
        // 1 is the legacy default stream's other name.
        if raw.0 <= 1 {
            return Ok(device.default_stream());
        }
        ensure!(
            raw.0 != 2,
            InvalidArgument,
            "use Device::per_thread_stream on the thread that wants it",
            "the per-thread default stream was given as a stream of its own"
        );
        let keep: StreamKeeper = Some(Box::new(stream.clone()));
        Ok(Self::get_or_register_exposed(&device, raw, || StreamInner::new(&device, raw, keep)))
    }

    /// cudarc's handle on this stream, for its launch builder, its copies and cuBLAS. While [`capture`](Self::capture)
    /// has the stream, no other thread may name it in a call of cudarc.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a simulated device, where
    /// [`launch`](Self::launch) runs the kernel's host form.
    #[cfg(feature = "cuda")]
    pub fn cuda_stream(&self) -> Result<&Arc<cudarc::driver::CudaStream>> {
        self.expose();
        let keep = self.inner.replacement.get().map_or(&self.inner.keep, |own| &own.keep);
        let keep = keep.as_ref().and_then(|keep| keep.downcast_ref());
        keep.ok_or_else(|| self.device().unknown_to_cudarc("stream"))
    }

    /// The living stream behind a driver's handle, for one more that takes it over.
    pub(super) fn take_over_known(device: &Device, raw: RawStream) -> Option<Self> {
        if is_forked_child() {
            return None;
        }
        let streams = STREAMS.lock();
        let inner = streams.get(&(device.key(), raw))?.upgrade()?;
        inner.takers.fetch_add(1, Ordering::Relaxed);
        drop(streams);
        Some(Self { inner })
    }

    /// One that took the stream over lets it go. Returns whether it was the last one, and something else remembers the
    /// stream.
    pub(super) fn let_go(&self) -> bool {
        let _streams = STREAMS.lock();
        let others = self.inner.takers.fetch_sub(1, Ordering::Relaxed) - 1;
        others == 0 && Arc::strong_count(&self.inner) > 1
    }

    /// The living stream behind a driver's handle, if Aquifer knows it.
    pub(crate) fn by_handle(device: &Device, raw: RawStream) -> Option<Self> {
        if is_forked_child() {
            return None;
        }
        STREAMS.lock().get(&(device.key(), raw)).and_then(Weak::upgrade).map(|inner| Self { inner })
    }

    /// The device that the stream runs on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The stream's number, never used twice in a process.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// The error of a thread that the stream's gate kept out.
    pub(super) fn refused(&self, refused: &Refused<Capture>) -> Error {
        self.in_capture(match refused {
            Refused::Owned(capture) if capture.recorder().is_here() => "is in another capture",
            Refused::Owned(_) => "is in a capture on another thread",
            Refused::CallWaits => "is in use: a thread waits for it, or copies host memory",
        })
    }

    /// The error of a call on a stream that a capture has.
    pub(super) fn in_capture(&self, what: &str) -> Error {
        Error::new(ErrorKind::Capture, format!("{self} {what}")).with_advice(CAPTURED_ELSEWHERE)
    }

    /// Whether it is the device's default stream.
    pub(super) fn is_legacy_default(&self) -> bool {
        self.inner.raw == self.device().driver().legacy_stream()
    }

    /// Gives the graph of the capture that the stream is in something to keep. Returns it if there is no such graph.
    pub(crate) fn keep_for_graph(&self, kept: Attachment<Self>) -> Result<(), Attachment<Self>> {
        match self.inner.gate.owner() {
            Some(capture) => capture.attach(kept),
            None => Err(kept),
        }
    }

    pub(super) fn host_panics(&self) -> &Arc<HostPanics> {
        &self.inner.host_panics
    }

    pub(super) fn gate(&self) -> &Gate<Capture, RawStream> {
        &self.inner.gate
    }

    /// Keeps launches of graphs and waits for events apart while the guard lives. The caller is inside of the gate, and
    /// does nothing but that call.
    pub(crate) fn lock_launch_or_wait(&self) -> MutexGuard<'_, ()> {
        self.inner.launch_or_wait.lock()
    }

    /// Notes that another library is about to get the driver's handle, which it gets after this call. So a capture that
    /// the library begins before a look at [`exposed`] is asked for.
    pub(super) fn expose(&self) {
        self.list_once(&self.inner.exposed);
    }

    /// Notes that the stream is about to get a copy of host memory that its caller alone waits for. From here on, the
    /// quarantine of that memory asks the stream, too.
    pub(crate) fn note_unseen_copy(&self) {
        self.list_once(&self.inner.copies_unseen);
    }

    fn list_once(&self, listed: &AtomicBool) {
        // The child of a fork may have inherited the lock as it was.
        if listed.load(Ordering::Acquire) || is_forked_child() {
            return;
        }
        let mut streams = EXPOSED.lock();
        streams.retain(|stream| stream.strong_count() > 0);
        // Two threads may list it both, which costs a question.
        streams.push(Arc::downgrade(&self.inner));
        // Release: a thread that need not list it goes on after this one has.
        listed.store(true, Ordering::Release);
    }

    pub(super) fn is_exposed(&self) -> bool {
        self.inner.exposed.load(Ordering::Acquire)
    }

    /// Whether this is the stream behind a handle of the driver.
    pub(crate) fn is_handle(&self, device: &Device, raw: RawStream) -> bool {
        self.device() == device && self.raw() == raw
    }

    /// The driver's handle. Outside of this folder, only a `StreamCall` gives it.
    pub(super) fn raw(&self) -> RawStream {
        if is_forked_child() {
            // A thread of the parent may have had the gate's lock.
            return self.inner.replacement.get().map_or(self.inner.raw, |own| own.raw);
        }
        self.inner.gate.handle()
    }
}

impl PoolHandles for Stream {
    fn lock_and_unregister_if(&self, condition: impl FnOnce() -> bool) -> bool {
        let mut streams = STREAMS.lock();
        let is_abandoned = condition();
        for key in self.inner.keys().filter(|_| is_abandoned) {
            // Its driver's handle, brought again, is another stream.
            if streams.get(&key).is_some_and(|entry| entry.ptr_eq(&Arc::downgrade(&self.inner))) {
                streams.remove(&key);
            }
        }
        is_abandoned
    }

    fn all_handles(&self) -> usize {
        Arc::strong_count(&self.inner)
    }

    fn pool_handles(&self) -> &AtomicUsize {
        &self.inner.pools
    }
}

/// The living streams of `device`.
pub(super) fn living(device: &Device) -> Vec<Stream> {
    let upgrade = |stream: &Weak<StreamInner>| stream.upgrade().map(|inner| Stream { inner });
    // All of them: as below.
    let mut streams: Vec<Stream> = STREAMS.lock().values().filter_map(upgrade).collect();
    streams.retain(|stream| stream.device() == device);
    streams
}

/// The living streams of `device` that are among the [`EXPOSED`].
pub(super) fn exposed(device: &Device) -> Vec<Stream> {
    let upgrade = |stream: &Weak<StreamInner>| stream.upgrade().map(|inner| Stream { inner });
    // All of them: one that goes may be the last handle of its stream, which calls the driver.
    let mut streams: Vec<Stream> = EXPOSED.lock().iter().filter_map(upgrade).collect();
    streams.retain(|stream| stream.device() == device);
    streams
}

impl Device {
    /// A new stream, which does not wait for the legacy default stream.
    ///
    /// # Errors
    ///
    /// The errors of the driver call.
    pub fn new_stream(&self) -> Result<Stream> {
        let new =
            self.driver().stream_create().with_context(|| format!("making a stream on {self}"))?;
        Ok(Stream::register_new(StreamInner::new(self, new.raw, new.keep)))
    }

    /// A new stream that waits for the legacy default stream, as that does for it (`CU_STREAM_DEFAULT`). Work of other
    /// libraries on the default stream is in order with it without events. On the simulated device it is a stream like
    /// any other, which tells of a program that counts on that order.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let vec = DeviceVec::from_slice(&device.new_blocking_stream()?, &[1, 2, 3])?;
    /// assert_eq!(vec.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of the driver call.
    pub fn new_blocking_stream(&self) -> Result<Stream> {
        let made = self.driver().stream_create_blocking();
        let new = made.with_context(|| format!("making a stream on {self}"))?;
        Ok(Stream::register_new(StreamInner::new(self, new.raw, new.keep)))
    }

    /// The legacy default stream with CUDA's handles 0 and 1, one for the whole device.
    pub fn default_stream(&self) -> Stream {
        let raw = self.driver().legacy_stream();
        Stream::get_or_register_exposed(self, raw, || {
            #[cfg(feature = "cuda")]
            let keep =
                self.context_of_cudarc().map(|context| Box::new(context.default_stream()) as _);
            #[cfg(not(feature = "cuda"))]
            let keep = None;
            StreamInner::new(self, raw, keep)
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

debug_struct!(Stream { id(), device() });

#[cfg(feature = "sim")]
impl crate::sim::SimulatedStream for Stream {
    fn handle(&self) -> RawStream {
        self.raw()
    }

    fn expose(&self) {
        Stream::expose(self);
    }
}

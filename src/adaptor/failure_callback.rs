//! A resource that asks what to do when memory runs out.

use super::caught::caught;
use super::handles::{handles, identity_by};
use crate::debug_log::{event, later};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible};
use crate::stream::Stream;
use crate::sync::Arc;
use crate::sync::trusted::thread_local;
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

/// How often an allocation is tried again when nothing else is said.
const MAX_RETRIES: u32 = 16;

/// An allocation that failed, as the callback of a [`FailureCallbackAdaptor`] sees it. RMM's is told
/// the bytes alone.
///
/// ```
/// use aquifer::Failure;
///
/// /// Tries requests of a mebibyte and more again, twice.
/// fn worth_it(failure: &Failure<'_>) -> bool {
///     failure.layout().bytes() >= 1 << 20 && failure.attempt() <= 2
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    layout: DeviceLayout,
    error: &'a Error,
    attempt: u32,
}

impl<'a> Failure<'a> {
    /// What was asked, in bytes.
    pub fn layout(&self) -> DeviceLayout {
        self.layout
    }

    /// Why it was refused.
    pub fn error(&self) -> &'a Error {
        self.error
    }

    /// Which attempt of this allocation failed, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

/// A resource that calls back when upstream refuses, and tries again if it is told to: RMM's
/// `failure_callback_resource_adaptor`.
///
/// The callback frees what it can, spills to the host say, and returns `true` for another attempt.
/// It runs on the thread that allocates, which holds no lock of this crate: it may free memory of the
/// same resource and allocate from it. Below a [`ThreadSafeAdaptor`](crate::ThreadSafeAdaptor), which
/// has its lock meanwhile, what it frees there waits for the end of the allocation. Only errors of the kinds asked reach it, [`ErrorKind::OutOfMemory`] by
/// default. After [`max_retries`](FailureCallbackOptions::max_retries) the error is final. So is that
/// of an allocation which the callback makes from this very adaptor: a callback is not called from
/// inside of itself, be it through other adaptors and their callbacks, of which at most eight run
/// inside of each other. If it panics, the panic is logged with a [`tracing`] error and the
/// allocation fails with upstream's error.
///
/// RMM tries for ever while the callback says so, tells it only how many bytes were asked, and
/// deadlocks if a callback below a pool frees into that pool.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, FailureCallbackAdaptor, LimitingAdaptor};
/// use std::sync::{Arc, Mutex};
///
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let limited = Arc::new(LimitingAdaptor::new(CudaResource::new(&device), 1 << 20));
/// let spare = DeviceVec::<u8>::zeroed_in(&stream, 1 << 20, limited.clone())?;
/// let spare = Mutex::new(Some(spare));
/// let patient = FailureCallbackAdaptor::new(limited, move |failure| {
///     assert_eq!(failure.layout().bytes(), 4096);
///     spare.lock().is_ok_and(|mut spare| spare.take().is_some())
/// });
/// let _vec = DeviceVec::<u8>::zeroed_in(&stream, 4096, Arc::new(patient))?;
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct FailureCallbackAdaptor<U> {
    state: Arc<State<U>>,
}

/// How many callbacks may run inside of each other on a thread.
const DEEPEST: usize = 8;

thread_local! {
    /// The adaptors whose callbacks run on this thread, by address; 0 is none. Without a destructor,
    /// so that threads which end may allocate.
    static ASKED: Cell<[usize; DEEPEST]> = const { Cell::new([0; DEEPEST]) };
}

/// A callback that runs on this thread.
struct Asking {
    adaptor: usize,
}

impl Asking {
    /// `None` if it runs already, or too many others do: the bound on retries would be none if
    /// each of them could bring more of the same.
    fn begin<U>(state: &State<U>) -> Option<Self> {
        let adaptor = std::ptr::from_ref(state).addr();
        let mut asked = ASKED.get();
        if asked.contains(&adaptor) {
            return None;
        }
        *asked.iter_mut().find(|place| **place == 0)? = adaptor;
        ASKED.set(asked);
        Some(Self { adaptor })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKED.set(ASKED.get().map(|asked| if asked == self.adaptor { 0 } else { asked }));
    }
}

type Callback = Box<dyn Fn(&Failure<'_>) -> bool + Send + Sync>;
type Filter = Box<dyn Fn(&Error) -> bool + Send + Sync>;

struct State<U> {
    upstream: U,
    callback: Callback,
    filter: Filter,
    max_retries: u32,
}

handles!(FailureCallbackAdaptor, state);

impl<U: fmt::Debug> fmt::Debug for FailureCallbackAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailureCallbackAdaptor")
            .field("upstream", &self.state.upstream)
            .field("max_retries", &self.state.max_retries)
            .finish_non_exhaustive()
    }
}

impl<U> FailureCallbackAdaptor<U> {
    /// Calls `callback` when `upstream` is out of memory, and tries again while it returns `true`,
    /// at most 16 times.
    pub fn new(
        upstream: U,
        callback: impl Fn(&Failure<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::builder(upstream).made(Box::new(callback))
    }

    /// The options.
    pub fn builder(upstream: U) -> FailureCallbackOptions<U> {
        let filter = Box::new(|error: &Error| error.kind() == ErrorKind::OutOfMemory);
        FailureCallbackOptions { upstream, filter, max_retries: MAX_RETRIES }
    }

    /// The resource that is asked.
    pub fn upstream(&self) -> &U {
        &self.state.upstream
    }

    /// How often one allocation is tried again.
    pub fn max_retries(&self) -> u32 {
        self.state.max_retries
    }
}

/// The options of a [`FailureCallbackAdaptor`].
///
/// ```
/// use aquifer::{CudaResource, Device, ErrorKind, FailureCallbackAdaptor};
///
/// let device = Device::detect()?;
/// let once = FailureCallbackAdaptor::builder(CudaResource::new(&device))
///     .for_kind(ErrorKind::Driver)
///     .max_retries(1)
///     .build(|_| true)?;
/// assert_eq!(once.max_retries(), 1);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[must_use = "options do nothing before they are built"]
pub struct FailureCallbackOptions<U> {
    upstream: U,
    filter: Filter,
    max_retries: u32,
}

impl<U: fmt::Debug> fmt::Debug for FailureCallbackOptions<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailureCallbackOptions")
            .field("upstream", &self.upstream)
            .field("max_retries", &self.max_retries)
            .finish_non_exhaustive()
    }
}

impl<U> FailureCallbackOptions<U> {
    /// How often one allocation is tried again at most, however often the callback asks for it: 16
    /// unless said otherwise, and at least 1.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }

    /// Which errors reach the callback: those of this kind, [`ErrorKind::OutOfMemory`] unless said
    /// otherwise. All others pass through. Takes the place of [`for_errors`](Self::for_errors).
    pub fn for_kind(self, kind: ErrorKind) -> Self {
        self.for_errors(move |error| error.kind() == kind)
    }

    /// Which errors reach the callback: those of which `filter` is true. Takes the place of
    /// [`for_kind`](Self::for_kind). What is said of a callback that panics goes for it too.
    pub fn for_errors(mut self, filter: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Box::new(filter);
        self
    }

    /// The adaptor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for 0 retries: the callback would never be called.
    pub fn build(
        self,
        callback: impl Fn(&Failure<'_>) -> bool + Send + Sync + 'static,
    ) -> Result<FailureCallbackAdaptor<U>> {
        if self.max_retries > 0 {
            return Ok(self.made(Box::new(callback)));
        }
        Err(Error::new(ErrorKind::InvalidArgument, "a callback on failure with 0 retries")
            .advise("use the upstream itself"))
    }

    fn made(self, callback: Callback) -> FailureCallbackAdaptor<U> {
        let Self { upstream, filter, max_retries } = self;
        let state = State { upstream, callback, filter, max_retries };
        FailureCallbackAdaptor { state: Arc::new(state) }
    }
}

impl<U> State<U> {
    /// Whether to try again. A resource's methods do not panic, so the caller's code may not either.
    #[cold]
    fn wants_retry(&self, failure: &Failure<'_>) -> bool {
        let Some(_asking) = Asking::begin(self) else { return false };
        let ask = || (self.filter)(failure.error) && (self.callback)(failure);
        caught(ask).unwrap_or_else(|| {
            let (bytes, attempt) = (failure.layout.bytes(), failure.attempt);
            let error = failure.error.to_string();
            // A pool above may have its locks.
            later(move || {
                event!(
                    error, bytes, attempt, %error,
                    "the callback of a failed allocation panicked"
                );
            });
            false
        })
    }
}

// SAFETY: every block is upstream's, of the layout asked, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for FailureCallbackAdaptor<U> {
    fn device(&self) -> &Device {
        self.state.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let state = &*self.state;
        let mut attempt = 1_u32;
        loop {
            let error = match state.upstream.allocate(stream, layout) {
                Ok(block) => return Ok(block),
                Err(error) => error,
            };
            if attempt > state.max_retries
                || !state.wants_retry(&Failure { layout, error: &error, attempt })
            {
                return Err(error);
            }
            let Some(next) = attempt.checked_add(1) else { return Err(error) };
            attempt = next;
        }
    }

    identity_by!(state);

    fn frees_with_driver(&self, block: &DeviceBlock) -> bool {
        self.state.upstream.frees_with_driver(block)
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the block is upstream's; the caller vouches for the rest.
        unsafe { self.state.upstream.deallocate(stream, block) }
    }
}

// SAFETY: the blocks are upstream's, unchanged.
unsafe impl<U: HostAccessible> HostAccessible for FailureCallbackAdaptor<U> {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        self.state.upstream.host_pointer(block)
    }
}

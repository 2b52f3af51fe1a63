//! A callback on failed allocations, and retries.

use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::resource::failure::{Callback, Failure, asks_for_retry};
use crate::resource::impls::{adaptor, debug_struct, forward, setters};
use crate::resource::resizing::Purpose;
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use std::fmt;

/// The retries of an allocation, unless [`FailureCallbackOptions::max_retries`] sets another number.
const MAX_RETRIES: u32 = 16;

/// A resource with a callback on failed allocations, which may ask for another attempt. RMM calls it
/// `failure_callback_resource_adaptor`.
///
/// The callback frees memory, by spilling to the host for example, and returns `true` for another
/// attempt. It runs on the thread that allocates. That thread holds no lock of this crate except a
/// pool's lock for its growth. So the callback may free memory of the same resource and allocate from
/// it. A [`ThreadSafeAdaptor`](crate::mr::ThreadSafeAdaptor) above holds its lock meanwhile, so frees
/// to that adaptor wait for the end of the allocation. The callback may wait for whatever a
/// [resource](DeviceResource#what-a-method-may-wait-for) may wait for.
///
/// Only errors of the chosen kinds reach the callback, [`ErrorKind::OutOfMemory`] by default. The error is
/// final after [`max_retries`](FailureCallbackOptions::max_retries). It is also final for an allocation
/// that the callback itself makes from this adaptor, even through other adaptors. So a callback never runs
/// inside itself. At most eight callbacks of different adaptors nest. A panic of the callback is
/// logged with a [`tracing`](https://docs.rs/tracing) error, and the allocation fails with the upstream's error.
///
/// RMM retries for as long as the callback asks, and passes it only the number of bytes. It deadlocks
/// if a callback below a pool frees into that pool.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, mr::{FailureCallbackAdaptor, LimitingAdaptor}};
/// use std::sync::{Arc, Mutex};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let limited = Arc::new(LimitingAdaptor::new(CudaResource::new(&device), 1 << 20));
/// let spare = DeviceVec::<u8>::zeroed_in(&stream, 1 << 20, limited.clone())?;
/// let spare = Mutex::new(Some(spare));
/// let patient = FailureCallbackAdaptor::new(limited, move |failure| {
///     assert_eq!(failure.layout().bytes(), 4096);
///     spare.lock().is_ok_and(|mut spare| spare.take().is_some())
/// });
/// let _vec = DeviceVec::<u8>::zeroed_in(&stream, 4096, patient)?;
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct FailureCallbackAdaptor<U> {
    state: Arc<FailureCallbackState<U>>,
}

type Filter = Box<dyn Fn(&Error) -> bool + Send + Sync>;

struct FailureCallbackState<U> {
    upstream: U,
    callback: Box<Callback>,
    filter: Filter,
    max_retries: u32,
}

adaptor!(FailureCallbackAdaptor, state.upstream, max_retries);

impl<U> FailureCallbackAdaptor<U> {
    /// Calls `callback` when `upstream` is out of memory, and retries while it returns `true`, at
    /// most 16 times.
    pub fn new(
        upstream: U,
        callback: impl Fn(&Failure<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::builder(upstream).with_callback(Box::new(callback))
    }

    /// The options, with their defaults.
    pub fn builder(upstream: U) -> FailureCallbackOptions<U> {
        let filter = Box::new(|error: &Error| error.kind() == ErrorKind::OutOfMemory);
        FailureCallbackOptions { upstream, filter, max_retries: MAX_RETRIES }
    }

    /// The most retries of one allocation.
    pub fn max_retries(&self) -> u32 {
        self.state.max_retries
    }
}

/// The options of a [`FailureCallbackAdaptor`].
///
/// ```
/// use aquifer::{CudaResource, Device, ErrorKind, mr::FailureCallbackAdaptor};
///
/// let device = Device::detect_or_simulate()?;
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

debug_struct!([U: fmt::Debug] FailureCallbackOptions<U> { upstream, max_retries, .. });

impl<U> FailureCallbackOptions<U> {
    setters! {
        /// The most retries of one allocation, whatever the callback returns. The default is
        /// 16, and the least is 1.
        max_retries: u32;
    }

    /// Calls the callback for errors of this kind, by default [`ErrorKind::OutOfMemory`]. All others
    /// pass through. Replaces [`for_errors`](Self::for_errors).
    pub fn for_kind(self, kind: ErrorKind) -> Self {
        self.for_errors(move |error| error.kind() == kind)
    }

    /// Calls the callback for errors of which `filter` is true. Replaces
    /// [`for_kind`](Self::for_kind). A panic of the filter counts as one of the callback.
    pub fn for_errors(mut self, filter: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Box::new(filter);
        self
    }

    /// The adaptor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for 0 retries, since the callback would never run.
    pub fn build(
        self,
        callback: impl Fn(&Failure<'_>) -> bool + Send + Sync + 'static,
    ) -> Result<FailureCallbackAdaptor<U>> {
        if self.max_retries > 0 {
            return Ok(self.with_callback(Box::new(callback)));
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            "a callback on failure was given 0 retries, and would never be called",
        )
        .with_advice("give 1 retry at least, or use the upstream itself"))
    }

    fn with_callback(self, callback: Box<Callback>) -> FailureCallbackAdaptor<U> {
        let Self { upstream, filter, max_retries } = self;
        let state = FailureCallbackState { upstream, callback, filter, max_retries };
        FailureCallbackAdaptor { state: Arc::new(state) }
    }
}

impl<U> FailureCallbackState<U> {
    /// Tries again while the callback asks for it. `layout` is the layout of the request.
    #[inline]
    fn retry<R>(&self, layout: DeviceLayout, mut call: impl FnMut(&U) -> Result<R>) -> Result<R> {
        let mut attempt = 0;
        loop {
            let error = match call(&self.upstream) {
                Err(error) if attempt < self.max_retries => error,
                result => return result,
            };
            attempt += 1;
            if !self.wants_retry(&Failure::new(layout, &error, attempt)) {
                return Err(error);
            }
        }
    }

    #[cold]
    fn wants_retry(&self, failure: &Failure<'_>) -> bool {
        asks_for_retry(std::ptr::from_ref(self).addr(), failure, || {
            (self.filter)(failure.error()) && (self.callback)(failure)
        })
    }
}

// SAFETY: every block is the upstream's, of the layout asked, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for FailureCallbackAdaptor<U> {
    forward!(device, peer_access, identity, frees_with_driver, deallocate);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.state.retry(layout, |upstream| upstream.allocate(stream, layout))
    }

    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        self.state.retry(layout, |upstream| upstream.allocate_growable(stream, layout))
    }

    /// The callback sees the size in bytes that the whole block is to have.
    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        // SAFETY: the block is the upstream's, and as it was after an error; the caller vouches for the rest.
        let mut resize = |upstream: &U| unsafe { upstream.resize_in_place(stream, block, bytes) };
        // What the caller goes on without is no failure.
        if Purpose::current() == Purpose::Wish {
            return resize(&self.state.upstream);
        }
        self.state.retry(DeviceLayout::new(bytes)?, resize)
    }
}

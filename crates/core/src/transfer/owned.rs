//! Transfers that own their buffers while they run.

use crate::container::host_copy::{to_device, to_host};
use crate::container::stopped::{HostAccess, may_return};
use crate::container::{DeviceVec, check_range};
use crate::driver::{CallSite, DeviceCopy, ErrorContext, is_forked_child, not_in_host_function};
use crate::error::{Error, ErrorKind, Result, error_with_value};
use crate::event::Event;
use crate::pinned::{HostBuffer, HostRead};
use crate::stream::poller::Watched;
use crate::stream::{Stream, deferred};
use crate::sync::Arc;
use bytemuck::{AnyBitPattern, NoUninit};
use std::fmt;
use std::future::Future;
use std::mem::MaybeUninit;
use std::ops::RangeBounds;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

/// A copy that runs while the host goes on. It owns both buffers. [`wait`](Self::wait) or `.await` gives them back when
/// the copy is complete.
///
/// An early drop leaves the buffers with the event that ends the copy, and no thread blocks. They are freed when the
/// device is past the copy and a later call looks for them. Such a call is a transfer, a synchronisation, a pool's
/// trim, or an allocation that would have no memory otherwise (the guide's page on tasks). A
/// transfer that is forgotten leaks them. In both cases the device never touches memory of another owner.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use aquifer::{Device, PinnedAlloc};
///
/// let stream = Device::detect_or_simulate()?.new_stream()?;
/// let mut host: Vec<u8, PinnedAlloc> = Vec::new_in(PinnedAlloc);
/// host.extend_from_slice(b"over and back");
///
/// let upload = stream.upload_new(host)?;
/// // ... the host does something else ...
/// let (mut host, device) = upload.wait()?;
/// host.fill(0);
/// let (host, _device) = stream.download(device, host)?.wait()?;
/// assert_eq!(&host[..], b"over and back");
/// # Ok::<(), aquifer::Error>(())
/// ```
#[must_use = "dropped, a transfer gives its buffers up"]
pub struct Transfer<B: HostRead> {
    in_flight: Option<InFlight<B>>,
}

pub(super) struct InFlight<B: HostRead> {
    /// The buffer, which is not touched as a `B` while the device may write behind it. A move of a `Box` or `Vec`
    /// promises that nothing else writes its memory.
    pub(super) host: MaybeUninit<B>,
    pub(super) device: DeviceVec<B::Item>,
    pub(super) event: End,
    /// The device's access to the host's buffer.
    pub(super) access: HostAccess,
}

/// The event that ends a copy. It is the transfer's own until a future has to be woken for it.
pub(super) enum End {
    Own(Event),
    Watched(Arc<Watched>),
}

impl End {
    fn event(&self) -> &Event {
        match self {
            Self::Own(event) => event,
            Self::Watched(watched) => watched.event(),
        }
    }

    fn into_shared(self) -> Arc<Event> {
        match self {
            Self::Own(event) => Arc::new(event),
            Self::Watched(watched) => watched.event().clone(),
        }
    }

    fn into_watched(self) -> Arc<Watched> {
        match self {
            Self::Own(event) => Watched::new(event),
            Self::Watched(watched) => watched,
        }
    }
}

/// The error of a transfer, with the buffers if they can be given back.
///
/// They cannot if the device may still write the host's buffer, with no way to tell when it stops. Both are leaked
/// then.
pub struct TransferError<B: HostRead> {
    /// The reason.
    pub error: Error,
    /// The host's buffer and the device's.
    pub buffers: Option<Box<(B, DeviceVec<B::Item>)>>,
}

error_with_value!(
    [B: HostRead] TransferError<B>,
    "the error has both buffers",
    "it has no buffers: they were given back before, or are leaked, since the device may still use them",
    |failed| failed.buffers.is_some()
);

impl Stream {
    /// Copies `host` to `device`, of the same length, on this stream, and returns at once.
    ///
    /// The copy is asynchronous if the host's memory is page-locked ([`PinnedAlloc`](crate::PinnedAlloc),
    /// [`Registered`](crate::pinned::Registered)). The driver stages other memory itself, more slowly, and may block
    /// the host meanwhile.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`](crate::ErrorKind::LengthMismatch),
    /// [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice), [`ErrorKind::Capture`](crate::ErrorKind::Capture),
    /// and the errors of the driver. The buffers come back in the error.
    #[track_caller]
    pub fn upload<B: HostRead<Item: NoUninit>>(
        &self,
        host: B,
        device: DeviceVec<B::Item>,
    ) -> Result<Transfer<B>, TransferError<B>> {
        let _site = CallSite::enter();
        begin(self, (host, ..), (device, ..), HostAccess::Read)
    }

    /// Copies `host` to a new vector at home on this stream, from the device's current resource, and returns at once.
    /// [`upload`](Self::upload) says what happens with memory that is not page-locked.
    ///
    /// # Errors
    ///
    /// The errors of [`upload`](Self::upload), and those of the allocation. The host's buffer comes back in the error, with
    /// an empty vector: nothing was written to the new one.
    #[track_caller]
    pub fn upload_new<B: HostRead<Item: NoUninit>>(
        &self,
        mut host: B,
    ) -> Result<Transfer<B>, TransferError<B>> {
        let _site = CallSite::enter();
        let (_, length) = host.parts();
        // SAFETY: written whole by the upload, in home's order.
        let device = match unsafe { DeviceVec::uninit(self, length) } {
            Ok(device) => device,
            Err(error) => {
                let device = DeviceVec::without_memory(self);
                let buffers = device.map(|device| Box::new((host, device)));
                return Err(TransferError { error, buffers });
            }
        };
        self.upload(host, device).map_err(|mut failed| {
            // No element of it is written, and safe code may read what a vector has.
            if let Some(buffers) = &mut failed.buffers {
                buffers.1.clear();
            }
            failed
        })
    }

    /// Copies `device` to `host`, of the same length, on this stream. It returns at once if the host's memory is
    /// page-locked. CUDA copies into other memory before it returns, which blocks until the stream has come so far.
    ///
    /// # Errors
    ///
    /// The errors of [`upload`](Self::upload).
    #[track_caller]
    pub fn download<B: HostBuffer<Item: AnyBitPattern>>(
        &self,
        device: DeviceVec<B::Item>,
        host: B,
    ) -> Result<Transfer<B>, TransferError<B>> {
        let _site = CallSite::enter();
        begin(self, (host, ..), (device, ..), HostAccess::Write)
    }
}

/// Begins the copy between a range of each buffer.
pub(super) fn begin<B: HostRead>(
    stream: &Stream,
    (host, host_range): (B, impl RangeBounds<usize>),
    (mut device, device_range): (DeviceVec<B::Item>, impl RangeBounds<usize>),
    access: HostAccess,
) -> Result<Transfer<B>, TransferError<B>> {
    deferred::collect();
    let mut host = MaybeUninit::new(host);
    // The event is made first, so that nothing can fail between the copy and its end but the record.
    let event = Event::new(stream.device())
        .with_context(|| format!("making an event for a transfer on {stream}"));
    let event = match event {
        Ok(event) => event,
        Err(error) => return Err(failed(stream, error, HostAccess::None, host, device)),
    };
    // SAFETY: initialised above. The pointer is taken from the buffer's final place as a value; it
    // is not used as a `B` again before the copy is complete.
    let (pointer, length): (NonNull<B::Item>, usize) = unsafe { host.assume_init_mut() }.parts();
    let part = check_range(host_range, length)
        .map_err(|error| error.within("a range of the host's buffer"));
    let enqueued = part.and_then(|part| {
        let device = device.slice_mut(device_range);
        let mut device = device.map_err(|error| error.within("a range of the device's vector"))?;
        // SAFETY: the range lies in the buffer.
        let first = unsafe { pointer.add(part.start) };
        let memory = NonNull::slice_from_raw_parts(first, part.len()).as_ptr();
        // SAFETY: the buffer is ours and stays allocated and untouched until the stream has passed: it
        // goes back after the event, is dropped after the event, or leaks.
        unsafe {
            if access == HostAccess::Write {
                to_host(stream, &device.as_slice(), memory)
            } else {
                to_device(stream, &mut device, memory)
            }
        }
    });
    let enqueued = enqueued.and_then(|call| match call {
        Some(call) => Ok(call),
        None => {
            // No copy, but an event: it must not become a node of a graph, nor be another device's.
            stream.device().require(device.device(), "the vector")?;
            let call = stream.begin_call()?;
            call.refuse_capture("work on host memory").map(|()| call)
        }
    });
    let call = match enqueued {
        Ok(call) => call,
        Err(error) => return Err(failed(stream, error, HostAccess::None, host, device)),
    };
    if let Err(error) = call.record_into(&event) {
        // The copy runs, and only a wait for the stream shows its end.
        let access = access.only_if(call.synchronize().is_err());
        drop(call);
        return Err(failed(stream, error, access, host, device));
    }
    Ok(Transfer { in_flight: Some(InFlight { host, device, event: End::Own(event), access }) })
}

/// The error with the buffers, if they may go back by the device's `access` to the host's. Otherwise the buffers are
/// leaked.
pub(super) fn failed<B: HostRead>(
    stream: &Stream,
    error: Error,
    access: HostAccess,
    host: MaybeUninit<B>,
    device: DeviceVec<B::Item>,
) -> TransferError<B> {
    if may_return(stream, &error, access) {
        // SAFETY: initialised in `begin`. The device was given no copy of it, has stopped, or only reads
        // it for a dead context.
        let host = unsafe { host.assume_init() };
        return TransferError { error, buffers: Some(Box::new((host, device))) };
    }
    crate::debug_log::event!(error,
        %stream,
        bytes = device.size_in_bytes(),
        "leaked the buffers of a transfer: the device can no longer say whether it is done"
    );
    std::mem::forget(device);
    // `host` is a `MaybeUninit`, which drops nothing.
    TransferError { error, buffers: None }
}

impl<B: HostRead> Transfer<B> {
    pub(super) fn in_flight(in_flight: InFlight<B>) -> Self {
        Self { in_flight: Some(in_flight) }
    }

    /// Whether the copy is complete, so that [`wait`](Self::wait) would not wait.
    ///
    /// # Errors
    ///
    /// The errors of asking the device, on which earlier work failed.
    pub fn is_complete(&self) -> Result<bool> {
        let asked = |in_flight: &InFlight<B>| in_flight.event.event().is_complete();
        self.in_flight.as_ref().map_or(Ok(true), asked)
    }

    /// Blocks until the copy is complete, and gives the buffers back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ContextLost`](crate::ErrorKind::ContextLost) if the copy, or work before it, failed, and
    /// [`ErrorKind::Simulation`](crate::ErrorKind::Simulation) if the simulated device reports it. The error has the
    /// buffers unless the device may still write the host's.
    #[track_caller]
    pub fn wait(mut self) -> Result<(B, DeviceVec<B::Item>), TransferError<B>> {
        let _site = CallSite::enter();
        // Its drop frees the buffers later.
        not_in_host_function("a transfer")
            .map_err(|error| TransferError { error, buffers: None })?;
        let wait = |in_flight: &InFlight<B>| in_flight.event.event().synchronize();
        let ended = self.in_flight.as_ref().map_or(Ok(()), wait);
        self.end(ended)
    }

    fn end(&mut self, ended: Result<()>) -> Result<(B, DeviceVec<B::Item>), TransferError<B>> {
        let Some(InFlight { host, device, access, .. }) = self.in_flight.take() else {
            // Only a future that has given its answer is empty, and it cannot be polled again.
            return Err(TransferError { error: already_given(), buffers: None });
        };
        if let Err(error) = ended {
            let stream = device.stream().clone();
            return Err(failed(&stream, error, access, host, device));
        }
        // SAFETY: initialised in `begin`; the device has passed the event that ends the copy.
        Ok((unsafe { host.assume_init() }, device))
    }
}

fn already_given() -> Error {
    Error::new(ErrorKind::InvalidArgument, "the transfer has given its buffers back already")
        .with_advice("poll a future no more when it was ready")
}

impl<B: HostRead> Drop for Transfer<B> {
    fn drop(&mut self) {
        let Some(in_flight) = self.in_flight.take() else { return };
        if is_forked_child() {
            std::mem::forget(in_flight);
            return;
        }
        // Freed at the next call if it is complete already: one path, and no question to the driver
        // from a destructor.
        let InFlight { host, device, event, .. } = in_flight;
        defer_drop(event, host, Some(device));
    }
}

/// Drops the buffers when the device is past the copy.
fn defer_drop<B: HostRead>(end: End, mut host: MaybeUninit<B>, device: Option<DeviceVec<B::Item>>) {
    deferred::defer(Some(end.into_shared()), move || {
        // Dropped after the host's buffer, also where that panics.
        let _device = device;
        // SAFETY: initialised in `begin`, dropped once, after the event that ends the copy.
        unsafe { host.assume_init_drop() }
    });
}

/// The future resolves to the buffers and does not block a thread. One thread of the process asks the device, from the
/// first future that is polled on.
impl<B: HostRead> Future for Transfer<B> {
    type Output = Result<(B, DeviceVec<B::Item>), TransferError<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = not_in_host_function("a transfer") {
            return Poll::Ready(Err(TransferError { error, buffers: None }));
        }
        let Some(mut in_flight) = self.in_flight.take() else {
            return Poll::Ready(self.end(Ok(())));
        };
        let watched = in_flight.event.into_watched();
        in_flight.event = End::Watched(watched.clone());
        // Back before the waker is touched: to clone it may panic, and the copy is still running.
        self.in_flight = Some(in_flight);
        let Poll::Ready(asked) = watched.poll(context) else { return Poll::Pending };
        if let (Ok(true), Some(in_flight)) = (&asked, &mut self.in_flight) {
            // The copy is over, whatever other work is reported: its buffers go back without a wait.
            in_flight.access = HostAccess::None;
        }
        Poll::Ready(self.end(watched.event().end(asked)))
    }
}

// Nothing is pinned: the buffers' memory does not lie in the transfer.
impl<B: HostRead> Unpin for Transfer<B> {}

impl<B: HostRead> fmt::Debug for Transfer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("device", &self.in_flight.as_ref().map(|in_flight| &in_flight.device))
            .finish_non_exhaustive()
    }
}

impl<T: DeviceCopy + NoUninit + Send> DeviceVec<T> {
    /// A vector with the contents of `host`, which is freed when the copy is complete. It returns at once.
    /// [`Stream::upload`] says what happens with memory that is not page-locked.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let stream = Device::detect_or_simulate()?.new_stream()?;
    /// let vec = DeviceVec::from_vec(&stream, vec![1_u32, 2, 3])?;
    /// assert_eq!(vec.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`with_capacity`](Self::with_capacity), and those of the copy.
    #[track_caller]
    pub fn from_vec(stream: &Stream, host: impl HostRead<Item = T>) -> Result<Self> {
        let _site = CallSite::enter();
        let mut transfer = stream.upload_new(host)?;
        match transfer.in_flight.take() {
            Some(InFlight { host, device, event, .. }) => {
                defer_drop(event, host, None);
                Ok(device)
            }
            None => Err(already_given()),
        }
    }
}

//! Use of a vector on another stream than its home.

use super::debts::{Debts, Lender};
use super::view::{DeviceSlice, DeviceSliceMut};
use crate::backend::{CaptureStatus, RawStream};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::stream::{PerThreadStream, Stream, after_capture};
use bytemuck::Pod;
use std::fmt;
use std::thread::ThreadId;

/// Whoever may have used a vector away from home.
#[derive(Clone, Debug)]
pub(crate) enum Borrower {
    /// A stream that the debt keeps alive: an event is recorded on it when the debt is paid.
    Stream(Stream),
    /// The default stream of one thread, which only that thread can record on.
    PerThread(Device, ThreadId),
    /// Work on a stream that nobody here keeps alive.
    Context(Device),
}

impl Lender for Borrower {
    type Home = Stream;
    type Error = Error;

    fn make_wait(&self, home: &Stream) -> Result<()> {
        match self {
            Self::Stream(stream) if stream == home => Ok(()),
            Self::Stream(stream) => {
                let before = after_capture::before();
                stay_out(home, stream.device(), stream.raw())?;
                home.wait_for(stream)?;
                after_capture::repeat(before, home, stream)
            }
            Self::PerThread(device, thread) if *thread == std::thread::current().id() => {
                let event = Event::new(device)?;
                let raw = device.per_thread_stream()?.raw();
                stay_out(home, device, raw)?;
                device.driver().event_record(event.raw(), raw)?;
                home.wait(&event)
            }
            Self::PerThread(device, _) | Self::Context(device) => wait_for_context(home, device),
        }
    }

    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stream(a), Self::Stream(b)) => a == b,
            (Self::PerThread(a, thread), Self::PerThread(b, other)) => a == b && thread == other,
            // Two uses through the context may be two streams, in no order.
            _ => false,
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Context(a), Self::Context(b)) => a == b,
            _ => self.same(other),
        }
    }
}

/// The error of waiting for a stream in capture with one that is not. Home would join the capture,
/// unasked, and its own work from before would be in no order with that of the stream.
fn stay_out(home: &Stream, device: &Device, raw: RawStream) -> Result<()> {
    if device.driver().capture_status(raw)? == CaptureStatus::None || home.is_capturing()? {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Capture,
        format!("{home} has to wait for what a vector was lent for, on a stream in capture"),
    )
    .advise("use the vector at home before the capture, or after it"))
}

/// Makes `home` wait for all work of a device's context: one event where the driver has it and no
/// capture forbids it, else the host waits.
fn wait_for_context(home: &Stream, device: &Device) -> Result<()> {
    if Stream::any_capturing(device) {
        return Err(Error::new(
            ErrorKind::Capture,
            format!("{home} has to wait for all of {device}, where a stream is in capture"),
        )
        .advise("use vectors on streams that Aquifer knows while a capture runs"));
    }
    if device.properties().context_events {
        home.wait(&Event::of_context(device)?)
    } else {
        device.synchronize()
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Stream {}
    impl Sealed for super::PerThreadStream {}
}

/// A stream that a vector can be used on: a [`Stream`], or the thread's own
/// [`PerThreadStream`].
pub trait StreamRef: sealed::Sealed {
    #[doc(hidden)]
    fn parts(&self) -> Parts;

    /// Whether this is that very stream; without the cost of `parts`.
    #[doc(hidden)]
    fn is(&self, stream: &Stream) -> bool;
}

#[doc(hidden)]
#[derive(Debug)]
pub struct Parts {
    raw: RawStream,
    borrower: Borrower,
}

impl StreamRef for Stream {
    fn parts(&self) -> Parts {
        Parts { raw: self.raw(), borrower: Borrower::Stream(self.clone()) }
    }

    fn is(&self, stream: &Stream) -> bool {
        self == stream
    }
}

impl StreamRef for PerThreadStream {
    fn parts(&self) -> Parts {
        let thread = std::thread::current().id();
        Parts { raw: self.raw(), borrower: Borrower::PerThread(self.device().clone(), thread) }
    }

    fn is(&self, _stream: &Stream) -> bool {
        false
    }
}

/// Orders `stream` after what home did so far, and home's next conflicting use after `stream`.
pub(crate) fn lend(
    home: &Stream,
    debts: &Debts<Borrower>,
    stream: &impl StreamRef,
    range: std::ops::Range<usize>,
    writes: bool,
) -> Result<()> {
    if stream.is(home) {
        return debts.pay(home, &range, writes);
    }
    let Parts { raw, borrower } = stream.parts();
    let device = match &borrower {
        Borrower::Stream(stream) => stream.device(),
        Borrower::PerThread(device, _) | Borrower::Context(device) => device,
    }
    .clone();
    home.device().require(&device, "the stream")?;
    if range.is_empty() {
        return Ok(());
    }
    if matches!(borrower, Borrower::PerThread(..)) {
        // At the capture's end nobody else could make it wait outside of the graph.
        home.refuse_capture("lending a vector to a thread's own stream")?;
    }
    let before = after_capture::before();
    debts.enter(home, borrower.clone(), range, writes)?;
    let event = home.record()?;
    device.driver().stream_wait_event(raw, event.raw())?;
    match &borrower {
        Borrower::Stream(stream) => after_capture::repeat(before, stream, home),
        Borrower::PerThread(..) | Borrower::Context(_) => Ok(()),
    }
}

/// As [`lend`] to read, for a stream of another device.
pub(crate) fn lend_across(
    home: &Stream,
    debts: &Debts<Borrower>,
    stream: &Stream,
    range: std::ops::Range<usize>,
) -> Result<()> {
    if home.device().kind() != stream.device().kind() {
        // A debt that nobody could pay would stay for good.
        stream.device().require(home.device(), "the source")?;
    }
    let before = after_capture::before();
    debts.enter(home, Borrower::Stream(stream.clone()), range, false)?;
    stream.wait_for(home)?;
    after_capture::repeat(before, stream, home)
}

/// As [`lend`], where there is no room for an error and the stream may be anyone's: what cannot be
/// ordered by events is waited for on the host.
#[cfg(feature = "cuda")]
pub(crate) fn lend_loosely(
    home: &Stream,
    debts: &Debts<Borrower>,
    borrower: Borrower,
    raw: RawStream,
    range: std::ops::Range<usize>,
    writes: bool,
) {
    if range.is_empty() {
        return;
    }
    let at_home = matches!(&borrower, Borrower::Stream(stream) if stream == home);
    let before = after_capture::before();
    let lent = if at_home {
        debts.pay(home, &range, writes)
    } else {
        debts.enter(home, borrower.clone(), range.clone(), writes).and_then(|()| {
            let event = home.record()?;
            let device = match &borrower {
                Borrower::Stream(stream) => stream.device(),
                Borrower::PerThread(device, _) | Borrower::Context(device) => device,
            };
            device.driver().stream_wait_event(raw, event.raw())?;
            match &borrower {
                Borrower::Stream(stream) => after_capture::repeat(before, stream, home),
                Borrower::PerThread(..) | Borrower::Context(_) => Ok(()),
            }
        })
    };
    let Err(error) = lent else { return };
    crate::debug_log::event!(warn, %error, "waiting on the host: a stream of cudarc cannot be ordered by events");
    if !at_home {
        debts.owe(borrower, range, writes);
    }
    // Not the whole device where a stream is in capture: that would cost somebody a graph, and fail.
    let waited = if error.kind() == ErrorKind::Capture {
        home.synchronize()
    } else {
        home.device().synchronize()
    };
    if let Err(error) = waited {
        crate::debug_log::event!(error, %error, "the device cannot be waited for");
    }
}

/// Device memory to read on a stream, from [`DeviceVec::on`](crate::DeviceVec::on).
///
/// The stream has waited for the vector's home, and home will wait for the stream before it writes
/// or frees the memory. Both hold if the guard is forgotten; dropping it does nothing. It leaves its
/// thread only where its stream may. With cudarc, `&guard` is a kernel argument for that stream.
pub struct On<'a, T: Pod, S> {
    slice: DeviceSlice<'a, T>,
    stream: &'a S,
}

/// Device memory to read and write on a stream, from [`DeviceVec::on_mut`](crate::DeviceVec::on_mut).
///
/// As [`On`]; home will wait for the stream before it touches the memory at all. With cudarc,
/// `&mut guard` is a kernel argument for that stream.
pub struct OnMut<'a, T: Pod, S> {
    slice: DeviceSliceMut<'a, T>,
    stream: &'a S,
}

impl<'a, T: Pod, S: StreamRef> On<'a, T, S> {
    pub(super) fn new(slice: DeviceSlice<'a, T>, stream: &'a S) -> Result<Self> {
        lend(slice.home(), slice.debts(), stream, slice.byte_range(), false)?;
        Ok(Self { slice, stream })
    }

    /// The device's address of the first element.
    pub fn as_device_ptr(&self) -> u64 {
        self.slice.as_device_ptr()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.slice.is_empty()
    }

    /// The stream that it may be read on.
    pub fn stream(&self) -> &'a S {
        self.stream
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn address(&self) -> &u64 {
        self.slice.address()
    }
}

impl<'a, T: Pod, S: StreamRef> OnMut<'a, T, S> {
    pub(super) fn new(slice: DeviceSliceMut<'a, T>, stream: &'a S) -> Result<Self> {
        lend(slice.home(), slice.debts(), stream, slice.byte_range(), true)?;
        Ok(Self { slice, stream })
    }

    /// The device's address of the first element.
    pub fn as_device_ptr(&self) -> u64 {
        self.slice.as_device_ptr()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.slice.is_empty()
    }

    /// The stream that it may be used on.
    pub fn stream(&self) -> &'a S {
        self.stream
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn address(&self) -> &u64 {
        self.slice.address()
    }
}

impl<T: Pod, S> fmt::Debug for On<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("On").field(&self.slice).finish()
    }
}

impl<T: Pod, S> fmt::Debug for OnMut<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnMut").field(&self.slice).finish()
    }
}

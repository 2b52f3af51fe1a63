//! The order between a use of memory on some stream and the memory's home.

use super::pending_uses::PendingUses;
use super::stream_ref::StreamRef;
use super::used_on::{UseTimeline, WaitError, error_across_captures};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::{DeviceResource, asleep};
use crate::stream::{Capture, Patience, Status, Stream, StreamCall};
use crate::sync::Arc;
use std::ops::Range;

/// The captures that a use allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturePolicy {
    /// A stream that uses memory whose home is in a declared capture joins the capture.
    Join,
    /// No stream of the use may be in capture. A graph would run the named work again when the memory that it uses,
    /// such as host memory, is long gone.
    Refuse(&'static str),
    /// The policy is [`Join`](Self::Join), but in an undeclared capture the driver decides. The work is given at once,
    /// in the same graph.
    Any,
}

/// A use of memory that is about to happen.
#[allow(missing_docs, missing_debug_implementations, reason = "for the crates above alone")]
pub struct MemoryUse<'a> {
    pub home: &'a Stream,
    /// Where it lies.
    pub address: u64,
    pub uses: &'a PendingUses<UseTimeline>,
    /// Says which other devices reach the memory.
    pub resource: &'a dyn DeviceResource,
    pub range: Range<usize>,
    pub writes: bool,
    /// Whether it is work on the memory, and no mere wait for it.
    pub touches: bool,
}

impl MemoryUse<'_> {
    /// Orders `stream` after all that home did so far, and home's next conflicting use after `stream`. The stream is of
    /// home's device or of one that [reaches](DeviceResource::has_peer_access) the memory. The call that it returns may
    /// give the stream work on the memory.
    ///
    /// The caller is inside of no gate, since this waits for a stream that is in a short capture, or about to begin
    /// one.
    #[doc(hidden)]
    pub fn order_on<'s>(
        self,
        stream: &'s impl StreamRef,
        policy: CapturePolicy,
    ) -> Result<StreamCall<'s>> {
        let patience = Patience::new();
        let call = stream.begin_call(&patience)?;
        if !stream.is(self.home) {
            self.require_access(call.device())?;
        }
        self.order(stream, call, policy, &patience)
    }

    /// The error where kernels of `device` do not reach the memory.
    #[inline]
    fn require_access(&self, device: &Device) -> Result<()> {
        if self.home.device() == device || self.resource.has_peer_access(device) {
            return Ok(());
        }
        Err(self.error_without_access(device))
    }

    #[cold]
    fn error_without_access(&self, device: &Device) -> Error {
        let own = self.home.device();
        let error = device.wrong_device(own, "the memory");
        if own.kind() != device.kind() || device.can_access_peer(own).is_ok_and(|it| !it) {
            return error;
        }
        error.with_advice(
            "copy it by to_device, or call enable_peer_access of its resource() with the stream's device",
        )
    }

    /// Like [`order_on`](Self::order_on), on a stream of any device of the same kind.
    pub(crate) fn order_across_devices<'s>(self, stream: &'s Stream) -> Result<StreamCall<'s>> {
        if self.home.device().kind() != stream.device().kind() {
            // Home could never wait for such a use, which would stay pending for good.
            stream.device().require(self.home.device(), "the source")?;
        }
        let patience = Patience::new();
        let call = stream.begin_call_within(&patience)?;
        self.order(stream, call, CapturePolicy::Join, &patience)
    }

    /// Whether the stream is home and there is nothing to wait for. Its own order is enough then.
    #[inline]
    #[doc(hidden)]
    pub fn is_in_order_on(&self, stream: &Stream) -> bool {
        *stream == *self.home && self.uses.is_empty() && self.require_awake().is_ok()
    }

    /// The error of a pool that sleeps. Asked inside of the gate of the stream that gets the work: a pool that falls asleep
    /// passes it.
    #[inline]
    #[doc(hidden)]
    pub fn require_awake(&self) -> Result<()> {
        if self.touches { asleep::require_awake(self.address) } else { Ok(()) }
    }

    /// Like [`order_on`](Self::order_on), in a call that was begun.
    #[inline]
    #[doc(hidden)]
    pub fn order_in<'s>(
        &self,
        stream: &'s Stream,
        call: StreamCall<'s>,
        policy: CapturePolicy,
        patience: &Patience,
    ) -> Result<StreamCall<'s>> {
        if *stream != *self.home {
            self.require_access(call.device())?;
        }
        self.order(stream, call, policy, patience)
    }

    fn order<'s>(
        &self,
        stream: &'s impl StreamRef,
        mut call: StreamCall<'s>,
        policy: CapturePolicy,
        patience: &Patience,
    ) -> Result<StreamCall<'s>> {
        loop {
            refuse_capture(&call, policy)?;
            let ordered = if stream.is(self.home) {
                self.try_order_at_home(call)
            } else if self.range.is_empty() {
                Ok(call)
            } else {
                let (call, at_home) = self.enter_home_too(stream, call, patience)?;
                self.try_order(stream, call, &at_home, policy)
            };
            match ordered {
                Ok(call) => return Ok(call),
                Err(WaitError::Failed(error)) => return Err(error),
                Err(WaitError::CaptureBegins(other)) => other.wait_published(),
            }
            call = stream.begin_call(patience)?;
        }
    }

    /// A call at home beside one on the stream. No thread waits for a gate inside of another one. So where home has a
    /// capture on another thread, this one leaves, waits, and enters the two gates in the other order. While it is
    /// inside of the gate that it waited for, no capture takes that gate again.
    fn enter_home_too<'s>(
        &self,
        stream: &'s impl StreamRef,
        mut call: StreamCall<'s>,
        patience: &Patience,
    ) -> Result<(StreamCall<'s>, StreamCall<'_>)> {
        let is_capture = |error: &Error| error.kind() == ErrorKind::Capture;
        loop {
            match self.home.begin_nested_call() {
                Err(error) if is_capture(&error) => drop(call),
                at_home => return at_home.map(|at_home| (call, at_home)),
            }
            let at_home = self.home.begin_call_within(patience)?;
            match stream.begin_call(&Patience::none()) {
                Err(error) if is_capture(&error) => drop(at_home),
                call => return call.map(|call| (call, at_home)),
            }
            call = stream.begin_call(patience)?;
        }
    }

    fn try_order_at_home<'s>(&self, call: StreamCall<'s>) -> Result<StreamCall<'s>, WaitError> {
        self.require_awake()?;
        self.uses.wait_conflicting(&self.range, self.writes, |on| on.make_wait(&call))?;
        Ok(call)
    }

    fn try_order<'s>(
        &self,
        stream: &'s impl StreamRef,
        call: StreamCall<'s>,
        at_home: &StreamCall<'_>,
        policy: CapturePolicy,
    ) -> Result<StreamCall<'s>, WaitError> {
        let Self { uses, ref range, writes, .. } = *self;
        // Again: the gate may have been left and entered since.
        refuse_capture(&call, policy)?;
        self.require_awake()?;
        let joins = capture_to_join(at_home, &call, policy)?;
        let wait = |on: &UseTimeline| on.make_wait(at_home);
        uses.wait_and_record(stream.timeline(), range.clone(), writes, wait)?;
        let event = at_home.record()?;
        match joins {
            // The last step: where one before it fails, the stream is not taken in.
            Some(capture) => Ok(call.join(&capture, &event)?),
            None => {
                call.wait(&event)?;
                Ok(call)
            }
        }
    }

    /// Like [`order_on`](Self::order_on), for work that cudarc gives at once, without a way to return an error. The
    /// host waits for work that events cannot order.
    pub(crate) fn order_or_block(self, stream: &impl StreamRef) {
        if self.range.is_empty() {
            return;
        }
        let patience = Patience::new();
        let ordered = stream
            .begin_call(&patience)
            .and_then(|call| self.order(stream, call, CapturePolicy::Any, &patience));
        let Err(error) = ordered.map(drop) else { return };
        crate::debug_log::event!(warn, %error, "waiting on the host: a stream of cudarc cannot be ordered by events");
        let mut waited = self.wait_on_host();
        let Self { home, uses, range, writes, .. } = self;
        if !stream.is(home) {
            waited = waited.and(home.synchronize_uncaptured());
            uses.record_use(stream.timeline(), range, writes);
        }
        if let Err(error) = waited {
            crate::debug_log::event!(error, %error, "a stream of cudarc is in no order with what was done to a vector");
        }
    }

    /// Makes home wait for all conflicting uses elsewhere. The host waits for those that events cannot order.
    pub(crate) fn order_home_or_block(self) -> Result<()> {
        let patience = Patience::new();
        let at_home = self.home.begin_call_within(&patience);
        let ordered = at_home
            .and_then(|call| self.order(self.home, call, CapturePolicy::Join, &patience).map(drop));
        ordered.or_else(|_| self.wait_on_host())
    }

    /// The host waits for all conflicting uses elsewhere.
    fn wait_on_host(&self) -> Result<()> {
        loop {
            match self.uses.wait_conflicting(&self.range, self.writes, UseTimeline::wait_on_host) {
                Ok(()) => return Ok(()),
                Err(WaitError::Failed(error)) => return Err(error),
                // Without the lock of the uses.
                Err(WaitError::CaptureBegins(other)) => other.wait_published(),
            }
        }
    }
}

fn refuse_capture(call: &StreamCall<'_>, policy: CapturePolicy) -> Result<()> {
    match policy {
        CapturePolicy::Refuse(work) => call.refuse_capture(work),
        CapturePolicy::Join | CapturePolicy::Any => Ok(()),
    }
}

/// The capture of home that the stream is to join, if any, or the error if the two cannot be put in order.
///
/// | home | stream | `Join` | `Refuse` | `Any` |
/// | --- | --- | --- | --- | --- |
/// | runs | runs | ordered by events | the same | the same |
/// | declared | runs | joins | error | joins |
/// | declared | in the same | ordered in the graph | error, before | ordered in the graph |
/// | runs | declared | error | error | error |
/// | undeclared | runs or undeclared | error | error | the driver orders them |
/// | any other pair | | error | error | error |
fn capture_to_join(
    home: &StreamCall<'_>,
    stream: &StreamCall<'_>,
    policy: CapturePolicy,
) -> Result<Option<Arc<Capture>>> {
    let capture = match (home.status()?, stream.status()?) {
        (Status::Runs, Status::Runs) => return Ok(None),
        (Status::Declared(own), Status::Declared(other)) if Arc::ptr_eq(own, other) => {
            return Ok(None);
        }
        (Status::Declared(capture), Status::Runs) => capture.clone(),
        (Status::Undeclared, Status::Runs | Status::Undeclared) if policy == CapturePolicy::Any => {
            return Ok(None);
        }
        _ => return Err(error_across_captures(stream)),
    };
    if let CapturePolicy::Refuse(work) = policy {
        let what = format!("{home} is in capture, which {stream} would join with {work}");
        return Err(Error::new(ErrorKind::Capture, what)
            .with_advice("do it before the capture or after it"));
    }
    Ok(Some(capture))
}

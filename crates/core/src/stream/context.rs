//! All work of a device's context at once, beside captures.

use super::deferred;
use super::gate::Patience;
use super::handle::{Capture, Stream, exposed, living};
use super::members::CAPTURES;
use crate::debug_log::defer_events;
use crate::device::Device;
use crate::driver::CallSite;
use crate::driver::{ErrorContext, may_not_call};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::event::Event;
use crate::sync::{Arc, assert_unlocked};
use std::time::{Duration, Instant};

/// Waits until each thread that is in a call on a stream of `device` has left it. What such a call gives the device is
/// there then, and one that begins later sees what the caller did before.
///
/// # Errors
///
/// [`ErrorKind::Capture`] while one of the streams is in a declared capture.
pub(crate) fn pass_all_gates(device: &Device) -> Result<()> {
    let patience = Patience::new();
    for stream in living(device) {
        let passed = stream.gate().alone(&patience, |handle| ((), handle));
        passed.map_err(|refused| stream.refused(&refused))?;
    }
    Ok(())
}

/// Whether any stream of `device` that Aquifer knows is recording a graph. A question to the driver
/// that fails counts as yes.
pub fn any_capturing(device: &Device) -> bool {
    if may_not_call() {
        return false;
    }
    let streams = exposed(device);
    let captures = CAPTURES.lock();
    any_capturing_among(&captures, &streams, device).unwrap_or(true)
}

/// A context that is gone has no graph to lose. Another error, as of a stream that its library destroyed, leaves the
/// question open.
fn any_capturing_among(
    captures: &[Arc<Capture>],
    exposed: &[Stream],
    device: &Device,
) -> Result<bool> {
    if captures.iter().any(|capture| capture.has_stream_on(device)) {
        return Ok(true);
    }
    for stream in exposed {
        match stream.is_capturing() {
            Ok(false) => {}
            Err(error) if matches!(error.kind(), ErrorKind::ContextLost | ErrorKind::Forked) => {}
            capturing => return capturing,
        }
    }
    Ok(false)
}

/// Events that cover all work so far of the streams of `device` that others can give work, or that have copies whose end
/// nobody here knows.
///
/// # Errors
///
/// [`ErrorKind::Capture`] while one of these is in capture, which is not disturbed, and the errors of the driver.
pub fn record_exposed(device: &Device) -> Result<Vec<Event>> {
    let what = || format!("recording an event on the default stream of {device}");
    let default = Event::new(device).with_context(what)?;
    let driver = device.driver();
    driver.event_record(default.raw(), driver.legacy_stream()).with_context(what)?;
    let mut events = vec![default];
    for stream in exposed(device) {
        let call = stream.begin_nested_call()?;
        call.refuse_capture("an event for work on host memory")?;
        events.push(call.record()?);
    }
    Ok(events)
}

/// The most streams that [`busy_streams`] asks.
const MOST_ASKED: usize = 64;

/// Some of the living streams of `device` with work under way, for an error's text.
pub fn busy_streams(device: &Device) -> Vec<Stream> {
    let is_busy = |stream: &Stream| {
        record_unless_captured(stream).is_some_and(|event| matches!(event.is_complete(), Ok(false)))
    };
    let mut streams = living(device);
    streams.sort_by_key(Stream::id);
    streams.truncate(MOST_ASKED);
    streams.retain(is_busy);
    streams
}

/// Waits for the living streams of `device` that have nothing to do, or will have nothing within `patience`. The
/// driver's pools learn by that which memory is free. Questions tell them nothing (H100, driver 580).
pub fn wait_for_idle_streams(device: &Device, patience: Duration) {
    let mut waiting: Vec<Event> =
        living(device).iter().filter_map(record_unless_captured).collect();
    let (start, works) = (Instant::now(), device.driver().works_unasked());
    loop {
        waiting.retain(|event| match event.is_complete() {
            Ok(false) => true,
            Ok(true) => {
                // It is over: this returns at once. A failure leaves the memory where it is.
                let _ = event.block(|| String::from("waiting for a stream that is done"));
                false
            }
            Err(_) => false,
        });
        // A device that works only when it is asked gets no further by time.
        if waiting.is_empty() || !works || start.elapsed() >= patience {
            return;
        }
        std::hint::spin_loop();
    }
}

/// An event behind all that the stream was given.
fn record_unless_captured(stream: &Stream) -> Option<Event> {
    let recorded = stream.begin_nested_call().and_then(|call| match call.is_capturing()? {
        true => Ok(None),
        false => call.record().map(Some),
    });
    recorded.ok().flatten()
}

/// An event that covers all work of the device's context so far, of other libraries too.
///
/// # Errors
///
/// [`ErrorKind::Capture`] while a stream of the device is in capture. One that Aquifer knows is found before the call,
/// and its capture is not disturbed. The driver invalidates a capture of any other stream.
pub fn record_context(device: &Device) -> Result<Event> {
    let what = || format!("recording an event of all streams of {device}");
    let event = Event::new(device).with_context(what)?;
    let streams = exposed(device);
    // Events are emitted when the lock is free again.
    let _held = defer_events();
    // No capture begins between the question and the record.
    let captures = CAPTURES.lock();
    let (driver, mut capturing, mut recorded) = (device.driver(), Ok(false), Ok(()));
    let current = driver.with_current(&mut || {
        capturing = any_capturing_among(&captures, &streams, device);
        if let Ok(false) = capturing {
            recorded = driver.context_record(event.raw());
        }
    });
    let capturing = capturing.map_err(|error| {
        let what = format!(
            "waiting for all work of {device}, of which a stream may be in capture: {}",
            error.message()
        );
        let told = Error::new(ErrorKind::Capture, what).with_advice(
            "call Stream::detach on another library's stream before that library destroys it",
        );
        match error.driver() {
            Some(driver) => told.with_driver(driver.clone()),
            None => told,
        }
    })?;
    ensure!(
        !capturing,
        Capture,
        "call again when the capture has ended",
        "waiting for all work of {device}, while a stream of it is in capture"
    );
    current.and(recorded).with_context(what).map(|()| event)
}

impl Device {
    /// An event after all work that the device's context was given so far, on every stream, of other libraries too.
    ///
    /// ```
    /// use aquifer::Device;
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let (busy, other) = (device.new_stream()?, device.new_stream()?);
    /// other.wait(&device.record()?)?; // for `busy`, and for streams that this program does not know
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Capture`] while a stream of the device is in capture. The capture is not disturbed if Aquifer knows
    ///   the stream, as after [`Stream::from_handle`]. The driver invalidates that of any other stream.
    /// - [`ErrorKind::MissingSymbol`] with a driver older than CUDA 12.5.
    /// - The errors of the driver.
    #[track_caller]
    pub fn record(&self) -> Result<Event> {
        let _site = CallSite::enter();
        record_context(self)
    }

    /// Blocks until all work on the device's context is done, of other libraries too.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::ContextLost`] if that work failed.
    /// - [`ErrorKind::Capture`] while a stream of the device is in capture. The capture is not disturbed if Aquifer knows
    ///   the stream, as after [`Stream::from_handle`]. The driver invalidates that of any other stream.
    /// - [`ErrorKind::Panicked`] if a [host function](Stream::launch_host_fn) of a living stream has panicked.
    /// - [`ErrorKind::Simulation`] if the simulated device saw an access out of order.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let _site = CallSite::enter();
        let synchronized = self.synchronize_without_drops();
        deferred::collect_all();
        synchronized?;
        living(self).iter().try_for_each(|stream| stream.host_panics().report(stream))
    }

    /// Like [`synchronize`](Self::synchronize), without a deferred drop. It is for callers with a lock that the drop of
    /// a user's buffer may ask for. An error names the place in the crate, not the caller's.
    pub(crate) fn synchronize_without_drops(&self) -> Result<()> {
        let what = || format!("waiting for {self}");
        match record_context(self) {
            Ok(event) => return event.block(what),
            Err(error) if error.kind() == ErrorKind::Capture => return Err(error),
            // An old driver has no such event, and one that fails may still have work under way.
            Err(_) => {}
        }
        assert_unlocked("a wait for the device");
        self.driver().context_synchronize().with_context(what)
    }
}

/// Like [`deferred::collect_all`], for buffers that wait for `device`. It waits for the device first if any buffers are deferred.
/// If that wait fails, they stay.
pub(crate) fn collect_all_after(device: &Device) {
    if deferred::has_deferred_buffers() {
        let _ = device.synchronize_without_drops();
    }
    deferred::collect_all();
}

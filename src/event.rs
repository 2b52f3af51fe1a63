//! Points in a stream.

use crate::backend::{DriverResult, RawEvent, Wanted, is_forked_child, not_forked};
use crate::device::Device;
use crate::error::Result;
use std::fmt;

/// A point in a stream: everything that the stream had been given when the event was recorded.
///
/// Made by [`Stream::record`](crate::Stream::record). Other streams wait for it without the host
/// ([`Stream::wait`](crate::Stream::wait)), the host asks or waits for it here. Dropping it costs
/// no driver call: the driver's event is recorded again for someone else, which disturbs no wait
/// that was enqueued before.
///
/// ```
/// use aquifer::{Device, sim::SimConfig};
///
/// let device = Device::simulated(SimConfig::default());
/// let stream = device.new_stream()?;
/// let event = stream.record()?;
/// event.synchronize()?;
/// assert!(event.is_complete()?);
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct Event {
    device: Device,
    raw: RawEvent,
}

impl Event {
    /// An event nobody has recorded yet.
    pub(crate) fn new(device: &Device) -> DriverResult<Self> {
        not_forked("cuEventCreate")?;
        let raw = match device.take_event() {
            Some(raw) => raw,
            None => device.driver().event_create()?,
        };
        Ok(Self { device: device.clone(), raw })
    }

    /// An event that covers all work of the device's context so far, whoever gave it.
    pub(crate) fn of_context(device: &Device) -> DriverResult<Self> {
        let event = Self::new(device)?;
        device.driver().context_record(event.raw)?;
        Ok(event)
    }

    pub(crate) fn raw(&self) -> RawEvent {
        self.raw
    }

    /// The device whose stream recorded it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether the device has passed the event.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Capture`](crate::ErrorKind::Capture) if it was recorded in a capture, which
    /// this call invalidates; [`ErrorKind::ContextLost`](crate::ErrorKind::ContextLost) if earlier
    /// work on the device failed.
    pub fn is_complete(&self) -> Result<bool> {
        self.device.driver().event_query(self.raw).wanted(|| "asking whether an event is complete")
    }

    /// Blocks the calling thread until the device has passed the event.
    ///
    /// # Errors
    ///
    /// As [`is_complete`](Self::is_complete).
    pub fn synchronize(&self) -> Result<()> {
        self.device.driver().event_synchronize(self.raw).wanted(|| "waiting for an event")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !is_forked_child() {
            self.device.give_event(self.raw);
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("device", &self.device).finish_non_exhaustive()
    }
}

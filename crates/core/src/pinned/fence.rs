//! Fences, which are events that tell when the devices are past all work which they had at a point in time.

use super::quarantine::FenceError;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::stream::{any_capturing, record_context, record_exposed};
use crate::sync::assert_unlocked;
use std::time::{Duration, Instant};

/// The time for which fences are queried again and again.
pub(super) const FENCE_POLL_TIME: Duration = Duration::from_micros(20);

/// The least number of queries, for a device that works only when it is asked.
const MIN_QUERIES: usize = 16;

/// One event on each context whose work may use page-locked memory of a device. It covers all work
/// on all streams of these contexts that was enqueued before its record.
#[derive(Debug)]
pub(super) struct Fence(Vec<Event>);

impl Fence {
    /// A fence that covers nothing, and so has always passed.
    pub(super) fn passed() -> Self {
        Self(Vec::new())
    }

    /// Records a fence on every context that shares host memory with `device`, unless a stream of one
    /// may be in capture.
    pub(super) fn record_sharing_contexts(device: &Device) -> Result<Self, FenceError> {
        let devices = device.sharing_host_memory();
        let mut events = Vec::with_capacity(devices.len());
        for device in &devices {
            if device.properties().context_events {
                events.push(record_context(device).map_err(|error| fence_error(error.kind()))?);
            } else if devices.iter().any(any_capturing) {
                return Err(FenceError::NotNow);
            } else {
                // An old driver has no such event: the host waits instead.
                device.driver().context_synchronize().map_err(|error| fence_error(error.kind()))?;
            }
        }
        Ok(Self(events))
    }

    /// Records a fence that covers the work that others than the crate's safe calls may have given the devices. Safe
    /// calls own or borrow host memory until the device is done with it, so freed memory is in none of theirs. The
    /// fence passes beside a stream that is busy with the crate's own work, and beside captures of such streams.
    ///
    /// # Errors
    ///
    /// [`FenceError::NotNow`] also if others may have streams that are not known.
    pub(super) fn record_unseen_users(device: &Device) -> Result<Self, FenceError> {
        let mut events = Vec::new();
        for device in device.sharing_host_memory() {
            if device.may_use_host_memory_unseen() {
                return Err(FenceError::NotNow);
            }
            events.extend(record_exposed(&device).map_err(|error| fence_error(error.kind()))?);
        }
        Ok(Self(events))
    }

    /// Whether the devices pass it within a moment.
    pub(super) fn passes_soon(&self) -> Result<bool, FenceError> {
        let until = Instant::now() + FENCE_POLL_TIME;
        for attempt in 0.. {
            if self.query()? {
                return Ok(true);
            }
            if attempt >= MIN_QUERIES && Instant::now() > until {
                break;
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }

    /// Waits on the host until the devices have passed it.
    pub(super) fn wait(&self) -> Result<(), FenceError> {
        assert_unlocked("a wait for the device");
        for event in &self.0 {
            event
                .device()
                .driver()
                .event_synchronize(event.raw())
                .map_err(|error| fence_error(error.kind()))?;
        }
        Ok(())
    }

    /// Whether the devices have passed it.
    pub(super) fn query(&self) -> Result<bool, FenceError> {
        for event in &self.0 {
            if !event
                .device()
                .driver()
                .event_query(event.raw())
                .map_err(|error| fence_error(error.kind()))?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn fence_error(kind: ErrorKind) -> FenceError {
    match kind {
        ErrorKind::ContextLost | ErrorKind::Forked => FenceError::DeviceLost,
        _ => FenceError::NotNow,
    }
}

/// Whether a capture may run on a context that shares host memory with `device`. Fences cannot be recorded or waited
/// for then.
pub(super) fn any_sharing_context_capturing(device: &Device) -> bool {
    device.sharing_host_memory().iter().any(any_capturing)
}

/// The error of waiting for a device that may be in capture, which the wait would invalidate.
pub(super) fn require_no_capture(device: &Device) -> Result<()> {
    if any_capturing(device) {
        return Err(Error::new(
            ErrorKind::Capture,
            format!(
                "waiting for {device} to be done with freed page-locked memory, while a stream of it is in capture"
            ),
        )
        .with_advice("call again when the capture has ended"));
    }
    Ok(())
}

/// Waits for all work of every context that shares host memory with `device`. Returns the error of one
/// that is lost.
pub(super) fn synchronize_sharing_contexts(device: &Device) -> Result<Option<Error>> {
    let mut lost = None;
    for device in device.sharing_host_memory() {
        require_no_capture(&device)?;
        // A lost context is reported when its fence is queried, and its blocks are leaked.
        let waited = device.synchronize_without_drops();
        lost = lost.or(waited.err().filter(|error| error.kind() == ErrorKind::ContextLost));
    }
    Ok(lost)
}

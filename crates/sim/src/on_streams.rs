//! The calls by which tests steer a stream of a simulated device.

use crate::simulator::Simulator;
use aquifer_driver::error::{Result, ensure};
use aquifer_driver::{CaptureStatus, ErrorContext, RawStream};
use aquifer_sync::Arc;
use std::fmt;

/// A stream of `aquifer-core`, which alone implements it.
#[doc(hidden)]
pub trait SimulatedStream: fmt::Display {
    fn handle(&self) -> RawStream;

    /// Others may begin a capture on it from now on.
    fn expose(&self);
}

impl<S: SimulatedStream> SimulatedStream for &S {
    fn handle(&self) -> RawStream {
        S::handle(self)
    }

    fn expose(&self) {
        S::expose(self);
    }
}

impl<S: SimulatedStream> SimulatedStream for Arc<S> {
    fn handle(&self) -> RawStream {
        S::handle(self)
    }

    fn expose(&self) {
        S::expose(self);
    }
}

impl Simulator {
    /// Puts a stream of this simulated device into capture, for tests of code that must not disturb one. Work that the
    /// stream is given is kept and not run. No other thread may be in a call on a pool that has the stream.
    ///
    /// # Errors
    ///
    /// An error of the driver, if the stream is in capture already, is the default stream, or is of another device.
    pub fn start_capture(&self, stream: &impl SimulatedStream) -> Result<()> {
        stream.expose();
        self.begin_capture(stream.handle())
            .with_context(|| format!("beginning a capture on {stream}"))
    }

    /// Holds up a stream, as a kernel does that comes to no end. No work runs that it was given, or will be given,
    /// until [`resume`](Self::resume). Calls that wait for it wait. Other streams go on.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, sim::SimConfig};
    ///
    /// let device = Device::simulated(SimConfig::default());
    /// let (stuck, other) = (device.new_stream()?, device.new_stream()?);
    /// let simulator = device.simulator().unwrap();
    /// simulator.stall(&stuck)?;
    /// let mut vec = DeviceVec::<u32>::zeroed(&stuck, 3)?;
    /// let done = stuck.record()?;
    /// assert_eq!(DeviceVec::<u32>::zeroed(&other, 3)?.to_vec()?, [0; 3]);
    /// assert!(!done.is_complete()?);
    /// simulator.resume(&stuck)?;
    /// assert_eq!(vec.to_vec()?, [0; 3]);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](aquifer_driver::error::ErrorKind::InvalidArgument) for a stream of another device.
    pub fn stall(&self, stream: &impl SimulatedStream) -> Result<()> {
        self.stall_or_resume(stream, true)
    }

    /// Lets a stream go on after [`stall`](Self::stall).
    ///
    /// # Errors
    ///
    /// As `stall`.
    pub fn resume(&self, stream: &impl SimulatedStream) -> Result<()> {
        self.stall_or_resume(stream, false)
    }

    fn stall_or_resume(&self, stream: &impl SimulatedStream, stalled: bool) -> Result<()> {
        ensure!(
            self.set_stalled(stream.handle(), stalled),
            InvalidArgument,
            "give a stream of the simulator's own device",
            "{stream} was to be held up, or to go on, by the simulator of another device"
        );
        Ok(())
    }

    /// Ends the capture. `true` if nothing invalidated it.
    pub fn stop_capture(&self, stream: &impl SimulatedStream) -> bool {
        self.end_capture(stream.handle()) == CaptureStatus::Active
    }
}

//! Streams of other libraries, which their owners destroy.

#![allow(unexpected_cfgs, reason = "a target of the replay has no such feature")]

use aquifer::{Device, Result, Stream};

/// A stream that another library makes, and how it destroys it.
pub struct Foreign {
    pub device: Device,
    pub handle: u64,
}

impl Foreign {
    pub fn new(device: &Device) -> Result<Self> {
        let handle = match device.simulator() {
            Some(simulator) => simulator.create_foreign_stream()?,
            None => on_gpu::create(device),
        };
        Ok(Self { device: device.clone(), handle })
    }

    pub fn stream(&self) -> Result<Stream> {
        // SAFETY: each test detaches a stream before it destroys it, or drops all that keeps it.
        unsafe { Stream::from_handle(&self.device, self.handle) }
    }

    pub fn destroy(self) -> Result<()> {
        match self.device.simulator() {
            Some(simulator) => simulator.destroy_foreign_stream(self.handle),
            None => {
                on_gpu::destroy(&self.device, self.handle);
                Ok(())
            }
        }
    }
}

#[cfg(feature = "cuda")]
mod on_gpu {
    use aquifer::Device;
    use aquifer::cudarc::driver::result::stream;

    pub(super) fn create(device: &Device) -> u64 {
        device.cuda_context().unwrap().bind_to_thread().unwrap();
        stream::create(stream::StreamKind::NonBlocking).unwrap() as u64
    }

    pub(super) fn destroy(device: &Device, handle: u64) {
        device.cuda_context().unwrap().bind_to_thread().unwrap();
        // SAFETY: made by `create`, and destroyed once.
        unsafe { stream::destroy(handle as _) }.unwrap();
    }
}

#[cfg(not(feature = "cuda"))]
mod on_gpu {
    pub(super) fn create(_: &aquifer::Device) -> u64 {
        unreachable!("there is no GPU without the feature")
    }

    pub(super) fn destroy(_: &aquifer::Device, _: u64) {}
}

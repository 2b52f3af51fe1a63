//! The streams that a vector can be used on.

use super::used_on::UseTimeline;
use crate::device::Device;
use crate::driver::RawStream;
use crate::error::Result;
use crate::stream::{Patience, PerThreadStream, Stream, StreamCall};
use crate::sync::thread_id;

mod sealed {
    use super::{Patience, Result, Stream, StreamCall, UseTimeline};

    /// The crate's own view of a stream.
    pub trait Sealed {
        fn begin_call(&self, patience: &Patience) -> Result<StreamCall<'_>>;

        fn timeline(&self) -> UseTimeline;

        /// Whether this is that very stream.
        fn is(&self, _stream: &Stream) -> bool {
            false
        }
    }
}

pub(super) use sealed::Sealed;

/// A stream that a vector can be used on. It is a [`Stream`] or the thread's own [`PerThreadStream`].
pub trait StreamRef: Sealed {}

impl StreamRef for Stream {}

impl Sealed for Stream {
    fn begin_call(&self, patience: &Patience) -> Result<StreamCall<'_>> {
        self.begin_call_within(patience)
    }

    fn timeline(&self) -> UseTimeline {
        UseTimeline::Stream(self.clone())
    }

    fn is(&self, stream: &Stream) -> bool {
        self == stream
    }
}

impl StreamRef for PerThreadStream {}

impl Sealed for PerThreadStream {
    fn begin_call(&self, _: &Patience) -> Result<StreamCall<'_>> {
        Ok(PerThreadStream::begin_call(self))
    }

    fn timeline(&self) -> UseTimeline {
        UseTimeline::PerThread(self.device().clone(), thread_id::assign())
    }
}

/// A stream that Aquifer does not keep alive, by the driver's handle.
pub(crate) struct UnknownStream {
    pub(crate) device: Device,
    pub(crate) raw: RawStream,
}

impl StreamRef for UnknownStream {}

impl Sealed for UnknownStream {
    fn begin_call(&self, _: &Patience) -> Result<StreamCall<'_>> {
        Ok(StreamCall::without_gate(&self.device, self.raw))
    }

    fn timeline(&self) -> UseTimeline {
        UseTimeline::Context(self.device.clone())
    }
}

//! An outstanding allocation.

use crate::adaptor::call_stack::CallStack;
use crate::adaptor::caller::Caller;
use crate::impls::Count;
use crate::resource::impls::getters;
use std::fmt;
use std::thread::ThreadId;
use std::time::Duration;

/// An allocation that a [`TrackingAdaptor`](crate::mr::TrackingAdaptor) has not seen freed.
///
/// RMM's record is a size and a text of at most 64 frames, without thread, time or stream.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, mr::TrackingAdaptor};
///
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let tracking = TrackingAdaptor::new(CudaResource::new(&device));
/// let vec = DeviceVec::<f32>::zeroed_in(&stream, 1000, tracking.clone())?;
/// let outstanding = tracking.outstanding();
/// assert_eq!(outstanding[0].address(), vec.as_device_ptr());
/// assert_eq!(outstanding[0].bytes(), 4000);
/// assert_eq!(outstanding[0].stream_id(), stream.id());
/// assert_eq!(outstanding[0].thread_id(), std::thread::current().id());
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Allocation {
    pub(super) number: u64,
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) stream_id: u64,
    pub(super) thread_id: ThreadId,
    pub(super) after: Duration,
    pub(super) backtrace: Option<CallStack>,
}

impl Allocation {
    getters! {
        /// The number of allocations that the adaptor handed out before it.
        number: u64;

        /// The device's address of the first byte.
        address: u64;

        /// The block's size in bytes, at least the bytes asked.
        bytes: usize;

        /// The [number](crate::Stream::id) of the stream that it was allocated on.
        stream_id: u64;

        /// The thread that allocated it.
        thread_id: ThreadId;

        /// The time of the allocation since the adaptor was made, to about a microsecond. On a
        /// processor whose counter has a constant rate it is a count of that. Each list converts the
        /// count by the average rate until then, so two lists may differ by some nanoseconds. After
        /// the machine slept the time is wrong, but never negative nor in the future.
        after: Duration;
    }

    /// The functions that allocated it, if the adaptor captures backtraces.
    pub fn backtrace(&self) -> Option<&CallStack> {
        self.backtrace.as_ref()
    }

    /// The line that allocated it, as `at FILE:LINE:COLUMN in FUNCTION`. The line is that of the first
    /// frame of the backtrace that is not of this crate or of the standard library. The call reads
    /// debug information, which takes milliseconds. Without debug information the text is the function
    /// alone. `None` without a backtrace.
    pub fn origin(&self) -> Option<String> {
        let Caller { function, line, column } = Caller::find(self.backtrace()?)?;
        let column = column.map(|column| format!(":{column}")).unwrap_or_default();
        Some(match line {
            Some(line) => format!("at {line}{column} in {function}"),
            None => format!("in {function}"),
        })
    }
}

/// One line with the size, address, stream, thread, time and origin.
impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at {:#x}, on stream {} by {:?}, after {:?}",
            Count(self.bytes, "byte"),
            self.address,
            self.stream_id,
            self.thread_id,
            self.after
        )?;
        match self.origin() {
            Some(origin) => write!(f, ", {origin}"),
            None => Ok(()),
        }
    }
}

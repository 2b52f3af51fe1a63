//! What a simulated device reports: violations, and the operations on both sides.

use crate::error::Error;
use crate::impls::Count;
use std::error::Error as _;
use std::fmt;

/// The kind of a [`Report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Violation {
    /// Two operations touch the same bytes, at least one writes, and no stream order puts one
    /// before the other.
    UnorderedAccess,
    /// A block from a stream-ordered allocation is used where no stream order puts the allocation
    /// first.
    UseBeforeAllocation,
    /// An operation names memory that was freed before it was enqueued.
    UseAfterFree,
    /// Memory is freed, or a host range unregistered, while an operation that is not ordered
    /// before the free may still use it.
    FreeWhileInUse,
    /// Memory is freed a second time.
    DoubleFree,
    /// An operation reads bytes that were never written.
    UninitializedRead,
    /// An operation names a range that is not, or not as a whole, memory of this device.
    UnmappedAddress,
    /// A stream is used after it was destroyed.
    DestroyedStream,
    /// A stream or an event of another device is used where one of this device is needed.
    ForeignHandle,
    /// An event is used after it was destroyed.
    DestroyedEvent,
    /// The host wrote to page-locked memory between the call that enqueued a copy of it and the
    /// copy itself.
    HostWroteDuringCopy,
    /// A copy whose source and target overlap.
    OverlappingCopy,
    /// A second thread calls on a stream in capture, or names an event of the capture. CUDA's graphs
    /// are not thread-safe: two such calls at the same time can end the process.
    CaptureRace,
    /// The host form of a kernel returned an error or panicked. The context is lost, as after a
    /// trap on a GPU.
    KernelFault,
}

impl Violation {
    fn sentence(self) -> &'static str {
        match self {
            Self::UnorderedAccess => "touches memory in no stream order with another access",
            Self::UseBeforeAllocation => "is not ordered after the allocation of what it uses",
            Self::UseAfterFree => "uses memory that was freed before",
            Self::FreeWhileInUse => "frees memory that may still be in use",
            Self::DoubleFree => "frees memory a second time",
            Self::UninitializedRead => "reads bytes that were never written",
            Self::UnmappedAddress => "names a range that is not memory of the device",
            Self::DestroyedStream => "names a stream that was destroyed",
            Self::ForeignHandle => "names a stream or an event of another device",
            Self::DestroyedEvent => "names an event that was destroyed",
            Self::HostWroteDuringCopy => "copies host memory that the host wrote meanwhile",
            Self::OverlappingCopy => "copies between two ranges that overlap",
            Self::CaptureRace => "calls on a capture that another thread began",
            Self::KernelFault => "ran a kernel that failed",
        }
    }
}

impl Violation {
    /// What the other side was, in words between the sentence and its name.
    fn joint(self) -> &'static str {
        match self {
            Self::UninitializedRead => " since",
            Self::UseAfterFree => ", freed by",
            Self::DoubleFree => ", freed first by",
            Self::UseBeforeAllocation | Self::UnmappedAddress => ", allocated by",
            _ => ", in conflict with",
        }
    }
}

/// The name of an operation: the driver call, the kernel's entry, the stream, the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpName {
    pub(crate) call: &'static str,
    pub(crate) entry: Option<&'static str>,
    pub(crate) stream: Option<u64>,
    /// The graph that the operation is part of.
    pub(crate) graph: Option<u64>,
}

impl OpName {
    /// The name of a call without a stream.
    pub(crate) fn call(call: &'static str) -> Self {
        Self { call, entry: None, stream: None, graph: None }
    }

    pub(crate) fn on(call: &'static str, stream: u64) -> Self {
        Self { call, entry: None, stream: Some(stream), graph: None }
    }

    /// The same operation as a part of a graph that was launched on `stream`.
    pub(crate) fn of_graph(self, graph: u64, stream: u64) -> Self {
        Self { graph: Some(graph), stream: Some(stream), ..self }
    }
}

impl fmt::Display for OpName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.call)?;
        if let Some(entry) = self.entry {
            write!(f, " of {entry}")?;
        }
        if let Some(graph) = self.graph {
            write!(f, " in graph {graph}")?;
        }
        match self.stream {
            Some(stream) => write!(f, " on stream {stream}"),
            None => Ok(()),
        }
    }
}

/// One violation that a simulated device found, with the names of both sides and the seed that
/// replays the schedule.
///
/// ```
/// # fn show(report: &aquifer::sim::Report) {
/// println!("{report}");
/// assert!(report.to_string().contains("seed"));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Report {
    pub(crate) kind: Violation,
    pub(crate) operation: String,
    pub(crate) conflicts_with: Option<String>,
    pub(crate) range: (u64, u64),
    pub(crate) seed: u64,
    pub(crate) note: Option<String>,
}

impl Report {
    /// The kind of violation.
    pub fn kind(&self) -> Violation {
        self.kind
    }

    /// The operation at fault, such as `cuMemcpyDtoHAsync on stream 4`.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// The access, allocation or free that it conflicts with.
    pub fn conflicts_with(&self) -> Option<&str> {
        self.conflicts_with.as_deref()
    }

    /// The address and the length in bytes of the memory in question, `(0, 0)` if there is none.
    pub fn range(&self) -> (u64, u64) {
        self.range
    }

    /// The seed of the device that found the violation.
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.operation, self.kind.sentence())?;
        if let Some(other) = &self.conflicts_with {
            write!(f, "{} {other}", self.kind.joint())?;
        }
        match self.range {
            (0, 0) => {}
            (address, 0) => write!(f, ", at {address:#x}")?,
            (address, bytes) => write!(f, ", {} at {address:#x}", Count(bytes, "byte"))?,
        }
        if let Some(note) = &self.note {
            write!(f, ": {note}")?;
        }
        write!(f, " (seed {})", self.seed)
    }
}

impl std::error::Error for Report {}

impl Error {
    /// The simulated device's report behind this error, if it has one: of a call that waits, the first
    /// that was not taken; of every call on a context that a kernel's fault broke, that fault.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, sim::Violation};
    ///
    /// let device = Device::simulated(Default::default());
    /// // SAFETY: wrong on purpose: the vector is read before it is written.
    /// let vec = unsafe { DeviceVec::<u8>::uninit(&device.new_stream()?, 16)? };
    /// let error = vec.to_vec().unwrap_err();
    /// assert_eq!(error.report().unwrap().kind(), Violation::UninitializedRead);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn report(&self) -> Option<&Report> {
        self.driver()?.source()?.downcast_ref()
    }
}

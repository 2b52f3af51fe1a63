//! The reports of a simulated device, with violations and the operations on both sides.

use super::vector::ReportedMemory;
use aquifer_driver::Access;
use aquifer_driver::Site;
use aquifer_driver::error::Error;
use aquifer_driver::impls::Count;
use std::error::Error as _;
use std::fmt;
use std::panic::Location;

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
    /// Memory is freed, a host range unregistered, or a range taken back from a `Communicator`
    /// too early. An operation that is not ordered before that may still use it, or it is open by an
    /// `IpcHandle`.
    FreeWhileInUse,
    /// Memory is freed a second time.
    DoubleFree,
    /// The host or a kernel reads bytes that were never written. A copy within device memory is no such read, since the
    /// bytes are unwritten in its target as well. A copy to memory that the host reaches is one.
    UninitializedRead,
    /// An operation names a range that is not, or not as a whole, memory of this device.
    UnmappedAddress,
    /// A stream is used after it was destroyed.
    DestroyedStream,
    /// A stream or an event of another device is used where one of this device is needed.
    ForeignHandle,
    /// An event is used after it was destroyed.
    DestroyedEvent,
    /// The host wrote to page-locked memory between the call that enqueued a copy from it or to it and
    /// the copy itself. Whether the copy had run by then depends on the schedule.
    HostWroteDuringCopy,
    /// A copy whose source and target overlap.
    OverlappingCopy,
    /// Ranks of one communicator call different collectives, or of different lengths, where a GPU waits for good or
    /// writes past the end.
    CollectiveMismatch,
    /// A collective waited longer than the device's [`rank_timeout`](crate::sim::SimConfig::rank_timeout) for another rank,
    /// where a GPU waits for good.
    LostRank,
    /// A second thread calls on a stream in capture, or names an event of the capture. CUDA's graphs
    /// are not thread-safe, so two such calls at the same time can end the process.
    CaptureRace,
    /// A stream is made to wait for an event while another thread launches a graph on it. NVIDIA's driver 580.159.04
    /// loses such a wait. With it, a plain C program that does so reads wrong data in one round of ten.
    LostWait,
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
            Self::HostWroteDuringCopy => {
                "copies from or to host memory that the host wrote meanwhile"
            }
            Self::OverlappingCopy => "copies between two ranges that overlap",
            Self::CollectiveMismatch => "is another collective than that of another rank",
            Self::LostRank => "waited for another rank that did not come",
            Self::CaptureRace => "calls on a capture that another thread began",
            Self::LostWait => "waits on a stream that another thread launches a graph on",
            Self::KernelFault => "ran a kernel that failed",
        }
    }
}

impl Violation {
    /// The role of the other side, in words between the sentence and its name.
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

/// The name of an operation. It has the driver call, the kernel's entry, the stream, the graph, and where in the
/// program it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpName {
    pub(crate) call: &'static str,
    pub(crate) entry: Option<&'static str>,
    pub(crate) stream: Option<u64>,
    /// The graph that the operation is part of.
    pub(crate) graph: Option<u64>,
    /// The access to the memory in question.
    access: Option<Access>,
    site: Option<Site>,
    /// Where the graph was launched.
    launched: Option<Site>,
    /// The operation is the drop of a vector, which has no line.
    is_drop: bool,
}

impl OpName {
    /// The name of a call without a stream.
    pub(crate) fn call(call: &'static str) -> Self {
        let (entry, stream, graph, access) = (None, None, None, None);
        let (site, launched, is_drop) = (Site::current(), None, false);
        Self { call, entry, stream, graph, access, site, launched, is_drop }
    }

    pub(crate) fn on(call: &'static str, stream: u64) -> Self {
        Self { stream: Some(stream), ..Self::call(call) }
    }

    /// This operation as the launch of a kernel.
    pub(crate) fn of_entry(self, entry: &'static str) -> Self {
        Self { entry: Some(entry), ..self }
    }

    /// This operation as a part of a graph that is launched on `stream`.
    pub(crate) fn of_graph(self, graph: u64, stream: u64) -> Self {
        let launched = Site::current();
        Self { graph: Some(graph), stream: Some(stream), launched, ..self }
    }

    pub(crate) fn accessing(self, access: Access) -> Self {
        Self { access: Some(access), ..self }
    }

    /// This operation as the free of a vector, if there is one. Without a line it is the vector's drop.
    pub(crate) fn freeing(self, is_vector: bool) -> Self {
        Self { is_drop: is_vector && self.site.is_none(), ..self }
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

/// An operation in a report.
#[derive(Clone, Debug)]
struct Side {
    name: String,
    op: OpName,
}

impl Side {
    fn new(op: OpName) -> Self {
        Self { name: op.to_string(), op }
    }

    fn location(&self) -> Option<&'static Location<'static>> {
        self.op.site.map(Site::location)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, op } = self;
        f.write_str(name)?;
        if op.is_drop {
            f.write_str(" by a drop")?;
        }
        if let Some(site) = op.site {
            write!(f, " at {site}")?;
        }
        if let Some(launched) = op.launched.filter(|launched| Some(*launched) != op.site) {
            write!(f, ", launched at {launched}")?;
        }
        f.write_str(match op.access {
            Some(Access::Read) => " (reads)",
            Some(Access::Write) => " (writes)",
            Some(Access::ReadWrite) => " (reads and writes)",
            None => "",
        })
    }
}

/// One violation that a simulated device found. It has both sides with their lines, the vector, and the seed that
/// replays the schedule.
///
/// The lines are those of the program's calls into this crate, in builds of every profile. A drop has none, but the
/// vector's own line is where it was made. Memory that was allocated or freed by hand from a resource has none either,
/// nor has memory that a pool took from its upstream.
///
/// ```
/// use aquifer::sim::{Report, SimConfig};
/// use aquifer::{Device, DeviceVec};
///
/// let device = Device::simulated(SimConfig::default().seed(7));
/// // SAFETY: wrong on purpose: the vector is read before it is written.
/// let vec = unsafe { DeviceVec::<f32>::uninit(&device.new_stream()?, 1024)? };
/// let error = vec.to_vec().unwrap_err();
/// let report = Report::of(&error).unwrap();
/// println!("{:?}", report.operation_location()); // the line of `to_vec`, in a program
/// assert_eq!(report.vector().unwrap(), "DeviceVec<f32> of 1024 elements (4096 bytes)");
/// assert!(report.to_string().ends_with("(seed 7)"));
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Report {
    kind: Violation,
    operation: Side,
    conflicts_with: Option<Side>,
    memory: ReportedMemory,
    vector: Option<String>,
    seed: u64,
    note: Option<String>,
}

impl Report {
    /// The simulated device's report behind an error, if it has one. For a call that waits, it is the
    /// first that was not taken. For every call on a context that a kernel's fault broke, it is that
    /// fault.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, sim::{Report, Violation}};
    ///
    /// let device = Device::simulated(Default::default());
    /// // SAFETY: wrong on purpose: the vector is read before it is written.
    /// let vec = unsafe { DeviceVec::<u8>::uninit(&device.new_stream()?, 16)? };
    /// let error = vec.to_vec().unwrap_err();
    /// assert_eq!(Report::of(&error).unwrap().kind(), Violation::UninitializedRead);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn of(error: &Error) -> Option<&Self> {
        error.driver()?.source()?.downcast_ref()
    }

    pub(crate) fn new(
        kind: Violation,
        operation: OpName,
        other: Option<OpName>,
        memory: ReportedMemory,
        seed: u64,
        note: Option<String>,
    ) -> Self {
        let vector = memory.vector.map(|vector| vector.to_string());
        // Its sentence says that it reads.
        let says = kind == Violation::UninitializedRead;
        let operation = OpName { access: operation.access.filter(|_| !says), ..operation };
        let (operation, conflicts_with) = (Side::new(operation), other.map(Side::new));
        Self { kind, operation, conflicts_with, memory, vector, seed, note }
    }

    /// The kind of violation.
    pub fn kind(&self) -> Violation {
        self.kind
    }

    /// The operation at fault, such as `cuMemcpyDtoHAsync on stream 4`.
    pub fn operation(&self) -> &str {
        &self.operation.name
    }

    /// The program's call that gave the operation at fault. For one that a graph runs, it is the call that was
    /// captured.
    pub fn operation_location(&self) -> Option<&'static Location<'static>> {
        self.operation.location()
    }

    /// The access, allocation or free that it conflicts with.
    pub fn conflicts_with(&self) -> Option<&str> {
        self.conflicts_with.as_ref().map(|side| &*side.name)
    }

    /// The program's call that gave the operation that it conflicts with, as
    /// [`operation_location`](Self::operation_location).
    pub fn conflict_location(&self) -> Option<&'static Location<'static>> {
        self.conflicts_with.as_ref()?.location()
    }

    /// The address and the length in bytes of the memory in question, or `(0, 0)` if there is none.
    pub fn range(&self) -> (u64, u64) {
        self.memory.range
    }

    /// The vector that this memory is, or was before it was freed. The text has its type and size as it was made, such
    /// as `DeviceVec<f32> of 1024 elements (4096 bytes)`. `None` for memory of no vector, and on a device
    /// [`without_pool_checks`](crate::sim::SimConfig::without_pool_checks).
    pub fn vector(&self) -> Option<&str> {
        self.vector.as_deref()
    }

    /// The program's call that made the vector, or gave it other memory when it grew.
    pub fn vector_location(&self) -> Option<&'static Location<'static>> {
        self.memory.vector?.made.map(Site::location)
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
        match self.memory.range {
            (0, 0) => {}
            (address, 0) => write!(f, ", at {address:#x}")?,
            (address, bytes) => write!(f, ", {} at {address:#x}", Count(bytes, "byte"))?,
        }
        if let Some(vector) = &self.vector {
            let is_host = self.kind == Violation::HostWroteDuringCopy;
            write!(f, "{} {vector}", if is_host { ", the other side is a" } else { " of a" })?;
        }
        if let Some(made) = self.vector_location() {
            write!(f, " made at {made}")?;
        }
        if let Some(note) = &self.note {
            write!(f, ": {note}")?;
        }
        write!(f, " (seed {})", self.seed)
    }
}

impl std::error::Error for Report {}

//! Operations, which wait in the queues, and the memory that they touch.

use super::backing::Backing;
use super::clique::Exchange;
use super::fence::SimFence;
use super::parts::Region;
use crate::check::{OpName, VectorClock};
use aquifer_driver::{Access, HostForm, HostFunction, LaunchConfig, RawArg, RawFill};
use aquifer_sync::Arc;

/// The work of an operation when it runs. Addresses are not part of it. It works on the ranges of its
/// [`SimOp`], so that a graph can repeat it wherever they lie by then.
#[derive(Clone, Debug)]
pub(crate) enum OpWork {
    /// No work. The operation only has a place in stream order, or was refused and keeps its place.
    Nothing,
    /// Copies this many bytes from the first range to the last.
    Copy(usize),
    /// Copies bytes of pageable memory, which were staged at the call.
    CopyStaged(Vec<u8>),
    Fill(RawFill),
    /// Poisons the target of a refused copy of this many bytes to the host. The target must not stay
    /// unwritten.
    PoisonHost(usize),
    Kernel {
        host: HostForm,
        config: LaunchConfig,
        arguments: Vec<RawArg>,
    },
    Record(Arc<SimFence>),
    Wait(Arc<SimFence>),
    /// Brings the first range to an exchange as the part in this place. Without a range it brings none.
    Bring {
        exchange: Arc<Exchange>,
        slot: usize,
    },
    /// Writes what this rank receives of an exchange.
    Take {
        exchange: Arc<Exchange>,
        rank: usize,
    },
    /// Calls a function of the program. Before it the host sees everything in the clock complete.
    HostFunction {
        function: Arc<dyn HostFunction>,
        before: VectorClock,
    },
    /// Returns the bytes of a block to its pool and to the device.
    Free {
        bytes: u64,
        pool: u64,
    },
}

impl OpWork {
    /// Whether it reads or writes memory, or is the program's. Such work runs without the lock of the state.
    pub(crate) fn runs_unlocked(&self) -> bool {
        !matches!(self, Self::Nothing | Self::Record(_) | Self::Wait(_) | Self::Free { .. })
    }
}

/// How an operation names an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressSpace {
    /// As an address of this device.
    Device(u64),
    /// As a pointer of the host, in a copy between host and device.
    Host,
}

/// A range that a call names, of `count` rows of `bytes` bytes, `stride` bytes apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TouchedRange {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) stride: u64,
    pub(crate) count: u64,
    pub(crate) access: Access,
    pub(crate) space: AddressSpace,
    /// Of a captured operation: the region of a pool that the range lay in.
    pub(crate) captured_in: Option<Region>,
}

impl TouchedRange {
    pub(crate) fn new(address: u64, bytes: usize, access: Access, space: AddressSpace) -> Self {
        let bytes = bytes as u64;
        Self { address, bytes, stride: bytes, count: 1, access, space, captured_in: None }
    }

    /// The address and the bytes from the first to the last one touched.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        (self.address, self.span())
    }

    /// Bytes from the first to the last one touched. The caller has checked that this fits.
    pub(crate) fn span(&self) -> u64 {
        self.count.saturating_sub(1).saturating_mul(self.stride).saturating_add(self.bytes)
    }
}

/// A touched range found in its block. It keeps the memory alive until the operation has run.
#[derive(Clone, Debug)]
pub(crate) struct OpRange {
    pub(crate) backing: Arc<Backing>,
    /// The address of the block.
    pub(crate) block: u64,
    /// Where in the block the range begins.
    pub(crate) offset: u64,
    pub(crate) pointer: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) writes: bool,
    pub(crate) host_visible: bool,
}

impl OpRange {
    /// Identifies the memory among all that is alive.
    pub(crate) fn memory_id(&self) -> usize {
        self.backing.memory_id()
    }
}

/// The caller's own pointer to the host's side of a copy. It is used in place of the block's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostSide {
    Source(*const u8),
    Target(*mut u8),
}

/// A watchpoint of the [`Backing`] over the host's side of a copy.
#[derive(Debug)]
pub(crate) struct Watchpoint {
    pub(crate) backing: Arc<Backing>,
    pub(crate) id: u64,
    pub(crate) range: (u64, u64),
}

/// An operation in a queue.
///
/// # State table
///
/// | state | where it is | next |
/// | --- | --- | --- |
/// | captured | in a [`CaptureRecording`](super::CaptureRecording); a launch makes a new operation of it | |
/// | queued | in `SimStream::queue` | ready, discarded |
/// | ready | first of its queue; its fence is signaled, no running operation shares a block with it | running |
/// | running | in `SimState::running`, without the lock (only work on memory, and functions of the program) | retired |
/// | retired | gone; `SimStream::passed` is its tick | |
/// | discarded | gone, without having run; its stream counts as having passed it | |
#[derive(Debug)]
pub(crate) struct SimOp {
    pub(crate) name: OpName,
    /// Its number in its stream, which is set when it is pushed.
    pub(crate) tick: u64,
    pub(crate) work: OpWork,
    pub(crate) ranges: Vec<OpRange>,
    pub(crate) host_side: Option<HostSide>,
    pub(crate) watchpoint: Option<Watchpoint>,
}

impl SimOp {
    /// An operation on no memory.
    pub(crate) fn new(name: OpName, work: OpWork) -> Self {
        Self { name, tick: 0, work, ranges: Vec::new(), host_side: None, watchpoint: None }
    }
}

// SAFETY: its pointers lead into blocks that `ranges` keeps alive, or into memory that the unsafe
// call that made it promises to keep until the stream has passed; one thread runs it, once.
unsafe impl Send for SimOp {}

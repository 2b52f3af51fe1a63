//! The calls of a driver on communicators, which are what the crate needs of NCCL.

use aquifer_driver::error::{DriverError, Error, ErrorKind};
use aquifer_driver::{DeviceAddress, DeviceRange, RawStream};
use std::any::Any;
use std::fmt;

/// The number by which ranks find each other, an `ncclUniqueId`.
pub type UniqueId = [u8; 128];

/// A rank of a communicator, an `ncclComm_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawCommunicator(pub u64);

/// How a reduction makes one element of those of all ranks. The numbers are those of `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Their sum.
    Sum = 0,
    /// Their product.
    Product = 1,
    /// The largest.
    Max = 2,
    /// The smallest.
    Min = 3,
    /// Their sum over the number of ranks.
    Average = 4,
}

/// The type of an element that reductions work on. The numbers are those of `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    I8 = 0,
    U8 = 1,
    I32 = 2,
    U32 = 3,
    I64 = 4,
    U64 = 5,
    #[cfg(feature = "half")]
    F16 = 6,
    F32 = 7,
    F64 = 8,
    #[cfg(feature = "half")]
    Bf16 = 9,
}

impl ElementType {
    pub fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            #[cfg(feature = "half")]
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// A reduction of `count` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    pub count: usize,
    pub element: ElementType,
    pub op: ReduceOp,
}

/// The work that a rank asks for. Sizes are those that NCCL takes, so they are a rank's own part where
/// ranks have parts.
#[derive(Clone, Copy, Debug)]
pub enum CollectiveWork {
    AllReduce { send: DeviceAddress, receive: DeviceAddress, reduction: Reduction },
    Reduce { send: DeviceAddress, receive: DeviceAddress, reduction: Reduction, root: usize },
    ReduceScatter { send: DeviceAddress, receive: DeviceAddress, reduction: Reduction },
    Broadcast { send: DeviceAddress, receive: DeviceAddress, bytes: usize, root: usize },
    AllGather { send: DeviceAddress, receive: DeviceAddress, bytes: usize },
    Send { send: DeviceAddress, bytes: usize, peer: usize },
    Receive { receive: DeviceAddress, bytes: usize, peer: usize },
}

/// Work of one rank on a stream of its device.
#[derive(Clone, Copy, Debug)]
pub struct RawCollective {
    pub communicator: RawCommunicator,
    pub stream: RawStream,
    pub work: CollectiveWork,
}

/// Why a call on communicators failed.
#[derive(Clone, Debug)]
pub enum CollectiveError {
    /// NCCL's library is not installed, or not where libraries are looked for.
    NoLibrary,
    /// The library has no such function.
    MissingSymbol(&'static str),
    /// A call of NCCL returned this number. `text` is NCCL's own, if it wrote one.
    Failed { call: &'static str, code: u32, text: String },
    /// A rank is gone, or did not come.
    Lost(String),
    /// A call of the driver failed.
    Driver(DriverError),
}

pub type CollectiveResult<T> = Result<T, CollectiveError>;

impl CollectiveError {
    const INVALID_ARGUMENT: u32 = 4;
    const INVALID_USAGE: u32 = 5;

    /// Whether the communicator is of no use after it.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Failed { code, .. } => {
                !matches!(*code, Self::INVALID_ARGUMENT | Self::INVALID_USAGE)
            }
            Self::Lost(_) => true,
            Self::NoLibrary | Self::MissingSymbol(_) | Self::Driver(_) => false,
        }
    }

    /// The crate's error, with what was attempted.
    #[track_caller]
    pub fn into_error(self, wanted: impl fmt::Display) -> Error {
        let what = format!("{wanted}: {self}");
        match self {
            Self::NoLibrary => Error::new(ErrorKind::Unsupported, what)
                .with_advice("install NCCL, and put the folder of libnccl.so.2 on the library path"),
            Self::MissingSymbol(_) => {
                Error::new(ErrorKind::Unsupported, what).with_advice("install a newer NCCL")
            }
            Self::Driver(error) => Error::driver_call(wanted.to_string(), error),
            ref lost if lost.is_fatal() => Error::new(ErrorKind::CommunicatorLost, what)
                .with_advice("see what became of the other ranks, and make a new communicator of those that are left"),
            _ => Error::new(ErrorKind::InvalidArgument, what)
                .with_advice("see NCCL's own words by NCCL_DEBUG=WARN"),
        }
    }
}

impl CollectiveError {
    /// The error of a call that allocates, by [`into_error`](Self::into_error). NCCL does not say whether there was no
    /// room.
    #[track_caller]
    pub fn into_allocation_error(self, wanted: impl fmt::Display) -> Error {
        match self {
            Self::Failed { .. } => Error::new(ErrorKind::OutOfMemory, format!("{wanted}: {self}"))
                .with_advice("see NCCL's own words by NCCL_DEBUG=WARN, and take CudaResource where it has no such memory"),
            other => other.into_error(wanted),
        }
    }
}

impl From<DriverError> for CollectiveError {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

/// The name of a result in `nccl.h`.
fn name_of(code: u32) -> &'static str {
    match code {
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        7 => "ncclInProgress",
        _ => "a number without a name here, see ncclResult_t in nccl.h",
    }
}

impl fmt::Display for CollectiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary => f.write_str("NCCL's library, libnccl, was not found"),
            Self::MissingSymbol(symbol) => write!(f, "NCCL's library has no {symbol}"),
            Self::Failed { call, code, text } => {
                write!(f, "{call} returned {code}, {}", name_of(*code))?;
                if text.is_empty() { Ok(()) } else { write!(f, ": {text}") }
            }
            Self::Lost(why) => f.write_str(why),
            Self::Driver(error) => error.fmt(f),
        }
    }
}

/// The calls of a device's driver on communicators.
///
/// A communicator is named in one call at a time. A call may wait on the host for the calls of other ranks.
pub trait CollectiveCalls {
    /// A number for the ranks of one communicator.
    fn unique_id(&self) -> CollectiveResult<UniqueId>;

    /// Joins one rank for each member, and waits for all `ranks`. A member is the [`as_any`](aquifer_driver::Driver::as_any) of
    /// a rank's driver and the rank's number.
    fn join_ranks(
        &self,
        members: &[(&dyn Any, usize)],
        ranks: usize,
        id: &UniqueId,
    ) -> CollectiveResult<Vec<RawCommunicator>>;

    /// Gives all the work to its streams, as one group.
    ///
    /// # Safety
    /// The communicators live, and their ranks are of these streams' devices. The ranges are device memory and stay so
    /// until their streams have passed. Until then nothing else writes those that are received.
    unsafe fn run_collectives(&self, works: &[RawCollective]) -> CollectiveResult<()>;

    /// The state of a communicator by now, such as an error of another rank.
    ///
    /// # Safety
    /// The communicator lives.
    unsafe fn communicator_check(&self, communicator: RawCommunicator) -> CollectiveResult<()>;

    /// Ends a communicator whatever its streams do. Work that has not run by then ends without a
    /// result.
    ///
    /// # Safety
    /// The communicator lives, and is not used after.
    unsafe fn communicator_abort(&self, communicator: RawCommunicator) -> CollectiveResult<()>;

    /// Ends a communicator whose work has run.
    ///
    /// # Safety
    /// The communicator lives, and is not used after.
    unsafe fn communicator_destroy(&self, communicator: RawCommunicator) -> CollectiveResult<()>;

    /// Registers memory of the rank's device, so that the communicator may reach it directly.
    ///
    /// # Safety
    /// The communicator lives. The range is device memory until it is deregistered or the communicator is gone.
    unsafe fn communicator_register(
        &self,
        communicator: RawCommunicator,
        range: DeviceRange,
    ) -> CollectiveResult<u64>;

    /// # Safety
    /// The communicator lives, and its work on the range has run. The handle came from its
    /// [`communicator_register`](Self::communicator_register) and is deregistered once.
    unsafe fn communicator_deregister(
        &self,
        communicator: RawCommunicator,
        handle: u64,
    ) -> CollectiveResult<()>;

    /// Device memory as NCCL wants it for registration. `bytes > 0`.
    fn collective_mem_alloc(&self, bytes: usize) -> CollectiveResult<DeviceAddress>;

    /// # Safety
    /// `address` came from [`collective_mem_alloc`](Self::collective_mem_alloc) of this driver, is freed once, and no
    /// work that uses it is pending.
    unsafe fn collective_mem_free(&self, address: DeviceAddress) -> CollectiveResult<()>;
}

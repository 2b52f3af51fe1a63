//! The handle that one process sends to another so that it can open memory.

use crate::driver::IpcBytes;
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::{Count, getters};
use std::fmt;

/// The way in which the memory of an [`IpcHandle`] is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IpcKind {
    /// By the handle alone, for memory that came from `cuMemAlloc` (`CUipcMemHandle`).
    Plain,
    /// By the [`IpcPool`](crate::ipc::IpcPool) that it is of, whose descriptor goes over a Unix socket
    /// (`CUmemPoolPtrExportData`).
    Pool,
}

impl IpcKind {
    fn number(self) -> u8 {
        match self {
            Self::Plain => 1,
            Self::Pool => 2,
        }
    }

    fn of_number(number: u8) -> Option<Self> {
        [Self::Plain, Self::Pool].into_iter().find(|kind| kind.number() == number)
    }
}

/// Device memory of one process, for others to open. The handle is plain data, sent over any
/// pipe as [`to_bytes`](Self::to_bytes).
///
/// `DeviceVec::ipc_handle` makes one, of a vector, a buffer or a
/// slice. [`open`](Self::open) makes a vector of it in another process. The handle names the
/// driver's allocation, the offset of the memory in it, and the size. It names the device by its
/// UUID, which is the same in every process.
///
/// # What can be shared
///
/// | memory of | handle |
/// |---|---|
/// | [`CudaResource`](crate::CudaResource), adaptors over it, and pools over it that take blocks | [`IpcKind::Plain`] |
/// | an [`AsyncResource`](crate::mr::AsyncResource) that is [shareable](crate::mr::AsyncOptions::shareable), and pools over it | [`IpcKind::Pool`] |
/// | a pool on [handles](crate::mr::Handles), [`VirtualResource`](crate::mr::VirtualResource) | none: `DeviceVec::send_to` sends it over a Unix socket |
/// | another driver pool, [`ManagedResource`](crate::mr::ManagedResource), page-locked memory, [`SystemResource`](crate::mr::SystemResource) | none: an error of [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) |
///
/// A pool cuts many blocks from one allocation. A process that opens one of them has the whole allocation,
/// so code there that leaves its block reads and writes the neighbours. CUDA does the same to small
/// allocations of its own, those under 2 MiB.
///
/// # What the two processes owe each other
///
/// No order of streams reaches across processes. The exporter keeps the vector, and does not
/// let it grow, until the others have closed theirs. Otherwise the memory goes to another
/// vector of the exporter, or, by CUDA's manual, has undefined contents. Each waits for its own
/// work before it tells the other to go on.
///
/// A process that dies closes the memory that it had open, and may leave a write
/// unfinished. The exporter's memory stays whole. If the exporter has died, the others get
/// an error or bytes without a meaning.
///
/// # Examples
///
/// This example uses the simulated device, whose handles are for its own process. On a GPU the
/// second half is another process's.
///
/// ```
/// use aquifer::{
///     CudaResource, Device, DeviceVec, PoolResource, ipc::{IpcExport, IpcHandle}, mr::Handles, sim::SimConfig,
/// };
///
/// let device = Device::simulated(SimConfig::default());
/// let stream = device.new_stream()?;
/// let pool = PoolResource::builder(CudaResource::new(&device)).handles(Handles::Off).build()?;
/// let vec = DeviceVec::from_slice_in(&stream, &[1_u32, 2, 3], pool)?;
/// let sent = vec.ipc_handle()?.to_bytes(); // waits for the vector's home stream
///
/// // The other process:
/// let other_stream = device.new_stream()?;
/// let handle = IpcHandle::from_bytes(&sent)?;
/// // SAFETY: the exporter keeps its vector, and touches it when this is over.
/// let mut shared = unsafe { handle.open::<u32>(&other_stream)? };
/// assert_eq!(shared.to_vec()?, [1, 2, 3]);
/// shared.set(0, 10)?;
/// drop(shared); // waits for its stream, and closes the memory
///
/// // The first process again:
/// assert_eq!(vec.to_vec()?, [10, 2, 3]);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpcHandle {
    pub(super) kind: IpcKind,
    pub(super) device_uuid: [u8; 16],
    pub(super) process: u32,
    /// The driver's data about the allocation.
    pub(super) driver_bytes: IpcBytes,
    /// The exporter's own handle of the pool, 0 without one.
    pub(super) pool: u64,
    /// The range has at least one byte, and its end does not overflow.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The place of each part in the bytes. The bytes between them are zero.
mod place {
    use std::ops::Range;

    pub(super) const MAGIC: Range<usize> = 0..6;
    pub(super) const VERSION: usize = 6;
    pub(super) const KIND: usize = 7;
    pub(super) const PROCESS: Range<usize> = 8..12;
    pub(super) const DEVICE: Range<usize> = 16..32;
    pub(super) const DRIVER: Range<usize> = 32..96;
    pub(super) const POOL: Range<usize> = 96..104;
    pub(super) const OFFSET: Range<usize> = 104..112;
    pub(super) const BYTES: Range<usize> = 112..120;
}

const MAGIC: &[u8; 6] = b"AQ-IPC";
const VERSION: u8 = 1;

impl IpcHandle {
    /// The length of [`to_bytes`](Self::to_bytes), in bytes.
    pub const SIZE: usize = 128;

    getters! {
        /// The way in which it is opened.
        kind: IpcKind;

        /// The device whose memory it is, as [`Device::uuid`](crate::Device::uuid) has it.
        device_uuid: [u8; 16];

        /// The process that exported it, by its number there. It is for messages, since a
        /// container has its own numbers.
        process: u32;
    }

    /// The driver's data about the allocation, for other libraries. It is a `CUipcMemHandle` or a
    /// `CUmemPoolPtrExportData`.
    pub fn driver_bytes(&self) -> &[u8; 64] {
        &self.driver_bytes
    }

    /// The offset of the memory in the allocation, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The size of the memory, in bytes, which is never zero.
    pub fn size_in_bytes(&self) -> u64 {
        self.bytes
    }

    /// The handle as bytes, which are the same on every machine.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, ipc::{IpcExport, IpcHandle}, sim::SimConfig};
    ///
    /// let device = Device::simulated(SimConfig::default());
    /// let plain = CudaResource::new(&device);
    /// let vec = DeviceVec::<u64>::zeroed_in(&device.new_stream()?, 4, plain)?;
    /// let handle = vec.ipc_handle()?;
    /// assert_eq!(IpcHandle::from_bytes(&handle.to_bytes())?, handle);
    /// assert_eq!((handle.offset(), handle.size_in_bytes()), (0, 32));
    /// assert_eq!(handle.device_uuid(), device.uuid()?);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[place::MAGIC].copy_from_slice(MAGIC);
        bytes[place::VERSION] = VERSION;
        bytes[place::KIND] = self.kind.number();
        bytes[place::PROCESS].copy_from_slice(&self.process.to_le_bytes());
        bytes[place::DEVICE].copy_from_slice(&self.device_uuid);
        bytes[place::DRIVER].copy_from_slice(&self.driver_bytes);
        bytes[place::POOL].copy_from_slice(&self.pool.to_le_bytes());
        bytes[place::OFFSET].copy_from_slice(&self.offset.to_le_bytes());
        bytes[place::BYTES].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// The handle of such bytes. Only an opening finds out whether there is memory behind it.
    ///
    /// ```
    /// use aquifer::{ErrorKind, ipc::{IpcExport, IpcHandle}};
    ///
    /// let refused = IpcHandle::from_bytes(b"not a handle").unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for bytes that
    /// are no handle. They may be cut short, of another version of the format, or of a
    /// range that ends past any memory.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Ok(bytes) = <&[u8; Self::SIZE]>::try_from(bytes) else {
            let got = Count(bytes.len(), "byte");
            return Err(no_handle(&format!("they are {got}, and a handle has {}", Self::SIZE)));
        };
        if bytes[place::MAGIC] != *MAGIC {
            return Err(no_handle("they begin otherwise"));
        }
        if bytes[place::VERSION] != VERSION {
            let version = bytes[place::VERSION];
            return Err(no_handle(&format!(
                "they are of version {version}, where this build knows {VERSION}"
            )));
        }
        let Some(kind) = IpcKind::of_number(bytes[place::KIND]) else {
            return Err(no_handle(&format!("they are of an unknown kind, {}", bytes[place::KIND])));
        };
        let number = |range| u64::from_le_bytes(part(bytes, range));
        let handle = Self {
            kind,
            device_uuid: part(bytes, place::DEVICE),
            process: u32::from_le_bytes(part(bytes, place::PROCESS)),
            driver_bytes: part(bytes, place::DRIVER),
            pool: number(place::POOL),
            offset: number(place::OFFSET),
            bytes: number(place::BYTES),
        };
        if handle.bytes == 0 || handle.offset.checked_add(handle.bytes).is_none() {
            return Err(no_handle("their range cannot be"));
        }
        // What is between the parts, and a pool where there is none.
        if handle.to_bytes() != *bytes || (kind == IpcKind::Plain && handle.pool != 0) {
            return Err(no_handle("they have parts that this build does not know"));
        }
        Ok(handle)
    }

    /// An error unless it is opened in such a way.
    pub(super) fn require_kind(&self, kind: IpcKind) -> Result<()> {
        let (what, advice) = match self.kind {
            IpcKind::Plain => ("plain memory", "open it by IpcHandle::open, without a pool"),
            IpcKind::Pool => (
                "memory of a driver pool",
                "receive the pool by IpcPool::receive, and open the handle by IpcPool::open",
            ),
        };
        ensure!(self.kind == kind, InvalidArgument, advice, "{self} is of {what}");
        Ok(())
    }
}

fn part<const N: usize>(bytes: &[u8], range: std::ops::Range<usize>) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[range]);
    part
}

fn no_handle(why: &str) -> Error {
    let what = format!("bytes were given for the handle of another process's memory: {why}");
    Error::new(ErrorKind::InvalidArgument, what)
        .with_advice("send all of IpcHandle::to_bytes, between builds of one version")
}

impl fmt::Display for IpcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Count(self.bytes, "byte");
        write!(f, "the handle of {bytes} of process {}", self.process)
    }
}

/// Leaves out the driver's data, which means nothing to a reader.
impl fmt::Debug for IpcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IpcHandle")
            .field("kind", &self.kind)
            .field("process", &self.process)
            .field("device_uuid", &format_args!("{}", shown_uuid(&self.device_uuid)))
            .field("offset", &self.offset)
            .field("size_in_bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// A UUID as tools print it.
pub(super) fn shown_uuid(uuid: &[u8; 16]) -> String {
    let mut shown = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            shown.push('-');
        }
        shown += &format!("{byte:02x}");
    }
    shown
}

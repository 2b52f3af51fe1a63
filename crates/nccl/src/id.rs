//! The id by which the ranks of a communicator find each other.

use crate::device::Device;
use crate::device_calls::calls_of;
use crate::error::Result;
use aquifer_collective::UniqueId;
use std::fmt;

/// The id by which the ranks of one [`Communicator`](crate::Communicator) find each
/// other, an `ncclUniqueId`.
///
/// One rank makes it, and the program brings its 128 bytes to the others, by whatever way it has. In
/// programs of several processes NCCL can do so itself. If the variable `NCCL_COMM_ID` is `HOST:PORT`
/// of rank 0 in all of them, each makes the same id. An id serves for one communicator.
///
/// ```
/// use aquifer::{Device, collective::CommunicatorId, sim::SimConfig};
///
/// let device = Device::simulated(SimConfig::default());
/// let id = CommunicatorId::new(&device)?;
/// let bytes: [u8; 128] = *id.as_bytes(); // to another rank
/// assert_eq!(CommunicatorId::from_bytes(bytes), id);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommunicatorId {
    bytes: UniqueId,
}

impl CommunicatorId {
    /// A new id, for ranks on devices of this kind.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a GPU where NCCL is not
    /// installed, and the errors of NCCL.
    pub fn new(device: &Device) -> Result<Self> {
        let bytes = calls_of(device).and_then(|calls| calls.unique_id());
        let wanted = format_args!("making an id for a communicator of {device}");
        bytes.map(|bytes| Self { bytes }).map_err(|error| error.into_error(wanted))
    }

    /// The id whose bytes another rank has sent.
    pub const fn from_bytes(bytes: [u8; 128]) -> Self {
        Self { bytes }
    }

    /// Its bytes, for other ranks.
    pub const fn as_bytes(&self) -> &[u8; 128] {
        &self.bytes
    }
}

impl fmt::Debug for CommunicatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommunicatorId(")?;
        self.bytes.iter().take(16).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("..)")
    }
}

//! Where the contents of a pool wait.

use crate::pinned::HostBuffer;
use std::fmt;
use std::path::PathBuf;

/// Where the contents of a pool are while it sleeps.
#[non_exhaustive]
pub enum Keep {
    /// In page-locked memory of the [current pinned resource](crate::pinned::current_pinned_resource). A pool of such
    /// memory keeps it for the next sleep, until it is trimmed.
    PageLocked,
    /// In a file of this folder that has no name, so that it goes with the process. Several threads write and read it, past
    /// the system's cache where the file system allows that. A child that is forked meanwhile keeps the file, and its room
    /// on the disk, until it drops the pool, executes another program or ends.
    File(PathBuf),
    /// In a buffer of the program's, such as a `Vec<u8>` of any allocator, which [`wake`](crate::PoolResource::wake) gives back.
    /// It is fast if it is page-locked.
    Buffer(Box<dyn HostBuffer<Item = u8>>),
    /// Nowhere. All memory is zero when the pool wakes.
    Nothing,
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PageLocked => f.write_str("PageLocked"),
            Self::File(folder) => f.debug_tuple("File").field(folder).finish(),
            Self::Buffer(_) => f.write_str("Buffer(..)"),
            Self::Nothing => f.write_str("Nothing"),
        }
    }
}

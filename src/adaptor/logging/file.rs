//! A file that one log writes exclusively.

use crate::sync::trusted::Mutex;
#[cfg(unix)]
use std::fs::TryLockError;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// The identity of a file, under all of its names.
#[derive(Clone, PartialEq)]
struct FileId {
    #[cfg(unix)]
    device_and_inode: (u64, u64),
    #[cfg(not(unix))]
    path: std::path::PathBuf,
}

/// The files that logs of this process write.
static CLAIMED: Mutex<Vec<FileId>> = Mutex::new(Vec::new());

/// An entry of [`CLAIMED`].
struct FileClaim(FileId);

impl FileClaim {
    fn new(id: FileId) -> io::Result<Self> {
        let mut claimed = CLAIMED.lock();
        if claimed.contains(&id) {
            return Err(busy("another log of this process writes it"));
        }
        claimed.push(id.clone());
        Ok(Self(id))
    }
}

impl Drop for FileClaim {
    fn drop(&mut self) {
        CLAIMED.lock().retain(|claimed| *claimed != self.0);
    }
}

/// The writing thread owns it, and drops it after the last row.
pub(super) struct LogFile {
    file: File,
    /// `None` for a pipe or a device, which several logs may write.
    claim: Option<FileClaim>,
}

impl LogFile {
    /// Creates the file, or truncates one that no other log writes.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        // Truncated after the claim: it may be another log's.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(Self { file, claim: None });
        }
        let claim = FileClaim::new(file_id(path, &metadata)?)?;
        lock(&file)?;
        file.set_len(0)?;
        Ok(Self { file, claim: Some(claim) })
    }
}

fn busy(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}

/// Excludes the logs of other processes, unless the file system has no locks.
#[cfg(unix)]
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(busy("another process has it locked for its log")),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// None: a lock would exclude readers here.
#[cfg(not(unix))]
fn lock(_: &File) -> io::Result<()> {
    Ok(())
}

/// Whether the file has no name any more.
#[cfg(unix)]
fn is_removed(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.nlink() == 0)
}

/// Never: an open file cannot be removed here.
#[cfg(not(unix))]
fn is_removed(_: &File) -> io::Result<bool> {
    Ok(false)
}

#[cfg(unix)]
fn file_id(_: &Path, metadata: &Metadata) -> io::Result<FileId> {
    use std::os::unix::fs::MetadataExt;
    Ok(FileId { device_and_inode: (metadata.dev(), metadata.ino()) })
}

#[cfg(not(unix))]
fn file_id(path: &Path, _: &Metadata) -> io::Result<FileId> {
    Ok(FileId { path: path.canonicalize()? })
}

impl Drop for LogFile {
    fn drop(&mut self) {
        // Explicit: the child of a fork has the file open too, and its copy would keep the lock.
        if self.claim.is_some() {
            let _ = self.file.unlock();
        }
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        // The system accepts bytes for a removed file, which no reader can open.
        if self.claim.is_some() && is_removed(&self.file)? {
            let text = "the file was removed, and all rows with it";
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        self.file.flush()
    }
}

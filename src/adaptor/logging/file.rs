//! A file that is one log's alone.

use crate::sync::trusted::Mutex;
#[cfg(unix)]
use std::fs::TryLockError;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// What tells a file from others, by whatever name it is opened.
#[derive(Clone, PartialEq)]
struct Identity {
    #[cfg(unix)]
    device_and_inode: (u64, u64),
    #[cfg(not(unix))]
    path: std::path::PathBuf,
}

/// The files that logs of this process write.
static TAKEN: Mutex<Vec<Identity>> = Mutex::new(Vec::new());

/// A place in [`TAKEN`].
struct Claim {
    identity: Identity,
}

impl Claim {
    fn new(identity: Identity) -> io::Result<Self> {
        let mut taken = TAKEN.lock();
        if taken.contains(&identity) {
            return Err(busy("another log of this process writes it"));
        }
        taken.push(identity.clone());
        Ok(Self { identity })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        TAKEN.lock().retain(|taken| *taken != self.identity);
    }
}

/// Goes with the thread that writes, and thus after the last row.
pub(super) struct LogFile {
    file: File,
    /// None of a pipe or a device, which many may write.
    claim: Option<Claim>,
}

impl LogFile {
    /// Makes the file, or empties one that no other log writes.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        // Not emptied by the open: it may be the other log's.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(Self { file, claim: None });
        }
        let claim = Claim::new(identity(path, &metadata)?)?;
        lock(&file)?;
        file.set_len(0)?;
        Ok(Self { file, claim: Some(claim) })
    }
}

fn busy(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}

/// Keeps the logs of other processes out. Where the file's system has no locks, there is none.
#[cfg(unix)]
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(busy("another process has it locked for its log")),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// A lock would keep readers out.
#[cfg(not(unix))]
fn lock(_: &File) -> io::Result<()> {
    Ok(())
}

/// Whether no name leads to the file any more.
#[cfg(unix)]
fn is_removed(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.nlink() == 0)
}

/// An open file cannot be removed.
#[cfg(not(unix))]
fn is_removed(_: &File) -> io::Result<bool> {
    Ok(false)
}

#[cfg(unix)]
fn identity(_: &Path, metadata: &Metadata) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    Ok(Identity { device_and_inode: (metadata.dev(), metadata.ino()) })
}

#[cfg(not(unix))]
fn identity(path: &Path, _: &Metadata) -> io::Result<Identity> {
    Ok(Identity { path: path.canonicalize()? })
}

impl Drop for LogFile {
    fn drop(&mut self) {
        // Not by the close alone: a child of a fork has the file open too, and the lock with it.
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
        // The system takes bytes for a file without a name, and nobody ever reads them.
        if self.claim.is_some() && is_removed(&self.file)? {
            let text = "the file was removed, and all rows with it";
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        self.file.flush()
    }
}

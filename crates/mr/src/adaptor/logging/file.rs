//! A file that one log writes exclusively.

#[cfg(unix)]
use std::fs::TryLockError;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// The writing thread owns it, and drops it after the last row.
pub(super) struct LogFile {
    file: File,
    /// The file is neither a pipe nor a device, which several logs may write.
    regular: bool,
}

impl LogFile {
    /// Creates the file, or truncates one that no other log writes.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // Truncated after the lock: it may be another log's.
        options.write(true).create(true).truncate(false);
        #[cfg(windows)]
        {
            // In place of a lock, which would exclude readers here: nobody else opens it for writing.
            const FILE_SHARE_READ: u32 = 1;
            std::os::windows::fs::OpenOptionsExt::share_mode(&mut options, FILE_SHARE_READ);
        }
        let file = options.open(path)?;
        let regular = file.metadata()?.is_file();
        if regular {
            lock(&file)?;
            file.set_len(0)?;
        }
        Ok(Self { file, regular })
    }
}

/// Excludes other logs, of this process and of others, unless the file system has no locks.
#[cfg(unix)]
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another log has it locked, in this or another process",
        )),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

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

/// Always `false`, since an open file cannot be removed here.
#[cfg(not(unix))]
fn is_removed(_: &File) -> io::Result<bool> {
    Ok(false)
}

impl Drop for LogFile {
    fn drop(&mut self) {
        // Explicit: the child of a fork has the file open too, and its copy would keep the lock.
        if self.regular {
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
        if self.regular && is_removed(&self.file)? {
            let text = "the file was removed, and all rows with it";
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        self.file.flush()
    }
}

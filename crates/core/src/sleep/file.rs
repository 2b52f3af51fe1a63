//! The contents of a pool in a file without a name, which several threads write and read.

use super::copies::{Direction, PAGE, allocate, copy, page_locked};
use super::place::{Part, parts_of};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use crate::pinned::CurrentPinned;
use crate::pool::MappedPlace;
use crate::sync::trusted::{AtomicUsize, Ordering};
use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr::NonNull;

/// Parts begin there, and are read and written in such pieces, as files past the system's cache are.
const BLOCK: usize = PAGE;

/// What a thread copies at a time.
const PIECE: usize = 16 << 20;

const THREADS: usize = 4;

/// A file that goes with its last handle.
pub(super) struct KeptFile(File);

impl KeptFile {
    /// Writes what is in use. The parts are those of the file.
    pub(super) fn write(
        device: &Device,
        groups: &[&[MappedPlace]],
        folder: &Path,
    ) -> Result<(Vec<Part>, Self)> {
        let (parts, bytes) = parts_of(groups, BLOCK);
        let failed = |error| io_error("writing", bytes, folder, error);
        let file = tempfile::tempfile_in(folder).map_err(failed)?;
        // What has no room is found before anything is written.
        allocate_file(&file, bytes).map_err(failed)?;
        set_direct(&file, true);
        let kept = Self(file);
        kept.each_piece(device, parts.iter(), Direction::Out).map_err(|failed| match failed {
            PieceError::File(error) => io_error("writing", bytes, folder, error),
            PieceError::Copy(error) => error,
        })?;
        Ok((parts, kept))
    }

    pub(super) fn read<'a>(
        &self,
        device: &Device,
        parts: impl Iterator<Item = &'a Part> + Clone,
    ) -> Result<()> {
        let bytes = parts.clone().map(|part| part.bytes).sum();
        self.each_piece(device, parts, Direction::In).map_err(|failed| match failed {
            PieceError::File(error) => io_error("reading", bytes, Path::new("its folder"), error),
            PieceError::Copy(error) => error,
        })
    }

    /// Copies all parts, on several threads. Each has page-locked memory and a stream.
    fn each_piece<'a>(
        &self,
        device: &Device,
        parts: impl Iterator<Item = &'a Part>,
        direction: Direction,
    ) -> Result<(), PieceError> {
        let pieces: Vec<Part> = parts.flat_map(|part| part.pieces(PIECE)).collect();
        let largest = pieces.iter().map(|piece| piece.bytes).max().unwrap_or(0);
        let staging = largest.next_multiple_of(BLOCK);
        let pinned = page_locked(device)?;
        let next = AtomicUsize::new(0);
        let work = || self.copy_pieces(device, (&pinned, staging), &pieces, (&next, direction));
        std::thread::scope(|scope| {
            let threads = THREADS.min(pieces.len());
            let others: Vec<_> = (1..threads)
                .filter_map(|_| {
                    let thread = std::thread::Builder::new().name("aquifer sleep".into());
                    thread.spawn_scoped(scope, work).ok()
                })
                .collect();
            let mut result = work();
            for other in others {
                let of_other = other.join().unwrap_or_else(|_| {
                    Err(PieceError::File(io::Error::other("a thread that copies has panicked")))
                });
                result = result.and(of_other);
            }
            result
        })
    }

    /// Goes by the system's cache from then on, if the file system has blocks of another size.
    fn or_by_cache(&self, body: impl Fn() -> io::Result<()>) -> io::Result<()> {
        match body() {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                set_direct(&self.0, false);
                body()
            }
            done => done,
        }
    }

    fn copy_pieces(
        &self,
        device: &Device,
        (pinned, staging): (&CurrentPinned, usize),
        pieces: &[Part],
        (next, direction): (&AtomicUsize, Direction),
    ) -> Result<(), PieceError> {
        let stream = device.new_stream()?;
        let mut block = allocate(pinned, staging)?;
        let host: NonNull<u8> = NonNull::from(&mut block[..]).cast();
        // SAFETY: the block's own bytes, which any value fits.
        unsafe { host.write_bytes(0, staging) };
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (at, whole) = (piece.offset as u64, piece.bytes.next_multiple_of(BLOCK));
            // SAFETY: written above, of this length at least; nothing else uses it in this step.
            let bytes = || unsafe { std::slice::from_raw_parts_mut(host.as_ptr(), whole) };
            // SAFETY: the pool has this memory to itself, and it is mapped; the stream is waited for.
            let copied = || unsafe {
                copy(&stream, piece.range(), host, direction)
                    .and_then(|()| stream.synchronize_uncaptured())
            };
            let done = match direction {
                Direction::Out => copied().map_err(PieceError::Copy).and_then(|()| {
                    self.or_by_cache(|| write_at(&self.0, bytes(), at)).map_err(PieceError::File)
                }),
                Direction::In => self
                    .or_by_cache(|| read_at(&self.0, bytes(), at))
                    .map_err(PieceError::File)
                    .and_then(|()| copied().map_err(PieceError::Copy)),
            };
            if done.is_err() {
                // The others need not go on.
                next.store(pieces.len(), Ordering::Relaxed);
                let _ = stream.synchronize_uncaptured();
                return done;
            }
        }
        Ok(())
    }
}

enum PieceError {
    File(io::Error),
    Copy(Error),
}

impl From<Error> for PieceError {
    fn from(error: Error) -> Self {
        Self::Copy(error)
    }
}

fn io_error(what: &str, bytes: usize, folder: &Path, error: io::Error) -> Error {
    let message = format!(
        "{what} {} of a pool that sleeps, in a file without a name in {}: {error}",
        Count(bytes, "byte"),
        folder.display()
    );
    Error::new(ErrorKind::Io, message)
        .with_cause(error)
        .with_advice("give a folder with room, or keep the contents in page-locked memory")
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(not(unix))]
fn write_at(_: &File, _: &[u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
fn allocate_file(file: &File, bytes: usize) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    if bytes == 0 {
        return Ok(());
    }
    let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: an open file.
    let allocate = || unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) };
    let error = loop {
        if allocate() == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // A signal came meanwhile.
        if error.kind() != io::ErrorKind::Interrupted {
            break error;
        }
    };
    match error {
        // A file system that cannot: a write finds out.
        error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => file.set_len(bytes as u64),
        error => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate_file(file: &File, bytes: usize) -> io::Result<()> {
    file.set_len(bytes as u64)
}

/// Has the file be read and written past the system's cache or by it, where the file system can.
#[cfg(target_os = "linux")]
fn set_direct(file: &File, direct: bool) {
    use std::os::fd::AsRawFd;
    // SAFETY: an open file; flags alone are read and changed.
    unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        if flags >= 0 {
            let flags = if direct { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT };
            libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn set_direct(_: &File, _: bool) {}

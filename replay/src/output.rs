//! Files that are written whole, or not at all.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The files of this process that are not whole yet: a signal that ends it removes them.
static PARTIAL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file to be: under another name until it is whole.
pub(crate) struct Output {
    path: PathBuf,
    /// `None` for what cannot be renamed to: a pipe, a terminal.
    partial: Option<PathBuf>,
    file: File,
}

impl Output {
    /// A file at `path`, which is not the log itself.
    pub(crate) fn new(path: &Path, log: &Path) -> Result<Self> {
        let made = || format!("{}: cannot be written", path.display());
        let old = fs::metadata(path).ok();
        if old.as_ref().is_some_and(fs::Metadata::is_dir) {
            bail!("{}: cannot be written: it is a folder", path.display());
        }
        if old.is_some() && fs::canonicalize(path).ok() == fs::canonicalize(log).ok() {
            bail!("{}: is the log, which is not to be overwritten", path.display());
        }
        // A link stays a link, and what is no file has no other name.
        let plain = fs::symlink_metadata(path).map_or(true, |old| old.is_file());
        if !plain {
            let file = File::options().write(true).truncate(true).open(path);
            return Ok(Self {
                path: path.to_owned(),
                partial: None,
                file: file.with_context(made)?,
            });
        }
        let mut name = OsString::from(path);
        name.push(format!(".{}.partial", std::process::id()));
        let partial = PathBuf::from(name);
        on_signals::remove_partial().with_context(made)?;
        // Held meanwhile, so that a signal finds each file that was made.
        let mut all = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner);
        let file = File::create_new(&partial).with_context(made)?;
        all.push(partial.clone());
        Ok(Self { path: path.to_owned(), partial: Some(partial), file })
    }

    pub(crate) fn write(
        mut self,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        let mut out = BufWriter::new(&self.file);
        let mut written = content(&mut out).and_then(|()| out.flush());
        drop(out);
        if let (Ok(()), Some(partial)) = (&written, &self.partial) {
            written = fs::rename(partial, &self.path);
        }
        if written.is_ok()
            && let Some(partial) = self.partial.take()
        {
            forget(&partial);
        }
        written.with_context(|| format!("{}: cannot be written", self.path.display()))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // It was made here, and nobody waits for it.
            let _ = fs::remove_file(partial);
            forget(partial);
        }
    }
}

/// A file that is whole, or was removed.
fn forget(partial: &Path) {
    PARTIAL.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| other != partial);
}

/// Whether two outputs are one file, of which the second would take the first's place.
pub(crate) fn are_one(one: &Path, two: &Path) -> bool {
    matches!((place(one), place(two)), (Some(one), Some(two)) if one == two)
}

/// Where a file is or will be, without links; `None` for what is no file, as a pipe.
fn place(path: &Path) -> Option<PathBuf> {
    if let Ok(old) = fs::metadata(path) {
        return fs::canonicalize(path).ok().filter(|_| old.is_file());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
    Some(folder.join(path.file_name()?))
}

#[cfg(unix)]
mod on_signals {
    use super::PARTIAL;
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;
    use std::sync::{Once, PoisonError};
    use std::{fs, io, thread};

    /// From now on, a signal that ends the process removes the files that are not whole first.
    pub(super) fn remove_partial() -> io::Result<()> {
        static ONCE: Once = Once::new();
        let mut done = Ok(());
        ONCE.call_once(|| done = handle());
        done
    }

    fn handle() -> io::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let wait = move || {
            for signal in signals.forever() {
                // Held to the end, so that no other file is made.
                let all = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner);
                for partial in all.iter() {
                    let _ = fs::remove_file(partial);
                }
                let _ = emulate_default_handler(signal);
            }
        };
        thread::Builder::new().name(String::from("signals")).spawn(wait)?;
        Ok(())
    }
}

#[cfg(not(unix))]
mod on_signals {
    pub(super) fn remove_partial() -> std::io::Result<()> {
        Ok(())
    }
}

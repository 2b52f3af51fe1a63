//! Files that are written whole, or not at all.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

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
        let file = File::create_new(&partial).with_context(made)?;
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
        if written.is_ok() {
            self.partial = None;
        }
        written.with_context(|| format!("{}: cannot be written", self.path.display()))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // It was made here, and nobody waits for it.
            let _ = fs::remove_file(partial);
        }
    }
}

//! The log file.

use crate::error::{Error, ErrorKind, Result};
use aquifer_driver::impls::{shown_path, variable};
use aquifer_sync::Arc;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// The variables that name the file. The first that is set counts.
const VARIABLES: [&str; 2] = ["AQUIFER_DEBUG_LOG_FILE", "RMM_DEBUG_LOG_FILE"];

/// The prefix of the targets of the crate's events. It has the colons, since `aquifer`
/// alone may begin other crates' targets.
const MODULES: &str = "aquifer::";

/// A file that the crate's [events](crate::debug_log) are written to, one a line, with the
/// feature `debug-log`.
///
/// A line is the time (UTC, RFC 3339, microseconds), the level, the thread, the target, the message
/// and the fields as `name=value`:
///
/// ```text
/// 2026-01-31T12:00:00.123456Z DEBUG ThreadId(01) aquifer::pool: pool grew pool=17 device=0 stream=16 …
/// ```
///
/// A line break inside of an event is written as `\n` or `\r`. Lines are added at the end of the file,
/// whose content stays. Each line is one write without a lock or a buffer. So nothing is lost in whatever
/// way the process ends, lines of several processes do not mix, and the child of a fork may write.
/// A line that cannot be written, for example on a full disk, is an error on standard error.
///
/// Events of other crates, and events more verbose than [`level`](Self::level), are left out.
///
/// RMM's counterpart is the logger behind `RMM_DEBUG_LOG_FILE`, which is read here too, where
/// `AQUIFER_DEBUG_LOG_FILE` is not set. RMM's logger empties the file and buffers its lines. It cannot
/// be given another sink or joined with the program's own log.
///
/// ```
/// use aquifer::debug_log::DebugLog;
/// use tracing_subscriber::layer::SubscriberExt;
///
/// # let path = std::env::temp_dir().join(format!("aquifer-doc-{}.log", std::process::id()));
/// // As a layer of the program's own subscriber.
/// let subscriber = tracing_subscriber::registry().with(DebugLog::open(&path)?.layer());
/// tracing::subscriber::with_default(subscriber, || { /* … */ });
/// # std::fs::remove_file(&path).unwrap();
///
/// // For the whole program, if the environment names a file.
/// DebugLog::init_from_env()?;
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DebugLog {
    lines: Arc<Lines>,
    path: PathBuf,
    level: Level,
}

impl DebugLog {
    /// Adds lines to the file at `path`, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] with the path and the system's error, if it cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::at(path.as_ref(), "", ErrorKind::Io)
    }

    /// The file that `AQUIFER_DEBUG_LOG_FILE` names, or else `RMM_DEBUG_LOG_FILE`. `None` if neither
    /// is set. An empty one counts as not set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Environment`] with variable, path and the system's error, if the file cannot be
    /// opened.
    pub fn from_env() -> Result<Option<Self>> {
        let named = |name| variable(name).map(|value| (name, value));
        let named = VARIABLES.into_iter().find_map(named);
        let open = |(name, path)| Self::at(Path::new(&path), name, ErrorKind::Environment);
        named.map(open).transpose()
    }

    /// Calls [`from_env`](Self::from_env), and then [`init`](Self::init) on the log. Returns
    /// `false` if no file is named.
    ///
    /// # Errors
    ///
    /// The errors of both.
    pub fn init_from_env() -> Result<bool> {
        match Self::from_env()? {
            Some(log) => log.init().map(|()| true),
            None => Ok(false),
        }
    }

    fn at(path: &Path, variable: &str, kind: ErrorKind) -> Result<Self> {
        let file = File::options().create(true).append(true).open(path).map_err(|error| {
            let named = if variable.is_empty() { "" } else { ", named by " };
            let path = shown_path(path);
            Error::new(kind, format!("opening the debug log {path}{named}{variable}: {error}"))
                .with_advice("name a file that can be written")
        })?;
        Ok(Self { lines: Arc::new(Lines(file)), path: path.to_owned(), level: Level::DEBUG })
    }

    /// Writes events of this level and those that are less detailed. The default is [`Level::DEBUG`].
    #[must_use]
    pub fn level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The log as a layer of a subscriber of `tracing-subscriber`.
    pub fn layer<S>(self) -> impl Layer<S> + Send + Sync + 'static
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let ours = Targets::new().with_target(MODULES, LevelFilter::from_level(self.level));
        tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_thread_ids(true)
            .with_writer(self.lines)
            .log_internal_errors(true)
            .with_filter(ours)
    }

    /// Installs the log as the program's subscriber.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if the program has a subscriber already. Give the
    /// [`layer`](Self::layer) to that one.
    pub fn init(self) -> Result<()> {
        let subscriber = tracing_subscriber::registry().with(self.layer());
        tracing::subscriber::set_global_default(subscriber).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, format!("installing the debug log: {error}"))
                .with_advice("give `DebugLog::layer` to the program's own subscriber")
        })
    }
}

/// The file, as a writer of whole events.
#[derive(Debug)]
struct Lines(File);

impl Write for &Lines {
    /// The layer brings an event as a whole, with the line break at its end.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        (&self.0).write_all(&one_line(event)).map(|()| event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The event with its line breaks as `\n` and `\r`, but for the last one.
fn one_line(event: &[u8]) -> Cow<'_, [u8]> {
    let inner = event.strip_suffix(b"\n").unwrap_or(event);
    if !inner.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return Cow::Borrowed(event);
    }
    let inner_text = String::from_utf8_lossy(inner).replace('\n', "\\n").replace('\r', "\\r");
    Cow::Owned([inner_text.as_bytes(), &event[inner.len()..]].concat())
}

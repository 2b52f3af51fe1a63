//! A resource that writes down what passes through it.

mod file;
mod format;
mod location;
mod queue;
mod record;
pub(super) mod ring;
mod text;
mod writer;

pub use format::LogFormat;

use super::handles::{handles, identity_by};
use crate::backend::{RawStream, is_forked_child, not_forked};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::resource::{DeviceBlock, DeviceResource, HostAccessible};
use crate::stream::Stream;
use crate::sync::Arc;
use file::LogFile;
use format::Rows;
use location::Places;
use queue::Log;
use record::{Action, Clock, Record};
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::thread::JoinHandle;
use writer::Sink;

/// Records that the queue holds unless said: 4 MiB.
const CAPACITY: usize = 1 << 16;

/// The most that it may hold: 1 GiB.
const MOST: usize = 1 << 24;

/// Where a log goes that nobody named, in this order.
const VARIABLES: [&str; 2] = ["AQUIFER_LOG_FILE", "RMM_LOG_FILE"];

/// A resource that writes a row of CSV for each allocation, each failure and each free that passes
/// through it: RMM's `logging_resource_adaptor`.
///
/// The row of a free is put in the queue before the upstream frees, and that of an allocation after
/// it has allocated, so that in the file no address is handed out twice without a free between.
/// Sizes are those of the blocks, which may exceed what was asked; for a failure, what was asked.
/// Requests for no bytes have no memory and no row.
///
/// One thread for each log writes, with at most [`capacity`](LoggingOptions::capacity) records
/// waiting; whoever finds the queue full waits for it. The file is at most a few dozen milliseconds
/// behind; in [`LogFormat::Events`] also by as long as a free takes to return. Nothing is lost: the last clone's drop writes the rest, and on Unix so does the end of the
/// process (`exit`, or a return from `main`) for an adaptor that lives in a static, for which it waits
/// 10 s at most. A process that is killed or aborts loses the rows of the last moments. The child of a
/// fork writes nothing into its parent's log.
///
/// If the log cannot be written, or on Unix if its file was removed, there is one [`tracing`] error
/// and an error of [`flush`](Self::flush); allocations go on. Clones are one adaptor. The memory itself
/// is the upstream's.
///
/// RMM's prints streams in a form that its own replay benchmark cannot read, formats and writes
/// under a lock within the call, and has neither durations nor the state of the device.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, LoggingAdaptor, PoolResource};
/// use std::sync::Arc;
///
/// # let folder = std::env::temp_dir().join(format!("aquifer-log-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("memory.csv");
/// let device = Device::detect()?;
/// let stream = device.new_stream()?;
/// let logged = LoggingAdaptor::new(PoolResource::new(CudaResource::new(&device))?, &path)?;
/// drop(DeviceVec::<f32>::zeroed_in(&stream, 1000, Arc::new(logged.clone()))?);
/// logged.flush()?;
/// let text = std::fs::read_to_string(&path).unwrap();
/// let rows: Vec<_> = text.lines().collect();
/// assert_eq!(rows[0], "Thread,Time,Action,Pointer,Size,Stream");
/// assert!(rows[1].contains(",allocate,0x") && rows[2].contains(",free,0x"));
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct LoggingAdaptor<U> {
    state: Arc<State<U>>,
}

struct State<U> {
    upstream: U,
    log: Arc<Log>,
    places: Option<Arc<Places>>,
    clock: Clock,
    /// Rows say how long calls take.
    timed: bool,
    legacy: RawStream,
    writer: Option<JoinHandle<()>>,
}

impl<U> Drop for State<U> {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        if is_forked_child() {
            // The thread is not here, and its handle means nothing to the system.
            std::mem::forget(writer);
            return;
        }
        self.log.close();
        if !self.log.is_writer() {
            let _ = writer.join();
        }
    }
}

impl<U: DeviceResource> LoggingAdaptor<U> {
    /// A log of what passes through to `upstream`, in [`LogFormat::Rmm`], in a new file at `path`.
    ///
    /// # Errors
    ///
    /// As [`LoggingOptions::build`].
    pub fn new(upstream: U, path: impl Into<PathBuf>) -> Result<Self> {
        Self::builder(upstream).path(path).build()
    }

    /// A log with options.
    pub fn builder(upstream: U) -> LoggingOptions<U> {
        LoggingOptions {
            upstream,
            target: Target::Environment,
            format: LogFormat::default(),
            capacity: CAPACITY,
            locations: false,
        }
    }

    /// The resource that allocates.
    pub fn upstream(&self) -> &U {
        &self.state.upstream
    }

    /// Blocks until the rows of all calls that returned before are written and flushed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the log could not be written, now or ever, with the first reason and how
    /// many rows are missing; [`ErrorKind::Forked`] in the child of a fork.
    pub fn flush(&self) -> Result<()> {
        self.state.log.flush()
    }
}

handles!(LoggingAdaptor, state);

impl<U: fmt::Debug> fmt::Debug for LoggingAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoggingAdaptor")
            .field("upstream", &self.state.upstream)
            .field("log", &self.state.log)
            .finish()
    }
}

impl<U> State<U> {
    #[inline]
    fn place(&self) -> u32 {
        self.places.as_ref().map_or(0, |places| places.here())
    }

    /// 0 for the legacy default stream, which has a number of its own on each device.
    #[inline]
    fn number(&self, stream: &Stream) -> u64 {
        if stream.raw() == self.legacy { 0 } else { stream.id() }
    }
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for LoggingAdaptor<U> {
    fn device(&self) -> &Device {
        self.state.upstream.device()
    }

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let state = &*self.state;
        let start = if state.timed { state.clock.now() } else { 0 };
        let result = state.upstream.allocate(stream, layout);
        let (action, address, bytes) = match &result {
            Ok(block) if block.is_empty() => return result,
            Ok(block) => (Action::Allocate, block.address(), block.bytes()),
            Err(_) => (Action::Failure, 0, layout.bytes()),
        };
        if is_forked_child() {
            return result;
        }
        let end = state.clock.now();
        state.log.push(Record {
            action,
            thread: record::thread(),
            location: state.place(),
            start,
            end,
            address,
            bytes: bytes as u64,
            stream: state.number(stream),
        });
        result
    }

    identity_by!(state);

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let state = &*self.state;
        if block.is_empty() || is_forked_child() {
            // SAFETY: the block is the upstream's; our caller vouches for the rest.
            return unsafe { state.upstream.deallocate(stream, block) };
        }
        let location = state.place();
        let now = state.clock.now();
        let record = Record {
            action: Action::Free,
            thread: record::thread(),
            location,
            start: now,
            end: now,
            address: block.address(),
            bytes: block.bytes() as u64,
            stream: state.number(stream),
        };
        // Before the free: from then on the address may be another thread's.
        state.log.push(record);
        // SAFETY: the block is the upstream's; our caller vouches for the rest.
        unsafe { state.upstream.deallocate(stream, block) };
        if state.timed {
            state.log.push(Record { action: Action::Freed, end: state.clock.now(), ..record });
        }
    }
}

// SAFETY: the upstream's blocks, unchanged.
unsafe impl<U: HostAccessible> HostAccessible for LoggingAdaptor<U> {
    fn host_pointer(&self, block: &DeviceBlock) -> NonNull<u8> {
        self.state.upstream.host_pointer(block)
    }
}

enum Target {
    Environment,
    Path(PathBuf),
    Writer(Box<dyn Write + Send>),
}

/// How a [`LoggingAdaptor`] writes: where, which columns, and how much waits at most.
///
/// ```
/// use aquifer::{CudaResource, Device, LogFormat, LoggingAdaptor};
///
/// let device = Device::detect()?;
/// let logged = LoggingAdaptor::builder(CudaResource::new(&device))
///     .writer(Box::new(std::io::stderr()))
///     .format(LogFormat::Events)
///     .capacity(1 << 12)
///     .build()?;
/// logged.flush()?;
/// # Ok::<(), aquifer::Error>(())
/// ```
#[must_use = "nothing is logged before `build`"]
pub struct LoggingOptions<U> {
    upstream: U,
    target: Target,
    format: LogFormat,
    capacity: usize,
    locations: bool,
}

impl<U: fmt::Debug> fmt::Debug for LoggingOptions<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoggingOptions")
            .field("upstream", &self.upstream)
            .field("format", &self.format)
            .field("capacity", &self.capacity)
            .field("locations", &self.locations)
            .finish_non_exhaustive()
    }
}

impl<U: DeviceResource> LoggingOptions<U> {
    /// Writes a new file at `path`; one that is there is emptied. Unless a path or a
    /// [`writer`](Self::writer) is given, the file is named by the environment: `AQUIFER_LOG_FILE`,
    /// else `RMM_LOG_FILE`. A file is for one log at a time, on Unix of all processes: it is locked.
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.target = Target::Path(path.into());
        self
    }

    /// Writes to `writer`, from the log's own thread, in chunks of many rows; it is flushed when
    /// there is nothing more to write. It must not use this adaptor.
    pub fn writer(mut self, writer: Box<dyn Write + Send>) -> Self {
        self.target = Target::Writer(writer);
        self
    }

    /// Which columns: [`LogFormat::Rmm`] unless said.
    pub fn format(mut self, format: LogFormat) -> Self {
        self.format = format;
        self
    }

    /// How many records of 64 bytes wait to be written at most: 65 536 unless said. A call that finds
    /// no room waits until an eighth of it is free. Memory is taken for the next power of two.
    pub fn capacity(mut self, records: usize) -> Self {
        self.capacity = records;
        self
    }

    /// Whether rows name the line that called into this crate; not unless said. Each call walks the
    /// stack then and looks its frames up, which takes up to milliseconds. Lines are known where there
    /// is debug information; elsewhere the function is named.
    pub fn locations(mut self, locations: bool) -> Self {
        self.locations = locations;
        self
    }

    /// Opens the log and starts its thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if nothing says where the log goes, for a capacity of 0 or of
    /// more than 16 777 216 records, and for locations in [`LogFormat::Rmm`], which has no column for
    /// them; [`ErrorKind::Io`] if the file cannot be made or is another log's,
    /// [`ErrorKind::Environment`] if the environment named it; [`ErrorKind::OutOfMemory`] if there is no thread to be had;
    /// [`ErrorKind::Forked`] in the child of a fork.
    pub fn build(self) -> Result<LoggingAdaptor<U>> {
        not_forked("cuInit")?;
        if self.capacity == 0 || self.capacity > MOST {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("a log was asked to hold {} records, not 1 to {MOST}", self.capacity),
            ));
        }
        if self.locations && self.format == LogFormat::Rmm {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "locations were asked for in RMM's format, which has no column for them",
            )
            .advise("use LogFormat::Events"));
        }
        let out = self.target.open()?;
        let clock = Clock::new();
        let places = Arc::new(Places::default());
        let rows = match self.format {
            LogFormat::Rmm => Rows::rmm(&clock),
            LogFormat::Events => Rows::events(self.upstream.device().clone(), places.clone()),
        };
        let log = Log::new(self.capacity);
        let sink = Sink::new(out, rows);
        let of_thread = log.clone();
        let writer = std::thread::Builder::new()
            .name("aquifer-log".into())
            .spawn(move || writer::run(&of_thread, sink))
            .map_err(|error| {
                Error::new(ErrorKind::OutOfMemory, format!("no thread to write a log: {error}"))
            })?;
        log.begin(writer.thread().clone());
        let state = State {
            legacy: self.upstream.device().driver().legacy_stream(),
            upstream: self.upstream,
            log,
            places: self.locations.then_some(places),
            clock,
            timed: self.format == LogFormat::Events,
            writer: Some(writer),
        };
        Ok(LoggingAdaptor { state: Arc::new(state) })
    }
}

impl Target {
    fn open(self) -> Result<Box<dyn Write + Send>> {
        let (path, kind, named) = match self {
            Self::Writer(writer) => return Ok(writer),
            Self::Path(path) => (path, ErrorKind::Io, ""),
            Self::Environment => {
                let set =
                    |name| Some((name, std::env::var_os(name).filter(|set| !set.is_empty())?));
                let Some((name, path)) = VARIABLES.into_iter().find_map(set) else {
                    return Err(Error::new(
                        ErrorKind::InvalidArgument,
                        "a log was given no path and no writer, and neither AQUIFER_LOG_FILE nor \
                         RMM_LOG_FILE is set",
                    )
                    .advise("give LoggingAdaptor::builder a path, or set AQUIFER_LOG_FILE"));
                };
                (PathBuf::from(path), ErrorKind::Environment, name)
            }
        };
        let file = LogFile::create(&path).map_err(|error| {
            let named = if named.is_empty() { String::new() } else { format!(" of {named}") };
            Error::new(kind, format!("making the log file {}{named}: {error}", path.display()))
        })?;
        Ok(Box::new(file))
    }
}

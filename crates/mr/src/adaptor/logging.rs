//! A log of the allocations and frees of a resource.

mod file;
mod format;
mod location;
mod queue;
mod record;
pub(super) mod ring;
mod text;
mod writer;

pub use format::LogFormat;
pub use queue::flush_logs;

use crate::driver::{is_forked_child, not_forked};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::{Count, shown_path, variable};
use crate::layout::DeviceLayout;
use crate::resource::impls::{adaptor, debug_struct, forward, setters};
use crate::resource::{DeviceBlock, DeviceResource};
use crate::stream::Stream;
use crate::sync::Arc;
use file::LogFile;
use format::RowFormat;
use location::Locations;
use queue::LogQueue;
use record::{Action, LogClock, Record};
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::thread::JoinHandle;
use writer::LogOutput;

/// The default capacity of the queue, in records. They take 4 MiB.
const DEFAULT_CAPACITY: usize = 1 << 16;

/// The largest capacity, in records. They take 1 GiB.
const MAX_CAPACITY: usize = 1 << 24;

/// Variables that name the file of a log without a path or writer, in this order.
const VARIABLES: [&str; 2] = ["AQUIFER_LOG_FILE", "RMM_LOG_FILE"];

/// A resource that writes a row of CSV for each allocation, each failure and each free that passes
/// through it. RMM calls it `logging_resource_adaptor`.
///
/// The row of a free enters the queue before the upstream's free, and the row of an allocation after
/// the upstream's allocation. So the file has a free between any two allocations of one address. Sizes
/// are those of the blocks, which may exceed the request. The row of a failure has the size of the
/// request. A request of no bytes has no memory and no row.
///
/// Each log has one writing thread and a queue of at most [`capacity`](LoggingOptions::capacity)
/// records. A call that finds the queue full waits. The file lags by a few dozen milliseconds at most.
/// In [`LogFormat::Events`] it also lags by the duration of frees under way.
///
/// The drop of the last clone writes the rest, so no row is lost. For an adaptor in a static, on Unix, the
/// end of the process (`exit`, or a return from `main`) does the same, and waits 10 s at most. A process
/// that is killed or aborts loses the last rows. One that ends by `_exit` calls
/// [`flush_logs`](crate::mr::flush_logs) before. The child of a fork writes nothing into its parent's log.
///
/// If the log cannot be written, or on Unix if its file was removed, there is one
/// [`tracing`](https://docs.rs/tracing) error and an error of [`flush`](Self::flush).
/// Allocations go on. Clones are one adaptor. The memory is the upstream's.
///
/// RMM's adaptor prints streams in a form that its own replay benchmark cannot read. It formats and
/// writes under a lock within the call, and logs neither durations nor the device's free memory.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceVec, PoolResource, mr::LoggingAdaptor};
///
/// # let folder = std::env::temp_dir().join(format!("aquifer-log-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// // `path` is where the file is to be.
/// # let path = folder.join("memory.csv");
/// let device = Device::detect_or_simulate()?;
/// let stream = device.new_stream()?;
/// let logged = LoggingAdaptor::new(PoolResource::new(CudaResource::new(&device))?, &path)?;
/// drop(DeviceVec::<f32>::zeroed_in(&stream, 1000, logged.clone())?);
/// logged.flush()?;
/// let text = std::fs::read_to_string(&path).unwrap();
/// let rows: Vec<_> = text.lines().collect();
/// assert_eq!(rows[0], "Thread,Time,Action,Pointer,Size,Stream");
/// assert!(rows[1].contains(",allocate,0x") && rows[2].contains(",free,0x"));
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), aquifer::Error>(())
/// ```
pub struct LoggingAdaptor<U> {
    state: Arc<LoggingState<U>>,
}

adaptor!(LoggingAdaptor, state.upstream, log);

struct LoggingState<U> {
    upstream: U,
    log: Arc<LogQueue>,
    locations: Option<Arc<Locations>>,
    clock: LogClock,
    /// Rows have durations.
    timed: bool,
    legacy_stream: Stream,
    writer: Option<JoinHandle<()>>,
}

impl<U> Drop for LoggingState<U> {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        if is_forked_child() {
            // Leaked: the thread does not run in the child.
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
    /// A log of the calls of `upstream`, in [`LogFormat::Rmm`], in a new file at `path`.
    ///
    /// # Errors
    ///
    /// The errors of [`LoggingOptions::build`].
    pub fn new(upstream: U, path: impl Into<PathBuf>) -> Result<Self> {
        Self::builder(upstream).path(path).build()
    }

    /// The options, with their defaults.
    pub fn builder(upstream: U) -> LoggingOptions<U> {
        LoggingOptions {
            upstream,
            target: LogTarget::Environment,
            format: LogFormat::default(),
            capacity: DEFAULT_CAPACITY,
            locations: false,
        }
    }

    /// Waits until the rows of all calls that returned before are written and flushed.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Io`] if the log could not be written, now or before. The error has the first
    ///   reason and the number of missing rows.
    /// - [`ErrorKind::Forked`] in the child of a fork.
    pub fn flush(&self) -> Result<()> {
        self.state.log.flush()
    }
}

impl<U> LoggingState<U> {
    /// Pushes the row of an allocation that began at `start`, or the row of a failure if there is no block.
    #[inline(always)]
    fn push_allocation(
        &self,
        stream: &Stream,
        asked: usize,
        start: u64,
        block: Option<&DeviceBlock>,
    ) {
        let (action, address, bytes) = match block {
            Some(block) if block.is_empty() => return,
            Some(block) => (Action::Allocate, block.address(), block.bytes()),
            None => (Action::Failure, 0, asked),
        };
        if is_forked_child() {
            return;
        }
        let end = self.clock.now();
        self.log.push(Record { start, end, ..self.record(action, stream, address, bytes) });
    }

    /// The record of a call, without its times.
    #[inline]
    fn record(&self, action: Action, stream: &Stream, address: u64, bytes: usize) -> Record {
        Record {
            action,
            thread: record::thread_id(),
            location: self.locations.as_ref().map_or(0, |locations| locations.capture()),
            start: 0,
            end: 0,
            address,
            bytes: bytes as u64,
            // The legacy default stream is 0 in a log, and has an id of its own on each device.
            stream: if *stream == self.legacy_stream { 0 } else { stream.id() },
        }
    }
}

// SAFETY: every block is the upstream's, and goes back to it unchanged.
unsafe impl<U: DeviceResource> DeviceResource for LoggingAdaptor<U> {
    forward!(device, peer_access, identity);

    fn allocate(&self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        let state = &*self.state;
        let start = if state.timed { state.clock.now() } else { 0 };
        let result = state.upstream.allocate(stream, layout);
        state.push_allocation(stream, layout.bytes(), start, result.as_ref().ok());
        result
    }

    /// `None` from the upstream is no failure, since the caller falls back to another allocation.
    fn allocate_growable(
        &self,
        stream: &Stream,
        layout: DeviceLayout,
    ) -> Result<Option<DeviceBlock>> {
        let state = &*self.state;
        let start = if state.timed { state.clock.now() } else { 0 };
        let block = state.upstream.allocate_growable(stream, layout)?;
        if block.is_some() {
            state.push_allocation(stream, layout.bytes(), start, block.as_ref());
        }
        Ok(block)
    }

    /// Logs a free and an allocation at the same address, even if a block that was to shrink kept its size.
    unsafe fn resize_in_place(
        &self,
        stream: &Stream,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> Result<bool> {
        let (state, before) = (&*self.state, block.bytes());
        let start = state.clock.now();
        let push_free = |address: u64| {
            let freed = state.record(Action::Free, stream, address, before);
            let freed = Record { start, end: start, ..freed };
            state.log.push(freed);
            if state.timed {
                state.log.push(Record { action: Action::FreeReturned, ..freed });
            }
        };
        let is_logged = !block.is_empty() && !is_forked_child();
        // As of a free: from the call on what is given up may be another thread's.
        let gives_up = is_logged && bytes < before;
        if gives_up {
            push_free(block.address());
        }
        // SAFETY: the block is the upstream's; the caller vouches for the rest.
        let resized = unsafe { state.upstream.resize_in_place(stream, block, bytes) };
        if is_logged && !gives_up && block.bytes() != before {
            push_free(block.address());
        }
        // Also where nothing was given up: the block is there still.
        if gives_up || is_logged && block.bytes() != before {
            state.push_allocation(stream, bytes, start, Some(block));
        }
        resized
    }

    unsafe fn deallocate(&self, stream: &Stream, block: DeviceBlock) {
        let state = &*self.state;
        if block.is_empty() || is_forked_child() {
            // SAFETY: the block is the upstream's; the caller vouches for the rest.
            return unsafe { state.upstream.deallocate(stream, block) };
        }
        let mut record = state.record(Action::Free, stream, block.address(), block.bytes());
        record.start = state.clock.now();
        record.end = record.start;
        // Before the free: from then on the address may be another thread's.
        state.log.push(record);
        // SAFETY: the block is the upstream's; the caller vouches for the rest.
        unsafe { state.upstream.deallocate(stream, block) };
        if state.timed {
            let (action, end) = (Action::FreeReturned, state.clock.now());
            state.log.push(Record { action, end, ..record });
        }
    }
}

enum LogTarget {
    Environment,
    Path(PathBuf),
    Writer(Box<dyn Write + Send>),
}

/// The options of a [`LoggingAdaptor`], which are its target, columns and capacity.
///
/// ```
/// use aquifer::{CudaResource, Device, mr::{LogFormat, LoggingAdaptor}};
///
/// let device = Device::detect_or_simulate()?;
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
    target: LogTarget,
    format: LogFormat,
    capacity: usize,
    locations: bool,
}

debug_struct!([U: fmt::Debug] LoggingOptions<U> { upstream, format, capacity, locations, .. });

impl<U: DeviceResource> LoggingOptions<U> {
    /// Writes a new file at `path`, and truncates an existing one. Of this and
    /// [`writer`](Self::writer) the last counts. Without a path or a writer, the environment names the
    /// file, as `AQUIFER_LOG_FILE` or else `RMM_LOG_FILE`. One log at a time writes a file, among all
    /// processes. The file is locked where the file system has locks.
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.target = LogTarget::Path(path.into());
        self
    }

    /// Writes to `writer`, from the log's own thread, in chunks of many rows, and flushes it when the
    /// queue is empty. It must not use this adaptor. Of this and [`path`](Self::path) the last counts.
    pub fn writer(mut self, writer: Box<dyn Write + Send>) -> Self {
        self.target = LogTarget::Writer(writer);
        self
    }

    setters! {
        /// The columns, by default those of [`LogFormat::Rmm`].
        format: LogFormat;

        /// The most records, of 64 bytes each, that wait to be written. The default is 65 536. A call that
        /// finds no room waits until an eighth is free. The queue has memory for the next power of
        /// two.
        capacity: usize;

        /// Whether rows name the line that called into this crate, `false` by default. Each call then
        /// walks the stack and looks its frames up, which takes up to milliseconds. Without debug
        /// information rows name the function.
        locations: bool;
    }

    /// Opens the log and starts its thread.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`] without a path, writer or variable.
    /// - [`ErrorKind::InvalidArgument`] for a capacity of 0 or of more than 16 777 216 records.
    /// - [`ErrorKind::InvalidArgument`] for locations in [`LogFormat::Rmm`], which has no column for them.
    /// - [`ErrorKind::Io`] if the file cannot be created or is another log's.
    /// - [`ErrorKind::Environment`] in place of `Io` if a variable named the file.
    /// - [`ErrorKind::OutOfMemory`] if no thread can be started.
    /// - [`ErrorKind::Forked`] in the child of a fork.
    pub fn build(self) -> Result<LoggingAdaptor<U>> {
        not_forked("a log")?;
        ensure!(
            (1..=MAX_CAPACITY).contains(&self.capacity),
            InvalidArgument,
            "give a capacity of 1 to 16777216 records",
            "a log was asked to hold {}",
            Count(self.capacity, "record")
        );
        ensure!(
            !self.locations || self.format != LogFormat::Rmm,
            InvalidArgument,
            "use LogFormat::Events",
            "locations were asked for in RMM's format, which has no column for them"
        );
        let out = self.target.open()?;
        let clock = LogClock::new();
        let locations = Arc::new(Locations::default());
        let format = match self.format {
            LogFormat::Rmm => RowFormat::rmm(&clock),
            LogFormat::Events => {
                RowFormat::events(self.upstream.device().clone(), locations.clone())
            }
        };
        let log = LogQueue::new(self.capacity);
        let output = LogOutput::new(out, format);
        let queue = log.clone();
        let writer = std::thread::Builder::new()
            .name("aquifer-log".into())
            .spawn(move || writer::run(&queue, output))
            .map_err(|error| {
                Error::new(
                    ErrorKind::OutOfMemory,
                    format!("starting the thread that writes a log: {error}"),
                )
                .with_advice("end some threads, or raise their limit, ulimit -u")
            })?;
        log.start(writer.thread().clone());
        let state = LoggingState {
            legacy_stream: self.upstream.device().default_stream(),
            upstream: self.upstream,
            log,
            locations: self.locations.then_some(locations),
            clock,
            timed: self.format == LogFormat::Events,
            writer: Some(writer),
        };
        Ok(LoggingAdaptor { state: Arc::new(state) })
    }
}

impl LogTarget {
    fn open(self) -> Result<Box<dyn Write + Send>> {
        let (path, kind, named) = match self {
            Self::Writer(writer) => return Ok(writer),
            Self::Path(path) => (path, ErrorKind::Io, ""),
            Self::Environment => {
                let set = |name| Some((name, variable(name)?));
                let Some((name, path)) = VARIABLES.into_iter().find_map(set) else {
                    return Err(Error::new(
                        ErrorKind::InvalidArgument,
                        "a log was given no path and no writer, and neither AQUIFER_LOG_FILE nor \
                         RMM_LOG_FILE names a file",
                    )
                    .with_advice("give LoggingAdaptor::builder a path, or set AQUIFER_LOG_FILE"));
                };
                (PathBuf::from(path), ErrorKind::Environment, name)
            }
        };
        let file = LogFile::create(&path).map_err(|error| {
            let named =
                if named.is_empty() { String::new() } else { format!(", named by {named}") };
            let busy = error.kind() == std::io::ErrorKind::ResourceBusy;
            let advice = if busy {
                "give each log a file of its own"
            } else {
                "name a file that can be written"
            };
            Error::new(kind, format!("making the log file {}{named}: {error}", shown_path(&path)))
                .with_advice(advice)
        })?;
        Ok(Box::new(file))
    }
}

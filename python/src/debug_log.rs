//! The crate's events, of `tracing`, in a file or on standard error, from a level on that changes as the program runs.

use crate::error::Raised;
use crate::interpreter::argument;
use aquifer_rs::debug_log::DebugLog;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::{Registry, fmt, reload};

/// RMM's numbers of levels: from `trace`, 0, to `critical`, 5, and `off`.
const INFO: u8 = 2;
const OFF: u8 = 6;

static LEVEL: AtomicU8 = AtomicU8::new(INFO);

/// What the subscriber lets through, once there is one.
static FILTER: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

fn filter(level: u8) -> LevelFilter {
    match level {
        0 => LevelFilter::TRACE,
        1 => LevelFilter::DEBUG,
        INFO => LevelFilter::INFO,
        3 => LevelFilter::WARN,
        4 | 5 => LevelFilter::ERROR,
        _ => LevelFilter::OFF,
    }
}

/// Begins the log: in the file that `AQUIFER_DEBUG_LOG_FILE` or `RMM_DEBUG_LOG_FILE` names, or else on standard error.
fn begin(file: Option<DebugLog>) {
    let (level, handle) = reload::Layer::new(filter(LEVEL.load(Ordering::Relaxed)));
    if FILTER.set(handle).is_err() {
        return;
    }
    let subscriber: Box<dyn tracing::Subscriber + Send + Sync> = match file {
        Some(file) => {
            let lines = file.level(tracing::Level::TRACE).layer();
            Box::new(Registry::default().with(lines.with_filter(level)))
        }
        None => {
            let ours = Targets::new().with_target("aquifer::", LevelFilter::TRACE);
            let lines = fmt::layer().with_ansi(false).with_writer(std::io::stderr);
            Box::new(Registry::default().with(lines.with_filter(ours).with_filter(level)))
        }
    };
    // No other subscriber is in this library.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Begins the log where the environment names a file.
pub(crate) fn begin_from_env() -> aquifer_rs::Result<()> {
    if let Some(file) = DebugLog::from_env()? {
        begin(Some(file));
    }
    Ok(())
}

/// Events of RMM's level of this number, and of those above it, are written from now on.
#[pyfunction]
#[pyo3(signature = (level))]
pub(crate) fn _set_logging_level(#[pyo3(from_py_with = argument)] level: u8) -> PyResult<()> {
    LEVEL.store(level, Ordering::Relaxed);
    if FILTER.get().is_none() && level < OFF {
        begin(DebugLog::from_env().map_err(Raised::from)?);
    }
    if let Some(handle) = FILTER.get() {
        let changed = handle.reload(filter(level));
        changed.map_err(|error| PyValueError::new_err(error.to_string()))?;
    }
    Ok(())
}

/// The number of RMM's level from which on events are written.
#[pyfunction]
pub(crate) fn _logging_level() -> u8 {
    LEVEL.load(Ordering::Relaxed)
}

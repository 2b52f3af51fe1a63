//! A device's books: reports, call counts, failures to inject, and whether the context is lost.
//!
//! Shared by the driver, its handles and the scheduler. Its lock is a leaf: nothing is called under
//! it.

use super::config::SimConfig;
use super::report::{OpName, Report, Violation};
use crate::backend::DriverResult;
use crate::debug_log::{event, later};
use crate::error::DriverError;
use crate::sync::Arc;
use crate::sync::trusted::{AtomicU64, Mutex, Ordering};
use std::collections::BTreeMap;

/// More reports than this are told, but not kept.
const KEPT: usize = 1024;

#[derive(Debug)]
struct Failure {
    call: String,
    /// Calls until then; the failing one is the first.
    left: u64,
    code: u32,
}

#[derive(Debug, Default)]
struct Book {
    reports: Vec<Arc<Report>>,
    untold: Vec<Arc<Report>>,
    calls: BTreeMap<&'static str, u64>,
    failures: Vec<Failure>,
}

/// The books of one device.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) device: u64,
    pub(super) config: SimConfig,
    /// The code that every call returns; 0 while the context lives.
    lost: AtomicU64,
    book: Mutex<Book>,
}

impl Ledger {
    pub(super) fn new(device: u64, config: SimConfig) -> Self {
        Self { device, config, lost: AtomicU64::new(0), book: Mutex::new(Book::default()) }
    }

    /// Counts a call, and says whether it is one that has to fail.
    pub(super) fn count(&self, call: &'static str) -> DriverResult<()> {
        let mut book = self.book.lock();
        *book.calls.entry(call).or_default() += 1;
        let mut code = None;
        book.failures.retain_mut(|failure| {
            if failure.call != call {
                return true;
            }
            failure.left = failure.left.saturating_sub(1);
            if failure.left > 0 || code.is_some() {
                return true;
            }
            code = Some(failure.code);
            false
        });
        match code {
            Some(code) => Err(DriverError::new(call, code)),
            None => Ok(()),
        }
    }

    pub(super) fn calls(&self) -> Vec<(&'static str, u64)> {
        self.book.lock().calls.iter().map(|(&call, &count)| (call, count)).collect()
    }

    pub(super) fn fail(&self, call: &str, nth: u64, code: u32) {
        let failure = Failure { call: call.to_owned(), left: nth.max(1), code };
        self.book.lock().failures.push(failure);
    }

    /// An error if the context is lost.
    pub(super) fn alive(&self, call: &'static str) -> DriverResult<()> {
        // Relaxed: set under the world's lock, and checked again under it where it matters.
        match self.lost.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(DriverError::new(call, code as u32)),
        }
    }

    /// The context is lost with `code`, unless it was before.
    pub(super) fn lose(&self, code: u32) {
        let _ =
            self.lost.compare_exchange(0, u64::from(code), Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn report(
        &self,
        kind: Violation,
        operation: OpName,
        other: Option<OpName>,
        range: (u64, u64),
        note: Option<String>,
    ) -> Arc<Report> {
        let report = Arc::new(Report {
            kind,
            operation: operation.to_string(),
            conflicts_with: other.map(|other| other.to_string()),
            range,
            seed: self.config.seed,
            note,
        });
        let mut book = self.book.lock();
        if book.reports.len() < KEPT {
            book.reports.push(Arc::clone(&report));
        }
        book.untold.push(Arc::clone(&report));
        report
    }

    /// Logs the new reports. Called without a lock of the simulator: a subscriber may do what it likes,
    /// when those of a pool above are released too.
    pub(super) fn tell(&self) {
        let untold = std::mem::take(&mut self.book.lock().untold);
        for report in untold {
            later(move || event!(error, kind = ?report.kind(), "simulated device: {report}"));
        }
    }

    pub(super) fn reports(&self) -> Vec<Report> {
        self.book.lock().reports.iter().map(|report| Report::clone(report)).collect()
    }

    pub(super) fn take_reports(&self) -> Vec<Report> {
        let taken = std::mem::take(&mut self.book.lock().reports);
        taken.iter().map(|report| Report::clone(report)).collect()
    }

    /// What a synchronisation returns: the first report that nobody took, then the loss.
    pub(super) fn verdict(&self, call: &'static str) -> DriverResult<()> {
        let first = self.book.lock().reports.first().cloned();
        match first {
            Some(report) => Err(DriverError::with_detail(call, DriverError::LAUNCH_FAILED, report)),
            None => self.alive(call),
        }
    }
}

//! The writing thread of a log.

use super::format::RowFormat;
use super::queue::{LogFailure, LogQueue};
use super::record::{Action, Record};
use super::text::TextBuffer;
use crate::error::catch_panic;
use crate::sync::Arc;
use std::io::{self, Write};
use std::time::Duration;

/// The bytes of one write, about.
const CHUNK: usize = 64 << 10;

/// The naps of the thread between two drains. Each is twice the one before while the queue is empty.
const SHORTEST_NAP: Duration = Duration::from_millis(1);
const LONGEST_NAP: Duration = Duration::from_millis(64);

/// The output of a log, until its first error.
pub(super) struct LogOutput {
    out: Box<dyn Write + Send>,
    format: RowFormat,
    text: TextBuffer,
    /// Rows in `text`.
    rows: u64,
    /// Bytes were written since the last flush of `out`.
    unflushed: bool,
    failure: Option<LogFailure>,
}

impl LogOutput {
    pub(super) fn new(out: Box<dyn Write + Send>, format: RowFormat) -> Self {
        let text = TextBuffer::new(CHUNK);
        Self { out, format, text, rows: 0, unflushed: false, failure: None }
    }

    fn add(&mut self, record: &Record, log: &LogQueue) {
        if let Some(failure) = &mut self.failure {
            failure.discarded += u64::from(record.action != Action::FreeReturned);
            return;
        }
        self.rows += self.format.add(record, &mut self.text, log);
        if self.text.len() >= CHUNK {
            self.write(log);
        }
    }

    fn write(&mut self, log: &LogQueue) {
        if self.text.len() == 0 || self.failure.is_some() {
            return;
        }
        let Self { out, text, .. } = self;
        let written = call_writer(|| out.write_all(text.as_bytes()));
        self.format.time_passed();
        self.text.clear();
        self.unflushed = true;
        self.check(written);
        self.rows = 0;
        self.count_refused(log);
    }

    /// Counts the rows of this thread's own calls that found no room.
    fn count_refused(&mut self, log: &LogQueue) {
        let refused = log.take_refused();
        if refused > 0 {
            if self.failure.is_none() {
                let text = "what the log is written to used the log itself";
                let advice = "give the log a writer that allocates nothing from it";
                self.check(Err(WriteError { text: text.to_owned(), advice }));
            }
            if let Some(failure) = &mut self.failure {
                failure.discarded += refused;
            }
        }
    }

    /// Writes and flushes the text. With `all` it includes the rows that wait for a free to return.
    fn flush(&mut self, all: bool, log: &LogQueue) {
        if all && self.failure.is_none() {
            self.rows += self.format.write_waiting(&mut self.text, log);
        }
        self.write(log);
        let unflushed = std::mem::take(&mut self.unflushed);
        // With `all` also where nothing is new: the flush finds that the file was removed.
        if (unflushed || all) && self.failure.is_none() {
            let flushed = call_writer(|| self.out.flush());
            self.check(flushed);
        }
        self.count_refused(log);
    }

    /// Keeps and logs the first error. The log then stops, since a log with a gap would mislead.
    fn check(&mut self, result: Result<(), WriteError>) {
        let Err(WriteError { text, advice }) = result else { return };
        let discarded = self.rows + self.format.waiting();
        // `event!` stops a subscriber's panic, which would end the thread that others wait for.
        crate::debug_log::event!(error, error = %text, "the allocation log cannot be written and ends here");
        self.failure = Some(LogFailure { text, advice, discarded });
    }
}

/// Calls the program's `Write`. Its error is formatted and dropped inside too, as that may
/// panic. A panic counts as an error.
fn call_writer(call: impl FnOnce() -> io::Result<()>) -> Result<(), WriteError> {
    let error =
        |error: io::Error| WriteError { text: error.to_string(), advice: advice(error.kind()) };
    catch_panic(|| call().map_err(error)).unwrap_or_else(|| {
        let advice = "see the panic's own message, and build the adaptor again with another writer";
        Err(WriteError { text: "the writer panicked".to_owned(), advice })
    })
}

/// Why nothing more is written, and what to do about it.
struct WriteError {
    text: String,
    advice: &'static str,
}

fn advice(kind: io::ErrorKind) -> &'static str {
    use io::ErrorKind as E;

    match kind {
        E::NotFound => {
            "leave the file where it is while the log writes it, and build the adaptor again"
        }
        E::StorageFull | E::QuotaExceeded | E::FileTooLarge => {
            "make room for the log, or build the adaptor again with another file"
        }
        _ => "build the adaptor again with another file or writer",
    }
}

/// Writes until the log is closed and empty.
pub(super) fn run(log: &Arc<LogQueue>, mut output: LogOutput) {
    output.format.header(&mut output.text);
    let (mut served, mut nap) = (0, SHORTEST_NAP);
    loop {
        // Before the drain: records pushed before a request are in the ring now, and the drain takes
        // as many as the ring holds.
        let (requests, closing) = (log.flush_requests(), log.is_closing());
        output.format.time_passed();
        let taken = log.drain(|record| output.add(&record, log));
        let emptied = taken < log.capacity();
        let ended = closing && emptied;
        let all = requests > served || ended;
        if all || emptied {
            output.flush(all, log);
        }
        if all {
            served = requests;
            log.publish(served, output.failure.clone(), ended);
        }
        if ended {
            // The drop of the program's `Write` may panic.
            catch_panic(|| drop(output));
            return;
        }
        nap = if taken > 0 { SHORTEST_NAP } else { (nap * 2).min(LONGEST_NAP) };
        // Also after records: draining them one by one would slow down the producers.
        if emptied {
            log.sleep(nap);
        }
    }
}

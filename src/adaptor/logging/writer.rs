//! The thread that writes.

use super::format::Rows;
use super::queue::{Log, Trouble};
use super::record::{Action, Record};
use super::text::Text;
use crate::adaptor::caught::caught;
use crate::sync::Arc;
use std::io::{self, Write};
use std::time::Duration;

/// Bytes that are written at once, about.
const CHUNK: usize = 64 << 10;

/// The naps of a writer that has nothing left to do: each twice the one before, if there was nothing.
const SHORTEST_NAP: Duration = Duration::from_millis(1);
const LONGEST_NAP: Duration = Duration::from_millis(64);

/// Where the rows go, until it fails.
pub(super) struct Sink {
    out: Box<dyn Write + Send>,
    rows: Rows,
    text: Text,
    /// Rows in `text`.
    waiting: u64,
    /// Something was written that `out` may keep to itself.
    unflushed: bool,
    trouble: Option<Trouble>,
}

impl Sink {
    pub(super) fn new(out: Box<dyn Write + Send>, rows: Rows) -> Self {
        Self { out, rows, text: Text::new(CHUNK), waiting: 0, unflushed: false, trouble: None }
    }

    fn take(&mut self, record: &Record, log: &Log) {
        if let Some(trouble) = &mut self.trouble {
            trouble.discarded += u64::from(record.action != Action::Freed);
            return;
        }
        self.waiting += self.rows.add(record, &mut self.text, log);
        if self.text.len() >= CHUNK {
            self.write(log);
        }
    }

    fn write(&mut self, log: &Log) {
        if self.text.len() == 0 || self.trouble.is_some() {
            return;
        }
        let Self { out, text, .. } = self;
        let written = guarded(|| out.write_all(text.written()));
        self.text.clear();
        self.unflushed = true;
        self.settled(written);
        self.waiting = 0;
        self.count_refused(log);
    }

    /// Rows of the calls that this thread made itself, while it wrote: not all of them found room.
    fn count_refused(&mut self, log: &Log) {
        let refused = log.take_refused();
        if refused > 0 {
            if self.trouble.is_none() {
                let text = "what the log is written to used the log itself";
                self.settled(Err(io::Error::other(text)));
            }
            if let Some(trouble) = &mut self.trouble {
                trouble.discarded += refused;
            }
        }
    }

    /// Writes what is there. `all`: also the rows of frees that have not returned.
    fn settle(&mut self, all: bool, log: &Log) {
        if all && self.trouble.is_none() {
            self.waiting += self.rows.release(&mut self.text, log);
        }
        self.write(log);
        let unflushed = std::mem::take(&mut self.unflushed);
        // Asked for, it tells too whether what was written before is still there.
        if (unflushed || all) && self.trouble.is_none() {
            let flushed = guarded(|| self.out.flush());
            self.settled(flushed);
        }
        self.count_refused(log);
    }

    /// Keeps the first error, and says it once. A log with a hole would mislead: nothing is written
    /// after it.
    fn settled(&mut self, result: io::Result<()>) {
        let Err(error) = result else { return };
        let discarded = self.waiting + self.rows.held();
        let text = error.to_string();
        // A subscriber that panics must not take the thread that others wait for.
        crate::debug_log::event!(error, error = %text, "the allocation log cannot be written and ends here");
        self.trouble = Some(Trouble { text, discarded });
    }
}

/// Runs a call of somebody's `Write`; a panic is an error like any other.
fn guarded(call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    caught(call).unwrap_or_else(|| Err(io::Error::other("the writer panicked")))
}

/// Writes until the log is closed and empty.
pub(super) fn run(log: &Arc<Log>, mut sink: Sink) {
    sink.rows.header(&mut sink.text);
    let (mut done, mut nap) = (0, SHORTEST_NAP);
    loop {
        // Before the records: what was pushed before the question is in the ring now, which holds
        // no more than is taken below.
        let (asked, closing) = (log.asked(), log.is_closing());
        let taken = log.drain(|record| sink.take(&record, log));
        let emptied = taken < log.capacity();
        let ended = closing && emptied;
        let all = asked > done || ended;
        if all || emptied {
            sink.settle(all, log);
        }
        if all {
            done = asked;
            log.report(done, sink.trouble.clone(), ended);
        }
        if ended {
            // Somebody's code again, and who waits for this thread is about to drop what it throws.
            caught(|| drop(sink));
            return;
        }
        nap = if taken > 0 { SHORTEST_NAP } else { (nap * 2).min(LONGEST_NAP) };
        // Also where there was something: taking records as they come, one by one, would slow down
        // who pushes them.
        if emptied {
            log.sleep(nap);
        }
    }
}

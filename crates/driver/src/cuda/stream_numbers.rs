//! Whether a context has streams that others made, by the driver's numbers of streams.
//!
//! The driver counts the streams of a process as they are made, and a thread's own default stream when it is first
//! used. An H100 with driver 580 gave 13, 14, 15 and so on. So while each number since the context was opened is that
//! of a stream made here, nobody else has made one. A driver that leaves numbers out looks like one with others'
//! streams.

use crate::sync::trusted::Mutex;
use std::collections::BTreeSet;

/// Numbers past a gap that are remembered. With more, the gap is there for good.
const MAX_AHEAD: usize = 256;

/// The numbers of the streams that were made here. Without a first one the rest is unknown.
#[derive(Debug, Default)]
pub(super) struct StreamNumbers(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    /// Each number up to this one is known.
    upto: u64,
    /// Known numbers past the first that is not.
    ahead: BTreeSet<u64>,
}

impl StreamNumbers {
    /// Begins with the stream `first`. Only the crate has used the context when that was made.
    pub(super) fn begin(&self, first: u64) {
        *self.0.lock() = Some(Known { upto: first, ahead: BTreeSet::new() });
    }

    /// Notes a stream that was made here, by its number. `None` if the driver does not say.
    pub(super) fn note(&self, number: Option<u64>) {
        let mut numbers = self.0.lock();
        let Some(known) = &mut *numbers else { return };
        known.ahead.extend(number.filter(|number| *number > known.upto));
        while known.ahead.remove(&(known.upto + 1)) {
            known.upto += 1;
        }
        if number.is_none() || known.ahead.len() > MAX_AHEAD {
            *numbers = None;
        }
    }

    /// Whether each stream up to the newest that was noted was made here. A thread that has made one and has not noted
    /// it yet makes the answer `false` for that time.
    pub(super) fn are_all_known(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|known| known.ahead.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_made_elsewhere_is_missed() {
        let numbers = StreamNumbers::default();
        numbers.note(Some(1));
        assert!(!numbers.are_all_known(), "nothing is known without a first one");
        numbers.begin(7);
        assert!(numbers.are_all_known());
        numbers.note(Some(8));
        numbers.note(Some(10));
        assert!(!numbers.are_all_known(), "9 is another's, or not noted yet");
        numbers.note(Some(9));
        assert!(numbers.are_all_known());
        numbers.note(Some(12));
        numbers.note(Some(13));
        assert!(!numbers.are_all_known());
        numbers.note(None);
        numbers.note(Some(11));
        assert!(!numbers.are_all_known(), "a stream without a number is any one");
    }

    #[test]
    fn a_gap_that_stays_is_remembered_by_little() {
        let numbers = StreamNumbers::default();
        numbers.begin(0);
        (2..10_000).for_each(|number| numbers.note(Some(number)));
        numbers.note(Some(1));
        assert!(!numbers.are_all_known(), "given up");
        assert!(numbers.0.lock().is_none());
    }
}

//! A history and the blocks of the snapshot, put together.
//!
//! | A block of the snapshot | and in the history | is |
//! |---|---|---|
//! | in use | live at the end | that allocation |
//! | in use | in memory that no record uses | an allocation before the first record |
//! | in use | in memory that a record uses | an allocation after the last record |
//! | none | freed, in memory that no record before uses | an allocation before the first record |
//! | none | live at the end | live to the end, and said to be in no segment |

use super::segments::Block;
use super::stream;
use crate::event::{AFTER, Action, BEFORE, Event, LogStream, Numbered};
use crate::warning::{Part, Tally, Warning};
use std::collections::BTreeMap;

/// All events of a device.
pub(super) struct Whole {
    pub(super) events: Vec<Event>,
    pub(super) warnings: Vec<Warning>,
}

/// Without blocks a snapshot tells nothing of what is live at its end.
pub(super) fn reconcile(
    history: Vec<Event>,
    blocks: Option<&[Block]>,
    streams: &mut Numbered<LogStream>,
) -> Whole {
    let no_history = history.is_empty() && blocks.is_some_and(|blocks| !blocks.is_empty());
    let event = |line, action, address, size, stream| {
        let with_time = if line == BEFORE { history.first() } else { history.last() };
        let time = with_time.and_then(|event| event.time);
        Event { index: 0, line, thread: 0, time, action, address, size: Some(size), stream }
    };
    let allocation =
        |line, address, size, stream| event(line, Action::Allocate, address, size, stream);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut used = Ranges::default();
    // By address: the bytes, and the stream.
    let mut live = BTreeMap::new();
    for Event { action, address, size, stream, .. } in history.iter().copied() {
        let size = size.unwrap_or(0);
        let is_memory = address != 0 && size != 0;
        match action {
            Action::Allocate if is_memory => {
                live.insert(address, (size, stream));
                used.add(address, size);
            }
            Action::Free if live.remove(&address).is_some() => {}
            // Where a record before has used the memory, that stays a free of the unknown.
            Action::Free if is_memory && !used.overlap(address, size) => {
                before.push(allocation(BEFORE, address, size, stream));
                used.add(address, size);
            }
            _ => {}
        }
    }
    let [mut other_size, mut disagree] = [Tally::default(); 2];
    for block in blocks.unwrap_or_default() {
        let Block { address, size, asked, stream: handle, is_segment } = *block;
        if !is_segment && let Some((of_history, _)) = live.remove(&address) {
            if of_history != asked {
                other_size.add(asked);
            }
        } else if !used.overlap(address, size) {
            before.push(allocation(BEFORE, address, asked, stream(streams, handle)));
        } else if is_segment {
            disagree.add(asked);
        } else {
            after.push((*block, stream(streams, handle)));
        }
    }
    let mut frees = Vec::new();
    for (Block { address, asked, .. }, _) in &after {
        // What the history leaves live there must have gone.
        while let Some((start, (size, stream))) = overlapping(&live, *address, *asked) {
            live.remove(&start);
            frees.push(event(AFTER, Action::Free, start, size, stream));
        }
    }
    let after = after
        .into_iter()
        .map(|(Block { address, asked, .. }, stream)| allocation(AFTER, address, asked, stream));
    let after: Vec<Event> = after.collect();
    before.sort_by_key(|event| event.address);
    let tally = |events: &mut dyn Iterator<Item = u64>| {
        events.fold(Tally::default(), |mut tally, bytes| {
            tally.add(bytes);
            tally
        })
    };
    let sizes = |events: &[Event]| tally(&mut events.iter().filter_map(|event| event.size));
    let tallies = [
        (sizes(&before), Part::LiveBefore),
        (sizes(&after), Part::LiveAfter),
        (
            tally(&mut live.values().filter(|_| blocks.is_some()).map(|(size, _)| *size)),
            Part::NotInSegments,
        ),
        (other_size, Part::OtherSize),
        (disagree, Part::SegmentsDisagree),
    ];
    let mut warnings: Vec<Warning> =
        tallies.into_iter().filter_map(|(tally, part)| tally.of(part)).collect();
    if blocks.is_none() {
        warnings.push(Warning::new(Part::NoSegments, Tally::default()));
    }
    if no_history {
        warnings.push(Warning::new(Part::NoHistory, Tally::default()));
    }
    let mut events = before;
    events.extend(history);
    events.extend(frees);
    events.extend(after);
    events.iter_mut().enumerate().for_each(|(index, event)| event.index = index);
    Whole { events, warnings }
}

/// The first of what is live with a byte in common with a block.
fn overlapping(
    live: &BTreeMap<u64, (u64, usize)>,
    start: u64,
    size: u64,
) -> Option<(u64, (u64, usize))> {
    let below = live.range(..=start).next_back();
    let below = below.filter(|(address, (size, _))| address.saturating_add(*size) > start);
    let above = live.range(start..start.saturating_add(size)).next();
    below.or(above).map(|(address, of)| (*address, *of))
}

/// Addresses that were used, as ranges of which no two touch: the end of each by its start.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn overlap(&self, start: u64, size: u64) -> bool {
        let below = self.0.range(..start.saturating_add(size)).next_back();
        below.is_some_and(|(_, end)| *end > start)
    }

    fn add(&mut self, start: u64, size: u64) {
        let (mut start, mut end) = (start, start.saturating_add(size));
        while let Some((&from, &to)) = self.0.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.0.remove(&from);
            start = start.min(from);
            end = end.max(to);
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let mut ranges = Ranges::default();
        for ((start, size), expected) in [
            ((100, 10), &[(100, 110)][..]),
            ((300, 10), &[(100, 110), (300, 310)]),
            ((110, 5), &[(100, 115), (300, 310)]),
            ((90, 10), &[(90, 115), (300, 310)]),
            ((80, 300), &[(80, 380)]),
        ] {
            ranges.add(start, size);
            assert!(ranges.0.iter().map(|(from, to)| (*from, *to)).eq(expected.iter().copied()));
        }
        ranges.add(400, 10);
        ranges.add(u64::MAX - 1, 5);
        assert_eq!(ranges.0.len(), 3);
        for (start, size, overlap) in [
            (79, 1, false),
            (79, 2, true),
            (379, 1, true),
            (380, 20, false),
            (380, 21, true),
            (409, 1, true),
            (410, 5, false),
            (0, u64::MAX, true),
        ] {
            assert_eq!(ranges.overlap(start, size), overlap, "{start} {size}");
        }
    }
}

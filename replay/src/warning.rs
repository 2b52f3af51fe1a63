//! What a log has that is not replayed, or not as it stands.

use crate::report::bytes;
use crate::words::count;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a warning is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// Allocations that were live before the first record, replayed before it.
    LiveBefore,
    /// Allocations that are live at the snapshot where the history has other memory, replayed last.
    LiveAfter,
    /// Allocations that the history leaves live and that no segment of the snapshot has.
    NotInSegments,
    /// Allocations that have another size in the segments than in the history.
    OtherSize,
    /// The history's first records are lost. The number is that of the records kept, 0 if it is not known.
    Overflowed,
    /// The history has no record of memory.
    NoHistory,
    /// The snapshot has no segments.
    NoSegments,
    /// Segments that say more or less bytes in use than their blocks have, or that have no blocks where the
    /// history has memory. The difference is not replayed.
    SegmentsDisagree,
    /// Segments without their blocks: what is in use of each is replayed as one allocation.
    NoBlocks,
    /// Blocks that wait for another stream before they are free.
    PendingFree,
    /// Blocks of a state that is not known here, left out.
    UnknownState,
    /// Records of an action that is not known here, left out.
    UnknownAction,
    /// A key of the snapshot that is not known here, left out.
    UnknownKey,
    /// Bytes behind the end of the snapshot, which are not read.
    BehindSnapshot,
    /// Records of page-locked memory, left out. The bytes are those that they allocate.
    HostRecords,
    /// Page-locked memory that is in use at the snapshot, left out.
    HostLive,
    /// Records of private pools, replayed as others.
    PrivateRecords,
    /// Blocks of private pools that are in use at the snapshot, replayed as others.
    PrivateLive,
    /// Blocks of private pools that are free for these alone, not replayed.
    PrivateFree,
    /// Records of segments that grow and shrink, left out.
    Expandable,
    /// Events of other devices, left out. The bytes are those that they allocate.
    OtherDevices,
    /// Allocations that other devices have live at the snapshot, left out.
    LiveOnOtherDevices,
    /// Records that have no part in a replay.
    PassedOver,
    /// A column that is not read.
    Column,
    /// Line ends inside quotes, from a line on, which make one cell of several lines.
    JoinedLines,
    /// The last line has no end: its last cell may be cut off.
    Unended,
    /// Allocations that were live before the first line, whose bytes the log does not tell.
    UntoldBefore,
    /// Frees of what the log does not allocate, left out.
    FreesAlone,
    /// Allocations without a free whose address is allocated again: they are freed then.
    AllocatedTwice,
    /// Frees of another size than their allocation's, which is what is freed. The bytes are the difference.
    FreedOtherSize,
    /// Allocations at no address, left out.
    AtNull,
    /// Events of no bytes, and frees of no address, left out.
    Empty,
}

/// A part of a log that is not replayed, or not as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// What it is about.
    pub part: Part,
    /// The log's name of it: an action, a state, a key, a column, and `None` for all behind the tenth; of other
    /// devices the number of the one that is replayed.
    pub name: Option<String>,
    /// The line that it is about, if it is one.
    pub line: Option<u64>,
    /// How many there are.
    pub number: u64,
    /// Their bytes, and 0 where the log does not tell.
    pub bytes: u64,
}

impl Warning {
    /// A warning of a part that has one name or none.
    pub(crate) fn new(part: Part, tally: Tally) -> Self {
        Self { part, name: None, line: None, number: tally.number, bytes: tally.bytes() }
    }

    /// Whether nothing can come of it for the figures. The report has it all the same.
    pub fn is_note(&self) -> bool {
        match self.part {
            Part::PassedOver => true,
            Part::Empty => self.bytes == 0,
            _ => false,
        }
    }

    /// What a person reads. `line_word` is the log's.
    pub fn in_words(&self, line_word: &str) -> String {
        let Self { part, number, .. } = self;
        let of = |noun: &str| format!("{} of {}", count(*number, noun), bytes(self.bytes));
        let are = if *number == 1 { "is" } else { "are" };
        let were = if *number == 1 { "was" } else { "were" };
        let have = if *number == 1 { "has" } else { "have" };
        let name = self.name.as_ref().map_or(String::from("…"), |name| format!("{name:?}"));
        let records = count(*number, line_word);
        let allocated = format!("{} allocated", bytes(self.bytes));
        match part {
            Part::LiveBefore => {
                let each = if *number == 1 { "it is" } else { "they are" };
                format!(
                    "{} {were} live before the first {line_word}: {each} replayed first",
                    of("allocation")
                )
            }
            Part::LiveAfter => format!(
                "{} {are} live at the snapshot where the history has other memory: no record has the \
                 allocation, and it is replayed last",
                of("allocation")
            ),
            Part::NotInSegments => format!(
                "{} that the history leaves live {are} in no segment of the snapshot: a free was not \
                 recorded, or segments lack",
                of("allocation")
            ),
            Part::OtherSize => format!(
                "{} of the segments {have} another size in the history, with which each is replayed",
                of("allocation")
            ),
            Part::Overflowed => {
                let kept = match number {
                    0 => String::new(),
                    _ => format!(" of {records}"),
                };
                format!(
                    "the history{kept} overflowed: its first records are lost, and what they allocated \
                     and freed is not replayed"
                )
            }
            Part::NoHistory => String::from(
                "the history has no record of memory: only what was live at the snapshot is replayed",
            ),
            Part::NoSegments => String::from(
                "the snapshot has no `segments`: what was live before its history, and is not freed in \
                 it, is not known and not replayed",
            ),
            Part::SegmentsDisagree => format!(
                "{} {have} more or less bytes in use than the blocks: {} in all, which are not replayed",
                count(*number, "segment"),
                bytes(self.bytes)
            ),
            Part::NoBlocks => format!(
                "{} in use {have} no blocks: replayed as one allocation a segment",
                of("segment")
            ),
            Part::PendingFree => format!(
                "{} waited at the snapshot for another stream to be done with the memory: live to the end",
                of("block")
            ),
            Part::UnknownState => format!("{} in the unknown state {name} left out", of("block")),
            Part::UnknownAction => {
                format!("{} of the unknown action {name} left out", of(line_word))
            }
            Part::UnknownKey => {
                format!("the snapshot's {name} is not read: {} left out", of("entry"))
            }
            Part::BehindSnapshot => format!(
                "{} behind the end of the snapshot not read: another may lie there",
                bytes(self.bytes)
            ),
            Part::HostRecords => {
                format!("{records} of page-locked memory left out, with {allocated}")
            }
            Part::HostLive => {
                format!("{} in use of page-locked memory left out", of("block"))
            }
            Part::PrivateRecords => format!(
                "{records} of private pools, as graphs have them, with {allocated}: replayed as others"
            ),
            Part::PrivateLive => {
                format!("{} {are} in use in private pools: replayed as others", of("block"))
            }
            Part::PrivateFree => format!(
                "{} {are} free in private pools, for these alone: held there, and not replayed",
                of("block")
            ),
            Part::Expandable => format!(
                "{} that map and unmap expandable segments left out: only what is allocated in \
                 them is replayed",
                of(line_word)
            ),
            Part::OtherDevices => {
                let device = self.name.as_deref().unwrap_or_default();
                let events = count(*number, "event");
                format!("device {device}: {events} of other devices left out, with {allocated}")
            }
            Part::LiveOnOtherDevices => {
                format!("{} that {are} live on other devices left out", of("allocation"))
            }
            Part::PassedOver => format!("{} of {name}", of(line_word)),
            Part::Column => format!("{} {name} {are} not read", count(*number, "column")),
            Part::JoinedLines => format!(
                "{} inside quotes, from here on: what they end is read as part of one cell",
                count(*number, "line end")
            ),
            Part::Unended => String::from(
                "the last line has no end; it may be cut off, and is taken as it stands",
            ),
            Part::UntoldBefore => format!(
                "{} {were} live before the first line, as Current Allocs has it: of bytes that the log \
                 does not tell, and not replayed",
                count(*number, "allocation")
            ),
            Part::FreesAlone => format!(
                "{} without an allocation left out: what was live before the log is not replayed",
                of("free")
            ),
            Part::AllocatedTwice => format!(
                "{} without a free {were} freed where the address is allocated again",
                of("allocation")
            ),
            Part::FreedOtherSize => format!(
                "{} {have} another size than the allocation, which is freed: {} of difference in all",
                count(*number, "free"),
                bytes(self.bytes)
            ),
            Part::AtNull => format!("{} at 0x0 left out", of("allocation")),
            Part::Empty => format!("{} left out, for no bytes or at 0x0", of("event")),
        }
    }
}

/// A number of things and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) number: u64,
    /// Sizes are anybody's, and their sum may pass 64 bits.
    pub(crate) sum: u128,
}

impl Tally {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.number += 1;
        self.sum += u128::from(bytes);
    }

    pub(crate) fn add_all(&mut self, other: Self) {
        self.number += other.number;
        self.sum += other.sum;
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::try_from(self.sum).unwrap_or(u64::MAX)
    }

    /// A warning, if there is anything to warn of.
    pub(crate) fn of(self, part: Part) -> Option<Warning> {
        (self.number > 0).then(|| Warning::new(part, self))
    }
}

/// Names that have a tally of their own; all others share one.
const NAMES: usize = 10;

/// A tally for each name.
#[derive(Debug, Default)]
pub(crate) struct Named {
    named: BTreeMap<String, Tally>,
    others: Option<Tally>,
}

impl Named {
    pub(crate) fn at(&mut self, name: String) -> &mut Tally {
        if self.named.len() < NAMES || self.named.contains_key(&name) {
            return self.named.entry(name).or_default();
        }
        self.others.get_or_insert_default()
    }

    pub(crate) fn of(self, part: Part) -> impl Iterator<Item = Warning> {
        let warning =
            move |(name, tally)| Warning { name: Some(name), ..Warning::new(part, tally) };
        let others = self.others.map(|tally| Warning::new(part, tally));
        self.named.into_iter().map(warning).chain(others)
    }
}

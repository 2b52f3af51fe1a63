//! PyTorch's memory snapshots: a pickle, of which nothing is run.
//!
//! A snapshot has the state of the allocator when it was taken (`segments`, with their blocks) and its last
//! records (`device_traces`). What was live before the first record is in the state alone, or in the record of
//! its free. The two are put together here, into allocations before the first record.

mod apart;
mod history;
mod place;
mod reconcile;
mod segments;

use super::ReadError;
use super::error::brief;
use super::pickle::{Id, Pickle, Value};
use crate::event::{Log, LogStream, Numbered, StreamKind};
use crate::warning::{Named, Part, Tally, Warning};
use apart::Walk;
use place::{Dict, Place};
use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

pub(super) fn read(
    path: &Path,
    mut reader: impl Read,
    device: Option<i64>,
) -> Result<Log, ReadError> {
    let mut bytes = Vec::new();
    reader
        .read_to_end(&mut bytes)
        .map_err(|source| ReadError::Open { path: path.to_owned(), source })?;
    let pickle = Pickle::read(&bytes).map_err(|broken| ReadError::Pickle {
        path: path.to_owned(),
        offset: broken.offset as u64,
        reason: broken.reason,
    })?;
    let snapshot = Snapshot::new(path, &pickle)?;
    let chosen = snapshot.chosen(device)?;
    let trace = usize::try_from(chosen).ok().and_then(|number| snapshot.traces.get(number));
    let records = trace.map_or(&[][..], |trace| trace.records);

    let mut streams = Numbered::default();
    let history = history::read(path, &pickle, chosen, records, &mut streams)?;
    let segments = segments::read(&snapshot, chosen)?;
    let mut warnings = snapshot.overflow();
    let blocks = snapshot.segments.map(|_| &segments.live[..]);
    let whole = reconcile::reconcile(history.events, blocks, &mut streams);
    warnings.extend(whole.warnings);
    warnings.extend(history.warnings);
    warnings.extend(segments.warnings);
    let other_devices = snapshot.apart(chosen, &mut warnings);
    // Zeros fill a file up.
    if pickle.rest().iter().any(|byte| *byte != 0) {
        let mut behind = Tally::default();
        behind.add(pickle.rest().len() as u64);
        warnings.push(Warning::new(Part::BehindSnapshot, behind));
    }
    Ok(Log {
        events: whole.events,
        threads: vec![String::from("0")],
        streams: streams.into_vec(),
        device: Some(chosen),
        other_devices,
        warnings,
        line_word: "record",
        ..Log::default()
    })
}

/// The parts of a snapshot.
struct Snapshot<'p, 'a> {
    path: &'p Path,
    pickle: &'p Pickle<'a>,
    entries: &'p Dict,
    traces: Vec<Trace<'p>>,
    segments: Option<&'p [Id]>,
}

/// The records of a device.
struct Trace<'p> {
    list: Id,
    records: &'p [Id],
}

/// Keys that are read, or have no memory.
const KEYS: [&str; 8] = [
    "segments",
    "device_traces",
    "allocator_settings",
    "external_annotations",
    HOST_TRACES,
    HOST_SEGMENTS,
    OVERFLOWED,
    ENTRIES,
];
const HOST_TRACES: &str = "host_traces";
const HOST_SEGMENTS: &str = "host_segments";
const OVERFLOWED: &str = "trace_alloc_overflowed";
const ENTRIES: &str = "trace_alloc_max_entries";

impl<'p, 'a> Snapshot<'p, 'a> {
    fn new(path: &'p Path, pickle: &'p Pickle<'a>) -> Result<Self, ReadError> {
        let root = Place { path, record: None, name: String::from("the snapshot") };
        let entries = root.dict(pickle.root(), "a dict with `device_traces`")?;
        let Some(lists) = pickle.look_up(entries, "device_traces") else {
            return Err(root.wrong("a dict with `device_traces`", "one without"));
        };
        let lists = root.at("['device_traces']").list(lists, "a list of traces, one a device")?;
        let mut traces = Vec::new();
        for (number, list) in lists.iter().enumerate() {
            let place = Place { path, record: None, name: format!("device_traces[{number}]") };
            let records = place.list(pickle.get(*list), "a list of events")?;
            traces.push(Trace { list: *list, records });
        }
        let segments = match pickle.look_up(entries, "segments") {
            None => None,
            Some(list) => Some(root.at("['segments']").list(list, "a list of segments")?),
        };
        Ok(Self { path, pickle, entries, traces, segments })
    }

    /// The device that is replayed: the one that was asked, or the first with a record of memory, or the first
    /// with memory in use.
    fn chosen(&self, asked: Option<i64>) -> Result<i64, ReadError> {
        let filled = || {
            let filled = self.traces.iter().enumerate().filter(|(_, t)| !t.records.is_empty());
            filled.map(|(number, _)| number as i64)
        };
        if let Some(device) = asked {
            let has = filled().any(|number| number == device)
                || segments::devices(self)?.iter().any(|(owner, _)| *owner == device);
            return match has {
                true => Ok(device),
                false => Err(ReadError::NoDevice { path: self.path.to_owned(), device }),
            };
        }
        // Where two devices share a list, it is looked through once.
        let mut seen = HashSet::new();
        let memory = self.traces.iter().position(|trace| {
            seen.insert(trace.list)
                && trace.records.iter().any(|record| history::is_memory(self.pickle, *record))
        });
        if let Some(number) = memory {
            return Ok(number as i64);
        }
        let owners = segments::devices(self)?;
        let in_use = owners.iter().find(|(_, in_use)| *in_use).or(owners.first());
        Ok(in_use.map(|(owner, _)| *owner).or(filled().next()).unwrap_or(0))
    }

    /// Whether the history lost its first records.
    fn overflow(&self) -> Vec<Warning> {
        let settings = match self.pickle.look_up(self.entries, "allocator_settings") {
            Some(Value::Dict(settings)) => settings,
            _ => &[][..],
        };
        let of = |key| {
            let of = |dict| self.pickle.look_up(dict, key);
            of(settings).or_else(|| of(self.entries))
        };
        let lost = match of(OVERFLOWED) {
            Some(Value::Bool(lost)) => *lost,
            Some(Value::Int(number)) => *number != 0,
            _ => false,
        };
        let number = match of(ENTRIES) {
            Some(Value::Int(number)) => u64::try_from(*number).unwrap_or(0),
            _ => 0,
        };
        let warning = Warning { number, ..Warning::new(Part::Overflowed, Tally::default()) };
        if lost { vec![warning] } else { Vec::new() }
    }

    /// Warns of what is not the chosen device's, and gives the number of records of the others.
    fn apart(&self, chosen: i64, warnings: &mut Vec<Warning>) -> usize {
        let mut walk = Walk::new(self.pickle);
        let mut others = (0, Tally::default());
        for (_, trace) in
            self.traces.iter().enumerate().filter(|(number, _)| *number as i64 != chosen)
        {
            others.0 += trace.records.len();
            others.1.add_all(walk.found(trace.list).allocated);
        }
        if others.0 > 0 {
            warnings.push(Warning {
                name: Some(chosen.to_string()),
                number: others.0 as u64,
                ..Warning::new(Part::OtherDevices, others.1)
            });
        }
        let mut unknown = Named::default();
        for (key, value) in self.entries {
            let key = match self.pickle.get(*key) {
                Value::String(key) => key,
                _ => "a key that is no string",
            };
            let host = [HOST_TRACES, HOST_SEGMENTS].contains(&key);
            if KEYS.contains(&key) && !host {
                continue;
            }
            let found = walk.found(*value);
            let is_list = matches!(self.pickle.get(*value), Value::List(_) | Value::Tuple(_));
            if host && is_list {
                let warning = Warning::new(Part::HostRecords, found.allocated);
                let records = Warning { number: found.records, ..warning };
                warnings.extend((found.records > 0).then_some(records));
                warnings.extend(found.live.of(Part::HostLive));
                continue;
            }
            let tally = unknown.at(brief(key));
            tally.add_all(found.live);
            tally.add_all(Tally { number: found.records, ..found.allocated });
        }
        warnings.extend(unknown.of(Part::UnknownKey));
        others.0
    }
}

/// The number of the stream with a handle.
fn stream(streams: &mut Numbered<LogStream>, handle: u64) -> usize {
    let kind = if handle == 0 { StreamKind::Default } else { StreamKind::Other };
    let name = handle.to_string();
    streams.number(&name, || LogStream { name: name.clone(), kind })
}

/// Whether a pool's id is that of a private one, as graphs and `MemPool` have them: the common one is (0, 0).
fn is_private(pickle: &Pickle<'_>, dict: &Dict, key: &str) -> bool {
    match pickle.look_up(dict, key) {
        Some(Value::Tuple(id) | Value::List(id)) => {
            id.iter().any(|part| *pickle.get(*part) != Value::Int(0))
        }
        _ => false,
    }
}

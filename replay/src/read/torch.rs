//! PyTorch's memory snapshots: a pickle, of which nothing is run.

use super::ReadError;
use super::error::brief;
use super::pickle::{Id, Pickle, Value};
use crate::event::{Action, Event, Log, LogStream, Numbered, StreamKind};
use std::io::Read;
use std::path::Path;

/// `free_completed` is when the memory may serve again, so that is the free; `free_requested` and
/// what happens to segments is the business of the allocator that wrote the log.
const PASSED_OVER: [&str; 8] = [
    "free_requested",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "user_defined",
    "workspace_snapshot",
];

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
    let root = Place { path, record: None, name: String::from("the snapshot") };
    let snapshot = root.dict(pickle.root(), "a dict with `device_traces`")?;
    let traces = match pickle.look_up(snapshot, "device_traces") {
        Some(traces) => {
            root.at("['device_traces']").list(traces, "a list of traces, one a device")?
        }
        None => return Err(root.wrong("a dict with `device_traces`", "one without")),
    };
    let mut lists = Vec::new();
    for (number, trace) in traces.iter().enumerate() {
        let place = Place { path, record: None, name: format!("device_traces[{number}]") };
        lists.push(place.list(pickle.get(*trace), "a list of events")?);
    }
    let chosen = match device {
        Some(device) => usize::try_from(device)
            .ok()
            .filter(|number| lists.get(*number).is_some_and(|list| !list.is_empty()))
            .ok_or_else(|| ReadError::NoDevice { path: path.to_owned(), device })?,
        None => lists.iter().position(|list| !list.is_empty()).unwrap_or(0),
    };
    let other_devices = lists
        .iter()
        .enumerate()
        .filter(|(number, _)| *number != chosen)
        .map(|(_, list)| list.len())
        .sum();
    let mut streams = Numbered::default();
    let mut events = Vec::new();
    let mut first = None;
    for (number, entry) in lists.get(chosen).copied().unwrap_or_default().iter().enumerate() {
        let name = format!("device_traces[{chosen}][{number}]");
        let place = Place { path, record: Some(number + 1), name };
        let entry = place.dict(pickle.get(*entry), "a dict")?;
        let action = match pickle.look_up(entry, "action") {
            Some(Value::String(action)) => *action,
            found => return Err(place.at("['action']").unexpected("a string", found)),
        };
        let action = match action {
            "alloc" => Action::Allocate,
            "free_completed" | "free" => Action::Free,
            "oom" => Action::Failure,
            _ if PASSED_OVER.contains(&action) => continue,
            _ => {
                return Err(place
                    .at("['action']")
                    .wrong("an action of PyTorch's allocator", &format!("{:?}", brief(action))));
            }
        };
        let number_of = |key: &'static str, expected| match pickle.look_up(entry, key) {
            Some(Value::Int(number)) => u64::try_from(*number)
                .map_err(|_| place.at(&format!("['{key}']")).wrong(expected, &number.to_string())),
            found => Err(place.at(&format!("['{key}']")).unexpected(expected, found)),
        };
        let time = match pickle.look_up(entry, "time_us") {
            None => None,
            Some(_) => Some(number_of("time_us", "microseconds, an int")?),
        };
        let time = time.map(|time| {
            let first = *first.get_or_insert(time);
            time.saturating_sub(first).saturating_mul(1000)
        });
        let stream = match pickle.look_up(entry, "stream") {
            None => 0,
            Some(_) => number_of("stream", "a stream's handle, an int")?,
        };
        let kind = if stream == 0 { StreamKind::Default } else { StreamKind::Other };
        let name = stream.to_string();
        events.push(Event {
            index: events.len(),
            line: number as u64 + 1,
            thread: 0,
            time,
            action,
            // An `oom` has `device_free` in its place.
            address: match action {
                Action::Failure => 0,
                _ => number_of("addr", "an address, an int")?,
            },
            size: Some(number_of("size", "a size in bytes, an int")?),
            stream: streams.number(&name, || LogStream { name: name.clone(), kind }),
        });
    }
    Ok(Log {
        events,
        threads: vec![String::from("0")],
        streams: streams.into_vec(),
        device: Some(chosen as i64),
        other_devices,
        cut: None,
        line_word: "record",
        ..Log::default()
    })
}

/// A value's place in a snapshot, for errors.
struct Place<'a> {
    path: &'a Path,
    /// The record that it is of, from 1.
    record: Option<usize>,
    name: String,
}

impl Place<'_> {
    fn at(&self, key: &str) -> Self {
        Place { path: self.path, record: self.record, name: format!("{}{key}", self.name) }
    }

    fn list<'v>(&self, value: &'v Value, expected: &'static str) -> Result<&'v [Id], ReadError> {
        match value {
            Value::List(list) | Value::Tuple(list) => Ok(list),
            found => Err(self.unexpected(expected, Some(found))),
        }
    }

    fn dict<'v>(
        &self,
        value: &'v Value,
        expected: &'static str,
    ) -> Result<&'v [(Id, Id)], ReadError> {
        match value {
            Value::Dict(dict) => Ok(dict),
            found => Err(self.unexpected(expected, Some(found))),
        }
    }

    fn unexpected(&self, expected: &'static str, found: Option<&Value>) -> ReadError {
        let found = match found {
            None => "nothing",
            Some(Value::None) => "None",
            Some(Value::Bool) => "a bool",
            Some(Value::Int(_)) => "an int",
            Some(Value::LongInt) => "an int that no address has",
            Some(Value::Float) => "a float",
            Some(Value::Bytes) => "bytes",
            Some(Value::String(_)) => "a string",
            Some(Value::List(_)) => "a list",
            Some(Value::Tuple(_)) => "a tuple",
            Some(Value::Set) => "a set",
            Some(Value::Dict(_)) => "a dict",
            Some(Value::Object) => "an object, which is not made here",
        };
        self.wrong(expected, found)
    }

    fn wrong(&self, expected: &'static str, found: &str) -> ReadError {
        ReadError::Record {
            path: self.path.to_owned(),
            place: match self.record {
                Some(record) => format!("record {record} ({})", self.name),
                None => self.name.clone(),
            },
            expected,
            found: found.to_owned(),
        }
    }
}

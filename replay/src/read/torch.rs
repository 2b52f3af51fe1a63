//! PyTorch's memory snapshots: a pickle, of which nothing is run.

use super::ReadError;
use super::pickle::{Id, Node, Pickle};
use crate::event::{Action, Event, Log, Names};
use std::io::Read;
use std::path::Path;

type Dict = [(Id, Id)];

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

pub(super) fn read(path: &Path, reader: impl Read, device: Option<i64>) -> Result<Log, ReadError> {
    let pickle = Pickle::read(reader)
        .map_err(|source| ReadError::Pickle { path: path.to_owned(), source })?;
    let get = |dict: &Dict, key: &str| pickle.get(dict, key);
    let root = Place { path, name: String::from("the snapshot") };
    let snapshot = root.dict(pickle.root(), "a dict with `device_traces`")?;
    let traces = match get(snapshot, "device_traces") {
        Some(traces) => {
            root.at("['device_traces']").list(traces, "a list of traces, one a device")?
        }
        None => return Err(root.wrong("a dict with `device_traces`", "one without")),
    };
    let mut lists = Vec::new();
    for (number, trace) in traces.iter().enumerate() {
        let place = Place { path, name: format!("device_traces[{number}]") };
        lists.push(place.list(pickle.node(*trace), "a list of events")?);
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
    let mut streams = Names::default();
    let mut events = Vec::new();
    let mut first = None;
    for (number, entry) in lists.get(chosen).copied().unwrap_or_default().iter().enumerate() {
        let place = Place { path, name: format!("device_traces[{chosen}][{number}]") };
        let entry = place.dict(pickle.node(*entry), "a dict")?;
        let action = match get(entry, "action") {
            Some(Node::String(action)) => action.as_str(),
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
                    .wrong("an action of PyTorch's allocator", &format!("{action:?}")));
            }
        };
        let number_of = |key: &'static str, expected| match get(entry, key) {
            Some(Node::Int(number)) => u64::try_from(*number)
                .map_err(|_| place.at(&format!("['{key}']")).wrong(expected, &number.to_string())),
            found => Err(place.at(&format!("['{key}']")).unexpected(expected, found)),
        };
        let time = match get(entry, "time_us") {
            None => None,
            Some(_) => Some(number_of("time_us", "microseconds, an int")?),
        };
        let time = time.map(|time| {
            let first = *first.get_or_insert(time);
            time.saturating_sub(first).saturating_mul(1000)
        });
        let stream = match get(entry, "stream") {
            None => 0,
            Some(_) => number_of("stream", "a stream's handle, an int")?,
        };
        let stream = if stream == 0 { String::from("default") } else { format!("{stream:#x}") };
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
            size: number_of("size", "a size in bytes, an int")?,
            stream: streams.number(&stream),
        });
    }
    Ok(Log {
        events,
        threads: vec![String::from("0")],
        streams: streams.into_vec(),
        device: Some(chosen as i64),
        other_devices,
        line_word: "record",
    })
}

/// A value's place in a snapshot, for errors.
struct Place<'a> {
    path: &'a Path,
    name: String,
}

impl Place<'_> {
    fn at(&self, key: &str) -> Self {
        Place { path: self.path, name: format!("{}{key}", self.name) }
    }

    fn list<'v>(&self, node: &'v Node, expected: &'static str) -> Result<&'v [Id], ReadError> {
        match node {
            Node::List(list) | Node::Tuple(list) => Ok(list),
            found => Err(self.unexpected(expected, Some(found))),
        }
    }

    fn dict<'v>(&self, node: &'v Node, expected: &'static str) -> Result<&'v Dict, ReadError> {
        match node {
            Node::Dict(dict) => Ok(dict),
            found => Err(self.unexpected(expected, Some(found))),
        }
    }

    fn unexpected(&self, expected: &'static str, found: Option<&Node>) -> ReadError {
        let found = match found {
            None => "nothing",
            Some(Node::None) => "None",
            Some(Node::Bool) => "a bool",
            Some(Node::Int(_)) => "another int",
            Some(Node::Float) => "a float",
            Some(Node::Bytes) => "bytes",
            Some(Node::String(_)) => "a string",
            Some(Node::List(_)) => "a list",
            Some(Node::Tuple(_)) => "a tuple",
            Some(Node::Set) => "a set",
            Some(Node::Dict(_)) => "a dict",
            Some(Node::Opaque) => "an object, which is not made",
        };
        self.wrong(expected, found)
    }

    fn wrong(&self, expected: &'static str, found: &str) -> ReadError {
        ReadError::Record {
            path: self.path.to_owned(),
            place: self.name.clone(),
            expected,
            found: found.to_owned(),
        }
    }
}

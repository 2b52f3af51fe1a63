//! The records of a device, as events.

use super::super::ReadError;
use super::super::error::brief;
use super::super::pickle::{Id, Pickle, Value};
use super::place::Place;
use super::{is_private, stream};
use crate::event::{Action, Event, LogStream, Numbered};
use crate::warning::{Named, Part, Tally, Warning};
use std::path::Path;

/// The records that are replayed, and what is said of the others.
pub(super) struct History {
    pub(super) events: Vec<Event>,
    pub(super) warnings: Vec<Warning>,
}

/// What a record is in a replay.
enum Kind {
    Memory(Action),
    /// It maps or unmaps a part of an expandable segment.
    Expandable,
    /// The memory is the business of the allocator that wrote the log, or there is none.
    PassedOver,
    Unknown,
}

/// `free_completed` is when the memory may serve again, so that is the free.
fn kind(action: &str) -> Kind {
    match action {
        "alloc" => Kind::Memory(Action::Allocate),
        "free_completed" | "free" => Kind::Memory(Action::Free),
        "oom" => Kind::Memory(Action::Failure),
        "segment_map" | "segment_unmap" => Kind::Expandable,
        "free_requested" | "segment_alloc" | "segment_free" | "snapshot" | "annotate"
        | "user_defined" => Kind::PassedOver,
        _ => Kind::Unknown,
    }
}

/// Whether a record would be replayed.
pub(super) fn is_memory(pickle: &Pickle<'_>, record: Id) -> bool {
    let Value::Dict(dict) = pickle.get(record) else { return false };
    match pickle.look_up(dict, "action") {
        Some(Value::String(action)) => matches!(kind(action), Kind::Memory(_)),
        _ => false,
    }
}

pub(super) fn read(
    path: &Path,
    pickle: &Pickle<'_>,
    device: i64,
    records: &[Id],
    streams: &mut Numbered<LogStream>,
) -> Result<History, ReadError> {
    let mut events = Vec::new();
    let mut first = None;
    let (mut unknown, mut passed_over) = (Named::default(), Named::default());
    let [mut expandable, mut private] = [Tally::default(); 2];
    let mut private_records = 0;
    for (number, entry) in records.iter().enumerate() {
        let name = format!("device_traces[{device}][{number}]");
        let place = Place { path, record: Some(number + 1), name };
        let entry = place.dict(pickle.get(*entry), "a dict")?;
        let name = place.string(pickle, entry, "action")?;
        // Where the memory is not replayed, it is told as far as the record has it.
        let told = match pickle.look_up(entry, "size") {
            Some(Value::Int(size)) => u64::try_from(*size).unwrap_or(0),
            _ => 0,
        };
        let action = match kind(name) {
            Kind::Memory(action) => action,
            Kind::Expandable => {
                expandable.add(told);
                continue;
            }
            Kind::PassedOver => {
                passed_over.at(brief(name)).add(told);
                continue;
            }
            Kind::Unknown => {
                unknown.at(brief(name)).add(told);
                continue;
            }
        };
        let number_of = |key, expected| place.number(pickle, entry, key, expected);
        let time = place.optional(pickle, entry, "time_us", "microseconds, an int")?;
        let time = time.map(|time| {
            let first = *first.get_or_insert(time);
            time.saturating_sub(first).saturating_mul(1000)
        });
        let handle = place.optional(pickle, entry, "stream", "a stream's handle, an int")?;
        let size = number_of("size", "a size in bytes, an int")?;
        if is_private(pickle, entry, "pool_id") {
            private_records += 1;
            if action == Action::Allocate {
                private.add(size);
            }
        }
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
            size: Some(size),
            stream: stream(streams, handle.unwrap_or(0)),
        });
    }
    let mut warnings: Vec<Warning> = unknown.of(Part::UnknownAction).collect();
    warnings.extend(expandable.of(Part::Expandable));
    if private_records > 0 {
        let private = Warning::new(Part::PrivateRecords, private);
        warnings.push(Warning { number: private_records, ..private });
    }
    warnings.extend(passed_over.of(Part::PassedOver));
    Ok(History { events, warnings })
}

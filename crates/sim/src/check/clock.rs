//! Vector clocks. For an operation, a clock has the last operation of every stream that comes before
//! it.

use super::report::OpName;
use std::collections::BTreeMap;

/// One access, by the operation that makes it and its place in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessStamp {
    pub(crate) stream: u64,
    pub(crate) tick: u64,
    pub(crate) name: OpName,
}

/// The last tick of each stream that is ordered before an operation.
///
/// Ticks that the host has seen complete are left out. Every operation enqueued from then on comes after them, so each
/// stream keeps that tick once (`SimStream::seen`). A clock is therefore as short as the number of streams with work in
/// flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VectorClock(BTreeMap<u64, u64>);

impl VectorClock {
    pub(crate) fn get(&self, stream: u64) -> u64 {
        self.0.get(&stream).copied().unwrap_or(0)
    }

    pub(crate) fn raise(&mut self, stream: u64, tick: u64) {
        let last = self.0.entry(stream).or_default();
        *last = tick.max(*last);
    }

    pub(crate) fn join(&mut self, other: &Self) {
        for (stream, tick) in other.entries() {
            self.raise(stream, tick);
        }
    }

    /// Removes the entries that the host has seen complete.
    pub(crate) fn remove_seen(&mut self, is_seen: impl Fn(u64, u64) -> bool) {
        self.0.retain(|&stream, tick| !is_seen(stream, *tick));
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(&stream, &tick)| (stream, tick))
    }
}

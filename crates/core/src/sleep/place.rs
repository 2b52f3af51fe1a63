//! The parts of a pool's memory that are in use, one behind the other.

use crate::driver::DeviceRange;
use crate::pool::MappedPlace;
use std::collections::HashSet;

/// A part of a pool's memory, and where it is in the contents.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Where the handle is mapped that it lies in.
    place: u64,
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) offset: usize,
}

impl Part {
    /// The part in pieces of so many bytes.
    pub(super) fn pieces(self, bytes: usize) -> impl Iterator<Item = Self> {
        (0..self.bytes).step_by(bytes).map(move |at| Self {
            address: self.address + at as u64,
            bytes: bytes.min(self.bytes - at),
            offset: self.offset + at,
            ..self
        })
    }

    pub(super) fn range(&self) -> DeviceRange {
        DeviceRange { address: self.address, bytes: self.bytes }
    }
}

/// The parts in use, each at a multiple of `alignment` in the contents, and the bytes of these.
pub(super) fn parts_of(places: &[MappedPlace], alignment: usize) -> (Vec<Part>, usize) {
    let (mut parts, mut offset) = (Vec::new(), 0);
    for place in places {
        for &(address, bytes) in &place.used {
            let bytes = bytes as usize;
            parts.push(Part { place: place.address, address, bytes, offset });
            offset += bytes.next_multiple_of(alignment);
        }
    }
    (parts, offset)
}

/// The parts of those places.
pub(super) fn parts_in(parts: &[Part], places: &[MappedPlace]) -> Vec<Part> {
    let known: HashSet<u64> = places.iter().map(|place| place.address).collect();
    parts.iter().filter(|part| known.contains(&part.place)).copied().collect()
}

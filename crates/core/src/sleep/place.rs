//! The parts of a pool's memory that are in use, one behind the other.

use crate::driver::DeviceRange;
use crate::pool::MappedPlace;

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

/// The parts in use, in the order of their addresses, each at a multiple of `alignment` in the contents, and the bytes of these.
pub(super) fn parts_of(groups: &[&[MappedPlace]], alignment: usize) -> (Vec<Part>, usize) {
    let (mut parts, mut offset) = (Vec::new(), 0);
    for place in groups.iter().copied().flatten() {
        for &(address, bytes) in &place.used {
            let bytes = bytes as usize;
            parts.push(Part { place: place.address, address, bytes, offset });
            offset += bytes.next_multiple_of(alignment);
        }
    }
    (parts, offset)
}

/// The parts of places, some of which may be gone, and some that were several may be one.
pub(super) fn parts_in<'a>(
    parts: &'a [Part],
    places: &'a [MappedPlace],
) -> impl Iterator<Item = &'a Part> + Clone {
    places.iter().flat_map(|place| {
        let first = parts.partition_point(|part| part.place < place.address);
        let end = place.address + place.bytes;
        parts[first..].iter().take_while(move |part| part.place < end)
    })
}

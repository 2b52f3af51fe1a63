//! The vectors that memory is, as containers tell it.

use aquifer_driver::Site;
use aquifer_driver::impls::Count;
use aquifer_driver::{VectorEvent, VectorType};
use std::collections::BTreeMap;
use std::fmt;

/// The vector that a range of a block is, or was last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vector {
    kind: VectorType,
    /// The line that made it.
    pub(crate) made: Option<Site>,
    /// The vector was neither freed nor taken apart, as far as the device knows.
    is_live: bool,
}

impl Vector {
    fn new(kind: VectorType) -> Self {
        Self { kind, made: Site::current(), is_live: true }
    }

    /// Whether the vector has its memory still, so that a free without a line is its drop.
    pub(crate) fn is_live(&self) -> bool {
        self.is_live
    }
}

/// `DeviceVec<f32> of 1024 elements (4096 bytes)`, `DeviceBuffer of 4096 bytes`.
impl fmt::Display for Vector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VectorType { name, elements, bytes } = self.kind;
        let path = name.find('<').unwrap_or(name.len());
        let module = name.get(..path).and_then(|path| path.rfind("::")).map_or(0, |at| at + 2);
        write!(f, "{} of ", name.get(module..).unwrap_or(name))?;
        let bytes = Count(bytes as u64, "byte");
        match path == name.len() {
            true => bytes.fmt(f),
            false => write!(f, "{} ({bytes})", Count(elements as u64, "element")),
        }
    }
}

/// The vectors of one block.
///
/// INV-1: their ranges are disjoint.
#[derive(Debug, Default)]
pub(crate) struct Vectors(BTreeMap<u64, (u64, Vector)>);

impl Vectors {
    /// Notes what a container makes of a range.
    pub(crate) fn apply(&mut self, (start, end): (u64, u64), event: VectorEvent) {
        match event {
            VectorEvent::Made(kind) => self.set((start, end), Vector::new(kind)),
            // A second vector over one that lives has its memory by a raw pointer.
            VectorEvent::Assembled(_) if self.at(start).is_some_and(|known| known.is_live) => {}
            VectorEvent::Assembled(kind) => self.set((start, end), Vector::new(kind)),
            VectorEvent::TakenApart => self.end(start),
        }
    }

    fn set(&mut self, (start, end): (u64, u64), vector: Vector) {
        self.remove((start, end));
        self.0.insert(start, (end, vector));
    }

    /// Forgets all vectors of a range, which has another owner.
    pub(crate) fn remove(&mut self, (start, end): (u64, u64)) {
        if let Some((&before, &(its_end, _))) = self.0.range(..start).next_back()
            && its_end > start
        {
            self.0.remove(&before);
        }
        self.0.extract_if(start..end, |_, _| true).for_each(drop);
    }

    /// Ends the vector that begins at `start`, which stays known.
    pub(crate) fn end(&mut self, start: u64) {
        if let Some((_, vector)) = self.0.get_mut(&start) {
            vector.is_live = false;
        }
    }

    /// Ends the vectors that begin in a range, which stay known.
    pub(crate) fn end_in(&mut self, (start, end): (u64, u64)) {
        self.0.range_mut(start..end).for_each(|(_, (_, vector))| vector.is_live = false);
    }

    /// The vector that a byte is part of, or was.
    pub(crate) fn at(&self, offset: u64) -> Option<Vector> {
        let (_, &(end, vector)) = self.0.range(..=offset).next_back()?;
        (offset < end).then_some(vector)
    }
}

/// The memory that a report is about, with its address, its bytes, and the vector that it is part of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportedMemory {
    pub(crate) range: (u64, u64),
    pub(crate) vector: Option<Vector>,
}

impl ReportedMemory {
    /// No memory.
    pub(crate) const NONE: Self = Self { range: (0, 0), vector: None };

    pub(crate) fn new(range: (u64, u64), vector: Option<Vector>) -> Self {
        Self { range, vector }
    }
}

#[cfg(test)]
mod tests;

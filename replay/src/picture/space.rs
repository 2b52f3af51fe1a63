//! The reserved memory, without the gaps between the device's blocks.

use super::cells::Area;
use crate::counting::Segment;

/// All addresses that were ever reserved, moved together.
pub(super) struct Space {
    /// Disjoint, by address: start, end, and how much lies below.
    ranges: Vec<(u64, u64, u64)>,
    bytes: u64,
}

impl Space {
    pub(super) fn new(segments: &[Segment]) -> Self {
        let mut spans: Vec<(u64, u64)> =
            segments.iter().map(|s| (s.address, s.address.saturating_add(s.bytes))).collect();
        spans.sort_unstable();
        let mut ranges: Vec<(u64, u64, u64)> = Vec::new();
        for (start, end) in spans {
            match ranges.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => ranges.push((start, end, 0)),
            }
        }
        let mut bytes = 0;
        for (start, end, below) in &mut ranges {
            *below = bytes;
            bytes += *end - *start;
        }
        Self { ranges, bytes }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where bytes at an address are, in parts of all. `None` if they were never reserved.
    pub(super) fn area(
        &self,
        address: u64,
        bytes: u64,
        from: usize,
        to: usize,
        steps: usize,
    ) -> Option<Area> {
        let at = self.ranges.partition_point(|(start, _, _)| *start <= address).checked_sub(1)?;
        let (start, end, below) = self.ranges[at];
        if address >= end {
            return None;
        }
        let bottom = below + (address - start);
        let part = |bytes: u64| bytes as f64 / self.bytes as f64;
        let when = |step: usize| step.min(steps) as f64 / steps as f64;
        let top = part(bottom.saturating_add(bytes)).min(1.0);
        Some(Area { from: when(from), to: when(to), bottom: part(bottom), top })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_closed() {
        let segment = |address, bytes| Segment { address, bytes, from: 0, to: 1 };
        let space = Space::new(&[segment(5000, 100), segment(1000, 200), segment(1100, 200)]);
        assert_eq!(space.bytes(), 400);
        let area = space.area(5050, 50, 1, usize::MAX, 4).unwrap();
        assert_eq!((area.from, area.to, area.bottom, area.top), (0.25, 1.0, 0.875, 1.0));
        assert!(space.area(1300, 10, 0, 1, 4).is_none());
        assert!(space.area(10, 10, 0, 1, 4).is_none());
    }
}

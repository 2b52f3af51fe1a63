//! Free memory by address and by size. What is adjacent is one range.

use std::collections::{BTreeMap, BTreeSet};

/// Where a block lies, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

#[derive(Default)]
pub(crate) struct FreeRanges {
    by_address: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
}

impl FreeRanges {
    fn insert(&mut self, Range { address, bytes }: Range) {
        self.by_address.insert(address, bytes);
        self.by_size.insert((bytes, address));
    }

    fn remove(&mut self, Range { address, bytes }: Range) {
        self.by_address.remove(&address);
        self.by_size.remove(&(bytes, address));
    }

    /// Adds a range, which merges with its neighbours.
    pub(crate) fn add(&mut self, mut range: Range) {
        if let Some(&bytes) = self.by_address.get(&(range.address + range.bytes)) {
            self.remove(Range { address: range.address + range.bytes, bytes });
            range.bytes += bytes;
        }
        let below = self.by_address.range(..range.address).next_back();
        if let Some((&address, &bytes)) = below
            && address + bytes == range.address
        {
            self.remove(Range { address, bytes });
            range = Range { address, bytes: bytes + range.bytes };
        }
        self.insert(range);
    }

    /// Takes the beginning of the smallest range that has so many bytes; all of it, where no more than `rest` would be
    /// left.
    pub(crate) fn take(&mut self, bytes: usize, rest: usize) -> Option<Range> {
        let &(found, address) = self.by_size.range((bytes, 0)..).next()?;
        self.remove(Range { address, bytes: found });
        if found - bytes <= rest {
            return Some(Range { address, bytes: found });
        }
        self.insert(Range { address: address + bytes, bytes: found - bytes });
        Some(Range { address, bytes })
    }

    /// Takes exactly this range, if it is free as a whole and nothing beside it is.
    pub(crate) fn take_whole(&mut self, range: Range) -> bool {
        let is_free = self.by_address.get(&range.address) == Some(&range.bytes);
        if is_free {
            self.remove(range);
        }
        is_free
    }

    pub(crate) fn drain(&mut self) -> Vec<Range> {
        self.by_size.clear();
        let all = std::mem::take(&mut self.by_address).into_iter();
        all.map(|(address, bytes)| Range { address, bytes }).collect()
    }
}

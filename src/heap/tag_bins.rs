//! Which tag has which bins.

use super::bins::Bins;
use super::types::{COMPLETE, Tag};

/// No bins: of a tag that has no free blocks, or never had.
const NO_SET: u32 = u32::MAX;

/// Bins by tag. Tags are many, and those that have blocks at one time are few. A set of bins that ran
/// empty serves another tag, so there are about as many sets as tags that had blocks at once.
#[derive(Debug)]
pub(super) struct TagBins {
    /// The place of a tag's bins in `sets`.
    index: Vec<u32>,
    sets: Vec<Bins>,
}

impl TagBins {
    pub(super) fn new() -> Self {
        Self { index: vec![0], sets: vec![Bins::new(COMPLETE)] }
    }

    pub(super) fn get(&self, tag: Tag) -> Option<&Bins> {
        self.sets.get(self.place(tag)?)
    }

    /// Where a tag's bins are, for `[]`.
    #[inline]
    pub(super) fn place(&self, tag: Tag) -> Option<usize> {
        self.index.get(usize::from(tag)).filter(|&&set| set != NO_SET).map(|&set| set as usize)
    }

    /// Where a tag's bins are; made if it has none.
    #[inline]
    pub(super) fn make(&mut self, tag: Tag) -> usize {
        match self.place(tag) {
            Some(set) => set,
            None => self.assign(tag),
        }
    }

    #[cold]
    fn assign(&mut self, tag: Tag) -> usize {
        if self.index.len() <= usize::from(tag) {
            self.index.resize(usize::from(tag) + 1, NO_SET);
        }
        // The first set stays with complete memory, which most allocations come from.
        let found = self.sets.iter().skip(1).position(|bins| bins.is_empty());
        let set = match found {
            Some(before) => {
                let bins = &mut self.sets[before + 1];
                self.index[usize::from(bins.tag)] = NO_SET;
                bins.tag = tag;
                before + 1
            }
            None => {
                self.sets.push(Bins::new(tag));
                self.sets.len() - 1
            }
        };
        // There are no more sets than tags, and a tag has 16 bits.
        self.index[usize::from(tag)] = set as u32;
        set
    }

    /// The bins that have blocks. O(sets).
    pub(super) fn filled(&self) -> impl Iterator<Item = &Bins> {
        self.sets.iter().filter(|bins| !bins.is_empty())
    }

    /// The first place, from this one on, whose bins have blocks, and their tag.
    pub(super) fn filled_at_or_after(&self, place: usize) -> Option<(usize, Tag)> {
        let sets = self.sets.iter().enumerate().skip(place);
        sets.filter(|(_, bins)| !bins.is_empty()).map(|(place, bins)| (place, bins.tag)).next()
    }

    #[cfg(test)]
    pub(super) fn sets(&self) -> usize {
        self.sets.len()
    }
}

impl std::ops::Index<usize> for TagBins {
    type Output = Bins;

    #[inline]
    fn index(&self, set: usize) -> &Bins {
        &self.sets[set]
    }
}

impl std::ops::IndexMut<usize> for TagBins {
    #[inline]
    fn index_mut(&mut self, set: usize) -> &mut Bins {
        &mut self.sets[set]
    }
}

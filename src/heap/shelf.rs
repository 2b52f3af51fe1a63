//! Which tag has which bins.

use super::bins::Bins;
use super::{COMPLETE, Tag};

/// No bins: of a tag that has no free blocks, or never had.
const NONE: u32 = u32::MAX;

/// Bins by tag. Tags may be many; those that have blocks at one time are few, and sets of bins that
/// ran empty serve other tags, so there are about as many sets as tags that had blocks at once.
#[derive(Debug)]
pub(super) struct Shelf {
    /// The place of a tag's bins in `sets`.
    index: Vec<u32>,
    sets: Vec<Bins>,
}

impl Shelf {
    pub(super) fn new() -> Self {
        Self { index: vec![0], sets: vec![Bins::new(COMPLETE)] }
    }

    #[inline]
    pub(super) fn get(&self, tag: Tag) -> Option<&Bins> {
        let set = *self.index.get(usize::from(tag))?;
        self.sets.get(set as usize)
    }

    /// The bins of a tag; made if it has none.
    #[inline]
    pub(super) fn bins(&mut self, tag: Tag) -> &mut Bins {
        let mut set = self.index.get(usize::from(tag)).map_or(NONE, |&set| set);
        if set == NONE {
            set = self.give(tag);
        }
        &mut self.sets[set as usize]
    }

    #[cold]
    fn give(&mut self, tag: Tag) -> u32 {
        if self.index.len() <= usize::from(tag) {
            self.index.resize(usize::from(tag) + 1, NONE);
        }
        // The first set stays with complete memory, which most allocations come from.
        let found = self.sets.iter().skip(1).position(|bins| bins.blocks() == 0);
        let set = match found {
            Some(before) => {
                let bins = &mut self.sets[before + 1];
                self.index[usize::from(bins.tag)] = NONE;
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
        set as u32
    }

    /// The bins that have blocks. As long as there are sets.
    pub(super) fn filled(&self) -> impl Iterator<Item = &Bins> {
        self.sets.iter().filter(|bins| bins.blocks() != 0)
    }

    #[cfg(test)]
    pub(super) fn sets(&self) -> usize {
        self.sets.len()
    }
}

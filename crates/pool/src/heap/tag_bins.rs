//! Which tag has which free blocks.

use super::bins::{FreeLists, OneList, Rows, Summary, Table, all, insert};
use super::nodes::Nodes;
use super::types::Tag;
use std::collections::BTreeMap;

/// Blocks of a tag up to which it has one list, and from which it has one again.
const ONE_LIST: (u32, u32) = (8, 4);
/// Blocks of a tag up to which it has a list for each row, and from which it has those again.
const ROWS: (u32, u32) = (128, 96);

/// The free blocks of one tag, in as much memory as they are worth.
#[derive(Debug)]
pub(super) enum Bins {
    OneList(OneList),
    Rows(Box<Rows>),
    Table(Box<Table>),
}

impl Bins {
    const EMPTY: Self = Self::OneList(OneList::EMPTY);

    fn lists(&self) -> &dyn FreeLists {
        match self {
            Self::OneList(list) => list,
            Self::Rows(rows) => &**rows,
            Self::Table(table) => &**table,
        }
    }

    fn lists_mut(&mut self) -> &mut (dyn FreeLists + 'static) {
        match self {
            Self::OneList(list) => list,
            Self::Rows(rows) => &mut **rows,
            Self::Table(table) => &mut **table,
        }
    }

    /// Empty ones of the kind that so many blocks are worth, if this is not that kind.
    fn other(&self, blocks: u32) -> Option<Self> {
        match self {
            Self::OneList(_) if blocks > ONE_LIST.0 => Some(Self::Rows(Box::new(Rows::EMPTY))),
            Self::Rows(_) if blocks > ROWS.0 => Some(Self::Table(Box::new(Table::EMPTY))),
            Self::Rows(_) if blocks < ONE_LIST.1 => Some(Self::EMPTY),
            Self::Table(_) if blocks < ROWS.1 => Some(Self::Rows(Box::new(Rows::EMPTY))),
            _ => None,
        }
    }
}

/// Bins by tag. Those of the heap's own tag are a table from the first block on until the heap has no
/// memory; a tag without blocks has nothing.
#[derive(Debug)]
pub(super) struct TagBins {
    pub(super) own_tag: Tag,
    own: Option<Box<Table>>,
    others: BTreeMap<Tag, Bins>,
}

impl TagBins {
    pub(super) fn new(own_tag: Tag) -> Self {
        Self { own_tag, own: None, others: BTreeMap::new() }
    }

    /// The table of the heap's own tag, if it has had blocks.
    #[inline]
    pub(super) fn own(&mut self) -> Option<&mut Table> {
        self.own.as_deref_mut()
    }

    /// The same if the tag is the heap's own.
    #[inline]
    pub(super) fn own_of(&mut self, tag: Tag) -> Option<&mut Table> {
        if tag == self.own_tag { self.own() } else { None }
    }

    pub(super) fn get(&self, tag: Tag) -> Option<&dyn FreeLists> {
        if tag == self.own_tag {
            return self.own.as_deref().map(|table| table as &dyn FreeLists);
        }
        self.others.get(&tag).map(Bins::lists)
    }

    /// A tag's lists, made if it has none. [`settle`](Self::settle) has to follow.
    pub(super) fn make(&mut self, tag: Tag) -> &mut (dyn FreeLists + 'static) {
        if tag == self.own_tag {
            return &mut **self.own.get_or_insert_with(|| Box::new(Table::EMPTY));
        }
        self.others.entry(tag).or_insert(Bins::EMPTY).lists_mut()
    }

    /// Gives the lists of a tag the kind that its blocks are worth.
    pub(super) fn settle(&mut self, tag: Tag, nodes: &mut Nodes) {
        if tag == self.own_tag {
            return;
        }
        let Some(bins) = self.others.get_mut(&tag) else { return };
        let blocks = bins.lists().blocks();
        if blocks == 0 {
            self.others.remove(&tag);
        } else if let Some(mut other) = bins.other(blocks) {
            let moved: Vec<u32> = all(bins.lists(), nodes.all()).map(|(node, _)| node).collect();
            for node in moved {
                insert(other.lists_mut(), &mut nodes.view(), node);
            }
            *bins = other;
        }
    }

    /// Forgets the table of the heap's own tag, which has no blocks.
    pub(super) fn clear(&mut self) {
        self.own = None;
    }

    pub(super) fn summary(&self, tag: Tag, nodes: &Nodes) -> Summary {
        self.get(tag).map_or(Summary::EMPTY, |lists| lists.summary(nodes.all()))
    }

    /// The tags that have blocks, and those. O(tags).
    pub(super) fn filled(&self) -> impl Iterator<Item = (Tag, &dyn FreeLists)> {
        let own = self.get(self.own_tag).filter(|lists| lists.blocks() != 0);
        let others = self.others.iter().map(|(&tag, bins)| (tag, bins.lists()));
        own.into_iter().map(|lists| (self.own_tag, lists)).chain(others)
    }

    /// The first tag after this one that has blocks; without one, the heap's own comes first.
    #[inline]
    pub(super) fn next_filled(&self, after: Option<Tag>) -> Option<Tag> {
        let first = match after {
            None if self.get(self.own_tag).is_some_and(|lists| lists.blocks() != 0) => {
                return Some(self.own_tag);
            }
            None => 0,
            Some(tag) if tag == self.own_tag => 0,
            Some(tag) => tag.checked_add(1)?,
        };
        self.others.range(first..).next().map(|(&tag, _)| tag)
    }
}

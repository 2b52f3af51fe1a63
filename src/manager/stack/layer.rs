//! The resources and adaptors of a text.

use super::names::LayerKind;
use super::value::Value;
use std::ops::Range;

/// All of a text, from the inside out: a text has at most one upstream for each resource, so it is a row.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Layers {
    /// The only one that is over no other.
    pub(super) first: Layer,
    pub(super) others: Vec<Layer>,
}

/// A resource or an adaptor, with its options.
#[derive(Clone)]
pub(super) struct Layer {
    pub(super) kind: &'static LayerKind,
    /// Where its name stands, in bytes of the text. For an upstream that was left out, the name of the
    /// resource over it.
    pub(super) at: Range<usize>,
    /// Values with the indices of their options, in the order of these.
    pub(super) values: Vec<(usize, Value)>,
}

impl Layer {
    /// The value of the option of this name, if it is given.
    pub(super) fn value(&self, option: &str) -> Option<&Value> {
        let index = self.kind.option(option)?;
        self.values.iter().find(|(other, _)| *other == index).map(|(_, value)| value)
    }
}

/// Wherever they stand.
impl PartialEq for Layer {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.values == other.values
    }
}

impl Eq for Layer {}

//! The resources and adaptors of a text.

use super::names::{LayerKind, Over, Source};
use super::value::Value;
use std::ops::Range;

/// All layers of a text, from the inside out. A text has at most one upstream for each
/// resource, so it is a row.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Layers {
    pub(super) first: Layer<Source>,
    pub(super) others: Vec<Layer<Over>>,
}

/// A resource or an adaptor, with its options.
#[derive(Clone)]
pub(super) struct Layer<M> {
    pub(super) kind: &'static LayerKind,
    /// The resource or adaptor that it is, which is that of `kind`.
    pub(super) make: M,
    /// The place of its name, in bytes of the text. For an upstream that was left out, the name of the
    /// resource over it.
    pub(super) at: Range<usize>,
    /// Values with the indices of their options, in the order of these.
    pub(super) values: Vec<(usize, Value)>,
}

impl<M> Layer<M> {
    /// The value of the option of this name, if it is given.
    pub(super) fn value(&self, option: &str) -> Option<&Value> {
        let index = self.kind.option(option)?;
        self.values.iter().find(|(other, _)| *other == index).map(|(_, value)| value)
    }
}

impl Layer<Over> {
    /// Has a pool over plain memory take blocks, unless the text says otherwise.
    pub(super) fn make_shareable(&mut self) {
        if self.make == Over::Pool
            && self.value("handles").is_none()
            && let Some(index) = self.kind.option("handles")
        {
            let place = self.values.partition_point(|(other, _)| *other < index);
            self.values.insert(place, (index, Value::Name("off")));
        }
    }
}

/// Equal layers may stand at different places.
impl<M> PartialEq for Layer<M> {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.values == other.values
    }
}

impl<M> Eq for Layer<M> {}

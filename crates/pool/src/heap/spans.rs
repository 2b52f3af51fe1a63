//! Where the heap's pieces of address space begin and end.

use std::collections::BTreeMap;

/// A stretch of one upstream_block without a gap, all of which belongs to the heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) end: u64,
    pub(super) upstream_block: u32,
    /// The node that closes the ring of its blocks.
    pub(super) border: u32,
}

/// Spans by where they start. Addresses are absolute, so no two overlap, whatever their upstream_block.
#[derive(Debug, Default)]
pub(super) struct Spans(BTreeMap<u64, Span>);

impl Spans {
    /// The span that an address lies in, or the last one before it, and where that starts.
    pub(super) fn below(&self, address: u64) -> Option<(u64, Span)> {
        self.0.range(..=address).next_back().map(|(&start, &span)| (start, span))
    }

    /// The span of this upstream_block that ends at an address, and where it starts.
    pub(super) fn ending(&self, address: u64, upstream_block: u32) -> Option<(u64, Span)> {
        let (start, span) = self.below(address.checked_sub(1)?)?;
        (span.end == address && span.upstream_block == upstream_block).then_some((start, span))
    }

    /// The span of this upstream_block that starts at an address.
    pub(super) fn starting(&self, address: u64, upstream_block: u32) -> Option<Span> {
        self.0.get(&address).copied().filter(|span| span.upstream_block == upstream_block)
    }

    /// Whether part of these addresses is in a span already.
    pub(super) fn overlap(&self, start: u64, end: u64) -> bool {
        end.checked_sub(1)
            .and_then(|last| self.below(last))
            .is_some_and(|(_, span)| span.end > start)
    }

    /// Sets the span that starts at an address.
    pub(super) fn set(&mut self, start: u64, span: Span) {
        self.0.insert(start, span);
    }

    pub(super) fn remove(&mut self, start: u64) {
        self.0.remove(&start);
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, Span)> {
        self.0.iter().map(|(&start, &span)| (start, span))
    }
}

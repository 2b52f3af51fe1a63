//! The blocks that a pool has taken from upstream, and their bytes against the maximum.

/// A block of upstream.
#[derive(Debug)]
pub(super) struct UpstreamBlock<B> {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) block: B,
}

/// INV-POOL-6: bytes are reserved before upstream is asked for them and until upstream has them back, so
/// no two threads pass the maximum together.
#[derive(Debug)]
pub(super) struct UpstreamBlocks<B> {
    bytes: usize,
    /// Of these the bytes of `blocks`, which upstream gave.
    held: usize,
    peak: usize,
    blocks: Vec<Option<UpstreamBlock<B>>>,
}

impl<B> UpstreamBlocks<B> {
    pub(super) fn new() -> Self {
        Self { bytes: 0, held: 0, peak: 0, blocks: Vec::new() }
    }

    /// The bytes that are reserved: held, asked of upstream, or on their way back to it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// The most bytes that upstream had given at once.
    pub(super) fn peak(&self) -> usize {
        self.peak
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.iter().flatten().count()
    }

    /// Reserves between `least` and `wish` bytes, as many as stay within `limit`. Returns how many.
    pub(super) fn reserve(&mut self, least: usize, wish: usize, limit: usize) -> Option<usize> {
        let room = limit.saturating_sub(self.bytes);
        if least > room {
            return None;
        }
        let bytes = wish.clamp(least, room);
        self.bytes += bytes;
        Some(bytes)
    }

    pub(super) fn unreserve(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    /// Adds a block whose bytes are reserved. Returns its number.
    pub(super) fn insert(&mut self, block: UpstreamBlock<B>) -> u32 {
        self.held += block.bytes as usize;
        self.peak = self.peak.max(self.held);
        let number = self.blocks.iter().position(Option::is_none).unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() - 1
        });
        self.blocks[number] = Some(block);
        number as u32
    }

    /// The blocks, largest first: number, address, bytes.
    pub(super) fn largest_first(&self) -> Vec<(u32, u64, u64)> {
        let numbered = (0..).zip(&self.blocks);
        let mut all: Vec<_> = numbered
            .filter_map(|(number, block)| block.as_ref().map(|it| (number, it.address, it.bytes)))
            .collect();
        all.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
        all
    }

    /// Takes a block out, whose bytes stay reserved until [`unreserve`](Self::unreserve).
    pub(super) fn remove_reserved(&mut self, number: u32) -> Option<UpstreamBlock<B>> {
        let removed = self.blocks.get_mut(number as usize)?.take()?;
        self.held -= removed.bytes as usize;
        Some(removed)
    }
}

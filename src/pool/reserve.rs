//! What a pool has taken from upstream: its quota and its ranges.

/// One block of upstream.
#[derive(Debug)]
pub(super) struct Held<R> {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) range: R,
}

/// Bytes are counted before upstream is asked, so that no two threads pass the maximum together.
#[derive(Debug)]
pub(super) struct Reserve<R> {
    bytes: usize,
    peak: usize,
    held: Vec<Option<Held<R>>>,
}

impl<R> Reserve<R> {
    pub(super) fn new() -> Self {
        Self { bytes: 0, peak: 0, held: Vec::new() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn peak(&self) -> usize {
        self.peak
    }

    pub(super) fn blocks(&self) -> usize {
        self.held.iter().flatten().count()
    }

    /// Counts between `least` and `wish` bytes in, as much as stays within `limit`. Returns how many.
    pub(super) fn count_in(&mut self, least: usize, wish: usize, limit: usize) -> Option<usize> {
        let room = limit.saturating_sub(self.bytes);
        if least > room {
            return None;
        }
        let bytes = wish.clamp(least, room);
        #[cfg(not(aquifer_fault = "quota_after_upstream"))]
        {
            self.bytes += bytes;
        }
        self.peak = self.peak.max(self.bytes);
        Some(bytes)
    }

    pub(super) fn count_out(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    /// Takes a block of upstream in, whose bytes are counted. Returns its number.
    pub(super) fn insert(&mut self, held: Held<R>) -> u32 {
        #[cfg(aquifer_fault = "quota_after_upstream")]
        {
            self.bytes += held.bytes as usize;
        }
        let free = self.held.iter().position(Option::is_none).unwrap_or(self.held.len());
        if free == self.held.len() {
            self.held.push(Some(held));
        } else {
            self.held[free] = Some(held);
        }
        free as u32
    }

    /// The blocks, largest first: number, address, bytes.
    pub(super) fn largest_first(&self) -> Vec<(u32, u64, u64)> {
        let held = self.held.iter().enumerate();
        let mut all: Vec<_> = held
            .filter_map(|(number, held)| {
                held.as_ref().map(|held| (number as u32, held.address, held.bytes))
            })
            .collect();
        all.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
        all
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Held<R>> {
        let held = self.held.get_mut(number as usize)?.take()?;
        self.bytes -= held.bytes as usize;
        Some(held)
    }
}

//! Numbers that a seed gives, the same everywhere.

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Some of `all`, in an order of chance.
    pub(crate) fn some<T>(&mut self, mut all: Vec<T>, count: usize) -> Vec<T> {
        let mut some = Vec::new();
        while some.len() < count && !all.is_empty() {
            let bound = u64::try_from(all.len()).unwrap_or(u64::MAX);
            let at = usize::try_from(self.next() % bound).unwrap_or(0);
            some.push(all.swap_remove(at));
        }
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_and_nothing_twice() {
        let some = |seed| Random(seed).some((0..100).collect(), 30);
        let mut first = some(7);
        assert_eq!(first, some(7));
        assert_ne!(first, some(8));
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 30);
        assert_eq!(Random(1).some(vec![1, 2], 5).len(), 2);
    }
}

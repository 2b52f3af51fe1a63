//! The seeded generator behind every choice of a program.

#[path = "../../benches/pool/split_mix.rs"]
mod split_mix;

use split_mix::SplitMix64;

/// The same numbers on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix64);

impl Random {
    /// A stream of numbers of its own for each pair of a seed and a `sequence`.
    pub(crate) fn new(seed: u64, sequence: u64) -> Self {
        let start = seed ^ sequence.wrapping_mul(0xd1b5_4a32_d192_ed03);
        let mut random = Self(SplitMix64(start));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// Once in `times`.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Shuffles in place.
    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
    }
}

//! Vector clocks: which point of which stream comes before an operation.

use super::report::OpName;

/// One access: the operation and its point in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) stream: u64,
    pub(super) tick: u64,
    pub(super) name: OpName,
}

/// For each stream the last point that is ordered before, sorted by stream.
///
/// What the host has seen complete is not in here: it comes before everything enqueued from then
/// on, so it is kept once with each stream. That keeps clocks as short as the streams in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<(u64, u64)>);

impl Clock {
    pub(super) fn get(&self, stream: u64) -> u64 {
        match self.0.binary_search_by_key(&stream, |entry| entry.0) {
            Ok(index) => self.0[index].1,
            Err(_) => 0,
        }
    }

    pub(super) fn raise(&mut self, stream: u64, tick: u64) {
        match self.0.binary_search_by_key(&stream, |entry| entry.0) {
            Ok(index) => self.0[index].1 = self.0[index].1.max(tick),
            Err(index) => self.0.insert(index, (stream, tick)),
        }
    }

    pub(super) fn join(&mut self, other: &Self) {
        for &(stream, tick) in &other.0 {
            self.raise(stream, tick);
        }
    }

    pub(super) fn forget(&mut self, known: impl Fn(u64, u64) -> bool) {
        self.0.retain(|&(stream, tick)| !known(stream, tick));
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_takes_the_later_of_each() {
        let (mut left, mut right) = (Clock::default(), Clock::default());
        left.raise(3, 5);
        left.raise(1, 2);
        right.raise(3, 4);
        right.raise(2, 7);
        left.join(&right);
        assert_eq!(left.entries().collect::<Vec<_>>(), [(1, 2), (2, 7), (3, 5)]);
        left.forget(|stream, _| stream == 2);
        assert_eq!((left.get(2), left.get(3)), (0, 5));
    }
}

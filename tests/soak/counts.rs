//! What happened in all programs of a soak: one in which nothing happens proves nothing.

use std::fmt;

/// Counts by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Vec<(&'static str, usize)>);

/// What has to happen at least once in so many programs.
pub(crate) type Floor = (&'static str, usize);

impl Tally {
    pub(crate) fn add(&mut self, name: &'static str, count: usize) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, so_far)) => *so_far += count,
            None => self.0.push((name, count)),
        }
    }

    pub(crate) fn join(&mut self, other: &Self) {
        for &(name, count) in &other.0 {
            self.add(name, count);
        }
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        self.0.iter().find(|(known, _)| *known == name).map_or(0, |&(_, count)| count)
    }

    /// What happened less often than it has to in `programs`.
    pub(crate) fn below<'a>(
        &self,
        floors: impl IntoIterator<Item = &'a Floor>,
        programs: usize,
    ) -> Vec<String> {
        let is_below = |(name, each): &&Floor| self.count(name) < programs / each;
        let told =
            |(name, each): &Floor| format!("{name}: {} of {}", self.count(name), programs / each);
        floors.into_iter().filter(is_below).map(told).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort();
        for (name, count) in sorted {
            write!(f, "\n  {name:40} {count:>10}")?;
        }
        Ok(())
    }
}

//! Which files need which, as a graph.

use std::collections::{BTreeMap, BTreeSet};

/// Files with the files that they need, and the methods for which they do. An import has none.
pub(super) type Needs<'a> = BTreeMap<&'a str, BTreeMap<&'a str, BTreeSet<&'a str>>>;

/// The strongly connected components of more than one file, sorted.
pub(super) fn circles<'a>(needs: &Needs<'a>) -> Vec<Vec<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        needs.keys().map(|file| (*file, reachable(needs, file))).collect();
    let mut circles: BTreeSet<Vec<&str>> = BTreeSet::new();
    for (file, from_here) in &reached {
        let circle: Vec<&str> =
            from_here.iter().copied().filter(|other| reached[other].contains(file)).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// The files that `start` needs, directly or by way of others.
pub(super) fn reachable<'a>(needs: &Needs<'a>, start: &str) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
    while let Some(file) = open.pop() {
        for next in needs.get(file).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(*next) {
                open.push(next);
            }
        }
    }
    seen
}

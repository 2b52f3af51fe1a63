//! The subjects of the last commits are short enough for `git log --oneline`.

use crate::Place;
use crate::cargo::prepared;
use crate::process::quiet;
use crate::report::Verdict;
use anyhow::{Result, bail};
use std::process::Command;

/// How many commits are looked at, and the last one that the rule came too late for.
const COMMITS: &str = "20";
const BEFORE_THE_RULE: &str = "^c135f88";

const LONGEST: usize = 72;

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let mut git = prepared(place, Command::new("git"));
    git.args(["log", "--no-merges", "--format=%h %s", "-n", COMMITS, "HEAD", BEFORE_THE_RULE]);
    // A crate's source from a registry has no history, and a shallow clone lacks its beginning.
    let Ok(finished) = quiet(&mut git, None).and_then(crate::process::Finished::ok) else {
        return Ok(Verdict::Skipped("the git history is not here".into()));
    };
    let long: Vec<&str> = finished.text.lines().filter(|line| is_long(line)).collect();
    if !long.is_empty() {
        bail!("subjects of more than {LONGEST} characters: {}", long.join("; "));
    }
    Ok(Verdict::Passed(format!("{} commits", finished.text.lines().count())))
}

/// Whether the subject behind the hash is too long.
fn is_long(line: &str) -> bool {
    line.split_once(' ').is_some_and(|(_, subject)| subject.chars().count() > LONGEST)
}

#[cfg(test)]
mod tests {
    use super::is_long;

    #[test]
    fn counts_the_subject_alone() {
        assert!(!is_long(&format!("0123abc {}", "x".repeat(72))));
        assert!(is_long(&format!("0123abc {}", "x".repeat(73))));
        assert!(!is_long("0123abc"));
    }
}

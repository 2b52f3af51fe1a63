//! Runs steps and says how they went.

use crate::Place;
use crate::steps::Step;
use anyhow::Result;
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How a step ended that did not fail.
pub(crate) enum Verdict {
    /// It ran; the note says how much (may be empty).
    Passed(String),
    /// It could not run here, and why.
    Skipped(String),
}

struct Row {
    name: &'static str,
    result: Result<Verdict>,
    took: Duration,
}

/// Runs all of `steps`, also after a failure, and ends with a table.
pub(crate) fn run(place: &Place, steps: &[&Step]) -> ExitCode {
    let mut rows = Vec::new();
    for step in steps {
        println!("\n==== {}: {}", step.name, step.about);
        let started = Instant::now();
        let row = Row { name: step.name, result: (step.run)(place), took: started.elapsed() };
        println!("---- {row}");
        rows.push(row);
    }
    println!("\n{:16} {:8} {:>9}", "step", "result", "seconds");
    for row in &rows {
        println!("{row}");
    }
    let (closing, failed) = closing(&rows);
    println!("{closing}");
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The last line, and whether a step failed.
fn closing(rows: &[Row]) -> (String, bool) {
    let count = |word| rows.iter().filter(|row| row.word() == word).count();
    let failed = count("FAILED");
    (
        format!("{} passed, {failed} failed, {} skipped", count("passed"), count("skipped")),
        failed > 0,
    )
}

impl Row {
    fn word(&self) -> &'static str {
        match &self.result {
            Ok(Verdict::Passed(_)) => "passed",
            Ok(Verdict::Skipped(_)) => "skipped",
            Err(_) => "FAILED",
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let note = match &self.result {
            Ok(Verdict::Passed(note) | Verdict::Skipped(note)) => note.clone(),
            Err(error) => format!("{error:#}"),
        };
        let line =
            format!("{:16} {:8} {:9.1}  {note}", self.name, self.word(), self.took.as_secs_f64());
        f.write_str(line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn row(result: Result<Verdict>) -> Row {
        Row { name: "sample", result, took: Duration::from_millis(1234) }
    }

    #[test]
    fn a_skipped_step_is_not_a_passed_one() {
        let rows = [
            row(Ok(Verdict::Passed("3 tests".into()))),
            row(Ok(Verdict::Skipped("no nightly".into()))),
        ];
        assert_eq!(closing(&rows), ("1 passed, 0 failed, 1 skipped".into(), false));
        assert_eq!(rows[1].to_string(), "sample           skipped        1.2  no nightly");
    }

    #[test]
    fn a_failure_is_counted_and_said() {
        let rows = [row(Ok(Verdict::Passed(String::new()))), row(Err(anyhow!("exit status: 101")))];
        assert_eq!(closing(&rows), ("1 passed, 1 failed, 0 skipped".into(), true));
        assert!(rows[1].to_string().ends_with("FAILED         1.2  exit status: 101"));
    }
}

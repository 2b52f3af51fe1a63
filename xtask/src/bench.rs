//! Runs the pool's bench on the simulated device: its times mean nothing there, but it has to run
//! and to print its rows.

use crate::Place;
use crate::cargo::cargo;
use crate::process::{quiet, shown};
use crate::report::Verdict;
use crate::rows::{Row, parse};
use anyhow::{Context as _, Result, bail};
use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);

/// Rows that every later program looks for: one of each group.
const WANTED: [&str; 12] = [
    "random n=1000 max=1MiB",
    "hot 1MiB inlined",
    "cross 2 streams 1MiB",
    "churn 16 threads",
    "driver calls in all of one stream warm",
    "churn 1 threads p99.9",
    "ping-pong steal",
    "churn 16 threads peak reserved over peak live",
    "scaling long churn 16 threads over private",
    "scaling vector 1MiB 16 threads over private",
    "pinned pair 1MiB fenced idle 64 in turn",
    "workflow 1MiB",
];

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let build = ["bench", "-p", "aquifer", "--bench", "pool", "--no-run"];
    shown(cargo(place).args(build), None)?.ok()?;
    let told = quiet(cargo(place).args(build).arg("--message-format=json"), None)?.ok()?;
    let mut command = Command::new(executable(&told.text).context("cargo named no bench")?);
    command.current_dir(&place.root).env("AQUIFER_BACKEND", "sim");
    let finished = shown(&mut command, Some(LIMIT))?.ok()?;
    let rows = parse(&finished.text)?;
    check(&rows)?;
    Ok(Verdict::Passed(format!("bench: {} rows", rows.len())))
}

/// The program that cargo's messages say it built.
fn executable(messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "pool")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

fn check(rows: &[Row]) -> Result<()> {
    let mut seen = HashSet::new();
    for row in rows {
        if !seen.insert((&row.peer, &row.workload)) {
            bail!("two rows are `{},{}`", row.peer, row.workload);
        }
        if !row.value.is_finite() || row.value < 0.0 {
            bail!("`{},{}` is {}", row.peer, row.workload, row.value);
        }
    }
    for wanted in WANTED {
        if !rows.iter().any(|row| row.peer == "aquifer pool" && row.workload == wanted) {
            bail!("the row `{wanted}` is missing");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn row(workload: &str, value: f64) -> Row {
        Row { peer: "aquifer pool".to_owned(), workload: workload.to_owned(), value }
    }

    #[test]
    fn all_rows_once_and_finite() {
        let mut rows: Vec<Row> = WANTED.iter().map(|workload| row(workload, 1.0)).collect();
        check(&rows).unwrap();
        rows.push(row("hot 256B", f64::NAN));
        assert!(check(&rows).unwrap_err().to_string().contains("NaN"));
        rows.pop();
        rows.push(rows[0].clone());
        assert!(check(&rows).unwrap_err().to_string().contains("two rows"));
        assert!(check(&rows[..5]).unwrap_err().to_string().contains("missing"));
    }

    /// The script that judges a run, on a run that was made up.
    #[test]
    fn the_table_tells_met_from_not_met() {
        let place = Place::find().unwrap();
        let rows = std::env::temp_dir().join(format!("rows-{}.csv", std::process::id()));
        let text = "# a GPU, driver 580\npeer,workload,ns\n\
            rmm binning,hot 256B,310.0\nrmm pool,hot 256B,340.0\naquifer pool,hot 256B,15.0\n\
            rmm pool,churn 16 threads,1453.0\naquifer pool,churn 16 threads,14.6\n\
            driver,bare record and wait,300.0\naquifer pool,ping-pong steal,391.0\n\
            aquifer pool,driver calls in all of one stream warm,0.0000\n\
            capacity,max,ours,bestfit,difference\ncapacity n=1000,64 MiB,1.0110,1.0010,+0.0100\n\
            capacity n=1000,1024 MiB,1.0711,1.0210,+0.0501\n";
        std::fs::write(&rows, text).unwrap();
        let mut command = Command::new("python3");
        command.arg(place.root.join("benches/peers/table.py")).arg(&rows);
        let finished = quiet(&mut command, None);
        std::fs::remove_file(&rows).unwrap();
        let Ok(finished) = finished else {
            let name = "the_table_tells_met_from_not_met";
            let _ = writeln!(std::io::stderr(), "skipped: {name}: there is no python3");
            return;
        };
        let table = finished.ok().unwrap().text;
        for line in [
            "| hot pair 256B | RMM binning 310.0 | 15 | 20.67x | at most 15 ns | met |",
            "| churn, 16 threads | RMM pool 1,453.0 | 14.6 | 99.52x | 100 times faster | **NOT MET** |",
            "| ping-pong steal | bare record and wait 300.0 | 391.0 | takes 1.30x | takes at most 1.3x \
             | **NOT MET** |",
            "| driver calls, one stream, warm | - | 0 | - | 0 | met |",
            "| capacity n=1000 max=64MiB | best fit 1.001 | 1.011 | - | at most 0.01 above | met |",
            "| capacity n=1000 max=1024MiB | best fit 1.021 | 1.071 | - | at most 0.05 above \
             | **NOT MET** |",
            "| cross, 2 streams | - | - | - | at most 20 ns | not measured |",
        ] {
            assert!(table.contains(line), "{line}\n{table}");
        }
    }

    #[test]
    fn finds_the_program_among_the_messages() {
        let messages = "{\"target\":{\"name\":\"aquifer\"},\"executable\":null}\n\
            {\"target\":{\"name\":\"pool\"},\"executable\":\"/there/pool-1\"}\nwarning: no JSON\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/there/pool-1")));
    }
}

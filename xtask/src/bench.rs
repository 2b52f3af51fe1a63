//! Runs the benches that print rows on the simulated device: their times mean nothing there, but they
//! have to run and to print their rows.

use crate::Place;
use crate::cargo::{cargo, programs_by_target};
use crate::process::{quiet, shown};
use crate::report::Verdict;
use crate::rows::{Row, parse};
use anyhow::{Context as _, Result, bail};
use std::collections::HashSet;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);

/// A peer and a workload for each row.
type Wanted = &'static [(&'static str, &'static str)];

/// The package of a bench, its name, and rows that it has to print: those that later programs look
/// for, one of each group.
const BENCHES: [(&str, &str, Wanted); 3] = [
    ("aquifer", "pool", &POOL),
    ("aquifer", "family", &FAMILY),
    ("aquifer-replay", "replay", &REPLAY),
];

const POOL: [(&str, &str); 23] = [
    ("aquifer pool", "pinned pair 1MiB fenced, 64 streams alive"),
    ("generator Rust", "churn 1 threads"),
    ("aquifer pool", "pair 4KiB on another's memory"),
    ("aquifer pool", "8 threads 1024 streams over 8 streams"),
    ("aquifer pool", "kv cache 4 streams peak reserved over peak live"),
    ("aquifer pool", "hand-over 4MiB, 16 ahead peak reserved over peak live"),
    ("aquifer pool", "workers in turn peak reserved over peak live"),
    ("aquifer handles", "card 40% after half was freed"),
    ("aquifer handles", "growing vector by 64MiB peak reserved over length"),
    ("aquifer pool", "a new stream's first 256 bytes beside a trim"),
    ("aquifer pool", "bookkeeping MiB after trim"),
    ("aquifer pool", "random n=1000 max=1MiB"),
    ("aquifer pool", "hot 1MiB inlined"),
    ("aquifer pool", "cross 2 streams 1MiB"),
    ("aquifer pool", "churn 16 threads"),
    ("aquifer pool", "driver calls in all of one stream warm"),
    ("aquifer pool", "churn 1 threads p99.9"),
    ("aquifer pool", "ping-pong steal"),
    ("aquifer pool", "churn 16 threads peak reserved over peak live"),
    ("aquifer pool", "scaling long churn 16 threads over private"),
    ("aquifer pool", "scaling vector 1MiB 16 threads over private"),
    ("aquifer pool", "pinned pair 1MiB fenced idle 64 in turn"),
    ("aquifer pool", "workflow 1MiB"),
];

const FAMILY: [(&str, &str); 16] = [
    ("aquifer fixed-size", "hot 256B"),
    ("aquifer fixed-size", "churn 16 threads"),
    ("aquifer binning", "hot 1MiB"),
    ("aquifer arena", "churn 16 threads"),
    ("aquifer async", "random n=1000 max=1MiB"),
    ("aquifer statistics", "on top 1 thread"),
    ("aquifer statistics", "on top 1 thread after a second"),
    ("aquifer checked", "on top 1 thread inlined"),
    ("aquifer logging", "on top in bursts"),
    ("aquifer logging", "on top sustained"),
    ("aquifer pool", "rmm random n=1000 max=1MiB"),
    ("aquifer arena", "multi stream 4 streams 4 kernels prewarmed"),
    ("aquifer pool", "vector construction n=10000"),
    ("aquifer async", "vector workflow n=100000"),
    ("aquifer streams", "stream pool get"),
    ("aquifer pool", "priming unprimed second round"),
];

const REPLAY: [(&str, &str); 2] = [
    ("aquifer pool", "replay rmm random n=1000 max=1MiB"),
    ("aquifer async", "replay rmm random n=1000 max=1MiB 4 threads with handing over"),
];

pub(crate) fn step(place: &Place) -> Result<Verdict> {
    let mut counts = Vec::new();
    for (package, bench, wanted) in BENCHES {
        let build = ["bench", "-p", package, "--bench", bench, "--no-run"];
        shown(cargo(place).args(build), None)?.ok()?;
        let told = quiet(cargo(place).args(build).arg("--message-format=json"), None)?.ok()?;
        let program =
            programs_by_target(&told.text).remove(bench).context("cargo named no bench")?;
        let mut command = Command::new(program);
        command
            .current_dir(&place.root)
            .env("AQUIFER_BACKEND", "sim")
            .env("AQUIFER_SIM_POOL_CHECKS", "off");
        let finished = shown(&mut command, Some(LIMIT))?.ok()?;
        let rows = parse(&finished.text)?;
        check(&rows, wanted)?;
        counts.push(format!("{} of the {bench}", rows.len()));
    }
    Ok(Verdict::Passed(format!("bench: rows: {}", counts.join(", "))))
}

fn check(rows: &[Row], wanted: &[(&str, &str)]) -> Result<()> {
    let mut seen = HashSet::new();
    for row in rows {
        if !seen.insert((&row.peer, &row.workload)) {
            bail!("two rows are `{},{}`", row.peer, row.workload);
        }
        // A difference of two times may be below 0.
        let least = if row.workload.starts_with("on top") { f64::MIN } else { 0.0 };
        if !row.value.is_finite() || row.value < least {
            bail!("`{},{}` is {}", row.peer, row.workload, row.value);
        }
    }
    for (peer, workload) in wanted {
        if !rows.iter().any(|row| row.peer == *peer && row.workload == *workload) {
            bail!("the row `{peer},{workload}` is missing");
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
        let wanted =
            |&(peer, workload): &(&str, _)| Row { peer: peer.to_owned(), ..row(workload, 1.0) };
        let mut rows: Vec<Row> = POOL.iter().map(wanted).collect();
        check(&rows, &POOL).unwrap();
        assert!(check(&rows, &FAMILY).unwrap_err().to_string().contains("missing"));
        rows.push(row("on top 1 thread", -0.5));
        check(&rows, &POOL).unwrap();
        rows.last_mut().unwrap().workload = "hot 2MiB".to_owned();
        assert!(check(&rows, &POOL).unwrap_err().to_string().contains("-0.5"));
        rows.pop();
        rows.push(row("hot 256B", f64::NAN));
        assert!(check(&rows, &POOL).unwrap_err().to_string().contains("NaN"));
        rows.pop();
        rows.push(rows[0].clone());
        assert!(check(&rows, &POOL).unwrap_err().to_string().contains("two rows"));
        assert!(check(&rows[..5], &POOL).unwrap_err().to_string().contains("missing"));
    }

    /// What the script that judges a run says of these rows. None without a python3.
    fn table(name: &str, text: &str) -> Option<String> {
        let place = Place::find().unwrap();
        let rows = std::env::temp_dir().join(format!("{name}-{}.csv", std::process::id()));
        std::fs::write(&rows, text).unwrap();
        let mut command = Command::new("python3");
        command.arg(place.root.join("benches/peers/table.py")).arg(&rows);
        let finished = quiet(&mut command, None);
        std::fs::remove_file(&rows).unwrap();
        let Ok(finished) = finished else {
            let _ = writeln!(std::io::stderr(), "skipped: {name}: there is no python3");
            return None;
        };
        Some(finished.ok().unwrap().text)
    }

    /// On a run that was made up.
    #[test]
    fn the_table_tells_met_from_not_met() {
        let text = "# a GPU, driver 580\npeer,workload,ns\n\
            rmm binning,hot 256B,310.0\nrmm pool,hot 256B,340.0\naquifer pool,hot 256B,15.0\n\
            rmm pool,churn 16 threads,1453.0\naquifer pool,churn 16 threads,14.6\n\
            rmm pool,kv cache 1 stream peak reserved over peak live,1.97\n\
            aquifer pool,kv cache 1 stream peak reserved over peak live,1.39\n\
            rmm pool,joins 4 streams peak reserved over peak live,1.4\n\
            torch caching,joins 4 streams peak reserved over peak live,2.7\n\
            aquifer pool,joins 4 streams peak reserved over peak live,1.45\n\
            aquifer pool,workers in turn peak reserved over peak live,1.0\n\
            rmm pool,phases 32 streams peak reserved over peak live,1.4\n\
            aquifer pool,phases 32 streams peak reserved over peak live,1.2\n\
            aquifer pool,statistics beside a trim,5000.0\n\
            aquifer pool,statistics beside a trim: the trim,390000000.0\n\
            driver,bare record and wait,300.0\naquifer pool,ping-pong steal,511.0\n\
            aquifer pool,driver calls in all of one stream warm,0.0000\n\
            limit,vmm 40% of the card in 64 MiB handles,30000000 ns\n\
            limit,vmm 40% of the card in 64 MiB handles, access at once,20000000 ns\n\
            aquifer handles,card 40% after half was freed,71000000.0\n\
            aquifer handles,card 40% after half was freed refused,0.0000\n\
            aquifer handles,growing vector by doubling peak reserved over length,1.0\n\
            aquifer handles,growing vector by doubling copied MiB,4.0000\n\
            torch expandable,kv cache 1 stream peak reserved over peak live,1.06\n\
            capacity,max,ours,bestfit,difference\ncapacity n=1000,64 MiB,1.0110,1.0010,+0.0100\n\
            capacity n=1000,1024 MiB,1.0711,1.0210,+0.0501\n";
        let Some(table) = table("the_table_tells_met_from_not_met", text) else { return };
        assert!(!table.contains("The family"), "{table}");
        for line in [
            "| hot pair 256B | RMM binning 310.0 | 15 | 20.67x | at most 15 ns | met |",
            "| churn, 16 threads | RMM pool 1,453.0 | 14.6 | 99.52x | 75 times faster | met |",
            "| ping-pong steal | bare record and wait 300.0 | 511.0 | takes 1.70x | takes at most 1.7x \
             | **NOT MET** |",
            "| driver calls, one stream, warm | - | 0 | - | 0 | met |",
            "| capacity n=1000 max=64MiB | best fit 1.001 | 1.011 | - | at most 0.01 above | met |",
            "| capacity n=1000 max=1024MiB | best fit 1.021 | 1.071 | - | at most 0.05 above \
             | **NOT MET** |",
            "| cross, 2 streams | - | - | - | at most 20 ns | not measured |",
            "| kv cache, 1 stream: reserved over live | RMM pool 1.97 | 1.39 | 1.42x \
             | at most 1.5, less than RMM pool | met |",
            // More than a peer of the run is not enough, whatever the other one takes.
            "| joins 4 streams: reserved over live | RMM pool 1.4 | 1.45 | 0.97x \
             | at most 1.5, less than RMM pool and PyTorch | **NOT MET** |",
            "| workers in turn: reserved over live | - | 1 | - | at most 1.4 | met |",
            "| phases 32 streams: reserved over live | RMM pool 1.4 | 1.2 | 1.17x \
             | at most 1.5, less than RMM pool and PyTorch | not measured |",
            "| 40% of the card after 95% in blocks, half of them freed | bare calls 20,000,000.0 \
             | 71,000,000.0 | takes 3.55x | takes at most 1.5x and 40 ms | **NOT MET** |",
            "| card 40% after half was freed: refused | - | 0 | - | 0 | met |",
            "| growing vector by doubling: reserved over length | - | 1 | - | at most 1.02 | met |",
            "| growing vector by doubling: MiB copied above 2 MiB | - | 4 | - | 0 | **NOT MET** |",
            "| program | Aquifer | RMM pool | PyTorch | PyTorch expandable |",
            "| kv cache 1 stream | 1.39 | 1.97 | - | 1.06 |",
            "| statistics beside a trim | the trim 390,000,000.0 | 5,000.0 | - \
             | waits for no kernel: at most 4 ms | met |",
        ] {
            assert!(table.contains(line), "{line}\n{table}");
        }
    }

    #[test]
    fn the_table_sets_the_family_beside_rmms() {
        let text = "# a GPU, driver 580\npeer,workload,ns\n\
            rmm fixed-size,hot 256B,220.0\naquifer fixed-size,hot 256B,10.0\n\
            aquifer fixed-size,hot 256B inlined,5.0\n\
            rmm binning,hot 256B,310.0\naquifer binning,hot 256B,10.1\n\
            rmm arena,churn 16 threads,123000.0\naquifer arena,churn 16 threads,14.6\n\
            rmm statistics,on top 1 thread,40.0\naquifer statistics,on top 1 thread,-0.2\n\
            rmm logging,on top in bursts,1800.0\naquifer logging,on top in bursts,60.1\n\
            cudaMallocAsync,multi stream 1 streams 4 kernels,1000.0\n\
            aquifer async,multi stream 1 streams 4 kernels,800.0\n\
            rmm managed,hot 256B,9000.0\naquifer managed,hot 256B,9100.0\n\
            rmm pool,rmm random n=1000 max=1MiB,400.0\n\
            aquifer pool,rmm random n=1000 max=1MiB,40.0\n\
            rmm managed,replay log,9000.0\nrmm managed,replay log synchronized on default,9900.0\n\
            aquifer managed,replay log,8000.0\n\
            rmm pool,replay log 4 threads with handing over,12000.0\n\
            aquifer pool,replay log 4 threads with handing over,3000.0\n";
        let name = "the_table_sets_the_family_beside_rmms";
        let Some(table) = table(name, text) else { return };
        for line in [
            "| fixed-size: hot 256B | RMM fixed_size 220.0 | 10 | 22.00x | at most 10 ns | met |",
            "| fixed-size: hot 256B inlined | RMM fixed_size 220.0 | 5 | 44.00x | reported \
             | reported |",
            "| fixed-size: hot 1MiB | - | - | - | at most 10 ns | not measured |",
            "| binning: hot 256B | RMM binning 310.0 | 10.1 | 30.69x | at most 10 ns \
             | **NOT MET** |",
            "| arena: churn 16 threads | RMM arena 123,000.0 | 14.6 | 8,424.66x \
             | 50 times faster | met |",
            "| statistics: on top 1 thread | RMM statistics 40 | -0.2 | - | at most 5 ns | met |",
            "| logging: on top in bursts | RMM logging 1,800.0 | 60.1 | 29.95x | at most 60 ns \
             | **NOT MET** |",
            "| async: multi stream 1 streams 4 kernels | RMM cuda_async 1,000.0 | 800.0 | 1.25x \
             | reported | reported |",
            "| pool: rmm random n=1000 max=1MiB | RMM pool 400.0 | 40 | 10.00x | reported \
             | reported |",
            "| managed: hot 256B | RMM managed 9,000.0 | 9,100.0 | 0.99x | not slower | **NOT MET** |",
            "| async: hot 256B | - | - | - | not slower | not measured |",
            "| managed: replay log | RMM managed 9,000.0 | 8,000.0 | 1.12x | reported | reported |",
            "| pool: replay log 4 threads with handing over | RMM pool 12,000.0 | 3,000.0 | 4.00x \
             | reported | reported |",
            "14 rows not met or not measured.",
        ] {
            assert!(table.contains(line), "{line}\n{table}");
        }
        // There is nothing of the pool to judge.
        assert!(!table.contains("ping-pong"), "{table}");
    }
}

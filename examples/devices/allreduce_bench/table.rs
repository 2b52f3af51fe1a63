//! The results: a table, a file of comma-separated values, and two ratios that stand for the rest.

use crate::output::{Outcome, say};
use crate::ranks::{Key, Kind, Times};
use crate::{MIB, Plan};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Duration;

/// One row: medians over the rounds, and of the ratios to the baseline in each.
struct Row {
    key: Key,
    iterations: usize,
    micros: f64,
    /// Bytes by time, in GB/s.
    algorithm: f64,
    /// What nccl-tests calls the bus bandwidth of an all-reduce: what each link carries, whatever the number of ranks.
    bus: f64,
    /// The bandwidth and the time by the baseline's, in percent.
    of_baseline: Option<(f64, f64)>,
}

pub(crate) struct Table {
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(times: &Times, ranks: usize, plan: &Plan) -> Self {
        let rows = times.iter().map(|(&key, rounds)| {
            let (bytes, _, in_place) = key;
            let seconds = middle(rounds.iter().map(Duration::as_secs_f64).collect());
            let algorithm = bytes as f64 / seconds / 1e9;
            let bus = algorithm * 2.0 * (ranks - 1) as f64 / ranks as f64;
            // Round by round: the machine's speed drifts, and each round has all kinds.
            let of_baseline = times.get(&(bytes, Kind::Baseline, in_place)).map(|baseline| {
                let ratio = |(own, its): (&Duration, &Duration)| own.div_duration_f64(*its);
                let percent = 100.0 * middle(rounds.iter().zip(baseline).map(ratio).collect());
                (1e4 / percent, percent)
            });
            let iterations = plan.iterations(bytes);
            Row { key, iterations, micros: seconds * 1e6, algorithm, bus, of_baseline }
        });
        Self { rows: rows.collect() }
    }

    pub(crate) fn print(&self) -> Outcome {
        say(format_args!(
            "{:>10}  {:<22}{:<7}{:>12}{:>11}{:>11}{:>13}{:>11}",
            "bytes", "kind", "place", "time us", "alg GB/s", "bus GB/s", "bandwidth %", "time %"
        ))?;
        for row in &self.rows {
            let (bytes, kind, _) = row.key;
            let percent =
                |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
            say(format_args!(
                "{bytes:>10}  {:<22}{:<7}{:>12.2}{:>11.3}{:>11.3}{:>13}{:>11}",
                kind.name(),
                row.place(),
                row.micros,
                row.algorithm,
                row.bus,
                percent(row.of_baseline.map(|(bandwidth, _)| bandwidth)),
                percent(row.of_baseline.map(|(_, time)| time)),
            ))?;
        }
        Ok(())
    }

    /// The bandwidth of large and the latency of small all-reduces in memory of a registered pool.
    pub(crate) fn print_closing(&self) -> Outcome {
        let found = |bytes: usize, percent: fn((f64, f64)) -> f64| {
            let of = |in_place| {
                let row = self.rows.iter().find(|row| row.key == (bytes, Kind::Pooled, in_place));
                row.and_then(|row| row.of_baseline).map(percent)
            };
            match (of(false), of(true)) {
                (Some(out), Some(within)) => {
                    format!("{out:.1} % of (a) out of place, {within:.1} % in place")
                }
                _ => "not compared with (a)".to_owned(),
            }
        };
        say(format_args!("bandwidth of (c) at 256 MiB: {}", found(256 * MIB, |ratio| ratio.0)))?;
        say(format_args!("latency of (c) at 8 bytes: {}", found(8, |ratio| ratio.1)))
    }

    pub(crate) fn write_csv(&self, file: File) -> Outcome {
        let mut file = BufWriter::new(file);
        writeln!(
            file,
            "bytes,kind,place,iterations,time_us,algbw_gb_s,busbw_gb_s,bandwidth_percent,time_percent"
        )?;
        for row in &self.rows {
            let (bytes, kind, _) = row.key;
            // A kind's name has a comma in it: its letter stands for it.
            let letter = &kind.name()[..1];
            let percent =
                |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2}"));
            writeln!(
                file,
                "{bytes},{letter},{},{},{:.3},{:.6},{:.6},{},{}",
                row.place(),
                row.iterations,
                row.micros,
                row.algorithm,
                row.bus,
                percent(row.of_baseline.map(|(bandwidth, _)| bandwidth)),
                percent(row.of_baseline.map(|(_, time)| time)),
            )?;
        }
        Ok(file.flush()?)
    }
}

impl Row {
    fn place(&self) -> &'static str {
        if self.key.2 { "in" } else { "out" }
    }
}

/// The median.
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

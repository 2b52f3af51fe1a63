//! `aquifer-replay`: replays a log of device memory.

mod arguments;
mod output;

use anyhow::{Result, bail};
use aquifer_replay::bisect::{Bisected, bisect};
use aquifer_replay::engine::{Replayed, replay};
use aquifer_replay::plan::Plan;
use aquifer_replay::stack::Backend;
use aquifer_replay::{picture, read, trace};
use arguments::Arguments;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use output::Output;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Impossible lines that are shown.
const SHOWN: usize = 10;

/// Allocations were refused.
const REFUSED: u8 = 3;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let log = read::read(&arguments.log, arguments.format(), arguments.log_device)?;
    let name = arguments.log.display();
    let plan = Plan::new(&log);
    if log.other_devices > 0 {
        let device = log.device.unwrap_or(0);
        let others = log.other_devices;
        writeln!(io::stderr(), "{name}: device {device}; {others} events of others left out")?;
    }
    told(arguments, &plan)?;
    // Before the replay, which may be long.
    let output = |path: &Option<PathBuf>| match path {
        Some(path) => Output::new(path, &arguments.log).map(Some),
        None => Ok(None),
    };
    let (trace, picture) = (output(&arguments.trace)?, output(&arguments.picture)?);
    let mut options = arguments.options();
    let mut bisected = None;
    if arguments.bisect {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        let found = bisect(&plan, &options, arguments.step, |capacity, served| {
            let answer = if served { "serves" } else { "is too little" };
            bar.set_message(format!("{capacity} B {answer}"));
        })?;
        bar.finish_and_clear();
        options.capacity = Some(found.capacity);
        bisected = Some(found);
    }
    // Hidden by itself where standard error is no terminal.
    let bar =
        ProgressBar::new(2 * plan.steps.len() as u64).with_style(ProgressStyle::with_template(
            "{bar:40} {human_pos} of {human_len} operations, {per_sec}, {eta} left",
        )?);
    let replayed = replay(&plan, &options, &|steps| bar.set_position(steps as u64))?;
    bar.finish_and_clear();
    if let Some(out) = trace {
        out.write(|file| trace::write(&plan, &replayed, file))?;
    }
    if let Some(out) = picture {
        out.write(|file| file.write_all(picture::draw(&plan, &replayed).as_bytes()))?;
    }
    print(arguments, &replayed, bisected)?;
    let refused = !replayed.report.failures.is_empty();
    if refused && options.backend == Backend::Simulated && options.capacity.is_none() {
        let hint = "a simulated device has 4 GiB unless --capacity says otherwise; --bisect finds how \
                    much suffices";
        writeln!(io::stderr(), "hint: {hint}")?;
    }
    Ok(if refused { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
}

/// Says what in the log cannot have happened, and ends there unless that is to be borne.
fn told(arguments: &Arguments, plan: &Plan) -> Result<()> {
    let count = plan.problems.len();
    if count == 0 {
        return Ok(());
    }
    let name = arguments.log.display();
    for problem in plan.problems.iter().take(SHOWN) {
        writeln!(io::stderr(), "{name}:{problem}")?;
    }
    if count > SHOWN {
        writeln!(io::stderr(), "{name}: and {} more", count - SHOWN)?;
    }
    let (word, them) = (plan.line_word, if count == 1 { "it" } else { "them" });
    let words = if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") };
    if !arguments.lenient {
        bail!(
            "{words} of {name} cannot have happened as written; --lenient goes on without {them}"
        );
    }
    Ok(())
}

fn print(arguments: &Arguments, replayed: &Replayed, bisected: Option<Bisected>) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = if arguments.json {
        let all = serde_json::json!({"bisection": bisected, "report": replayed.report});
        writeln!(out, "{all:#}")
    } else {
        match bisected {
            Some(Bisected { capacity, ratio, tries, .. }) => writeln!(
                out,
                "{:<20}{capacity} B, {ratio:.3} times the log's peak live ({tries} tries)",
                "least capacity",
            ),
            None => Ok(()),
        }
        .and_then(|()| write!(out, "{}", replayed.report))
    };
    match written {
        // Who reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

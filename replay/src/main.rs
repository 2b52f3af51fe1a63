//! `aquifer-replay`: replays a log of device memory.

mod arguments;
mod output;

use anyhow::{Context, Error, Result, anyhow, bail};
use aquifer::ErrorKind;
use aquifer_replay::bisect::{Bisected, bisect};
use aquifer_replay::engine::{Replayed, replay};
use aquifer_replay::error::{Moment, ReplayError};
use aquifer_replay::event::Log;
use aquifer_replay::plan::Plan;
use aquifer_replay::report::{CapacityIs, Failed};
use aquifer_replay::stack::{AMPLE, BEYOND_ANY_DEVICE, Backend, Options};
use aquifer_replay::warning::Warning;
use aquifer_replay::words::{count, place};
use aquifer_replay::{picture, read, trace};
use arguments::Arguments;
use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};
use output::Output;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Impossible lines that are shown.
const SHOWN: usize = 10;

/// The arguments are wrong.
const WRONG_ARGUMENTS: u8 = 2;

/// Allocations were refused.
const REFUSED: u8 = 3;

fn main() -> ExitCode {
    let done = match Arguments::read() {
        Ok(arguments) => run(&arguments),
        Err(instead) => show(&instead),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Shows the help, the version, or what is wrong with the arguments.
fn show(instead: &clap::Error) -> Result<ExitCode> {
    if instead.use_stderr() {
        let _ = instead.print();
        return Ok(ExitCode::from(WRONG_ARGUMENTS));
    }
    say(|_| instead.print())?;
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let log = read::read(&arguments.log, arguments.format(), arguments.log_device)?;
    let name = arguments.log_name();
    let plan = Plan::new(&log);
    warn(&name, &log.warnings, log.line_word)?;
    told(arguments, &plan)?;
    // The plan's are behind the log's.
    let of_plan = plan.warnings.get(log.warnings.len()..).unwrap_or_default();
    warn(&name, of_plan, log.line_word)?;
    let empty = plan.steps.is_empty().then(|| why_empty(&log, &plan));
    if let (Some(why), Some(option)) = (&empty, arguments.idle_for_an_empty_log()) {
        bail!("{name}: is empty, so {option} does nothing: {why}");
    }
    // Before the replay, which may be long.
    let log_file = match arguments.log.to_str() {
        Some("-") => Path::new("/dev/stdin"),
        _ => &arguments.log,
    };
    let output = |path: &Option<PathBuf>| match path {
        Some(path) => Output::new(path, log_file).map(Some),
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
        });
        let found = found.map_err(|error| at_its_line(arguments, error))?;
        bar.finish_and_clear();
        options.capacity = Some(found.capacity);
        bisected = Some(found);
    }
    // Hidden by itself where standard error is no terminal.
    let bar = ProgressBar::new(plan.steps.len() as u64).with_style(ProgressStyle::with_template(
        "{bar:40} {human_pos} of {human_len} operations, {per_sec}, {eta} left",
    )?);
    let mut replayed = replay(&plan, &options, &|steps| bar.set_position(steps as u64))
        .map_err(|error| at_its_line(arguments, error))?;
    bar.finish_and_clear();
    if bisected.is_some() {
        replayed.report.capacity_is = CapacityIs::Bisected;
    }
    if let Some(out) = trace {
        out.write(|file| trace::write(&plan, &replayed, file))?;
    }
    if let Some(out) = picture {
        out.write(|file| file.write_all(picture::draw(&plan, &replayed).as_bytes()))?;
    }
    match empty {
        Some(why) if !arguments.json => say(|out| writeln!(out, "{name}: is empty: {why}"))?,
        _ => print(arguments, &replayed, bisected)?,
    }
    let refused = !replayed.report.failures.is_empty();
    if refused && options.backend == Backend::Simulated {
        writeln!(io::stderr(), "hint: {}", hint(&options, &replayed.report.failures))?;
    }
    Ok(if refused { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS })
}

/// Says what is not replayed, or not as it stands.
fn warn(name: &str, warnings: &[Warning], line_word: &str) -> io::Result<()> {
    for warning in warnings.iter().filter(|warning| !warning.is_note()) {
        let place = warning.line.map(|line| place(name, line_word, line));
        let place = place.as_deref().unwrap_or(name);
        writeln!(io::stderr(), "{place}: warning: {}", warning.in_words(line_word))?;
    }
    Ok(())
}

/// What would serve what a simulated device refused.
fn hint(options: &Options, refused: &[Failed]) -> String {
    let any = |bytes: RangeInclusive<u64>| refused.iter().any(|one| bytes.contains(&one.bytes));
    if let Some(largest) = options.resource.largest_block()
        && any(largest + 1..=BEYOND_ANY_DEVICE - 1)
    {
        return format!(
            "a block of Aquifer's pools has {largest} bytes at most, whatever the device has; \
             --resource cuda, async and managed serve larger ones"
        );
    }
    if any(BEYOND_ANY_DEVICE..=u64::MAX) {
        return String::from("each block of a simulated device has less than 4 TiB");
    }
    match options.capacity {
        Some(_) => String::from("--bisect finds how much suffices"),
        None => format!("without --capacity a simulated device has {}", ByteSize::b(AMPLE)),
    }
}

/// An error of a replay, with the log's name.
fn at_its_line(arguments: &Arguments, error: ReplayError) -> Error {
    let name = arguments.log_name();
    let ReplayError { moment, line_word, error: what } = &error;
    match moment {
        Moment::Line(line) => anyhow!("{}: {what}", place(&name, line_word, *line)),
        // No fault of the log's.
        Moment::Start if what.kind() == ErrorKind::NoDriver => {
            anyhow!("{what}").context("--backend cuda finds no GPU; --backend sim needs none")
        }
        _ => anyhow!("{name}: {error}"),
    }
}

/// Says what in the log cannot have happened, and ends there unless that is to be borne.
fn told(arguments: &Arguments, plan: &Plan) -> Result<()> {
    let number = plan.problems.len();
    if number == 0 {
        return Ok(());
    }
    let name = arguments.log_name();
    for problem in plan.problems.iter().take(SHOWN) {
        let place = place(&name, plan.line_word, problem.line());
        writeln!(io::stderr(), "{place}: {}", problem.in_words(plan.line_word))?;
    }
    if number > SHOWN {
        writeln!(io::stderr(), "{name}: and {} more", number - SHOWN)?;
    }
    if !arguments.lenient {
        bail!(
            "{} of {name} cannot have happened as written; --lenient goes on all the same",
            count(number, plan.line_word)
        );
    }
    Ok(())
}

/// Why there is nothing to replay.
fn why_empty(log: &Log, plan: &Plan) -> String {
    let left_out = [
        (plan.failures, "allocation", " that failed when it was written"),
        (plan.empty, "event", " of no bytes"),
        (plan.problems.len(), plan.line_word, " that cannot have happened"),
        (log.other_devices, "event", " of other devices"),
    ];
    let left_out: Vec<String> = left_out
        .iter()
        .filter(|(number, _, _)| *number > 0)
        .map(|(number, noun, of)| count(*number, noun) + of)
        .collect();
    match (left_out.is_empty(), plan.line_word) {
        (false, _) => format!("nothing to replay but {}", left_out.join(", ")),
        (true, "line") => String::from("a header and no events"),
        (true, _) => String::from(
            "its history has no allocations: was torch.cuda.memory._record_memory_history() called?",
        ),
    }
}

fn print(arguments: &Arguments, replayed: &Replayed, bisected: Option<Bisected>) -> Result<()> {
    let report = &replayed.report;
    say(|out| {
        if arguments.json {
            let empty = report.operations == 0;
            let all = serde_json::json!({"bisection": bisected, "empty": empty, "report": report});
            return writeln!(out, "{all:#}");
        }
        if let Some(Bisected { capacity, ratio, tries, .. }) = bisected {
            writeln!(
                out,
                "{:<20}{capacity} B, {ratio:.3} times the log's peak live ({})",
                "least capacity",
                count(tries, "try"),
            )?;
        }
        write!(out, "{report}")
    })
}

/// Writes to standard output.
fn say(words: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut out = io::stdout().lock();
    match words(&mut out).and_then(|()| out.flush()) {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output: cannot be written"),
    }
}

//! Runs other programs: their output is shown as it comes and kept to be looked at.

use anyhow::{Context as _, Result, bail};
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Calls `each` for all items, for as many at a time as the machine has cores. The results are in the order of the items.
pub(crate) fn on_all_cores<T: Sync, R: Send>(items: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { break };
            let result = each(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// What a program left behind.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// Its standard output, then its standard error.
    pub(crate) text: String,
}

impl Finished {
    /// An error unless the program succeeded.
    pub(crate) fn ok(self) -> Result<Self> {
        if !self.status.success() {
            bail!("{}", self.status);
        }
        Ok(self)
    }
}

/// Runs `command` and shows its output. Past `limit` it is killed, and that is an error.
pub(crate) fn shown(command: &mut Command, limit: Option<Duration>) -> Result<Finished> {
    println!("$ {}", line(command));
    finish(command, limit, true, |_| false)
}

/// Runs a `command` that has to fail. Its output is shown only if `judge` finds fault with how it
/// failed, so that a log of many faults names none that was found.
pub(crate) fn judged<R>(
    command: &mut Command,
    limit: Duration,
    judge: impl FnOnce(&Finished) -> Result<R>,
) -> Result<R> {
    println!("$ {}", line(command));
    let finished = quiet(command, Some(limit))?;
    judge(&finished).inspect_err(|_| println!("{}", finished.text))
}

/// Runs `command` without showing its output.
pub(crate) fn quiet(command: &mut Command, limit: Option<Duration>) -> Result<Finished> {
    finish(command, limit, false, |_| false)
}

/// As [`quiet`]. The program is killed once it has written a line that says all there is to know.
pub(crate) fn quiet_until(
    command: &mut Command,
    limit: Duration,
    says_all: fn(&str) -> bool,
) -> Result<Finished> {
    finish(command, Some(limit), false, says_all)
}

fn finish(
    command: &mut Command,
    limit: Option<Duration>,
    show: bool,
    says_all: fn(&str) -> bool,
) -> Result<Finished> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("`{name}` could not be started"))?;
    let said = Arc::new(AtomicBool::new(false));
    let watch = |said: &Arc<AtomicBool>| {
        let said = Arc::clone(said);
        move |line: &str| said.fetch_or(says_all(line), Ordering::Relaxed)
    };
    let (of_out, of_err) = (watch(&said), watch(&said));
    let out = child
        .stdout
        .take()
        .map(|pipe| thread::spawn(move || copy(pipe, std::io::stdout(), show, of_out)));
    let err = child
        .stderr
        .take()
        .map(|pipe| thread::spawn(move || copy(pipe, std::io::stderr(), show, of_err)));
    let status = wait(&mut child, limit, &said).with_context(|| format!("`{name}`"))?;
    let mut text = String::new();
    for reader in [out, err].into_iter().flatten() {
        if let Ok(part) = reader.join() {
            text.push_str(&part);
        }
    }
    Ok(Finished { status, text })
}

fn wait(child: &mut Child, limit: Option<Duration>, said: &AtomicBool) -> Result<ExitStatus> {
    let Some(limit) = limit else { return Ok(child.wait()?) };
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let is_late = started.elapsed() > limit;
        if is_late || said.load(Ordering::Relaxed) {
            // With what it has started, where it leads a group: a child of it could keep the pipes open.
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).output();
            child.kill()?;
            let status = child.wait()?;
            if is_late {
                bail!("ran longer than {} s and was killed", limit.as_secs());
            }
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Copies line by line, so that the two outputs do not mix within a line.
fn copy(pipe: impl Read, mut to: impl Write, show: bool, heard: impl Fn(&str) -> bool) -> String {
    let mut pipe = BufReader::new(pipe);
    let (mut text, mut bytes) = (String::new(), Vec::new());
    while matches!(pipe.read_until(b'\n', &mut bytes), Ok(count) if count > 0) {
        if show {
            // A closed output of ours must not stop the program that is checked.
            let _ = to.write_all(&bytes);
            let _ = to.flush();
        }
        let line = String::from_utf8_lossy(&bytes);
        heard(line.trim_end());
        text.push_str(&line);
        bytes.clear();
    }
    text
}

/// The command as one could type it, with the variables it sets.
fn line(command: &Command) -> String {
    let quote = |word: &OsStr| {
        let word = word.to_string_lossy();
        if word.contains([' ', '"']) { format!("'{word}'") } else { word.into_owned() }
    };
    let set = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_string_lossy(), quote(value?))));
    set.chain([quote(command.get_program())])
        .chain(command.get_args().map(quote))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn keeps_both_outputs_and_the_status() {
        let finished = quiet(&mut shell("echo one; echo two >&2; exit 3"), None).unwrap();
        assert_eq!(finished.text, "one\ntwo\n");
        assert_eq!(finished.status.code(), Some(3));
        assert!(finished.ok().is_err());
    }

    #[test]
    fn kills_what_runs_too_long() {
        let limit = Some(Duration::from_millis(50));
        let error = quiet(&mut shell("exec sleep 20"), limit).err().unwrap();
        assert!(format!("{error:#}").contains("was killed"), "{error:#}");
    }

    #[test]
    fn kills_what_has_said_all() {
        let mut command = shell("echo one; echo two; exec sleep 20");
        let finished = quiet_until(&mut command, Duration::from_secs(10), |line| line == "two");
        let finished = finished.unwrap();
        assert!(finished.text.starts_with("one\ntwo\n") && !finished.status.success());
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let error = quiet(&mut Command::new("no-such-program-here"), None).err().unwrap();
        assert!(error.to_string().contains("no-such-program-here"));
    }
}

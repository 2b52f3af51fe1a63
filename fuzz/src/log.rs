//! Readers of logs: whatever a file holds, they return a log or an error, and a log has a plan.

use aquifer_replay::plan::Plan;
use aquifer_replay::read::{Format, read};
use std::path::PathBuf;

/// Reads `input` as a log: its first byte chooses the format, the rest is the file.
pub fn read_log(input: &[u8]) {
    let Some((choice, content)) = input.split_first() else { return };
    let format = match choice % 4 {
        0 => None,
        1 => Some(Format::Rmm),
        2 => Some(Format::Events),
        _ => Some(Format::Torch),
    };
    let file = Scratch::new();
    if std::fs::write(&file.0, content).is_ok() {
        if let Ok(log) = read(&file.0, format, None) {
            let plan = Plan::new(&log);
            plan.warnings.iter().for_each(|warning| drop(warning.in_words(log.line_word)));
            plan.problems.iter().for_each(|problem| drop(problem.in_words(log.line_word)));
        }
    }
}

/// A file of this thread, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let thread = std::thread::current().id();
        Self(folder.join(format!("aquifer-fuzz-{}-{thread:?}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
